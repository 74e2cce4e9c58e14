// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// growths is how often a volume is grown and copied; RINGVOL_TEST_GROWTHS says otherwise.
func growths(t *testing.T) int {
	text := os.Getenv("RINGVOL_TEST_GROWTHS")
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("RINGVOL_TEST_GROWTHS=%q is no count", text)
	}
	return n
}

const quickGrowths = 4 // one after the other; one alone does no harm

// growQuickly grows a volume in use. False: this machine does not let a mounted file system of that kind grow.
func (b *bed) growQuickly(v *rig.Volume, kind string) bool {
	b.t.Helper()
	for range quickGrowths {
		err := v.Expand(v.Got+16*mib, true)
		if kind == "ext4" && rig.Code(err) == codes.FailedPrecondition {
			return false
		}
		b.must(err)
	}
	return true
}

// What is copied right after a volume has grown mounts and has its data: the log that a copy takes along has to recover.
func TestGrowthThenCopy(t *testing.T) {
	for _, kind := range []string{"xfs", "ext4", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 4<<30)
			good := 0
			for i := range growths(t) {
				v := b.volume(fmt.Sprintf("grown-%d", i), kind)
				b.must(v.Up())
				sum, err := rig.Fill(v.Target, dataBytes, uint64(i))
				b.must(err)
				// A log that holds nothing but the growths is the one that does not recover.
				b.must(v.Down())
				b.must(v.Up())
				if !b.growQuickly(v, kind) {
					b.must(v.Gone())
					t.Skip("ext4 grows online only with CAP_SYS_RESOURCE, which is missing here; a guest has it")
				}
				w := b.volume(fmt.Sprintf("copy-%d", i), kind)
				w.Size, w.Source = 0, rig.FromVolume(v.ID)
				b.must(w.Create())
				if err := w.Up(); err != nil {
					t.Errorf("round %d: %v", i, err)
					_ = w.Unstage()
					b.must(w.Delete())
				} else {
					b.must(rig.Check(w.Target, dataBytes, sum))
					good++
					b.must(w.Gone())
				}
				b.must(rig.Check(v.Target, dataBytes, sum))
				b.must(v.Gone())
			}
			t.Logf("%d of %d copies mount and match", good, growths(t))
		})
	}
}

// A loss of power right after the answer: what is on the pool's disk by then is all that there is.
func TestGrowthThenPowerLoss(t *testing.T) {
	for _, kind := range []string{"xfs", "ext4", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 1<<30)
			v := b.volume("grown", kind)
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, dataBytes, 7)
			b.must(err)
			b.must(v.Down())
			b.must(v.Up())
			if !b.growQuickly(v, kind) {
				b.must(v.Gone())
				t.Skip("ext4 grows online only with CAP_SYS_RESOURCE, which is missing here; a guest has it")
			}
			disk, pool, found := b.Path("disk"), b.Path("after"), b.Path("found")
			_, err = rig.Run("cp", "--sparse=always", b.pool.Disk(), disk)
			b.must(err)
			b.must(v.Gone()) // before Linux 6.7 no two copies of a btrfs are mounted
			b.must(os.Mkdir(pool, 0o755))
			b.must(os.Mkdir(found, 0o755))
			b.mounted(disk, pool, "xfs", "nouuid", func() {
				options := map[string]string{"xfs": "nouuid"}[kind]
				b.mounted(filepath.Join(pool, "volumes", "grown"), found, kind, options, func() {
					b.must(rig.Check(found, dataBytes, sum))
					if space, err := rig.Space(found); err != nil || space < v.Got*3/4 {
						t.Errorf("it has %d bytes, was grown to %d (%v)", space, v.Got, err)
					}
				})
			})
		})
	}
}

// mounted runs something while an image is mounted.
func (b *bed) mounted(image, path, kind, options string, run func()) {
	b.t.Helper()
	device, err := rig.Attach(image)
	b.must(err)
	defer func() { _ = rig.Detach(device) }()
	if err := unix.Mount(device, path, kind, 0, options); err != nil {
		b.t.Errorf("mounting %s: %v", image, err)
		return
	}
	defer func() { b.must(unix.Unmount(path, 0)) }()
	run()
}
