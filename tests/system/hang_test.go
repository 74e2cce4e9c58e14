// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// hang covers path with a file system whose server never answers; the result ends it.
func (b *bed) hang(path string) func() {
	b.t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		b.t.Skipf("no FUSE here: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("ringvol-hang", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		b.t.Skipf("FUSE cannot be mounted here: %v", err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			unix.Close(fd) // everybody who waits gets an error
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	}
	b.Defer(func() error { end(); return nil })
	return end
}

// More volumes hang than helper processes are kept: those answer DEADLINE_EXCEEDED and read as
// abnormal, the others are served as before.
func TestHangingVolumes(t *testing.T) {
	const sick, well = 10, 3
	b := open(t, "xfs", 2<<30)
	var volumes []*rig.Volume
	for i := range sick + well {
		v := b.d.Volume(fmt.Sprintf("hang-%d", i), rig.MountCap("ext4"), 16*mib)
		b.must(v.Up())
		volumes = append(volumes, v)
	}
	var ends []func()
	for _, v := range volumes[:sick] {
		ends = append(ends, b.hang(v.Target))
	}
	stop := make(chan struct{})
	healthy := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				healthy <- nil
				return
			default:
			}
			if _, err := volumes[sick+i%well].Stats(); err != nil {
				healthy <- err
				return
			}
		}
	}()
	for range 2 {
		var wait sync.WaitGroup
		for _, v := range volumes[:sick] {
			wait.Go(func() {
				_, err := v.Stats()
				refused(t, "statistics of a hanging volume", err, codes.DeadlineExceeded)
			})
		}
		wait.Wait()
	}
	abnormal := func(v *rig.Volume) (bool, string) {
		reply, err := b.c.ControllerGetVolume(short(t), &csi.ControllerGetVolumeRequest{VolumeId: v.ID})
		b.must(err)
		c := reply.GetStatus().GetVolumeCondition()
		return c.GetAbnormal(), c.GetMessage()
	}
	for i, v := range volumes {
		if bad, why := abnormal(v); bad != (i < sick) || why == "" {
			t.Errorf("%s: abnormal %v, %q", v.Name, bad, why)
		}
	}
	// Whole lives go on beside them.
	for i := range 5 {
		v := b.d.Volume(fmt.Sprintf("beside-%d", i), rig.MountCap("ext4"), 16*mib)
		b.must(v.Up())
		b.must(v.Gone())
	}
	close(stop)
	if err := <-healthy; err != nil {
		t.Errorf("a healthy volume meanwhile: %v", err)
	}
	for _, end := range ends {
		end()
	}
	for _, v := range volumes {
		b.eventually(func() error {
			if _, err := v.Stats(); err != nil {
				return err
			}
			if bad, why := abnormal(v); bad {
				return errors.New(why)
			}
			return nil
		})
		b.eventually(v.Gone)
	}
}

// A driver with hanging helpers ends on SIGTERM, and its successor can have the pool.
func TestRestartWhileHanging(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("hang", "ext4")
	b.must(v.Up())
	end := b.hang(v.Target)
	_, err := v.Stats()
	b.refused("statistics of a hanging volume", err, codes.DeadlineExceeded)
	b.must(b.d.Term())
	b.start()
	w := b.volume("other", "ext4")
	b.must(w.Up())
	b.must(w.Gone())
	end()
	b.must(rig.Eventually(30*time.Second, v.Gone))
}
