// SPDX-License-Identifier: Apache-2.0

package system

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func (b *bed) capacity(params map[string]string) int64 {
	b.t.Helper()
	reply, err := b.c.GetCapacity(short(b.t), &csi.GetCapacityRequest{Parameters: params})
	b.must(err)
	return reply.GetAvailableCapacity()
}

// What GetCapacity says is what a create gets, to the last MiB.
func TestCapacityIsTrue(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t, fs, 1<<30)
			first := b.volume("first", "block")
			b.must(first.Create())
			room := b.capacity(nil)
			if room < 512*mib || room > 1<<30 {
				t.Fatalf("%d MiB of 1 GiB", room/mib)
			}
			v := b.d.Volume("more", rig.BlockCap(), room+2*mib)
			b.refused("a volume larger than the room", v.Create(), codes.ResourceExhausted)
			v.Size = room - room%mib - mib
			b.must(v.Create())
			if left := b.capacity(nil); left > 2*mib {
				t.Errorf("%d bytes left after taking %d of %d", left, v.Size, room)
			}
			w := b.d.Volume("one too many", rig.BlockCap(), 16*mib)
			b.refused("one more", w.Create(), codes.ResourceExhausted)
			b.refused("growing", first.Expand(first.Got+64*mib, false), codes.ResourceExhausted,
				codes.OutOfRange)
			b.must(v.Delete())
			b.eventually(func() error {
				if left := b.capacity(nil); left < room-2*mib {
					return fmt.Errorf("%d bytes after the delete, were %d", left, room)
				}
				return nil
			})
			b.must(w.Create())
			b.must(w.Delete())
			b.must(first.Delete())
		})
	}
}

// The file system below is full of somebody else's data.
func TestPoolFull(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t, fs, 1<<30)
			v := b.volume("lives", "ext4")
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, dataBytes, 50)
			b.must(err)
			hog, err := os.Create(filepath.Join(b.pool.Path, "hog"))
			b.must(err)
			for size := int64(512 * mib); size >= 4096; size /= 2 {
				for {
					info, err := hog.Stat()
					b.must(err)
					if unix.Fallocate(int(hog.Fd()), 0, info.Size(), size) != nil {
						break
					}
				}
			}
			hog.Close()
			// Asking measures; by itself the driver looks every now and then.
			if room := b.capacity(nil); room > 2*mib {
				t.Errorf("%d bytes of room in a full pool", room)
			}
			thick := b.volume("thick", "block")
			if fs != "btrfs" {
				thick.Params = map[string]string{"provisioning": "thick"}
			}
			for _, w := range []*rig.Volume{thick, b.volume("thin", "ext4"), b.volume("block", "block")} {
				b.refused("creating in a full pool", w.Create(), codes.ResourceExhausted)
			}
			if names := b.pool.Names("volumes"); len(names) != 1 {
				t.Errorf("left: %v", names)
			}
			b.must(rig.Check(v.Target, dataBytes, sum))
			b.must(v.Down())
			// A driver that starts lets go of what is there, and makes nothing before it knows how.
			b.must(b.d.Term())
			b.start()
			for _, w := range []*rig.Volume{thick, b.volume("thin", "ext4")} {
				b.refused("creating in a pool that was full at the start", w.Create(), codes.ResourceExhausted)
			}
			b.must(v.Delete()) // deleting needs no room
			b.must(os.Remove(filepath.Join(b.pool.Path, "hog")))
			_, err = rig.Run("sync", "-f", b.pool.Path) // btrfs gives back with its next transaction
			b.must(err)
			b.capacity(nil)
			b.eventually(thick.Create)
			b.must(thick.Delete())
		})
	}
}

func (b *bed) notReady() {
	b.t.Helper()
	b.eventually(func() error {
		ready, err := b.d.Probe()
		if err == nil && ready {
			err = errors.New("Probe says ready")
		}
		return err
	})
}

