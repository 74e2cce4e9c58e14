// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// counter is one writer that counts across several volumes as fast as it can: the n-th number goes to the volume
// n modulo their number. So what the volumes hold at one moment are the last numbers up to some n. Nothing is
// synced: a freeze keeps what was written. A block volume is written to directly.
type counter struct {
	files []*os.File
	n     atomic.Uint64
	stop  atomic.Bool
	ended chan error
	buf   []byte // aligned
}

const counterBytes = 4096

func counterPath(v *rig.Volume, kind string) string {
	if kind == "block" {
		return v.Target
	}
	return filepath.Join(v.Target, "counter")
}

func (b *bed) count(volumes []*rig.Volume, kinds []string) *counter {
	b.t.Helper()
	c := &counter{ended: make(chan error, 1)}
	var err error
	c.buf, err = unix.Mmap(-1, 0, counterBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	b.must(err)
	for i, v := range volumes {
		flags := os.O_RDWR | os.O_CREATE
		if kinds[i] == "block" {
			flags = os.O_RDWR | unix.O_DIRECT
		}
		f, err := os.OpenFile(counterPath(v, kinds[i]), flags, 0o600)
		b.must(err)
		_, err = f.WriteAt(c.buf, 0)
		b.must(err)
		b.must(f.Sync())
		c.files = append(c.files, f)
	}
	go func() { c.ended <- c.run() }()
	return c
}

func (c *counter) run() error {
	for n := uint64(1); !c.stop.Load(); n++ {
		f := c.files[n%uint64(len(c.files))]
		binary.LittleEndian.PutUint64(c.buf, n)
		if _, err := f.WriteAt(c.buf, 0); err != nil {
			return err
		}
		c.n.Store(n)
	}
	for _, f := range c.files {
		f.Close()
	}
	return unix.Munmap(c.buf)
}

func (b *bed) counted(c *counter) {
	b.t.Helper()
	c.stop.Store(true)
	b.must(<-c.ended)
}

// oneMoment checks numbers that were read from copies of all volumes.
func oneMoment(numbers []uint64) error {
	var most uint64
	for _, n := range numbers {
		most = max(most, n)
	}
	count := uint64(len(numbers))
	for i, n := range numbers {
		// The last number before `most` that this volume was given.
		least := most - (most+count-uint64(i))%count
		if most < count {
			least = n
		}
		if n != least && n != most {
			return fmt.Errorf("volume %d has %d, the newest number is %d, so it was given %d before: %v",
				i, n, most, least, numbers)
		}
	}
	return nil
}

func (b *bed) groupRequest(name string, volumes []*rig.Volume) *csi.CreateVolumeGroupSnapshotRequest {
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: name}
	for _, v := range volumes {
		request.SourceVolumeIds = append(request.SourceVolumeIds, v.ID)
	}
	return request
}

func (b *bed) group(name string, volumes []*rig.Volume) *csi.VolumeGroupSnapshot {
	b.t.Helper()
	reply, err := b.c.CreateVolumeGroupSnapshot(short(b.t), b.groupRequest(name, volumes))
	b.must(err)
	group := reply.GetGroupSnapshot()
	if len(group.GetSnapshots()) != len(volumes) || !group.GetReadyToUse() {
		b.t.Fatalf("group %s: %v", name, group)
	}
	for i, s := range group.GetSnapshots() {
		if s.GetSourceVolumeId() != volumes[i].ID || s.GetGroupSnapshotId() != group.GetGroupSnapshotId() ||
			!s.GetReadyToUse() {
			b.t.Errorf("member %d of group %s: %v", i, name, s)
		}
	}
	return group
}

func members(group *csi.VolumeGroupSnapshot) (ids []string) {
	for _, s := range group.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	return ids
}

func (b *bed) deleteGroup(group *csi.VolumeGroupSnapshot) {
	b.t.Helper()
	b.twice(func() error {
		_, err := b.c.DeleteVolumeGroupSnapshot(short(b.t), &csi.DeleteVolumeGroupSnapshotRequest{
			GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: members(group),
		})
		return err
	})
}

