// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const creates = 200

// create: CreateVolume, acknowledged when durable, beside the shortest calls that are as durable:
// O_TMPFILE, ftruncate (or FICLONE of the template), fsetxattr, linkat, fsync of file and directory.
func create(b *bench) error {
	d, p, err := b.open(8 << 30)
	if err != nil {
		return err
	}
	dir, err := floorDir(p)
	if err != nil {
		return err
	}
	var serial atomic.Int64
	// With a client that adds as little as can be, and with grpc-go.
	lean := func(kind string) (float64, error) {
		times, err := timesOf(*clientPath, "create", "unix://"+d.Socket, creates, fmt.Sprintf("c%07d", serial.Add(1)), volumeSize, kind)
		return median(times), err
	}
	batch := func(kind string, many int) (float64, error) {
		all := volumes(d, fmt.Sprintf("c%07d", serial.Add(1)), creates, rig.CapFor(kind), volumeSize)
		start := time.Now()
		var middle float64
		var err error
		if many == 1 {
			middle, err = p50(creates, func(i int) error { return all[i].Create() })
		} else {
			err = each(creates, many, func(i int) error { return all[i].Create() })
			middle = float64(time.Since(start).Microseconds()) / creates
		}
		if err != nil {
			return 0, err
		}
		return middle, each(creates, 16, func(i int) error { return all[i].Delete() })
	}
	// The template has to be there, and its image is what the floor clones.
	first := d.Volume("first", rig.MountCap("ext4"), volumeSize)
	if err := first.Create(); err != nil {
		return err
	}
	template := p.Image(first.ID)

	for _, kind := range []string{"block", "ext4"} {
		floorArgs := []any{"create", dir, creates, volumeSize}
		what := "raw block"
		if kind == "ext4" {
			floorArgs, what = append(floorArgs, template), "ext4"
		}
		if err := countFlushes(b, d, p, kind, what, floorArgs); err != nil {
			return err
		}
		err := b.paired(row{What: "CreateVolume thin, " + what + ", one at a time, p50", Unit: "us",
			Beside: "bare calls", Bar: "ratio <= 1.5"},
			func() (float64, error) { return lean(kind) },
			func() (float64, error) { return floorMedian(floorArgs...) })
		if err != nil {
			return err
		}
		err = b.paired(row{What: "CreateVolume thin, " + what + ", one at a time, p50, by grpc-go", Unit: "us", Beside: "bare calls"},
			func() (float64, error) { return batch(kind, 1) },
			func() (float64, error) { return floorMedian(floorArgs...) })
		if err != nil {
			return err
		}
		err = b.paired(row{What: "CreateVolume thin, " + what + ", rate with 64 in flight", Unit: "1/s",
			Beside: "one at a time", Bar: "ratio >= 5"},
			func() (float64, error) { us, err := batch(kind, 64); return 1e6 / us, err },
			func() (float64, error) { us, err := batch(kind, 1); return 1e6 / us, err })
		if err != nil {
			return err
		}
	}
	return callsAtPace(b, d)
}

// callsAtPace is what any call takes that comes as seldom as creates one after the other do: client, socket and
// driver have gone to sleep each time, and have to be woken.
func callsAtPace(b *bench, d *rig.Driver) error {
	c, err := d.Client()
	if err != nil {
		return err
	}
	const pause = 400 * time.Microsecond
	lean, err := timesOf(*clientPath, "info", "unix://"+d.Socket, 5*creates, pause.Microseconds())
	if err != nil {
		return err
	}
	var times []float64
	for range 5 * creates {
		time.Sleep(pause)
		start := time.Now()
		if _, err := c.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{}); err != nil {
			return err
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/1000)
	}
	const what = "GetPluginInfo p50, each 400 us after the answer before: of a create, what is no create's"
	b.add(row{What: what, Unit: "us", Ours: median(lean)})
	b.add(row{What: what + ", by grpc-go", Unit: "us", Ours: median(times)})
	return nil
}

// countFlushes asks the block layer what one create costs the pool's disk.
func countFlushes(b *bench, d *rig.Driver, p *rig.Pool, kind, what string, floorArgs []any) error {
	count := func(work func() error) (diskCounts, error) {
		time.Sleep(200 * time.Millisecond) // trash of before
		before, err := diskStat(p.Path)
		if err == nil {
			err = work()
		}
		after, err2 := diskStat(p.Path)
		if err == nil {
			err = err2
		}
		return diskCounts{(after.flushes - before.flushes) / creates, (after.writes - before.writes) / creates}, err
	}
	all := volumes(d, "flush"+kind, creates, rig.CapFor(kind), volumeSize)
	ours, err := count(func() error {
		return each(creates, 1, func(i int) error { return all[i].Create() })
	})
	if err != nil {
		return err
	}
	if err := each(creates, 16, func(i int) error { return all[i].Delete() }); err != nil {
		return err
	}
	bare, err := count(func() error { _, err := floorRun(floorArgs...); return err })
	if err != nil {
		return err
	}
	b.add(row{What: "CreateVolume thin, " + what + ": device flushes", Unit: "each", Ours: ours.flushes,
		Other: bare.flushes, Beside: "bare calls", Ratio: ours.flushes / bare.flushes,
		Note: "a log write on a disk without FUA is a flush, the write, a flush"})
	b.add(row{What: "CreateVolume thin, " + what + ": log flushes (device writes)", Unit: "each", Ours: ours.writes,
		Other: bare.writes, Beside: "bare calls", Ratio: ours.writes / bare.writes, Bar: "<= 2"})
	return nil
}
