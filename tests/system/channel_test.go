// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// goNode stands in for a node process: grpc-go's server on its socket, which does what the volume's id says.
type goNode struct {
	csi.UnimplementedControllerServer
	server         *grpc.Server
	running, most  atomic.Int32
	waiting, ended chan struct{}
	end            chan struct{}
	left           atomic.Int64 // nanoseconds that the last call had
}

func (n *goNode) ControllerGetVolume(ctx context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	now := n.running.Add(1)
	defer n.running.Add(-1)
	for most := n.most.Load(); now > most && !n.most.CompareAndSwap(most, now); most = n.most.Load() {
	}
	if at, ok := ctx.Deadline(); ok {
		n.left.Store(int64(time.Until(at)))
	}
	switch what := r.GetVolumeId(); {
	case what == "wait":
		n.waiting <- struct{}{}
		select {
		case <-ctx.Done():
			n.ended <- struct{}{}
		case <-n.end:
		}
	case what == "linger":
		time.Sleep(2 * time.Millisecond)
	case what == "fail":
		return nil, status.Error(codes.FailedPrecondition, "voll: 100 % \u20ac\n")
	case strings.HasPrefix(what, "large"):
		return &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: strings.Repeat("x", 3<<20)}}, nil
	case strings.HasPrefix(what, "huge"):
		return &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: strings.Repeat("x", 5<<20)}}, nil
	}
	return &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: r.GetVolumeId()}, Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

// serve opens the socket anew.
func (n *goNode) serve(t *testing.T, socket string) {
	t.Helper()
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	n.server = grpc.NewServer(grpc.MaxConcurrentStreams(4), grpc.MaxSendMsgSize(16<<20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second}))
	csi.RegisterControllerServer(n.server, n)
	go n.server.Serve(listener)
}

func newGoNode(t *testing.T) (*goNode, *rig.Controller, *rig.Client) {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	n := &goNode{waiting: make(chan struct{}, 100), ended: make(chan struct{}, 100), end: make(chan struct{})}
	socket := r.Path("go.sock")
	n.serve(t, socket)
	t.Cleanup(func() { n.server.Stop() })
	ctl := r.NewSplit("ctl", &rig.Driver{Socket: socket})
	if err := ctl.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := ctl.Client()
	if err != nil {
		t.Fatal(err)
	}
	return n, ctl, c
}

func getID(ctx context.Context, c *rig.Client, id string) (string, error) {
	got, err := c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
	return got.GetVolume().GetVolumeId(), err
}

// Our client's end against grpc-go's server: what passes through the controller is what the server said.
func TestChannelToGrpcGo(t *testing.T) {
	n, _, c := newGoNode(t)
	if got, err := getID(short(t), c, "hello"); err != nil || got != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	_, err := getID(short(t), c, "fail")
	refused(t, "an error", err, codes.FailedPrecondition)
	if text := status.Convert(err).Message(); text != "voll: 100 % \u20ac\n" {
		t.Errorf("%q", text)
	}
	if got, err := getID(short(t), c, "large"); err != nil || len(got) != 3<<20 {
		t.Errorf("a large answer: %d bytes, %v", len(got), err)
	}
	_, err = getID(short(t), c, "huge")
	refused(t, "an answer over 4 MiB", err, codes.ResourceExhausted)
	_, err = c.ControllerModifyVolume(short(t), &csi.ControllerModifyVolumeRequest{VolumeId: "x"})
	refused(t, "a method that it does not have", err, codes.Unimplemented)

	// More calls than streams: all are answered, never more at once than it allows.
	n.most.Store(0)
	var calls sync.WaitGroup
	for range 200 {
		calls.Go(func() {
			if got, err := getID(short(t), c, "linger"); err != nil || got != "linger" {
				t.Errorf("one of many: %q, %v", got, err)
			}
		})
	}
	calls.Wait()
	if most := n.most.Load(); most < 2 || most > 4 {
		t.Errorf("%d at once", most)
	}
}

// Deadlines and cancellations travel.
func TestChannelDeadlineToGrpcGo(t *testing.T) {
	n, _, c := newGoNode(t)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := getID(ctx, c, "wait")
	refused(t, "a deadline", err, codes.DeadlineExceeded)
	if left := time.Duration(n.left.Load()); left <= 0 || left > 310*time.Millisecond {
		t.Errorf("the node had %v", left)
	}
	<-n.waiting
	select {
	case <-n.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the node did not notice the deadline")
	}

	ctx, cancel = context.WithCancel(context.Background())
	go func() {
		<-n.waiting
		cancel()
	}()
	_, err = getID(ctx, c, "wait")
	refused(t, "given up", err, codes.Canceled)
	select {
	case <-n.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the node did not notice that the client had left")
	}
}

// A server that stops in good order keeps its call; one that just stops does not. Both come back.
func TestChannelGrpcGoStops(t *testing.T) {
	n, ctl, c := newGoNode(t)
	answer := make(chan error, 1)
	wait := func() {
		go func() {
			_, err := getID(short(t), c, "wait")
			answer <- err
		}()
		<-n.waiting
	}
	wait()
	stopped := make(chan struct{})
	old := n.server
	go func() {
		old.GracefulStop()
		close(stopped)
	}()
	// Until the node serves again, calls are refused at once; then they take a new connection beside the old one.
	err := rig.Eventually(10*time.Second, func() error {
		_, err := getID(short(t), c, "hello")
		if status.Code(err) != codes.Unavailable {
			return err
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	n.serve(t, ctl.Split)
	if err := rig.Eventually(10*time.Second, func() error { _, err := getID(short(t), c, "hello"); return err }); err != nil {
		t.Error(err)
	}
	n.end <- struct{}{}
	if err := <-answer; err != nil {
		t.Errorf("a call under way when the server stops: %v", err)
	}
	select {
	case <-stopped:
	case <-time.After(10 * time.Second):
		t.Error("the old connection stays")
	}

	wait()
	n.server.Stop()
	err = <-answer
	refused(t, "a server that stops", err, codes.Unavailable)
	<-n.ended
	n.serve(t, ctl.Split)
	if _, err := getID(short(t), c, "hello"); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// A call that takes longer than silence is borne: pings are asked and answered meanwhile.
func TestChannelLongCallToGrpcGo(t *testing.T) {
	n, _, c := newGoNode(t)
	answer := make(chan error, 1)
	go func() {
		_, err := getID(context.Background(), c, "wait")
		answer <- err
	}()
	<-n.waiting
	select {
	case err := <-answer:
		t.Fatalf("ended by itself: %v", err)
	case <-time.After(20 * time.Second):
	}
	n.end <- struct{}{}
	if err := <-answer; err != nil {
		t.Error(err)
	}
}
