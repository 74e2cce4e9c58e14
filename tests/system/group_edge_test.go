// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func (b *bed) groupOf(name string, ids ...string) (*csi.VolumeGroupSnapshot, error) {
	reply, err := b.c.CreateVolumeGroupSnapshot(short(b.t), &csi.CreateVolumeGroupSnapshotRequest{
		Name: name, SourceVolumeIds: ids})
	return reply.GetGroupSnapshot(), err
}

func (b *bed) getGroup(id string, ids ...string) error {
	_, err := b.c.GetVolumeGroupSnapshot(short(b.t), &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: id, SnapshotIds: ids})
	return err
}

func (b *bed) dropGroup(id string, ids ...string) error {
	_, err := b.c.DeleteVolumeGroupSnapshot(short(b.t), &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: id, SnapshotIds: ids})
	return err
}

func (b *bed) smallVolumes(count int) (volumes []*rig.Volume, ids []string) {
	b.t.Helper()
	for i := range count {
		v := b.d.Volume(fmt.Sprintf("small-%d", i), rig.BlockCap(), mib)
		b.must(v.Create())
		volumes, ids = append(volumes, v), append(ids, v.ID)
	}
	return volumes, ids
}

// A group whose file is lost is not a deleted one: its members are kept, and it is whole once the file is back.
func TestGroupWhoseFileIsLost(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	volumes, ids := b.smallVolumes(2)
	group, err := b.groupOf("g", ids...)
	b.must(err)
	b.must(b.d.Term())
	file := b.pool.Path + "/groups/g"
	b.must(os.Rename(file, b.pool.Path+"/lost"))
	for _, s := range group.GetSnapshots() {
		if f := b.check(1).find("GroupLost", "snapshots/"+rig.KeyOf(s.GetSnapshotId())); f == nil {
			t.Errorf("check does not say that %v has lost its group", s)
		}
	}
	for range 2 {
		b.start()
		b.refused("get", b.getGroup(group.GetGroupSnapshotId(), members(group)...), codes.NotFound)
		_, err = b.c.GetSnapshot(short(t), &csi.GetSnapshotRequest{SnapshotId: members(group)[0]})
		if rig.Code(err) == codes.OK {
			t.Error("a member without a group is shown")
		}
		if n := len(b.pool.Names("snapshots")); n != 2 {
			t.Fatalf("%d members are left", n)
		}
		b.must(b.d.Term())
	}
	b.must(os.Rename(b.pool.Path+"/lost", file))
	b.check(0)
	b.start()
	b.must(b.getGroup(group.GetGroupSnapshotId(), members(group)...))
	b.must(b.dropGroup(group.GetGroupSnapshotId(), members(group)...))
	if names := b.pool.Names("groups"); len(names) != 0 {
		t.Errorf("left in groups/: %v", names)
	}
	for _, v := range volumes {
		b.must(v.Delete())
	}
}

// Any name is a name, and the order of ids means nothing. A list that is not the group's deletes nothing.
func TestGroupNames(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	volumes, ids := b.smallVolumes(2)
	for _, name := range []string{"", "a\x00b", strings.Repeat("x", 129)} {
		_, err := b.groupOf(name, ids...)
		b.refused(fmt.Sprintf("the name %q", name), err, codes.InvalidArgument)
	}
	for _, name := range []string{"a/b", "..", ".", "\n", " ", "%2e", "a=b", "\U0001F600", strings.Repeat("x", 128)} {
		group, err := b.groupOf(name, ids...)
		b.must(err)
		again, err := b.groupOf(name, ids[1], ids[0])
		b.must(err)
		if again.String() != group.String() {
			t.Errorf("%q, the other way round: %v, not %v", name, again, group)
		}
		id, m := group.GetGroupSnapshotId(), members(group)
		b.must(b.getGroup(id, m[1], m[0]))
		for _, wrong := range [][]string{nil, {m[0]}, {m[0], m[0]}, {m[0], m[1], "x"}, {m[0], m[1], m[1]}, {m[0], ids[1]}} {
			b.refused("another list", b.dropGroup(id, wrong...), codes.InvalidArgument)
			b.refused("another list", b.getGroup(id, wrong...), codes.InvalidArgument)
		}
		b.must(b.getGroup(id, m...))
		b.must(b.dropGroup(id, m[1], m[0]))
		b.must(b.dropGroup(id, m...))
	}
	for _, v := range volumes {
		b.must(v.Delete())
	}
}

// As many members as there may be, over a restart; many creates of one name make one group; one that has lost a member says so,
// and can be deleted.
func TestGroupOfMany(t *testing.T) {
	b := open(t, "xfs", 3<<30)
	volumes, ids := b.smallVolumes(128)
	var wg sync.WaitGroup
	made := make([]string, 16)
	for i := range made {
		wg.Go(func() {
			group, err := b.groupOf("all", ids...)
			if code := rig.Code(err); code != codes.OK && code != codes.Aborted {
				t.Error(err)
			}
			made[i] = group.GetGroupSnapshotId()
		})
	}
	wg.Wait()
	group, err := b.groupOf("all", ids...)
	b.must(err)
	for _, id := range made {
		if id != "" && id != group.GetGroupSnapshotId() {
			t.Errorf("%s is made beside %s", id, group.GetGroupSnapshotId())
		}
	}
	b.restart()
	slices.Reverse(ids)
	again, err := b.groupOf("all", ids...)
	b.must(err)
	if again.String() != group.String() {
		t.Error("another group after a restart")
	}
	m := members(group)
	b.must(os.Remove(b.pool.SnapshotImage(m[77])))
	b.restart()
	for what, err := range map[string]error{
		"get":    b.getGroup(group.GetGroupSnapshotId(), m...),
		"create": func() error { _, err := b.groupOf("all", ids...); return err }(),
	} {
		b.refused(what+" of one that has lost a member", err, codes.DataLoss)
		b.says(what, err, m[77])
	}
	b.must(b.dropGroup(group.GetGroupSnapshotId(), m...))
	for _, v := range volumes {
		b.must(v.Delete())
	}
}
