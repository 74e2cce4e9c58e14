// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// writes starts a writer that does not outlive the test.
func (b *rawBed) writes(path string) *writer {
	w := startWriter(path)
	b.t.Cleanup(func() { w.stop.Store(true) })
	return w
}

// What is in use works on without a driver, and the next one knows it again.
func TestRawPoolRestart(t *testing.T) {
	b := openRaw(t, 4<<30)
	var volumes []*rig.Volume
	var writers []*writer
	var sums, nodes []string
	for i, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
		v := b.volume("keeps-"+kind, kind)
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, uint64(20+i))
		b.must(err)
		volumes, sums, nodes = append(volumes, v), append(sums, sum), append(nodes, b.mapped(v))
		writers = append(writers, b.writes(v.Target))
	}
	idle := b.volume("idle", "ext4")
	b.must(idle.Create())
	for _, end := range []func(*rig.Driver) error{(*rig.Driver).Term, (*rig.Driver).Kill, (*rig.Driver).Kill} {
		for _, w := range writers {
			w.moves(b.bed)
		}
		b.must(end(b.d))
		for _, w := range writers {
			w.moves(b.bed)
		}
		b.start()
	}
	for i, v := range volumes {
		b.must(rig.Check(v.Target, dataBytes, sums[i]))
		if now := b.mapped(v); now != nodes[i] {
			t.Errorf("%s is %s after the restarts, was %s", v.Name, now, nodes[i])
		}
		if on := b.published(v.ID); !slices.Contains(on, b.d.Node) {
			t.Errorf("%s: published on %v after the restart", v.Name, on)
		}
		b.must(v.Stage())
		b.must(v.Publish())
		b.must(v.Expand(v.Got+32*mib, true))
	}
	for i, w := range writers {
		if err := w.finish(); err != nil {
			t.Errorf("the writer on %s saw: %v", volumes[i].Name, err)
		}
	}
	for i, v := range volumes {
		b.must(rig.Check(v.Target, dataBytes, sums[i]))
		b.must(v.Gone())
	}
	b.must(idle.Delete())
	b.accounts()
	b.noDevices()
}

// rebooted takes away every mount and device behind the driver's back, those of the records too.
func (b *rawBed) rebooted() {
	b.t.Helper()
	b.must(b.d.Kill())
	mounts := rig.MountsBelow(b.d.Kubelet)
	for i := len(mounts) - 1; i >= 0; i-- {
		b.must(unix.Unmount(mounts[i], 0))
	}
	b.must(b.pool.RemoveDevices())
}

// After a reboot there are no devices, and the disk may have another number.
func TestRawPoolReboot(t *testing.T) {
	b := openRaw(t, 4<<30)
	var volumes []*rig.Volume
	var sums []string
	for i, kind := range []string{"ext4", "xfs", "block"} {
		v := b.volume("boot-"+kind, kind)
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, uint64(30+i))
		b.must(err)
		volumes, sums = append(volumes, v), append(sums, sum)
	}
	stale := b.volume("stale", "ext4")
	b.must(stale.Up())
	was := b.disk.Path
	b.rebooted()
	b.must(b.disk.Detach())
	other := b.newDisk("other", 16*mib) // takes the number
	b.must(b.disk.Attach())
	b.pool.Disks = []string{b.disk.Path}
	if other.Path != was || b.disk.Path == was {
		t.Logf("the disk was %s, is %s; the other is %s", was, b.disk.Path, other.Path)
	}
	b.start()
	for _, v := range append(slices.Clone(volumes), stale) {
		if on := b.published(v.ID); len(on) != 0 {
			t.Errorf("%s: published on %v after a reboot", v.Name, on)
		}
	}
	b.must(stale.Gone())
	for i, v := range volumes {
		b.must(v.Up())
		b.mapped(v)
		b.must(rig.Check(v.Target, dataBytes, sums[i]))
		b.must(v.Gone())
	}
	b.accounts()
}

