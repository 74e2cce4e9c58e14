// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

const (
	singleWriter = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	multiWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	readerOnly   = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
)

func (b *bed) otherTarget(v *rig.Volume) string {
	b.t.Helper()
	path := strings.Replace(v.Target, "pod-1", "pod-2", 1)
	b.must(os.MkdirAll(filepath.Dir(path), 0o750))
	return path
}

// writable tells whether the workload could write at path.
func writable(path string) error {
	name, flags := path, os.O_WRONLY
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		name, flags = filepath.Join(path, "probe"), flags|os.O_CREATE
	}
	file, err := os.OpenFile(name, flags, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteAt(make([]byte, 4096), 8192); err != nil {
		return err
	}
	return file.Sync()
}

func TestReadOnlyPublish(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "block"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 2<<30)
			v := b.volume("ro", kind)
			v.Cap = rig.WithMode(v.Cap, multiWriter)
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, dataBytes, 7)
			b.must(err)
			if kind == "block" {
				// One device is either writable or not: read-only is for a volume used so alone.
				b.must(v.Unpublish())
			}
			other := b.otherTarget(v)
			b.must(v.PublishAt(other, true))
			b.must(v.PublishAt(other, true))
			if writable(other) == nil {
				t.Error("a read-only publish can be written to")
			}
			b.must(rig.Check(other, dataBytes, sum))
			if kind != "block" {
				b.must(writable(v.Target))
				b.must(v.Unpublish())
			}
			b.must(v.UnpublishAt(other))
			b.must(v.Publish())
			b.must(writable(v.Target)) // writable again
			b.must(v.Gone())
		})
	}
}

func TestReaderOnlyMode(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "block"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 2<<30)
			v := b.volume("reader", kind)
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, dataBytes, 8)
			b.must(err)
			b.must(v.Down())
			v.Cap = rig.WithMode(rig.CapFor(kind), readerOnly)
			b.must(v.Stage())
			b.must(v.Publish())
			if writable(v.Target) == nil {
				t.Error("a reader-only volume can be written to")
			}
			b.must(rig.Check(v.Target, dataBytes, sum))
			b.must(v.Gone())
		})
	}
}

func TestSingleWriter(t *testing.T) {
	for _, kind := range []string{"ext4", "block"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 1<<30)
			v := b.volume("rwop", kind)
			v.Cap = rig.WithMode(v.Cap, singleWriter)
			b.must(v.Up())
			b.must(v.Publish()) // the same path again is fine
			other := b.otherTarget(v)
			b.refused("a second publish of a single-writer volume", v.PublishAt(other, false),
				codes.FailedPrecondition)
			if _, err := os.Lstat(other); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the refused publish left %s", other)
			}
			// Nor does a new run of the driver forget, and the second one's mode does not matter.
			many := *v
			many.Cap = rig.WithMode(v.Cap, multiWriter)
			b.restart()
			b.refused("a second publish after a restart", many.PublishAt(other, false),
				codes.FailedPrecondition)
			b.must(v.Publish())
			b.must(v.Unpublish())
			b.must(many.PublishAt(other, false))
			b.restart()
			b.must(many.Publish()) // there is no single writer any more
			b.must(many.Unpublish())
			b.must(v.UnpublishAt(other))
			b.must(v.Unstage())
			b.must(v.Delete())
		})
	}
}

// restart kills the driver and starts another.
func (b *bed) restart() {
	b.t.Helper()
	b.must(b.d.Kill())
	b.start()
}

func TestManyWriters(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("rwo", "ext4")
	v.Cap = rig.WithMode(v.Cap, multiWriter)
	b.must(v.Up())
	other := b.otherTarget(v)
	b.must(v.PublishAt(other, false))
	sum, err := rig.Fill(v.Target, dataBytes, 9)
	b.must(err)
	b.must(rig.Check(other, dataBytes, sum))
	b.must(v.Unpublish())
	b.must(rig.Check(other, dataBytes, sum))
	// What is still published is not unstaged from below its user.
	err = v.Unstage()
	if err == nil {
		b.must(rig.Check(other, dataBytes, sum))
	}
	b.must(v.UnpublishAt(other))
	b.must(v.Unstage())
	b.must(v.Delete())
}

func TestModesOfMoreNodes(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	for _, mode := range []csi.VolumeCapability_AccessMode_Mode{
		csi.VolumeCapability_AccessMode_UNKNOWN,
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
	} {
		v := b.volume("more", "ext4")
		v.Cap = rig.WithMode(v.Cap, mode)
		b.refused(mode.String(), v.Create(), codes.InvalidArgument)
	}
	v := b.volume("one", "ext4")
	b.must(v.Create())
	validate := func(c *csi.VolumeCapability) *csi.ValidateVolumeCapabilitiesResponse {
		reply, err := b.c.ValidateVolumeCapabilities(short(t), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: v.ID, VolumeCapabilities: []*csi.VolumeCapability{c},
		})
		b.must(err)
		return reply
	}
	if validate(v.Cap).GetConfirmed() == nil {
		t.Error("its own capability is not confirmed")
	}
	if reply := validate(rig.BlockCap()); reply.GetConfirmed() != nil || reply.GetMessage() == "" {
		t.Errorf("a mount volume as block: %v", reply)
	}
	b.must(v.Delete())
}

