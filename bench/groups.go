// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

const (
	grouped     = 20
	groupedSize = 256 * rig.MiB
	writerPace  = 2 * time.Millisecond
	counterPace = 100 * time.Microsecond
)

// groupsOf20: a group snapshot of 20 mounted volumes, each with a writer. How long they are frozen is taken from the
// writers and from nobody's word: the longest write(2) of any of them. The bare calls beside it are seen by the same
// writers: all synced as ours syncs them, then frozen at once, a thread each, shared, and thawed at once. One after the
// other they take far longer, which is no bar.
func groupsOf20(b *bench) error {
	d, p, err := b.open(16 << 30)
	if err != nil {
		return err
	}
	all, err := stagedVolumes(d, "grouped0", grouped, rig.MountCap("ext4"), groupedSize)
	if err != nil {
		return err
	}
	for _, v := range all {
		if err := v.Publish(); err != nil {
			return err
		}
	}
	w, err := writersOn(all)
	if err != nil {
		return err
	}
	defer w.end()
	dir, err := floorDir(p)
	if err != nil {
		return err
	}
	g := &groupBench{bench: b, d: d, all: all, writers: w, floor: []any{dir}}
	for _, v := range all {
		g.floor = append(g.floor, p.Image(v.ID), v.Target)
	}
	what := row{What: "group snapshot of 20 volumes with writers: longest write of any", Unit: "ms",
		Beside: "FIFREEZE, FICLONE, FITHAW of all, a thread each", Bar: "ratio <= 1.5"}
	if err := b.paired(what, g.ours, g.bare("together")); err != nil {
		return err
	}
	what.Beside, what.Bar = "the same, one after the other", ""
	if err := b.paired(what, g.ours, g.bare("group")); err != nil {
		return err
	}
	idle, err := g.stall(func() error { time.Sleep(500 * time.Millisecond); return nil })
	if err != nil {
		return err
	}
	b.add(row{What: "longest write of any in half a second without either", Unit: "ms", Ours: idle})
	b.add(row{What: "all of CreateVolumeGroupSnapshot of the 20", Unit: "ms", Ours: median(g.whole), Rounds: len(g.whole),
		Low: slices.Min(g.whole), High: slices.Max(g.whole)})
	b.add(row{What: fmt.Sprintf("groups of %d that show more than one moment of a writer that counts across all 20", g.checked), Unit: "",
		Ours: float64(g.torn), Bar: "<= 0"})
	w.end()
	for _, v := range all {
		if err := v.Gone(); err != nil {
			return err
		}
	}
	return nil
}

// groupWriters have a file on each volume: one writes blocks of its own at a pace, one counter goes over all.
type groupWriters struct {
	stop    atomic.Bool
	once    sync.Once
	wait    sync.WaitGroup
	longest []atomic.Int64 // ns, of each volume's own writer
	lock    sync.Mutex
	failed  error
}

func writersOn(all []*rig.Volume) (*groupWriters, error) {
	w := &groupWriters{longest: make([]atomic.Int64, len(all))}
	var counters []*os.File
	for i, v := range all {
		file, err := os.Create(filepath.Join(v.Target, "written"))
		if err != nil {
			return nil, err
		}
		counter, err := os.Create(counterOf(v))
		if err != nil {
			return nil, err
		}
		counters = append(counters, counter)
		w.wait.Go(func() { w.fail(w.write(i, file)) })
	}
	w.wait.Go(func() { w.fail(w.count(counters)) })
	return w, nil
}

func counterOf(v *rig.Volume) string { return filepath.Join(v.Target, "counter") }

func (w *groupWriters) fail(err error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.failed = errors.Join(w.failed, err)
}

func (w *groupWriters) end() {
	w.once.Do(func() {
		w.stop.Store(true)
		w.wait.Wait()
	})
}

func (w *groupWriters) write(i int, file *os.File) error {
	defer file.Close()
	block := make([]byte, 4096)
	for n := int64(0); !w.stop.Load(); n++ {
		begin := time.Now()
		if _, err := file.WriteAt(block, n%1024*4096); err != nil {
			return err
		}
		w.longest[i].Store(max(w.longest[i].Load(), time.Since(begin).Nanoseconds()))
		time.Sleep(writerPace)
	}
	return nil
}

