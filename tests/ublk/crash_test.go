// SPDX-License-Identifier: Apache-2.0
package ublk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
)

// fio writes and verifies while the data process is killed again and again.
func TestKillUnderLoad(t *testing.T) {
	needUblk(t)
	for _, queues := range []uint16{1, 2} {
		t.Run(fmt.Sprintf("queues%d", queues), func(t *testing.T) { killUnderLoad(t, queues) })
	}
}

func killUnderLoad(t *testing.T, queues uint16) {
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed")
	}
	p := newProcess(t)
	v := newVolume(t, 128*mib)
	v.queues = queues
	d := p.attach(v)
	// fio runs again and again until all kills are done; each run verifies all it wrote.
	done := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- rig.FioVerifies(d.node(), done) }()
	for i := 0; i < 10; i++ {
		// It has done something since the last kill.
		waitWrites(t, p, v, 100)
		begin := time.Now()
		p.restart(syscall.SIGKILL)
		now := p.live(v.tag)
		t.Logf("kill %d: I/O goes on after %v", i+1, time.Since(begin).Round(time.Millisecond))
		if now.Recoveries != uint32(i+1) {
			t.Errorf("%d recoveries", now.Recoveries)
		}
		select {
		case err := <-ended:
			t.Fatalf("fio, after %d kills: %v", i+1, err)
		default:
		}
	}
	close(done)
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal("fio:", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("fio does not end\n" + whereAmI(p))
	}
	if now := p.client.find(t, v.tag); now.Errors != 0 {
		t.Errorf("errors: %+v", now)
	}
	p.detach(v, d)
}

// whereAmI says what the kernel and the data process have in hand.
func whereAmI(p *process) string {
	script := "cat /sys/block/ublkb*/inflight; for t in /proc/" + fmt.Sprint(p.cmd.Process.Pid) +
		"/task/* /proc/$(pidof fio)/task/*; do cat $t/comm $t/stack $t/wchan; echo; done; " +
		"mount -t debugfs d /sys/kernel/debug; cat /sys/kernel/debug/block/ublkb*/hctx*/busy; " +
		"cat /sys/kernel/debug/block/ublkb*/requeue_list; " +
		"cat /sys/kernel/debug/block/ublkb*/hctx*/dispatch; ps -o pid,stat,args; dmesg | tail"
	out, _ := exec.Command("sh", "-c", script).CombinedOutput()
	all, err := p.client.list()
	return fmt.Sprintf("%s\n%+v %v\n%s", out, all, err, p.log.String())
}

func waitWrites(t *testing.T, p *process, v *volume, count uint64) {
	t.Helper()
	for i := 0; i < 6000; i++ {
		if d := p.client.find(t, v.tag); d != nil && d.Writes+d.Reads >= count {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("no I/O")
}

// mountFresh makes an ext4 on the device and mounts it for the rest of the test.
func mountFresh(t *testing.T, d *device) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "mkfs.ext4", "-q", d.node())
	run(t, "mount", d.node(), dir)
	t.Cleanup(func() { _ = exec.Command("umount", dir).Run() })
	return dir
}

// A detach that comes while a mounted device is recovered is refused, and the device lives on: its
// recovery is over, and is not begun again.
func TestDetachDuringRecovery(t *testing.T) {
	needUblk(t)
	p := newProcess(t)
	v := newVolume(t, 64*mib)
	d := p.attach(v)
	dir := mountFresh(t, d)
	for i := uint32(1); i <= 10; i++ {
		p.restart(syscall.SIGKILL)
		wantCode(t, p.client.detach(v, d), "precondition", "in use")
		p.live(v.tag)
		// A second recovery would be tried within this time, several times.
		time.Sleep(200 * time.Millisecond)
		if now := p.live(v.tag); now.Recoveries != i {
			t.Fatalf("%d recoveries after %d kills\n%s", now.Recoveries, i, p.log.String())
		}
	}
	run(t, "umount", dir)
	p.detach(v, d)
}

// SIGTERM ends the process and not its devices: the binary can be replaced.
func TestUpgrade(t *testing.T) {
	needUblk(t)
	p := newProcess(t)
	v := newVolume(t, 64*mib)
	d := p.attach(v)
	dir := mountFresh(t, d)
	want := bytes.Repeat([]byte("upgrade "), 1<<16)
	if err := os.WriteFile(dir+"/a", want, 0o600); err != nil {
		t.Fatal(err)
	}
	p.restart(syscall.SIGTERM)
	if now := p.live(v.tag); now.Recoveries != 1 || now.DevID != d.DevID {
		t.Errorf("after the upgrade: %+v", now)
	}
	run(t, "sync")
	if got, err := os.ReadFile(dir + "/a"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has changed (%v)", err)
	}
	run(t, "umount", dir)
	p.detach(v, d)
}

