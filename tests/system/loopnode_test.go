// SPDX-License-Identifier: Apache-2.0

package system

import (
	"os"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// A tenant whose volume is published as a loop node can free the device, give it another file and rewrite its
// tag, without any capability. The driver goes by what the kernel says a device is bound to.

const loopChangeFd = 0x4c06 // LOOP_CHANGE_FD

// loopNodes gives the arguments with which a driver publishes block volumes as loop nodes.
// The rig does so itself where there is no device mapper.
func loopNodes() []string {
	if rig.HasDeviceMapper() {
		return []string{"--block-on-loop"}
	}
	return nil
}

func openTenant(t *testing.T) *bed {
	t.Helper()
	if rig.Device() != "" {
		t.Skip("is about loop devices")
	}
	b := newBed(t, "xfs", 2<<30)
	b.d.Args = append(b.d.Args, loopNodes()...)
	return b.start()
}

// throughNode does what a pod does with the node it has.
func (b *bed) throughNode(v *rig.Volume, do func(fd int) error) {
	b.t.Helper()
	node, err := os.OpenFile(v.Target, os.O_RDONLY, 0)
	b.must(err)
	defer node.Close()
	b.must(do(int(node.Fd())))
}

func retag(tag string) func(fd int) error {
	return func(fd int) error {
		info, err := unix.IoctlLoopGetStatus64(fd)
		if err != nil {
			return err
		}
		info.File_name = [64]uint8{}
		copy(info.File_name[:63], tag)
		return unix.IoctlLoopSetStatus64(fd, info)
	}
}

func free(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0) }

func tagOfNode(t *testing.T, v *rig.Volume) (tag string) {
	t.Helper()
	node, err := os.Open(v.Target)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	info, err := unix.IoctlLoopGetStatus64(int(node.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(info.File_name[:])
}

func numberOfNode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Rdev
}

func isMounted(dir, path string) bool {
	for _, mount := range rig.MountsBelow(dir) {
		if mount == path {
			return true
		}
	}
	return false
}

func (b *bed) perhapsRestart(restart bool) {
	b.t.Helper()
	if restart {
		b.must(b.d.Kill())
		b.start()
	}
}

func beforeAndAfterRestart(t *testing.T, run func(t *testing.T, restart bool)) {
	for name, restart := range map[string]bool{"at once": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) { run(t, restart) })
	}
}

func TestTenantRewritesItsTag(t *testing.T) {
	for _, tag := range []string{"", "mine", "ringvol:01234567:89abcdef"} {
		t.Run("to "+tag, func(t *testing.T) {
			beforeAndAfterRestart(t, func(t *testing.T, restart bool) {
				b := openTenant(t)
				v := b.volume("tenant", "block")
				b.must(v.Up())
				sum, err := rig.Fill(v.Target, dataBytes, 1)
				b.must(err)
				b.throughNode(v, retag(tag))
				b.perhapsRestart(restart)
				b.refused("deleting it", v.Delete(), codes.FailedPrecondition)
				b.must(v.Stage()) // its device is found
				b.must(v.Unpublish())
				b.must(v.Unstage())
				if loops := rig.LoopsBelow(b.pool.Path); len(loops) != 0 {
					t.Fatalf("unstaged, and bound: %v", loops)
				}
				b.must(v.Up())
				b.must(rig.Check(v.Target, dataBytes, sum))
				b.must(v.Gone())
			})
		})
	}
}

func TestTenantTakesTheTagOfAnother(t *testing.T) {
	beforeAndAfterRestart(t, func(t *testing.T, restart bool) {
		b := openTenant(t)
		mine, other := b.volume("a", "block"), b.volume("b", "block")
		b.must(mine.Up())
		b.must(other.Up())
		sum, err := rig.Fill(mine.Target, dataBytes, 2)
		b.must(err)
		b.throughNode(mine, retag(tagOfNode(t, other)))
		b.perhapsRestart(restart)
		b.must(other.Down())
		b.must(bound(b.pool.Image(mine.ID)))
		b.must(rig.Check(mine.Target, dataBytes, sum))
		b.must(other.Delete())
		b.must(rig.Check(mine.Target, dataBytes, sum))
		b.must(mine.Gone())
	})
}

