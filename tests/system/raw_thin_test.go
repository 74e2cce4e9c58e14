// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

var thin = map[string]string{"provisioning": "thin"}

func needThin(t *testing.T) {
	t.Helper()
	needRawPools(t)
	if _, err := rig.Run("dmsetup", "target-version", "thin-pool"); err != nil {
		t.Skip("this kernel has no dm-thin (modprobe dm_thin_pool)")
	}
}

func openThin(t *testing.T, size int64) *rawBed {
	t.Helper()
	needThin(t)
	return openRaw(t, size)
}

func (b *rawBed) thinVolume(name, kind string) *rig.Volume {
	v := b.volume(name, kind)
	v.Params = thin
	return v
}

// onThin checks that a staged volume is one target over the thin pool, and returns its node.
func (b *rawBed) onThin(v *rig.Volume) string {
	b.t.Helper()
	devices := rig.MappedDevices(rig.DeviceName(v.ID))
	if len(devices) != 1 || !strings.HasPrefix(devices[0].UUID, "RINGVOL-disk-") || devices[0].Suspended {
		b.t.Fatalf("%s has the devices %+v", v.Name, devices)
	}
	table, err := rig.Run("dmsetup", "table", devices[0].Name)
	b.must(err)
	if fields := strings.Fields(table); len(fields) != 5 || fields[2] != "thin" {
		b.t.Errorf("%s has the table %q", v.Name, table)
	}
	return devices[0].Node
}

// ids are the ids that files have, by name.
func (b *rawBed) ids() (found map[string]string) {
	b.t.Helper()
	found = map[string]string{}
	b.must(b.pool.Look(func(root string) error {
		for _, dir := range []string{"volumes", "snapshots", "trash", "templates"} {
			entries, err := os.ReadDir(root + "/" + dir)
			if err != nil {
				return err
			}
			for _, entry := range entries {
				text := make([]byte, 16<<10)
				n, err := unix.Lgetxattr(root+"/"+dir+"/"+entry.Name(), "trusted.ringvol.map", text)
				if err != nil {
					continue
				}
				for line := range strings.Lines(string(text[:n])) {
					if id, is := strings.CutPrefix(strings.TrimSpace(line), "thin="); is {
						found[dir+"/"+entry.Name()] = id
					}
				}
			}
		}
		return nil
	}))
	return found
}

func TestRawPoolThinLife(t *testing.T) {
	b := openThin(t, 5<<30)
	for _, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
		t.Run(kind, func(t *testing.T) {
			outer := b.bed.t
			b.bed.t = t
			defer func() { b.bed.t = outer }()
			b.thinLife(kind)
		})
	}
	b.accounts()
	// Templates are there as long as the driver is.
	ids := b.ids()
	maps.DeleteFunc(ids, func(name, _ string) bool { return strings.HasPrefix(name, "templates/thin-") })
	if len(ids) != 0 {
		t.Errorf("left: %v", ids)
	}
	b.noDevices()
	b.check(0)
}

