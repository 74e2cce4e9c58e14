// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The answer is lost, the room elsewhere has become more: the retry finds the volume that was made.
func TestClusterNameAfterLostAnswer(t *testing.T) {
	b := newCluster(t)
	_, err := b.StartNode("node-a", 2*nodePool)
	b.must(err)
	_, err = b.StartNode("node-b", nodePool)
	b.must(err)
	b.must(b.ctl.AwaitJoined("node-a", "node-b"))
	a := b.node("node-a")
	a.Down.Cut(rig.Back) // the node hears, and is not heard
	v := b.volume(nil, "pvc-lost")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err = b.c.CreateVolume(ctx, v.Request())
	if err == nil {
		t.Fatal("an answer through a wire that is cut")
	}
	b.refused("CreateVolume without an answer", err, codes.DeadlineExceeded, codes.Unavailable)
	// node-b has most room now.
	direct, err := a.Client()
	b.must(err)
	large := b.volume(a, "pvc-large").On(direct)
	large.Size, large.Params = nodePool*3/2, map[string]string{"provisioning": "thick"}
	b.must(large.Create())
	a.Down.Mend()
	b.eventually(v.Create)
	b.madeOnce("pvc-lost")
	// The same from the start, as a provisioner that has forgotten everything.
	again := b.volume(nil, "pvc-lost")
	b.must(again.Create())
	if again.ID != v.ID {
		t.Errorf("%s, then %s", v.ID, again.ID)
	}
	// The same name elsewhere is not another volume.
	elsewhere := b.volume(b.node("node-b"), "pvc-lost")
	b.refused("the name on another node", elsewhere.Create(), codes.AlreadyExists, codes.ResourceExhausted)
	b.madeOnce("pvc-lost")
	b.gone(v, large)
}

// Two controllers are asked for one name at once, each for a node of its own: one volume comes of it.
func TestClusterNameTwoControllers(t *testing.T) {
	b := newCluster(t)
	second, err := b.StartController("ctl-b")
	b.must(err)
	b.nodes("node-a", "node-b")
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for i := range rounds {
		name := fmt.Sprintf("pvc-race-%d", i)
		var wait sync.WaitGroup
		volumes := []*rig.Volume{b.ctl.Volume(b.node("node-a"), name, rig.MountCap("ext4"), 32*mib),
			second.Volume(b.node("node-b"), name, rig.MountCap("ext4"), 32*mib)}
		errs := make([]error, 2)
		for k, v := range volumes {
			wait.Go(func() { errs[k] = v.Create() })
		}
		wait.Wait()
		for k, err := range errs {
			if err != nil {
				b.refused("a name that is being made elsewhere", err, codes.Aborted, codes.AlreadyExists, codes.ResourceExhausted,
					codes.Unavailable)
				volumes[k].Topology = nil // a provisioner that lets the retry be where it is
			}
		}
		// Both retry, without a word of where, until both have it.
		for _, v := range volumes {
			v.Topology = nil
			b.eventually(v.Create)
		}
		if volumes[0].ID != volumes[1].ID {
			t.Fatalf("round %d: %s and %s", i, volumes[0].ID, volumes[1].ID)
		}
		b.madeOnce(name)
		b.gone(volumes[0])
	}
}