// numbersOf restores every member and reads its number.
func (b *bed) numbersOf(group *csi.VolumeGroupSnapshot, kinds []string) (numbers []uint64) {
	b.t.Helper()
	for i, s := range group.GetSnapshots() {
		r := b.volume(fmt.Sprintf("restored-%d", i), kinds[i])
		r.Source = rig.FromSnapshot(s.GetSnapshotId())
		b.must(r.Create())
		b.must(r.Up())
		data, err := readStart(counterPath(r, kinds[i]))
		b.must(err)
		numbers = append(numbers, binary.LittleEndian.Uint64(data))
		b.must(r.Gone())
	}
	return numbers
}

func readStart(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, counterBytes)
	_, err = f.ReadAt(data, 0)
	return data, err
}

func (b *bed) volumesUp(kinds []string) (volumes []*rig.Volume) {
	b.t.Helper()
	for i, kind := range kinds {
		v := b.volume(fmt.Sprintf("source-%d", i), kind)
		b.must(v.Create())
		b.must(v.Up())
		volumes = append(volumes, v)
	}
	return volumes
}

func (b *bed) allGone(volumes []*rig.Volume) {
	b.t.Helper()
	for _, v := range volumes {
		b.must(v.Gone())
	}
}

// A group is of one moment, whatever the volumes hold: one raw block volume among them is no obstacle.
func TestGroupIsOfOneMoment(t *testing.T) {
	for _, pool := range []string{"xfs", "btrfs", "ext4"} {
		t.Run(pool, func(t *testing.T) {
			b := open(t, pool, 6<<30)
			kinds := []string{"ext4", "xfs", "btrfs", "ext4", "block"}
			if !b.pool.Reflink() {
				kinds = kinds[:1]
				kinds = append(kinds, "ext4", "ext4") // what is copied has to be small
			}
			volumes := b.volumesUp(kinds)
			c := b.count(volumes, kinds)
			for round := 0; round < 5; round++ {
				before := c.n.Load()
				for c.n.Load() < before+uint64(2*len(volumes)) {
					time.Sleep(time.Millisecond)
				}
				group := b.group(fmt.Sprintf("group-%d", round), volumes)
				numbers := b.numbersOf(group, kinds)
				if err := oneMoment(numbers); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
				b.deleteGroup(group)
			}
			b.counted(c)
			b.allGone(volumes)
		})
	}
}

