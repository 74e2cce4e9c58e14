// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// importTool runs `ringvol import` against the driver, with its work directory below the test's.
func (b *bed) importTool(args ...string) run {
	b.t.Helper()
	return tool(b.t, nil, b.importArgs(args...)...)
}

func (b *bed) importArgs(args ...string) []string {
	return append([]string{"import", "--endpoint", b.endpoint(), "--work-dir", filepath.Join(b.d.Kubelet, "import")}, args...)
}

// imported is the id that it printed.
func (b *bed) imported(args ...string) string {
	b.t.Helper()
	r := b.importTool(args...)
	id := strings.TrimSuffix(r.out, "\n")
	if r.code != 0 || strings.ContainsAny(id, " \n") || id == "" {
		b.t.Fatalf("import %v: %d, %q, %s", args, r.code, r.out, r.err)
	}
	return id
}

// nothingOnTheWay: neither volumes nor notes nor mounts are left of any import.
func (b *bed) nothingOnTheWay() {
	b.t.Helper()
	reply, err := b.c.ListVolumes(short(b.t), &csi.ListVolumesRequest{})
	b.must(err)
	for _, entry := range reply.GetEntries() {
		if key := rig.KeyOf(entry.GetVolume().GetVolumeId()); strings.HasPrefix(key, "import.") {
			b.t.Errorf("%s is left", key)
		}
	}
	left, _ := filepath.Glob(filepath.Join(b.d.Kubelet, "import", "*"))
	if len(left) > 0 {
		b.t.Errorf("left: %v", left)
	}
}

// restored is a volume made of a golden image, published.
func (b *bed) restored(id, kind string, size int64) *rig.Volume {
	b.t.Helper()
	v := b.d.Volume("fork", rig.CapFor(kind), size)
	v.Source = rig.FromSnapshot(id)
	b.must(v.Up())
	return v
}

func makeTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "etc", "deep"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "etc", "deep", "file"), bytes.Repeat([]byte("bytes "), 50000), 0o640))
	must(os.Chown(filepath.Join(dir, "etc", "deep", "file"), 1234, 4321))
	must(os.WriteFile(filepath.Join(dir, "run"), []byte("#!/bin/sh\n"), 0o4755))
	must(os.Chmod(filepath.Join(dir, "run"), 0o755|os.ModeSetuid))
	must(os.Symlink("/etc/deep/file", filepath.Join(dir, "link")))
	must(os.Link(filepath.Join(dir, "run"), filepath.Join(dir, "same")))
	must(unix.Setxattr(filepath.Join(dir, "run"), "security.capability",
		[]byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	return dir
}

// isTree looks at what makeTree made, somewhere else.
func (b *bed) isTree(dir string) {
	b.t.Helper()
	var st, other unix.Stat_t
	b.must(unix.Stat(filepath.Join(dir, "etc", "deep", "file"), &st))
	if st.Uid != 1234 || st.Gid != 4321 || st.Mode&0o7777 != 0o640 || st.Size != 300000 {
		b.t.Errorf("file: %+v", st)
	}
	b.must(unix.Stat(filepath.Join(dir, "run"), &st))
	b.must(unix.Stat(filepath.Join(dir, "same"), &other))
	if st.Mode&0o7777 != 0o4755 || st.Ino != other.Ino {
		b.t.Errorf("run: %+v, %+v", st, other)
	}
	if to, err := os.Readlink(filepath.Join(dir, "link")); err != nil || to != "/etc/deep/file" {
		b.t.Errorf("link: %q, %v", to, err)
	}
	if n, err := unix.Getxattr(filepath.Join(dir, "run"), "security.capability", make([]byte, 64)); err != nil || n != 20 {
		b.t.Errorf("its capabilities: %d bytes, %v", n, err)
	}
}

// A directory, and an archive of it on standard input and in a file, become golden images; volumes are made of them.
func TestImportTree(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t, fs, 3<<30)
			tree := makeTree(t)
			archive := filepath.Join(t.TempDir(), "tree.tar.gz")
			if out, err := exec.Command("tar", "-C", tree, "--xattrs", "--xattrs-include=*", "-czf", archive, ".").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for name, args := range map[string][]string{
				"golden":  {tree, "golden"},
				"archive": {"--size", "67108864", "--fs", "ext4", archive, "archive"},
				"xfs":     {"--fs", "xfs", "--pool", "default", "--provisioning", "thin", tree, "xfs"},
			} {
				id := b.imported(args...)
				if rig.KeyOf(id) != name {
					t.Errorf("%s has the id %s", name, id)
				}
				kind, size := "ext4", int64(128*mib)
				if name == "xfs" {
					kind, size = "xfs", 400*mib
				}
				for range 2 { // as often as one likes
					v := b.restored(id, kind, size)
					b.isTree(v.Target)
					b.must(v.Gone())
				}
				b.must(b.d.DeleteSnapshot(id))
			}
			b.nothingOnTheWay()
		})
	}
}

