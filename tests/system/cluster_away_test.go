// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// A controller that restarts knows from the nodes that are there who is missing, and tells no part of a list as the whole.
func TestClusterControllerRestart(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	va, vb := b.volume(b.node("node-a"), "pvc-a"), b.volume(b.node("node-b"), "pvc-b")
	b.must(va.Create())
	b.must(vb.Create())
	b.listed(b.c, va.ID, vb.ID)

	b.must(b.ctl.Restart())
	b.must(b.ctl.AwaitJoined("node-a", "node-b"))
	b.listed(b.c, va.ID, vb.ID)
	_, err := get(t, b.c, va.ID)
	b.must(err)

	// node-a has heard of node-b by now, which is away when the controller comes back.
	b.must(b.node("node-b").Kill())
	b.must(b.ctl.Restart())
	b.must(b.ctl.AwaitJoined("node-a"))
	_, err = list(short(t), b.c, 0)
	b.refused("a list without node-b", err, codes.Unavailable)
	b.says("a list without node-b", err, "node-b")
	_, err = b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{})
	b.refused("a list of snapshots without node-b", err, codes.Unavailable)
	_, err = get(t, b.c, vb.ID)
	b.refused("a volume of node-b", err, codes.Unavailable)
	_, err = b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: vb.ID})
	b.refused("DeleteVolume on node-b", err, codes.Unavailable)
	_, err = get(t, b.c, va.ID)
	b.must(err)
	// A name that node-b may have is not made elsewhere.
	again := b.volume(nil, "pvc-b")
	b.refused("the name of a volume of node-b", again.Create(), codes.Unavailable)
	if len(b.node("node-a").Pools[0].Names("volumes")) != 1 {
		t.Errorf("node-a holds %q", b.node("node-a").Pools[0].Names("volumes"))
	}

	b.must(b.node("node-b").Start())
	b.must(b.ctl.AwaitJoined("node-b"))
	b.listed(b.c, va.ID, vb.ID)
	b.must(again.Create())
	if again.ID != vb.ID {
		t.Errorf("%s became %s", vb.ID, again.ID)
	}
	b.gone(va, vb)
}

// What an absent node last told stays in the lists, and everything of it is away, not gone.
func TestClusterNodeAway(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	n := b.node("node-b")
	v := b.volume(n, "pvc-away")
	b.must(v.Create())
	snapshot, err := v.Snapshot("snap-away")
	b.must(err)
	b.listed(b.c, v.ID)
	b.must(n.Kill())
	b.must(b.ctl.AwaitAway("node-b"))
	b.listed(b.c, v.ID)
	snapshots, err := b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{})
	if err != nil || len(snapshots.GetEntries()) != 1 {
		t.Errorf("ListSnapshots: %v, %v", snapshots, err)
	}
	for what, call := range map[string]func(context.Context) error{
		"ControllerGetVolume": func(ctx context.Context) error {
			_, err := b.c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: v.ID})
			return err
		},
		"DeleteVolume": func(ctx context.Context) error {
			_, err := b.c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.ID})
			return err
		},
		"DeleteSnapshot": func(ctx context.Context) error {
			_, err := b.c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snapshot.GetSnapshotId()})
			return err
		},
		"CreateSnapshot": func(ctx context.Context) error {
			_, err := b.c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{SourceVolumeId: v.ID, Name: "another"})
			return err
		},
		"ControllerExpandVolume": func(ctx context.Context) error {
			_, err := b.c.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: v.ID,
				CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib}})
			return err
		},
	} {
		err := call(short(t))
		b.refused(what, err, codes.Unavailable)
		b.says(what, err, "node-b", v.ID[:8])
	}
	b.must(n.Start())
	b.must(b.ctl.AwaitJoined("node-b"))
	b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.gone(v)
	b.listed(b.c)
}

// What is gone on a node when it comes back is gone from the lists.
func TestClusterNodeBackWithLess(t *testing.T) {
	b := openCluster(t, "node-a")
	n := b.node("node-a")
	v, w := b.volume(n, "pvc-stays"), b.volume(n, "pvc-goes")
	b.must(v.Create())
	b.must(w.Create())
	b.listed(b.c, v.ID, w.ID)
	n.Cut(true, true)
	b.must(b.ctl.AwaitAway("node-a"))
	direct, err := n.Client()
	b.must(err)
	b.must(w.On(direct).Delete())
	b.listed(b.c, v.ID, w.ID)
	n.Mend()
	b.must(b.ctl.AwaitJoined("node-a"))
	b.listed(b.c, v.ID)
	// What was made without the controller is in them, too.
	x := b.volume(n, "pvc-direct").On(direct)
	b.must(x.Create())
	b.listed(b.c, v.ID, x.ID)
	b.gone(v, x)
	b.listed(b.c)
}

