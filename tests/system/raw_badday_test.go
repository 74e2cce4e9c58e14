// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// swapped puts the pool on a disk that can be made to fail.
func (b *rawBed) swapped(size int64) *disk {
	b.t.Helper()
	d := b.newDisk("below", size)
	failing := &disk{name: fmt.Sprintf("failing-%d", os.Getpid()), below: d.Path, sectors: size / 512}
	_, err := rig.Run("dmsetup", "create", "--noudevsync", failing.name, "--table", failing.table("linear", "0"))
	b.must(err)
	b.Defer(func() error {
		_ = failing.become("linear", "0")
		return rig.Eventually(20*time.Second, func() error {
			_, err := rig.Run("dmsetup", "remove", "--noudevsync", failing.name)
			return err
		})
	})
	for _, device := range rig.MappedDevices(failing.name) {
		b.on(device.Node)
	}
	return failing
}

// The disk fails everything, and works again: the pool says so and comes back, and so do its volumes.
func TestRawPoolDiskFails(t *testing.T) {
	b := bareBed(t)
	d := b.swapped(1200 * mib)
	b.start()
	b.clean()
	v := b.volume("there", "ext4")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 71)
	b.must(err)
	b.must(v.Down())
	block := b.volume("block", "block")
	b.must(block.Up())
	blockSum, err := rig.Fill(block.Target, dataBytes, 72)
	b.must(err)
	b.must(d.become("error"))
	if err := read(block.Target); err == nil {
		t.Error("a disk that fails is read")
	}
	b.refused("creating", b.volume("new", "block").Create(), codes.Unavailable, codes.Internal)
	b.refused("staging", v.Stage(), codes.Unavailable, codes.Internal, codes.FailedPrecondition)
	b.notReady()
	b.must(block.Down())
	b.must(d.become("linear", "0"))
	b.must(b.d.AwaitReady())
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Gone())
	b.must(block.Up())
	b.must(rig.Check(block.Target, dataBytes, blockSum))
	b.must(block.Gone())
	b.accounts()
	b.check(0)
}

// pci is the address of the device behind a disk, "" if it has none.
func pci(device string) string {
	path, err := filepath.EvalSymlinks("/sys/block/" + filepath.Base(device))
	if err != nil {
		return ""
	}
	for ; path != "/"; path = filepath.Dir(path) {
		if _, err := os.Stat(path + "/vendor"); err == nil && strings.Count(filepath.Base(path), ":") == 2 {
			return path
		}
	}
	return ""
}

// The disk is pulled out with a volume in use, and plugged in again, as another device for all that the kernel knows.
func TestRawPoolDiskPulled(t *testing.T) {
	device := os.Getenv("RINGVOL_RAW_DISK")
	if device == "" {
		t.Skip("needs a disk that can be pulled (RINGVOL_RAW_DISK): scripts/vm/tests.sh raw")
	}
	b := bareBed(t)
	b.on(device)
	b.start()
	b.clean()
	v := b.volume("there", "ext4")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 73)
	b.must(err)
	block := b.volume("block", "block")
	b.must(block.Up())
	where := pci(device)
	b.must(os.WriteFile(where+"/remove", []byte("1"), 0))
	b.eventually(func() error { // the kernel takes it away on its own time
		if _, err := os.Stat("/sys/block/" + filepath.Base(device)); err == nil {
			return errors.New("the disk is still there")
		}
		return nil
	})
	if err := read(block.Target); err == nil {
		t.Error("a disk that is gone is read")
	}
	b.refused("creating", b.volume("new", "block").Create(), codes.Unavailable, codes.Internal)
	b.notReady()
	b.refusesPool(device)
	b.must(v.Down())
	b.must(block.Down())
	b.noDevices()
	b.must(os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
	b.must(b.d.AwaitReady())
	now, err := filepath.Glob(where + "/*/block/*")
	b.must(err)
	if len(now) != 1 {
		t.Fatalf("the disk is back as %q", now)
	}
	b.pool.Disks[0] = "/dev/" + filepath.Base(now[0])
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Gone())
	b.must(block.Up())
	b.must(block.Gone())
	b.noDevices()
	b.accounts()
	b.check(0)
}

// A disk that is not there, at the start and later, is waited for.
func TestRawPoolDiskMissing(t *testing.T) {
	b := newRawBed(t, 1200*mib)
	b.start()
	v := b.volume("waits", "ext4")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 74)
	b.must(err)
	b.must(v.Down())
	b.must(b.d.Term())
	b.must(b.pool.RemoveDevices())
	b.must(b.disk.Detach())
	b.must(b.d.Start())
	b.connect()
	b.refusesPool("disk")
	b.refused("staging a volume of a missing pool", v.Stage(), codes.Unavailable)
	b.refused("deleting a volume of a missing pool", v.Delete(), codes.Unavailable)
	b.refused("creating in a missing pool", b.volume("new", "block").Create(), codes.Unavailable)
	b.must(v.Unpublish())
	b.must(v.Unstage())
	if entries, err := os.ReadDir(b.pool.Path); err != nil || len(entries) != 1 {
		t.Errorf("in %s: %v %v", b.pool.Path, entries, err)
	}
	b.must(b.disk.Attach())
	b.pool.Disks = []string{b.disk.Path}
	b.must(b.d.AwaitReady())
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Gone())
	b.accounts()
}

