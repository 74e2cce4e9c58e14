// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// disk is a device whose table is swapped under the file system on it.
type disk struct {
	name, below string
	sectors     int64
}

// newDisk needs the device mapper; development machines have none, the guests do.
func (b *bed) newDisk(size int64) *disk {
	b.t.Helper()
	if _, err := os.Stat("/dev/mapper/control"); err != nil {
		b.t.Skip("no device mapper here (./dev vm has one)")
	}
	image := b.Path("disk.img")
	b.must(os.WriteFile(image, nil, 0o600))
	b.must(os.Truncate(image, size))
	loop, err := rig.Attach(image)
	b.must(err)
	b.Defer(func() error { return rig.Detach(loop) })
	d := &disk{name: "ringvol-" + strconv.Itoa(os.Getpid()), below: loop, sectors: size / 512}
	if _, err := rig.Run("dmsetup", "create", "--noudevsync", d.name, "--table", d.table("linear", "0")); err != nil {
		b.t.Skip(err)
	}
	b.Defer(func() error {
		return rig.Eventually(10*time.Second, func() error {
			_, err := rig.Run("dmsetup", "remove", "--noudevsync", d.name)
			return err
		})
	})
	return d
}

func (d *disk) path() string {
	return "/dev/mapper/" + d.name
}

func (d *disk) table(target string, args ...string) string {
	line := fmt.Sprintf("0 %d %s", d.sectors, target)
	if target != "error" {
		line += " " + d.below
	}
	return strings.Join(append([]string{line}, args...), " ")
}

// become swaps the table while nothing is in flight; the file system on it is not asked.
func (d *disk) become(target string, args ...string) error {
	for _, step := range [][]string{
		{"suspend", "--noudevsync", "--nolockfs", d.name},
		{"load", d.name, "--table", d.table(target, args...)},
		{"resume", "--noudevsync", d.name},
	} {
		if _, err := rig.Run("dmsetup", step...); err != nil {
			return err
		}
	}
	return nil
}

// openDisk is a started bed whose pool is on such a disk, and a block volume on it with its data written.
func openDisk(t *testing.T) (*bed, *disk, *rig.Volume) {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	b := &bed{Rig: r, t: t}
	t.Cleanup(b.finish)
	d := b.newDisk(1 << 30)
	_, err = rig.Run("mkfs.xfs", "-q", d.path())
	b.must(err)
	b.pool = &rig.Pool{Name: "default", FS: "xfs", Path: b.Path("pool")}
	b.must(os.Mkdir(b.pool.Path, 0o755))
	b.must(unix.Mount(d.path(), b.pool.Path, "xfs", 0, ""))
	b.Defer(func() error { _ = b.pool.Unmount(); return nil })
	b.d = r.NewDriver(b.pool)
	b.start()
	v := b.volume("sick", "block")
	b.must(v.Up())
	file, err := os.OpenFile(v.Target, os.O_WRONLY|unix.O_SYNC, 0)
	b.must(err)
	_, err = file.Write(make([]byte, v.Got))
	b.must(errors.Join(err, file.Close()))
	unix.Sync()
	return b, d, v
}

// The disk below the pool fails reads, and stops to.
func TestHealthDiskFails(t *testing.T) {
	b, d, v := openDisk(t)
	b.needsProbes()
	b.must(read(v.Target))
	b.must(d.become("error"))
	b.provoke(v)
	b.must(d.become("linear", "0"))
	b.found(v, "IOErrors", degraded, "read", "since", "disk")
	b.must(read(v.Target))
	b.well(v)
	b.must(v.Gone())
}

// The disk below the pool answers, but late.
func TestHealthDiskSlow(t *testing.T) {
	b, d, v := openDisk(t)
	b.needsProbes()
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for range 32 {
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if err := readBlock(v.Target); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	state := func(slow bool) error {
		h, err := b.c.ControllerGetVolumeHealth(short(t), v.ID)
		if err == nil && h.Has("Slow") != slow {
			err = fmt.Errorf("%v", h)
		}
		return err
	}
	// A minute is looked at as a whole.
	b.must(d.become("delay", "0", "2000"))
	err := rig.Eventually(4*time.Minute, func() error { return state(true) })
	if err == nil {
		b.found(v, "Slow", degraded, "ms", "disk")
	}
	err = errors.Join(err, d.become("linear", "0"))
	close(stop)
	wait.Wait()
	b.must(err)
	b.must(rig.Eventually(4*time.Minute, func() error { return state(false) }))
	b.must(v.Gone())
}

// readBlock reads the first block of a device past the page cache.
func readBlock(device string) error {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(memory)
	_, err = unix.Read(fd, memory)
	return err
}
