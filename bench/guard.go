// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"ringvol.dev/tests/rig"
)

// guard: a raw block volume's stage, publish, unpublish and unstage with a device-mapper device over its loop device,
// beside a driver that publishes the loop node itself (--block-on-loop), in turns.
func guard(b *bench) error {
	// The kernel takes a guard apart behind the last call's back, which is not to be part of the next cycle.
	const count, pause = 20, 200 * time.Millisecond
	if !rig.HasDeviceMapper() {
		fmt.Fprintln(os.Stderr, "guard: skipped, this kernel has no device mapper (scripts/vm/bench.sh dm has a guest with one)")
		return nil
	}
	ours, _, err := b.open(2 << 30)
	if err != nil {
		return err
	}
	p, err := b.NewPool("bare", "xfs", 2<<30)
	if err != nil {
		return err
	}
	if err := os.Mkdir(b.Path("csi-bare"), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	bare := b.NewDriver(p)
	bare.Socket, bare.Kubelet, bare.Log = b.Path("csi-bare", "csi.sock"), b.Path("kubelet-bare"), b.Path("bare.log")
	bare.PoolOptions = ",init,overcommit=1000"
	bare.Args = []string{"--log-level", "warn", "--block-on-loop"}
	if err := startReady(bare); err != nil {
		return err
	}
	calls := []struct {
		name string
		run  func(v *rig.Volume) error
	}{
		{"NodeStageVolume", (*rig.Volume).Stage}, {"NodePublishVolume", (*rig.Volume).Publish},
		{"NodeUnpublishVolume", (*rig.Volume).Unpublish}, {"NodeUnstageVolume", (*rig.Volume).Unstage},
	}
	// The medians of each call, by driver: 0 ours, 1 bare.
	var parts [2][4][]float64
	cycle := func(which int, d *rig.Driver) (func() (float64, error), error) {
		v := d.Volume(fmt.Sprintf("guarded-%d", which), rig.BlockCap(), 64*rig.MiB)
		v.Params = map[string]string{"pool": d.Pools[0].Name}
		for _, once := range []func() error{v.Create, v.Up, v.Down} { // a first time for all
			if err := once(); err != nil {
				return nil, err
			}
		}
		return func() (float64, error) {
			var each [4][]float64
			var all []float64
			for range count {
				whole := time.Now()
				for k, call := range calls {
					begin := time.Now()
					if err := call.run(v); err != nil {
						return 0, err
					}
					each[k] = append(each[k], float64(time.Since(begin).Nanoseconds())/1e3)
				}
				all = append(all, float64(time.Since(whole).Nanoseconds())/1e3)
				time.Sleep(pause)
			}
			for k := range each {
				parts[which][k] = append(parts[which][k], median(each[k]))
			}
			return median(all), nil
		}, nil
	}
	with, err := cycle(0, ours)
	if err != nil {
		return err
	}
	without, err := cycle(1, bare)
	if err != nil {
		return err
	}
	for _, which := range []string{"the node's only one", "beside another"} {
		parts = [2][4][]float64{}
		err = b.paired(row{What: "raw block volume, " + which + ": stage, publish, unpublish, unstage, p50", Unit: "us",
			Beside: "the loop node itself (--block-on-loop)", Bar: "ratio <= 1.5"}, with, without)
		if err != nil {
			return err
		}
		for k, call := range calls {
			b.add(row{What: "of it " + call.name + ", " + which, Unit: "us", Ours: median(parts[0][k]), Other: median(parts[1][k]),
				Ratio: median(parts[0][k]) / median(parts[1][k]), Beside: "the same on the loop node"})
		}
		for _, d := range []*rig.Driver{ours, bare} {
			other := d.Volume("other", rig.BlockCap(), 64*rig.MiB)
			other.Params = map[string]string{"pool": d.Pools[0].Name}
			if err := other.Up(); err != nil {
				return err
			}
			defer other.Gone()
		}
	}
	return nil
}
