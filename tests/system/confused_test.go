// SPDX-License-Identifier: Apache-2.0

package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// An orchestrator that asks with wrong ids and wrong paths.

func unpublish(b *bed, id, path string) error {
	_, err := b.c.NodeUnpublishVolume(short(b.t), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})
	return err
}

func unstage(b *bed, id, path string) error {
	_, err := b.c.NodeUnstageVolume(short(b.t), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})
	return err
}

func (b *bed) makeDir(path string) string {
	b.t.Helper()
	b.must(os.MkdirAll(path, 0o755))
	return path
}

func (b *bed) makeFile(path, text string) string {
	b.t.Helper()
	b.makeDir(filepath.Dir(path))
	b.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// At a path that is no mount of ours nothing is touched, whatever the id.
func TestUnpublishTouchesNothing(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("known", "block")
	b.must(v.Create())
	paths := []string{
		b.makeDir(b.Path("elsewhere", "empty")),
		b.makeFile(b.Path("elsewhere", "file"), ""),
		b.makeDir(b.Path("elsewhere", "pods", "empty")),
		filepath.Join(b.pool.Path, "snapshots"),
		filepath.Join(b.pool.Path, "templates"),
		filepath.Join(b.pool.Path, "trash"),
	}
	b.makeFile(b.Path("elsewhere", "full", "file"), "x")
	strange := b.makeDir(b.Path("elsewhere", "strange"))
	b.must(unix.Mount("none", strange, "tmpfs", 0, "size=64k"))
	b.Defer(func() error { return unix.Unmount(strange, 0) })
	unknown := v.ID[:len(v.ID)-8] + "00000000"
	for _, path := range append(paths, b.Path("elsewhere", "full"), b.Path("elsewhere", "not")) {
		for _, id := range []string{"nonsense", unknown, v.ID} {
			b.must(unpublish(b, id, path))
			b.must(unstage(b, id, path))
		}
	}
	for _, id := range []string{"nonsense", unknown} {
		b.must(unpublish(b, id, strange))
		b.must(unstage(b, id, strange))
	}
	for _, path := range append(paths, b.Path("elsewhere", "full", "file")) {
		if !there(path) {
			t.Errorf("%s is gone", path)
		}
	}
	if !isMounted(b.Dir, strange) {
		t.Error("what another mounted is gone")
	}
	b.refused("what is not the volume", unpublish(b, v.ID, strange), codes.FailedPrecondition)
	b.must(b.d.Term())
	b.start() // and the pool is well
	b.must(v.Delete())
}

// Below a directory that --target-root names, what a target leaves behind is removed.
func TestUnpublishTidiesBelowTargetRoots(t *testing.T) {
	b := newBed(t, "xfs", 1<<30)
	root := b.makeDir(b.Path("root"))
	b.d.Args = append(b.d.Args, "--target-root", root)
	b.start()
	empty, file := b.makeDir(filepath.Join(root, "a", "empty")), b.makeFile(filepath.Join(root, "a", "file"), "")
	full := b.makeFile(filepath.Join(root, "a", "full", "file"), "x")
	written := b.makeFile(filepath.Join(root, "a", "written"), "x")
	link := filepath.Join(root, "a", "link")
	b.must(os.Symlink("empty", link))
	for _, path := range []string{file, filepath.Dir(full), written, link, empty, root} {
		b.must(unpublish(b, "nonsense", path))
	}
	for path, want := range map[string]bool{
		empty: false, file: false, full: true, written: true, link: true, root: true,
	} {
		if there(path) != want {
			t.Errorf("%s: there %v, want %v", path, !want, want)
		}
	}
}

// What is a known volume's goes for its own id alone.
func TestUnknownIdOfAKnownVolume(t *testing.T) {
	beforeAndAfterRestart(t, func(t *testing.T, restart bool) {
		for _, kind := range []string{"ext4", "block"} {
			b := open(t, "xfs", 1<<30)
			v, other := b.volume("known", kind), b.volume("other", kind)
			b.must(v.Up())
			b.must(other.Create())
			sum, err := rig.Fill(v.Target, dataBytes, 1)
			b.must(err)
			b.perhapsRestart(restart)
			for _, id := range []string{"nonsense", v.ID[:len(v.ID)-8] + "00000000", other.ID} {
				b.refused("unpublishing with "+id, unpublish(b, id, v.Target), codes.FailedPrecondition)
				if kind == "ext4" {
					b.refused("unstaging with "+id, unstage(b, id, v.Staging), codes.FailedPrecondition)
				} else {
					b.must(unstage(b, id, v.Staging)) // there is nothing at the path
				}
			}
			b.says("unpublishing", unpublish(b, other.ID, v.Target), "known", v.Target)
			if !isMounted(b.Dir, v.Target) {
				t.Fatal("it is not published any more")
			}
			b.must(rig.Check(v.Target, dataBytes, sum))
			b.must(v.Gone())
			b.must(other.Delete())
		}
	})
}

// Mounts and devices of ours that no volume owns any more: of a driver that has lost its memory.
func TestMountsOfLostVolumes(t *testing.T) {
	for _, kind := range []string{"ext4", "block"} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t, "xfs", 1<<30)
			empty, err := b.NewPool("empty", "xfs", 1<<30)
			b.must(err)
			b.start()
			v := b.volume("lost", kind)
			b.must(v.Up())
			b.must(b.d.Kill())
			known := b.d.Pools
			b.d.Pools = []*rig.Pool{empty}
			b.start()
			b.must(v.Unpublish())
			b.must(v.Unstage())
			if loops := rig.LoopsBelow(b.pool.Path); len(loops) != 0 {
				t.Errorf("still bound: %v", loops)
			}
			b.must(b.d.Term())
			b.d.Pools = known
			b.start()
			b.must(v.Gone())
		})
	}
}

