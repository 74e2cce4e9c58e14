// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// What a limit really holds up. A request cannot go before its time, so a lower bound of how long so many take is
// exact, however slow the machine is.

// kernelCgroups mounts the kernel's cgroup v2 hierarchy; the test is skipped where that has no io controller.
func (b *bed) kernelCgroups() string {
	b.t.Helper()
	root := b.Path("cgroup2")
	b.must(os.MkdirAll(root, 0o755))
	if err := unix.Mount("cgroup2", root, "cgroup2", 0, ""); err != nil {
		b.t.Skip("no cgroup v2 can be mounted here: ", err)
	}
	b.Defer(func() error { return unix.Unmount(root, unix.MNT_DETACH) })
	text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil || !strings.Contains(" "+strings.TrimSpace(string(text))+" ", " io ") {
		b.t.Skip("the io controller is not cgroup v2's here")
	}
	b.d.Args = append(b.d.Args, "--cgroup-root", root)
	return root
}

// pod makes a pod's cgroup, as kubelet with its cgroupfs driver does.
func (b *bed) podCgroup(root, uid string) string {
	b.t.Helper()
	dir := root
	for _, name := range []string{"kubepods", "burstable", "pod" + uid} {
		b.must(os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+io"), 0o644))
		dir = filepath.Join(dir, name)
		b.must(os.MkdirAll(dir, 0o755))
		made := dir
		b.Defer(func() error { _ = unix.Rmdir(made); return nil })
	}
	return dir
}

// ddTakes writes (or reads) so many blocks of 4 KiB, past the page cache, in a cgroup ("": ours). How long it took.
func ddTakes(t *testing.T, cgroup, path string, count int, read bool) time.Duration {
	t.Helper()
	cmd := ddCommand(cgroup, path, count, read)
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("dd: %v\n%s", err, out)
	}
	return time.Since(began)
}

func ddCommand(cgroup, path string, count int, read bool) *exec.Cmd {
	dd := fmt.Sprintf("exec dd if=/dev/zero of=%s bs=4k count=%d oflag=direct conv=notrunc", path, count)
	if read {
		dd = fmt.Sprintf("exec dd if=%s of=/dev/null bs=4k count=%d iflag=direct", path, count)
	}
	if cgroup != "" {
		dd = "echo $$ > " + filepath.Join(cgroup, "cgroup.procs") + " && " + dd
	}
	return exec.Command("sh", "-c", dd)
}

// The part of a second that is not held up at first.
const burst = 200 * time.Millisecond

// TestLimitsInCgroups: the kernel holds up what a pod does to a loop volume, and nobody else.
func TestLimitsInCgroups(t *testing.T) {
	b := newBed(t, "xfs", 2<<30)
	root := b.kernelCgroups()
	pod := b.podCgroup(root, podA)
	b.start()
	for _, kind := range []string{"ext4", "block"} {
		if kind == "block" && !rig.HasDeviceMapper() {
			continue
		}
		v := b.d.Volume("limited-"+kind, rig.CapFor(kind), 64*rig.MiB)
		v.Params = map[string]string{"device": "loop"}
		v.Mutable = map[string]string{"writeIops": "100"}
		b.must(v.Create())
		b.must(v.Stage())
		v.Target = target(b, v, podA)
		b.must(v.Publish())
		b.well(v)
		file := v.Target
		if kind != "block" {
			file = filepath.Join(v.Target, "file")
			ddTakes(t, "", file, 300, false) // allocates, and is not the pod's
		}
		if took := ddTakes(t, pod, file, 300, false); took < 3*time.Second-burst {
			t.Errorf("%s: 300 writes at 100 a second took %v", kind, took)
		}
		// Reads have no limit until they get one, in use.
		b.must(v.Modify(map[string]string{"readIops": "50", "writeIops": "none"}))
		if took := ddTakes(t, pod, file, 100, true); took < 2*time.Second-burst {
			t.Errorf("%s: 100 reads at 50 a second took %v", kind, took)
		}
		b.must(v.Modify(map[string]string{"readIops": "none"}))
		if text, err := os.ReadFile(filepath.Join(pod, "io.max")); err != nil || len(text) != 0 {
			t.Errorf("%s: io.max says %q (%v) and no limit is left", kind, text, err)
		}
		b.must(v.Modify(map[string]string{"bandwidth": "256Ki"}))
		if took := ddTakes(t, pod, file, 192, false); took < 3*time.Second-burst {
			t.Errorf("%s: 768 KiB at 256 KiB a second took %v", kind, took)
		}
		b.must(v.Down())
		b.must(v.Delete())
	}
}

// TestUblkLimits: the data process holds up what anybody does to the device, also after it was killed.
func TestUblkLimits(t *testing.T) {
	needUblk(t)
	b := newBed(t, "xfs", 2<<30)
	b.must(b.d.ServeHTTP())
	b.start()
	v := b.ublk("limited", "block")
	v.Mutable = map[string]string{"writeIops": "100"}
	b.must(v.Up())
	b.well(v)
	if took := ddTakes(t, "", v.Target, 300, false); took < 3*time.Second-burst {
		t.Errorf("300 writes at 100 a second took %v", took)
	}
	b.eventually(func() error {
		m, err := b.d.Scrape()
		if err != nil {
			return err
		}
		if got := m.Value("ringvol_volume_throttled_total", "volume", v.Name, "op", "write"); got < 20 {
			return fmt.Errorf("%v of 300 writes at 100 a second were throttled", got)
		}
		return nil
	})
	b.must(v.Modify(map[string]string{"readBandwidth": "256Ki"}))
	if took := ddTakes(t, "", v.Target, 192, true); took < 3*time.Second-burst {
		t.Errorf("768 KiB at 256 KiB a second took %v", took)
	}

	// The next data process has them from its predecessor, without the driver.
	b.must(b.d.Kill())
	b.d.Ublkd.Kill()
	b.must(b.d.Start())
	b.connect()
	if took := ddTakes(t, "", v.Target, 300, false); took < 3*time.Second-burst {
		t.Errorf("300 writes at 100 a second took %v after the data process was killed", took)
	}

	// What waits goes when the limit is taken away: at 10 a second this would take 8 minutes.
	b.must(v.Modify(map[string]string{"writeIops": "10"}))
	writer := ddCommand("", v.Target, 5000, false)
	b.must(writer.Start())
	time.Sleep(300 * time.Millisecond)
	b.must(v.Modify(map[string]string{"writeIops": "none", "bandwidth": "none"}))
	b.must(writer.Wait())

	// And a device that is let go does not wait for what it held up.
	b.must(v.Modify(map[string]string{"iops": "10"}))
	b.must(v.Down())
	b.must(v.Delete())
}
