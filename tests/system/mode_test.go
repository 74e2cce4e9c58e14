// SPDX-License-Identifier: Apache-2.0

package system

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var changesMode = map[string]string{"allowVolumeModeChange": "true"}

// headSum is the checksum of the first bytes of a file or device.
func (b *bed) headSum(path string, size int64) string {
	b.t.Helper()
	file, err := os.Open(path)
	b.must(err)
	defer file.Close()
	sum := sha256.New()
	_, err = io.CopyN(sum, file, size)
	b.must(err)
	return hex.EncodeToString(sum.Sum(nil))
}

// as is the volume as somebody else asks for it, who has another capability.
func (b *bed) as(v *rig.Volume, capability *csi.VolumeCapability) *rig.Volume {
	b.t.Helper()
	w := *v
	w.Cap = capability
	b.must(w.Paths())
	return &w
}

// copyOf is a volume made from another one or its snapshot.
func (b *bed) copyOf(name, kind string, source *csi.VolumeContentSource, params map[string]string) *rig.Volume {
	w := b.d.Volume(name, rig.CapFor(kind), 0)
	w.Source, w.Params = source, params
	return w
}

// A mounted volume's bytes may become a block volume's, always; a block volume's become a mounted one's where the class says so.
func TestModeOfACopy(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 4<<30)
			v := b.volume("files", kind)
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, dataBytes, 1)
			b.must(err)
			b.must(v.Down())
			s, err := v.Snapshot("files")
			b.must(err)
			want := b.headSum(b.pool.SnapshotImage(s.GetSnapshotId()), v.Got)

			device := b.copyOf("device", "block", rig.FromSnapshot(s.GetSnapshotId()), nil)
			b.twice(device.Create)
			b.must(device.Up())
			if got := b.headSum(device.Target, v.Got); got != want {
				t.Errorf("the block volume has %s, its snapshot %s", got, want)
			}
			b.must(device.Down())
			larger := b.copyOf("larger", "block", rig.FromVolume(v.ID), nil)
			larger.Size = v.Got + 64*mib
			b.must(larger.Up())
			if space, err := rig.Space(larger.Target); err != nil || space != larger.Size {
				t.Errorf("a larger block volume has %d bytes, asked for %d (%v)", space, larger.Size, err)
			}
			if got := b.headSum(larger.Target, v.Got); got != want {
				t.Errorf("the larger block volume has %s, its source %s", got, want)
			}
			b.must(larger.Gone())

			back := b.copyOf("back", kind, rig.FromVolume(device.ID), nil)
			err = back.Create()
			b.refused("a mount volume from a block volume", err, codes.InvalidArgument)
			b.says("it", err, "allowVolumeModeChange")
			back.Params = changesMode
			back.Size = v.Got + 64*mib
			b.twice(back.Create)
			b.must(back.Up())
			b.must(rig.Check(back.Target, dataBytes, sum))
			b.must(back.Gone())

			for other, word := range map[string]string{"ext4": kind, "xfs": kind} {
				if other == kind {
					continue
				}
				wrong := b.copyOf("wrong", other, rig.FromVolume(device.ID), changesMode)
				err := wrong.Create()
				b.refused("a volume of "+other+" from "+kind, err, codes.InvalidArgument)
				b.says("it", err, "holds "+word, other)
			}
			any := b.copyOf("any", "", rig.FromVolume(device.ID), changesMode)
			b.must(any.Up())
			b.must(rig.Check(any.Target, dataBytes, sum))
			b.must(any.Gone())
			b.must(device.Delete())
			b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
			b.must(v.Delete())
		})
	}
	t.Run("nothing on it", func(t *testing.T) {
		b := open(t, "ext4", 1<<30)
		v := b.volume("raw", "block")
		b.must(v.Create())
		w := b.copyOf("files", "ext4", rig.FromVolume(v.ID), changesMode)
		err := w.Create()
		b.refused("a mount volume from an empty block volume", err, codes.InvalidArgument)
		b.says("it", err, "no file system")
		w.Params = map[string]string{"allowVolumeModeChange": "perhaps"}
		b.refused("allowVolumeModeChange=perhaps", w.Create(), codes.InvalidArgument)
		b.must(v.Delete())
	})
}

// A backup is restored into a block volume, which is mounted from then on: Velero's data mover does so.
func TestModeOfAVolume(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 4<<30)
			source := b.volume("source", kind)
			b.must(source.Up())
			sum, err := rig.Fill(source.Target, dataBytes, 2)
			b.must(err)
			b.must(source.Down())

			v := b.d.Volume("restored", rig.BlockCap(), source.Got+64*mib)
			v.Params = changesMode
			b.twice(v.Create)
			b.must(v.Up())
			files := b.as(v, rig.MountCap(kind))
			untyped := b.as(v, rig.MountCap(""))
			b.refused("staging as files what is published as a device", files.Stage(), codes.FailedPrecondition)
			b.must(v.Down())
			err = files.Stage()
			b.refused("staging files that are not there", err, codes.FailedPrecondition)
			b.says("it", err, "no file system")
			b.must(v.Up())
			b.write(v.Target, b.pool.Image(source.ID))
			b.must(v.Down())

			b.twice(files.Stage)
			b.refused("publishing as a device what is staged as files", b.stagedAs(v, files).Publish(),
				codes.FailedPrecondition)
			b.refused("staging as a device what is staged as files", v.Stage(), codes.FailedPrecondition)
			b.twice(files.Publish)
			b.must(rig.Check(files.Target, dataBytes, sum))
			b.usage(files, kind)
			if rig.Device() == "" && kind != "ext4" { // which grows online only with CAP_SYS_RESOURCE
				b.must(files.Expand(files.Got+64*mib, true))
			}
			s, err := files.Snapshot("of-files")
			b.must(err)
			b.restart()
			b.must(rig.Check(files.Target, dataBytes, sum))
			b.usage(files, kind)
			b.twice(files.Stage)
			b.refused("staging as a device what is staged as files", v.Stage(), codes.FailedPrecondition)
			b.must(files.Down())

			b.must(untyped.Up()) // of whatever type it is
			b.must(rig.Check(untyped.Target, dataBytes, sum))
			b.must(untyped.Down())
			for _, other := range []string{"ext4", "xfs"} {
				if other != kind {
					b.refused("staging it as "+other, b.as(v, rig.MountCap(other)).Stage(), codes.FailedPrecondition)
				}
			}
			b.must(v.Up()) // and a device again
			b.must(v.Gone())
			b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
			b.must(source.Delete())
		})
	}
	t.Run("not allowed", func(t *testing.T) {
		b := open(t, "xfs", 1<<30)
		v := b.volume("raw", "block")
		b.must(v.Create())
		err := b.as(v, rig.MountCap("ext4")).Stage()
		b.refused("staging a block volume as files", err, codes.FailedPrecondition)
		b.says("it", err, "allowVolumeModeChange")
		b.must(v.Delete())
	})
}

// stagedAs is a volume's one capability with the paths of its other one.
func (b *bed) stagedAs(v, staged *rig.Volume) *rig.Volume {
	w := *v
	w.Staging = staged.Staging
	w.Target = filepath.Join(filepath.Dir(staged.Target), "device")
	return &w
}

// write copies an image into a device.
func (b *bed) write(device, image string) {
	b.t.Helper()
	from, err := os.Open(image)
	b.must(err)
	defer from.Close()
	to, err := os.OpenFile(device, os.O_WRONLY, 0)
	b.must(err)
	defer to.Close()
	_, err = io.Copy(to, from)
	b.must(err)
	b.must(to.Sync())
}
