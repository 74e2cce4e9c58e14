// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

var (
	histories   = flag.Int("histories", 240, "random histories of TestMetadataHistories, in all")
	historySeed = flag.Uint64("history-seed", 0, "the first one's seed; 0: drawn")
)

const (
	historyBytes  = 16 * mib
	historySteps  = 40 // snapshots of one volume
	historyKept   = 4  // of them at once
	historyGrowth = 4
)

// A volume, what was done to it, and its last snapshots with what they hold.
type history struct {
	*bed
	block  int64 // what is told of at least
	inUse  bool  // it is staged, and its device is written to; else its image is
	data   func(snapshot string) ([]byte, error)
	random *rand.Rand
	v      *rig.Volume
	name   string
	size   int64
	grown  int
	past   []*moment
	done   []string // since the last snapshot
}

// A moment is a snapshot, and the blocks that were touched between the one before and it.
type moment struct {
	id      string
	data    []byte
	touched map[int64]bool
	changes int
	done    []string
}

// some is a random run of the volume's bytes: mostly small, sometimes of whole blocks, often where others were.
func (h *history) some(most int64) (offset, size int64) {
	switch h.random.IntN(4) {
	case 0:
		size = 1 + h.random.Int64N(h.block*2)
	case 1:
		size = h.block * (1 + h.random.Int64N(4))
	default:
		size = 1 + h.random.Int64N(most)
	}
	offset = h.random.Int64N(h.size - size)
	if h.random.IntN(2) == 0 {
		offset = h.random.Int64N(64) * 16 * kib // near the beginning, where there is much already
	}
	if h.random.IntN(2) == 0 {
		offset -= offset % h.block
	}
	return offset, size
}

// step changes the image, as a device on it does.
func (h *history) step(file, direct *os.File, m *moment) error {
	offset, size := h.some(192 * kib)
	touch := func(what string, err error) error {
		for at := offset / h.block; at*h.block < offset+size; at++ {
			m.touched[at] = true
		}
		m.changes++
		m.done = append(m.done, fmt.Sprintf("%s [%d, %d)", what, offset, offset+size))
		if err != nil {
			return fmt.Errorf("%s at %d, %d bytes: %w", what, offset, size, err)
		}
		return nil
	}
	fill := func(n int64) []byte {
		data := directBuffer(n)
		for i := range data {
			data[i] = byte(h.random.Uint32())
		}
		return data
	}
	what := h.random.IntN(10)
	if h.inUse && what < 3 {
		offset -= offset % (4 * kib)
		size = min((size+4*kib-1)/(4*kib)*(4*kib), h.size-offset)
		if what == 2 || h.random.IntN(4) == 0 {
			what = 0
			offset -= offset % h.block
			size = min((size+h.block-1)/h.block*h.block, h.size-offset)
		}
	}
	switch what {
	case 0:
		if h.inUse {
			return touch("discard", discard(file, offset, size))
		}
		return touch("punch", unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, size))
	case 1:
		return touch("zero", unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, offset, size))
	case 2: // what is allocated and not written reads as before
		m.done = append(m.done, "allocate")
		return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, offset, size)
	case 3:
		_, err := file.WriteAt(make([]byte, size), offset)
		return touch("write zeros", err)
	case 4:
		same := make([]byte, size)
		if _, err := file.ReadAt(same, offset); err != nil {
			return err
		}
		_, err := file.WriteAt(same, offset)
		return touch("write the same", err)
	case 5, 6:
		offset -= offset % h.block
		size = min((size+h.block-1)/h.block*h.block, h.size-offset)
		_, err := direct.WriteAt(fill(size), offset)
		return touch("write past the cache", err)
	}
	_, err := file.WriteAt(fill(size), offset)
	return touch("write", err)
}

func (h *history) grow(m *moment) {
	h.t.Helper()
	h.must(h.v.Expand(h.size+mib, h.inUse))
	for at := h.size / h.block; at < (h.size+mib)/h.block; at++ {
		m.touched[at] = true
	}
	h.size += mib
	h.grown++
	m.changes++
	m.done = append(m.done, "grow")
}

// next makes changes and takes a snapshot after them.
func (h *history) next(n int) {
	h.t.Helper()
	m := &moment{touched: map[int64]bool{}}
	image := h.v.Target
	if !h.inUse {
		image = h.pool.Image(h.v.ID)
	}
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	h.must(err)
	defer file.Close()
	direct, err := os.OpenFile(image, os.O_RDWR|unix.O_DIRECT, 0)
	h.must(err)
	defer direct.Close()
	for range h.random.IntN(10) {
		h.must(h.step(file, direct, m))
	}
	if h.grown < historyGrowth && h.random.IntN(12) == 0 {
		h.grow(m)
	}
	m.id = h.snapshotOf(h.v, fmt.Sprintf("%s-%d", h.name, n))
	m.data, err = h.data(m.id)
	h.must(err)
	h.past = append(h.past, m)
}

// blockOf is one of a snapshot; nil behind its end.
func (h *history) blockOf(m *moment, at int64) []byte {
	if start := at * h.block; start < int64(len(m.data)) {
		return m.data[start:min(start+h.block, int64(len(m.data)))]
	}
	return nil
}

