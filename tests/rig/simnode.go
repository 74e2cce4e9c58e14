// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// SimNode is a node that is none: it says to controllers what a test wants said, and answers what they ask for from
// memory. Set the fields before Listen and Join.
type SimNode struct {
	ID, Instance, Version, Driver, Address string
	Topology                               map[string]string
	Room                                   int64 // what GetCapacity says
	Pools                                  []*ringvolv1.NodePool
	Roster                                 []*ringvolv1.RosterNode
	Cert                                   *Cert
	// BeforeCreate is run at each CreateVolume that arrives, before it does anything.
	BeforeCreate func(context.Context, *csi.CreateVolumeRequest) error
	// BeforeGet is run at each ControllerGetVolume.
	BeforeGet func(context.Context, string) error
	// Granted is run at each GrantCopy and Offered at each OfferCopy.
	Granted func(*ringvolv1.GrantCopyRequest) (*ringvolv1.GrantCopyResponse, error)
	Offered func(*ringvolv1.OfferCopyRequest) error
	// Transfer is what it serves to nodes; nil: nothing.
	Transfer ringvolv1.TransferServer

	csi.UnimplementedControllerServer
	mu      sync.Mutex
	volumes map[string]*csi.Volume // by id
	joins   []*SimJoin
	server  *grpc.Server
	creates int
}

// SimJoin is one Join of a node that is simulated.
type SimJoin struct {
	Stream ringvolv1.JoinStream

	node   *SimNode
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	send   sync.Mutex
	mu     sync.Mutex
	said   []*ringvolv1.ControllerReport
	ended  chan struct{}
	err    error
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// NewSim prepares a node with one pool and a certificate of its own.
func (c *Cluster) NewSim(id string) (*SimNode, error) {
	cert, err := c.CA.IssueFor(NodeURI(id))
	if err != nil {
		return nil, err
	}
	return NewSimWith(id, cert), nil
}

// NewSimWith prepares one with a certificate that is there.
func NewSimWith(id string, cert *Cert) *SimNode {
	return &SimNode{
		ID: id, Instance: randomHex(16), Version: "0.2.0", Driver: "csi.ringvol.dev", Address: "127.0.0.1:1", Cert: cert,
		Topology: map[string]string{TopologyKey: id}, Room: 1 << 40,
		Pools: []*ringvolv1.NodePool{{Name: "default", Uuid: randomHex(16), State: ringvolv1.NodePool_READY,
			AvailableBytes: 1 << 40}},
		volumes: map[string]*csi.Volume{},
	}
}

// Pool8 is the first 8 digits of its first pool's uuid.
func (s *SimNode) Pool8() string { return s.Pools[0].GetUuid()[:8] }

// Add gives it a volume that it tells of when it joins; the name has to be plain, as it is the key.
func (s *SimNode) Add(name string, size int64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(name, size)
}

// AddID is Add with the whole id.
func (s *SimNode) AddID(id string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addID(id, size)
}

func (s *SimNode) add(name string, size int64) string {
	id := fmt.Sprintf("%s.%s.%s", s.Pool8(), name, randomHex(4))
	s.addID(id, size)
	return id
}

func (s *SimNode) addID(id string, size int64) {
	s.volumes[id] = &csi.Volume{VolumeId: id, CapacityBytes: size,
		AccessibleTopology: []*csi.Topology{{Segments: s.Topology}}}
}

// Creates is how many volumes it was asked to make.
func (s *SimNode) Creates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.creates
}

// Object is what it says of a volume.
func Object(v *csi.Volume) *ringvolv1.NodeObject {
	entry, _ := proto.Marshal(&csi.ListVolumesResponse_Entry{Volume: v,
		Status: &csi.ListVolumesResponse_VolumeStatus{}})
	return &ringvolv1.NodeObject{Kind: ringvolv1.NodeObject_VOLUME, Id: v.GetVolumeId(), Entry: entry}
}

