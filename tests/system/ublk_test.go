// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// What only ublk volumes have: a data process beside the driver. That they can do everything else is
// told by the other tests, run with RINGVOL_TEST_DEVICE=ublk.

func needUblk(t *testing.T) {
	t.Helper()
	if err := rig.HaveUblk(); err != nil {
		t.Skip(err)
	}
}

func (b *bed) ublk(name, kind string) *rig.Volume {
	v := b.volume(name, kind)
	v.Params = map[string]string{"device": "ublk"}
	return v
}

// writers makes a volume of each kind, with something known in it and somebody writing to it.
func (b *bed) writers(kinds ...string) (volumes []*rig.Volume, writers []*writer, check func()) {
	b.t.Helper()
	var sums []string
	for i, kind := range kinds {
		v := b.ublk("ublk-"+kind, kind)
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, uint64(30+i))
		b.must(err)
		volumes, sums = append(volumes, v), append(sums, sum)
		writers = append(writers, startWriter(v.Target))
	}
	return volumes, writers, func() {
		b.t.Helper()
		for i, v := range volumes {
			b.must(rig.Check(v.Target, dataBytes, sums[i]))
		}
	}
}

func (b *bed) end(volumes []*rig.Volume, writers []*writer) {
	b.t.Helper()
	for _, w := range writers {
		b.must(w.finish())
	}
	for _, v := range volumes {
		// I/O goes on before the driver has seen its take-over of the device end.
		b.eventually(func() error {
			err := v.Down()
			if err != nil && rig.Code(err) != codes.Aborted {
				err = rig.Stop(err)
			}
			return err
		})
		b.must(v.Gone())
	}
}

// The driver starts a data process when the first volume needs it; neither's death, nor that of both,
// is seen by who writes.
func TestUblkProcessesDie(t *testing.T) {
	needUblk(t)
	b := open(t, "xfs", 4<<30)
	volumes, writers, check := b.writers("ext4", "xfs", "block")
	if b.d.Ublkd.Pid() == 0 {
		t.Fatal("there is no data process")
	}
	for round := range 3 {
		pid := b.d.Ublkd.Pid()
		b.must(b.d.Kill())
		for _, w := range writers {
			w.moves(b)
		}
		b.start()
		if now := b.d.Ublkd.Pid(); now != pid {
			t.Errorf("round %d: the data process was %d and is %d after the driver's restart", round, pid, now)
		}
		b.d.Ublkd.Kill() // the driver starts another
		for _, w := range writers {
			w.moves(b)
		}
		b.must(b.d.Kill())
		b.d.Ublkd.Kill()
		b.start()
		for _, w := range writers {
			w.moves(b)
		}
		check()
	}
	b.end(volumes, writers)
}

// A data process that somebody else runs: without it the calls say so, and go through when it is there.
func TestUblkExternal(t *testing.T) {
	needUblk(t)
	b := newBed(t, "xfs", 2<<30)
	b.d.Args = append(b.d.Args, "--ublkd", "external")
	b.start()
	v := b.ublk("external", "ext4")
	b.must(v.Create())
	b.says("NodeStageVolume without a data process", v.Stage(), "ringvol ublkd")
	b.refused("NodeStageVolume without a data process", v.Stage(), codes.Unavailable)
	b.must(b.d.Ublkd.Start())
	b.eventually(v.Stage)
	b.must(v.Publish())
	w := startWriter(v.Target)
	w.moves(b)
	b.d.Ublkd.Kill()
	time.Sleep(700 * time.Millisecond) // the driver looks, and may not start one
	if b.d.Ublkd.Pid() != 0 {
		t.Error("the driver started a data process of its own")
	}
	b.must(b.d.Ublkd.Start())
	w.moves(b)
	b.end([]*rig.Volume{v}, []*writer{w})
}

// A volume whose data process is dead is in use all the same, and so for a driver that knows nothing of
// it yet.
func TestUblkDeleteWhileDown(t *testing.T) {
	needUblk(t)
	b := newBed(t, "xfs", 2<<30)
	b.d.Args = append(b.d.Args, "--ublkd", "external")
	b.start()
	b.must(b.d.Ublkd.Start())
	v := b.ublk("down", "block")
	b.must(v.Create())
	b.eventually(v.Stage)
	b.d.Ublkd.Kill()
	b.refused("DeleteVolume", v.Delete(), codes.FailedPrecondition)
	b.must(b.d.Kill())
	b.start()
	b.refused("DeleteVolume after a restart", v.Delete(), codes.FailedPrecondition)
	b.must(b.d.Ublkd.Start())
	b.eventually(v.Unstage)
	b.must(v.Delete())
}

// long: RINGVOL_UBLK_LONG asks for the full numbers; without it fewer do, for the lane's sake.
func long() bool { return os.Getenv("RINGVOL_UBLK_LONG") != "" }

