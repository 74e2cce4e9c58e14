// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// VolumeHealthErrorType and StorageHealthErrorType of CSI 1.13.
const (
	degraded, inaccessible, dataLoss    = 1, 2, 3
	storageDegraded, storageUnreachable = 1, 2
)

// found waits until the volume has a condition of this kind and status, asked in every way there is.
func (b *bed) found(v *rig.Volume, reason string, status uint64, words ...string) {
	b.t.Helper()
	b.eventually(func() error {
		h, err := b.c.ControllerGetVolumeHealth(short(b.t), v.ID)
		if err != nil {
			return err
		}
		for _, f := range h.Findings {
			if f.Reason != reason {
				continue
			}
			if f.Status != status {
				return rig.Stop(fmt.Errorf("%s: %v has not status %d", v.Name, h, status))
			}
			for _, word := range words {
				if !strings.Contains(f.Message, word) {
					return fmt.Errorf("%s: %v does not say %q", v.Name, h, word)
				}
			}
			return nil
		}
		return fmt.Errorf("%s: %v, not %s", v.Name, h, reason)
	})
	h, err := b.c.NodeGetVolumeHealth(short(b.t), v.ID, v.Target, v.Staging)
	b.must(err)
	if !h.Has(reason) || h.ID != v.ID {
		b.t.Errorf("the node says %v of %s, not %s", h, v.Name, reason)
	}
	page, _, err := b.c.ControllerListVolumeHealth(short(b.t), 0, "")
	b.must(err)
	listed := false
	for _, h := range page {
		listed = listed || h.ID == v.ID && h.Has(reason)
	}
	if !listed {
		b.t.Errorf("%s is not listed with %s: %v", v.Name, reason, page)
	}
	reply, err := b.c.ControllerGetVolume(short(b.t), &csi.ControllerGetVolumeRequest{VolumeId: v.ID})
	b.must(err)
	if c := reply.GetStatus().GetVolumeCondition(); !c.GetAbnormal() || c.GetMessage() == "" {
		b.t.Errorf("%s has %s, and ControllerGetVolume says %v", v.Name, reason, c)
	}
}

// well waits until nothing is wrong with the volume any more.
func (b *bed) well(v *rig.Volume) {
	b.t.Helper()
	b.eventually(func() error {
		h, err := b.c.ControllerGetVolumeHealth(short(b.t), v.ID)
		if err == nil && len(h.Findings) > 0 {
			err = fmt.Errorf("%s: %v", v.Name, h)
		}
		return err
	})
	page, _, err := b.c.ControllerListVolumeHealth(short(b.t), 0, "")
	b.must(err)
	for _, h := range page {
		if h.ID == v.ID {
			b.t.Errorf("%s is well and listed: %v", v.Name, h)
		}
	}
}

// read reads all of a device past the page cache; the error is what the device says.
func read(device string) error {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	memory, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(memory)
	for {
		if n, err := unix.Read(fd, memory); err != nil || n == 0 {
			return err
		}
	}
}

// provoke reads behind the end of an image that was cut short, until that is noticed: the probes begin
// to count a moment after the driver serves.
func (b *bed) provoke(v *rig.Volume) {
	b.t.Helper()
	b.eventually(func() error {
		if err := read(v.Target); !errors.Is(err, unix.EIO) {
			return rig.Stop(fmt.Errorf("reading behind the end of the image: %v", err))
		}
		h, err := b.c.ControllerGetVolumeHealth(short(b.t), v.ID)
		if err == nil && !h.Has("IOErrors") {
			err = fmt.Errorf("%s: %v", v.Name, h)
		}
		return err
	})
}

// needsProbes skips where I/O errors cannot be seen.
func (b *bed) needsProbes() {
	b.t.Helper()
	if !b.probesSettled() {
		b.t.Skip("no BPF here: I/O errors cannot be seen")
	}
}

