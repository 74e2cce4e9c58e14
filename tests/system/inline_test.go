// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func openInline(t *testing.T, fs, policy string) *bed {
	t.Helper()
	b := newBed(t, fs, 2<<30)
	b.d.Args = []string{"--inline", policy}
	return b.start()
}

func (b *bed) inline(id, pod string, attributes map[string]string) *rig.Inline {
	b.t.Helper()
	v, err := b.d.Inline(id, pod, attributes)
	b.must(err)
	return v
}

func (b *bed) images() int {
	b.t.Helper()
	entries, err := os.ReadDir(filepath.Join(b.pool.Path, "volumes"))
	b.must(err)
	return len(entries)
}

// An inline volume is there by one call and gone by one, survives a killed driver under a writer's hands, and is nothing
// that a CO can list or delete.
func TestInlineLife(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		t.Run(fs+" pool", func(t *testing.T) {
			b := openInline(t, fs, "pools=default,namespaces=ci,max-size=512Mi,iops=100k")
			v := b.inline("csi-71a0", "pod-1", map[string]string{"size": "64Mi", "fstype": "ext4"})
			b.twice(v.Publish)
			var st unix.Statfs_t
			b.must(unix.Statfs(v.Target, &st))
			if st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
				t.Errorf("mounted with flags %#x", st.Flags)
			}
			sum, err := rig.Fill(v.Target, dataBytes, 7)
			b.must(err)
			stats, err := b.c.NodeGetVolumeStats(short(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID, VolumePath: v.Target})
			b.must(err)
			if total := stats.GetUsage()[0].GetTotal(); total <= 0 || total > 64*mib {
				t.Errorf("%d bytes in all", total)
			}
			w := startWriter(v.Target)
			w.moves(b)
			b.restart()
			w.moves(b)
			b.must(w.finish())
			b.must(v.Publish())
			b.must(rig.Check(v.Target, dataBytes, sum))

			list, err := b.c.ListVolumes(short(t), &csi.ListVolumesRequest{})
			b.must(err)
			if len(list.GetEntries()) != 0 {
				t.Errorf("a CO is told of it: %v", list)
			}
			_, err = b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: v.ID})
			b.refused("DeleteVolume", err, codes.FailedPrecondition)
			_, err = b.c.CreateSnapshot(short(t), &csi.CreateSnapshotRequest{SourceVolumeId: v.ID, Name: "snap"})
			b.refused("CreateSnapshot", err, codes.FailedPrecondition)

			b.twice(v.Unpublish)
			if n := b.images(); n != 0 {
				t.Errorf("%d images are left", n)
			}
			if _, err := os.Lstat(v.Target); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the target is left: %v", err)
			}
		})
	}
}

// After a reboot nothing is mounted, and its pod's directory is there: it is published again with what was written. When
// that directory goes without an unpublish, so does the volume.
func TestInlineOutlivesARebootAndNotItsPod(t *testing.T) {
	b := openInline(t, "xfs", "pools=default,namespaces=*")
	b.must(os.MkdirAll(filepath.Join(b.d.Kubelet, "pods/pod-2"), 0o750))
	v := b.inline("csi-71a1", "pod-1", map[string]string{"size": "64Mi"})
	b.must(v.Publish())
	sum, err := rig.Fill(v.Target, dataBytes, 7)
	b.must(err)
	b.must(b.d.Kill())
	b.must(unix.Unmount(v.Target, 0))
	b.start()
	b.must(v.Publish())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(b.d.Kill())
	b.must(unix.Unmount(v.Target, 0))
	b.must(os.RemoveAll(filepath.Join(b.d.Kubelet, "pods/pod-1")))
	b.start()
	b.eventually(func() error {
		if b.images() != 0 {
			return errors.New("the volume of a pod that is gone is there")
		}
		return nil
	})
}

func TestInlineIsOffByDefault(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	err := b.inline("csi-71a2", "pod-1", nil).Publish()
	b.refused("an inline volume", err, codes.FailedPrecondition)
	if !strings.Contains(err.Error(), "--inline") {
		t.Errorf("no remedy: %v", err)
	}
	if n := b.images(); n != 0 {
		t.Errorf("%d images", n)
	}
}

func TestInlineBounds(t *testing.T) {
	b := openInline(t, "xfs", "pools=default,namespaces=ci,max-size=128Mi,iops=1k,bandwidth=10Mi")
	for _, attributes := range []map[string]string{
		{"size": "129Mi"}, {"size": "-1"}, {"iops": "2k"}, {"bandwidth": "11Mi"}, {"source": "a/b"}, {"device": "loop"},
		{"mkfsOptions": "-q"}, {"fstype": "vfat"}, {"fstype": "xfs", "size": "64Mi"},
	} {
		err := b.inline("csi-71a3", "pod-1", attributes).Publish()
		b.refused(strings.Join(keysOf(attributes), ","), err, codes.InvalidArgument)
	}
	for _, attributes := range []map[string]string{{"pool": "other"}, {"source": "golden"}} {
		err := b.inline("csi-71a3", "pod-1", attributes).Publish()
		b.refused(strings.Join(keysOf(attributes), ",")+" that is not permitted", err, codes.FailedPrecondition)
	}
	if n := b.images(); n != 0 {
		t.Errorf("%d images", n)
	}
}

func keysOf(m map[string]string) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	return keys
}
