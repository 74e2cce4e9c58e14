// SPDX-License-Identifier: Apache-2.0
package ublk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Mounts a file system on a device made by dmsetup from a loop device; `table` gets the loop node
// and its sectors.
func mountMapped(t *testing.T, size int64, table func(loop string, sectors int64) string) (dir, name string) {
	t.Helper()
	_ = exec.Command("modprobe", "dm_mod").Run()
	if _, err := exec.LookPath("dmsetup"); err != nil {
		t.Skip("dmsetup is not installed")
	}
	if err := exec.Command("dmsetup", "version").Run(); err != nil {
		t.Skip("this kernel has no device mapper")
	}
	backing := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(backing)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Truncate(size)
	f.Close()
	loop := strings.TrimSpace(run(t, "losetup", "-f", "--show", backing))
	t.Cleanup(func() { _ = exec.Command("losetup", "-d", loop).Run() })
	name = "ublktest" + fmt.Sprint(os.Getpid())
	run(t, "dmsetup", "create", name, "--table", table(loop, size/512))
	t.Cleanup(func() { _ = exec.Command("dmsetup", "remove", "-f", name).Run() })
	dir = t.TempDir()
	run(t, "mkfs.ext4", "-q", "-E", "nodiscard", "-O", "^has_journal", "/dev/mapper/"+name)
	run(t, "mount", "/dev/mapper/"+name, dir)
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	return dir, name
}

// extent returns where the image's first bytes are on the disk below, in sectors.
func extent(t *testing.T, path string) int64 {
	t.Helper()
	out := run(t, "filefrag", "-b512", "-v", path)
	for _, line := range strings.Split(out, "\n") {
		fields := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" :.", r) })
		if len(fields) > 4 && fields[0] == "0" {
			var at int64
			if _, err := fmt.Sscan(fields[3], &at); err == nil {
				return at
			}
		}
	}
	t.Fatalf("filefrag said:\n%s", out)
	return 0
}

// One extent of the disk fails: that request fails, is counted, and the rest goes on.
func TestIOError(t *testing.T) {
	needUblk(t)
	if _, err := exec.LookPath("filefrag"); err != nil {
		t.Skip("filefrag is not installed")
	}
	const size = 256 * mib
	var loop string
	dir, name := mountMapped(t, size, func(node string, sectors int64) string {
		loop = node
		return fmt.Sprintf("0 %d linear %s 0", sectors, node)
	})
	p := newProcess(t)
	v := newVolumeIn(t, dir, 64*mib)
	run(t, "dd", "if=/dev/zero", "of="+v.path, "bs=1M", "count=64", "conv=notrunc,fsync")
	d := p.attach(v)
	f := openDevice(t, d.node(), os.O_RDWR)
	data := aligned(t, 64<<10)
	bad := extent(t, v.path) + 2048 // the image's second MiB
	total := int64(size / 512)
	reload := func(table string) {
		run(t, "dmsetup", "suspend", name)
		cmd := exec.Command("dmsetup", "load", name)
		cmd.Stdin = strings.NewReader(table)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("dmsetup load: %v %s", err, out)
		}
		run(t, "dmsetup", "resume", name)
	}
	reload(fmt.Sprintf("0 %d linear %s 0\n%d 128 error\n%d %d linear %s %d\n",
		bad, loop, bad, bad+128, total-bad-128, loop, bad+128))
	if _, err := f.ReadAt(data, mib); !errors.Is(err, syscall.EIO) {
		t.Errorf("reading the bad extent: %v", err)
	}
	if _, err := f.WriteAt(data, mib); !errors.Is(err, syscall.EIO) {
		t.Errorf("writing the bad extent: %v", err)
	}
	for _, at := range []int64{0, mib - int64(len(data)), mib + 64<<10, 32 * mib} {
		if _, err := f.ReadAt(data, at); err != nil {
			t.Errorf("reading beside it, at %d: %v", at, err)
		}
	}
	now := p.client.find(t, v.tag)
	if now.Errors < 2 || now.LastErrno != uint32(syscall.EIO) || now.LastErrorNs == 0 {
		t.Errorf("counted: %d errors, errno %d", now.Errors, now.LastErrno)
	}
	reload(fmt.Sprintf("0 %d linear %s 0\n", total, loop))
	if _, err := f.WriteAt(data, mib); err != nil {
		t.Errorf("the extent has recovered, and writing it: %v", err)
	}
	f.Close()
	p.detach(v, d)
}

