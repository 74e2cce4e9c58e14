// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"os"
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
	// Attached and not mounted, as a kill during the check leaves it.
	interrupt := func() *os.File {
		must(d.Kill())
		must(unix.Unmount(v.Staging, 0))
		must(d.Start())
		must(d.AwaitReady())
		var tool *os.File
		must(rig.Eventually(10*time.Second, func() (err error) {
			tool, err = os.OpenFile(device, os.O_RDWR|unix.O_EXCL, 0)
			return err
		}))
		return tool
	}
	tool := interrupt()
	ended := time.AfterFunc(300*time.Millisecond, func() { tool.Close() })
	must(v.Stage())
	if ended.Stop() {
		t.Error("staged beside the tool")
	}
	tool = interrupt()
	if err := v.Stage(); rig.Code(err) != codes.Aborted {
		t.Errorf("staging while a tool has the device: %v", err)
	}
	tool.Close()
	must(v.Stage())
	must(v.Unstage())
	must(v.Delete())
	must(d.Leaks())
}