// count gives the n-th number to volume n modulo their count.
func (w *groupWriters) count(files []*os.File) error {
	block := make([]byte, 8)
	for n := uint64(1); !w.stop.Load(); n++ {
		binary.LittleEndian.PutUint64(block, n)
		if _, err := files[n%uint64(len(files))].WriteAt(block, 0); err != nil {
			return err
		}
		time.Sleep(counterPace)
	}
	for _, f := range files {
		f.Close()
	}
	return nil
}

// since forgets what was; most is the longest write that ended since then.
func (w *groupWriters) since() {
	for i := range w.longest {
		w.longest[i].Store(0)
	}
}

func (w *groupWriters) most() (ms float64, err error) {
	for i := range w.longest {
		ms = max(ms, float64(w.longest[i].Load())/1e6)
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	return ms, w.failed
}

type groupBench struct {
	*bench
	d             *rig.Driver
	all           []*rig.Volume
	writers       *groupWriters
	floor         []any
	whole         []float64
	serial        int
	checked, torn int
}

// stall is the longest write during some work.
func (g *groupBench) stall(work func() error) (float64, error) {
	time.Sleep(300 * time.Millisecond) // what the last round has dirtied is as much every time
	g.writers.since()
	if err := work(); err != nil {
		return 0, err
	}
	time.Sleep(20 * time.Millisecond) // the writes that were held up have ended
	return g.writers.most()
}

func (g *groupBench) bare(how string) func() (float64, error) {
	return func() (float64, error) {
		return g.stall(func() error {
			_, err := floorRun(append([]any{how}, g.floor...)...)
			if err != nil {
				thaw(g.all)
			}
			return err
		})
	}
}

func (g *groupBench) ours() (float64, error) {
	c, err := g.d.Client()
	if err != nil {
		return 0, err
	}
	g.serial++
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: fmt.Sprintf("group-%d", g.serial)}
	for _, v := range g.all {
		request.SourceVolumeIds = append(request.SourceVolumeIds, v.ID)
	}
	var group *csi.VolumeGroupSnapshot
	took, err := g.stall(func() error {
		begin := time.Now()
		reply, err := c.CreateVolumeGroupSnapshot(context.Background(), request)
		g.whole = append(g.whole, float64(time.Since(begin).Microseconds())/1000)
		group = reply.GetGroupSnapshot()
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := g.check(group); err != nil {
		return 0, err
	}
	var ids []string
	for _, s := range group.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	_, err = c.DeleteVolumeGroupSnapshot(context.Background(),
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: ids})
	return took, err
}

// check restores every member and compares the counter's numbers: the newest one n, and of the volumes before it in turn
// those that go before n.
func (g *groupBench) check(group *csi.VolumeGroupSnapshot) error {
	numbers := make([]uint64, len(g.all))
	for i, s := range group.GetSnapshots() {
		r := g.d.Volume(fmt.Sprintf("restored-%d-%d", g.serial, i), g.all[i].Cap, groupedSize)
		r.Source = rig.FromSnapshot(s.GetSnapshotId())
		if err := r.Up(); err != nil {
			return err
		}
		text, err := os.ReadFile(counterOf(r))
		if err != nil || len(text) < 8 {
			return fmt.Errorf("the counter of %s: %d bytes, %w", r.Name, len(text), err)
		}
		numbers[i] = binary.LittleEndian.Uint64(text)
		if err := down(r, r.Down); err != nil {
			return err
		}
	}
	count, newest := uint64(len(numbers)), slices.Max(numbers)
	g.checked++
	for i, n := range numbers {
		if n != newest-(newest+count-uint64(i))%count {
			fmt.Fprintf(os.Stderr, "volume %d has %d, the newest number is %d: %v\n", i, n, newest, numbers)
			g.torn++
			break
		}
	}
	return nil
}

// thaw lets go of what a floor that was ended in its midst has left frozen.
func thaw(all []*rig.Volume) {
	for _, v := range all {
		if fd, err := unix.Open(v.Target, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			_ = unix.IoctlSetInt(fd, 0xc0045878, 0) // FITHAW
			unix.Close(fd)
		}
	}
}
