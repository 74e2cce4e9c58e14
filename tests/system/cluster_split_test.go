// SPDX-License-Identifier: Apache-2.0

package system

import (
	"os"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// The specification's figure 2: the node process owns the pool, another one has the controller service and forwards to it over
// its unix socket. No TLS, no network.
func TestClusterSplit(t *testing.T) {
	b := open(t, "xfs", nodePool)
	ctl := b.NewSplit("ctl", b.d)
	b.must(ctl.Start())
	c, err := ctl.Client()
	b.must(err)
	v := ctl.Driver.Volume("pvc-split", rig.MountCap("ext4"), 32*mib)
	v.AtDriver(b.d)
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, 2*mib, 1)
	b.must(err)
	got, err := list(short(t), c, 1)
	if err != nil || len(got) != 1 || got[0] != v.ID {
		t.Errorf("%q, %v", got, err)
	}
	snapshot, err := v.Snapshot("snap-split")
	b.must(err)
	restored := ctl.Driver.Volume("pvc-restored", rig.MountCap("ext4"), 32*mib)
	restored.AtDriver(b.d)
	restored.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
	b.must(restored.Up())
	b.must(rig.Check(restored.Target, 2*mib, sum))
	room, err := c.GetCapacity(short(t), &csi.GetCapacityRequest{})
	if err != nil || room.GetAvailableCapacity() == 0 {
		t.Errorf("%v, %v", room, err)
	}
	_, err = c.CreateVolume(short(t), &csi.CreateVolumeRequest{})
	b.refused("CreateVolume without a name", err, codes.InvalidArgument)

	// The node process is away, and back.
	b.must(b.d.Kill())
	_, err = get(t, c, v.ID)
	b.refused("without the node process", err, codes.Unavailable)
	_, err = list(short(t), c, 0)
	b.refused("a list without the node process", err, codes.Unavailable)
	b.must(b.d.Start())
	b.must(b.d.AwaitReady())
	b.eventually(func() error { _, err := get(t, c, v.ID); return err })
	b.must(rig.Check(v.Target, 2*mib, sum))
	b.must(restored.Gone())
	b.must(v.Gone())
	b.must(ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.must(ctl.Term())
	if _, err := os.Stat(ctl.Socket); err == nil {
		t.Error("its socket is left")
	}
}