// Killed at any moment of attaches and detaches; whatever the driver was told holds, and nothing
// else is left.
func TestKillDuringLife(t *testing.T) {
	needUblk(t)
	before := kernelDevices(t)
	p := newProcess(t)
	seed := time.Now().UnixNano()
	t.Log("seed", seed)
	rng := rand.New(rand.NewSource(seed))
	for round := 0; round < 25; round++ {
		v := newVolume(t, 16*mib)
		attaching := round%2 == 0
		var d *device
		if !attaching {
			d = p.attach(v)
		}
		var group sync.WaitGroup
		var err error
		client := p.client
		group.Add(1)
		go func() {
			defer group.Done()
			if attaching {
				d, err = client.attach(v)
			} else {
				err = client.detach(v, d)
			}
		}()
		time.Sleep(time.Duration(rng.Intn(40)) * time.Millisecond)
		// Killed first: closing the connection would end the call.
		_ = p.cmd.Process.Kill()
		group.Wait()
		p.restart(syscall.SIGKILL)
		if err == nil && attaching {
			if now := p.live(v.tag); now.DevID != d.DevID {
				t.Errorf("round %d: acknowledged as %d, recovered as %d", round, d.DevID, now.DevID)
			}
		}
		// The caller asks again, and converges.
		if attaching {
			d = attachAgain(t, p, v)
		}
		detachAgain(t, p, v, d)
	}
	waitDevices(t, before)
	if files, _ := filepath.Glob(p.dir + "/state/dev-*"); len(files) != 0 {
		t.Errorf("state files are left: %v", files)
	}
}

func again(t *testing.T, what string, call func() error) {
	t.Helper()
	for i := 0; ; i++ {
		err := call()
		var refused *replyError
		if err == nil {
			return
		}
		if !errors.As(err, &refused) || refused.code != "unavailable" || i == 2000 {
			t.Fatalf("%s again: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func attachAgain(t *testing.T, p *process, v *volume) (d *device) {
	t.Helper()
	again(t, "attach", func() (err error) { d, err = p.client.attach(v); return err })
	return d
}

func detachAgain(t *testing.T, p *process, v *volume, d *device) {
	t.Helper()
	again(t, "detach", func() error { return p.client.detach(v, d) })
}

func waitDevices(t *testing.T, want int) {
	t.Helper()
	for i := 0; kernelDevices(t) != want; i++ {
		if i == 1000 {
			t.Fatalf("%d devices, want %d", kernelDevices(t), want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Another data process has devices of its own, and no start of ours touches them.
func TestOthersAreLeftAlone(t *testing.T) {
	needUblk(t)
	other := newProcess(t)
	theirs := newVolume(t, 16*mib)
	d := other.attach(theirs)
	p := newProcess(t)
	v := newVolume(t, 16*mib)
	mine := p.attach(v)
	// Theirs is without its process now, as an orphan would be.
	other.kill(syscall.SIGKILL)
	p.restart(syscall.SIGKILL)
	p.live(v.tag)
	all, err := p.client.list()
	if err != nil || len(all) != 1 {
		t.Errorf("listed: %v, %v", all, err)
	}
	if _, err := os.Stat(d.node()); err != nil {
		t.Error("another's device is gone")
	}
	p.detach(v, mine)
	other.start()
	other.live(theirs.tag)
	other.detach(theirs, d)
}

// An image that the next process cannot see waits for the driver to bring it.
func TestImageOutOfSight(t *testing.T) {
	needUblk(t)
	p := newProcess(t)
	v := newVolume(t, 16*mib)
	v.hidden = true
	d := p.attach(v)
	f := openDevice(t, d.node(), os.O_RDWR)
	data := aligned(t, 4096)
	copy(data, "before")
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	p.restart(syscall.SIGKILL)
	for i := 0; ; i++ {
		now := p.client.find(t, v.tag)
		if now != nil && now.State == stateWaiting && strings.Contains(text(now.Why[:]), "driver") {
			break
		}
		if i == 1000 {
			t.Fatalf("it does not wait: %+v", now)
		}
		time.Sleep(5 * time.Millisecond)
	}
	read := make(chan error, 1)
	go func() {
		_, err := f.ReadAt(data, 0)
		read <- err
	}()
	attachAgain(t, p, v)
	if err := <-read; err != nil || !bytes.HasPrefix(data, []byte("before")) {
		t.Errorf("the read that waited: %q, %v", data[:8], err)
	}
	f.Close()
	p.detach(v, d)
}

// A moved image is not mistaken for the one that was attached, and found again when it is back.
func TestAnotherImageAtItsPath(t *testing.T) {
	needUblk(t)
	p := newProcess(t)
	v := newVolume(t, 16*mib)
	d := p.attach(v)
	p.kill(syscall.SIGKILL)
	if err := os.Rename(v.path, v.path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(v.path, make([]byte, 16*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start()
	for i := 0; ; i++ {
		now := p.client.find(t, v.tag)
		if now != nil && now.State == stateWaiting {
			break
		}
		if i == 1000 {
			t.Fatalf("it does not wait: %+v", now)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := os.Rename(v.path+".away", v.path); err != nil {
		t.Fatal(err)
	}
	p.live(v.tag)
	p.detach(v, d)
}