// The file system below is full: the writer hears it, and freed space makes it work again.
func TestNoSpace(t *testing.T) {
	needUblk(t)
	dir, _ := mountMapped(t, 64*mib, func(node string, sectors int64) string {
		return fmt.Sprintf("0 %d linear %s 0", sectors, node)
	})
	p := newProcess(t)
	v := newVolumeIn(t, dir, 128*mib)
	d := p.attach(v)
	filler := dir + "/filler"
	run(t, "fallocate", "-l", "20M", filler)
	f := openDevice(t, d.node(), os.O_RDWR)
	data := aligned(t, mib)
	var at int64
	var err error
	for ; at < 128*mib && err == nil; at += mib {
		_, err = f.WriteAt(data, at)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("writing %d MiB ended with %v", at/mib, err)
	}
	if _, err := f.ReadAt(data, 0); err != nil {
		t.Errorf("reading on a full disk: %v", err)
	}
	now := p.client.find(t, v.tag)
	if now.Errors == 0 || now.LastErrno != uint32(syscall.ENOSPC) {
		t.Errorf("counted: %d errors, errno %d", now.Errors, now.LastErrno)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(data, at); err != nil {
		t.Errorf("writing after space was freed: %v", err)
	}
	f.Close()
	p.detach(v, d)
}

// What the data process has done, by preload/counts.c.
type counts struct {
	Data, Other, Entered uint64
}

// newCounted starts a data process that counts, and says how to read it.
func newCounted(t *testing.T) (*process, func() counts) {
	t.Helper()
	needUblk(t)
	const library = "../../build/vm/counts.so"
	if _, err := os.Stat(library); err != nil {
		t.Skip("counts.so is not built (scripts/vm/tests.sh ublk builds it)")
	}
	file := t.TempDir() + "/counts"
	if err := os.WriteFile(file, make([]byte, binary.Size(counts{})), 0o600); err != nil {
		t.Fatal(err)
	}
	return newProcessEnv(t, []string{"LD_PRELOAD=" + library, "RINGVOL_COUNTS=" + file}), func() (c counts) {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := binary.Read(bytes.NewReader(raw), binary.LittleEndian, &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// One request after the other: a read enters the kernel once, a write twice at most.
func TestSystemCalls(t *testing.T) {
	p, read := newCounted(t)
	v := newVolume(t, 16*mib)
	d := p.attach(v)
	f := openDevice(t, d.node(), os.O_RDWR)
	buffer := aligned(t, mib)
	for at := int64(0); at < 16*mib; at += mib {
		if _, err := f.WriteAt(buffer, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	const requests = 500
	each := func(what string, most float64, call func(b []byte, at int64) (int, error)) {
		before := read().Entered
		for i := int64(0); i < requests; i++ {
			if _, err := call(buffer[:4096], i*37%4096*4096); err != nil {
				t.Fatal(err)
			}
		}
		calls := float64(read().Entered-before) / requests
		t.Logf("a %s takes %.3f system calls", what, calls)
		if calls == 0 || calls > most {
			t.Errorf("a %s takes %.3f system calls, want %v at most", what, calls, most)
		}
	}
	each("write", 2.01, f.WriteAt)
	each("read", 1.05, f.ReadAt)
	f.Close()
	p.detach(v, d)
}

// The threads that serve I/O call no allocator while they do, whatever the request is.
func TestNoAllocation(t *testing.T) {
	p, read := newCounted(t)
	v := newVolume(t, 32*mib)
	d := p.attach(v)
	f := openDevice(t, d.node(), os.O_RDWR)
	before := read()
	if before.Other == 0 {
		t.Fatal("nothing is counted")
	}
	buffer := aligned(t, mib)
	for i := int64(0); i < 500; i++ {
		size := 4096 << (i % 9)
		at := i * 37 % 31 * mib
		if _, err := f.WriteAt(buffer[:size], at); err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(buffer[:size], at); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
			blkRange(t, f, blkDiscard, uint64(at), mib)
			blkRange(t, f, blkZeroOut, uint64(at), mib)
		}
	}
	now := p.client.find(t, v.tag)
	if now.Reads < 500 || now.Writes < 500 || now.Discards < 20 || now.Flushes < 10 {
		t.Errorf("not all of it came through: %+v", now)
	}
	if after := read(); after.Data != before.Data {
		t.Errorf("%d calls of the allocator while %d requests were served", after.Data-before.Data,
			now.Reads+now.Writes+now.Discards+now.Flushes)
	}
	f.Close()
	p.detach(v, d)
}
