// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func (b *rawBed) thinVolumesUp(kinds []string) (volumes []*rig.Volume) {
	b.t.Helper()
	for i, kind := range kinds {
		v := b.thinVolume(fmt.Sprintf("source-%d", i), kind)
		b.must(v.Up())
		volumes = append(volumes, v)
	}
	return volumes
}

// thinNumbers restores every member and reads its number.
func (b *rawBed) thinNumbers(group *csi.VolumeGroupSnapshot, kinds []string) (numbers []uint64) {
	b.t.Helper()
	for i, s := range group.GetSnapshots() {
		r := b.copyOf(fmt.Sprintf("restored-%d", i), kinds[i], rig.FromSnapshot(s.GetSnapshotId()), thin)
		b.must(r.Up())
		data, err := readStart(counterPath(r, kinds[i]))
		b.must(err)
		numbers = append(numbers, binary.LittleEndian.Uint64(data))
		b.must(r.Gone())
	}
	return numbers
}

// A group in a raw pool is of one moment, also of several block volumes in use: their devices are suspended.
func TestRawPoolThinGroups(t *testing.T) {
	b := openThin(t, 6<<30)
	kinds := []string{"ext4", "block", "xfs", "block"}
	volumes := b.thinVolumesUp(kinds)
	c := b.count(volumes, kinds)
	for round := range rounds(3) {
		before := c.n.Load()
		b.must(rig.Eventually(time.Minute, func() error {
			if n := c.n.Load(); n < before+uint64(10*len(kinds)) {
				return fmt.Errorf("the counter stands at %d, %d before", n, before)
			}
			return nil
		}))
		group := b.group(fmt.Sprintf("group-%d", round), volumes)
		again := b.group(fmt.Sprintf("group-%d", round), volumes)
		if again.GetGroupSnapshotId() != group.GetGroupSnapshotId() {
			t.Errorf("%v and %v", group, again)
		}
		if err := oneMoment(b.thinNumbers(group, kinds)); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		// Found after a restart, and deleted as a whole.
		if round == 0 {
			b.must(b.d.Kill())
			b.start()
			if err := oneMoment(b.thinNumbers(group, kinds)); err != nil {
				t.Errorf("after a restart: %v", err)
			}
		}
		b.deleteGroup(group)
	}
	b.counted(c)
	thick := b.volume("thick", "block")
	thick.Params = map[string]string{"provisioning": "thick"}
	b.must(thick.Create())
	_, err := b.c.CreateVolumeGroupSnapshot(short(t), b.groupRequest("mixed", append([]*rig.Volume{thick}, volumes...)))
	b.refused("a thick one among them", err, codes.FailedPrecondition)
	b.says("a thick one among them", err, "thick")
	b.must(thick.Delete())
	b.allGone(volumes)
	b.clean()
	if ids := b.ids(); len(ids) != 0 {
		t.Errorf("left: %v", ids)
	}
	b.must(b.pool.ThinAgrees())
	b.accounts()
	b.check(0)
}

// A driver that is killed while it makes groups leaves whole ones or nothing of them, and no device suspended.
func TestRawPoolThinGroupsKilled(t *testing.T) {
	b := openThin(t, 6<<30)
	kinds := []string{"ext4", "block", "block"}
	volumes := b.thinVolumesUp(kinds)
	c := b.count(volumes, kinds)
	whole := 0
	for round := range rounds(8) {
		name := fmt.Sprintf("group-%d", round)
		ended := make(chan error, 1)
		client := b.c
		go func() {
			_, err := client.CreateVolumeGroupSnapshot(short(t), b.groupRequest(name, volumes))
			ended <- err
		}()
		time.Sleep(time.Duration(round*round) * 7 * time.Millisecond)
		b.must(b.d.Kill())
		failed := <-ended
		b.must(b.d.Start())
		b.must(b.d.AwaitReady())
		b.connect()
		list, err := b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{})
		b.must(err)
		if n := len(list.GetEntries()); n != 0 && n != len(volumes) || n == 0 && failed == nil {
			t.Errorf("round %d (%v): %d snapshots", round, failed, n)
		}
		whole += len(list.GetEntries()) / len(volumes)
		// Nobody is held still any more, and a repeat gets the group.
		before := c.n.Load()
		b.must(rig.Eventually(time.Minute, func() error {
			if n := c.n.Load(); n < before+uint64(10*len(kinds)) {
				return fmt.Errorf("the counter stands at %d, %d before", n, before)
			}
			return nil
		}))
		group := b.group(name, volumes)
		if err := oneMoment(b.thinNumbers(group, kinds)); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		b.deleteGroup(group)
	}
	t.Logf("%d groups were there after a kill", whole)
	b.counted(c)
	b.allGone(volumes)
	b.clean()
	b.must(b.pool.ThinAgrees())
	b.accounts()
	b.check(0)
}