// What a client is told, for each request that the specification tells of.
func TestGroupAnswers(t *testing.T) {
	b := open(t, "xfs", 6<<30)
	volumes := b.volumesUp([]string{"ext4", "xfs", "ext4"})
	group := b.group("g", volumes)
	again := b.group("g", volumes)
	if again.GetGroupSnapshotId() != group.GetGroupSnapshotId() {
		t.Errorf("repeated: %s and %s", group, again)
	}
	other := b.groupRequest("g", volumes[:2])
	_, err := b.c.CreateVolumeGroupSnapshot(short(t), other)
	b.refused("another group of the name", err, codes.AlreadyExists)
	for what, ids := range map[string][]string{
		"twice":   {volumes[0].ID, volumes[1].ID, volumes[0].ID},
		"nothing": {},
		"empty":   {volumes[0].ID, ""},
		"many":    strings.Split(strings.Repeat("x ", 129), " "),
	} {
		_, err = b.c.CreateVolumeGroupSnapshot(short(t), &csi.CreateVolumeGroupSnapshotRequest{Name: "h",
			SourceVolumeIds: ids})
		b.refused(what, err, codes.InvalidArgument)
	}
	_, err = b.c.CreateVolumeGroupSnapshot(short(t), &csi.CreateVolumeGroupSnapshotRequest{Name: "h",
		SourceVolumeIds: []string{volumes[0].ID, "nonsense"}})
	b.refused("a volume that is not there", err, codes.NotFound)
	_, err = b.c.CreateVolumeGroupSnapshot(short(t), &csi.CreateVolumeGroupSnapshotRequest{Name: "h",
		SourceVolumeIds: []string{volumes[0].ID}, Parameters: map[string]string{"a": "b"}})
	b.refused("a parameter", err, codes.InvalidArgument)
	// As csi-snapshotter sends a class of Kubernetes' own tests.
	plain, err := b.c.CreateVolumeGroupSnapshot(short(t), &csi.CreateVolumeGroupSnapshotRequest{Name: "kubernetes",
		SourceVolumeIds: []string{volumes[0].ID}, Parameters: map[string]string{"deletionPolicy": "Delete",
			"csi.storage.k8s.io/volumegroupsnapshot/name": "g", "csi.storage.k8s.io/volumegroupsnapshot/namespace": "n"}})
	b.must(err)
	_, err = b.c.DeleteVolumeGroupSnapshot(short(t), &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: plain.GetGroupSnapshot().GetGroupSnapshotId(), SnapshotIds: members(plain.GetGroupSnapshot())})
	b.must(err)

	ids := members(group)
	get := func(id string, ids []string) (*csi.VolumeGroupSnapshot, error) {
		reply, err := b.c.GetVolumeGroupSnapshot(short(t), &csi.GetVolumeGroupSnapshotRequest{
			GroupSnapshotId: id, SnapshotIds: ids})
		return reply.GetGroupSnapshot(), err
	}
	got, err := get(group.GetGroupSnapshotId(), ids)
	b.must(err)
	if got.String() != group.String() {
		t.Errorf("got %v\nmade %v", got, group)
	}
	_, err = get(group.GetGroupSnapshotId(), ids[:2])
	b.refused("get with too few", err, codes.InvalidArgument)
	_, err = get(group.GetGroupSnapshotId(), append(ids[:2:2], ids[1]))
	b.refused("get with one twice", err, codes.InvalidArgument)
	_, err = get("nonsense", ids)
	b.refused("get of none", err, codes.NotFound)
	b.refused("DeleteSnapshot of a member", b.d.DeleteSnapshot(ids[0]), codes.InvalidArgument)
	_, err = b.c.DeleteVolumeGroupSnapshot(short(t), &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: ids[1:]})
	b.refused("delete with too few", err, codes.InvalidArgument)
	_, err = b.c.DeleteVolumeGroupSnapshot(short(t), &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: "nonsense"})
	b.must(err)

	list, err := b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{})
	b.must(err)
	for _, entry := range list.GetEntries() {
		if entry.GetSnapshot().GetGroupSnapshotId() != group.GetGroupSnapshotId() {
			t.Errorf("listed: %v", entry)
		}
	}
	one, err := b.c.GetSnapshot(short(t), &csi.GetSnapshotRequest{SnapshotId: ids[1]})
	b.must(err)
	if len(list.GetEntries()) != 3 || one.GetSnapshot().GetGroupSnapshotId() != group.GetGroupSnapshotId() {
		t.Errorf("listed %v, got %v", list, one)
	}
	b.restart()
	got, err = get(group.GetGroupSnapshotId(), ids)
	b.must(err)
	if got.String() != group.String() {
		t.Errorf("after a restart: %v\nmade %v", got, group)
	}
	// Volumes may go before it.
	b.allGone(volumes)
	_, err = get(group.GetGroupSnapshotId(), ids)
	b.must(err)
	b.deleteGroup(group)
	_, err = get(group.GetGroupSnapshotId(), ids)
	b.refused("get of a deleted one", err, codes.NotFound)
}

// Volumes that cannot be taken together are not.
func TestGroupOfWhatCannotBeHeldTogether(t *testing.T) {
	b := open(t, "xfs", 6<<30)
	volumes := b.volumesUp([]string{"block", "ext4", "block"})
	_, err := b.c.CreateVolumeGroupSnapshot(short(t), b.groupRequest("g", volumes))
	b.refused("two block volumes in use", err, codes.FailedPrecondition)
	b.must(volumes[2].Down())
	b.deleteGroup(b.group("g", volumes))
	b.allGone(volumes)
}

func TestGroupOfSeveralPools(t *testing.T) {
	b := newBed(t, "xfs", 3<<30)
	b.another("second")
	b.start()
	volumes := []*rig.Volume{b.volume("a", "ext4"), b.volume("b", "ext4")}
	volumes[1].Params = map[string]string{"pool": "second"}
	for _, v := range volumes {
		b.must(v.Create())
	}
	_, err := b.c.CreateVolumeGroupSnapshot(short(t), b.groupRequest("g", volumes))
	b.refused("two pools", err, codes.FailedPrecondition)
	if !strings.Contains(fmt.Sprint(err), "volume a is in pool default and volume b in pool second") {
		t.Error(err)
	}
	for _, v := range volumes {
		b.must(v.Delete())
	}
}
