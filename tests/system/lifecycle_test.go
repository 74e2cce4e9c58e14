// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

const dataBytes = 4 * mib

func kinds(t *testing.T, run func(t *testing.T, pool, kind string)) {
	pools := []string{"xfs", "ext4", "btrfs"}
	if testing.Short() {
		pools = pools[:2]
	}
	for _, pool := range pools {
		for _, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
			t.Run(pool+" pool "+kind+" volume", func(t *testing.T) { run(t, pool, kind) })
		}
	}
}

// twice: every call of a volume's life may be repeated.
func (b *bed) twice(run func() error) {
	b.t.Helper()
	b.must(run())
	b.must(run())
}

func (b *bed) published(id string) []string {
	b.t.Helper()
	reply, err := b.c.ControllerGetVolume(short(b.t), &csi.ControllerGetVolumeRequest{VolumeId: id})
	b.must(err)
	if reply.GetStatus().GetVolumeCondition().GetAbnormal() {
		b.t.Errorf("%s is abnormal: %s", id, reply.GetStatus().GetVolumeCondition().GetMessage())
	}
	return reply.GetStatus().GetPublishedNodeIds()
}

func TestLifecycle(t *testing.T) {
	kinds(t, func(t *testing.T, pool, kind string) {
		b := open(t, pool, 6<<30)
		v := b.volume("life", kind)
		b.twice(v.Create)
		b.twice(v.Stage)
		b.twice(v.Publish)
		if nodes := b.published(v.ID); !slices.Equal(nodes, []string{b.d.Node}) {
			t.Errorf("published on %v", nodes)
		}
		b.refused("DeleteVolume in use", v.Delete(), codes.FailedPrecondition)
		first, err := rig.Fill(v.Target, dataBytes, 1)
		b.must(err)
		b.usage(v, kind)

		snapshot := b.snapshotInUse(v, "snap", kind)
		second, err := rig.Fill(v.Target, dataBytes, 2)
		b.must(err)

		restored := b.volume("restored", kind)
		restored.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
		b.twice(restored.Create)
		b.must(restored.Up())
		b.must(rig.Check(restored.Target, dataBytes, first))
		b.must(rig.Check(v.Target, dataBytes, second))
		// A snapshot may go while what was made of it stays.
		b.twice(func() error { return b.d.DeleteSnapshot(snapshot.GetSnapshotId()) })
		b.must(rig.Check(restored.Target, dataBytes, first))
		b.must(restored.Gone())

		whole, err := rig.Space(v.Target)
		b.must(err)
		b.must(v.Down())
		if nodes := b.published(v.ID); len(nodes) != 0 {
			t.Errorf("still published on %v", nodes)
		}
		clone := b.volume("clone", kind)
		clone.Size = v.Got + 32*mib // a clone may be larger
		clone.Source = rig.FromVolume(v.ID)
		b.must(clone.Create())
		b.must(clone.Up())
		b.must(rig.Check(clone.Target, dataBytes, second))
		if space, err := rig.Space(clone.Target); err != nil || space <= whole {
			t.Errorf("the larger clone has %d bytes, its source %d (%v)", space, whole, err)
		}
		b.must(v.Up())
		b.must(rig.Check(v.Target, dataBytes, second))
		b.must(clone.Gone())

		b.twice(v.Unpublish)
		b.twice(v.Unstage)
		b.twice(v.Delete)
	})
}

func (b *bed) usage(v *rig.Volume, kind string) {
	b.t.Helper()
	reply, err := v.Stats()
	b.must(err)
	units := map[csi.VolumeUsage_Unit]*csi.VolumeUsage{}
	for _, usage := range reply.GetUsage() {
		units[usage.GetUnit()] = usage
	}
	bytes := units[csi.VolumeUsage_BYTES]
	if bytes.GetTotal() <= 0 || bytes.GetTotal() > v.Got {
		b.t.Errorf("usage: %d bytes in all of %d", bytes.GetTotal(), v.Got)
	}
	if kind != "block" && bytes.GetUsed() < dataBytes/2 && kind != "btrfs" {
		b.t.Errorf("usage: %d bytes used, %d were written", bytes.GetUsed(), dataBytes)
	}
	if (kind == "ext4" || kind == "xfs") && units[csi.VolumeUsage_INODES].GetTotal() <= 0 {
		b.t.Error("usage: no inodes")
	}
	if reply.GetVolumeCondition().GetAbnormal() {
		b.t.Errorf("abnormal: %s", reply.GetVolumeCondition().GetMessage())
	}
}