func TestPoolReadOnly(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t, fs, 1<<30)
			v := b.volume("there", "ext4")
			b.must(v.Create())
			// A loop device holds the image open for writing, so this volume is not attached.
			b.must(b.pool.Remount(true))
			w := b.volume("new", "block")
			b.refused("creating", w.Create(), codes.Unavailable, codes.FailedPrecondition, codes.Internal)
			b.refused("deleting", v.Delete(), codes.Unavailable, codes.FailedPrecondition, codes.Internal)
			_, err := v.Snapshot("new")
			b.refused("a snapshot", err, codes.Unavailable, codes.FailedPrecondition, codes.Internal)
			b.refused("growing", v.Expand(v.Got+32*mib, false), codes.Unavailable, codes.FailedPrecondition,
				codes.Internal)
			b.notReady()
			b.must(v.Paths())
			b.must(v.Unpublish())
			b.must(v.Unstage())
			b.must(b.pool.Remount(false))
			b.must(b.d.AwaitReady())
			b.must(w.Up())
			b.must(w.Gone())
			b.must(v.Up())
			b.must(v.Gone())
		})
	}
}

// A pool that is not mounted is missing, not empty; it may come later, and its volumes with it.
func TestPoolMissing(t *testing.T) {
	b := newBed(t, "xfs", 1<<30)
	other := b.another("other")
	b.must(b.d.ServeHTTP())
	b.start()
	v := b.volume("waits", "ext4")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 51)
	b.must(err)
	b.must(v.Down())
	s, err := v.Snapshot("waits")
	b.must(err)
	b.must(b.d.Term())
	b.must(b.pool.Unmount())
	b.d.PoolOptions = ""
	b.must(b.d.Start())
	b.connect()
	b.must(b.d.AwaitReady()) // sidecars go on for the other pool
	b.readyz(503, "pool default", "missing")
	b.refused("deleting a volume of a missing pool", v.Delete(), codes.Unavailable)
	b.refused("deleting a snapshot of a missing pool", b.d.DeleteSnapshot(s.GetSnapshotId()), codes.Unavailable)
	b.refused("staging a volume of a missing pool", v.Stage(), codes.Unavailable)
	b.refused("growing a volume of a missing pool", v.Expand(v.Got+32*mib, false), codes.Unavailable)
	b.refused("creating in a missing pool", b.volume("new", "block").Create(), codes.Unavailable)
	b.must(v.Unpublish())
	b.must(v.Unstage())
	w := b.volume("elsewhere", "ext4")
	w.Params = map[string]string{"pool": "other"}
	b.eventually(w.Create)
	b.must(w.Up())
	b.must(w.Gone())
	if names := b.pool.Names("."); len(names) != 0 {
		t.Errorf("written below the mount point: %v", names)
	}
	b.must(b.pool.Mount())
	b.readyz(200, "ready")
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Gone())
	b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
	b.must(b.d.Term())
	b.must(b.pool.Unmount())
	b.must(other.Unmount())
	b.must(b.d.Start())
	b.connect()
	b.notReady()
}