// Two nodes with one disk: the second is told who has it and since when, until the first lets it go or is known to be off.
func TestRawPoolTwoNodes(t *testing.T) {
	b := openRaw(t, 1200*mib)
	v := b.volume("moves", "ext4")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 75)
	b.must(err)
	r := b.ringvol(1, "pool", "release", b.pool.Path) // with a driver
	if !strings.Contains(r.err, b.pool.Path) {
		t.Errorf("%q does not say %q", r.err, b.pool.Path)
	}
	b.must(b.d.Kill())
	r = b.ringvol(1, "pool", "release", b.pool.Path) // with a device of a volume
	if !strings.Contains(r.err, "device") {
		t.Errorf("%q does not say that there is a device", r.err)
	}
	b.start()
	b.must(v.Down())
	b.must(b.d.Kill())
	b.must(b.pool.RemoveDevices())

	// The other node, with the disk and a directory of its own.
	there := &rig.Pool{Name: "default", FS: "xfs", Path: b.Path("pool-there"), Disks: b.pool.Disks}
	b.ringvol(0, "pool", "init", "--device", b.disk.Path, there.Path)
	first, second := b.d, b.NewDriver(there)
	second.Node, second.PoolOptions = "node-b", ""
	second.Socket, second.Log = b.Path("csi-b", "csi.sock"), b.Path("ringvol-b.log")
	other := &rawBed{bed: &bed{Rig: b.Rig, t: t, d: second, pool: there}}
	other.again()
	other.refusesPool("node-a", "since", "pool release")
	other.refused("creating on the second node", other.volume("new", "block").Create(), codes.Unavailable)
	b.must(second.Term())
	b.must(there.RemoveDevices())

	// Released by the one, taken by the other.
	b.ringvol(0, "pool", "release", b.pool.Path)
	other.start()
	moved := other.volume("moves", "ext4")
	b.must(moved.Up())
	b.must(rig.Check(moved.Target, dataBytes, sum))
	b.must(moved.Down())
	b.must(second.Kill())
	b.must(there.RemoveDevices())
	b.again()
	b.refusesPool("node-b", "since")
	b.must(first.Term())
	b.must(b.pool.RemoveDevices())

	// Known to be off, as another machine is.
	b.must(rig.OwnedBy(b.disk.Path, "node-b", "0123456789abcdef0123456789abcdef"))
	r = b.ringvol(1, "pool", "release", b.pool.Path)
	if !strings.Contains(r.err, "node-b") {
		t.Errorf("%q does not say who has it", r.err)
	}
	b.ringvol(0, "pool", "release", "--take-over", b.pool.Path)
	b.start()
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Gone())
	b.accounts()
}

// A disk that is smaller than it was is no place to write to; one that is larger is used when that is said.
func TestRawPoolDiskSizes(t *testing.T) {
	const size = 1200 * mib
	b := openRaw(t, size)
	b.accounts()
	room := b.capacity(nil)
	v := b.volume("there", "block")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 76)
	b.must(err)
	b.must(v.Down())
	b.must(b.d.Term())
	b.must(b.pool.RemoveDevices())
	b.must(b.disk.Resize(size - 100*mib))
	b.again()
	b.refusesPool(b.disk.Path, "smaller")
	b.must(b.d.Term())
	b.must(b.pool.RemoveDevices())
	b.must(b.disk.Resize(size + 300*mib))
	b.start()
	if now := b.capacity(nil); now != room-v.Got {
		t.Errorf("%d MiB of room on a larger disk, were %d", now/mib, (room-v.Got)/mib)
	}
	b.must(b.d.Term())
	b.ringvol(0, "pool", "grow", b.pool.Path)
	b.start()
	b.clean()
	if now := b.capacity(nil); now != room-v.Got+300*mib {
		t.Errorf("%d MiB of room on a disk that has grown by 300, were %d", now/mib, (room-v.Got)/mib)
	}
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))

	// Another disk, beside what is in use.
	b.must(b.d.Term())
	second := b.newDisk("second", 1100*mib)
	b.ringvol(0, "pool", "grow", "--device", second.Path, b.pool.Path)
	b.pool.Disks = append(b.pool.Disks, second.Path)
	b.start()
	b.clean()
	now := b.capacity(nil)
	if now < room-v.Got+300*mib+1090*mib {
		t.Errorf("%d MiB of room with a second disk of 1100, were %d", now/mib, (room-v.Got+300*mib)/mib)
	}
	b.accounts()
	all := b.d.Volume("all", rig.BlockCap(), now)
	b.must(all.Up())
	b.must(onlyZeros(b.mapped(all)))
	if table, err := rig.Run("dmsetup", "deps", rig.DeviceName(all.ID)); err != nil || strings.Count(table, "(") < 2 {
		t.Errorf("it lies on %v %s", err, table)
	}
	b.must(all.Gone())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Down())
	// Without the second disk there is no pool, and no volume of it is lost.
	b.must(b.d.Term())
	b.must(b.pool.RemoveDevices())
	b.must(second.Detach())
	b.again()
	b.refusesPool("disk")
	b.must(second.Attach())
	b.pool.Disks[1] = second.Path
	b.must(b.d.AwaitReady())
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Gone())
	b.accounts()
}