// A pool makes its empty directories again. Without volumes/ it is damaged, not empty.
func TestPoolMendsItsDirectories(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("kept", "block")
	b.must(v.Create())
	b.must(b.d.Term())
	names := []string{"snapshots", "templates", "trash"}
	for _, name := range names {
		b.must(os.RemoveAll(filepath.Join(b.pool.Path, name)))
	}
	b.start()
	for _, name := range names {
		if !there(filepath.Join(b.pool.Path, name)) {
			t.Errorf("%s is missing", name)
		}
	}
	s, err := v.Snapshot("snap")
	b.must(err)
	b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
	b.must(b.d.Term())
	volumes := filepath.Join(b.pool.Path, "volumes")
	b.must(os.Rename(volumes, volumes+".away"))
	b.must(b.d.Start())
	b.connect()
	b.refused("deleting it", v.Delete(), codes.Unavailable)
	if there(volumes) {
		t.Error("an empty volumes/ was made")
	}
	b.must(b.d.Term())
	b.must(os.Rename(volumes+".away", volumes))
	b.start()
	b.must(v.Delete())
}

// Publish and stage hide nothing.
func TestTargetsAreEmpty(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v, raw := b.volume("fs", "ext4"), b.volume("raw", "block")
	b.must(v.Up())
	b.must(raw.Up())
	full := b.makeFile(b.Path("targets", "full", "file"), "x")
	err := v.PublishAt(filepath.Dir(full), false)
	b.refused("at a directory with a file in it", err, codes.FailedPrecondition)
	b.says("at a directory with a file in it", err, filepath.Dir(full), "empty")
	b.refused("at a file with text", raw.PublishAt(full, false), codes.FailedPrecondition)
	if text, err := os.ReadFile(full); err != nil || string(text) != "x" {
		t.Errorf("%q, %v", text, err)
	}
	b.must(v.Down())
	staging := v.Staging
	v.Staging = filepath.Dir(full)
	b.refused("staging at a directory with a file in it", v.Stage(), codes.FailedPrecondition)
	v.Staging = staging
	b.must(v.Up())

	// A file that came below the mount is left, and no reason to fail.
	target := b.makeDir(b.Path("targets", "late"))
	dir, err := os.Open(target)
	b.must(err)
	defer dir.Close()
	b.must(v.PublishAt(target, false))
	fd, err := unix.Openat(int(dir.Fd()), "late", unix.O_CREAT|unix.O_WRONLY, 0o600)
	b.must(err)
	unix.Close(fd)
	b.must(unpublish(b, v.ID, target))
	if !there(filepath.Join(target, "late")) || isMounted(b.Dir, target) {
		t.Error("the file is gone, or the mount is there")
	}
	b.must(unpublish(b, v.ID, target))
	b.must(v.Gone())
	b.must(raw.Gone())
}

