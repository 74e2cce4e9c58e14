// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// writer writes and syncs into a published volume until it is stopped; it must not see an error.
type writer struct {
	stop  atomic.Bool
	count atomic.Int64
	done  chan error
}

func startWriter(path string) *writer {
	w := &writer{done: make(chan error, 1)}
	go func() { w.done <- w.run(path) }()
	return w
}

func (w *writer) run(path string) error {
	name, flags := path, os.O_RDWR
	if info, err := os.Stat(path); err != nil {
		return err
	} else if info.IsDir() {
		name, flags = filepath.Join(path, "log"), flags|os.O_CREATE
	}
	file, err := os.OpenFile(name, flags, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	block, back := make([]byte, 4096), make([]byte, 4096)
	for !w.stop.Load() {
		n := w.count.Load()
		copy(block, fmt.Sprintf("block %d", n))
		at := 8*mib + n%256*4096 // past what Fill wrote
		if _, err := file.WriteAt(block, at); err != nil {
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		if _, err := file.ReadAt(back, at); err != nil {
			return err
		}
		if !slices.Equal(block, back) {
			return fmt.Errorf("block %d reads %.20q", n, back)
		}
		w.count.Add(1)
	}
	return nil
}

func (w *writer) finish() error {
	w.stop.Store(true)
	return <-w.done
}

// More blocks than there were: the writer lives.
func (w *writer) moves(b *bed) {
	b.t.Helper()
	start := w.count.Load()
	b.eventually(func() error {
		if w.count.Load() <= start {
			return fmt.Errorf("the writer stands at %d", start)
		}
		return nil
	})
}

func TestRestart(t *testing.T) {
	for name, end := range map[string]func(d *rig.Driver) error{
		"TERM": (*rig.Driver).Term,
		"KILL": (*rig.Driver).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, "xfs", 4<<30)
			var volumes []*rig.Volume
			var writers []*writer
			var sums []string
			for i, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
				v := b.volume("keeps-"+kind, kind)
				b.must(v.Up())
				sum, err := rig.Fill(v.Target, dataBytes, uint64(20+i))
				b.must(err)
				volumes, sums = append(volumes, v), append(sums, sum)
				writers = append(writers, startWriter(v.Target))
			}
			staged := b.volume("staged-only", "ext4")
			b.must(staged.Create())
			b.must(staged.Stage())
			idle := b.volume("idle", "ext4")
			b.must(idle.Create())
			for range 2 {
				for _, w := range writers {
					w.moves(b)
				}
				b.must(end(b.d))
				for _, w := range writers {
					w.moves(b)
				}
				b.start()
			}
			for i, v := range volumes {
				b.must(rig.Check(v.Target, dataBytes, sums[i]))
				if nodes := b.published(v.ID); !slices.Contains(nodes, b.d.Node) {
					t.Errorf("%s: published on %v after the restart", v.Name, nodes)
				}
				if _, err := v.Stats(); err != nil {
					t.Error(err)
				}
				b.must(v.Stage()) // kubelet repeats what it is not sure of
				b.must(v.Publish())
			}
			s, err := volumes[1].Snapshot("after-restart")
			b.must(err)
			b.must(volumes[1].Expand(volumes[1].Got+32*mib, true))
			for i, w := range writers {
				if err := w.finish(); err != nil {
					t.Errorf("the writer on %s saw: %v", volumes[i].Name, err)
				}
			}
			b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
			for i, v := range volumes {
				b.must(rig.Check(v.Target, dataBytes, sums[i]))
				b.must(v.Gone())
			}
			b.must(staged.Unstage())
			b.must(staged.Delete())
			b.must(idle.Delete())
		})
	}
}

// A node reboots: no devices, no mounts, staging directories still there; kubelet stages again, or
// only takes things down.
func TestReboot(t *testing.T) {
	b := open(t, "xfs", 4<<30)
	var volumes []*rig.Volume
	var sums []string
	for i, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
		v := b.volume("boot-"+kind, kind)
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, uint64(30+i))
		b.must(err)
		volumes, sums = append(volumes, v), append(sums, sum)
	}
	stale := b.volume("stale", "ext4")
	b.must(stale.Up())
	b.must(b.d.Kill())
	reboot(b)
	b.start()
	for _, v := range append(slices.Clone(volumes), stale) {
		if nodes := b.published(v.ID); len(nodes) != 0 {
			t.Errorf("%s: published on %v after a reboot", v.Name, nodes)
		}
	}
	b.must(stale.Gone()) // only what is left of the paths
	for i, v := range volumes {
		b.must(v.Up())
		b.must(rig.Check(v.Target, dataBytes, sums[i]))
		b.must(v.Gone())
	}
}

// reboot takes away every mount and device of the driver's volumes behind its back.
func reboot(b *bed) {
	b.t.Helper()
	mounts := rig.MountsBelow(b.d.Kubelet)
	for i := len(mounts) - 1; i >= 0; i-- {
		b.must(unix.Unmount(mounts[i], 0))
	}
	b.eventually(func() error {
		for _, loop := range rig.LoopsBelow(b.pool.Path) {
			if err := rig.Detach(loop); err != nil {
				return err
			}
		}
		if left := rig.LoopsBelow(b.pool.Path); len(left) > 0 {
			return fmt.Errorf("still bound: %v", left)
		}
		return b.d.Ublkd.DetachAll()
	})
	b.d.Ublkd.Kill()
	b.must(os.RemoveAll(filepath.Dir(b.d.Ublkd.State))) // as /run after a boot
}

// The driver is killed while it works; whatever it did, the retries succeed and nothing is left.
func TestKillWhileWorking(t *testing.T) {
	b := open(t, "xfs", 4<<30)
	for round := range 6 {
		var volumes []*rig.Volume
		for i := range 6 {
			volumes = append(volumes, b.volume(fmt.Sprintf("work-%d-%d", round, i), "ext4"))
		}
		done := make(chan struct{}, len(volumes))
		for _, v := range volumes {
			b.must(v.Paths())
			w := *v
			go func() {
				defer func() { done <- struct{}{} }()
				_ = w.Up()
				_ = w.Gone()
			}()
		}
		// Somewhere in the middle: after as many answers as the round says.
		for range round {
			<-done
		}
		b.must(b.d.Kill())
		for range len(volumes) - round {
			<-done
		}
		b.start()
		for _, v := range volumes {
			b.must(v.Up())
			b.must(v.Gone())
		}
	}
}

// SIGTERM with an idle and a busy client: an end with status 0 and no socket left.
func TestTerm(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	if _, err := os.Stat(b.d.Socket); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(b.d.Socket)
	b.must(err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v", info.Mode())
	}
	b.must(b.d.Term())
	if _, err := os.Stat(b.d.Socket); err == nil {
		t.Error("the socket is still there")
	}
	// A stale socket is replaced.
	b.must(b.d.Start())
	b.must(b.d.Kill())
	b.must(b.d.Start())
	b.must(b.d.AwaitReady())
	// A live one is an error, and the living driver stays.
	second := b.NewDriver()
	second.Socket, second.Log = b.d.Socket, b.Path("second.log")
	second.Args = []string{"--pool", "other=" + b.Path("other-pool")}
	b.must(second.Launch())
	status, err := second.Wait(rig.CallTimeout)
	b.must(err)
	if status == 0 {
		t.Errorf("a second driver on the same socket ended with 0: %s", second.LogTail(5))
	}
	b.must(b.d.AwaitReady())
}
