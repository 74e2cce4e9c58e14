// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// snapshotOf takes one and returns its id.
func (b *bed) snapshotOf(v *rig.Volume, name string) string {
	b.t.Helper()
	s, err := v.Snapshot(name)
	b.must(err)
	return s.GetSnapshotId()
}

// writeAt writes to a block volume's device or an image, and waits until it is there.
func (b *bed) writeAt(path string, offset int64, data []byte) {
	b.t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	b.must(err)
	defer file.Close()
	_, err = file.WriteAt(data, offset)
	b.must(err)
	b.must(file.Sync())
}

func (b *bed) allocated(id string) *rig.Blocks {
	b.t.Helper()
	blocks, err := b.c.Allocated(short(b.t), id, 0, 0)
	b.must(err)
	return blocks
}

func (b *bed) delta(base, target string) *rig.Blocks {
	b.t.Helper()
	blocks, err := b.c.Delta(short(b.t), base, target, 0, 0)
	b.must(err)
	return blocks
}

func (b *bed) isRanges(what string, got *rig.Blocks, want ...rig.Range) {
	b.t.Helper()
	isRanges(b.t, what, got, want...)
}

func isRanges(t *testing.T, what string, got *rig.Blocks, want ...rig.Range) {
	t.Helper()
	if len(got.Ranges) != len(want) {
		t.Fatalf("%s: %v, not %v", what, got.Ranges, want)
	}
	for i, r := range want {
		if got.Ranges[i] != r {
			t.Fatalf("%s: %v, not %v", what, got.Ranges, want)
		}
	}
}

func bytesOf(b byte, n int64) []byte {
	return []byte(strings.Repeat(string(rune(b)), int(n)))
}

const kib = 1024

// What is written between two snapshots is what differs, to the block; also through a device, and in a volume that has grown.
func TestMetadata(t *testing.T) {
	for _, fs := range []string{"xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t, fs, 2<<30)
			v := b.volume("data", "block")
			b.must(v.Up())
			none := b.snapshotOf(v, "none")
			b.isRanges("nothing written", b.allocated(none))
			b.writeAt(v.Target, 1*mib, bytesOf('a', 64*kib))
			b.writeAt(v.Target, 8*mib, bytesOf('b', 4*kib))
			one := b.snapshotOf(v, "one")
			b.isRanges("allocated", b.allocated(one), rig.Range{Start: 1 * mib, End: 1*mib + 64*kib}, rig.Range{Start: 8 * mib, End: 8*mib + 4*kib})
			b.isRanges("from nothing", b.delta(none, one), b.allocated(one).Ranges...)
			b.isRanges("to itself", b.delta(one, one))
			b.writeAt(v.Target, 1*mib+16*kib, bytesOf('c', 4*kib))
			b.writeAt(v.Target, 4*mib, bytesOf('d', 8*kib))
			b.writeAt(v.Target, 8*mib, bytesOf('b', 4*kib)) // the same bytes anew
			two := b.snapshotOf(v, "two")
			changed := []rig.Range{{Start: 1*mib + 16*kib, End: 1*mib + 20*kib}, {Start: 4 * mib, End: 4*mib + 8*kib},
				{Start: 8 * mib, End: 8*mib + 4*kib}}
			b.isRanges("delta", b.delta(one, two), changed...)
			b.isRanges("the other way round", b.delta(two, one), changed...)

			for _, max := range []int32{1, 2, 3, 1 << 30} {
				blocks, err := b.c.Delta(short(b.t), one, two, 0, max)
				b.must(err)
				b.isRanges("with max_results", blocks, changed...)
				if want := (len(changed) + int(max) - 1) / int(max); max < 4 && blocks.Messages != want {
					t.Errorf("max_results %d: %d messages, not %d", max, blocks.Messages, want)
				}
			}
			for _, from := range []struct {
				offset int64
				want   []rig.Range
			}{
				{1*mib + 16*kib, changed}, {1*mib + 20*kib, changed[1:]}, {v.Got, nil}, {7 * mib, changed[2:]},
				{4*mib + 4*kib, append([]rig.Range{{Start: 4*mib + 4*kib, End: 4*mib + 8*kib}}, changed[2])},
				{8*mib + 5, []rig.Range{{Start: 8*mib + 5, End: 8*mib + 4*kib}}},
			} {
				blocks, err := b.c.Delta(short(b.t), one, two, from.offset, 0)
				b.must(err)
				b.isRanges("from an offset", blocks, from.want...)
			}

			was := v.Got
			b.must(v.Down())
			b.must(v.Expand(was+16*mib, true))
			b.must(v.Up())
			b.writeAt(v.Target, was+mib, bytesOf('e', 4*kib))
			three := b.snapshotOf(v, "three")
			b.isRanges("of a grown volume", b.delta(two, three), rig.Range{Start: was, End: was + 16*mib})
			blocks, err := b.c.Delta(short(b.t), two, three, was+4*mib, 0)
			b.must(err)
			b.isRanges("in what has grown", blocks, rig.Range{Start: was + 4*mib, End: was + 16*mib})
			b.isRanges("the smaller from the grown", b.delta(three, two))

			w := b.volume("other", "block")
			b.must(w.Up())
			b.writeAt(w.Target, 0, bytesOf('f', 4*kib))
			strange := b.snapshotOf(w, "strange")
			b.isRanges("of another volume", b.delta(one, strange), rig.Range{Start: 0, End: 4 * kib},
				rig.Range{Start: 1 * mib, End: 1*mib + 64*kib}, rig.Range{Start: 8 * mib, End: 8*mib + 4*kib})
			b.must(v.Gone())
			b.isRanges("of a volume that is gone", b.delta(one, two), changed...)
			b.must(w.Gone())
			for _, id := range []string{none, one, two, three, strange} {
				b.must(b.d.DeleteSnapshot(id))
			}
		})
	}
}

