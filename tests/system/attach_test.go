// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// holdMounts keeps this test's mounts of today alive in a mount namespace of its own until the result
// is called. Other tests' mounts are let go there, as several may run on one machine.
func (b *bed) holdMounts() func() {
	b.t.Helper()
	const script = `awk '{print $2}' /proc/self/mounts | grep "^$1/" | grep -v "^$2/" |
		sort -r | xargs -r -n1 umount -l 2>/dev/null; echo held; exec sleep 600`
	cmd := exec.Command("sh", "-c", script, "sh", os.TempDir(), b.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.StdoutPipe()
	b.must(err)
	b.must(cmd.Start())
	released := false
	release := func() {
		if !released {
			released = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	b.Defer(func() error { release(); return nil })
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		b.t.Fatal(err)
	}
	return release
}

// A mount that is held elsewhere keeps its device after everything was undone here. The image must
// not be attached a second time, whatever is tried; once it is let go it can be.
func TestNeverAttachedTwice(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 2<<30)
			v := b.volume("held", kind)
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, dataBytes, 40)
			b.must(err)
			release := b.holdMounts()
			b.must(v.Unpublish())
			if err := v.Unstage(); err != nil { // refusing to say "detached" is right too
				b.refused("unstage of a held volume", err, codes.FailedPrecondition, codes.Internal)
			}
			attempt := func(what string) {
				t.Helper()
				b.refused(what, v.Stage(), codes.FailedPrecondition)
				b.refused("deleting it, "+what, v.Delete(), codes.FailedPrecondition)
				if loops := rig.LoopsBelow(b.pool.Path); len(loops) != 1 {
					t.Fatalf("%s: bound: %v", what, loops)
				}
			}
			for range 3 {
				attempt("staging while it is held")
			}
			b.must(b.d.Term())
			b.start()
			attempt("staging after a restart")
			b.must(b.d.Kill())
			b.start()
			attempt("staging after a kill")
			release()
			b.eventually(func() error {
				err := v.Stage()
				if err != nil && rig.Code(err) != codes.FailedPrecondition {
					return rig.Stop(err)
				}
				return err
			})
			b.must(v.Publish())
			b.must(rig.Check(v.Target, dataBytes, sum))
			b.must(v.Gone())
		})
	}
}

// Somebody else has the image: by the lock the driver takes, or on a loop device of theirs.
func TestForeignHolders(t *testing.T) {
	for name, hold := range map[string]func(b *bed, image string) func(){
		"a lock": func(b *bed, image string) func() {
			file, err := os.OpenFile(image, os.O_RDWR, 0)
			b.must(err)
			b.must(unix.Flock(int(file.Fd()), unix.LOCK_EX))
			return func() { file.Close() }
		},
		"a loop device": func(b *bed, image string) func() {
			device, err := rig.Attach(image)
			b.must(err)
			return func() { b.must(rig.Detach(device)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, "xfs", 1<<30)
			v := b.volume("foreign", "ext4")
			b.must(v.Create())
			release := hold(b, b.pool.Image(v.ID))
			err := v.Stage()
			b.refused("staging", err, codes.FailedPrecondition)
			b.refused("deleting", v.Delete(), codes.FailedPrecondition)
			release()
			b.eventually(v.Stage)
			b.must(v.Publish())
			b.must(v.Gone())
		})
	}
}

func sumOf(t *testing.T, path string) []byte {
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		t.Fatal(err)
	}
	return sum.Sum(nil)
}

// The image of a mount volume holds something the driver did not put there, or nothing any more: it
// is never formatted.
func TestNeverFormatted(t *testing.T) {
	for what, spoil := range map[string]func(image string) error{
		"another file system": func(image string) error {
			_, err := rig.Run("mkfs.btrfs", "-q", "-f", image)
			return err
		},
		"a partition table": func(image string) error {
			return overwrite(image, func(head []byte) {
				clear(head)
				copy(head[446:], []byte{0x80, 1, 1, 0, 0x83, 254, 255, 255, 0, 8, 0, 0, 0, 0, 1, 0})
				head[510], head[511] = 0x55, 0xaa
			})
		},
		"LUKS": func(image string) error {
			return overwrite(image, func(head []byte) {
				clear(head)
				copy(head, "LUKS\xba\xbe\x00\x01aes\x00")
			})
		},
		"zeroes": func(image string) error {
			return overwrite(image, func(head []byte) { clear(head) })
		},
		"noise": func(image string) error {
			return overwrite(image, func(head []byte) {
				for i := range head {
					head[i] = byte(i*7 + i>>8)
				}
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			b := open(t, "xfs", 2<<30)
			v := b.d.Volume("spoiled", rig.MountCap("ext4"), 160*mib)
			b.must(v.Create())
			image := b.pool.Image(v.ID)
			b.must(spoil(image))
			before := sumOf(t, image)
			for range 2 {
				err := v.Stage()
				b.refused("staging", err, codes.FailedPrecondition, codes.Internal, codes.DataLoss)
				if rig.IsMount(v.Staging) {
					t.Error("it is mounted")
				}
			}
			b.must(v.Unstage())
			if !bytes.Equal(before, sumOf(t, image)) {
				t.Error("the image was written to")
			}
			b.must(v.Delete())
		})
	}
}

// overwrite changes the first 128 KiB and, as ext4 keeps copies further on, leaves the rest.
func overwrite(image string, change func(head []byte)) error {
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	head := make([]byte, 128<<10)
	if _, err := file.ReadAt(head, 0); err != nil {
		return err
	}
	change(head)
	if _, err := file.WriteAt(head, 0); err != nil {
		return err
	}
	return file.Sync()
}

// What a tenant writes on a raw volume is the tenant's.
func TestRawWithSignature(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	v := b.volume("raw", "block")
	b.must(v.Up())
	_, err := rig.Run("mkfs.ext4", "-q", "-F", v.Target)
	b.must(err)
	b.must(v.Down())
	before := sumOf(t, b.pool.Image(v.ID))
	mount := *v
	mount.Cap = rig.MountCap("ext4")
	mount.Name = "raw-as-mount"
	b.must(mount.Paths())
	b.refused("mounting it", mount.Stage(), codes.InvalidArgument, codes.FailedPrecondition)
	b.must(v.Up())
	b.must(v.Down())
	if !bytes.Equal(before, sumOf(t, b.pool.Image(v.ID))) {
		t.Error("the image was written to")
	}
	b.must(v.Delete())
}

// An unclean file system (its node lost power) is replayed or mended, not refused, not formatted.
func TestUncleanFileSystems(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 4<<30)
			v := b.volume("unclean", kind)
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, dataBytes, 41)
			b.must(err)
			// The image as it is while mounted: what a crash would leave.
			s, err := v.Snapshot("crash")
			b.must(err)
			w := b.volume("after", kind)
			w.Source = rig.FromSnapshot(s.GetSnapshotId())
			b.must(w.Up())
			b.must(rig.Check(w.Target, dataBytes, sum))
			b.must(w.Gone())
			b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
			b.must(v.Gone())
		})
	}
	t.Run("ext4 with errors", func(t *testing.T) {
		b := open(t, "xfs", 1<<30)
		v := b.volume("errors", "ext4")
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, 42)
		b.must(err)
		b.must(v.Down())
		// The superblock says "errors found" (s_state, checked with its checksum by debugfs).
		_, err = rig.Run("debugfs", "-w", "-R", "set_super_value state 2", b.pool.Image(v.ID))
		b.must(err)
		b.must(v.Up())
		b.must(rig.Check(v.Target, dataBytes, sum))
		b.must(v.Gone())
	})
}
