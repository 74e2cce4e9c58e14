// SPDX-License-Identifier: Apache-2.0

package system

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// guardName is the name of a volume's device-mapper device.
func guardName(v *rig.Volume) string { return strings.ReplaceAll(tagOf(v.ID), ":", "-") }

func sysfs(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// guarded checks that a block volume's target is a guard over the one loop device of its image, and returns
// the names of both ("dm-0", "loop0").
func (b *bed) guarded(v *rig.Volume, target string) (string, string) {
	b.t.Helper()
	rdev := nodeNumber(b.t, target)
	dir := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(rdev), unix.Minor(rdev))
	if name := sysfs(b.t, dir+"/dm/name"); name != guardName(v) {
		b.t.Errorf("%s is %s, want %s", target, name, guardName(v))
	}
	if uuid := sysfs(b.t, dir+"/dm/uuid"); uuid != "RINGVOL-guard-"+strings.TrimPrefix(guardName(v), "ringvol-") {
		b.t.Errorf("%s has the uuid %s", target, uuid)
	}
	below, _ := filepath.Glob(dir + "/slaves/*")
	if len(below) != 1 || sysfs(b.t, below[0]+"/loop/backing_file") != b.pool.Image(v.ID) {
		b.t.Fatalf("%s stands over %v", target, below)
	}
	real, err := filepath.EvalSymlinks(dir)
	b.must(err)
	table, err := rig.Run("dmsetup", "table", guardName(v))
	b.must(err)
	if lines := strings.Split(strings.TrimSpace(table), "\n"); len(lines) != 2 {
		b.t.Errorf("a table of %d targets: %s", len(lines), table)
	}
	return filepath.Base(real), filepath.Base(below[0])
}

// noGuards: none is left; the keeper is none, and stays.
func (b *bed) noGuards() {
	b.t.Helper()
	b.eventually(func() error {
		names, _ := filepath.Glob("/sys/block/dm-*/dm/name")
		for _, name := range names {
			if text, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(text), "ringvol-") && strings.TrimSpace(string(text)) != "ringvol-keeper" {
				return fmt.Errorf("left behind: %s", text)
			}
		}
		return nil
	})
}

func deviceSize(node string) (int64, error) {
	file, err := os.Open(node)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return file.Seek(0, io.SeekEnd)
}