// What the specification says of what cannot be.
func TestMetadataRefusals(t *testing.T) {
	b := newBed(t, "xfs", 2<<30)
	second := b.another("second")
	third, err := b.NewPool("third", "ext4", 1<<30)
	b.must(err)
	b.d.Pools = append(b.d.Pools, third)
	b.start()
	v := b.volume("data", "block")
	b.must(v.Create())
	one := b.snapshotOf(v, "one")
	in := func(pool *rig.Pool) (*rig.Volume, string) {
		w := b.volume("in-"+pool.Name, "block")
		w.Params = map[string]string{"pool": pool.Name}
		b.must(w.Create())
		b.writeAt(pool.Image(w.ID), 2*mib, bytesOf('x', 8*kib))
		return w, b.snapshotOf(w, "of-"+pool.Name)
	}
	inSecond, two := in(second)
	inThird, three := in(third)

	allocated := func(id string, offset int64, max int32) error {
		_, err := b.c.Allocated(short(b.t), id, offset, max)
		return err
	}
	delta := func(base, target string, offset int64, max int32) error {
		_, err := b.c.Delta(short(b.t), base, target, offset, max)
		return err
	}
	gone := one[:len(one)-8] + "00000000"
	for _, c := range []struct {
		what string
		err  error
		want codes.Code
		word string
	}{
		{"no id", allocated("", 0, 0), codes.InvalidArgument, "snapshot_id"},
		{"no base", delta("", one, 0, 0), codes.InvalidArgument, "base_snapshot_id"},
		{"no target", delta(one, "", 0, 0), codes.InvalidArgument, "target_snapshot_id"},
		{"no such snapshot", allocated(gone, 0, 0), codes.NotFound, gone},
		{"no id of ours", allocated("nonsense", 0, 0), codes.NotFound, "nonsense"},
		{"a volume", allocated(v.ID, 0, 0), codes.NotFound, v.ID},
		{"no such base", delta(gone, one, 0, 0), codes.NotFound, gone},
		{"no such target", delta(one, gone, 0, 0), codes.NotFound, gone},
		{"before the beginning", allocated(one, -1, 0), codes.OutOfRange, "starting_offset"},
		{"behind the end", allocated(one, v.Got+1, 0), codes.OutOfRange, "starting_offset"},
		{"behind the end of both", delta(one, one, v.Got+1, 0), codes.OutOfRange, "starting_offset"},
		{"fewer than none", allocated(one, 0, -1), codes.InvalidArgument, "max_results"},
		{"two pools", delta(one, two, 0, 0), codes.FailedPrecondition, "back up all"},
		{"a pool that shares nothing", delta(three, three, 0, 0), codes.FailedPrecondition, "XFS or btrfs"},
	} {
		b.refused(c.what, c.err, c.want)
		b.says(c.what, c.err, c.word)
	}
	b.must(allocated(one, v.Got, 0))
	b.isRanges("allocated on ext4", b.allocated(three), rig.Range{Start: 2 * mib, End: 2*mib + 8*kib})
	for _, id := range []string{one, two, three} {
		b.must(b.d.DeleteSnapshot(id))
	}
	for _, w := range []*rig.Volume{v, inSecond, inThird} {
		b.must(w.Delete())
	}
}

