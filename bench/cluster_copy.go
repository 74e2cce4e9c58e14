// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
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

// clusterBeside: what kubelet calls on either node while a copy goes from one to the other. The same of a call that is answered
// from memory, by both and by a process that has nothing to do with the copy, tells what the machine and the client take of it.
func clusterBeside(b *bench) error {
	ctl, nodes, full, err := b.copyWorld()
	if err != nil {
		return err
	}
	copies := 0
	copyOnce := func() error {
		_, err := copyTo(ctl, full, nodes[1], &copies)
		return err
	}
	where := []string{"the source", "the destination"}
	for i, n := range nodes {
		if err := b.kubeletDuring(ctl, n, where[i], copyOnce); err != nil {
			return err
		}
	}
	idler := b.NewDriver()
	if err := idler.Start(); err != nil {
		return err
	}
	for i, d := range []*rig.Driver{nodes[0].Driver, nodes[1].Driver, idler} {
		what := "GetPluginInfo p99 on " + append(where, "a process that copies nothing, beside it")[i]
		if i < len(where) {
			what += " of a copy"
		}
		if err := b.duringCopy(row{What: what}, pluginInfo(d), copyOnce); err != nil {
			return err
		}
	}
	return nil
}

func pluginInfo(d *rig.Driver) func() (float64, error) {
	return func() (float64, error) {
		begin := time.Now()
		c, err := d.Client()
		if err != nil {
			return 0, err
		}
		_, err = c.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{})
		return float64(time.Since(begin).Nanoseconds()) / 1000, err
	}
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

// duringCopy: the 99th percentile of a call while a copy runs, and while none does.
func (b *bench) duringCopy(r row, call func() (float64, error), copyOnce func() error) error {
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
			took, err := call()
			if err != nil {
				return 0, err
			}
			times = append(times, took)
		}
	}
	busy := func() (float64, error) {
		stop := make(chan error, 1)
		go func() { stop <- copyOnce() }()
		return until(stop)
	}
	idle := func() (float64, error) {
		stop := make(chan error, 1)
		time.AfterFunc(2*time.Second, func() { stop <- nil })
		return until(stop)
	}
	r.Unit, r.Beside = "us", "no copy"
	return b.paired(r, busy, idle)
}

// kubeletDuring: what kubelet calls on a node, likewise.
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
		r := row{What: one.name + " p99 on " + where + " of a copy", Bar: "ratio <= 2"}
		if err := b.duringCopy(r, one.call, copyOnce); err != nil {
			return err
		}
	}
	return down(v, v.Down)
}
