// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// stats: what a node pays for asking after its volumes. A thousand mounted volumes and nobody asking, then
// as kubelet asks: NodeGetVolumeStats of each once a minute, ten at a time. The log is that of a real node.
func stats(b *bench) error {
	const count, together = 1000, 10
	const period = time.Minute * together / count
	d, p, err := b.open(32<<30, "--log-level", "info")
	if err != nil {
		return err
	}
	if err := b.noticing(d, p); err != nil {
		return err
	}
	all := volumes(d, "stats000", count, rig.MountCap("ext4"), volumeSize)
	if err := makePaths(all); err != nil {
		return err
	}
	if err := each(count, 8, func(i int) error { return all[i].Up() }); err != nil {
		return err
	}
	time.Sleep(15 * time.Second) // helpers that were too many have gone

	idle := busyMeanwhile(d.Pid(), func() { time.Sleep(time.Minute) })
	// As kubelet does; the share of calls/count of a minute.
	ask := func(calls int, one func(i int) error) (times []float64, err error) {
		var lock sync.Mutex
		tick := time.NewTicker(period)
		defer tick.Stop()
		for from := 0; from < calls; from += together {
			<-tick.C
			var wait sync.WaitGroup
			for i := from; i < from+together; i++ {
				wait.Go(func() {
					start := time.Now()
					failed := one(i)
					took := float64(time.Since(start).Nanoseconds()) / 1000
					lock.Lock()
					defer lock.Unlock()
					times, err = append(times, took), errors.Join(err, failed)
				})
			}
			wait.Wait()
		}
		return times, err
	}
	var times []float64
	asking := busyMeanwhile(d.Pid(), func() {
		times, err = ask(count, func(i int) error { _, err := all[i].Stats(); return err })
	})
	if err != nil {
		return err
	}
	c, err := d.Client()
	if err != nil {
		return err
	}
	nothing, err := ask(count/2, func(int) error {
		_, err := c.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{})
		return err
	})
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d mounted volumes, each asked once a minute, %d at a time", count, together)
	b.add(row{What: "NodeGetVolumeStats p99, " + what, Unit: "us", Ours: quantile(times, 0.99), Bar: "<= 1000"})
	b.add(row{What: "NodeGetVolumeStats p50, " + what, Unit: "us", Ours: median(times)})
	for _, q := range []float64{0.99, 0.5} {
		b.add(row{What: fmt.Sprintf("GetPluginInfo p%.0f, the same way: what client, socket and a machine at rest take of it", 100*q), Unit: "us",
			Ours: quantile(nothing, q)})
	}
	b.add(row{What: "CPU of driver and helpers meanwhile, percent of one core", Unit: "%", Ours: asking, Bar: "<= 0.1"})
	b.add(row{What: "of it the same with nobody asking: the watch", Unit: "%", Ours: idle})
	return each(count, 8, func(i int) error { return down(all[i], all[i].Down) })
}

// noticing measures how long an I/O error takes to be known: a read behind the end of an image that was
// cut short, until the volume is abnormal.
func (b *bench) noticing(d *rig.Driver, p *rig.Pool) error {
	c, err := d.Client()
	if err != nil {
		return err
	}
	v := d.Volume("pvc-noticed", rig.BlockCap(), volumeSize)
	if err := v.Up(); err != nil {
		return err
	}
	fd, err := unix.Open(v.Target, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	block, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(block)
	become := func(abnormal bool) error {
		return rig.Eventually(time.Minute, func() error {
			h, err := c.ControllerGetVolumeHealth(context.Background(), v.ID)
			if err == nil && h.Has("IOErrors") != abnormal {
				err = fmt.Errorf("%v", h)
			}
			return err
		})
	}
	time.Sleep(time.Second) // the probes are loaded after the driver serves
	var known, over []float64
	for range 2 {
		if err := os.Truncate(p.Image(v.ID), v.Got/2); err != nil {
			return err
		}
		start := time.Now()
		if _, err := unix.Pread(fd, block, v.Got-4096); err != unix.EIO {
			return fmt.Errorf("reading behind the end of the image: %v", err)
		}
		if err := become(true); err != nil {
			return err
		}
		known = append(known, float64(time.Since(start).Milliseconds()))
		if err := os.Truncate(p.Image(v.ID), v.Got); err != nil {
			return err
		}
		start = time.Now()
		if err := become(false); err != nil {
			return err
		}
		over = append(over, float64(time.Since(start).Milliseconds()))
	}
	b.add(row{What: "an I/O error until the volume is abnormal, the slower of two", Unit: "ms", Ours: max(known[0], known[1]),
		Bar: "<= 1000"})
	b.add(row{What: "its end until the volume is well again, nobody using it", Unit: "ms", Ours: over[0],
		Note: fmt.Sprintf("after a relapse %.0f", over[1])})
	unix.Close(fd)
	return down(v, v.Down)
}

// busyMeanwhile is the CPU time a driver and its helpers use while work runs, in percent of one core. All
// threads are counted, those that come and go only as far as they still are there.
func busyMeanwhile(pid int, work func()) float64 {
	start, before := time.Now(), runTime(pid)
	work()
	return 100 * float64(runTime(pid)-before) / float64(time.Since(start).Nanoseconds())
}

// runTime is the nanoseconds that a process's threads and its children have been running.
func runTime(pid int) (ns int64) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task + "/schedstat")
		if fields := strings.Fields(string(text)); len(fields) > 0 {
			n, _ := strconv.ParseInt(fields[0], 10, 64)
			ns += n
		}
		children, _ := os.ReadFile(task + "/children")
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				ns += runTime(n)
			}
		}
	}
	return ns
}