// A raw image with a file system becomes a golden image whose volumes are mounted; one without, a block volume's.
func TestImportImage(t *testing.T) {
	b := open(t, "xfs", 3<<30)
	image := filepath.Join(t.TempDir(), "image")
	if out, err := exec.Command("mkfs.ext4", "-q", "-d", makeTree(t), image, "64M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	golden := b.imported(image, "golden")
	v := b.restored(golden, "ext4", 64*mib)
	b.isTree(v.Target)
	b.must(v.Gone())

	// What was not raw before says nothing of another mode: an older driver would not take it.
	tree := b.imported("--volume", makeTree(t), "of-a-tree")
	record, err := rig.RecordOf(b.pool.Image(tree))
	b.must(err)
	if strings.Contains(record, "allow_mode_change") {
		t.Errorf("the volume of a tree has the record\n%s", record)
	}
	v = b.d.Volume("of-a-tree", rig.MountCap("ext4"), 0)
	v.ID = tree
	b.must(v.Delete())

	// A volume of it, taken over by whoever writes its id down.
	volume := b.imported("--volume", image, "volume")
	v = b.d.Volume("volume", rig.MountCap("ext4"), 64*mib)
	v.ID = volume
	b.must(v.Stage())
	b.must(v.Publish())
	b.isTree(v.Target)
	b.must(v.Gone())

	raw := filepath.Join(t.TempDir(), "raw")
	b.must(os.WriteFile(raw, nil, 0o600))
	sum, err := rig.Fill(raw, 3*mib, 7)
	b.must(err)
	b.must(os.Truncate(raw, 21*mib+512))
	block := b.imported(raw, "block")
	v = b.restored(block, "block", 22*mib)
	b.must(rig.Check(v.Target, 3*mib, sum))
	b.must(v.Gone())

	// A block device, too.
	loop, err := rig.Attach(raw)
	b.must(err)
	id := b.imported("--volume", loop, "device")
	b.must(rig.Detach(loop))
	v = b.d.Volume("device", rig.BlockCap(), 22*mib)
	v.ID = id
	b.must(v.Stage())
	b.must(v.Publish())
	b.must(rig.Check(v.Target, 3*mib, sum))
	b.must(v.Gone())
	for _, id := range []string{golden, block} {
		b.must(b.d.DeleteSnapshot(id))
	}
	b.nothingOnTheWay()
}

// What is refused leaves nothing.
func TestImportRefused(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	tree := makeTree(t)
	id := b.imported(tree, "there")
	cut := filepath.Join(t.TempDir(), "cut")
	if out, err := exec.Command("mkfs.ext4", "-q", cut, "64M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.must(os.Truncate(cut, 32*mib))
	large := filepath.Join(t.TempDir(), "large")
	b.must(os.MkdirAll(large, 0o755))
	_, err := rig.Fill(large, 40*mib, 1)
	b.must(err)
	empty := filepath.Join(t.TempDir(), "empty")
	b.must(os.WriteFile(empty, nil, 0o600))
	for _, x := range []struct {
		code int
		want string
		args []string
	}{
		{1, "is there already (" + id + ")", []string{tree, "there"}},
		{1, "cut short", []string{cut, "n"}},
		{1, "say --size", []string{"-", "n"}},
		{1, "if the volume is too small", []string{"--size", "16777216", large, "n"}},
		{1, "is empty", []string{empty, "n"}},
		{1, "No such file", []string{"/nonexistent", "n"}},
		{1, "is no file, directory or block device", []string{"/dev/null", "n"}},
		{1, "will not do", []string{tree, "a/b"}},
		{1, "will not do", []string{tree, strings.Repeat("a", 41)}},
		{1, "no pool", []string{"--pool", "nobody's", tree, "n"}},
		{2, "NAME is missing", []string{tree}},
		{2, "unexpected argument", []string{tree, "n", "m"}},
	} {
		if r := b.importTool(x.args...); r.code != x.code || !strings.Contains(r.err, x.want) || r.out != "" {
			t.Errorf("%v: %d, %q, %s", x.args, r.code, r.out, r.err)
		}
	}
	b.must(b.d.DeleteSnapshot(id))
	b.nothingOnTheWay()
	b.must(rig.Eventually(10*time.Second, b.pool.Strays))
	b.must(b.d.Term())
	if r := b.importTool(tree, "n"); r.code != 1 || !strings.Contains(r.err, "no driver listens") {
		t.Errorf("without a driver: %d, %s", r.code, r.err)
	}
}

// Where the driver's mounts are not seen nothing is imported: bytes would go to the node's own file system, and the golden image
// would be empty.
func TestImportElsewhere(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	raw := filepath.Join(t.TempDir(), "raw")
	b.must(os.WriteFile(raw, nil, 0o600))
	b.must(os.MkdirAll(b.d.Kubelet, 0o755))
	_, err := rig.Fill(raw, 20*mib, 7)
	b.must(err)
	for _, source := range []string{raw, makeTree(t)} {
		// Other mounts come and go as on the node, or this would hold the devices of other tests.
		hide := `mount --bind "$0" "$0" && mount --make-private "$0" && exec "$@"`
		args := append([]string{"--mount", "--propagation", "slave", "sh", "-c", hide, b.d.Kubelet, rig.Binary()}, b.importArgs(source, "golden")...)
		r := finish(t, exec.Command("unshare", args...))
		if r.code != 1 || r.out != "" || !strings.Contains(r.err, "is not seen from here") {
			t.Errorf("%s: %d, %q, %s", source, r.code, r.out, r.err)
		}
		b.nothingOnTheWay()
		b.must(rig.Eventually(10*time.Second, b.pool.Strays))
	}
	id := b.imported(raw, "golden")
	b.must(b.d.DeleteSnapshot(id))
}

// An import that is ended takes back what it made; after kill -9 the next one of the name does, and until then no other
// import of it runs. A restart of the driver in between is no obstacle.
func TestImportCutShort(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	begin := func() (*exec.Cmd, func()) {
		reader, writer, err := os.Pipe()
		b.must(err)
		cmd := toolCommand(context.Background(), nil, b.importArgs("--size", "67108864", "-", "slow")...)
		cmd.Stdin = reader
		b.must(cmd.Start())
		reader.Close()
		b.must(rig.Eventually(20*time.Second, func() error {
			_, err := os.Stat(filepath.Join(b.d.Kubelet, "import", "slow", "target", "lost+found"))
			return err
		}))
		return cmd, func() { writer.Close() }
	}
	cmd, end := begin()
	if r := b.importTool(makeTree(t), "slow"); r.code != 1 || !strings.Contains(r.err, "another 'ringvol import' of slow") {
		t.Errorf("a second one: %d, %s", r.code, r.err)
	}
	b.must(cmd.Process.Signal(syscall.SIGTERM))
	if cmd.Wait() == nil {
		t.Error("an import that was ended succeeded")
	}
	end()
	b.nothingOnTheWay()

	cmd, end = begin()
	b.must(cmd.Process.Kill())
	_ = cmd.Wait()
	end()
	b.must(b.d.Kill())
	b.must(b.d.Start())
	b.must(b.d.AwaitReady())
	id := b.imported(makeTree(t), "slow")
	v := b.restored(id, "ext4", 64*mib)
	b.isTree(v.Target)
	b.must(v.Gone())
	b.must(b.d.DeleteSnapshot(id))
	b.nothingOnTheWay()
}

// What an import that was killed has asked for may be under way yet when the next import of the name looks for it: the
// next one waits for it and takes it back. Without reflink a clone takes as long as its data.
func TestImportBesideAnOlderCreate(t *testing.T) {
	b := open(t, "ext4", 1<<30)
	source := b.d.Volume("source", rig.BlockCap(), 200*mib)
	b.must(source.Up())
	_, err := rig.Fill(source.Target, 200*mib, 1)
	b.must(err)
	b.must(source.Down())
	const left = "import.golden.00000001"
	dir := filepath.Join(b.d.Kubelet, "import", "golden")
	b.must(os.MkdirAll(dir, 0o700))
	b.must(os.WriteFile(filepath.Join(dir, left), nil, 0o600))
	older := b.d.Volume(left, rig.BlockCap(), 200*mib)
	older.Source = rig.FromVolume(source.ID)
	other := b.d.Volume(left, rig.BlockCap(), 300*mib) // which does not join the older one
	other.Source = older.Source
	for _, v := range []*rig.Volume{older, other} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		_, err = b.c.CreateVolume(ctx, v.Request())
		cancel()
	}
	if rig.Code(err) != codes.Aborted {
		b.must(older.Create())
		b.must(older.Delete())
		t.Skipf("200 MiB are copied too soon to be waited for: %v", err)
	}
	id := b.imported(makeTree(t), "golden")
	b.nothingOnTheWay()
	b.must(b.d.DeleteSnapshot(id))
	b.must(source.Delete())
}
