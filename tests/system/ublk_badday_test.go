// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// More volumes than the data process takes devices: the next is refused, and served when one has gone.
func TestUblkDeviceLimit(t *testing.T) {
	needUblk(t)
	b := newBed(t, "xfs", 1<<30)
	b.d.Args = append(b.d.Args, "--ublkd", "external")
	b.start()
	b.must(b.d.Ublkd.Start("--max-devices", "1"))
	first, second := b.ublk("first", "block"), b.ublk("second", "block")
	b.must(first.Create())
	b.must(second.Create())
	b.eventually(first.Stage)
	err := second.Stage()
	b.refused("a device too many", err, codes.ResourceExhausted)
	b.says("a device too many", err, "1 ublk devices")
	b.must(first.Unstage())
	b.must(second.Stage())
	b.must(second.Unstage())
	b.must(first.Delete())
	b.must(second.Delete())
}

// The pool is full under a thin volume: its writer hears ENOSPC, the volume says why, and room that is made
// makes it whole again.
func TestUblkPoolFull(t *testing.T) {
	needUblk(t)
	b := open(t, "xfs", 1<<30)
	v := b.d.Volume("thin", rig.BlockCap(), 256*mib)
	v.Params = map[string]string{"device": "ublk"}
	b.must(v.Up())
	b.well(v)
	hog := filepath.Join(b.pool.Path, "hog")
	b.must(fillBut(hog, 2*mib))
	device, err := os.OpenFile(v.Target, os.O_RDWR|unix.O_DIRECT, 0)
	b.must(err)
	defer device.Close()
	block, err := unix.Mmap(-1, 0, int(mib), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	b.must(err)
	defer func() { _ = unix.Munmap(block) }()
	at := int64(0)
	for err = nil; err == nil && at < v.Got; at += mib {
		_, err = device.WriteAt(block, at)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("writing into a full pool, at %d MiB: %v", at/mib, err)
	}
	b.found(v, "PoolFull", degraded, "default", "MiB free")
	b.must(os.Remove(hog))
	_, err = device.WriteAt(block, at-mib)
	b.must(err)
	b.well(v)
	b.must(device.Close())
	b.must(v.Gone())
}

// fillBut makes a file that leaves so many bytes of its file system.
func fillBut(path string, leave int64) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &st); err != nil {
		return err
	}
	return unix.Fallocate(int(file.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-leave)
}

// The data process is killed at any moment of an expansion: asked again it goes through, and the writer
// sees nothing of it.
func TestUblkKilledWhileGrowing(t *testing.T) {
	needUblk(t)
	if !rig.CanGrowUblk() {
		t.Skip("ublk devices in use do not grow on this kernel (Linux 6.16 and newer)")
	}
	seed := time.Now().UnixNano()
	t.Log("seed ", seed)
	random := rand.New(rand.NewSource(seed))
	b := open(t, "xfs", 2<<30)
	volumes, writers, check := b.writers("block")
	v := volumes[0]
	rounds := 4
	if long() {
		rounds = 12
	}
	for round := range rounds {
		want := v.Got + 16*mib
		grown := make(chan error, 1)
		go func() {
			grown <- v.Expand(want, true)
		}()
		time.Sleep(time.Duration(random.Intn(30)) * time.Millisecond)
		b.d.Ublkd.Kill()
		if err := <-grown; err != nil {
			t.Logf("round %d: %v", round, err)
		}
		b.eventually(func() error { return v.Expand(want, true) })
		if size, err := rig.Space(v.Target); err != nil || size != want {
			t.Errorf("round %d: %d bytes instead of %d (%v)", round, size, want, err)
		}
		writers[0].moves(b)
		v.Got = want
	}
	check()
	b.end(volumes, writers)
}

// Driver and data process are replaced by another binary, one after the other, while volumes are in use.
func TestUblkUpgrade(t *testing.T) {
	needUblk(t)
	b := newBed(t, "xfs", 4<<30)
	old, next := b.Path("old-ringvol"), b.Path("new-ringvol")
	for _, path := range []string{old, next} {
		_, err := rig.Run("cp", rig.Binary(), path)
		b.must(err)
	}
	b.d.Binary = old
	b.start()
	volumes, writers, check := b.writers("ext4", "block")
	pid := b.d.Ublkd.Pid()
	b.must(b.d.Term())
	b.must(os.Remove(old))
	b.d.Binary = next
	b.start()
	for _, w := range writers {
		w.moves(b)
	}
	if now := b.d.Ublkd.Pid(); now != pid {
		t.Errorf("the data process was %d and is %d after the driver's upgrade", pid, now)
	}
	more := b.ublk("more", "ext4") // by the new driver, from the old data process
	b.must(more.Up())
	b.must(syscall.Kill(pid, syscall.SIGTERM))
	b.eventually(func() error {
		now := b.d.Ublkd.Pid()
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", now))
		if err == nil && exe != next {
			err = fmt.Errorf("the data process %d is %s", now, exe)
		}
		return err
	})
	for _, w := range writers {
		w.moves(b)
	}
	check()
	b.must(more.Gone())
	b.end(volumes, writers)
}