// NodeUnstageVolume is asked of a driver whose memory has no such volume, as its pool is away: nothing but
// the kernel tells of the device, which has to go all the same, for nobody will ask again.
func TestUnstageWhileThePoolIsAway(t *testing.T) {
	away := map[string]func(b *bed) (back func()){
		"missing": func(b *bed) func() {
			b.must(unix.Mount("tmpfs", b.pool.Path, "tmpfs", 0, "size=64k"))
			b.Defer(func() error { _ = unix.Unmount(b.pool.Path, unix.MNT_DETACH); return nil })
			return func() { b.must(unix.Unmount(b.pool.Path, 0)) }
		},
		"served by another driver": func(b *bed) func() {
			second := b.NewDriver(b.pool)
			second.Socket, second.Log, second.Kubelet = b.Path("csi2", "csi.sock"), b.Path("second.log"), b.Path("kubelet2")
			b.must(second.Start())
			b.must(second.AwaitReady())
			return func() {
				second.Disconnect()
				b.must(second.Term())
			}
		},
	}
	for why, leave := range away {
		for _, kind := range []string{"block", "ext4"} {
			t.Run(kind+", "+why, func(t *testing.T) {
				b := open(t, "xfs", 1<<30)
				v := b.volume("staged", kind)
				b.must(v.Up())
				b.must(b.d.Kill())
				back := leave(b)
				b.d.PoolOptions = ""
				b.must(b.d.Start())
				b.connect()
				b.notReady()
				b.refused("unstaging what is published", v.Unstage(), codes.FailedPrecondition)
				b.must(v.Unpublish())
				if kind != "block" { // as by a driver that was killed in the middle of it
					b.must(unix.Unmount(v.Staging, 0))
				}
				b.must(v.Unstage())
				b.eventually(func() error {
					if left := append(rig.LoopsBelow(b.pool.Path), b.d.Ublkd.Devices()...); len(left) != 0 {
						return fmt.Errorf("still bound: %v", left)
					}
					return nil
				})
				b.must(v.Unstage())
				back()
				b.must(b.d.AwaitReady())
				b.must(v.Delete())
			})
		}
	}
}

// readyz waits for a status with words in its text.
func (b *bed) readyz(wanted int, words ...string) {
	b.t.Helper()
	b.eventually(func() error {
		status, body, err := b.d.Get("/readyz")
		for _, word := range words {
			if err == nil && (status != wanted || !strings.Contains(body, word)) {
				err = fmt.Errorf("status %d: %s", status, body)
			}
		}
		return err
	})
}

// A pool vanishes below a running driver.
func TestPoolVanishes(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("here", "ext4")
	b.must(v.Create())
	b.must(unix.Unmount(b.pool.Path, unix.MNT_DETACH))
	b.notReady()
	b.refused("deleting", v.Delete(), codes.Unavailable)
	b.refused("creating", b.volume("new", "block").Create(), codes.Unavailable)
	if names := b.pool.Names("."); len(names) != 0 {
		t.Errorf("written below the mount point: %v", names)
	}
	b.eventually(b.pool.Mount)
	b.must(b.d.AwaitReady())
	b.must(v.Up())
	b.must(v.Gone())
}

const recordXattr = "trusted.ringvol"