// A pool that is gone for good: its volumes can be deleted, and nothing else is said of them.
func TestClusterForgetPool(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	b.untidy = true
	v, kept := b.volume(b.node("node-b"), "pvc-lost"), b.volume(b.node("node-a"), "pvc-kept")
	b.must(v.Create())
	b.must(kept.Create())
	snapshot, err := v.Snapshot("snap-lost")
	b.must(err)
	b.must(b.node("node-b").Kill())
	b.must(b.ctl.AwaitAway("node-b"))
	_, err = b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: v.ID})
	b.refused("DeleteVolume before it is forgotten", err, codes.Unavailable)
	b.says("DeleteVolume before it is forgotten", err, "--forget-pool")

	b.ctl.Args = []string{"--forget-pool", v.ID[:8]}
	b.must(b.ctl.Restart())
	b.must(b.ctl.AwaitJoined("node-a"))
	b.listed(b.c, kept.ID)
	_, err = get(t, b.c, v.ID)
	b.refused("a volume that is forgotten", err, codes.NotFound)
	_, err = b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: v.ID})
	b.must(err)
	_, err = b.c.DeleteSnapshot(short(t), &csi.DeleteSnapshotRequest{SnapshotId: snapshot.GetSnapshotId()})
	b.must(err)
	// Its name is free.
	again := b.volume(b.node("node-a"), "pvc-lost")
	b.must(again.Create())
	b.gone(again, kept)
	// It is there after all: what it has was not deleted, and is known again.
	b.must(b.node("node-b").Start())
	b.must(b.ctl.AwaitJoined("node-b"))
	b.listed(b.c, v.ID)
	b.gone(v)

	for _, odd := range []string{"", "0123", "0123456g", "0123456789"} {
		ctl, err := b.NewController("ctl-odd" + odd)
		b.must(err)
		ctl.Args = []string{"--forget-pool", odd}
		b.must(ctl.Launch())
		if code, err := ctl.Wait(30 * time.Second); err != nil || code != 2 {
			t.Errorf("--forget-pool %q: status %d, %v", odd, code, err)
		}
	}
}

// The roster: a simulated node brings a name that nobody has seen.
func TestClusterRoster(t *testing.T) {
	b := newCluster(t)
	sim, err := b.NewSim("node-s")
	b.must(err)
	sim.Roster = []*ringvolv1.RosterNode{{NodeId: "node-unseen", Pools: []string{"0123abcd"}}}
	j, err := sim.Join(b.ctl.Listen)
	b.must(err)
	b.must(j.AwaitWelcome())
	b.eventually(func() error {
		_, err := list(short(t), b.c, 0)
		if rig.Code(err) == codes.Unavailable {
			b.says("a list", err, "node-unseen")
			return nil
		}
		return rig.Stop(fmt.Errorf("a list without node-unseen: %v", err))
	})
	_, err = get(t, b.c, "0123abcd.pvc-x.01234567")
	b.refused("a volume of node-unseen", err, codes.Unavailable)
	b.says("a volume of node-unseen", err, "node-unseen")
	// It comes with its pool, and all are there.
	unseen, err := b.NewSim("node-unseen")
	b.must(err)
	unseen.Pools[0].Uuid = "0123abcd" + unseen.Pools[0].Uuid[8:]
	id := unseen.Add("pvc-seen", 32*mib)
	j2, err := unseen.Join(b.ctl.Listen)
	b.must(err)
	b.must(j2.AwaitWelcome())
	b.listed(b.c, id)
	// Nodes hear of each other.
	b.eventually(func() error {
		for _, report := range j.Said() {
			for _, other := range report.GetRoster().GetNodes() {
				if other.GetNodeId() == "node-unseen" && len(other.GetPools()) == 1 && other.GetPools()[0] == "0123abcd" {
					return nil
				}
			}
		}
		return errors.New("node-s has not heard of node-unseen")
	})
}
