// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const (
	volumeSize = 64 * rig.MiB
	inFlight   = 64
)

func (b *bench) createAll(d *rig.Driver, prefix string, count int) error {
	all := volumes(d, prefix, count, rig.MountCap("ext4"), volumeSize)
	return each(count, inFlight, func(i int) error { return all[i].Create() })
}

// memory: the resident memory of a driver that has just started and knows so many volumes.
func memory(b *bench) error {
	d, _, err := b.open(16 << 30)
	if err != nil {
		return err
	}
	bars := []struct {
		count int
		bar   string
	}{{0, "<= 4"}, {min(1000, b.known), "<= 6"}, {b.known, "<= 12"}}
	have := 0
	for _, step := range bars {
		if err := b.createAll(d, fmt.Sprintf("mem%05d", step.count), step.count-have); err != nil {
			return err
		}
		have = step.count
		if err := d.Term(); err != nil {
			return err
		}
		d.Disconnect()
		if err := startReady(d); err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
		family, fresh := familyPss(d.Pid()), statusKiB(d.Pid(), "VmRSS")/1024
		note := fmt.Sprintf("anonymous %.1f MiB; with its helper processes, shared pages counted once (PSS), %.1f MiB",
			statusKiB(d.Pid(), "RssAnon")/1024, family/1024)
		b.add(row{What: fmt.Sprintf("VmRSS, %d volumes known", step.count), Unit: "MiB", Ours: fresh,
			Bar: step.bar, Note: note})
	}
	return nil
}

// firstAnswer is the time from exec to the answer of GetPluginInfo over a unix socket.
func firstAnswer(socket string, launch func() error) (float64, error) {
	begin := time.Now()
	if err := launch(); err != nil {
		return 0, err
	}
	if err := awaitSocket("unix", socket); err != nil {
		return 0, err
	}
	c, err := rig.Dial(socket)
	if err != nil {
		return 0, err
	}
	defer c.Conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = c.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	return float64(time.Since(begin).Microseconds()) / 1000, err
}

// start: exec to the first answer.
func start(b *bench) error {
	d, _, err := b.open(16 << 30)
	if err != nil {
		return err
	}
	ours := func() (float64, error) {
		d.Disconnect()
		if err := d.Term(); err != nil {
			return 0, err
		}
		return firstAnswer(d.Socket, d.Launch)
	}
	if b.havePeer() {
		other := func() (float64, error) {
			var p *process
			took, err := firstAnswer(b.Path("peer.sock"), func() (err error) {
				p, _, err = b.peer()
				return err
			})
			if p != nil {
				p.end()
			}
			return took, err
		}
		r := row{What: "exec to first answer, empty pool", Unit: "ms", Beside: "csi-driver-host-path", Bar: "ratio <= 1"}
		if err := b.paired(r, ours, other); err != nil {
			return err
		}
	}
	if err := b.createAll(d, "start000", b.known); err != nil {
		return err
	}
	var times []float64
	for range b.rounds {
		took, err := ours()
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	b.add(row{What: fmt.Sprintf("exec to first answer, %d volumes", b.known), Unit: "ms", Ours: median(times),
		Low: quantile(times, 0), High: quantile(times, 1), Rounds: len(times), Bar: "<= 250"})
	ready := time.Now()
	if err := d.AwaitReady(); err != nil {
		return err
	}
	if names, _ := filepath.Glob(filepath.Join(d.Pools[0].Path, "volumes", "*")); len(names) != b.known {
		return fmt.Errorf("%d volumes instead of %d", len(names), b.known)
	}
	b.add(row{What: "from there to Probe saying ready", Unit: "ms", Ours: float64(time.Since(ready).Microseconds()) / 1000})
	return nil
}