func TestGuardLife(t *testing.T) {
	needDeviceMapper(t)
	b := open(t, "xfs", 2<<30)
	v := b.volume("life", "block")
	b.must(v.Up())
	dm, _ := b.guarded(v, v.Target)
	sum, err := rig.Fill(v.Target, dataBytes, 1)
	b.must(err)
	tool := b.ls().volume("life")
	if tool.Device == nil || tool.Device.Path != "/dev/"+dm || len(tool.Mounts) != 1 {
		t.Errorf("ls: %+v", tool)
	}
	b.must(v.Publish()) // a repeat
	if again, _ := b.guarded(v, v.Target); again != dm {
		t.Errorf("a repeated publish has made %s of %s", again, dm)
	}
	b.must(v.Unpublish())
	b.must(v.PublishAt(v.Target, true))
	if sysfs(t, "/sys/block/"+dm+"/ro") != "1" {
		t.Errorf("%s is writable, published read-only", dm)
	}
	b.must(v.Unpublish())
	b.must(v.Publish())
	if sysfs(t, "/sys/block/"+dm+"/ro") != "0" {
		t.Errorf("%s is read-only, published writable", dm)
	}
	b.must(v.Down())
	b.noGuards()
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	snapshot, err := v.Snapshot("of-life")
	b.must(err)
	restored := b.volume("restored", "block")
	restored.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
	b.must(restored.Up())
	b.must(rig.Check(restored.Target, dataBytes, sum))
	b.must(b.d.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.must(restored.Gone())
	b.must(v.Gone())
	b.noGuards()
}

// What is counted is the loop device: a dm device is bio-based and fires none of its tracepoints.
func TestGuardProbes(t *testing.T) {
	needDeviceMapper(t)
	b := openProbed(t)
	v := b.volume("counted", "block")
	b.must(v.Up())
	before := b.counts(v, "read")
	b.readBlocks(v.Target, 100)
	after := b.counts(v, "read")
	if after.ops-before.ops != 100 || after.bytes-before.bytes != 100*4096 {
		t.Errorf("100 reads of 4 KiB counted as %v, %v bytes", after.ops-before.ops, after.bytes-before.bytes)
	}
	stats, err := v.Stats()
	b.must(err)
	if total := stats.GetUsage()[0].GetTotal(); total != v.Got {
		t.Errorf("statistics say %d bytes, want %d", total, v.Got)
	}
	b.must(v.Gone())
}

// Grows while it is written, and what was read-only stays so.
func TestGuardGrowsInUse(t *testing.T) {
	needDeviceMapper(t)
	b := open(t, "xfs", 2<<30)
	v := b.volume("grows", "block")
	fixed := b.volume("read-only", "block")
	b.must(v.Up())
	b.must(fixed.Create())
	b.must(fixed.Stage())
	b.must(fixed.PublishAt(fixed.Target, true))
	var stop atomic.Bool
	var writer sync.WaitGroup
	fd, err := unix.Open(v.Target, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	b.must(err)
	defer unix.Close(fd)
	writes := 0
	writer.Go(func() {
		block, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Munmap(block)
		for ; !stop.Load(); writes++ {
			for i := range block {
				block[i] = byte(writes)
			}
			// Across the border between the two parts, which moves with each growth.
			if _, err := unix.Pwrite(fd, block, 31*mib-4096); err != nil {
				t.Errorf("write %d: %v", writes, err)
				return
			}
		}
	})
	for _, size := range []int64{33, 64, 100} {
		b.must(v.Expand(size*mib, true))
		b.must(fixed.Expand(size*mib, true))
		for _, volume := range []*rig.Volume{v, fixed} {
			got, err := deviceSize(volume.Target)
			b.must(err)
			if got != size*mib {
				t.Errorf("%s has %d bytes after growing to %d MiB", volume.Name, got, size)
			}
		}
	}
	stop.Store(true)
	writer.Wait()
	if writes == 0 {
		t.Error("nothing was written meanwhile")
	}
	b.guarded(v, v.Target)
	dm, _ := b.guarded(fixed, fixed.Target)
	if sysfs(t, "/sys/block/"+dm+"/ro") != "1" {
		t.Errorf("%s is writable after growing", dm)
	}
	unix.Close(fd)
	b.must(v.Gone())
	b.must(fixed.Gone())
}

// A tenant who still holds the node has nothing of it: the image is free, the node leads nowhere, and nobody
// else gets it; it goes when it is closed.
func TestGuardHeldByTenant(t *testing.T) {
	needDeviceMapper(t)
	b := open(t, "xfs", 2<<30)
	v := b.volume("held", "block")
	b.must(v.Up())
	// A pod has its own mount of the node, so that it does not hold ours.
	dm, _ := b.guarded(v, v.Target)
	held, err := os.OpenFile("/dev/"+dm, os.O_RDWR, 0)
	b.must(err)
	defer held.Close()
	// Without a sync: the data is in memory when it is unstaged.
	data := make([]byte, dataBytes)
	for i := range data {
		data[i] = byte(i * 7)
	}
	_, err = held.WriteAt(data, 0)
	b.must(err)
	digest := sha256.Sum256(data)
	sum := hex.EncodeToString(digest[:])
	b.must(v.Unpublish())
	b.must(v.Unstage())
	err = v.Stage()
	b.refused("staging what is held", err, codes.FailedPrecondition)
	b.says("staging what is held", err, "fuser -v /dev/dm-")
	if loops := rig.LoopsBelow(b.pool.Path); len(loops) != 0 {
		t.Errorf("the holder keeps %v", loops)
	}
	if _, err := held.WriteAt(make([]byte, 4096), 0); err == nil {
		err = held.Sync()
		if err == nil {
			t.Error("the holder can write still")
		}
	}
	b.must(rig.Check(b.pool.Image(v.ID), dataBytes, sum)) // what was written before is in the image
	b.must(b.d.Kill())
	b.start()
	b.refused("staging after a kill", v.Stage(), codes.FailedPrecondition)
	held.Close()
	b.noGuards()
	b.eventually(v.Stage)
	b.must(v.Publish())
	b.guarded(v, v.Target)
	b.must(v.Gone())
	b.noGuards()
}

// What a driver that was killed between two steps leaves, made by hand.
func TestGuardHalfMade(t *testing.T) {
	needDeviceMapper(t)
	b := open(t, "xfs", 2<<30)
	v := b.volume("half", "block")
	b.must(v.Create())
	uuid := "RINGVOL-guard-" + strings.TrimPrefix(guardName(v), "ringvol-")
	for name, halve := range map[string]func(){
		"a loop device and no guard": func() {
			_, err := rig.Run("dmsetup", "remove", guardName(v))
			b.must(err)
		},
		"a guard without a table": func() {
			_, err := rig.Run("dmsetup", "remove", guardName(v))
			b.must(err)
			_, err = rig.Run("dmsetup", "create", guardName(v), "--notable", "--uuid", uuid)
			b.must(err)
		},
		"a guard with a table that is not in use": func() {
			table, err := rig.Run("dmsetup", "table", guardName(v))
			b.must(err)
			_, err = rig.Run("dmsetup", "remove", guardName(v))
			b.must(err)
			_, err = rig.Run("dmsetup", "create", guardName(v), "--notable", "--uuid", uuid)
			b.must(err)
			file := b.Path("table")
			b.must(os.WriteFile(file, []byte(table), 0o600))
			_, err = rig.Run("dmsetup", "load", guardName(v), file)
			b.must(err)
		},
		"a suspended guard": func() {
			_, err := rig.Run("dmsetup", "suspend", guardName(v))
			b.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b.must(v.Stage())
			b.must(b.d.Kill())
			halve()
			b.start()
			b.must(v.Stage())
			b.must(v.Publish())
			b.guarded(v, v.Target)
			_, err := rig.Fill(v.Target, dataBytes, 3)
			b.must(err)
			b.must(v.Down())
			b.noGuards()
			// And away again, without having been completed.
			b.must(v.Stage())
			b.must(b.d.Kill())
			halve()
			b.start()
			b.must(v.Unstage())
			b.noGuards()
		})
	}
	// Left alone by all, it is found.
	_, err := rig.Run("dmsetup", "create", guardName(v), "--notable", "--uuid", uuid)
	b.must(err)
	b.must(b.d.Term())
	if p := b.check(1); len(p.Findings) != 1 || p.Findings[0].Kind != "StrayGuard" {
		t.Errorf("check: %+v", p.Findings)
	}
	b.check(4, "--repair") // repaired
	b.noGuards()
	b.start()
	b.must(v.Delete())
}

func TestGuardNameTaken(t *testing.T) {
	needDeviceMapper(t)
	b := open(t, "xfs", 2<<30)
	v := b.volume("taken", "block")
	b.must(v.Create())
	for what, create := range map[string][]string{
		"another's device":     {"--table", "0 65536 error"},
		"a table of another's": {"--uuid", "RINGVOL-guard-" + strings.TrimPrefix(guardName(v), "ringvol-"), "--table", "0 65536 error"},
	} {
		_, err := rig.Run("dmsetup", append([]string{"create", guardName(v)}, create...)...)
		b.must(err)
		err = v.Stage()
		b.refused("staging beside "+what, err, codes.FailedPrecondition)
		b.says("staging beside "+what, err, guardName(v), "dmsetup")
		if loops := rig.LoopsBelow(b.pool.Path); len(loops) != 0 {
			t.Errorf("%s: left bound: %v", what, loops)
		}
		b.must(v.Unstage())
		if table, err := rig.Run("dmsetup", "table", guardName(v)); err != nil || !strings.Contains(table, "error") {
			t.Errorf("%s was touched: %v %s", what, err, table)
		}
		_, err = rig.Run("dmsetup", "remove", guardName(v))
		b.must(err)
	}
	b.must(v.Up())
	b.must(v.Gone())
}

// Killed wherever it is, the next driver knows the device again or completes it; what was acknowledged
// stays, and at the end nothing is left.
func TestGuardKilled(t *testing.T) {
	needDeviceMapper(t)
	b := open(t, "xfs", 2<<30)
	v := b.volume("killed", "block")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 11)
	b.must(err)
	dm, _ := b.guarded(v, v.Target)
	b.must(b.d.Kill())
	b.must(rig.Check(v.Target, dataBytes, sum)) // without a driver
	b.start()
	if now, _ := b.guarded(v, v.Target); now != dm {
		t.Errorf("it is %s after a restart, was %s", now, dm)
	}
	b.must(v.Expand(40*mib, true)) // it was adopted
	b.must(v.Down())
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 4 {
		done := make(chan error, 1)
		go func() {
			err := errors.Join(v.Stage(), v.Publish(), v.Unpublish(), v.Unstage())
			done <- err
		}()
		time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
		b.must(b.d.Kill())
		<-done
		b.start()
		b.must(v.Stage())
		b.must(v.Publish())
		b.guarded(v, v.Target)
		b.must(rig.Check(v.Target, dataBytes, sum))
		if round%3 == 0 {
			b.must(v.Expand((44+int64(round)*4)*mib, true))
		}
		b.must(v.Down())
		b.noGuards()
	}
	b.must(v.Gone())
}