// A header that is destroyed has its copy; without both nothing is guessed.
func TestRawPoolHeaderDestroyed(t *testing.T) {
	const size = 1200 * mib
	b := openRaw(t, size)
	v := b.volume("there", "block")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 77)
	b.must(err)
	b.must(v.Down())
	destroy := func(at int64) []byte {
		file, err := os.OpenFile(b.disk.Path, os.O_RDWR|unix.O_SYNC, 0)
		b.must(err)
		defer file.Close()
		was := make([]byte, 4096)
		_, err = file.ReadAt(was, at)
		b.must(err)
		_, err = file.WriteAt([]byte(strings.Repeat("not a header ", 400)[:4096]), at)
		b.must(err)
		return was
	}
	restore := func(at int64, was []byte) {
		file, err := os.OpenFile(b.disk.Path, os.O_RDWR|unix.O_SYNC, 0)
		b.must(err)
		defer file.Close()
		_, err = file.WriteAt(was, at)
		b.must(err)
	}
	for _, at := range []int64{0, size - mib} {
		b.must(b.d.Term())
		was := destroy(at)
		if p := b.check(1); len(p.Findings) == 0 {
			t.Errorf("check says nothing of a header destroyed at %d", at)
		}
		b.start()
		b.must(v.Up())
		b.must(rig.Check(v.Target, dataBytes, sum))
		b.must(v.Down())
		b.must(b.d.Term())
		restore(at, was)
		b.start()
	}
	b.must(b.d.Term())
	first, last := destroy(0), destroy(size-mib)
	b.again()
	b.refusesPool("disk")
	b.refused("staging", v.Stage(), codes.Unavailable, codes.FailedPrecondition, codes.DataLoss)
	r := b.ringvol(1, "pool", "init", "--device", b.disk.Path, b.pool.Path)
	if r.err == "" {
		t.Error("init says nothing")
	}
	b.must(b.d.Term())
	restore(0, first)
	restore(size-mib, last)
	b.start()
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Gone())
	b.accounts()
	b.must(b.d.Term())
	b.check(0)
}

// The records' file system is full: creating says so, and deleting makes room.
func TestRawPoolRecordsFull(t *testing.T) {
	b := openRaw(t, 1200*mib)
	b.clean()
	v := b.volume("there", "ext4")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 78)
	b.must(err)
	hog := func(root string) error {
		file, err := os.Create(filepath.Join(root, "hog"))
		if err != nil {
			return err
		}
		defer file.Close()
		block := make([]byte, mib)
		for _, part := range []int{int(mib), 4096} {
			for {
				if _, err := file.Write(block[:part]); errors.Is(err, unix.ENOSPC) {
					break
				} else if err != nil {
					return err
				}
			}
		}
		// Directories, inodes and attributes take the rest.
		for i := range 100000 {
			if err := os.WriteFile(filepath.Join(root, fmt.Sprintf("hog-%d", i)), nil, 0o600); err != nil {
				break
			}
		}
		return nil
	}
	b.must(b.pool.Look(hog))
	refused := 0
	for i := range 20 {
		w := b.volume(fmt.Sprintf("new-%d", i), "block")
		if err := w.Create(); err != nil {
			b.refused("creating with full records", err, codes.ResourceExhausted)
			refused++
		}
	}
	t.Logf("%d of 20 refused", refused)
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Down())
	b.must(b.d.Term())
	b.start()
	b.must(v.Delete()) // needs no room
	b.must(b.pool.Look(func(root string) error {
		names, err := filepath.Glob(filepath.Join(root, "hog*"))
		for _, name := range names {
			err = errors.Join(err, os.Remove(name))
		}
		return err
	}))
	for i := range 20 {
		_ = b.deleteByName(fmt.Sprintf("new-%d", i))
	}
	w := b.volume("after", "block")
	b.eventually(w.Create)
	b.must(w.Delete())
	b.accounts()
}