// A device that was left suspended stands, with all that was written meanwhile; the next driver lets it go on.
func TestRawPoolSuspended(t *testing.T) {
	b := openRaw(t, 1200*mib)
	v := b.volume("stands", "block")
	b.must(v.Up())
	w := b.writes(v.Target)
	w.moves(b.bed)
	b.must(b.d.Kill())
	_, err := rig.Run("dmsetup", "--noudevsync", "suspend", rig.DeviceName(v.ID))
	b.must(err)
	b.must(b.d.Start())
	w.moves(b.bed) // whether the pool is ready or not yet
	b.must(b.d.AwaitReady())
	b.connect()
	b.must(w.finish())
	b.mapped(v)
	b.must(v.Gone())
	b.accounts()
}

// While an operation holds a device still, whoever looks for another one does not let it go on.
func TestRawPoolSuspendedStays(t *testing.T) {
	b := openRaw(t, 1200*mib)
	v, other := b.volume("held", "block"), b.volume("other", "block")
	b.must(v.Up())
	_, err := rig.Run("dmsetup", "--noudevsync", "suspend", rig.DeviceName(v.ID))
	b.must(err)
	b.must(other.Create())
	b.must(other.Paths())
	b.must(other.Unstage()) // it is not staged
	state, err := rig.Run("dmsetup", "info", "-c", "--noheadings", "-o", "suspended", rig.DeviceName(v.ID))
	b.must(err)
	if strings.TrimSpace(state) != "Suspended" {
		t.Errorf("the device is %s", state)
	}
	_, err = rig.Run("dmsetup", "--noudevsync", "resume", rig.DeviceName(v.ID))
	b.must(err)
	b.must(v.Gone())
	b.must(other.Gone())
	b.accounts()
}

// What a driver that was killed between two steps leaves, made by hand.
func TestRawPoolHalfMade(t *testing.T) {
	b := openRaw(t, 1200*mib)
	v := b.volume("half", "block")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 3)
	b.must(err)
	device := rig.MappedDevices(rig.DeviceName(v.ID))[0]
	table, err := rig.Run("dmsetup", "table", device.Name)
	b.must(err)
	file := b.makeFile(b.Path("table"), table)
	b.must(v.Down())
	for name, args := range map[string][][]string{
		"without a table": {{"create", device.Name, "--notable", "--uuid", device.UUID}},
		"a table that is not in use": {{"create", device.Name, "--notable", "--uuid", device.UUID},
			{"load", device.Name, file}},
		"suspended": {{"create", device.Name, file, "--uuid", device.UUID}, {"suspend", device.Name}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			for _, use := range []func(){
				func() {
					b.must(v.Up())
					b.mapped(v)
					b.must(rig.Check(v.Target, dataBytes, sum))
					b.must(v.Down())
				},
				func() { b.must(v.Unstage()) },
			} {
				b.must(b.d.Kill())
				for _, command := range args {
					_, err := rig.Run("dmsetup", append([]string{"--noudevsync"}, command...)...)
					b.must(err)
				}
				b.start()
				use()
				b.noDevices()
			}
		})
	}
	b.must(v.Delete())
	b.accounts()
}

// A name that is another's is left alone and said.
func TestRawPoolNameTaken(t *testing.T) {
	b := openRaw(t, 1200*mib)
	v := b.volume("taken", "block")
	b.must(v.Up())
	device := rig.MappedDevices(rig.DeviceName(v.ID))[0]
	b.must(v.Down())
	other := b.newDisk("other", 64*mib)
	for what, args := range map[string][]string{
		"another's device":      {"--table", "0 65536 error"},
		"a table of another's":  {"--uuid", device.UUID, "--table", "0 65536 linear " + other.Path + " 0"},
		"another volume's part": {"--uuid", device.UUID, "--table", fmt.Sprintf("0 65536 linear %s %d", b.disk.Path, 1<<21)},
	} {
		_, err := rig.Run("dmsetup", append([]string{"--noudevsync", "create", device.Name}, args...)...)
		b.must(err)
		before, err := rig.Run("dmsetup", "table", device.Name)
		b.must(err)
		err = v.Stage()
		b.refused("staging beside "+what, err, codes.FailedPrecondition)
		b.says("staging beside "+what, err, device.Name, "dmsetup")
		b.must(v.Unstage())
		if after, err := rig.Run("dmsetup", "table", device.Name); err != nil || after != before {
			t.Errorf("%s was touched: %v %s", what, err, after)
		}
		_, err = rig.Run("dmsetup", "--noudevsync", "remove", device.Name)
		b.must(err)
	}
	b.must(v.Up())
	b.must(v.Gone())
	b.accounts()
}

