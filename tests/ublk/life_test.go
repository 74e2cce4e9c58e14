// SPDX-License-Identifier: Apache-2.0
package ublk

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func TestWithoutUblk(t *testing.T) {
	if _, err := os.Stat("/dev/ublk-control"); err == nil {
		t.Skip("this kernel has ublk")
	}
	p := newProcess(t)
	hello, err := p.client.hello()
	if err != nil || hello.Flags&flagHasUblk != 0 {
		t.Fatalf("hello: %+v, %v", hello, err)
	}
	_, err = p.client.attach(newVolume(t, 16*mib))
	wantCode(t, err, "precondition", "ublk_drv")
	// The image is let go again.
	_, err = p.client.attach(newVolume(t, 16*mib))
	wantCode(t, err, "precondition", "modprobe")
	p.kill(syscall.SIGTERM)
}

// Reads and writes of many sizes and places, compared with the image.
func TestData(t *testing.T) {
	needUblk(t)
	for _, c := range []struct {
		name string
		make func(v *volume)
	}{
		{"plain", func(*volume) {}},
		{"4096", func(v *volume) { v.blockSize = 4096 }},
		{"buffered", func(v *volume) { v.buffered = true }},
		{"queues", func(v *volume) { v.queues, v.depth = 2, 16 }},
	} {
		t.Run(c.name, func(t *testing.T) { testData(t, c.make) })
	}
}

func testData(t *testing.T, change func(v *volume)) {
	p := newProcess(t)
	v := newVolume(t, 16*mib)
	change(v)
	d := p.attach(v)
	if d.SizeBytes != 16*mib || d.State != stateLive {
		t.Fatalf("attached: %+v", d)
	}
	hello, err := p.client.hello()
	if err != nil {
		t.Fatal(err)
	}
	// Bits 0 and 11 of the kernel's features: zero copy and automatic buffers.
	can := hello.Features&1 != 0 && hello.Features&(1<<11) != 0 && !v.buffered
	if (d.Flags&flagZeroCopy != 0) != can {
		t.Errorf("features %#x, flags %#x", hello.Features, d.Flags)
	}
	t.Logf("features %#x, zero copy %v", hello.Features, can)
	f := openDevice(t, d.node(), os.O_RDWR)
	want := make([]byte, 16*mib)
	buffer := aligned(t, mib)
	seed := time.Now().UnixNano()
	t.Log("seed", seed)
	rng := rand.New(rand.NewSource(seed))
	for i := 0; i < 120; i++ {
		size := 4096 * (1 + rng.Intn(256))
		at := 4096 * rng.Intn((16*mib-size)/4096)
		rng.Read(buffer[:size])
		copy(want[at:], buffer[:size])
		if _, err := f.WriteAt(buffer[:size], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < 16*mib; at += mib {
		if _, err := f.ReadAt(buffer, int64(at)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buffer, want[at:at+mib]) {
			t.Fatalf("the device has other bytes at %d", at)
		}
	}
	got, err := os.ReadFile(v.path)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the image has other bytes than the device (%v)", err)
	}
	f.Close()
	now := p.client.find(t, v.tag)
	if now.Reads == 0 || now.Writes == 0 || now.Flushes == 0 || now.Errors != 0 ||
		now.ReadBytes < 16*mib {
		t.Errorf("counters: %+v", now)
	}
	p.detach(v, d)
	if _, err := os.Stat(d.node()); err == nil {
		t.Error("the device is still there")
	}
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// blkRange is an ioctl with a start and a length: BLKDISCARD, BLKZEROOUT.
func blkRange(t *testing.T, f *os.File, call uintptr, at, size uint64) {
	t.Helper()
	span := [2]uint64{at, size}
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), call, uintptr(unsafe.Pointer(&span)))
	if errno != 0 {
		t.Fatalf("ioctl %#x: %v", call, errno)
	}
}

const (
	blkDiscard = 0x1277
	blkZeroOut = 0x127f
)

func TestDiscardAndZeroes(t *testing.T) {
	needUblk(t)
	p := newProcess(t)
	for _, thick := range []bool{false, true} {
		v := newVolume(t, 32*mib)
		if thick {
			v.flags = flagNoDiscard
		}
		d := p.attach(v)
		f := openDevice(t, d.node(), os.O_RDWR)
		data := aligned(t, mib)
		for i := range data {
			data[i] = 0xa5
		}
		for at := int64(0); at < 32*mib; at += mib {
			if _, err := f.WriteAt(data, at); err != nil {
				t.Fatal(err)
			}
		}
		_ = f.Sync()
		full := allocated(t, v.path)
		blkRange(t, f, blkZeroOut, 0, 8*mib)
		if thick && allocated(t, v.path) < full {
			t.Error("zeroes of a thick volume gave blocks back")
		}
		if thick {
			span := [2]uint64{8 * mib, 8 * mib}
			_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), blkDiscard,
				uintptr(unsafe.Pointer(&span)))
			if errno != syscall.EOPNOTSUPP {
				t.Errorf("discard on a thick volume: %v", errno)
			}
		} else {
			blkRange(t, f, blkDiscard, 8*mib, 8*mib)
			if now := allocated(t, v.path); now > full-8*mib {
				t.Errorf("%d bytes are allocated after a discard, %d before", now, full)
			}
		}
		zero := make([]byte, mib)
		end := int64(16 * mib)
		if thick {
			end = 8 * mib
		}
		for at := int64(0); at < 32*mib; at += mib {
			if _, err := f.ReadAt(data, at); err != nil {
				t.Fatal(err)
			}
			if (at < end) != bytes.Equal(data, zero) {
				t.Fatalf("thick %v: wrong bytes at %d", thick, at)
			}
		}
		f.Close()
		p.detach(v, d)
	}
}