// told is which blocks an answer has, and what is wrong with it.
func (h *history) told(b *rig.Blocks, m *moment) map[int64]bool {
	h.t.Helper()
	told := map[int64]bool{}
	if len(b.Ranges) > 0 && b.Capacity != int64(len(m.data)) {
		h.t.Fatalf("%s: the capacity is %d, not %d", h.name, b.Capacity, len(m.data))
	}
	for i, r := range b.Ranges {
		if r.Start%h.block != 0 || r.End%h.block != 0 && r.End != b.Capacity {
			h.t.Fatalf("%s: %v is not of whole blocks", h.name, r)
		}
		if i > 0 && b.Ranges[i-1].End == r.Start {
			h.t.Fatalf("%s: %v and %v are one range", h.name, b.Ranges[i-1], r)
		}
		for at := r.Start / h.block; at*h.block < r.End; at++ {
			told[at] = true
		}
	}
	return told
}

// check compares a delta with what both snapshots hold.
func (h *history) check(from, to int) (extra int) {
	h.t.Helper()
	base, target := h.past[from], h.past[to]
	blocks := h.delta(base.id, target.id)
	told := h.told(blocks, target)
	touched, changes := map[int64]bool{}, 0
	var done []string
	for _, m := range h.past[from+1 : to+1] {
		for at := range m.touched {
			touched[at] = true
		}
		changes += m.changes
		done = append(done, m.done...)
	}
	for at := range (int64(len(target.data)) + h.block - 1) / h.block {
		if !bytes.Equal(h.blockOf(base, at), h.blockOf(target, at)) && !told[at] {
			h.t.Fatalf("%s: block %d differs, and is not told: %v\nafter %v", h.name, at, blocks.Ranges, done)
		}
	}
	for at := range told {
		if !touched[at] {
			extra++
		}
	}
	if extra > changes {
		h.t.Fatalf("%s: %d blocks are told too many, for %d changes: %v\nafter %v", h.name, extra, changes, blocks.Ranges, done)
	}
	// From the middle on, in small messages.
	if len(blocks.Ranges) > 1 && h.random.IntN(4) == 0 {
		i := h.random.IntN(len(blocks.Ranges))
		rest, err := h.c.Delta(short(h.t), base.id, target.id, blocks.Ranges[i].Start, int32(1+h.random.IntN(3)))
		h.must(err)
		h.isRanges(h.name+": the rest", rest, blocks.Ranges[i:]...)
	}
	return extra
}

// checkAllocated looks for data where none is told.
func (h *history) checkAllocated(i int) {
	h.t.Helper()
	m := h.past[i]
	told := h.told(h.allocated(m.id), m)
	zeros := make([]byte, h.block)
	for at := range int64(len(m.data)) / h.block {
		if block := h.blockOf(m, at); !told[at] && !bytes.Equal(block, zeros[:len(block)]) {
			h.t.Fatalf("%s: block %d has data, and is not told", h.name, at)
		}
	}
}

// history is one volume's histories; by how many blocks answers were more than what was touched.
func (b *bed) history(seed uint64, steps int) (extra int) {
	b.t.Helper()
	h := b.newHistory(seed, 4*kib)
	h.data = func(id string) ([]byte, error) { return os.ReadFile(b.pool.SnapshotImage(id)) }
	if h.random.IntN(4) == 0 && b.pool.FS == "xfs" {
		h.v.Params = map[string]string{"provisioning": "thick"}
	}
	b.must(h.v.Create())
	extra = h.run(steps)
	b.must(h.v.Delete())
	return extra
}

func (b *bed) newHistory(seed uint64, block int64) *history {
	h := &history{bed: b, block: block, random: rand.New(rand.NewPCG(seed, 0)), name: fmt.Sprintf("seed-%d", seed), size: historyBytes}
	h.v = b.d.Volume(h.name, rig.BlockCap(), h.size)
	return h
}

// run is all of it: a snapshot after each step, compared with earlier ones.
func (h *history) run(steps int) (extra int) {
	h.t.Helper()
	h.next(0)
	for n := 1; n <= steps; n++ {
		h.next(n)
		last := len(h.past) - 1
		extra += h.check(last-1, last)
		if last > 1 {
			extra += h.check(h.random.IntN(last-1), last)
		}
		if h.random.IntN(4) == 0 {
			h.checkAllocated(last)
		}
		if len(h.past) > historyKept {
			h.must(h.d.DeleteSnapshot(h.past[0].id))
			h.past = h.past[1:]
		}
	}
	for _, m := range h.past {
		h.must(h.d.DeleteSnapshot(m.id))
	}
	return extra
}

// Random histories, and every answer is compared with what both snapshots hold: never less than the truth, and at most one block
// more a change. A history is what is done between two snapshots.
func TestMetadataHistories(t *testing.T) {
	seed := *historySeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1e9
	}
	for _, fs := range []string{"xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t, fs, 2<<30)
			extra := 0
			for left := *histories / 2; left > 0; left -= historySteps {
				extra += b.history(seed, min(left, historySteps))
				seed++
			}
			t.Logf("%d histories on %s up to seed %d; %d blocks more than what was touched", *histories/2, fs, seed, extra)
		})
	}
}