func mountOptions(t *testing.T, path string) string {
	out, err := rig.Run("findmnt", "-n", "-o", "OPTIONS", "--mountpoint", path)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestMountFlags(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("flags", "ext4")
	v.Cap = rig.MountCap("ext4", "noatime", "nodev")
	b.must(v.Up())
	if options := mountOptions(t, v.Target); !strings.Contains(options, "noatime") {
		t.Errorf("mounted with %s", options)
	}
	b.must(v.Down())
	for _, flag := range []string{
		"bind", "remount", "loop", "nonsense", "logdev=/dev/sda1", "noatime,bind", "journal_path=/etc/passwd",
		"device=/dev/sda", "a b", "errors=panic", "\xf0\x9f\x92\xa9", strings.Repeat("x", 5000),
	} {
		w := *v
		w.Cap = rig.MountCap("ext4", flag)
		b.refused("mount flag "+flag[:min(len(flag), 40)], w.Stage(), codes.InvalidArgument)
		if rig.IsMount(v.Staging) {
			t.Fatalf("flag %q was mounted", flag)
		}
	}
	b.must(v.Stage())
	b.must(v.Unstage())
	b.must(v.Delete())
}

// The flag makes the volume read-only as a whole: its file system, a fresh one as well, and what is published of it.
func TestMountFlagsReadOnly(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 2<<30)
			v := b.volume("flag-ro", kind)
			readOnly := func() {
				v.Cap = rig.MountCap(kind, "noatime", "ro")
				for range 2 { // each call, and its repeat
					b.must(v.Stage())
				}
				for range 2 {
					b.must(v.Publish())
				}
				for _, path := range []string{v.Staging, v.Target} {
					if options := mountOptions(t, path); !strings.HasPrefix(options, "ro,") || !strings.Contains(options, "noatime") {
						t.Errorf("%s is mounted with %s", path, options)
					}
				}
				if writable(v.Target) == nil {
					t.Error("a volume with mount flag ro can be written to")
				}
				reply, err := b.c.ControllerGetVolume(short(t), &csi.ControllerGetVolumeRequest{VolumeId: v.ID})
				b.must(err)
				if c := reply.GetStatus().GetVolumeCondition(); c.GetAbnormal() {
					t.Errorf("abnormal: %s", c.GetMessage())
				}
			}
			b.must(v.Create())
			readOnly()
			b.must(v.Down())

			v.Cap = rig.MountCap(kind)
			b.must(v.Stage())
			b.must(v.Publish())
			sum, err := rig.Fill(v.Target, dataBytes, 9)
			b.must(err)
			b.must(v.Down())

			readOnly()
			b.must(rig.Check(v.Target, dataBytes, sum))
			w := *v
			w.Cap = rig.MountCap(kind, "ro", "rw")
			b.refused("ro and rw", w.Stage(), codes.InvalidArgument)
			b.must(v.Gone())
		})
	}
}

