// SPDX-License-Identifier: Apache-2.0

package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
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
