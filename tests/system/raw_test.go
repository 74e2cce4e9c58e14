// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// rawBed is a bed whose pool lies on a disk of its own.
type rawBed struct {
	*bed
	disk *rig.Disk // nil: the test's own device
}

func needRawPools(t *testing.T) {
	t.Helper()
	if rig.Device() != "" {
		t.Skip("raw pools have a device of their own")
	}
	if !rig.HasDeviceMapper() {
		t.Skip("this kernel has no device mapper (modprobe dm_mod)")
	}
}

// bareBed has neither a pool nor a driver.
func bareBed(t *testing.T) *rawBed {
	t.Helper()
	needRawPools(t)
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	b := &rawBed{bed: &bed{Rig: r, t: t}}
	t.Cleanup(b.finish)
	return b
}

func (b *rawBed) newDisk(name string, size int64) *rig.Disk {
	b.t.Helper()
	disk, err := b.NewDisk(name, size)
	b.must(err)
	return disk
}

// on makes the pool on these devices, and the driver.
func (b *rawBed) on(devices ...string) *rawBed {
	b.t.Helper()
	var err error
	b.pool, err = b.RawPool("default", devices...)
	b.must(err)
	b.d = b.NewDriver(b.pool)
	b.d.PoolOptions = ""
	return b
}

// newRawBed makes disk, pool and driver, and starts nothing yet.
func newRawBed(t *testing.T, size int64) *rawBed {
	t.Helper()
	b := bareBed(t)
	b.disk = b.newDisk("first", size)
	return b.on(b.disk.Path)
}

func openRaw(t *testing.T, size int64) *rawBed {
	t.Helper()
	b := newRawBed(t, size)
	b.start()
	return b
}

// clean waits until nothing waits to be overwritten any more.
func (b *rawBed) clean() {
	b.t.Helper()
	b.must(rig.Eventually(2*time.Minute, func() error {
		if names := b.pool.Names("trash"); len(names) > 0 {
			return fmt.Errorf("in the trash: %v", names)
		}
		return nil
	}))
}

// accounts checks, with nothing in the trash, that each part of the area is one image's or free.
func (b *rawBed) accounts() {
	b.t.Helper()
	b.clean()
	maps, err := b.pool.Maps()
	b.must(err)
	area, err := b.pool.AreaBytes()
	b.must(err)
	if sum := rig.MappedBytes(maps) + b.capacity(nil); sum > area || sum < area-mib {
		b.t.Errorf("%d MiB of images and %d MiB of room in an area of %d MiB: %v", rig.MappedBytes(maps)/mib,
			b.capacity(nil)/mib, area/mib, maps)
	}
}

// mapped checks that a staged volume has the device that it should have, and returns its node.
func (b *rawBed) mapped(v *rig.Volume) string {
	b.t.Helper()
	devices := rig.MappedDevices(rig.DeviceName(v.ID))
	if len(devices) != 1 || !strings.HasPrefix(devices[0].UUID, "RINGVOL-disk-") || devices[0].Suspended {
		b.t.Fatalf("%s has the devices %+v", v.Name, devices)
	}
	table, err := rig.Run("dmsetup", "table", devices[0].Name)
	b.must(err)
	lines := strings.Split(strings.TrimSpace(table), "\n")
	for _, line := range lines {
		if fields := strings.Fields(line); len(fields) != 5 || fields[2] != "linear" {
			b.t.Errorf("%s has the target %q", v.Name, line)
		}
	}
	if len(lines) < 2 {
		b.t.Errorf("a table of %d targets: %s", len(lines), table)
	}
	return devices[0].Node
}

// noDevices: no volume has one any more.
func (b *rawBed) noDevices() {
	b.t.Helper()
	b.eventually(func() error {
		devices, err := b.pool.VolumeDevices()
		if err == nil && len(devices) > 0 {
			table, _ := rig.Run("dmsetup", "table", devices[0].Name)
			info, _ := rig.Run("dmsetup", "info", devices[0].Name)
			err = fmt.Errorf("left behind: %+v\n%s%sopen in %v", devices, table, info, openIn(devices[0].Node))
		}
		return err
	})
}

// openIn lists the processes that have a node open.
func openIn(node string) (found []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		if path, err := os.Readlink(link); err == nil && path == node {
			found = append(found, link)
		}
	}
	return found
}