// A loop device over an image that was cut short answers EIO behind its end.
func TestHealthIOErrors(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	b.needsProbes()
	v, w := b.volume("sick", "block"), b.volume("healthy", "block")
	b.must(v.Up())
	b.must(w.Up())
	b.well(v)
	image := b.pool.Image(v.ID)
	b.must(os.Truncate(image, v.Got/2))
	b.provoke(v)
	b.found(v, "IOErrors", degraded, "read", "Input/output error", "since")
	b.well(w)
	b.must(os.Truncate(image, v.Got))
	b.must(read(v.Target))
	b.well(v)
	b.must(v.Gone())
	b.must(w.Gone())
}

// Nobody uses the volume after the error: the driver finds out by itself that it is well again.
func TestHealthIOErrorsIdle(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	b.needsProbes()
	v := b.volume("sick", "block")
	b.must(v.Up())
	image := b.pool.Image(v.ID)
	b.must(os.Truncate(image, v.Got/2))
	b.provoke(v)
	b.found(v, "IOErrors", degraded)
	b.must(os.Truncate(image, v.Got))
	b.well(v)
	b.must(v.Gone())
}

// shutDown is the ioctl of XFS and ext4; what is in the log is not written.
func shutDown(path string) error {
	const goingDown = 0x8004587d // _IOR('X', 125, __u32)
	dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.IoctlSetPointerInt(dir, goingDown, 2)
}

// One who asks for statistics or health of the volume looks at its file system.
func TestHealthFileSystemShutDown(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t, "xfs", 1<<30)
			v := b.volume("sick", fs)
			b.must(v.Up())
			b.must(shutDown(v.Target))
			h, err := b.c.NodeGetVolumeHealth(short(t), v.ID, v.Target, v.Staging)
			b.must(err)
			if fs == "ext4" && len(h.Findings) == 0 {
				b.must(v.Gone())
				t.Skip("this kernel does not tell that an ext4 has shut down")
			}
			b.found(v, "FileSystemShutDown", inaccessible, "kernel log")
			reply, err := v.Stats()
			b.must(err)
			if c := reply.GetVolumeCondition(); !c.GetAbnormal() || !strings.Contains(c.GetMessage(), "shut down") {
				t.Errorf("statistics say %v", c)
			}
			b.must(v.Down())
			b.must(v.Up())
			b.well(v)
			b.must(v.Gone())
		})
	}
}

