// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// copying: what a pool without reflink does for a clone, beside fio on the same file system. The pool's
// disk is a loop device with direct I/O, so that no second page cache flatters either side. Rates are of
// an image of 2 GiB; RINGVOL_BENCH_COPY_GIB is the size of the copy beside which calls are answered (2; the
// disk needs twice that).
func copying(b *bench) error {
	const size = int64(2 << 30)
	long := size
	if text := os.Getenv("RINGVOL_BENCH_COPY_GIB"); text != "" {
		gib, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		long = int64(gib) << 30
	}
	p, err := b.NewPool("default", "ext4", 4*size+3*long)
	if err != nil {
		return err
	}
	if err := p.Unmount(); err != nil {
		return err
	}
	p.AttachFlags = []string{"--direct-io=on"}
	if err := p.Mount(); err != nil {
		return err
	}
	d := b.NewDriver(p)
	d.PoolOptions = ",init,overcommit=1000"
	d.Args = []string{"--log-level", "warn"}
	if err := startReady(d); err != nil {
		return err
	}
	full, err := filled(d, p, "full", size, 1)
	if err != nil {
		return err
	}
	sparse, err := filled(d, p, "sparse", size, 10)
	if err != nil {
		return err
	}
	// Bytes of the image in a second, made durable.
	clone := func(v *rig.Volume) func() (float64, error) {
		return func() (float64, error) {
			took, err := cloneOnce(d, v)
			return float64(size/rig.MiB) / took.Seconds(), err
		}
	}
	if err := b.paired(row{What: "clone by copying, image with data", Unit: "MiB/s", Beside: "fio, sequential direct write",
		Note: "a copy reads as much as it writes"}, clone(full), fioRate(p, size, "write")); err != nil {
		return err
	}
	moved := func() (float64, error) {
		rate, err := clone(full)()
		return 2 * rate, err
	}
	// As many bytes on both sides: a virtual disk lets a short run go faster than a long one.
	if err := b.paired(row{What: "the same, bytes read and written", Unit: "MiB/s", Beside: "fio, sequential direct write of as many",
		Bar: "ratio >= 0.9"}, moved, fioRate(p, 2*size, "write")); err != nil {
		return err
	}
	if err := b.paired(row{What: "the same", Unit: "MiB/s", Beside: "fio, reading one file and writing another"},
		clone(full), fioRate(p, size, "both")); err != nil {
		return err
	}
	cpu, err := b.copyCPU(d, full)
	if err != nil {
		return err
	}
	b.add(row{What: "CPU of the driver for a GiB copied, kernel threads of its ring included", Unit: "ms", Ours: cpu})
	timed := func(v *rig.Volume) func() (float64, error) {
		return func() (float64, error) {
			took, err := cloneOnce(d, v)
			return float64(took.Microseconds()) / 1000, err
		}
	}
	if err := b.paired(row{What: "clone by copying, nine tenths holes", Unit: "ms", Beside: "without holes",
		Bar: "ratio <= 0.12", Note: "a tenth of the data, in pieces of 1 MiB"}, timed(sparse), timed(full)); err != nil {
		return err
	}
	if long != size {
		if err := full.Delete(); err != nil {
			return err
		}
		if full, err = filled(d, p, "long", long, 1); err != nil {
			return err
		}
	}
	return b.answersDuring(d, full)
}

// filled makes a raw block volume whose image holds random data in every nth MiB.
func filled(d *rig.Driver, p *rig.Pool, name string, size int64, nth int) (*rig.Volume, error) {
	v := d.Volume(name, rig.BlockCap(), size)
	if err := v.Create(); err != nil {
		return nil, err
	}
	_, err := rig.Run("fio", "--name=fill", "--filename="+p.Image(v.ID), "--rw=write:"+strconv.Itoa(nth-1)+"m", "--bs=1m",
		"--filesize="+strconv.FormatInt(size, 10), "--io_size="+strconv.FormatInt(size/int64(nth), 10), "--direct=1",
		"--ioengine=io_uring", "--iodepth=8", "--refill_buffers", "--end_fsync=1", "--fallocate=none")
	return v, err
}