// Who opens each device as it appears, as udev does, is in nobody's way.
func TestRawPoolOpeners(t *testing.T) {
	b := openRaw(t, 1200*mib)
	var stop atomic.Bool
	var wait sync.WaitGroup
	opened := 0
	wait.Go(func() {
		for !stop.Load() {
			devices, _ := b.pool.VolumeDevices()
			for _, device := range devices {
				if file, err := os.Open(device.Node); err == nil {
					opened++
					time.Sleep(30 * time.Millisecond)
					file.Close()
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
	for i := range 6 {
		v := b.volume(fmt.Sprintf("looked-at-%d", i), []string{"block", "ext4"}[i%2])
		b.must(v.Create())
		for range 3 {
			b.eventually(v.Stage) // a device that was let go may still be open
			b.must(v.Publish())
			b.must(v.Expand(v.Got+8*mib, true))
			b.must(v.Down())
		}
		b.must(v.Delete())
	}
	stop.Store(true)
	wait.Wait()
	t.Logf("opened %d times", opened)
	b.noDevices()
	b.accounts()
}

// Who still has the node open when the volume is let go reaches nothing through it, whoever has the place then.
func TestRawPoolHeld(t *testing.T) {
	b := openRaw(t, 1200*mib)
	v := b.volume("held", "block")
	b.must(v.Up())
	node := b.mapped(v)
	held, err := os.OpenFile(node, os.O_RDWR, 0)
	b.must(err)
	defer held.Close()
	data := []byte(strings.Repeat("written before. ", 256))
	_, err = held.WriteAt(data, mib) // in memory only, when it is let go
	b.must(err)
	b.must(v.Unpublish())
	b.must(v.Unstage())
	if err := read(node); err == nil {
		t.Error("the holder reads still")
	}
	if _, err := held.WriteAt(data, 4*mib); err == nil && held.Sync() == nil {
		t.Error("the holder can write still")
	}
	if err := v.Stage(); err != nil {
		b.refused("staging what is held", err, codes.FailedPrecondition, codes.Aborted)
		b.says("staging what is held", err, "fuser")
	} else {
		b.must(v.Unstage())
	}
	b.must(b.d.Kill())
	b.start()
	if err := read(node); err == nil {
		t.Error("the holder reads again after a restart")
	}
	copied := b.volume("copied", "block")
	copied.Source = rig.FromVolume(v.ID)
	b.must(copied.Up())
	back := make([]byte, len(data))
	file, err := os.Open(copied.Target)
	b.must(err)
	_, err = file.ReadAt(back, mib)
	b.must(errors.Join(err, file.Close()))
	if string(back) != string(data) {
		t.Errorf("what was written before is lost: %.20q", back)
	}
	b.must(copied.Gone())
	b.must(v.Delete())
	b.clean() // nobody waits for the holder
	all := b.d.Volume("all", rig.BlockCap(), b.capacity(nil))
	b.must(all.Up())
	b.must(onlyZeros(b.mapped(all)))
	if err := read(node); err == nil {
		t.Error("the holder reads another's volume")
	}
	held.Close()
	b.must(all.Gone())
	b.noDevices()
	b.accounts()
}

// Killed wherever it is, the next driver knows the device again or completes it.
func TestRawPoolKilled(t *testing.T) {
	b := openRaw(t, 1200*mib)
	v := b.volume("killed", "block")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 11)
	b.must(err)
	b.must(v.Down())
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 8 {
		done := make(chan error, 1)
		want := v.Got
		go func() {
			w := *v
			done <- errors.Join(w.Stage(), w.Publish(), w.Expand(want+8*mib, true), w.Unpublish(), w.Unstage())
		}()
		time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
		b.must(b.d.Kill())
		<-done
		b.start()
		b.must(v.Stage())
		b.must(v.Publish())
		b.mapped(v)
		b.must(rig.Check(v.Target, dataBytes, sum))
		b.must(v.Expand(want+8*mib, true))
		if size, err := deviceSize(v.Target); err != nil || size != v.Got {
			t.Errorf("round %d: %d bytes of %d (%v)", round, size, v.Got, err)
		}
		b.must(v.Down())
		b.noDevices()
	}
	b.must(v.Delete())
	b.accounts()
}