// snapshotInUse takes a snapshot of a published volume. Where extents cannot be shared a raw block
// volume in use cannot be copied without tearing: it is refused, and taken when nobody writes.
func (b *bed) snapshotInUse(v *rig.Volume, name, kind string) *csi.Snapshot {
	b.t.Helper()
	snapshot, err := v.Snapshot(name)
	if !b.pool.Reflink() && kind == "block" {
		b.refused("snapshot of a block volume in use without reflink", err, codes.FailedPrecondition)
		b.must(v.Down())
		snapshot, err = v.Snapshot(name)
		b.must(err)
		b.must(v.Up())
	}
	b.must(err)
	if snapshot.GetSourceVolumeId() != v.ID || snapshot.GetSizeBytes() <= 0 ||
		snapshot.GetCreationTime().AsTime().Unix() < 1 {
		b.t.Errorf("snapshot: %v", snapshot)
	}
	again, err := v.Snapshot(name)
	b.must(err)
	if again.GetSnapshotId() != snapshot.GetSnapshotId() {
		b.t.Errorf("a second snapshot %s of the same name", again.GetSnapshotId())
	}
	return snapshot
}

// What is advertised is served, and nothing is that presupposes what is not: LIST_VOLUMES_PUBLISHED_NODES does
// PUBLISH_UNPUBLISH_VOLUME.
func TestControllerCapabilities(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	reply, err := b.c.ControllerGetCapabilities(short(t), &csi.ControllerGetCapabilitiesRequest{})
	b.must(err)
	var got []string
	for _, c := range reply.GetCapabilities() {
		got = append(got, c.GetRpc().GetType().String())
	}
	slices.Sort(got)
	want := []string{
		"16", "17", // GET_VOLUME_HEALTH and LIST_VOLUME_HEALTH of 1.13
		"CLONE_VOLUME", "CREATE_DELETE_SNAPSHOT", "CREATE_DELETE_VOLUME", "EXPAND_VOLUME", "GET_CAPACITY", "GET_SNAPSHOT",
		"GET_VOLUME", "LIST_SNAPSHOTS", "LIST_VOLUMES", "MODIFY_VOLUME", "SINGLE_NODE_MULTI_WRITER", "VOLUME_CONDITION",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// Growing while published, with data; and offline.
func TestExpand(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
		t.Run(kind+" in use", func(t *testing.T) {
			b := open(t, "xfs", 4<<30)
			v := b.d.Volume("grow", rig.CapFor(kind), 1) // the least there is
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, dataBytes, 3)
			b.must(err)
			before, err := rig.Space(v.Target)
			b.must(err)
			err = v.Expand(v.Got+64*mib, true)
			if rig.Device() == "ublk" && !rig.CanGrowUblk() {
				b.refused("growing a ublk device in use", err, codes.FailedPrecondition)
				b.must(v.Gone())
				return
			}
			if kind == "ext4" && rig.Code(err) == codes.FailedPrecondition {
				b.must(v.Gone())
				t.Skipf("ext4 grows online only with CAP_SYS_RESOURCE here: %v", err)
			}
			b.must(err)
			b.must(v.Expand(v.Got, true)) // repeated
			after, err := rig.Space(v.Target)
			b.must(err)
			if after < before+48*mib {
				t.Errorf("%d bytes, were %d", after, before)
			}
			b.must(rig.Check(v.Target, dataBytes, sum))
			b.must(v.Gone())
		})
		t.Run(kind+" offline", func(t *testing.T) {
			b := open(t, "xfs", 4<<30)
			v := b.d.Volume("grow", rig.CapFor(kind), 1) // the least there is
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, dataBytes, 4)
			b.must(err)
			before, err := rig.Space(v.Target)
			b.must(err)
			b.must(v.Down())
			b.must(v.Expand(v.Got+64*mib, false))
			err = v.Up()
			if kind == "ext4" && rig.Code(err) == codes.FailedPrecondition {
				b.untidy = true
				t.Skipf("ext4 grows when mounted, only with CAP_SYS_RESOURCE here: %v", err)
			}
			b.must(err)
			b.must(rig.Check(v.Target, dataBytes, sum))
			after, err := rig.Space(v.Target)
			b.must(err)
			if kind != "ext4" && after < before+48*mib {
				t.Errorf("%d bytes, were %d", after, before)
			}
			b.must(v.Gone())
		})
	}
}

