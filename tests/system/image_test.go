// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"ringvol.dev/tests/rig"

	"google.golang.org/grpc/codes"
)

// classOf is a claim's volume of a class that names a golden image.
func (b *bed) classOf(image, name string, size int64) *rig.Volume {
	v := b.d.Volume(name, rig.MountCap(""), size)
	v.Params = map[string]string{"source": image}
	return v
}

// A class names a golden image: what is made of it has its files, its size or more, and outlives it.
func TestImageInAClass(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		t.Run(fs+" pool", func(t *testing.T) {
			b := open(t, fs, 3<<30)
			id := b.imported(makeTree(t), "root")
			v, large := b.classOf("root", "pvc-1", 0), b.classOf("root", "pvc-2", 256*mib)
			b.must(v.Up())
			b.must(large.Up())
			b.isTree(v.Target)
			b.isTree(large.Target)
			space, err := rig.Space(large.Target)
			b.must(err)
			if large.Got != 256*mib || space < 200*mib {
				t.Errorf("%d bytes, of them %d in its file system", large.Got, space)
			}
			again := b.classOf("root", "pvc-1", 0)
			b.must(again.Create())
			if again.ID != v.ID {
				t.Errorf("a retry made %s after %s", again.ID, v.ID)
			}
			b.must(b.d.DeleteSnapshot(id))
			b.must(again.Create())
			b.refused("an image that is gone", b.classOf("root", "pvc-3", 0).Create(), codes.ResourceExhausted)
			b.refused("no name", b.classOf("a/b", "pvc-3", 0).Create(), codes.InvalidArgument)
			snapshot, err := v.Snapshot("root")
			b.must(err)
			b.refused("a snapshot", b.classOf("root", "pvc-3", 0).Create(), codes.FailedPrecondition)
			restored := b.classOf("other", "pvc-3", 0)
			restored.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
			b.must(restored.Up()) // the claim's own source
			for _, v := range []*rig.Volume{v, large, restored} {
				b.must(v.Gone())
			}
			b.must(b.d.DeleteSnapshot(snapshot.GetSnapshotId()))
		})
	}
}

// Pods ask for a golden image that the operator permits: each has its files, may change them, and changes nobody else's.
func TestImageInline(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		t.Run(fs+" pool", func(t *testing.T) {
			b := openInline(t, fs, "pools=default,namespaces=ci,sources=root:other,max-size=512Mi")
			id := b.imported(makeTree(t), "root")
			secret := b.imported(makeTree(t), "secret")
			var forks []*rig.Inline
			for i := range 6 {
				forks = append(forks, b.inline(fmt.Sprintf("csi-f%d", i), fmt.Sprintf("pod-%d", i), map[string]string{"source": "root"}))
			}
			forks[5].Attributes["size"] = "256Mi"
			var all sync.WaitGroup
			errs := make([]error, len(forks))
			for i, v := range forks {
				all.Go(func() { errs[i] = v.Publish() })
			}
			all.Wait()
			b.must(errors.Join(errs...))
			for _, v := range forks {
				b.isTree(v.Target)
				b.must(os.WriteFile(filepath.Join(v.Target, "etc/deep/file"), []byte(v.ID), 0o600))
			}
			if space, err := rig.Space(forks[5].Target); err != nil || space < 200*mib {
				t.Errorf("%d bytes, %v", space, err)
			}
			b.must(b.d.DeleteSnapshot(id))
			b.restart()
			for _, v := range forks {
				b.must(v.Publish())
				if is, err := os.ReadFile(filepath.Join(v.Target, "etc/deep/file")); string(is) != v.ID {
					t.Errorf("%s has %q, %v", v.ID, is, err)
				}
			}
			for what, source := range map[string]string{"an image that is gone": "root", "one that is not permitted": "secret",
				"one that is not there": "other"} {
				err := b.inline("csi-no", "pod-no", map[string]string{"source": source}).Publish()
				b.refused(what, err, codes.FailedPrecondition)
				if !strings.Contains(err.Error(), "golden image "+source) {
					t.Errorf("%s: %v", what, err)
				}
			}
			for _, v := range forks {
				b.twice(v.Unpublish)
			}
			b.must(b.d.DeleteSnapshot(secret))
			if n := b.images(); n != 0 {
				t.Errorf("%d images are left", n)
			}
		})
	}
}

// An image is copied to a node that has none, and is that of the node where it has one.
func TestClusterImage(t *testing.T) {
	b := openCluster(t, "node-a", "node-b", "node-c")
	imports := func(node string) string {
		t.Helper()
		n := b.node(node)
		r := tool(t, nil, "import", "--endpoint", "unix://"+n.Socket, "--work-dir", filepath.Join(n.Kubelet, "import"), makeTree(t), "root")
		if r.code != 0 {
			t.Fatalf("import on %s: %s", node, r.err)
		}
		return strings.TrimSpace(r.out)
	}
	claim := func(node, name string) *rig.Volume {
		var n *rig.Node
		if node != "" {
			n = b.node(node)
		}
		v := b.volume(n, name)
		v.Params = map[string]string{"source": "root"}
		return v
	}
	err := claim("node-b", "pvc-none").Create()
	b.refused("no image", err, codes.NotFound)
	b.says("no image", err, "no node has a golden image root")

	id := imports("node-a")
	v := claim("node-b", "pvc-copied")
	b.eventually(v.Create) // until the controller has been told of it
	b.must(v.Up())
	(&bed{t: t}).isTree(v.Target)
	anywhere := claim("", "pvc-anywhere")
	b.must(anywhere.Create())
	if home := b.homeOf(anywhere.ID); home != b.node("node-a") {
		t.Errorf("a volume that may be anywhere was made on %v", home)
	}

	second := imports("node-b") // the same one, says who imports it
	own := claim("node-b", "pvc-own")
	b.eventually(func() error {
		err := claim("node-c", "pvc-which").Create()
		if err == nil || !strings.Contains(err.Error(), "which of them is meant is not known") {
			return fmt.Errorf("two images: %w", err)
		}
		return nil
	})
	b.must(own.Create())
	reply, err := get(t, b.c, own.ID)
	b.must(err)
	if from := reply.GetVolume().GetContentSource().GetSnapshot().GetSnapshotId(); from != second {
		t.Errorf("made of %s instead of %s", from, second)
	}
	b.must(v.Gone())
	b.gone(anywhere, own)
	for _, id := range []string{id, second} {
		b.must(b.ctl.DeleteSnapshot(id))
	}
	b.quiet()
}