func discard(file *os.File, offset, size int64) error {
	run := [2]uint64{uint64(offset), uint64(size)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), 0x1277 /* BLKDISCARD */, uintptr(unsafe.Pointer(&run))); errno != 0 {
		return errno
	}
	return nil
}

// As TestMetadataHistories, of a thin volume of a raw pool in use: every answer is compared with what volumes that are made of both
// snapshots read.
func TestRawPoolThinHistories(t *testing.T) {
	seed := *historySeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1e9
	}
	b := openThin(t, 4<<30)
	extra, steps := 0, 3*rounds(10)
	h := b.newHistory(seed, 64*kib)
	h.inUse = true
	h.v.Params = thin
	b.must(h.v.Up())
	// Another one that writes all the time, so that the metadata change while they are read.
	other := b.thinVolume("other", "block")
	b.must(other.Up())
	w := b.writes(other.Target)
	h.data = func(id string) ([]byte, error) {
		r := b.copyOf("read", "block", rig.FromSnapshot(id), thin)
		if err := r.Up(); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(r.Target)
		b.must(r.Gone())
		return data, err
	}
	extra = h.run(steps)
	b.must(w.finish())
	t.Logf("%d histories from seed %d; %d blocks more than what was touched", steps, seed, extra)
	b.must(h.v.Gone())
	b.must(other.Gone())
	b.clean()
	b.must(b.pool.ThinAgrees())
	b.check(0)
}

// Nobody deletes what is being told of; with other snapshots in between, in both orders, and of volumes that have grown.
func TestRawPoolThinChanges(t *testing.T) {
	b := openThin(t, 4<<30)
	v := b.thinVolume("changes", "block")
	b.must(v.Up())
	empty := b.snapshotOf(v, "empty")
	b.isRanges("an empty one", b.allocated(empty))
	block := int64(64 * kib)
	b.writeAt(v.Target, 5*block, make([]byte, block))
	b.writeAt(v.Target, 9*block+4*kib, []byte("some"))
	first := b.snapshotOf(v, "first")
	b.isRanges("what is written", b.allocated(first), rig.Range{Start: 5 * block, End: 6 * block}, rig.Range{Start: 9 * block, End: 10 * block})
	b.isRanges("since nothing", b.delta(empty, first), rig.Range{Start: 5 * block, End: 6 * block}, rig.Range{Start: 9 * block, End: 10 * block})
	b.isRanges("nothing", b.delta(first, first))
	file, err := os.OpenFile(v.Target, os.O_RDWR, 0)
	b.must(err)
	b.must(discard(file, 5*block, block))
	b.must(file.Close())
	size := v.Got
	b.must(v.Expand(size+64*mib, true))
	b.writeAt(v.Target, size, []byte("behind"))
	second := b.snapshotOf(v, "second")
	b.isRanges("discarded, and grown", b.delta(first, second), rig.Range{Start: 5 * block, End: 6 * block}, rig.Range{Start: size, End: v.Got})
	b.isRanges("the other way", b.delta(second, first), rig.Range{Start: 5 * block, End: 6 * block})
	thick := b.volume("thick", "block")
	thick.Params = map[string]string{"provisioning": "thick"}
	b.must(thick.Create())
	_, err = thick.Snapshot("none")
	b.refused("a snapshot of a thick volume", err, codes.FailedPrecondition)
	b.must(thick.Delete())
	for _, id := range []string{empty, first, second} {
		b.must(b.d.DeleteSnapshot(id))
	}
	b.must(v.Gone())
	b.accounts()
	b.check(0)
}