func (b *rawBed) thinLife(kind string) {
	b.t.Helper()
	v := b.thinVolume("life-"+kind, kind)
	b.twice(v.Create)
	b.twice(v.Stage)
	b.twice(v.Publish)
	node := b.onThin(v)
	if size, err := deviceSize(node); err != nil || size != v.Got {
		b.t.Errorf("%s has %d bytes of %d (%v)", node, size, v.Got, err)
	}
	if l := b.ls().volume(v.Name); l.Provisioning != "thin" || l.Device == nil || l.Device.Type != "disk" || l.Device.Path != node {
		b.t.Errorf("ls: %+v %+v", l, l.Device)
	}
	before, err := rig.Fill(v.Target, dataBytes, 1)
	b.must(err)
	b.usage(v, kind)
	snapshot, err := v.Snapshot("snap-" + kind)
	b.must(err)
	again, err := v.Snapshot("snap-" + kind)
	b.must(err)
	if again.GetSnapshotId() != snapshot.GetSnapshotId() {
		b.t.Errorf("%v and %v", snapshot, again)
	}
	clone := b.copyOf("clone-"+kind, kind, rig.FromVolume(v.ID), thin)
	clone.Size = v.Got
	b.must(clone.Create())
	after, err := rig.Fill(v.Target, dataBytes, 2)
	b.must(err)

	restored := b.copyOf("restored-"+kind, kind, rig.FromSnapshot(snapshot.GetSnapshotId()), thin)
	restored.Size = v.Got + 64*mib
	b.twice(restored.Create)
	thick := b.copyOf("thick-"+kind, kind, rig.FromSnapshot(snapshot.GetSnapshotId()), map[string]string{"provisioning": "thick"})
	thick.Size = v.Got
	err = thick.Create()
	b.refused("thick of thin", err, codes.FailedPrecondition)
	b.says("thick of thin", err, "provisioning: thin")
	b.must(clone.Up())
	b.must(restored.Up())
	b.onThin(restored)
	b.must(rig.Check(v.Target, dataBytes, after))
	b.must(rig.Check(clone.Target, dataBytes, before))
	b.must(rig.Check(restored.Target, dataBytes, before))
	b.must(clone.Gone())
	b.must(v.Expand(v.Got+32*mib, true))
	b.must(v.Down())
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, after))
	b.must(v.Gone())
	b.must(rig.Check(restored.Target, dataBytes, before))
	b.twice(func() error { return b.d.DeleteSnapshot(snapshot.GetSnapshotId()) })
	b.must(rig.Check(restored.Target, dataBytes, before))
	b.must(restored.Gone())
}

// Encrypted ones have snapshots and clones likewise, whose key is that of their source.
func TestRawPoolThinEncrypted(t *testing.T) {
	needCrypt(t)
	b := openThin(t, 3<<30)
	secret := map[string]string{"key": "not much of a secret, but a long one"}
	params := map[string]string{"provisioning": "thin", "encryption": "luks2"}
	for _, kind := range []string{"ext4", "block"} {
		v := b.thinVolume("secret-"+kind, kind)
		v.Params, v.Secrets = params, secret
		b.must(v.Create())
		b.must(v.Up())
		b.onCrypt(v)
		before, err := rig.Fill(v.Target, dataBytes, 3)
		b.must(err)
		snapshot, err := v.Snapshot("snap-" + kind)
		b.must(err)
		clone := b.copyOf("clone-"+kind, kind, rig.FromVolume(v.ID), params)
		restored := b.copyOf("restored-"+kind, kind, rig.FromSnapshot(snapshot.GetSnapshotId()), params)
		clone.Secrets, restored.Secrets, clone.Size, restored.Size = secret, secret, v.Got, v.Got
		b.must(clone.Create())
		after, err := rig.Fill(v.Target, dataBytes, 4)
		b.must(err)
		b.must(errors.Join(clone.Up(), restored.Up()))
		b.must(rig.Check(v.Target, dataBytes, after))
		b.must(rig.Check(clone.Target, dataBytes, before))
		b.must(rig.Check(restored.Target, dataBytes, before))
		b.must(errors.Join(v.Gone(), clone.Gone(), restored.Gone(), b.d.DeleteSnapshot(snapshot.GetSnapshotId())))
	}
	b.noDevices()
	b.agrees()
	b.accounts()
	b.check(0)
}

// What is made of a thick volume, and what is refused.
func TestRawPoolThinRefusals(t *testing.T) {
	b := openThin(t, 3<<30)
	thick := b.volume("thick", "ext4")
	b.must(thick.Up())
	sum, err := rig.Fill(thick.Target, dataBytes, 1)
	b.must(err)
	_, err = thick.Snapshot("of-thick")
	b.refused("a snapshot of a thick volume", err, codes.FailedPrecondition)
	b.says("a snapshot of a thick volume", err, "provisioning: thin")
	b.must(thick.Down())
	erased := b.thinVolume("erased", "ext4")
	erased.Params = map[string]string{"provisioning": "thin", "eraseOnDelete": "zero"}
	err = erased.Create()
	b.refused("eraseOnDelete", err, codes.FailedPrecondition)
	b.says("eraseOnDelete", err, "thick")
	copied := b.copyOf("copied", "ext4", rig.FromVolume(thick.ID), thin)
	copied.Size = thick.Got
	b.must(copied.Create())
	b.must(copied.Up())
	b.onThin(copied)
	b.must(rig.Check(copied.Target, dataBytes, sum))
	err = copied.Modify(map[string]string{"eraseOnDelete": "zero"})
	b.refused("eraseOnDelete later", err, codes.FailedPrecondition)
	b.says("eraseOnDelete later", err, "thick")
	b.must(errors.Join(copied.Gone(), thick.Gone()))
	b.accounts()
}

