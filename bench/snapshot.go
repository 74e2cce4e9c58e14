// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// snapshot: CreateSnapshot and a clone of a mounted volume on a pool that shares extents.
func snapshot(b *bench) error {
	const size = 1 << 30
	d, p, err := b.open(16 << 30)
	if err != nil {
		return err
	}
	v := d.Volume("source", rig.MountCap("ext4"), size)
	if err := v.Up(); err != nil {
		return err
	}
	if _, err := rig.Fill(v.Target, 128*rig.MiB, 1); err != nil {
		return err
	}
	dir, err := floorDir(p)
	if err != nil {
		return err
	}
	image := p.Image(v.ID)
	if err := shots(b, d, v, image, dir, "written in one go", 20, []int{0, 4096}); err != nil {
		return err
	}
	// A database's pattern: a quarter of the volume rewritten in 4 KiB pieces at random.
	if _, err := rig.Run("fio", "--name=random", "--filename="+filepath.Join(v.Target, "random"), "--size=768m",
		"--io_size=256m", "--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=io_uring", "--iodepth=16",
		"--randseed=1", "--fallocate=none"); err != nil {
		return err
	}
	extents, err := floorRun("extents", image)
	if err != nil {
		return err
	}
	b.add(row{What: "extents a GiB of image after 256 MiB of random 4 KiB writes (fio)", Unit: "", Ours: extents[0] * 1000,
		Note: "a reflink costs time by the extent; the image has an extent size hint"})
	return shots(b, d, v, image, dir, "after fio", 2, []int{0})
}

func shots(b *bench, d *rig.Driver, v *rig.Volume, image, dir, state string, count int, dirtyKiB []int) error {
	serial := time.Now().UnixNano()
	snap := func(kib int) ([]float64, error) {
		var times []float64
		for i := range count {
			if err := dirty(v.Target, kib, i); err != nil {
				return nil, err
			}
			serial++
			begin := time.Now()
			s, err := v.Snapshot(fmt.Sprintf("snapshot-%d", serial))
			if err != nil {
				return nil, err
			}
			times = append(times, float64(time.Since(begin).Nanoseconds())/1000)
			if err := d.DeleteSnapshot(s.GetSnapshotId()); err != nil {
				return nil, err
			}
		}
		return times, nil
	}
	clone := func(kib int) ([]float64, error) {
		var times []float64
		for i := range count {
			if err := dirty(v.Target, kib, i); err != nil {
				return nil, err
			}
			serial++
			c := d.Volume(fmt.Sprintf("clone-%d", serial), v.Cap, v.Size)
			c.Source = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
				Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.ID}}}
			begin := time.Now()
			if err := c.Create(); err != nil {
				return nil, err
			}
			times = append(times, float64(time.Since(begin).Nanoseconds())/1000)
			if err := c.Delete(); err != nil {
				return nil, err
			}
		}
		return times, nil
	}
	middle := func(f func(int) ([]float64, error), kib int) func() (float64, error) {
		return func() (float64, error) { t, err := f(kib); return median(t), err }
	}
	for _, kib := range dirtyKiB {
		floor := func(kind string) func() (float64, error) {
			return func() (float64, error) { return floorMedian(kind, image, dir, count, v.Target, kib) }
		}
		what := fmt.Sprintf("%s, %d MiB dirty", state, kib/1024)
		if err := b.paired(row{What: "CreateSnapshot, " + what, Unit: "us", Beside: "syncfs + FICLONE", Bar: "ratio <= 2"},
			middle(snap, kib), floor("snapshot")); err != nil {
			return err
		}
		if err := b.paired(row{What: "clone, " + what, Unit: "us", Beside: "syncfs + FICLONE", Bar: "ratio <= 2"},
			middle(clone, kib), floor("snapshot")); err != nil {
			return err
		}
		if err := b.paired(row{What: "CreateSnapshot, " + what + ", the floor as durable", Unit: "us",
			Beside: "syncfs + FICLONE + record, name, fsyncs"}, middle(snap, kib), floor("durable")); err != nil {
			return err
		}
		if err := b.paired(row{What: "clone, " + what + ", the floor as durable", Unit: "us",
			Beside: "syncfs + FICLONE + record, name, fsyncs"}, middle(clone, kib), floor("durable")); err != nil {
			return err
		}
	}
	return nil
}

func dirty(dir string, kib, round int) error {
	if kib == 0 {
		return nil
	}
	data := make([]byte, kib<<10)
	for i := range data {
		data[i] = byte(round + 1)
	}
	file, err := os.OpenFile(filepath.Join(dir, "bench-dirty"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(data)
	return err
}