// A device whose volume was deleted behind the driver's back is cleared with its guard at the next start.
func TestGuardOfDeletedVolume(t *testing.T) {
	needDeviceMapper(t)
	b := open(t, "xfs", 2<<30)
	v := b.volume("orphan", "block")
	b.must(v.Create())
	b.must(v.Stage())
	b.must(b.d.Term())
	b.must(os.Remove(b.pool.Image(v.ID)))
	if p := b.check(1); len(p.Findings) != 1 || p.Findings[0].Kind != "OrphanDevice" ||
		!strings.HasPrefix(p.Findings[0].Path, "/dev/dm-") {
		t.Errorf("check: %+v", p.Findings)
	}
	b.start()
	b.noGuards()
	b.eventually(func() error {
		if loops := rig.LoopsBelow(b.pool.Path); len(loops) != 0 {
			return fmt.Errorf("left bound: %v", loops)
		}
		return nil
	})
	// The same by hand.
	w := b.volume("orphan-2", "block")
	b.must(w.Create())
	b.must(w.Stage())
	b.must(b.d.Term())
	b.must(os.Remove(b.pool.Image(w.ID)))
	b.check(4, "--repair") // repaired
	b.noGuards()
	b.start()
}

// A device that is taken away behind our back is told of.
func TestGuardGone(t *testing.T) {
	needDeviceMapper(t)
	b := open(t, "xfs", 2<<30)
	v := b.volume("gone", "block")
	b.must(v.Up())
	_, err := rig.Run("dmsetup", "remove", guardName(v))
	b.must(err)
	b.eventually(func() error {
		health, err := b.c.NodeGetVolumeHealth(short(t), v.ID, v.Target, v.Staging)
		if err == nil && !health.Has("DeviceGone") {
			err = fmt.Errorf("it reads %v", health)
		}
		return err
	})
	b.must(v.Gone())
	b.noGuards()
}

