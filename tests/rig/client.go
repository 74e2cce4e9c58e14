// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// Client is every service on one connection.
type Client struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
	csi.SnapshotMetadataClient
	csi.GroupControllerClient
	Conn *grpc.ClientConn
}

// Dial connects as the sidecars do; the connection comes back by itself after a restart.
func Dial(socket string, options ...grpc.DialOption) (*Client, error) {
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond,
		}, MinConnectTimeout: 5 * time.Second}), // a machine may be busy
	}, options...)
	conn, err := grpc.NewClient("unix://"+socket, options...)
	if err != nil {
		return nil, err
	}
	return &Client{
		IdentityClient:   csi.NewIdentityClient(conn),
		ControllerClient: csi.NewControllerClient(conn),
		NodeClient:       csi.NewNodeClient(conn),
		Conn:             conn,

		SnapshotMetadataClient: csi.NewSnapshotMetadataClient(conn),
		GroupControllerClient:  csi.NewGroupControllerClient(conn),
	}, nil
}

// Client returns the driver's client, one connection for all.
func (d *Driver) Client() (*Client, error) {
	if d.conn == nil {
		c, err := Dial(d.Socket)
		if err != nil {
			return nil, err
		}
		d.conn = c.Conn
		return c, nil
	}
	return &Client{
		IdentityClient:   csi.NewIdentityClient(d.conn),
		ControllerClient: csi.NewControllerClient(d.conn),
		NodeClient:       csi.NewNodeClient(d.conn),
		Conn:             d.conn,

		SnapshotMetadataClient: csi.NewSnapshotMetadataClient(d.conn),
		GroupControllerClient:  csi.NewGroupControllerClient(d.conn),
	}, nil
}

// Disconnect closes that connection.
func (d *Driver) Disconnect() {
	if d.conn != nil {
		d.conn.Close()
		d.conn = nil
	}
}

// Probe returns what Probe says.
func (d *Driver) Probe() (bool, error) {
	c, err := d.Client()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	reply, err := c.Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		return false, err
	}
	return reply.GetReady() == nil || reply.GetReady().GetValue(), nil
}