// Hello is what it begins with.
func (s *SimNode) Hello() *ringvolv1.Hello {
	hello := &ringvolv1.Hello{NodeId: s.ID, DriverName: s.Driver, Version: s.Version, Instance: s.Instance,
		Address: s.Address, Roster: s.Roster}
	for _, key := range slices.Sorted(maps.Keys(s.Topology)) {
		hello.Topology = append(hello.Topology, &ringvolv1.Segment{Key: key, Value: s.Topology[key]})
	}
	return hello
}

// Listen serves controllers on a port of its own, until the rig is closed.
func (s *SimNode) Listen(r *Rig) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.Address = listener.Addr().String()
	s.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(s.Cert.ServerTLS())))
	csi.RegisterControllerServer(s.server, s)
	ringvolv1.RegisterMember(s.server, simMember{s})
	if s.Transfer != nil {
		ringvolv1.RegisterTransfer(s.server, s.Transfer)
	}
	go func() { _ = s.server.Serve(listener) }()
	r.Defer(func() error { s.server.Stop(); return nil })
	return nil
}

// Open dials a controller and says nothing yet.
func (s *SimNode) Open(address string) (*SimJoin, error) {
	conn, err := DialTLS(address, s.Cert)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := ringvolv1.Join(ctx, conn)
	if err != nil {
		cancel()
		conn.Close()
		return nil, err
	}
	j := &SimJoin{Stream: stream, node: s, conn: conn, cancel: cancel, ended: make(chan struct{})}
	return j, nil
}

// Join tells a controller everything and keeps up with it until it is left. AwaitWelcome waits for its answer.
func (s *SimNode) Join(address string) (*SimJoin, error) {
	j, err := s.Open(address)
	if err != nil {
		return nil, err
	}
	go j.listen()
	go j.beat()
	s.mu.Lock()
	s.joins = append(s.joins, j)
	s.mu.Unlock()
	return j, j.Tell()
}

// Keep has it joined until the function that is returned is called: it dials again as a node does.
func (s *SimNode) Keep(address string) (stop func()) {
	done := make(chan struct{})
	var once sync.Once
	go func() {
		const first, most = 200 * time.Millisecond, 2 * time.Second
		for pause := first; ; pause = min(2*pause, most) {
			j, err := s.Join(address)
			if err == nil && j.AwaitWelcome() == nil {
				pause = first
				select {
				case <-j.ended:
				case <-done:
				}
			}
			if j != nil {
				j.Leave()
				<-j.ended
				s.forget(j)
			}
			select {
			case <-done:
				return
			case <-time.After(pause):
			}
		}
	}()
	return func() { once.Do(func() { close(done) }) }
}

func (s *SimNode) forget(j *SimJoin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joins = slices.DeleteFunc(s.joins, func(other *SimJoin) bool { return other == j })
}

// Tell says who it is and all that it has.
func (j *SimJoin) Tell() error {
	if err := j.Send(&ringvolv1.NodeReport{Hello: j.node.Hello()}); err != nil {
		return err
	}
	if err := j.Send(&ringvolv1.NodeReport{Pools: j.node.Pools}); err != nil {
		return err
	}
	j.node.mu.Lock()
	var objects []*ringvolv1.NodeObject
	for _, id := range slices.Sorted(maps.Keys(j.node.volumes)) {
		objects = append(objects, Object(j.node.volumes[id]))
	}
	j.node.mu.Unlock()
	for part := range slices.Chunk(objects, 50) {
		if err := j.Send(&ringvolv1.NodeReport{Objects: part}); err != nil {
			return err
		}
	}
	return j.Send(&ringvolv1.NodeReport{Synced: true})
}

// Send says one thing.
func (j *SimJoin) Send(report *ringvolv1.NodeReport) error {
	j.send.Lock()
	defer j.send.Unlock()
	return j.Stream.Send(report)
}

