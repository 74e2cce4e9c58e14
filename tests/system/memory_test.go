// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// What crashes leaves no core file: the driver's memory has secrets of requests in it, the data process's has
// bytes of tenants.
func TestNoCoreFiles(t *testing.T) {
	dir := t.TempDir()
	if strings.Contains(rig.Binary(), "asan") {
		t.Skip("the sanitizer has the signal, and its builds may leave core files")
	}
	socket := filepath.Join(dir, "socket")
	for name, args := range map[string][]string{
		"ublkd": {"ublkd", "--socket", socket, "--state-dir", filepath.Join(dir, "state")},
		"serve": {"serve", "--endpoint", "unix://" + socket, "--pool", "default=" + filepath.Join(dir, "none"), "--http", "off"},
	} {
		t.Run(name, func(t *testing.T) {
			const unlimited = `ulimit -c unlimited || exit 77; exec "$@"`
			cmd := exec.Command("sh", append([]string{"-c", unlimited, "sh", rig.Binary()}, args...)...)
			cmd.Dir = dir
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			serves := rig.Eventually(30*time.Second, func() error {
				_, err := os.Stat(socket)
				return err
			})
			_ = cmd.Process.Signal(syscall.SIGSEGV)
			_ = cmd.Wait()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if status.Exited() && status.ExitStatus() == 77 {
				t.Skip("core files are forbidden here")
			}
			if serves != nil || !status.Signaled() || status.CoreDump() {
				t.Errorf("serves: %v; signal: %v; core file: %v", serves, status.Signal(), status.CoreDump())
			}
			_ = os.Remove(socket)
		})
	}
}

// TestHoardedMemory has 60 clients make the driver keep as much as they can. Others are served beside them, what is
// kept stays within the budget of all requests and answers, and when they have gone the memory is the system's again.
func TestHoardedMemory(t *testing.T) {
	const budget, slack, kept = 64 * mib, 64 * mib, 24 * mib
	if testing.Short() {
		t.Skip("a build with sanitizers keeps what is freed")
	}
	b := open(t, "xfs", 4<<30)
	volumes := make([]*rig.Volume, 200)
	for i := range volumes {
		volumes[i] = b.d.Volume(fmt.Sprintf("hoard-%03d", i), rig.BlockCap(), 16*mib)
		b.must(volumes[i].Create())
	}
	resident := func() int64 { return residentBytes(t, b.d.Pid()) }
	before := resident()
	leave, err := rig.Hoard(b.d.Socket, 60)
	during := resident()
	_, asked := b.c.GetPluginInfo(short(t), &csi.GetPluginInfoRequest{})
	leave()
	b.must(err)
	b.must(asked)
	t.Logf("VmRSS: %d bytes before, %d with 60 hostile connections", before, during)
	if during > before+budget+slack {
		t.Errorf("60 connections made %d bytes out of %d", during, before)
	}
	b.eventually(func() error {
		if after := resident(); after > before+kept {
			return fmt.Errorf("%d bytes stay resident, %d were before", after, before)
		}
		return nil
	})
	for _, v := range volumes {
		b.must(v.Delete())
	}
}
