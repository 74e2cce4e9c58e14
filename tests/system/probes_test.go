// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// openProbed is a bed whose driver counts with BPF.
func openProbed(t *testing.T) *bed {
	t.Helper()
	b := openHTTP(t)
	b.awaitProbes()
	return b
}

// probesSettled waits until the probes are loaded or cannot be, a moment after the driver serves, and says
// whether they are. What devices do before is counted by the block layer, and counting begins anew then.
func (b *bed) probesSettled() bool {
	b.t.Helper()
	state := ""
	b.eventually(func() error {
		l := b.ls()
		if l.Driver == nil || l.Driver.Probes == "loading" {
			return fmt.Errorf("not loaded yet: %+v", l.Driver)
		}
		state = l.Driver.Probes
		return nil
	})
	return state == "bpf"
}

func (b *bed) awaitProbes() {
	b.t.Helper()
	if !b.probesSettled() {
		b.t.Skip("no BPF here")
	}
}

// Some kernels are built to run nobody's tracing programs while process 1 runs, not even for an
// interrupt: of thousands of requests some are lost there, the more the busier that process is (2.4% were seen).
func losesSome() bool {
	btf, _ := os.ReadFile("/sys/kernel/btf/vmlinux")
	return bytes.Contains(btf, []byte("\x00init_owned\x00"))
}

type ioCounts struct{ ops, bytes, errors float64 }

func (b *bed) counts(v *rig.Volume, op string) ioCounts {
	b.t.Helper()
	m, err := b.d.Scrape()
	b.must(err)
	return ioCounts{
		m.Value("ringvol_volume_io_seconds", "volume", v.Name, "op", op),
		m.Value("ringvol_volume_io_bytes_total", "volume", v.Name, "op", op),
		m.Value("ringvol_volume_io_errors_total", "volume", v.Name, "op", op),
	}
}

func (b *bed) same(what string, got, want ioCounts) {
	b.t.Helper()
	if want.ops >= 2000 && losesSome() {
		if got.ops > want.ops || got.bytes > want.bytes || got.ops < want.ops*0.9 || got.errors != want.errors {
			b.t.Errorf("%s: %+v, want about %+v", what, got, want)
		}
	} else if got != want {
		b.t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// readBlocks reads 4 KiB directly from a device, so often.
func (b *bed) readBlocks(path string, count int) {
	b.t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	b.must(err)
	defer unix.Close(fd)
	block, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	b.must(err)
	defer unix.Munmap(block)
	for i := range count {
		_, err := unix.Pread(fd, block, int64(i)*4096)
		b.must(err)
	}
}

// kernelCounts are the block layer's own of a device: also what others read meanwhile, as a mkfs does that looks at all
// devices of the machine.
func (b *bed) kernelCounts(path string) (read, write ioCounts) {
	b.t.Helper()
	var st unix.Stat_t
	b.must(unix.Stat(path, &st))
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	b.must(err)
	var skip float64
	_, err = fmt.Sscan(string(text), &read.ops, &skip, &read.bytes, &skip, &write.ops, &skip, &write.bytes)
	b.must(err)
	read.bytes *= 512
	write.bytes *= 512
	return read, write
}

func TestProbesCountLikeFio(t *testing.T) {
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed")
	}
	b := openProbed(t)
	v := b.d.Volume("counted", rig.BlockCap(), 64*mib)
	b.must(v.Up())
	reads, writes := b.counts(v, "read"), b.counts(v, "write")
	read, write := b.kernelCounts(v.Target)
	var out, errs bytes.Buffer
	fio := exec.Command("fio", "--name=count", "--filename="+v.Target, "--direct=1", "--rw=randrw", "--bs=4k", "--blockalign=8k",
		"--ioengine=psync", "--numjobs=4", "--size=64m", "--number_ios=2000", "--group_reporting",
		"--allow_file_create=0", "--output-format=json")
	fio.Dir, fio.Stdout, fio.Stderr = b.Path(), &out, &errs
	if err := fio.Run(); err != nil {
		t.Fatalf("fio: %v %s", err, errs.String())
	}
	type side struct {
		Ops   float64 `json:"total_ios"`
		Bytes float64 `json:"io_bytes"`
	}
	var report struct {
		Jobs []struct{ Read, Write side }
	}
	text := out.Bytes()
	b.must(json.Unmarshal(text[bytes.IndexByte(text, '{'):], &report))
	job := report.Jobs[0]
	if job.Read.Ops+job.Write.Ops < 4000 {
		t.Fatalf("fio did %v reads and %v writes", job.Read.Ops, job.Write.Ops)
	}
	readAfter, writeAfter := b.kernelCounts(v.Target)
	readOps, writeOps := readAfter.ops-read.ops, writeAfter.ops-write.ops
	if readOps < job.Read.Ops || writeOps != job.Write.Ops {
		t.Fatalf("fio did %v reads and %v writes, and the kernel %v and %v", job.Read.Ops, job.Write.Ops, readOps, writeOps)
	}
	b.same("reads", b.counts(v, "read"), ioCounts{reads.ops + readOps, reads.bytes + readAfter.bytes - read.bytes, 0})
	b.same("writes", b.counts(v, "write"), ioCounts{writes.ops + writeOps, writes.bytes + job.Write.Bytes, 0})
	b.must(v.Gone())
}

func TestProbesAfterRestart(t *testing.T) {
	b := openProbed(t)
	v := b.d.Volume("kept", rig.BlockCap(), 16*mib)
	b.must(v.Up())
	before := b.counts(v, "read")
	b.readBlocks(v.Target, 20)
	b.same("before", b.counts(v, "read"), ioCounts{before.ops + 20, before.bytes + 20*4096, 0})

	// Killed, so that the kernel takes the probes away.
	b.must(b.d.Kill())
	b.readBlocks(v.Target, 7)
	b.start()
	b.awaitProbes()
	before = b.counts(v, "read")
	if before.ops >= 20 {
		t.Errorf("%v reads right after the restart", before.ops)
	}
	b.readBlocks(v.Target, 30)
	b.same("after", b.counts(v, "read"), ioCounts{before.ops + 30, before.bytes + 30*4096, 0})
	b.must(v.Gone())
}

func TestProbesNumberReused(t *testing.T) {
	b := openProbed(t)
	first := b.d.Volume("first", rig.BlockCap(), 16*mib)
	b.must(first.Up())
	number := deviceOf(t, first.Target)
	b.readBlocks(first.Target, 500)
	b.must(first.Down())
	if m, err := b.d.Scrape(); err != nil || m.Value("ringvol_volume_io_seconds", "volume", first.Name, "op", "read") >= 0 {
		t.Errorf("counters of a device that is gone (%v)", err)
	}
	second := b.d.Volume("second", rig.BlockCap(), 16*mib)
	b.must(second.Up())
	// Others' devices take numbers, too, and give them back.
	for tries := 50; deviceOf(t, second.Target) != number; tries-- {
		b.must(second.Down())
		if tries == 0 {
			b.must(second.Gone())
			b.must(first.Gone())
			t.Skip("another device has the number")
		}
		time.Sleep(100 * time.Millisecond)
		b.must(second.Up())
	}
	if got := b.counts(second, "read"); got.ops >= 500 {
		t.Errorf("%v reads of a new volume", got.ops)
	}
	b.must(second.Gone())
	b.must(first.Gone())
}

func deviceOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Rdev
}

