// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// freezePool stops every write to the pool's file system, whose callers hang until the result is called.
func (b *bed) freezePool(p *rig.Pool) func() {
	b.t.Helper()
	const freeze, thaw = 0xc0045877, 0xc0045878 // FIFREEZE, FITHAW
	root, err := os.Open(p.Path)
	b.must(err)
	b.must(unix.IoctlSetInt(int(root.Fd()), freeze, 0))
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = unix.IoctlSetInt(int(root.Fd()), thaw, 0)
			root.Close()
		}
	}
	b.Defer(func() error { end(); return nil })
	return end
}

// A pool hangs below more calls than there are work threads; volumes of another pool live their whole lives meanwhile,
// and what is no pool's affair is answered.
func TestHangingPool(t *testing.T) {
	const hanging = 8 // of each call
	b := newBed(t, "xfs", 1<<30)
	b.another("fine")
	b.must(b.d.ServeHTTP())
	b.start()
	in := func(pool, name string) *rig.Volume {
		v := b.volume(name, "ext4")
		v.Params = map[string]string{"pool": pool}
		return v
	}
	var marked, made []*rig.Volume
	for i := range hanging {
		v := in("default", fmt.Sprintf("marked-%d", i))
		v.Cap = rig.WithMode(v.Cap, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)
		b.must(v.Create())
		b.must(v.Stage())
		marked = append(marked, v)
		made = append(made, in("default", fmt.Sprintf("made-%d", i)))
	}
	before := in("fine", "before")
	b.must(before.Up())

	thaw := b.freezePool(b.pool)
	var wait sync.WaitGroup
	for i := range hanging {
		wait.Go(func() { _ = marked[i].Publish() }) // its mark on the image
		wait.Go(func() { _ = made[i].Create() })
	}
	b.eventually(func() error {
		m, err := b.d.Scrape()
		if err == nil && m.Value("ringvol_work_queue_depth") < 2*hanging {
			err = errors.New("the calls do not hang yet")
		}
		return err
	})
	for i := range 3 {
		v := in("fine", fmt.Sprintf("beside-%d", i))
		b.must(v.Up())
		s, err := v.Snapshot(fmt.Sprintf("snapshot-%d", i))
		b.must(err)
		w := in("fine", fmt.Sprintf("restored-%d", i))
		w.Source = rig.FromSnapshot(s.GetSnapshotId())
		b.must(w.Up())
		b.must(w.Expand(64*mib, false))
		b.must(w.Gone())
		b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
		b.must(v.Gone())
	}
	_, err := b.c.GetCapacity(short(t), &csi.GetCapacityRequest{Parameters: map[string]string{"pool": "fine"}})
	b.must(err)
	b.must(before.Gone())
	b.eventually(func() error { // by itself, and it alone
		m, err := b.d.Scrape()
		if err == nil && m.Value("ringvol_pool_ready", "pool", "default") != 0 {
			err = errors.New("the pool that hangs does not read as sick")
		}
		return err
	})
	thaw()
	wait.Wait()
	for i := range hanging {
		b.eventually(marked[i].Gone)
		b.eventually(made[i].Create)
		b.must(made[i].Delete())
	}
}

// syncing tells whether a helper process of the driver is in syncfs.
func (b *bed) syncing() error {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", b.d.Pid(), b.d.Pid()))
	if err != nil {
		return rig.Stop(err)
	}
	for _, pid := range strings.Fields(string(children)) {
		call, _ := os.ReadFile("/proc/" + pid + "/syscall")
		if strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_SYNCFS)) {
			return nil
		}
	}
	return errors.New("no helper is in syncfs")
}

// A snapshot waits for a sync that takes long, and who asks for statistics waits for neither: the volume does not hang.
func TestStatsBesideSync(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("dirty", "ext4")
	b.must(v.Up())
	b.must(os.WriteFile(filepath.Join(v.Target, "file"), make([]byte, 8*mib), 0o600))
	thaw := b.freezePool(b.pool)
	taken := make(chan error, 1)
	go func() {
		_, err := v.Snapshot("slow")
		taken <- err
	}()
	b.eventually(b.syncing)
	reply, err := v.Stats()
	b.must(err)
	if c := reply.GetVolumeCondition(); strings.Contains(c.GetMessage(), "hanging") {
		t.Errorf("beside a sync: %v", c)
	}
	b.must(b.syncing()) // still
	thaw()
	b.must(<-taken)
	snapshots, err := b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{SourceVolumeId: v.ID})
	b.must(err)
	for _, s := range snapshots.GetEntries() {
		b.must(b.d.DeleteSnapshot(s.GetSnapshot().GetSnapshotId()))
	}
	b.must(v.Gone())
}

// Clients leave a create that hangs: their calls are over, the operation is not.
func TestClientsLeaveAHangingPool(t *testing.T) {
	const clients = 20
	b := newBed(t, "xfs", 1<<30)
	b.must(b.d.ServeHTTP())
	b.start()
	v := b.volume("left", "ext4")
	inFlight := func(want float64) {
		t.Helper()
		b.eventually(func() error {
			m, err := b.d.Scrape()
			if err == nil && m.Value("ringvol_rpc_in_flight") != want {
				err = fmt.Errorf("%v calls in flight, not %v", m.Value("ringvol_rpc_in_flight"), want)
			}
			return err
		})
	}
	thaw := b.freezePool(b.pool)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var wait sync.WaitGroup
	for range clients {
		wait.Go(func() {
			_, err := b.c.CreateVolume(ctx, v.Request())
			refused(t, "a create that was left", err, codes.Canceled)
		})
	}
	inFlight(clients)
	leave()
	wait.Wait()
	inFlight(0)
	thaw()
	b.eventually(func() error { // nobody asks for it
		_, err := os.Stat(filepath.Join(b.pool.Path, "volumes", v.Name))
		return err
	})
	b.eventually(v.Create)
	b.must(v.Delete())
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