// Damaged records: their names stay taken, their bytes stay, everything else goes on.
func TestDamagedRecords(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	healthy := b.volume("healthy", "ext4")
	b.must(healthy.Create())
	spoil := map[string]func(record []byte) []byte{
		"noise":        func([]byte) []byte { return []byte("\x00\xff\x13garbage") },
		"empty":        func([]byte) []byte { return nil },
		"a-bit":        func(r []byte) []byte { r[len(r)/2] ^= 1; return r },
		"cut":          func(r []byte) []byte { return r[:len(r)/2] },
		"from-future":  func(r []byte) []byte { return []byte(strings.Replace(string(r), "record 1", "record 9", 1)) },
		"another-name": nil, // the record of another volume
	}
	volumes := map[string]*rig.Volume{}
	for name := range spoil {
		volumes[name] = b.volume(name, "block")
		b.must(volumes[name].Create())
	}
	b.must(b.d.Term())
	buffer := make([]byte, 8192)
	other, err := unix.Getxattr(b.pool.Image(healthy.ID), recordXattr, buffer)
	b.must(err)
	for name, change := range spoil {
		image := b.pool.Image(volumes[name].ID)
		record := slices.Clone(buffer[:other])
		if change != nil {
			mine := make([]byte, 8192)
			n, err := unix.Getxattr(image, recordXattr, mine)
			b.must(err)
			record = change(mine[:n])
		}
		b.must(unix.Setxattr(image, recordXattr, record, 0))
	}
	gone := filepath.Join(b.pool.Path, "volumes", "no-record")
	b.must(os.WriteFile(gone, []byte("whose is this?"), 0o600))
	b.start()
	for name, v := range volumes {
		// A volume whose record is whole would be returned; these are neither that nor made anew.
		err := v.Create()
		if err == nil {
			t.Errorf("%s: created over a damaged record", name)
		} else {
			b.refused("creating "+name, err, codes.DataLoss, codes.Internal, codes.AlreadyExists,
				codes.FailedPrecondition)
		}
		err = v.Delete()
		if err != nil {
			b.refused("deleting "+name, err, codes.DataLoss, codes.Internal, codes.FailedPrecondition)
		} else {
			t.Errorf("%s: DeleteVolume says it is gone", name)
		}
		if _, err := os.Stat(b.pool.Image(v.ID)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b.refused("staging "+name, v.Stage(), codes.DataLoss, codes.Internal, codes.FailedPrecondition)
	}
	reply, err := b.c.ListVolumes(short(t), &csi.ListVolumesRequest{})
	b.must(err)
	if len(reply.GetEntries()) != 1 || reply.GetEntries()[0].GetVolume().GetVolumeId() != healthy.ID {
		t.Errorf("listed: %v", reply.GetEntries())
	}
	b.must(healthy.Up())
	b.must(healthy.Gone())
	if text, err := os.ReadFile(gone); err != nil || len(text) == 0 {
		t.Errorf("a file without a record: %q %v", text, err)
	}
	b.untidy = true
}

// tools makes a directory to put in front of PATH.
func (b *bed) tools(scripts map[string]string) string {
	b.t.Helper()
	dir := b.Path("tools")
	b.must(os.MkdirAll(dir, 0o755))
	for name, script := range scripts {
		b.must(os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	return dir
}

func TestMkfsMissing(t *testing.T) {
	b := newBed(t, "xfs", 2<<30)
	b.d.Env = []string{"PATH=" + b.tools(nil)}
	b.start()
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		err := b.volume("no-"+kind, kind).Create()
		b.refused("creating without mkfs."+kind, err, codes.FailedPrecondition)
		b.says("creating without mkfs."+kind, err, "mkfs."+kind)
	}
	if names := b.pool.Names("volumes"); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	v := b.volume("raw", "block")
	b.must(v.Up())
	b.must(v.Gone())
}

func TestMkfsFails(t *testing.T) {
	for what, script := range map[string]string{
		"fails":          "echo the disk is purple >&2; exit 3",
		"is killed":      "kill -9 $$",
		"does nothing":   "exit 0",
		"says very much": "yes purple | head -c 1000000 >&2; exit 1",
	} {
		t.Run(what, func(t *testing.T) {
			b := newBed(t, "xfs", 2<<30)
			dir := b.tools(map[string]string{"mkfs.ext4": script, "mke2fs": script, "mkfs.btrfs": script})
			b.d.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
			b.start()
			for _, kind := range []string{"ext4", "btrfs"} {
				v := b.volume("made-"+kind, kind)
				err := v.Create()
				if err == nil && what == "does nothing" {
					// Found out when it is mounted at the latest.
					b.refused("staging what was not formatted", v.Stage(), codes.FailedPrecondition,
						codes.Internal, codes.DataLoss)
					b.must(v.Delete())
					continue
				}
				b.refused("creating when mkfs "+what, err, codes.FailedPrecondition, codes.Internal)
				if what == "fails" {
					b.says("creating when mkfs fails", err, "purple")
				}
			}
			if names := b.pool.Names("volumes"); len(names) != 0 {
				t.Errorf("left: %v", names)
			}
			for _, tool := range []string{"mkfs.ext4", "mke2fs", "mkfs.btrfs"} {
				b.must(os.Remove(filepath.Join(dir, tool)))
			}
			for _, kind := range []string{"ext4", "btrfs"} {
				v := b.volume("made-"+kind, kind)
				b.must(v.Up())
				b.must(v.Gone())
			}
		})
	}
}

func TestTwoDriversOnOnePool(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("mine", "ext4")
	b.must(v.Up())
	second := b.NewDriver(b.pool)
	second.Socket, second.Log, second.Kubelet = b.Path("csi2", "csi.sock"), b.Path("second.log"), b.Path("kubelet2")
	b.must(second.Launch())
	if err := second.AwaitServing(); err != nil {
		t.Logf("the second driver ended: %v", err) // refusing to start is an answer as well
	} else {
		if ready, err := second.Probe(); err == nil && ready {
			t.Error("the second driver says it is ready")
		}
		w := second.Volume("theirs", rig.BlockCap(), 16*mib)
		b.refused("creating with the second", w.Create(), codes.Unavailable, codes.FailedPrecondition)
		w.ID = v.ID
		b.refused("deleting with the second", w.Delete(), codes.Unavailable, codes.FailedPrecondition)
	}
	if _, err := v.Stats(); err != nil {
		t.Error(err)
	}
	b.must(v.Gone())
	b.must(b.d.Term())
	if second.Running() {
		b.must(second.AwaitReady())
		w := second.Volume("theirs", rig.BlockCap(), 16*mib)
		b.must(w.Create())
		b.must(w.Delete())
		b.must(second.Leaks()) // nobody reclaims the trash after it
		second.Disconnect()
		b.must(second.Term())
	}
}

// No loop device can be had. The kernel adds devices as they are asked for, so they cannot be used
// up from outside; what is left to see is that the test machine is such a one.
func TestNoFreeLoopDevice(t *testing.T) {
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		b := open(t, "xfs", 1<<30)
		v := b.volume("none", "block")
		b.must(v.Create())
		b.refused("staging", v.Stage(), codes.ResourceExhausted, codes.FailedPrecondition)
		b.must(v.Delete())
		return
	}
	t.Skip("loop devices are added on demand here, they cannot be used up")
}

// A snapshot may thaw what an attempt of ours cut short has left frozen; what somebody else has
// frozen it leaves alone, also where a mark of an earlier boot lies on the image.
func TestOnlyOurOwnFreezeIsThawed(t *testing.T) {
	b := open(t, "ext4", 1<<30)
	v := b.volume("frozen", "ext4")
	b.must(v.Up())
	root, err := os.Open(v.Staging)
	b.must(err)
	defer root.Close()
	const freeze, thaw = 0xc0045877, 0xc0045878 // FIFREEZE, FITHAW
	t.Cleanup(func() {
		if root, err := os.Open(v.Staging); err == nil {
			_ = unix.IoctlSetInt(int(root.Fd()), thaw, 0)
			root.Close()
		}
	})
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	b.must(err)
	mark := func(boot string) { // src/blockio/boot_mark.c: the boot's id and a digest of the text, here none
		digest := sha256.Sum256(nil)
		b.must(unix.Setxattr(b.pool.Image(v.ID), "trusted.ringvol.frozen", append([]byte(boot), digest[:16]...), 0))
	}
	b.must(unix.IoctlSetInt(int(root.Fd()), freeze, 0))
	_, err = v.Snapshot("s")
	b.refused("a snapshot of what somebody else froze", err, codes.FailedPrecondition)
	mark("00000000-0000-4000-8000-000000000000")
	_, err = v.Snapshot("s")
	b.refused("the same with a mark of an earlier boot", err, codes.FailedPrecondition)
	mark(strings.TrimSpace(string(boot)))
	s, err := v.Snapshot("s")
	b.must(err)
	if err := unix.IoctlSetInt(int(root.Fd()), thaw, 0); err != unix.EINVAL {
		t.Errorf("thawing what a snapshot has thawed: %v", err)
	}
	root.Close() // or the volume stays in use
	b.must(b.pool.Strays())
	b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
	b.must(v.Gone())
}
