// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// A check or growth of an unmounted file system goes on when the driver that started it is killed,
// and has the device for itself. Staging again waits for it, and says "later" if that lasts.
func TestToolOutlivesItsDriver(t *testing.T) {
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pool, err := r.NewPool("default", "xfs", 1<<30)
	must(err)
	d := r.NewDriver(pool)
	must(d.Start())
	must(d.AwaitReady())
	v := d.Volume("checked", rig.MountCap("ext4"), rig.MinSize("ext4"))
	must(v.Create())
	must(v.Stage())
	device := rig.LoopsBelow(pool.Path)[0]
	take := func() (tool *os.File) {
		must(rig.Eventually(10*time.Second, func() (err error) {
			tool, err = os.OpenFile(device, os.O_RDWR|unix.O_EXCL, 0)
			return err
		}))
		return tool
	}
	// Attached and not mounted, as a kill during the check leaves it.
	interrupt := func() *os.File {
		must(d.Kill())
		must(unix.Unmount(v.Staging, 0))
		must(d.Start())
		must(d.AwaitReady())
		return take()
	}
	tool := interrupt()
	ended := time.AfterFunc(300*time.Millisecond, func() { tool.Close() })
	must(v.Stage())
	if ended.Stop() {
		t.Error("staged beside the tool")
	}
	held := func() {
		t.Helper()
		err := v.Stage()
		if rig.Code(err) != codes.Aborted {
			t.Errorf("staging while a tool has the device: %v", err)
		} else if pid := fmt.Sprintf("(pid %d)", os.Getpid()); !strings.Contains(err.Error(), pid) {
			t.Errorf("%v does not say %q", err, pid)
		}
	}
	tool = interrupt()
	held()
	tool.Close()
	must(v.Stage())
	// A file system that needs a check is not one that is lost, as long as it cannot be checked.
	must(d.Kill())
	must(unix.Unmount(v.Staging, 0))
	_, err = rig.Run("debugfs", "-w", "-R", "set_super_value state 2", pool.Image(v.ID))
	must(err)
	must(d.Start())
	must(d.AwaitReady())
	tool = take()
	held()
	tool.Close()
	must(v.Stage())
	must(v.Unstage())
	must(v.Delete())
	must(d.Leaks())
}