// The image loses its end under the device.
func TestProbesErrors(t *testing.T) {
	b := openProbed(t)
	v := b.d.Volume("failing", rig.BlockCap(), 16*mib)
	b.must(v.Up())
	before := b.counts(v, "read")
	b.must(os.Truncate(b.pool.Image(v.ID), 8*mib))
	fd, err := unix.Open(v.Target, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	b.must(err)
	block, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	b.must(err)
	defer unix.Munmap(block)
	for i := range 3 {
		if _, err := unix.Pread(fd, block, 12*mib+int64(i)*4096); err != unix.EIO {
			t.Errorf("reading what is not there: %v", err)
		}
	}
	b.must(unix.Close(fd))
	b.same("reads", b.counts(v, "read"), ioCounts{before.ops + 3, before.bytes, 3})
	b.must(os.Truncate(b.pool.Image(v.ID), 16*mib))
	b.must(v.Gone())
}

// Without the capabilities nothing can be mounted either, so only the log is looked at; what sysfs
// counts is tested beside the probes.
func TestProbesWithoutCapabilities(t *testing.T) {
	b := newBed(t, "xfs", 512*mib)
	script := filepath.Join(b.Path(), "weak")
	b.must(os.WriteFile(script, fmt.Appendf(nil,
		"#!/bin/sh\nexec setpriv --bounding-set=-sys_admin,-bpf,-perfmon %q \"$@\"\n", rig.Binary()), 0o755))
	t.Setenv("RINGVOL_BIN", script)
	b.must(b.d.Start())
	b.eventually(func() error {
		if n := strings.Count(b.d.LogTail(1000), "counted without BPF"); n != 1 {
			return fmt.Errorf("said %d times", n)
		}
		return nil
	})
	if log := b.d.LogTail(1000); !strings.Contains(log, "CAP_BPF and CAP_PERFMON") {
		t.Errorf("no remedy in the log:\n%s", log)
	}
	b.must(b.d.Term())
}