// An earlier version published loop nodes; --block-on-loop stands in for it. What is published stays, is
// told of, and ends with the next stage.
func TestGuardUpgrade(t *testing.T) {
	if rig.Device() != "" {
		t.Skip("is about loop devices")
	}
	b := newBed(t, "xfs", 2<<30)
	b.d.Args = []string{"--block-on-loop"}
	b.start()
	v := b.volume("upgraded", "block")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 21)
	b.must(err)
	if health, err := b.c.NodeGetVolumeHealth(short(t), v.ID, v.Target, v.Staging); err != nil || health.Has("LoopNodePublished") {
		t.Errorf("what the operator accepts is told of: %v %v", health, err)
	}
	b.must(b.d.Term())
	b.d.Args, b.d.Guarded = nil, true
	b.start()

	health, err := b.c.NodeGetVolumeHealth(short(t), v.ID, v.Target, v.Staging)
	b.must(err)
	if !health.Has("LoopNodePublished") {
		t.Errorf("nobody is told of the loop node: %v", health)
	}
	b.must(v.Publish()) // repeats
	b.must(v.Stage())
	if unix.Major(nodeNumber(t, v.Target)) != 7 {
		t.Errorf("%s was changed in use", v.Target)
	}
	other := v.Target + "-2"
	err = v.PublishAt(other, false)
	b.refused("publishing the loop node elsewhere", err, codes.FailedPrecondition)
	b.says("publishing the loop node elsewhere", err, v.Name, "delete the pods")
	if _, err := os.Lstat(other); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", other, err)
	}
	b.must(v.Expand(40*mib, true))
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Unpublish())
	err = v.Publish() // nobody has it, so it is guarded, without a stage
	if !rig.HasDeviceMapper() {
		b.refused("publishing without a device mapper", err, codes.FailedPrecondition)
		b.says("publishing without a device mapper", err, "modprobe dm_mod", "--block-on-loop")
	} else {
		b.must(err)
		b.guarded(v, v.Target)
		b.must(rig.Check(v.Target, dataBytes, sum))
		b.must(v.PublishAt(other, false))
		b.guarded(v, other)
		b.must(v.UnpublishAt(other))
		health, err = b.c.NodeGetVolumeHealth(short(t), v.ID, v.Target, v.Staging)
		b.must(err)
		if len(health.Findings) != 0 {
			t.Errorf("guarded, it reads %v", health)
		}
		b.must(v.Unpublish())
	}
	b.must(v.Unstage())
	b.must(v.Delete())
}