func TestReadOnly(t *testing.T) {
	needUblk(t)
	p := newProcess(t)
	v := newVolume(t, 16*mib)
	v.flags = flagReadOnly
	d := p.attach(v)
	f := openDevice(t, d.node(), os.O_RDONLY)
	if _, err := f.ReadAt(aligned(t, 4096), 0); err != nil {
		t.Fatal(err)
	}
	if w, err := os.OpenFile(d.node(), os.O_WRONLY, 0); err == nil {
		if _, err = w.Write(make([]byte, 4096)); err == nil {
			err = w.Sync()
		}
		w.Close()
		if err == nil {
			t.Error("a read-only device was written to")
		}
	}
	f.Close()
	p.detach(v, d)
}

// Requests converge, and contradictions are refused.
func TestRequests(t *testing.T) {
	needUblk(t)
	before := kernelDevices(t)
	p := newProcess(t)
	v := newVolume(t, 16*mib)
	d := p.attach(v)
	if again := p.attach(v); again.DevID != d.DevID {
		t.Errorf("attached twice: %d and %d", d.DevID, again.DevID)
	}
	other := *v
	other.tag = randomTag()
	_, err := p.client.attach(&other)
	wantCode(t, err, "precondition", d.node())

	// A loop device cannot have it, nor ublk what loop has.
	if out, err := exec.Command("flock", "-n", v.path, "true").CombinedOutput(); err == nil {
		t.Errorf("the image of a device is not locked: %s", out)
	}
	looped := newVolume(t, 16*mib)
	loop := strings.TrimSpace(run(t, "losetup", "-f", "--show", looped.path))
	_, err = p.client.attach(looped)
	wantCode(t, err, "precondition", "losetup")
	run(t, "losetup", "-d", loop)

	// A mounted device stays.
	run(t, "mkfs.ext4", "-q", d.node())
	dir := t.TempDir()
	run(t, "mount", d.node(), dir)
	err = p.client.detach(v, d)
	run(t, "umount", dir)
	wantCode(t, err, "precondition", "mount")
	wrong := *d
	wrong.DevID += 1000
	if err := p.client.detach(v, &wrong); err != nil {
		t.Errorf("a device that is not there: %v", err)
	}
	p.detach(v, d)
	p.detach(v, d)
	if now := kernelDevices(t); now != before {
		t.Errorf("%d devices before, %d now", before, now)
	}
	r := &request{Head: head{Type: 99}}
	_, err = p.client.call(r, nil)
	wantCode(t, err, "unimplemented")
	// The image is free again.
	run(t, "flock", "-n", v.path, "true")
	p.kill(syscall.SIGTERM)
}

func TestResize(t *testing.T) {
	needUblk(t)
	p := newProcess(t)
	v := newVolume(t, 16*mib)
	d := p.attach(v)
	if err := os.Truncate(v.path, 48*mib); err != nil {
		t.Fatal(err)
	}
	hello, err := p.client.hello()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.client.named(typeResize, v, d)
	if hello.Flags&flagCanResize == 0 {
		wantCode(t, err, "precondition", "6.16")
		p.detach(v, d)
		d = p.attach(v)
		if d.SizeBytes != 48*mib {
			t.Errorf("attached again it has %d bytes", d.SizeBytes)
		}
	} else {
		if err != nil || out.Device.SizeBytes != 48*mib {
			t.Fatalf("resize: %+v, %v", out, err)
		}
		f := openDevice(t, d.node(), os.O_RDWR)
		data := aligned(t, 4096)
		copy(data, "the end")
		if _, err := f.WriteAt(data, 48*mib-4096); err != nil {
			t.Error("writing at the new end:", err)
		}
		f.Close()
		p.restart(syscall.SIGKILL)
		if now := p.live(v.tag); now.SizeBytes != 48*mib {
			t.Errorf("recovered with %d bytes", now.SizeBytes)
		}
	}
	p.detach(v, d)
}

func TestManyDevices(t *testing.T) {
	needUblk(t)
	before := kernelDevices(t)
	p := newProcess(t, "--max-devices", "80")
	var volumes []*volume
	var devices []*device
	rss := residentKiB(t, p.cmd.Process.Pid)
	for i := 0; i < 80; i++ {
		v := newVolume(t, 16*mib)
		volumes = append(volumes, v)
		devices = append(devices, p.attach(v))
	}
	_, err := p.client.attach(newVolume(t, 16*mib))
	wantCode(t, err, "no_room", "80")
	for _, d := range devices {
		run(t, "dd", "if=/dev/zero", "of="+d.node(), "bs=64k", "count=4", "oflag=direct")
	}
	t.Logf("%d KiB of resident memory a device", (residentKiB(t, p.cmd.Process.Pid)-rss)/80)
	p.restart(syscall.SIGKILL)
	for i := 0; ; i++ {
		all, err := p.client.list()
		if err != nil || len(all) != len(volumes) {
			t.Fatalf("listed %d devices: %v", len(all), err)
		}
		live := 0
		for j := range all {
			if all[j].State == stateLive {
				live++
			}
		}
		if live == len(volumes) {
			break
		}
		if i == 300 {
			t.Fatalf("%d devices are live again", live)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for i, v := range volumes {
		p.detach(v, devices[i])
	}
	if now := kernelDevices(t); now != before {
		t.Errorf("%d devices before, %d now", before, now)
	}
}

func residentKiB(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(raw), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "VmRSS:" {
			n := 0
			for _, c := range fields[1] {
				n = n*10 + int(c-'0')
			}
			return n
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