func TestThickStaysThick(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	v := b.volume("thick", "block")
	v.Size = 64 * mib
	v.Params = map[string]string{"provisioning": "thick"}
	b.must(v.Create())
	if got, err := rig.Allocated(b.pool.Image(v.ID)); err != nil || got < v.Got {
		t.Errorf("%d bytes allocated of %d (%v)", got, v.Got, err)
	}
	b.must(v.Up())
	_, err := rig.Fill(v.Target, dataBytes, 5)
	b.must(err)
	// May be refused, must not give space back: a discard, zeroes, zeroes that may be a hole.
	for _, args := range [][]string{
		{"blkdiscard", v.Target},
		{"blkdiscard", "-z", v.Target},
		{"fallocate", "-p", "-o", "0", "-l", "16MiB", v.Target},
	} {
		_, err = rig.Run(args[0], args[1:]...)
		t.Logf("%s: %v", args, err)
		if got, err := rig.Allocated(b.pool.Image(v.ID)); err != nil || got < v.Got {
			t.Errorf("after %s %d bytes allocated of %d (%v)", args, got, v.Got, err)
		}
	}
	b.must(v.Gone())

	thin := b.volume("thin", "block")
	thin.Size = 64 * mib
	b.must(thin.Create())
	if got, err := rig.Allocated(b.pool.Image(thin.ID)); err != nil || got > 4*mib {
		t.Errorf("a thin volume has %d bytes (%v)", got, err)
	}
	b.must(thin.Delete())

	bt := open(t, "btrfs", 2<<30)
	w := bt.volume("thick", "block")
	w.Params = v.Params
	bt.refused("thick on btrfs", w.Create(), codes.InvalidArgument, codes.FailedPrecondition)
}

// A new volume never shows what the last tenant wrote.
func TestFreshVolumesAreEmpty(t *testing.T) {
	for _, pool := range []string{"xfs", "ext4"} {
		t.Run(pool, func(t *testing.T) {
			b := open(t, pool, 1<<30)
			for i := range 3 {
				v := b.volume("tenant", "block")
				b.must(v.Up())
				head := make([]byte, dataBytes)
				file, err := os.Open(v.Target)
				b.must(err)
				_, err = file.Read(head)
				file.Close()
				b.must(err)
				if slices.IndexFunc(head, func(x byte) bool { return x != 0 }) >= 0 {
					t.Fatalf("tenant %d sees data", i)
				}
				_, err = rig.Fill(v.Target, dataBytes, uint64(i))
				b.must(err)
				b.must(v.Gone())
			}
		})
	}
}

