// SPDX-License-Identifier: Apache-2.0

// Package ringvolv1 is proto/cluster.proto in Go. The messages are generated, with what comes with
// google.golang.org/protobuf; tests/proto compares them with the proto. The services are few enough to
// be written by hand.
package ringvolv1

//go:generate sh -c "go build -o /tmp/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go && protoc --plugin=/tmp/protoc-gen-go -I../../../proto --go_out=. --go_opt=paths=source_relative --go_opt=Mcluster.proto=ringvol.dev/tests/rig/ringvolv1 cluster.proto"

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The methods' full names.
const (
	ClusterJoin        = "/ringvol.v1.Cluster/Join"
	MemberGrantCopy    = "/ringvol.v1.Member/GrantCopy"
	MemberOfferCopy    = "/ringvol.v1.Member/OfferCopy"
	TransferOpenCopy   = "/ringvol.v1.Transfer/OpenCopy"
	TransferReadCopy   = "/ringvol.v1.Transfer/ReadCopy"
	TransferCloseCopy  = "/ringvol.v1.Transfer/CloseCopy"
	joinName, readName = "Join", "ReadCopy"
)

// JoinStream is the node's side of a Join.
type JoinStream = grpc.BidiStreamingClient[NodeReport, ControllerReport]

// JoinServer is the controller's side of it.
type JoinServer = grpc.BidiStreamingServer[NodeReport, ControllerReport]

// ReadStream is what a node reads a copy from.
type ReadStream = grpc.ServerStreamingClient[ReadCopyResponse]

// Join opens a node's presence.
func Join(ctx context.Context, conn grpc.ClientConnInterface, options ...grpc.CallOption) (JoinStream, error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: joinName, ServerStreams: true, ClientStreams: true},
		ClusterJoin, options...)
	if err != nil {
		return nil, err
	}
	return &grpc.GenericClientStream[NodeReport, ControllerReport]{ClientStream: stream}, nil
}

func call[Reply any](ctx context.Context, conn grpc.ClientConnInterface, method string, request any) (*Reply, error) {
	reply := new(Reply)
	if err := conn.Invoke(ctx, method, request, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// GrantCopy as a controller calls it.
func GrantCopy(ctx context.Context, conn grpc.ClientConnInterface, request *GrantCopyRequest) (*GrantCopyResponse, error) {
	return call[GrantCopyResponse](ctx, conn, MemberGrantCopy, request)
}

// OfferCopy as a controller calls it.
func OfferCopy(ctx context.Context, conn grpc.ClientConnInterface, request *OfferCopyRequest) (*OfferCopyResponse, error) {
	return call[OfferCopyResponse](ctx, conn, MemberOfferCopy, request)
}

// OpenCopy as a node calls it.
func OpenCopy(ctx context.Context, conn grpc.ClientConnInterface, grant string) (*OpenCopyResponse, error) {
	return call[OpenCopyResponse](ctx, conn, TransferOpenCopy, &OpenCopyRequest{Grant: grant})
}

// ReadCopy as a node calls it.
func ReadCopy(ctx context.Context, conn grpc.ClientConnInterface, request *ReadCopyRequest) (ReadStream, error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: readName, ServerStreams: true}, TransferReadCopy)
	if err != nil {
		return nil, err
	}
	read := &grpc.GenericClientStream[ReadCopyRequest, ReadCopyResponse]{ClientStream: stream}
	if err := read.SendMsg(request); err != nil {
		return nil, err
	}
	return read, read.CloseSend()
}

// CloseCopy as a node calls it.
func CloseCopy(ctx context.Context, conn grpc.ClientConnInterface, grant string) error {
	_, err := call[CloseCopyResponse](ctx, conn, TransferCloseCopy, &CloseCopyRequest{Grant: grant})
	return err
}

// MemberServer is what a node serves to controllers.
type MemberServer interface {
	GrantCopy(context.Context, *GrantCopyRequest) (*GrantCopyResponse, error)
	OfferCopy(context.Context, *OfferCopyRequest) (*OfferCopyResponse, error)
}

func unary[Request any, Server any, Reply any](name string, run func(Server, context.Context, *Request) (*Reply, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(server any, ctx context.Context, decode func(any) error,
		_ grpc.UnaryServerInterceptor) (any, error) {
		request := new(Request)
		if err := decode(request); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		return run(server.(Server), ctx, request)
	}}
}

// RegisterMember makes a server serve it.
func RegisterMember(s grpc.ServiceRegistrar, server MemberServer) {
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "ringvol.v1.Member", HandlerType: (*MemberServer)(nil),
		Methods: []grpc.MethodDesc{unary("GrantCopy", MemberServer.GrantCopy), unary("OfferCopy", MemberServer.OfferCopy)}}, server)
}

// ClusterServer is what a controller serves to nodes.
type ClusterServer interface{ Join(JoinServer) error }

// RegisterCluster makes a server serve it.
func RegisterCluster(s grpc.ServiceRegistrar, server ClusterServer) {
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "ringvol.v1.Cluster", HandlerType: (*ClusterServer)(nil),
		Streams: []grpc.StreamDesc{{StreamName: joinName, ServerStreams: true, ClientStreams: true,
			Handler: func(server any, stream grpc.ServerStream) error {
				return server.(ClusterServer).Join(&grpc.GenericServerStream[NodeReport, ControllerReport]{ServerStream: stream})
			}}}}, server)
}

// TransferServer is what a node serves to nodes.
type TransferServer interface {
	OpenCopy(context.Context, *OpenCopyRequest) (*OpenCopyResponse, error)
	ReadCopy(*ReadCopyRequest, ReadServer) error
	CloseCopy(context.Context, *CloseCopyRequest) (*CloseCopyResponse, error)
}

// ReadServer is what a node sends a copy to.
type ReadServer = grpc.ServerStreamingServer[ReadCopyResponse]

// RegisterTransfer makes a server serve it.
func RegisterTransfer(s grpc.ServiceRegistrar, server TransferServer) {
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "ringvol.v1.Transfer", HandlerType: (*TransferServer)(nil),
		Methods: []grpc.MethodDesc{unary("OpenCopy", TransferServer.OpenCopy), unary("CloseCopy", TransferServer.CloseCopy)},
		Streams: []grpc.StreamDesc{{StreamName: readName, ServerStreams: true,
			Handler: func(server any, stream grpc.ServerStream) error {
				request := new(ReadCopyRequest)
				if err := stream.RecvMsg(request); err != nil {
					return err
				}
				return server.(TransferServer).ReadCopy(request,
					&grpc.GenericServerStream[ReadCopyRequest, ReadCopyResponse]{ServerStream: stream})
			}}}}, server)
}