// Drivers come and go under volumes in use; then all is as after a reboot.
func TestRawPoolThinRestart(t *testing.T) {
	b := openThin(t, 4<<30)
	v, block := b.thinVolume("stays", "xfs"), b.thinVolume("block", "block")
	b.must(errors.Join(v.Up(), block.Up()))
	sum, err := rig.Fill(v.Target, dataBytes, 1)
	b.must(err)
	snapshot, err := v.Snapshot("snap")
	b.must(err)
	w := b.writes(block.Target)
	for _, end := range []func(*rig.Driver) error{(*rig.Driver).Term, (*rig.Driver).Kill} {
		w.moves(b.bed)
		b.must(end(b.d))
		w.moves(b.bed)
		b.start()
		b.onThin(v)
		more := b.thinVolume("more", "ext4")
		b.must(errors.Join(more.Up(), more.Gone()))
	}
	b.must(w.finish())
	b.must(rig.Check(v.Target, dataBytes, sum))

	b.rebooted()
	if devices := rig.MappedDevices("ringvol-thin"); len(devices) != 0 {
		t.Fatalf("still there: %v", devices)
	}
	b.start()
	restored := b.copyOf("restored", "xfs", rig.FromSnapshot(snapshot.GetSnapshotId()), thin)
	restored.Size = v.Got
	b.must(restored.Up())
	b.must(errors.Join(v.Up(), block.Up()))
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(rig.Check(restored.Target, dataBytes, sum))
	b.must(errors.Join(v.Gone(), block.Gone(), restored.Gone(), b.d.DeleteSnapshot(snapshot.GetSnapshotId())))
	b.accounts()
	b.check(0)

	// An end in order, with nothing in use, takes the thin pool's devices along; its images stay.
	b.must(b.d.Term())
	if devices := rig.MappedDevices("ringvol-thin"); len(devices) != 0 {
		t.Errorf("still there: %v", devices)
	}
	b.start()
}

// A driver that is killed between suspend and resume leaves both devices of an encrypted volume so.
func TestRawPoolThinSuspended(t *testing.T) {
	b := openThin(t, 3<<30)
	v := b.thinVolume("stands", "block")
	b.must(v.Up())
	w := b.writes(v.Target)
	w.moves(b.bed)
	b.must(b.d.Kill())
	uuid8, err := b.pool.UUID8()
	b.must(err)
	for _, name := range []string{rig.DeviceName(v.ID), "ringvol-thinpool-" + uuid8} {
		_, err := rig.Run("dmsetup", "--noudevsync", "suspend", name)
		b.must(err)
	}
	b.must(b.d.Start())
	b.must(b.d.AwaitReady())
	b.connect()
	w.moves(b.bed)
	b.must(w.finish())
	b.onThin(v)
	b.must(v.Gone())
	b.accounts()
}