// Without device mapper no pod gets a raw block volume on a loop device, and nothing else is refused.
func TestGuardMissing(t *testing.T) {
	if rig.Device() != "" {
		t.Skip("is about loop devices")
	}
	if rig.HasDeviceMapper() {
		t.Skip("this kernel has a device mapper")
	}
	b := newBed(t, "xfs", 2<<30)
	b.start()
	v := b.volume("made-before", "block")
	b.must(v.Create())
	b.must(b.d.Term())
	b.d.Guarded = true
	b.start()
	refusal := func(what string, err error) {
		t.Helper()
		b.refused(what, err, codes.FailedPrecondition)
		b.says(what, err, "modprobe dm_mod", "--block-on-loop")
	}
	refusal("staging", v.Stage())
	if loops := rig.LoopsBelow(b.pool.Path); len(loops) != 0 {
		t.Errorf("left bound: %v", loops)
	}
	refusal("creating", b.volume("new", "block").Create())
	mounted := b.volume("mounted", "ext4")
	b.must(mounted.Up())
	b.must(mounted.Gone())
	b.must(b.d.Term())
	b.d.Env = append(b.d.Env, "RINGVOL_BLOCK_ON_LOOP=true")
	b.start()
	b.must(v.Up())
	b.must(v.Gone())
	b.must(b.d.Term())
	b.d.Env = append(b.d.Env, "RINGVOL_BLOCK_ON_LOOP=")
	b.d.Args = []string{"--services", "identity,controller"} // whose node it is nobody knows here
	b.start()
	b.must(v.Create())
	b.must(v.Delete())
}