func (j *SimJoin) beat() {
	tick := time.NewTicker(4 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-j.ended:
			return
		case <-tick.C:
			_ = j.Send(&ringvolv1.NodeReport{})
		}
	}
}

func (j *SimJoin) listen() {
	defer close(j.ended)
	for {
		report, err := j.Stream.Recv()
		if err != nil {
			j.mu.Lock()
			j.err = err
			j.mu.Unlock()
			return
		}
		j.mu.Lock()
		j.said = append(j.said, report)
		j.mu.Unlock()
		if len(report.GetClasses()) > 0 {
			answer := &ringvolv1.NodeReport{}
			response, _ := proto.Marshal(&csi.GetCapacityResponse{AvailableCapacity: j.node.Room})
			for _, class := range report.GetClasses() {
				answer.Capacities = append(answer.Capacities,
					&ringvolv1.NodeCapacity{Class: class.GetClass(), Response: response})
			}
			_ = j.Send(answer)
		}
	}
}

// Said is everything the controller has said so far.
func (j *SimJoin) Said() []*ringvolv1.ControllerReport {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.said)
}

// AwaitWelcome waits for the controller's first words.
func (j *SimJoin) AwaitWelcome() error {
	return Eventually(30*time.Second, func() error {
		if j.Ended() {
			return Stop(fmt.Errorf("%s was sent away: %w", j.node.ID, j.Err()))
		}
		if said := j.Said(); len(said) == 0 || said[0].GetWelcome() == nil {
			return fmt.Errorf("%s: no welcome", j.node.ID)
		}
		return nil
	})
}

// Ended tells whether the controller has ended the call.
func (j *SimJoin) Ended() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

// Err is how it ended.
func (j *SimJoin) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// AwaitEnd waits until the controller has ended the call, and returns why.
func (j *SimJoin) AwaitEnd(limit time.Duration) error {
	select {
	case <-j.ended:
		return j.Err()
	case <-time.After(limit):
		return errors.New("the controller has not ended the call")
	}
}

// Leave ends it as a process does that is killed.
func (j *SimJoin) Leave() {
	j.cancel()
	j.conn.Close()
}

func (s *SimNode) tell(report *ringvolv1.NodeReport) {
	s.mu.Lock()
	joins := slices.Clone(s.joins)
	s.mu.Unlock()
	for _, j := range joins {
		if !j.Ended() {
			_ = j.Send(report)
		}
	}
}

// CreateVolume is called by controllers.
func (s *SimNode) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	s.mu.Lock()
	s.creates++
	s.mu.Unlock()
	if s.BeforeCreate != nil {
		if err := s.BeforeCreate(ctx, request); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	var found *csi.Volume
	for id, v := range s.volumes {
		if KeyOf(id) == request.GetName() {
			found = v
		}
	}
	if found == nil {
		found = s.volumes[s.add(request.GetName(), request.GetCapacityRange().GetRequiredBytes())]
	}
	s.mu.Unlock()
	s.tell(&ringvolv1.NodeReport{Objects: []*ringvolv1.NodeObject{Object(found)}})
	return &csi.CreateVolumeResponse{Volume: found}, nil
}

