// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"ringvol.dev/tests/rig"
)

const copySize = int64(1 << 30)

// copyWorld is two nodes, and a volume full of data on the first.
func (b *bench) copyWorld() (*rig.Controller, []*rig.Node, *rig.Volume, error) {
	c, ctl, err := b.newCluster()
	if err != nil {
		return nil, nil, nil, err
	}
	var nodes []*rig.Node
	for _, name := range []string{"node-a", "node-b"} {
		n, err := diskNode(c, name, 24<<30)
		if err != nil {
			return nil, nil, nil, err
		}
		nodes = append(nodes, n)
	}
	if err := ctl.AwaitJoined("node-a", "node-b"); err != nil {
		return nil, nil, nil, err
	}
	full, err := filled(nodes[0].Driver, nodes[0].Pools[0], "full", copySize, 1)
	return ctl, nodes, full, err
}

// copyTo makes a clone on that node, and deletes it.
func copyTo(ctl *rig.Controller, v *rig.Volume, to *rig.Node, count *int) (time.Duration, error) {
	*count++
	clone := ctl.Volume(to, fmt.Sprintf("pvc-copy-%d", *count), v.Cap, v.Size)
	clone.Source = rig.FromVolume(v.ID)
	begin := time.Now()
	if err := clone.Create(); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	return took, clone.Delete()
}

// clusterBeside: what kubelet calls on either node while a copy goes from one to the other.
func clusterBeside(b *bench) error {
	ctl, nodes, full, err := b.copyWorld()
	if err != nil {
		return err
	}
	copies := 0
	for i, n := range nodes {
		if err := b.kubeletDuring(ctl, n, []string{"the source", "the destination"}[i], func() error {
			_, err := copyTo(ctl, full, nodes[1], &copies)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// clusterCopy: clones on another node, over TLS on the loopback, beside fio reading one file and writing another.
func clusterCopy(b *bench) error {
	const size = copySize
	ctl, nodes, full, err := b.copyWorld()
	if err != nil {
		return err
	}
	sparse, err := filled(nodes[0].Driver, nodes[0].Pools[0], "sparse", 10*size, 10)
	if err != nil {
		return err
	}
	copies := 0
	once := func(v *rig.Volume, to *rig.Node) (time.Duration, error) { return copyTo(ctl, v, to, &copies) }
	rate := func() (float64, error) {
		took, err := once(full, nodes[1])
		return float64(size/rig.MiB) / took.Seconds(), err
	}
	if err := b.paired(row{What: "copy to another node, 1 GiB of data, over TLS", Unit: "MiB/s", Beside: "fio, reading one file and writing another",
		Bar: "ratio >= 0.8"}, rate, fioRate(nodes[1].Pools[0], size, "both")); err != nil {
		return err
	}
	here := func() (float64, error) {
		took, err := once(full, nodes[0])
		return float64(took.Microseconds()) / 1000, err
	}
	timed := func(v *rig.Volume) func() (float64, error) {
		return func() (float64, error) {
			took, err := once(v, nodes[1])
			return float64(took.Microseconds()) / 1000, err
		}
	}
	if err := b.paired(row{What: "copy to another node, 10 GiB with 1 GiB of data", Unit: "ms", Beside: "1 GiB with 1 GiB of data",
		Bar: "ratio <= 1.2"}, timed(sparse), timed(full)); err != nil {
		return err
	}
	return b.paired(row{What: "the same", Unit: "ms", Beside: "a clone on the same node, by reflink"}, timed(full), here)
}

// kubeletDuring: what kubelet calls on a node while a copy runs there, and while none does.
func (b *bench) kubeletDuring(ctl *rig.Controller, n *rig.Node, where string, copyOnce func() error) error {
	v := ctl.Volume(n, "pvc-beside-"+n.Node, rig.MountCap("ext4"), volumeSize)
	if err := v.Up(); err != nil {
		return err
	}
	other := v.Target + "-2"
	for _, one := range []struct {
		name string
		call func() (float64, error)
	}{
		{"NodePublishVolume", func() (float64, error) {
			begin := time.Now()
			if err := v.PublishAt(other, false); err != nil {
				return 0, err
			}
			took := float64(time.Since(begin).Nanoseconds()) / 1000
			return took, v.UnpublishAt(other)
		}},
		{"NodeGetVolumeStats", func() (float64, error) {
			begin := time.Now()
			_, err := v.Stats()
			return float64(time.Since(begin).Nanoseconds()) / 1000, err
		}},
	} {
		// A call each 2 ms, as kubelet is no flood.
		until := func(stop <-chan error) (float64, error) {
			var times []float64
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case err := <-stop:
					return quantile(times, 0.99), err
				case <-tick.C:
				}
				took, err := one.call()
				if err != nil {
					return 0, err
				}
				times = append(times, took)
			}
		}
		during := func(work func() error) func() (float64, error) {
			return func() (float64, error) {
				stop := make(chan error, 1)
				go func() { stop <- work() }()
				return until(stop)
			}
		}
		idle := func() (float64, error) {
			stop := make(chan error, 1)
			time.AfterFunc(2*time.Second, func() { stop <- nil })
			return until(stop)
		}
		if err := b.paired(row{What: one.name + " p99 on " + where + " of a copy", Unit: "us", Beside: "no copy", Bar: "ratio <= 2"}, during(copyOnce), idle); err != nil {
			return err
		}
		// What the machine takes of it: the same bytes, without us.
		fio := fioRate(n.Pools[0], copySize, "both")
		files := func() error { _, err := fio(); return err }
		if err := b.paired(row{What: one.name + " p99 on " + where + ", while fio reads one file and writes another there", Unit: "us", Beside: "no fio"}, during(files), idle); err != nil {
			return err
		}
	}
	return down(v, v.Down)
}