// scattered makes a snapshot with many extents, so that a client that does not read stops the stream.
func (b *bed) scattered(v *rig.Volume, name string, extents int64) string {
	b.t.Helper()
	file, err := os.OpenFile(b.pool.Image(v.ID), os.O_WRONLY, 0)
	b.must(err)
	defer file.Close()
	block := bytesOf('x', 4*kib)
	for i := range extents {
		_, err = file.WriteAt(block, i*8*kib)
		b.must(err)
	}
	b.must(file.Sync())
	return b.snapshotOf(v, name)
}

// A snapshot stays while a client is told of it, however slowly that reads; and a client that goes away leaves nothing behind.
func TestMetadataSlowClient(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	v := b.d.Volume("data", rig.BlockCap(), 256*mib)
	b.must(v.Create())
	none := b.snapshotOf(v, "none")
	many := b.scattered(v, "many", 12000)
	for _, delta := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var recv func() error
		if delta {
			stream, err := b.c.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: none, TargetSnapshotId: many, MaxResults: 1})
			b.must(err)
			recv = func() error { _, err := stream.Recv(); return err }
		} else {
			stream, err := b.c.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: many, MaxResults: 1})
			b.must(err)
			recv = func() error { _, err := stream.Recv(); return err }
		}
		b.must(recv())
		err := b.d.DeleteSnapshot(many)
		b.refused("deleting what is being told of", err, codes.Aborted)
		b.says("it", err, "GetMetadata")
		if delta {
			b.refused("deleting the base", b.d.DeleteSnapshot(none), codes.Aborted)
		} else {
			b.must(b.d.DeleteSnapshot(b.snapshotOf(v, "beside")))
		}
		copied := b.d.Volume("copy", rig.BlockCap(), 0)
		copied.Source = rig.FromSnapshot(many)
		b.must(copied.Create()) // others may look at it
		b.must(copied.Delete())
		if blocks := b.allocated(many); len(blocks.Ranges) != 12000 {
			t.Fatalf("%d ranges of 12000", len(blocks.Ranges))
		}
		cancel()
		if !delta {
			continue
		}
		b.eventually(func() error { return b.d.DeleteSnapshot(many) })
	}
	b.must(b.d.DeleteSnapshot(none))
	b.must(v.Delete())
}

// A driver that ends does not wait for a client that does not read.
func TestMetadataDrain(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	v := b.d.Volume("data", rig.BlockCap(), 256*mib)
	b.must(v.Create())
	many := b.scattered(v, "many", 12000)
	stream, err := b.c.GetMetadataAllocated(short(b.t), &csi.GetMetadataAllocatedRequest{SnapshotId: many, MaxResults: 1})
	b.must(err)
	_, err = stream.Recv()
	b.must(err)
	began := time.Now()
	b.must(b.d.Term())
	t.Logf("ended after %v", time.Since(began))
	for err == nil {
		_, err = stream.Recv()
	}
	b.refused("the rest", err, codes.Unavailable)
	b.must(b.d.Start())
	b.must(b.d.AwaitReady())
	b.must(b.d.DeleteSnapshot(many))
	b.must(v.Delete())
}
