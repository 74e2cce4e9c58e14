// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// What check cannot read or see: it says so, and leaves it alone.

// An image that cannot be read is no clean one. Without /proc no file system but a sound one can be looked for: it
// stands for a disk that cannot be read there.
func TestCheckUnreadable(t *testing.T) {
	if strings.Contains(rig.Binary(), "asan") {
		t.Skip("the sanitizer needs /proc")
	}
	b := newCheckBed(t)
	b.write(b.path("volumes", "fs"), 0, make([]byte, 65536))
	cmd := toolCommand(context.Background(), nil, "check", "--json", "--pool", b.poolArg())
	inside := exec.Command("unshare", append([]string{"--mount", "sh", "-c",
		"mount -t tmpfs none /proc && exec \"$@\"", "sh", cmd.Path}, cmd.Args[1:]...)...)
	inside.Env = cmd.Env
	r := finish(t, inside)
	var all struct{ Pools []checkedPool }
	if err := json.Unmarshal([]byte(r.out), &all); err != nil || len(all.Pools) != 1 {
		t.Fatalf("%v: %+v", err, r)
	}
	if f := all.Pools[0].find("ImageUnreadable", "volumes/fs"); r.code != 1 || f == nil || f.Severity != "problem" || f.Repairable {
		t.Errorf("%+v", r)
	}
}

// What --repair cannot see it leaves alone: a device with its binding, a freeze with its mark.
func TestCheckKeepsWhatItCannotSee(t *testing.T) {
	const mark = "trusted.ringvol.frozen"
	marked := func(b *checkBed) bool {
		_, err := unix.Getxattr(b.path("volumes", "fs"), mark, make([]byte, 256))
		return err == nil
	}
	random := func(id string) string { return id[strings.LastIndex(id, ".")+1:] }
	bound := func(b *checkBed, device string) bool {
		_, err := os.Stat("/sys/block/" + filepath.Base(device) + "/loop/backing_file")
		return err == nil
	}
	t.Run("no volumes", func(t *testing.T) {
		b := newCheckBed(t)
		device := b.bind(b.path("volumes", "raw"), random(b.raw.ID))
		b.must(os.Rename(b.path("volumes"), b.path("elsewhere")))
		if p := b.check(1, "--repair"); p.find("PoolSick", "") == nil || p.find("OrphanDevice", "") != nil {
			t.Errorf("%+v", p)
		}
		if !bound(b, device) {
			t.Errorf("%s was let go", device)
		}
	})
	t.Run("a quarantined volume", func(t *testing.T) {
		b := newCheckBed(t)
		device := b.bind(b.path("volumes", "raw"), random(b.raw.ID))
		b.setRecord(b.path("volumes", "raw"), []byte("ringvol-record 1\n"))
		if f := b.check(1, "--repair").find("OrphanDevice", device); f == nil || f.Repairable || f.Repaired {
			t.Errorf("%+v", f)
		}
		if !bound(b, device) {
			t.Errorf("%s was let go", device)
		}
	})
	t.Run("a silent data process", func(t *testing.T) {
		b := newCheckBed(t)
		socket := b.Path("silent.sock")
		listener, err := net.Listen("unixpacket", socket)
		b.must(err)
		defer listener.Close()
		b.toolEnv = []string{"RINGVOL_UBLKD_SOCKET=" + socket, "RINGVOL_UBLKD_STATE_DIR=" + b.Path("none")}
		b.write(b.Path("gone.img"), 0, make([]byte, mib))
		device := b.bind(b.Path("gone.img"), "deadbeef")
		b.must(unix.Setxattr(b.path("volumes", "fs"), mark, bootMark(t), 0))
		p := b.check(1, "--repair")
		if p.find("DevicesUnknown", "") == nil {
			t.Errorf("%+v", p)
		}
		for _, kind := range []string{"FrozenMark", "OrphanDevice"} {
			if f := p.find(kind, ""); f == nil || f.Repairable || f.Repaired {
				t.Errorf("%s: %+v", kind, f)
			}
		}
		if !bound(b, device) || !marked(b) {
			t.Errorf("bound %v, marked %v", bound(b, device), marked(b))
		}
	})
	t.Run("a device that is not found", func(t *testing.T) {
		b := newCheckBed(t)
		// As a data process at another socket has it: the image's lock tells that there is a device.
		image, err := os.Open(b.path("volumes", "fs"))
		b.must(err)
		defer image.Close()
		b.must(unix.Flock(int(image.Fd()), unix.LOCK_EX))
		b.must(unix.Setxattr(b.path("volumes", "fs"), mark, bootMark(t), 0))
		if f := b.check(1, "--repair").find("FrozenMark", ""); f == nil || f.Repaired || !strings.Contains(f.Remedy, "busy") {
			t.Errorf("%+v", f)
		}
		if !marked(b) {
			t.Error("the mark was taken away")
		}
		b.must(unix.Flock(int(image.Fd()), unix.LOCK_UN))
		b.check(4, "--repair")
	})
}

// A snapshot that was cut short has left a mounted volume frozen: its users wait until it is thawed.
func TestCheckThaws(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("v", "xfs")
	b.must(v.Up())
	b.must(b.d.Kill())
	dir, err := os.Open(v.Target)
	b.must(err)
	const fiFreeze, fiThaw = 0xC0045877, 0xC0045878
	b.must(unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0))
	defer unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
	image := b.pool.Image(v.ID)
	b.must(unix.Setxattr(image, "trusted.ringvol.frozen", bootMark(t), 0))
	if f := b.check(1).find("FrozenMark", "volumes/v"); f == nil || !strings.Contains(f.Message, "may be frozen") {
		t.Errorf("%+v", f)
	}
	b.check(4, "--repair")
	if err := unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0); err == nil {
		t.Error("it was still frozen")
	}
	dir.Close()
	b.check(0)
	b.d.PoolOptions = ""
	b.start()
	b.must(v.Gone())
}
