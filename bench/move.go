// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

const (
	moveData  = 1 << 30
	moveRange = 2 << 20 // that its writer writes to
)

// moving: a volume with 1 GiB of data moves to the node that uses it. What its writer waits for, beside what has to be done by whoever
// does it: a device is suspended, what the writer writes to is copied, the device is put over the copy, and goes on.
func moving(b *bench) error {
	if why := rig.HasNVMe(); why != "" {
		fmt.Fprintf(os.Stderr, "%s: skipped, %s (scripts/vm/bench.sh raw has a guest with it)\n", b.group, why)
		return nil
	}
	m := &movingBed{bench: b}
	if err := m.open(); err != nil {
		return err
	}
	const what = "a volume moves to the node that uses it, 1 GiB of data: "
	r := row{What: what + "the slowest write", Unit: "ms", Beside: "dmsetup suspend, a copy of 2 MiB, load, resume", Bar: "ratio <= 3"}
	if err := b.paired(r, m.pause, m.bare); err != nil {
		return err
	}
	b.add(row{What: what + "all of it", Unit: "s", Ours: median(m.took), Note: fmt.Sprintf("%.0f writes of 4 KiB a second meanwhile", median(m.rate))})
	return nil
}

type movingBed struct {
	*bench
	ctl         *rig.Controller
	owner, user *rig.Node
	serial      int
	took, rate  []float64
}

func (m *movingBed) open() error {
	c, ctl, err := m.newCluster("--attach")
	if err != nil {
		return err
	}
	m.ctl = ctl
	var nodes []*rig.Node
	for _, name := range []string{"node-a", "node-b"} {
		address, err := rig.FreeAddress()
		if err != nil {
			return err
		}
		n, err := diskNode(c, name, 3<<30, "--attach", "--export-address", address)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	m.owner, m.user = nodes[0], nodes[1]
	return m.ctl.AwaitJoined("node-a", "node-b")
}

// slowWriter writes 4 KiB after 4 KiB past the page cache, and knows the slowest of them.
type slowWriter struct {
	fd      int
	block   []byte
	stop    atomic.Bool
	done    chan error
	slowest time.Duration
	count   int
}

func startSlow(path string) (*slowWriter, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	block, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s := &slowWriter{fd: fd, block: block, done: make(chan error, 1)}
	go func() {
		var err error
		for ; err == nil && !s.stop.Load(); s.count++ {
			block[0]++
			begin := time.Now()
			_, err = unix.Pwrite(fd, block, int64(s.count)*4096%moveRange)
			s.slowest = max(s.slowest, time.Since(begin))
		}
		s.done <- err
	}()
	return s, nil
}

func (s *slowWriter) end() error {
	s.stop.Store(true)
	err := <-s.done
	unix.Close(s.fd)
	_ = unix.Munmap(s.block)
	return err
}

// pause moves a volume, and says how many milliseconds its writer has waited at most.
func (m *movingBed) pause() (float64, error) {
	m.serial++
	v := m.ctl.Volume(m.owner, fmt.Sprintf("pvc-moving-%d", m.serial), rig.MountCap("xfs"), moveData+moveData/4)
	v.Params = map[string]string{"attach": "remote"}
	if err := v.Create(); err != nil {
		return 0, err
	}
	c, err := m.ctl.Client()
	if err != nil {
		return 0, err
	}
	ctx := context.Background()
	if err := giveTo(ctx, c, v, m.user.Node); err != nil {
		return 0, err
	}
	v.At(m.user)
	if err := v.Up(); err != nil {
		return 0, err
	}
	if _, err := rig.Run("fio", "--name=fill", "--filename="+filepath.Join(v.Target, "data"), "--rw=write", "--bs=1m", "--direct=1",
		fmt.Sprintf("--size=%d", moveData), "--refill_buffers", "--end_fsync=1", "--fallocate=none"); err != nil {
		return 0, err
	}
	busy := filepath.Join(v.Target, "busy")
	if err := os.WriteFile(busy, make([]byte, moveRange), 0o600); err != nil {
		return 0, err
	}
	s, err := startSlow(busy)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	_, err = rig.Run(rig.Binary(), "move", "--endpoint", "unix://"+m.ctl.Socket, "--timeout", "600", v.ID, m.user.Node)
	took := time.Since(begin).Seconds()
	if failed := s.end(); err == nil {
		err = failed
	}
	if err != nil {
		return 0, err
	}
	m.took, m.rate = append(m.took, took), append(m.rate, float64(s.count)/took)
	err = down(v, func() error {
		if err := v.Down(); err != nil {
			return err
		}
		return takeFrom(ctx, c, v, m.user.Node)
	})
	return float64(s.slowest.Microseconds()) / 1000, err
}

// bare does the same to a device by hand, between the disks of the two nodes.
func (m *movingBed) bare() (float64, error) {
	const name = "bench-moving"
	var files, loops []string
	for _, n := range []*rig.Node{m.owner, m.user} {
		file := filepath.Join(n.Pools[0].Path, name)
		defer os.Remove(file)
		if err := os.WriteFile(file, make([]byte, moveRange), 0o600); err != nil {
			return 0, err
		}
		loop, err := rig.Run("losetup", "--show", "--direct-io=on", "-f", file)
		if err != nil {
			return 0, err
		}
		loop = strings.TrimSpace(loop)
		defer func() { _, _ = rig.Run("losetup", "-d", loop) }()
		files, loops = append(files, file), append(loops, loop)
	}
	table := func(loop string) string { return fmt.Sprintf("0 %d linear %s 0", moveRange/512, loop) }
	if _, err := rig.Run("dmsetup", "create", name, "--table", table(loops[0])); err != nil {
		return 0, err
	}
	defer func() { _, _ = rig.Run("dmsetup", "remove", "--retry", name) }()
	s, err := startSlow("/dev/mapper/" + name)
	if err != nil {
		return 0, err
	}
	time.Sleep(time.Second)
	for _, step := range [][]string{
		{"dmsetup", "suspend", "--nolockfs", name},
		{"dd", "if=" + files[0], "of=" + files[1], "bs=1M", "conv=notrunc,fsync", "iflag=direct", "oflag=direct"},
		{"dmsetup", "load", name, "--table", table(loops[1])},
		{"dmsetup", "resume", name},
	} {
		if _, err = rig.Run(step[0], step[1:]...); err != nil {
			_, _ = rig.Run("dmsetup", "resume", name)
			break
		}
	}
	if failed := s.end(); err == nil {
		err = failed
	}
	return float64(s.slowest.Microseconds()) / 1000, err
}