// While the node that has a name is away, the name is nobody else's; when it is back the same volume is the answer.
func TestClusterNameOfAbsentNode(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	v := b.volume(b.node("node-a"), "pvc-away")
	b.must(v.Create())
	b.must(b.node("node-a").Kill())
	b.must(b.ctl.AwaitAway("node-a"))
	again := b.volume(nil, "pvc-away")
	err := again.Create()
	b.refused("the name of an absent node", err, codes.Unavailable)
	b.says("the name of an absent node", err, "node-a")
	elsewhere := b.volume(b.node("node-b"), "pvc-away")
	b.refused("the name of an absent node, elsewhere", elsewhere.Create(), codes.Unavailable)
	b.must(b.node("node-a").Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	b.eventually(again.Create)
	if again.ID != v.ID {
		t.Errorf("%s, then %s", v.ID, again.ID)
	}
	b.gone(v)
}

// The chosen node dies in the middle, before or after the commit: the name stays its own until it is back.
func TestClusterNameNodeKilled(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	a := b.node("node-a")
	for i := range 4 {
		name := fmt.Sprintf("pvc-killed-%d", i)
		v := b.volume(nil, name)
		v.Topology = &csi.TopologyRequirement{Requisite: []*csi.Topology{rig.At("node-a"), rig.At("node-b")},
			Preferred: []*csi.Topology{rig.At("node-a")}}
		made := make(chan error, 1)
		go func() { made <- v.Create() }()
		time.Sleep(time.Duration(i) * 3 * time.Millisecond)
		b.must(a.Kill())
		if err := <-made; err != nil {
			b.refused("CreateVolume whose node dies", err, codes.Unavailable, codes.ResourceExhausted, codes.Aborted)
		}
		b.must(a.Start())
		b.must(b.ctl.AwaitJoined("node-a"))
		b.eventually(v.Create)
		b.madeOnce(name)
		b.gone(v)
	}
}

// The deadline of the client goes on to the node, and so does its departure.
func TestClusterDeadlineTravels(t *testing.T) {
	b := newCluster(t)
	sim, err := b.NewSim("node-s")
	b.must(err)
	seen := make(chan time.Duration, 1)
	left := make(chan error, 1)
	sim.BeforeGet = func(ctx context.Context, id string) error {
		deadline, ok := ctx.Deadline()
		if !ok {
			deadline = time.Now().Add(time.Hour)
		}
		seen <- time.Until(deadline)
		select {
		case <-ctx.Done():
			left <- ctx.Err()
		case <-time.After(30 * time.Second):
			left <- nil
		}
		return status.Error(codes.Canceled, "the caller has gone")
	}
	id := sim.Add("pvc-slow", 32*mib)
	b.must(sim.Listen(b.Rig))
	j, err := sim.Join(b.ctl.Listen)
	b.must(err)
	b.must(j.AwaitWelcome())
	b.must(b.ctl.AwaitJoined("node-s"))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	ended := make(chan error, 1)
	go func() {
		_, err := b.c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
		ended <- err
	}()
	select {
	case rest := <-seen:
		if rest > 11*time.Second {
			t.Errorf("10 s became %v", rest)
		}
	case err := <-ended:
		t.Fatalf("the node was not asked: %v", err)
	}
	cancel()
	b.refused("a call that was given up", <-ended, codes.Canceled)
	if err := <-left; err == nil {
		t.Error("the node did not hear that its caller has gone")
	}
}

// A node asks its other controllers before it makes a name, and what one of them refuses is not made.
func TestClusterNameVerdict(t *testing.T) {
	b := newCluster(t)
	sim, err := b.NewSimController()
	b.must(err)
	var claimed []string
	var lock sync.Mutex
	sim.Verdict = func(_ string, claim *ringvolv1.NameClaim) *ringvolv1.NameVerdict {
		lock.Lock()
		claimed = append(claimed, claim.GetKey())
		lock.Unlock()
		return &ringvolv1.NameVerdict{Kind: claim.GetKind(), Key: claim.GetKey(), Granted: claim.GetKey() != "pvc-theirs",
			NodeId: "node-z"}
	}
	n, err := b.NewNode("node-a", "xfs", nodePool)
	b.must(err)
	n.Controllers = append(n.Controllers, sim.Address)
	b.must(n.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	b.eventually(func() error {
		for _, report := range sim.Reports("node-a") {
			if report.GetSynced() {
				return nil
			}
		}
		return errStill
	})
	ours := b.volume(n, "pvc-ours")
	b.must(ours.Create())
	theirs := b.volume(n, "pvc-theirs")
	err = theirs.Create()
	b.refused("a name that another controller refuses", err, codes.Aborted)
	b.says("a name that another controller refuses", err, "node-z")
	lock.Lock()
	if len(claimed) < 2 || claimed[0] != "pvc-ours" {
		t.Errorf("claimed %q", claimed)
	}
	lock.Unlock()
	if n.Pools[0].Names("volumes")[0] != "pvc-ours" || len(n.Pools[0].Names("volumes")) != 1 {
		t.Errorf("the pool holds %q", n.Pools[0].Names("volumes"))
	}
	b.gone(ours)
}