func cloneOnce(d *rig.Driver, v *rig.Volume) (time.Duration, error) {
	c := d.Volume(fmt.Sprintf("clone-%d", time.Now().UnixNano()), v.Cap, v.Size)
	c.Source = rig.FromVolume(v.ID)
	begin := time.Now()
	if err := c.Create(); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	return took, c.Delete()
}

// fioRate is fio's bytes in a second, MiB, made durable: writing a fresh file, or, for "both", writing one
// while another is read, of which the slower counts.
func fioRate(p *rig.Pool, size int64, what string) func() (float64, error) {
	return func() (float64, error) {
		fresh := filepath.Join(p.Path, "fio-fresh")
		defer os.Remove(fresh)
		args := []string{"--output-format=json", "--bs=1m", "--direct=1", "--ioengine=io_uring", "--iodepth=8",
			"--size=" + strconv.FormatInt(size, 10), "--fallocate=none", "--refill_buffers"}
		if what == "both" {
			data := filepath.Join(p.Path, "fio-data")
			if _, err := os.Stat(data); err != nil {
				if _, err := rig.Run("fio", append(args, "--name=lay", "--filename="+data, "--rw=write", "--end_fsync=1")...); err != nil {
					return 0, err
				}
			}
			args = append(args, "--name=read", "--filename="+data, "--rw=read")
		}
		args = append(args, "--name=write", "--filename="+fresh, "--rw=write", "--end_fsync=1")
		out, err := rig.Run("fio", args...)
		if err != nil {
			return 0, err
		}
		var result struct {
			Jobs []struct {
				Runtime int64 `json:"job_runtime"` // ms
			} `json:"jobs"`
		}
		if err := json.Unmarshal([]byte(out), &result); err != nil {
			return 0, fmt.Errorf("fio: %w", err)
		}
		var longest int64
		for _, job := range result.Jobs {
			longest = max(longest, job.Runtime)
		}
		if longest == 0 {
			return 0, errors.New("fio says nothing of its time")
		}
		return float64(size/rig.MiB) / (float64(longest) / 1000), nil
	}
}

// copyCPU is the driver's time on a CPU in ms for each GiB of a clone, the median of some.
func (b *bench) copyCPU(d *rig.Driver, v *rig.Volume) (float64, error) {
	var each []float64
	for range b.rounds {
		before, err := cpuTime(d.Pid())
		if err != nil {
			return 0, err
		}
		if _, err := cloneOnce(d, v); err != nil {
			return 0, err
		}
		after, err := cpuTime(d.Pid())
		if err != nil {
			return 0, err
		}
		each = append(each, float64((after-before).Microseconds())/1000*float64(rig.MiB<<10)/float64(v.Size))
	}
	return median(each), nil
}

// cpuTime is utime + stime of /proc/PID/stat, in ticks of 10 ms (USER_HZ is 100 on every Linux).
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

// answersDuring: GetPluginInfo, one after the other, while a long copy runs and while none does.
func (b *bench) answersDuring(d *rig.Driver, v *rig.Volume) error {
	c, err := d.Client()
	if err != nil {
		return err
	}
	var calls []float64
	ask := func(stop <-chan error) ([]float64, error) {
		calls = calls[:0]
		for {
			select {
			case err := <-stop:
				return calls, err
			default:
			}
			begin := time.Now()
			if _, err := c.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{}); err != nil {
				return nil, err
			}
			calls = append(calls, float64(time.Since(begin).Nanoseconds())/1000)
		}
	}
	busy := func() (float64, error) {
		stop := make(chan error, 1)
		go func() {
			_, err := cloneOnce(d, v)
			stop <- err
		}()
		times, err := ask(stop)
		return quantile(times, 0.99), err
	}
	idle := func() (float64, error) {
		stop := make(chan error, 1)
		time.AfterFunc(2*time.Second, func() { stop <- nil })
		times, err := ask(stop)
		return quantile(times, 0.99), err
	}
	return b.paired(row{What: fmt.Sprintf("GetPluginInfo p99 during a copy of %d GiB", v.Size>>30), Unit: "us", Beside: "idle", Bar: "ratio <= 2"}, busy, idle)
}