// Target paths that are not what they should be.
func TestTargetPaths(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("paths", "ext4")
	b.must(v.Create())
	b.must(v.Stage())
	dir := filepath.Dir(v.Target)
	secret := b.Path("secret")
	b.must(os.WriteFile(secret, []byte("untouched"), 0o600))

	file := filepath.Join(dir, "file")
	b.must(os.WriteFile(file, []byte("mine"), 0o600))
	b.refused("publishing over a file", v.PublishAt(file, false), codes.InvalidArgument,
		codes.FailedPrecondition, codes.AlreadyExists, codes.Internal)
	if text, _ := os.ReadFile(file); string(text) != "mine" {
		t.Error("the file in the way was changed")
	}

	link := filepath.Join(dir, "link")
	b.must(os.Symlink(secret, link))
	b.refused("publishing at a symlink", v.PublishAt(link, false), codes.InvalidArgument,
		codes.FailedPrecondition, codes.AlreadyExists, codes.Internal)
	linked := filepath.Join(dir, "linked")
	b.must(os.Symlink(b.Dir, linked))
	b.refused("publishing below a symlink", v.PublishAt(filepath.Join(linked, "mount"), false),
		codes.InvalidArgument, codes.FailedPrecondition, codes.Internal)
	if _, err := os.Lstat(b.Path("mount")); err == nil {
		t.Error("the link was followed")
	}
	b.refused("publishing at a path with ..", v.PublishAt(dir+"/x/../../../../../../etc/y", false),
		codes.InvalidArgument, codes.FailedPrecondition, codes.Internal)
	b.refused("publishing at a relative path", v.PublishAt("tmp/x", false), codes.InvalidArgument)
	b.refused("publishing at an overlong path", v.PublishAt("/"+strings.Repeat("a/", 3000), false),
		codes.InvalidArgument)
	missing := filepath.Join(dir, "no", "parent", "mount")
	if err := v.PublishAt(missing, false); err == nil {
		b.must(v.UnpublishAt(missing))
	} else {
		b.refused("publishing below a missing parent", err, codes.InvalidArgument,
			codes.FailedPrecondition, codes.NotFound, codes.Internal)
	}

	// Another mount is in the way.
	other := filepath.Join(dir, "other")
	b.must(os.Mkdir(other, 0o755))
	b.must(unix.Mount("tmpfs", other, "tmpfs", 0, "size=1m"))
	b.Defer(func() error { _ = unix.Unmount(other, unix.MNT_DETACH); return nil })
	err := v.PublishAt(other, false)
	b.refused("publishing at another's mount", err, codes.InvalidArgument, codes.FailedPrecondition,
		codes.AlreadyExists, codes.Internal)
	b.must(os.WriteFile(filepath.Join(other, "file"), nil, 0o600))
	if _, err := b.c.NodeUnpublishVolume(short(t), &csi.NodeUnpublishVolumeRequest{
		VolumeId: v.ID, TargetPath: other}); err == nil && !rig.IsMount(other) {
		t.Error("another's mount was unmounted")
	}
	b.must(unix.Unmount(other, 0))
	b.must(os.Remove(other))

	// An empty directory is what older kubelets make themselves.
	b.must(os.Mkdir(v.Target, 0o755))
	b.must(v.Publish())
	b.must(v.Unpublish())

	// A directory with somebody's files is neither hidden nor removed.
	b.must(os.Mkdir(v.Target, 0o755))
	b.must(os.WriteFile(filepath.Join(v.Target, "precious"), nil, 0o600))
	if _, err := b.c.NodeUnpublishVolume(short(t), &csi.NodeUnpublishVolumeRequest{
		VolumeId: v.ID, TargetPath: v.Target}); err != nil {
		t.Logf("unpublish of a directory with files: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(v.Target, "precious")); err != nil {
		t.Error("a file of somebody's was removed")
	}
	b.must(os.RemoveAll(v.Target))

	// Staging: missing, a file, a link.
	b.must(v.Unstage())
	for name, make := range map[string]func(path string) error{
		"a file": func(p string) error { return os.WriteFile(p, []byte("mine"), 0o600) },
		"a link": func(p string) error { return os.Symlink(b.Dir, p) },
	} {
		w := *v
		w.Staging = v.Staging + "-" + strings.ReplaceAll(name, " ", "-")
		b.must(make(w.Staging))
		b.refused("staging at "+name, w.Stage(), codes.InvalidArgument, codes.FailedPrecondition,
			codes.NotFound, codes.Internal)
	}
	if text, _ := os.ReadFile(secret); string(text) != "untouched" {
		t.Error("a file behind a link was changed")
	}
	b.must(v.Delete())
}

// The kubelet root itself is often a link; the links are below nobody's control but root's.
func TestKubeletRootIsALink(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	real := b.Path("real-kubelet")
	b.must(os.Mkdir(real, 0o755))
	b.must(os.Symlink(real, b.Path("kubelet-link")))
	v := b.volume("linked", "ext4")
	v.Cap = rig.WithMode(v.Cap, singleWriter)
	b.d.Kubelet = b.Path("kubelet-link")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 10)
	b.must(err)
	b.must(rig.Check(strings.Replace(v.Target, "kubelet-link", "real-kubelet", 1), dataBytes, sum))
	if _, err := v.Stats(); err != nil {
		t.Error(err)
	}
	// A new run of the driver knows its mounts by their other paths.
	b.restart()
	b.must(v.Publish())
	many := *v
	many.Cap = rig.WithMode(v.Cap, multiWriter)
	b.restart()
	b.refused("a second publish after a restart", many.PublishAt(b.otherTarget(v), false),
		codes.FailedPrecondition)
	b.must(v.Gone())
	if mounts := rig.MountsBelow(real); len(mounts) > 0 {
		t.Errorf("left mounted: %v", mounts)
	}
}

// What uses the volume holds up its unpublishing, nothing else.
func TestUnpublishWhileInUse(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("busy", "ext4")
	b.must(v.Up())
	file, err := os.Create(filepath.Join(v.Target, "held"))
	b.must(err)
	if err := v.Unpublish(); err == nil {
		t.Error("a path in use was unpublished")
	} else if !rig.IsMount(v.Target) {
		t.Errorf("refused (%v), yet not mounted", err)
	}
	if _, err := file.WriteString("still here"); err != nil && !errors.Is(err, syscall.EROFS) {
		t.Error(err)
	}
	file.Close()
	b.must(v.Gone())
}