// ringvol runs the binary and wants this exit status.
func (b *rawBed) ringvol(code int, args ...string) run {
	b.t.Helper()
	r := tool(b.t, b.toolEnv, args...)
	if r.code != code {
		b.t.Errorf("ringvol %v: status %d, want %d: %s%s", args, r.code, code, r.err, r.out)
	}
	return r
}

// why is what ls says of the state of the only pool.
func (b *rawBed) why() (state, why string) {
	b.t.Helper()
	l := b.ls()
	if len(l.Pools) != 1 {
		b.t.Fatalf("pools: %+v", l.Pools)
	}
	return l.Pools[0].State, l.Pools[0].Why
}

// refusesPool waits until the driver says that it does not serve the pool, and why.
func (b *rawBed) refusesPool(words ...string) {
	b.t.Helper()
	b.eventually(func() error {
		state, why := b.why()
		if state == "ready" {
			return errors.New("the pool is ready")
		}
		for _, word := range words {
			if !strings.Contains(why, word) {
				return fmt.Errorf("%q does not say %q", why, word)
			}
		}
		return nil
	})
}

// again starts the driver and waits only until it answers.
func (b *rawBed) again() {
	b.t.Helper()
	b.must(b.d.Start())
	b.connect()
}

// ---- bytes ----

// directly opens a device past the page cache, with a buffer of 1 MiB.
func directly(path string, flags int) (fd int, memory []byte, done func(), err error) {
	fd, err = unix.Open(path, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, nil, err
	}
	memory, err = unix.Mmap(-1, 0, int(mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		unix.Close(fd)
		return -1, nil, nil, err
	}
	return fd, memory, func() { unix.Close(fd); _ = unix.Munmap(memory) }, nil
}

// eachMiB reads a device to its end.
func eachMiB(path string, each func(at int64, data []byte) error) error {
	fd, memory, done, err := directly(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer done()
	for at := int64(0); ; {
		n, err := unix.Pread(fd, memory, at)
		if err != nil {
			return fmt.Errorf("%s at %d: %w", path, at, err)
		}
		if n == 0 {
			return nil
		}
		if err := each(at, memory[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
}

var zeros = make([]byte, mib)

// onlyZeros reads all of a device.
func onlyZeros(path string) error {
	return eachMiB(path, func(at int64, data []byte) error {
		if !bytes.Equal(data, zeros[:len(data)]) {
			i := bytes.IndexFunc(data, func(r rune) bool { return r != 0 })
			return fmt.Errorf("%s holds %.40q at %d", path, data[i:], at+int64(i))
		}
		return nil
	})
}

// without checks that nothing on a device looks like what was written.
func withoutMark(path string, mark []byte) error {
	return eachMiB(path, func(at int64, data []byte) error {
		if i := bytes.Index(data, mark); i >= 0 {
			return fmt.Errorf("%s holds %.40q at %d", path, data[i:], at+int64(i))
		}
		return nil
	})
}

// marked fills a device: all of it, or a block of each MiB.
func marked(path string, mark []byte, whole bool) error {
	fd, memory, done, err := directly(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer done()
	copy(memory, bytes.Repeat(mark, len(memory)/len(mark)+1))
	size, err := deviceSize(path)
	if err != nil {
		return err
	}
	part := int64(4096)
	if whole {
		part = mib
	}
	for at := int64(0); at < size; at += mib {
		if _, err := unix.Pwrite(fd, memory[:min(part, size-at)], at); err != nil {
			return fmt.Errorf("%s at %d: %w", path, at, err)
		}
	}
	return unix.Fsync(fd)
}

// numbered writes its number into the first block of each MiB of a device; checkNumbers finds them there.
func numbered(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	size, err := deviceSize(path)
	block := make([]byte, 4096)
	for at := int64(0); at < size && err == nil; at += mib {
		copy(block, fmt.Sprintf("MiB number %d of %s", at/mib, path))
		_, err = file.WriteAt(block, at)
	}
	return errors.Join(err, file.Sync())
}

func checkNumbers(path string) error {
	return eachMiB(path, func(at int64, data []byte) error {
		if want := fmt.Sprintf("MiB number %d of %s\x00", at/mib, path); !bytes.HasPrefix(data, []byte(want)) {
			return fmt.Errorf("%s holds %.60q at %d", path, data, at)
		}
		return nil
	})
}

// ends is the beginning and the end of a disk, where all that identifies it is.
func ends(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	part := min(4*mib, size/2)
	both := make([]byte, 2*part)
	_, err = file.ReadAt(both[:part], 0)
	_, err2 := file.ReadAt(both[part:], size-part)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return string(both)
}
