// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

const (
	deltaSize    = int64(64 << 30)
	deltaExtents = 10000
)

// delta: what GetMetadataDelta saves. Two snapshots of a sparse image of 64 GiB between which 10,000 places have changed:
// the first message beside the first gigabyte of both snapshots read and compared, which is what a client without it does.
func delta(b *bench) error {
	d, p, err := b.open(16 << 30)
	if err != nil {
		return err
	}
	v := d.Volume("changed", rig.BlockCap(), deltaSize)
	if err := v.Create(); err != nil {
		return err
	}
	var shots [2]*csi.Snapshot
	for i, piece := range []int{16 << 10, 4 << 10} {
		if err := scatterOver(p.Image(v.ID), piece, byte(i+1)); err != nil {
			return err
		}
		if shots[i], err = v.Snapshot(fmt.Sprintf("shot-%d", i)); err != nil {
			return err
		}
	}
	base, target := shots[0].GetSnapshotId(), shots[1].GetSnapshotId()
	images := []string{p.SnapshotImage(base), p.SnapshotImage(target)}
	c, err := d.Client()
	if err != nil {
		return err
	}
	if err := b.deltaMemory(d, c, base, target); err != nil {
		return err
	}
	first := func() (float64, error) { return firstDelta(c, base, target) }
	if err := b.paired(row{What: "first message of GetMetadataDelta, 64 GiB sparse, 10,000 changed extents", Unit: "ms",
		Beside: "reading and comparing the first GiB of both", Bar: "ratio <= 0.1"}, first,
		func() (float64, error) { return compareFirst(images, 1<<30) }); err != nil {
		return err
	}
	whole := func() (float64, error) {
		begin := time.Now()
		blocks, err := c.Delta(context.Background(), base, target, 0, 0)
		if err == nil && len(blocks.Ranges) < deltaExtents {
			err = fmt.Errorf("%d ranges were told, %d places have changed", len(blocks.Ranges), deltaExtents)
		}
		return float64(time.Since(begin).Microseconds()) / 1000, err
	}
	return b.paired(row{What: "all of that delta", Unit: "ms", Beside: "FIEMAP of both, once"}, whole, func() (float64, error) {
		us, err := floorMedian("fiemap", images[0], images[1])
		return us / 1000, err
	})
}

// scatterOver writes one piece at each of the places, which lie at random, but never beside each other.
func scatterOver(image string, piece int, what byte) error {
	const step = deltaSize / deltaExtents / (64 << 10) * (64 << 10)
	file, err := os.OpenFile(image, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	data := bytes.Repeat([]byte{what}, piece)
	places := rand.New(rand.NewPCG(1, 2))
	for i := range int64(deltaExtents) {
		at := i*step + places.Int64N(step/(64<<10)-1)*(64<<10)
		if _, err := file.WriteAt(data, at); err != nil {
			return err
		}
	}
	return file.Sync()
}

// deltaMemory: what the driver grows by, from before the first stream of its life to the most of any time during some.
func (b *bench) deltaMemory(d *rig.Driver, c *rig.Client, base, target string) error {
	before := statusKiB(d.Pid(), "VmRSS")
	var most atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Microsecond):
				most.Store(max(most.Load(), int64(statusKiB(d.Pid(), "VmRSS"))))
			}
		}
	}()
	var err error
	var told *rig.Blocks
	for i := 0; i < 5 && err == nil; i++ {
		told, err = c.Delta(context.Background(), base, target, 0, 0)
	}
	close(stop)
	<-stopped
	if err != nil {
		return err
	}
	b.add(row{What: "VmRSS of the driver during its first deltas, more than before", Unit: "MiB",
		Ours: max(0, float64(most.Load())-before) / 1024, Bar: "<= 8",
		Note: fmt.Sprintf("%d messages, %d ranges, %.1f MiB", told.Messages, len(told.Ranges), float64(told.Bytes())/float64(rig.MiB))})
	return nil
}

// firstDelta is the time to the first message, ms. The rest of the stream is read and not timed.
func firstDelta(c *rig.Client, base, target string) (float64, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	begin := time.Now()
	stream, err := c.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target})
	if err != nil {
		return 0, err
	}
	message, err := stream.Recv()
	took := float64(time.Since(begin).Nanoseconds()) / 1e6
	if err == nil && len(message.GetBlockMetadata()) == 0 {
		err = errors.New("the first message tells nothing")
	}
	for more := err; more == nil; {
		_, more = stream.Recv()
	}
	return took, err
}

// compareFirst reads the first bytes of two files from the disk, a MiB at a time, and compares them; ms.
func compareFirst(paths []string, count int) (float64, error) {
	var files [2]*os.File
	var pieces [2][]byte
	for i, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return 0, err
		}
		defer file.Close()
		if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return 0, err
		}
		files[i], pieces[i] = file, make([]byte, rig.MiB)
	}
	differ := 0
	begin := time.Now()
	for at := 0; at < count; at += len(pieces[0]) {
		for i, file := range files {
			if _, err := file.ReadAt(pieces[i], int64(at)); err != nil {
				return 0, err
			}
		}
		if !bytes.Equal(pieces[0], pieces[1]) {
			differ++
		}
	}
	took := float64(time.Since(begin).Nanoseconds()) / 1e6
	if differ == 0 {
		return 0, errors.New("no difference in the first GiB")
	}
	return took, nil
}
