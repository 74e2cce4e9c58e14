// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const (
	hostileVolumes = 1000
	hostileConns   = 60
	hostileLists   = 4000
)

// hostile: clients that ask for much and read nothing. What stays resident of it, and what others wait.
func hostile(b *bench) error {
	d, _, err := b.open(16 << 30)
	if err != nil {
		return err
	}
	if err := b.createAll(d, "hostile0", hostileVolumes); err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	before := statusKiB(d.Pid(), "VmRSS")
	leave, err := rig.Hoard(d.Socket, hostileConns)
	during := statusKiB(d.Pid(), "VmRSS")
	leave()
	if err != nil {
		return err
	}
	time.Sleep(3 * time.Second)
	after := statusKiB(d.Pid(), "VmRSS")
	b.add(row{What: fmt.Sprintf("VmRSS 3 s after %d hostile connections, more than before", hostileConns), Unit: "MiB",
		Ours: (after - before) / 1024, Bar: "<= 8",
		Note: fmt.Sprintf("before %.1f MiB, with all of them open %.1f MiB", before/1024, during/1024)})
	return b.bystander(d)
}

// probes is the p99 of GetPluginInfo, one after the other, in microseconds.
func probeP99(d *rig.Driver, count int) (float64, float64, error) {
	c, err := rig.Dial(d.Socket)
	if err != nil {
		return 0, 0, err
	}
	defer c.Conn.Close()
	times, err := micros(count, func(int) error {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		_, err := c.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		return err
	})
	return quantile(times, 0.99), quantile(times, 1), err
}

// bystander: what another client waits while 4,000 lists are asked for with windows of zero.
func (b *bench) bystander(d *rig.Driver) error {
	const probes, conns = 500, hostileLists / 125
	var worst float64
	idle := func() (float64, error) {
		p99, _, err := probeP99(d, probes)
		return p99, err
	}
	beside := func() (float64, error) {
		var all []*rig.Hostile
		defer func() {
			for _, h := range all {
				h.Close()
			}
		}()
		asked := make(chan error, 1)
		go func() {
			for range conns {
				h, err := rig.DialHostile(d.Socket)
				if err != nil {
					asked <- err
					return
				}
				all = append(all, h)
				for range hostileLists / conns {
					if h.Request("/csi.v1.Controller/ListVolumes", nil, true) != nil {
						break
					}
				}
			}
			asked <- nil
		}()
		p99, most, err := probeP99(d, probes)
		worst = max(worst, most)
		return p99, errors.Join(err, <-asked)
	}
	if err := b.paired(row{What: fmt.Sprintf("GetPluginInfo p99 while %d lists of %d volumes are asked for and not read",
		hostileLists, hostileVolumes), Unit: "us", Beside: "undisturbed"}, beside, idle); err != nil {
		return err
	}
	b.add(row{What: "the longest of these", Unit: "us", Ours: worst})
	return nil
}