func TestSnapshotsAndLists(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	var volumes []*rig.Volume
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		v := b.volume(name, "block")
		b.must(v.Create())
		volumes = append(volumes, v)
	}
	var seen []string
	token := ""
	for {
		reply, err := b.c.ListVolumes(short(t), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		b.must(err)
		for _, entry := range reply.GetEntries() {
			seen = append(seen, entry.GetVolume().GetVolumeId())
		}
		if token = reply.GetNextToken(); token == "" {
			break
		}
		// The entry the token points at may go.
		last := seen[len(seen)-1]
		for i, v := range volumes {
			if v.ID == last {
				b.must(v.Delete())
				volumes = slices.Delete(volumes, i, i+1)
				break
			}
		}
	}
	if slices.Sort(seen); len(seen) != 5 || len(slices.Compact(seen)) != 5 {
		t.Errorf("pages of volumes: %v", seen)
	}
	_, err := b.c.ListVolumes(short(t), &csi.ListVolumesRequest{StartingToken: "no such token \x01"})
	b.refused("ListVolumes with a bad token", err, codes.Aborted)
	_, err = b.c.ListVolumes(short(t), &csi.ListVolumesRequest{MaxEntries: -1})
	b.refused("ListVolumes with negative max_entries", err, codes.InvalidArgument)

	var ids []string
	for i, v := range volumes {
		s, err := v.Snapshot([]string{"s1", "s2", "s3", "s4", "s5"}[i])
		b.must(err)
		ids = append(ids, s.GetSnapshotId())
	}
	_, err = volumes[0].Snapshot("s2")
	b.refused("a snapshot name taken by another source", err, codes.AlreadyExists)
	list := func(req *csi.ListSnapshotsRequest) []string {
		t.Helper()
		reply, err := b.c.ListSnapshots(short(t), req)
		b.must(err)
		var found []string
		for _, entry := range reply.GetEntries() {
			found = append(found, entry.GetSnapshot().GetSnapshotId())
		}
		return found
	}
	if got := list(&csi.ListSnapshotsRequest{}); len(got) != len(ids) {
		t.Errorf("all snapshots: %v", got)
	}
	if got := list(&csi.ListSnapshotsRequest{SourceVolumeId: volumes[1].ID}); !slices.Equal(got, ids[1:2]) {
		t.Errorf("snapshots of a volume: %v", got)
	}
	if got := list(&csi.ListSnapshotsRequest{SnapshotId: ids[0]}); !slices.Equal(got, ids[:1]) {
		t.Errorf("one snapshot: %v", got)
	}
	if got := list(&csi.ListSnapshotsRequest{SnapshotId: "nothing"}); len(got) != 0 {
		t.Errorf("a snapshot that is not: %v", got)
	}
	if _, err := b.c.GetSnapshot(short(t), &csi.GetSnapshotRequest{SnapshotId: ids[0]}); err != nil {
		t.Error(err)
	}
	// A volume goes, its snapshot stays and can still be restored.
	b.must(volumes[0].Delete())
	restored := b.volume("after", "block")
	restored.Source = rig.FromSnapshot(ids[0])
	b.must(restored.Create())
	b.must(restored.Delete())
	for _, id := range ids {
		b.must(b.d.DeleteSnapshot(id))
	}
	for _, v := range volumes[1:] {
		b.must(v.Delete())
	}
}

// What was made for block is not mounted, unless its class allows that (mode_test.go); a file system's volume is never raw.
func TestRawStaysRaw(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	raw, mounted := b.volume("raw", "block"), b.volume("mounted", "ext4")
	b.must(raw.Create())
	b.must(mounted.Create())
	v := b.volume("files", "ext4")
	v.Source = rig.FromVolume(raw.ID)
	b.refused("a mounted volume from a block volume", v.Create(), codes.InvalidArgument)
	b.refused("mounting a block volume", b.as(raw, rig.MountCap("ext4")).Stage(), codes.FailedPrecondition)
	b.refused("a mounted volume as a device", b.as(mounted, rig.BlockCap()).Stage(), codes.FailedPrecondition)
	b.must(raw.Delete())
	b.must(mounted.Delete())
}

func TestTrashIsReclaimed(t *testing.T) {
	b := open(t, "ext4", 1<<30)
	v := b.volume("data", "block")
	b.must(v.Up())
	_, err := rig.Fill(v.Target, 16*mib, 6)
	b.must(err)
	b.must(v.Gone())
	if _, err := os.Stat(b.pool.Image(v.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", filepath.Base(b.pool.Image(v.ID)), err)
	}
}