// The driver is killed again and again while fio writes and verifies. The data process serves on while
// there is no driver.
func TestUblkDriverKilledUnderLoad(t *testing.T) {
	needUblk(t)
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed")
	}
	kills, interval := 5, time.Duration(0)
	if long() {
		kills, interval = 30, 2*time.Second
	}
	b := open(t, "xfs", 1<<30)
	v := b.ublk("load", "block")
	b.must(v.Up())
	pid := b.d.Ublkd.Pid()
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- rig.FioVerifies(v.Target, done) }()
	b.servesOn(0)
	for range kills {
		begin := time.Now()
		b.must(b.d.Kill())
		b.servesOn(100)
		b.start()
		b.servesOn(100)
		select {
		case err := <-ended:
			t.Fatal("fio ended: ", err)
		case <-time.After(time.Until(begin.Add(interval))):
		}
	}
	close(done)
	b.must(<-ended)
	if now := b.d.Ublkd.Pid(); now != pid {
		t.Errorf("the data process was %d and is %d", pid, now)
	}
	served, err := b.d.Ublkd.Served()
	b.must(err)
	t.Logf("%d kills of the driver, %d requests served", kills, served)
	b.must(v.Gone())
}

// servesOn waits until the data process has served so many more requests than it had.
func (b *bed) servesOn(more uint64) {
	b.t.Helper()
	before, err := b.d.Ublkd.Served()
	b.must(err)
	b.eventually(func() error {
		now, err := b.d.Ublkd.Served()
		if err == nil && now <= before+more {
			err = fmt.Errorf("%d requests served, and then no more than %d", before, now)
		}
		return err
	})
}

// More devices than ublks_max (64), which some kernels enforce for all.
func TestUblkManyDevices(t *testing.T) {
	needUblk(t)
	count := 70
	if long() {
		count = 200
	}
	b := open(t, "xfs", 8<<30)
	kernel := kernelUblks()
	first := b.ublk("many-0", "block")
	b.must(first.Up()) // starts the data process
	pid := b.d.Ublkd.Pid()
	resident, available := residentBytes(t, pid), availableBytes(t)
	all := []*rig.Volume{first}
	for i := 1; i < count; i++ {
		v := b.ublk(fmt.Sprintf("many-%d", i), "block")
		b.must(v.Up())
		all = append(all, v)
	}
	idle := residentBytes(t, pid)
	var sums []string
	for i, v := range all {
		sum, err := rig.Fill(v.Target, 256<<10, uint64(i))
		b.must(err)
		sums = append(sums, sum)
	}
	for i, v := range all {
		b.must(rig.Check(v.Target, 256<<10, sums[i]))
	}
	n := int64(count - 1)
	t.Logf("%d devices, each: %d KiB resident in the data process, %d KiB once written to; "+
		"the machine has %d KiB less available", count, (idle-resident)/n>>10,
		(residentBytes(t, pid)-resident)/n>>10, (available-availableBytes(t))/n>>10)
	for _, v := range all {
		b.must(v.Gone())
	}
	if left := b.d.Ublkd.Devices(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if now := kernelUblks(); now != kernel {
		t.Errorf("the kernel had %d ublk devices and has %d", kernel, now)
	}
}

func kernelUblks() int {
	names, _ := filepath.Glob("/sys/class/ublk-char/ublkc*")
	return len(names)
}

func residentBytes(t *testing.T, pid int) int64 {
	return kilobytes(t, fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
}

func availableBytes(t *testing.T) int64 {
	return kilobytes(t, "/proc/meminfo", "MemAvailable:")
}

// kilobytes reads "NAME: N kB" from a file of the kernel's, as bytes.
func kilobytes(t *testing.T, file, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var n int64
		if rest, found := strings.CutPrefix(line, name); found {
			if _, err := fmt.Sscan(rest, &n); err == nil {
				return n << 10
			}
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return 0
}

func TestUblkOff(t *testing.T) {
	b := newBed(t, "xfs", 1<<30)
	b.d.Args = append(b.d.Args, "--ublkd", "off")
	b.start()
	v := b.ublk("off", "ext4")
	b.refused("CreateVolume", v.Create(), codes.FailedPrecondition)
	b.says("CreateVolume", v.Create(), "--ublkd")
}

// A kernel without ublk: said when the volume is asked for, with the module's name, and no sooner.
func TestUblkMissing(t *testing.T) {
	if rig.HaveUblk() == nil {
		t.Skip("this kernel has ublk")
	}
	b := open(t, "xfs", 1<<30)
	v := b.ublk("missing", "ext4")
	err := v.Create()
	b.refused("CreateVolume", err, codes.FailedPrecondition)
	b.says("CreateVolume", err, "ublk_drv")
	if b.d.Ublkd.Pid() != 0 {
		b.must(errors.New("a data process was started all the same"))
	}
}

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
