// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

const trimBytes = 48 * mib

// fillAndRemove has a volume's image take room for a file that is no more.
func (b *bed) fillAndRemove(v *rig.Volume) {
	b.t.Helper()
	_, err := rig.Fill(v.Target, trimBytes, 5)
	b.must(err)
	unix.Sync()
	taken, err := rig.Allocated(b.pool.Image(v.ID))
	b.must(err)
	if taken < trimBytes {
		b.t.Fatalf("%d bytes written take %d", int64(trimBytes), taken)
	}
	b.must(os.Remove(filepath.Join(v.Target, "data")))
	unix.Sync()
}

func (b *bed) counter(name string) float64 {
	b.t.Helper()
	m, err := b.d.Scrape()
	b.must(err)
	return m.Value(name)
}

// trims waits for so many more of them.
func (b *bed) trims(count float64) {
	b.t.Helper()
	before := b.counter("ringvol_trim_done_total")
	b.eventually(func() error {
		if now := b.counter("ringvol_trim_done_total"); now < before+count {
			return fmt.Errorf("%v trims, %v are waited for", now-before, count)
		}
		return nil
	})
}

// What files gave back goes back to the pool by itself, and nothing is lost by that. A thick volume keeps its room.
func TestTrimBySchedule(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t, "xfs", 2<<30)
			b.d.Args = append(b.d.Args, "--trim-interval", "2s")
			b.must(b.d.ServeHTTP())
			b.start()
			v, thick := b.volume("thin", kind), b.volume("thick", kind)
			v.Size = max(v.Size, 128*mib)
			thick.Params = map[string]string{"provisioning": "thick"}
			b.must(v.Up())
			b.must(thick.Up())
			kept := filepath.Join(v.Target, "kept")
			b.must(os.Mkdir(kept, 0o755))
			sum, err := rig.Fill(kept, dataBytes, 6)
			b.must(err)
			b.fillAndRemove(v)
			b.eventually(func() error {
				left, err := rig.Allocated(b.pool.Image(v.ID))
				if err == nil && left > trimBytes/2+dataBytes {
					err = fmt.Errorf("it still has %d bytes", left)
				}
				return err
			})
			b.eventually(func() error {
				if back := b.counter("ringvol_trim_returned_bytes_total"); back < float64(trimBytes/2) {
					return fmt.Errorf("the metric says that %v bytes came back", back)
				}
				return nil
			})
			b.must(rig.Check(kept, dataBytes, sum))
			all, err := rig.Allocated(b.pool.Image(thick.ID))
			b.must(err)
			if all < thick.Got {
				t.Errorf("the thick volume of %d bytes has %d", thick.Got, all)
			}
			// It is in nobody's way: the volume is unstaged, staged and copied between two trims, and under them.
			for i := range 3 {
				b.trims(1)
				copied := b.volume(fmt.Sprintf("copy-%d", i), kind)
				copied.Size, copied.Source = 0, rig.FromVolume(v.ID)
				b.must(copied.Create())
				b.must(copied.Delete())
				b.must(v.Down())
				// Whoever looks at all devices of this machine has each open for a moment.
				b.eventually(v.Up)
				b.must(rig.Check(kept, dataBytes, sum))
			}
			if failed := b.counter("ringvol_trim_failed_total"); failed != 0 {
				t.Errorf("%v trims failed:\n%s", failed, b.d.LogTail(40))
			}
			b.must(v.Gone())
			b.must(thick.Gone())
		})
	}
}

// The scheduler is told how many volumes there can be.
func TestMaxVolumes(t *testing.T) {
	for args, want := range map[string]int64{"": 1 << 20, "--max-volumes-per-node=3": 3} {
		b := newBed(t, "xfs", 1<<30)
		b.d.Args = append(b.d.Args, "--ublkd=off")
		if args != "" {
			b.d.Args = append(b.d.Args, args)
		}
		b.start()
		info, err := b.c.NodeGetInfo(short(t), &csi.NodeGetInfoRequest{})
		b.must(err)
		if got := info.GetMaxVolumesPerNode(); got != want {
			t.Errorf("with %q the node says %d volumes, not %d", args, got, want)
		}
	}
}