// Without --target-root: anywhere, but where nothing is published.
func TestWhereNoTargetIs(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v, raw, around := b.volume("fs", "ext4"), b.volume("raw", "block"), b.volume("around", "ext4")
	for _, volume := range []*rig.Volume{v, raw, around} {
		b.must(volume.Up())
	}
	linked := b.makeDir(b.Path("targets", "bound"))
	b.must(unix.Mount(b.pool.Path, linked, "", unix.MS_BIND, ""))
	b.Defer(func() error { return unix.Unmount(linked, 0) })
	inside := b.makeDir(filepath.Join(around.Target, "dir"))
	for _, dir := range []string{b.pool.Path, linked, "/dev", "/proc", "/sys", "/dev/shm"} {
		if !there(dir) {
			continue
		}
		err := v.PublishAt(filepath.Join(dir, "ringvol-target"), false)
		b.refused("in "+dir, err, codes.InvalidArgument)
		b.refused("a file in "+dir, raw.PublishAt(filepath.Join(dir, "ringvol-target"), false),
			codes.InvalidArgument)
		if there(filepath.Join(dir, "ringvol-target")) {
			t.Errorf("a target was made in %s", dir)
		}
	}
	for _, path := range []string{
		filepath.Join(b.pool.Path, "snapshots"), filepath.Join(b.pool.Path, "trash"), "/sys/kernel",
		filepath.Join(inside, "target"), filepath.Join(around.Staging, "target"), inside,
	} {
		err := v.PublishAt(path, false)
		b.refused("at "+path, err, codes.InvalidArgument)
	}
	b.says("inside a volume", v.PublishAt(inside, false), "around")
	staged := b.volume("staged", "ext4")
	b.must(staged.Create())
	staged.Staging = filepath.Join(b.pool.Path, "snapshots")
	b.refused("staging in a pool", staged.Stage(), codes.InvalidArgument)
	staged.Staging = inside
	b.refused("staging inside a volume", staged.Stage(), codes.InvalidArgument)
	for _, volume := range []*rig.Volume{v, raw, around} {
		b.must(volume.Gone())
	}
	b.must(staged.Delete())
}

// With it: strictly below, decided by directories and not by text; the root may be a link.
func TestTargetRoots(t *testing.T) {
	for _, way := range []string{"flag", "environment"} {
		t.Run(way, func(t *testing.T) {
			b := newBed(t, "xfs", 1<<30)
			first, real := b.makeDir(b.Path("kubelet")), b.makeDir(b.Path("data", "real"))
			link := b.Path("link")
			b.must(os.Symlink("data/real", link))
			if way == "flag" {
				b.d.Args = append(b.d.Args, "--target-root", first+"/", "--target-root", link)
			} else {
				b.d.Env = append(b.d.Env, "RINGVOL_TARGET_ROOTS="+first+":"+link)
			}
			b.start()
			v, raw := b.volume("fs", "ext4"), b.volume("raw", "block")
			b.must(v.Up())
			b.must(raw.Up())
			outside := b.makeDir(b.Path("outside"))
			b.must(os.Symlink(outside, filepath.Join(first, "out")))
			for _, path := range []string{
				filepath.Join(outside, "t"), first, link, real, b.Path("kubelet2"),
				filepath.Join(first, "out", "t"), filepath.Join(b.Dir, "t"),
			} {
				b.refused("at "+path, v.PublishAt(path, false), codes.InvalidArgument)
				b.refused("a file at "+path, raw.PublishAt(path, false), codes.InvalidArgument)
			}
			b.says("outside", v.PublishAt(filepath.Join(outside, "t"), false), "--target-root")
			strange := b.volume("strange", "ext4")
			b.must(strange.Create())
			strange.Staging = outside
			b.refused("staging outside", strange.Stage(), codes.InvalidArgument)
			for _, path := range []string{
				filepath.Join(first, "t"), filepath.Join(link, "t"), filepath.Join(real, "u"),
			} {
				b.must(v.PublishAt(path, false))
				b.must(v.PublishAt(path, false))
				b.must(v.UnpublishAt(path))
			}
			if names, _ := os.ReadDir(outside); len(names) != 0 {
				t.Errorf("outside there is %v", names)
			}
			b.must(v.Gone())
			b.must(raw.Gone())
			b.must(strange.Delete())
		})
	}
}

func TestTargetRootIsChecked(t *testing.T) {
	for value, word := range map[string]string{"relative": "absolute", "/": "everything", "/a:b": ":"} {
		out, err := rig.Run(rig.Binary(), "serve", "--target-root", value)
		if err == nil || !strings.Contains(out+err.Error(), word) {
			t.Errorf("%s: %s %v", value, out, err)
		}
	}
}

// The staging path is not unpublished while the volume is published: that would be an unstage without its care.
func TestUnpublishOfTheStagingPath(t *testing.T) {
	beforeAndAfterRestart(t, func(t *testing.T, restart bool) {
		b := open(t, "xfs", 1<<30)
		v := b.volume("both", "ext4")
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, 1)
		b.must(err)
		b.perhapsRestart(restart)
		err = unpublish(b, v.ID, v.Staging)
		b.refused("unpublishing the staging path", err, codes.FailedPrecondition)
		b.says("unpublishing the staging path", err, v.Staging, v.Target)
		if !isMounted(b.Dir, v.Staging) {
			t.Fatal("it is not staged any more")
		}
		b.must(rig.Check(v.Target, dataBytes, sum))
		b.must(v.Publish())
		b.must(v.Gone())
	})
}