// Blocks that a deleted volume had read as zeros in the next one, whether all of a block was written or a part.
func TestRawPoolThinStale(t *testing.T) {
	b := openThin(t, 3<<30)
	mark := []byte("a tenant's own bytes, not for others ")
	for round := range rounds(3) {
		v := b.thinVolume(fmt.Sprintf("first-%d", round), "block")
		v.Size = 512 * mib
		b.must(v.Up())
		b.must(marked(v.Target, mark, true))
		b.must(v.Gone())
		b.clean()
		next := b.thinVolume(fmt.Sprintf("next-%d", round), "block")
		next.Size = 512 * mib
		b.must(next.Up())
		b.must(onlyZeros(next.Target))
		other := []byte("another's ")
		b.must(marked(next.Target, other, false))
		b.must(withoutMark(next.Target, mark[:16]))
		b.must(next.Gone())
	}
	b.clean()
	// The thin pool's own bytes are overwritten before a thick volume has them.
	b.must(rig.Eventually(3*time.Minute, func() error {
		if maps, err := b.pool.Maps(); err != nil || len(maps) > 0 {
			return fmt.Errorf("the thin pool is still there: %v (%v)", maps, err)
		}
		return nil
	}))
	thick := b.volume("thick", "block")
	thick.Size = 2 << 30
	b.must(thick.Up())
	b.must(onlyZeros(thick.Target))
	b.must(thick.Gone())
	b.accounts()
}

// When the area is used up who writes gets ENOSPC, and goes on when there is room again.
func TestRawPoolThinFull(t *testing.T) {
	b := newRawBed(t, 2<<30)
	needThin(t)
	b.d.PoolOptions = ",overcommit=3"
	b.start()
	v, ballast := b.thinVolume("fills", "block"), b.volume("ballast", "block")
	v.Size, ballast.Size = 1200*mib, 700*mib
	b.must(v.Create())
	b.must(ballast.Up())
	b.must(v.Up())
	mark := []byte("written before it was full ")
	err := marked(v.Target, mark, true)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EIO) {
		t.Fatalf("a full pool: %v", err)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full pool says %v", err)
	}
	b.must(ballast.Gone())
	b.eventually(func() error { return marked(v.Target, mark, true) })
	b.must(eachMiB(v.Target, func(at int64, data []byte) error {
		if !strings.HasPrefix(string(data), string(mark)) {
			return fmt.Errorf("%.40q at %d", data, at)
		}
		return nil
	}))
	b.must(v.Gone())
	b.accounts()
}

// How full the thin pool is can be seen from outside.
func TestRawPoolThinMetrics(t *testing.T) {
	b := openThin(t, 3<<30)
	b.must(b.d.Term())
	b.must(b.d.ServeHTTP())
	b.start()
	v := b.thinVolume("counted", "ext4")
	b.must(v.Up())
	_, err := rig.Fill(v.Target, dataBytes, 5)
	b.must(err)
	unix.Sync()
	b.must(rig.Eventually(30*time.Second, func() error {
		m, err := b.d.Scrape()
		if err != nil {
			return err
		}
		bytes, used := m.Value("ringvol_pool_thin_bytes", "pool", "default"), m.Value("ringvol_pool_thin_used_bytes", "pool", "default")
		if m["ringvol_pool_thin_low"] == nil || used < float64(dataBytes) || used > bytes {
			return fmt.Errorf("%v bytes, %v in use, low: %v", bytes, used, m["ringvol_pool_thin_low"])
		}
		return nil
	}))
	b.must(v.Gone())
}

// TestRawPoolThinMeasure: what a snapshot and a volume that is not attached have is known without a device for them.
func TestRawPoolThinMeasure(t *testing.T) {
	b := openThin(t, 3<<30)
	v := b.thinVolume("measured", "ext4")
	b.must(v.Up())
	_, err := rig.Fill(v.Target, dataBytes, 6)
	b.must(err)
	then, err := v.Snapshot("measured-then")
	b.must(err)
	b.must(v.Down())
	params := map[string]string{"pool": "default"}
	b.must(rig.Eventually(30*time.Second, func() error {
		if _, err := b.c.GetCapacity(short(t), &csi.GetCapacityRequest{Parameters: params}); err != nil {
			return err
		}
		l := b.ls()
		if len(l.Snapshots) != 1 || l.Snapshots[0].Allocated < int64(dataBytes) || l.volume("measured").Allocated < int64(dataBytes) {
			return fmt.Errorf("of %d bytes written: %+v %+v", dataBytes, l.Snapshots, l.volume("measured"))
		}
		return nil
	}))
	b.must(b.d.DeleteSnapshot(then.GetSnapshotId()))
	b.must(v.Delete())
}
