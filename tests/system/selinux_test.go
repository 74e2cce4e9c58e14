// SPDX-License-Identifier: Apache-2.0

package system

import (
	"os"
	"strings"
	"testing"
)

// The label that kubelet gives where CSIDriver says seLinuxMount: on a node with SELinux each file has it; on one without,
// where kubelet gives none, the mount is refused rather than made without it.
func TestSELinuxContext(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 1<<30)
			v := b.volume("labelled", kind)
			label := "system_u:object_r:container_file_t:s0:c10,c25"
			v.Cap.GetMount().MountFlags = []string{"noatime", `context="` + label + `"`}
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
			mounts, err := os.ReadFile("/proc/self/mounts")
			b.must(err)
			for _, path := range []string{v.Staging, v.Target} {
				if !strings.Contains(string(mounts), path+" "+kind+" ") || !strings.Contains(string(mounts), label) {
					t.Errorf("%s is not labelled:\n%s", path, mounts)
				}
			}
			b.must(v.Gone())
		})
	}
}