// DeleteVolume is called by controllers.
func (s *SimNode) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	s.mu.Lock()
	delete(s.volumes, request.GetVolumeId())
	s.mu.Unlock()
	s.tell(&ringvolv1.NodeReport{Gone: []string{request.GetVolumeId()}})
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerGetVolume is called by controllers.
func (s *SimNode) ControllerGetVolume(ctx context.Context, request *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if s.BeforeGet != nil {
		if err := s.BeforeGet(ctx, request.GetVolumeId()); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[request.GetVolumeId()]
	if v == nil {
		return nil, status.Error(codes.NotFound, "no such volume")
	}
	return &csi.ControllerGetVolumeResponse{Volume: v, Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

// GetCapacity is called by controllers for a class that no node has answered yet.
func (s *SimNode) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: s.Room}, nil
}

type simMember struct{ *SimNode }

func (s simMember) GrantCopy(_ context.Context, request *ringvolv1.GrantCopyRequest) (*ringvolv1.GrantCopyResponse, error) {
	if s.Granted == nil {
		return nil, status.Error(codes.Unimplemented, "no copies here")
	}
	return s.Granted(request)
}

func (s simMember) OfferCopy(_ context.Context, request *ringvolv1.OfferCopyRequest) (*ringvolv1.OfferCopyResponse, error) {
	if s.Offered == nil {
		return nil, status.Error(codes.Unimplemented, "no copies here")
	}
	return &ringvolv1.OfferCopyResponse{}, s.Offered(request)
}

// SimController is a controller that is none, for nodes that are: it takes down what they tell, and says what a test
// wants said.
type SimController struct {
	Address string
	Cert    *Cert
	// Verdict answers a claim; nil: every name is granted.
	Verdict func(node string, claim *ringvolv1.NameClaim) *ringvolv1.NameVerdict
	// Deaf: it never reads.
	Deaf bool
	// Version and Extra go into the welcome; Extra as unknown fields.
	Version string
	Extra   []byte

	mu       sync.Mutex
	reports  map[string][]*ringvolv1.NodeReport
	streams  map[string]ringvolv1.JoinServer
	instance string
	ended    map[string]chan struct{}
}

// NewSimController serves until the rig is closed.
func (c *Cluster) NewSimController() (*SimController, error) {
	cert, err := c.CA.IssueFor(ControllerURI)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &SimController{Address: listener.Addr().String(), Cert: cert, Version: "0.2.0", instance: randomHex(16),
		reports: map[string][]*ringvolv1.NodeReport{}, streams: map[string]ringvolv1.JoinServer{},
		ended: map[string]chan struct{}{}}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(cert.ServerTLS())))
	ringvolv1.RegisterCluster(server, s)
	go func() { _ = server.Serve(listener) }()
	c.Defer(func() error { server.Stop(); return nil })
	return s, nil
}

// Join is called by nodes.
func (s *SimController) Join(stream ringvolv1.JoinServer) error {
	if s.Deaf {
		<-stream.Context().Done()
		return nil
	}
	ended := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		for node := ""; ; {
			report, err := stream.Recv()
			if err == nil {
				err = s.hear(stream, report, &node, ended)
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-ended:
		return status.Error(codes.Unavailable, "the call was ended")
	}
}

func (s *SimController) hear(stream ringvolv1.JoinServer, report *ringvolv1.NodeReport, node *string, ended chan struct{}) error {
	answer := &ringvolv1.ControllerReport{}
	if hello := report.GetHello(); hello != nil {
		*node = hello.GetNodeId()
		answer.Welcome = &ringvolv1.Welcome{Version: s.Version, Instance: s.instance}
		answer.ProtoReflect().SetUnknown(s.Extra)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports[*node] = append(s.reports[*node], report)
	s.streams[*node], s.ended[*node] = stream, ended
	for _, claim := range report.GetClaims() {
		verdict := &ringvolv1.NameVerdict{Kind: claim.GetKind(), Key: claim.GetKey(), Granted: true}
		if s.Verdict != nil {
			verdict = s.Verdict(*node, claim)
		}
		if verdict != nil {
			answer.Verdicts = append(answer.Verdicts, verdict)
		}
	}
	return stream.Send(answer)
}

// End ends the call of a node; it may join again.
func (s *SimController) End(node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended[node] == nil {
		return fmt.Errorf("%s has not joined", node)
	}
	close(s.ended[node])
	delete(s.ended, node)
	return nil
}

// Reports is what a node has told so far.
func (s *SimController) Reports(node string) []*ringvolv1.NodeReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reports[node])
}

// Say says something to a node that has joined.
func (s *SimController) Say(node string, report *ringvolv1.ControllerReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[node] == nil {
		return fmt.Errorf("%s has not joined", node)
	}
	return s.streams[node].Send(report)
}