func TestHealthFileSystemReadOnly(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v, w := b.volume("sick", "ext4"), b.volume("meant", "ext4")
	b.must(v.Up())
	b.must(w.Create())
	b.must(w.Stage())
	b.must(w.PublishAt(w.Target, true))
	// As after an error: the file system turns, its mounts do not.
	b.must(unix.Mount("", v.Staging, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	reply, err := v.Stats()
	b.must(err)
	if c := reply.GetVolumeCondition(); !c.GetAbnormal() || !strings.Contains(c.GetMessage(), "read-only") {
		t.Errorf("statistics say %v", c)
	}
	b.found(v, "FileSystemReadOnly", degraded, "kernel log", "since")
	if reply, err := w.Stats(); err != nil || reply.GetVolumeCondition().GetAbnormal() {
		t.Errorf("published read-only: %v, %v", reply, err)
	}
	b.must(unix.Mount("", v.Staging, "", unix.MS_REMOUNT, ""))
	_, err = v.Stats()
	b.must(err)
	b.well(v)
	b.must(v.Gone())
	b.must(w.Gone())
}

func TestHealthDeviceGone(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("sick", "block")
	b.must(v.Up())
	b.well(v)
	loops := rig.LoopsBelow(b.pool.Path)
	if len(loops) != 1 {
		t.Fatalf("devices: %v", loops)
	}
	b.must(rig.Detach(loops[0]))
	b.found(v, "DeviceGone", inaccessible, loops[0], "stage")
	b.must(v.Down())
	b.must(v.Up())
	b.well(v)
	b.must(v.Gone())
}

// Another's image under the number that was the volume's.
func TestHealthDeviceOfAnother(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("sick", "block")
	b.must(v.Up())
	h, err := b.c.NodeGetVolumeHealth(short(t), v.ID, v.Target, v.Staging)
	b.must(err)
	if len(h.Findings) > 0 {
		t.Fatalf("at first: %v", h)
	}
	loop := rig.LoopsBelow(b.pool.Path)[0]
	b.must(rig.Detach(loop))
	other := b.Path("another.img")
	b.must(os.WriteFile(other, make([]byte, mib), 0o600))
	if _, err := rig.Run("losetup", loop, other); err != nil {
		t.Skip(err) // somebody else was faster
	}
	b.found(v, "DeviceGone", inaccessible, loop)
	b.must(v.Down())
	b.must(rig.Detach(loop))
	b.must(v.Delete())
}

func TestHealthPoolFills(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("thin", "ext4")
	thick := b.volume("thick", "block")
	thick.Params = map[string]string{"provisioning": "thick"}
	b.must(v.Up())
	b.must(thick.Create())
	storage := func(reason string) error {
		h, err := b.c.NodeGetStorageHealth(short(t))
		if err == nil && (reason == "") != (len(h.Findings) == 0) || reason != "" && !h.Has(reason) {
			err = fmt.Errorf("storage: %v, not %q", h, reason)
		}
		for _, f := range h.Findings {
			if f.Status != storageDegraded {
				err = fmt.Errorf("storage: %v", h)
			}
		}
		return err
	}
	b.must(storage(""))
	hog := filepath.Join(b.pool.Path, "hog")
	leave := func(bytes int64) {
		file, err := os.OpenFile(hog, os.O_CREATE|os.O_WRONLY, 0o600)
		b.must(err)
		defer file.Close()
		info, err := file.Stat()
		b.must(err)
		var st unix.Statfs_t
		b.must(unix.Statfs(b.pool.Path, &st))
		size := int64(st.Bavail)*st.Bsize - bytes
		b.must(unix.Fallocate(int(file.Fd()), 0, info.Size(), size))
	}
	leave(24 * mib)
	b.found(v, "PoolNearlyFull", degraded, "default", "MiB free")
	b.must(storage("PoolNearlyFull"))
	leave(mib)
	b.found(v, "PoolFull", degraded, "default", "MiB free")
	b.must(storage("PoolFull"))
	b.well(thick) // it has what it was promised
	b.must(os.Remove(hog))
	b.well(v)
	b.must(storage(""))
	b.must(v.Gone())
	b.must(thick.Delete())
}

func TestHealthPoolGone(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("idle", "ext4")
	b.must(v.Create())
	b.must(unix.Unmount(b.pool.Path, unix.MNT_DETACH))
	b.eventually(func() error {
		h, err := b.c.NodeGetStorageHealth(short(t))
		if err == nil && (!h.Has("PoolMissing") || h.Findings[0].Status != storageUnreachable) {
			err = fmt.Errorf("storage: %v", h)
		}
		return err
	})
	for name, ask := range map[string]func() (*rig.Health, error){
		"controller": func() (*rig.Health, error) { return b.c.ControllerGetVolumeHealth(short(t), v.ID) },
		"node":       func() (*rig.Health, error) { return b.c.NodeGetVolumeHealth(short(t), v.ID, "", "") },
	} {
		h, err := ask()
		b.must(err)
		if !h.Has("PoolMissing") || h.Findings[0].Status != inaccessible {
			t.Errorf("%s: %v", name, h)
		}
	}
	b.eventually(b.pool.Mount) // the kernel lets go of the file system a moment later
	b.well(v)
	b.must(v.Delete())
}

// A volume that hangs says so, and holds up nobody's answer.
func TestHealthHanging(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v, w := b.volume("sick", "ext4"), b.volume("healthy", "ext4")
	b.must(v.Up())
	b.must(w.Up())
	end := b.hang(v.Staging)
	// The watch may have looked just before, and comes again in two minutes; who asks looks.
	if h, err := b.c.NodeGetVolumeHealth(short(t), v.ID, v.Target, v.Staging); err != nil || !h.Has("Hanging") {
		t.Errorf("asked while it hangs: %v, %v", h, err)
	}
	b.found(v, "Hanging", inaccessible, "since")
	b.well(w)
	end()
	b.well(v)
	b.must(v.Gone())
	b.must(w.Gone())
}

func TestHealthCapabilities(t *testing.T) {
	for version, want := range map[string][3]bool{
		"": {true, true, true}, "both": {true, true, true}, "1.12": {true, false, false}, "1.13": {false, true, true},
	} {
		t.Run(version, func(t *testing.T) {
			b := newBed(t, "xfs", 1<<30)
			if version != "" {
				b.d.Args = []string{"--csi-version", version}
			}
			b.start()
			has := map[int32]bool{}
			node, err := b.c.NodeGetCapabilities(short(t), &csi.NodeGetCapabilitiesRequest{})
			b.must(err)
			for _, c := range node.GetCapabilities() {
				has[int32(c.GetRpc().GetType())] = true
			}
			if got := [3]bool{has[4], has[7], has[8]}; got != want {
				t.Errorf("node: VOLUME_CONDITION, GET_VOLUME_HEALTH, GET_STORAGE_HEALTH: %v", got)
			}
			has = map[int32]bool{}
			controller, err := b.c.ControllerGetCapabilities(short(t), &csi.ControllerGetCapabilitiesRequest{})
			b.must(err)
			for _, c := range controller.GetCapabilities() {
				has[int32(c.GetRpc().GetType())] = true
			}
			if got := [3]bool{has[11], has[16], has[17]}; got != want {
				t.Errorf("controller: VOLUME_CONDITION, GET_VOLUME_HEALTH, LIST_VOLUME_HEALTH: %v", got)
			}
			v := b.volume("either", "ext4")
			b.must(v.Up())
			reply, err := v.Stats()
			b.must(err)
			if (reply.GetVolumeCondition() != nil) != (version != "1.13") {
				t.Errorf("statistics: %v", reply)
			}
			b.well(v)
			b.must(v.Gone())
		})
	}
}

func TestHealthImage(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	cut, gone, idle := b.volume("cut", "block"), b.volume("gone", "block"), b.volume("idle", "block")
	b.must(cut.Up())
	b.must(gone.Up())
	b.must(idle.Create())
	b.must(idle.Paths())
	file, err := os.OpenFile(b.pool.Image(cut.ID), os.O_WRONLY, 0)
	b.must(err)
	b.must(file.Truncate(cut.Got / 2))
	b.must(file.Close())
	b.found(cut, "ImageTruncated", dataLoss, "snapshot", "since")
	b.refused("growing what was cut short", cut.Expand(cut.Got+32*mib, false), codes.DataLoss)
	b.found(cut, "ImageTruncated", dataLoss, "snapshot", "since")
	b.must(os.Rename(b.pool.Image(gone.ID), filepath.Join(b.pool.Path, "kept-gone")))
	b.must(os.Rename(b.pool.Image(idle.ID), filepath.Join(b.pool.Path, "kept-idle")))
	b.found(gone, "ImageMissing", dataLoss, "snapshot")
	b.found(idle, "ImageMissing", dataLoss, "snapshot")
	reply, err := gone.Stats()
	b.must(err)
	if c := reply.GetVolumeCondition(); !c.GetAbnormal() || !strings.Contains(c.GetMessage(), "put it back") {
		t.Errorf("statistics say %v", c)
	}
	if u := reply.GetUsage(); len(u) != 1 || u[0].GetTotal() != gone.Got || u[0].GetUsed() != 0 || u[0].GetAvailable() != 0 {
		t.Errorf("statistics without the image: %v", u)
	}
	b.must(os.Rename(filepath.Join(b.pool.Path, "kept-gone"), b.pool.Image(gone.ID)))
	b.must(os.Rename(filepath.Join(b.pool.Path, "kept-idle"), b.pool.Image(idle.ID)))
	b.must(os.Truncate(b.pool.Image(cut.ID), cut.Got))
	for _, v := range []*rig.Volume{cut, gone, idle} {
		b.well(v)
	}
	b.must(cut.Gone())
	b.must(gone.Gone())
	b.must(idle.Delete())
}

// All at once, several pages, and what is asked badly.
func TestHealthCalls(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	var volumes []*rig.Volume
	for i := range 5 {
		v := b.d.Volume(fmt.Sprintf("v-%d", i), rig.BlockCap(), 16*mib)
		b.must(v.Create())
		volumes = append(volumes, v)
	}
	page, next, err := b.c.ControllerListVolumeHealth(short(t), 2, "")
	b.must(err)
	if len(page) != 0 || next != "" {
		t.Errorf("all are well: %v, %q", page, next)
	}
	for _, v := range volumes[1:] {
		b.must(os.Rename(b.pool.Image(v.ID), filepath.Join(b.pool.Path, v.Name)))
	}
	b.eventually(func() error {
		seen := map[string]bool{}
		for next := ""; ; {
			page, token, err := b.c.ControllerListVolumeHealth(short(t), 3, next)
			if err != nil || len(page) > 3 {
				return rig.Stop(fmt.Errorf("a page: %v, %w", page, err))
			}
			for _, h := range page {
				if seen[h.ID] {
					return rig.Stop(fmt.Errorf("%s twice", h.ID))
				}
				seen[h.ID] = true
			}
			if next = token; next == "" {
				break
			}
		}
		if len(seen) != 4 || seen[volumes[0].ID] {
			return fmt.Errorf("listed: %v", seen)
		}
		return nil
	})
	for _, v := range volumes[1:] {
		b.must(os.Rename(filepath.Join(b.pool.Path, v.Name), b.pool.Image(v.ID)))
	}
	_, _, err = b.c.ControllerListVolumeHealth(short(t), -1, "")
	b.refused("a negative number of entries", err, codes.InvalidArgument)
	_, _, err = b.c.ControllerListVolumeHealth(short(t), 0, "nonsense")
	b.refused("a token of nobody's", err, codes.Aborted)
	_, err = b.c.ControllerGetVolumeHealth(short(t), "")
	b.refused("no id", err, codes.InvalidArgument)
	_, err = b.c.NodeGetVolumeHealth(short(t), "", "", "")
	b.refused("no id", err, codes.InvalidArgument)
	_, err = b.c.NodeGetVolumeHealth(short(t), volumes[0].ID, "relative", "")
	b.refused("a relative path", err, codes.NotFound)
	for _, v := range volumes {
		b.well(v)
		b.must(v.Delete())
		_, err = b.c.ControllerGetVolumeHealth(short(t), v.ID)
		b.refused("a volume that is gone", err, codes.NotFound)
		_, err = b.c.NodeGetVolumeHealth(short(t), v.ID, "", "")
		b.refused("a volume that is gone", err, codes.NotFound)
	}
}

// A look at a mount holds it for a moment; taking it down waits for that instead of calling it busy.
func TestReleaseBesideLooks(t *testing.T) {
	b := newBed(t, "xfs", 1<<30)
	b.d.Args = []string{"--csi-version", "1.13"}
	b.start()
	v := b.volume("looked-at", "ext4")
	b.must(v.Create())
	b.must(v.Paths())
	var looks atomic.Int64
	stop := make(chan struct{})
	var lookers sync.WaitGroup
	look := func() error {
		_, err := b.c.NodeGetVolumeHealth(short(t), v.ID, v.Staging, v.Staging)
		return err
	}
	statistics := func() error {
		_, err := b.c.NodeGetVolumeStats(short(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID, VolumePath: v.Staging})
		return err
	}
	for _, ask := range []func() error{look, look, look, look, statistics, statistics, statistics} {
		lookers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if ask() == nil {
						looks.Add(1)
					}
				}
			}
		})
	}
	var err error
	for range 150 {
		// Mount namespaces made by others in the meantime may keep the device for a while.
		if err = rig.Eventually(30*time.Second, v.Stage); err != nil {
			break
		}
		if err = v.Unstage(); err != nil {
			break
		}
	}
	close(stop)
	lookers.Wait()
	b.must(err)
	if looks.Load() == 0 {
		t.Error("nobody looked")
	}
	b.must(v.Delete())
}