// stageUnder stages volumes until one has the device number.
func (b *bed) stageUnder(number uint64) *rig.Volume {
	b.t.Helper()
	for _, name := range []string{"b", "c", "d", "e", "f", "g", "h", "i"} {
		v := b.volume(name, "block")
		b.must(v.Up())
		if numberOfNode(b.t, v.Target) == number {
			return v
		}
	}
	b.untidy = true
	b.t.Skip("no other volume was given the number that the tenant had freed")
	return nil
}

func TestTenantFreesItsDevice(t *testing.T) {
	beforeAndAfterRestart(t, func(t *testing.T, restart bool) {
		b := openTenant(t)
		b.untidy = true // which of them has the number is known later
		v := b.volume("a", "block")
		b.must(v.Up())
		number := numberOfNode(t, v.Target)
		b.perhapsRestart(true) // a driver counts numbers from 0
		b.throughNode(v, free)
		other := b.stageUnder(number)
		sum, err := rig.Fill(other.Target, dataBytes, 3)
		b.must(err)
		otherIs := func(what string) {
			t.Helper()
			b.must(bound(b.pool.Image(other.ID)))
			if !isMounted(b.Dir, other.Target) {
				t.Fatalf("%s: the other volume is not published any more", what)
			}
			b.must(rig.Check(other.Target, dataBytes, sum))
		}
		b.perhapsRestart(restart)
		if !restart { // without memory nobody knows whose the node is
			b.refused("unstaging what is published", v.Unstage(), codes.FailedPrecondition)
			b.refused("deleting what is published", v.Delete(), codes.FailedPrecondition)
			otherIs("refused")
		}
		err = unpublish(b, v.ID, v.Target)
		if err == nil && isMounted(b.Dir, v.Target) {
			t.Error("unpublished, and its node is there")
		}
		if err != nil {
			b.refused("unpublishing", err, codes.FailedPrecondition)
			b.says("unpublishing", err, other.Name)
			b.must(unix.Unmount(v.Target, 0))
		}
		otherIs("unpublished")
		b.must(v.Unstage())
		otherIs("unstaged")
		b.must(v.Delete())
		otherIs("deleted")
	})
}

// Nobody has the number since.
func TestTenantFreesItsDeviceAndNobodyHasIt(t *testing.T) {
	beforeAndAfterRestart(t, func(t *testing.T, restart bool) {
		b := openTenant(t)
		v := b.volume("a", "block")
		b.must(v.Up())
		b.throughNode(v, free)
		b.perhapsRestart(restart)
		b.must(v.Unpublish())
		b.must(v.Unstage())
		b.must(v.Delete())
	})
}

func TestTenantSwapsItsFile(t *testing.T) {
	b := openTenant(t)
	v := b.volume("a", "block")
	rig.WithMode(v.Cap, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)
	b.must(v.Up())
	file, err := os.Create(b.Path("tenants.img"))
	b.must(err)
	defer file.Close()
	b.must(file.Truncate(v.Got))
	node, err := os.Open(v.Target)
	b.must(err)
	err = unix.IoctlSetInt(int(node.Fd()), loopChangeFd, int(file.Fd()))
	node.Close()
	if err != nil {
		b.must(v.Gone())
		t.Skipf("the kernel swaps no file: %v", err)
	}
	b.refused("deleting it", v.Delete(), codes.FailedPrecondition)
	b.eventually(func() error { // the watch has seen it
		return b.abnormal(v, "DeviceGone")
	})
	b.must(v.Unpublish())
	b.must(v.Unstage())
	if err := bound(file.Name()); err == nil {
		t.Error("unstaged, and the tenant's file is still on its device")
	}
	b.must(v.Delete())
}

func (b *bed) abnormal(v *rig.Volume, reason string) error {
	h, err := b.c.NodeGetVolumeHealth(short(b.t), v.ID, v.Target, v.Staging)
	if err == nil && !h.Has(reason) {
		err = os.ErrNotExist
	}
	return err
}
