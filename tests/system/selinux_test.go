// SPDX-License-Identifier: Apache-2.0

package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// labelled checks that the mount at the path and each file below it has the label.
func (b *bed) labelled(path, label string) {
	b.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	b.must(err)
	found, option := false, "context="+label+","
	if strings.Contains(label, ",") {
		option = `context="` + label + `",`
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		found = found || fields[4] == path && strings.Contains(fields[len(fields)-1]+",", option)
	}
	if !found {
		b.t.Errorf("%s is not mounted with %s:\n%s", path, label, mounts)
	}
	b.must(filepath.WalkDir(path, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		value := make([]byte, 256)
		n, err := unix.Lgetxattr(path, "security.selinux", value)
		if err != nil {
			return err
		}
		if got := strings.TrimRight(string(value[:n]), "\x00"); got != label {
			b.t.Errorf("%s is labelled %s", path, got)
		}
		return nil
	}))
}

// The label that kubelet gives where CSIDriver says seLinuxMount: on a node with SELinux each file has it; on one without,
// where kubelet gives none, the mount is refused rather than made without it.
func TestSELinuxContext(t *testing.T) {
	const label, another = "system_u:object_r:container_file_t:s0:c10,c25", "system_u:object_r:container_file_t:s0:c0"
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 1<<30)
			v := b.volume("labelled", kind)
			flags := func(labels ...string) {
				v.Cap.GetMount().MountFlags = []string{"noatime"}
				for _, label := range labels {
					v.Cap.GetMount().MountFlags = append(v.Cap.GetMount().MountFlags, `context="`+label+`"`)
				}
			}
			flags(label)
			b.must(v.Paths())
			b.must(v.Create())
			err := v.Stage()
			if _, without := os.Stat("/sys/fs/selinux/enforce"); without != nil {
				if err == nil || !strings.Contains(err.Error(), "SELinux is off on this node") {
					t.Errorf("staged without SELinux: %v", err)
				}
				v.Cap.GetMount().MountFlags = nil
				b.must(v.Stage())
				b.must(v.Unstage())
				b.must(v.Gone())
				return
			}
			b.must(err)
			b.must(v.Publish())
			b.must(os.MkdirAll(filepath.Join(v.Target, "directory"), 0o755))
			b.must(os.WriteFile(filepath.Join(v.Target, "directory", "file"), []byte("x"), 0o644))
			b.labelled(v.Staging, label)
			b.labelled(v.Target, label)

			// One volume has one label at a time.
			flags(label, another)
			b.refused("two labels", v.Stage(), codes.InvalidArgument)
			flags(another)
			b.refused("another label at the same path", v.Stage(), codes.AlreadyExists)
			flags(label)
			b.must(v.Stage())
			flags(another)
			staging := v.Staging
			v.Staging += "-2"
			b.must(os.Mkdir(v.Staging, 0o750))
			b.refused("another label at another path", v.Stage(), codes.FailedPrecondition)
			v.Staging = staging
			b.labelled(v.Target, label)

			// The next pod may have another one.
			b.must(v.Down())
			b.must(v.Up())
			b.labelled(v.Target, another)
			b.must(v.Gone())
		})
	}
}
