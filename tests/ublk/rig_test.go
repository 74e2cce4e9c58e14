// SPDX-License-Identifier: Apache-2.0
package ublk

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const mib = 1 << 20

func needUblk(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	_ = exec.Command("modprobe", "ublk_drv").Run()
	if _, err := os.Stat("/dev/ublk-control"); err != nil {
		t.Skip("this kernel has no ublk (/dev/ublk-control)")
	}
}

func binaryPath(t *testing.T) string {
	t.Helper()
	path := os.Getenv("RINGVOL_BIN")
	if path == "" {
		path = "../../build/ringvol"
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A data process, with a socket and a state directory of its own.
type process struct {
	t      *testing.T
	dir    string
	socket string
	args   []string
	env    []string
	log    bytes.Buffer
	cmd    *exec.Cmd
	client *client
}

func newProcess(t *testing.T, args ...string) *process {
	t.Helper()
	return newProcessEnv(t, nil, args...)
}

func newProcessEnv(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	dir := t.TempDir()
	p := &process{t: t, dir: dir, socket: dir + "/s.sock", args: args, env: env}
	t.Cleanup(func() {
		if p.cmd != nil {
			p.removeAll()
			p.kill(syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("the data process said:\n%s", p.log.String())
		}
	})
	p.start()
	return p
}

func (p *process) start() {
	p.t.Helper()
	args := append([]string{"ublkd", "--socket", p.socket, "--state-dir", p.dir + "/state"}, p.args...)
	p.cmd = exec.Command(binaryPath(p.t), args...)
	p.cmd.Stderr = &p.log
	p.cmd.Env = append(os.Environ(), p.env...)
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.connect()
}

func (p *process) connect() {
	p.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		c, err := dial(p.socket)
		if err == nil {
			// The kernel keeps the listener of a killed process as long as it keeps its ring.
			peer, err := syscall.GetsockoptUcred(c.fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
			if err == nil && int(peer.Pid) == p.cmd.Process.Pid {
				if _, err = c.hello(); err != nil {
					p.t.Fatalf("hello: %v\n%s", err, p.log.String())
				}
				p.client = c
				return
			}
			c.close()
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("the data process does not serve: %v\n%s", err, p.log.String())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (p *process) kill(sig syscall.Signal) {
	p.t.Helper()
	p.client.close()
	_ = p.cmd.Process.Signal(sig)
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if sig == syscall.SIGTERM && err != nil {
		p.t.Errorf("SIGTERM ended it with %v", err)
	} else if err != nil && !errors.As(err, &exit) {
		p.t.Error(err)
	}
	p.cmd = nil
}

func (p *process) restart(sig syscall.Signal) {
	p.t.Helper()
	p.kill(sig)
	p.start()
}

// removeAll ends what a test left, so that the next finds nothing.
func (p *process) removeAll() {
	c, err := dial(p.socket)
	if err != nil {
		return
	}
	defer c.close()
	all, err := c.list()
	if err != nil {
		return
	}
	for i := range all {
		d := &all[i]
		r := &request{Head: head{Type: typeDetach}, ImageDev: d.ImageDev, ImageIno: d.ImageIno,
			Tag: d.Tag, DevID: d.DevID}
		if _, err := c.call(r, nil); err != nil {
			p.t.Logf("removing %s: %v", d.node(), err)
		}
	}
}

func (p *process) attach(v *volume) *device {
	p.t.Helper()
	d, err := p.client.attach(v)
	if err != nil {
		p.t.Fatalf("attach %s: %v", v.path, err)
	}
	return d
}

func (p *process) detach(v *volume, d *device) {
	p.t.Helper()
	if err := p.client.detach(v, d); err != nil {
		p.t.Fatalf("detach %s: %v", d.node(), err)
	}
}

// live waits until the device serves again.
func (p *process) live(tag string) *device {
	p.t.Helper()
	var last *device
	for i := 0; i < 6000; i++ {
		last = p.client.find(p.t, tag)
		if last != nil && last.State == stateLive {
			return last
		}
		time.Sleep(5 * time.Millisecond)
	}
	p.t.Fatalf("%s does not come back: %+v\n%s", tag, last, p.log.String())
	return nil
}

func randomTag() string {
	var raw [4]byte
	_, _ = rand.Read(raw[:])
	return fmt.Sprintf("ringvol:00000000:%08x", raw)
}

func newVolume(t *testing.T, size int64) *volume {
	t.Helper()
	return newVolumeIn(t, t.TempDir(), size)
}

func newVolumeIn(t *testing.T, dir string, size int64) *volume {
	t.Helper()
	v := &volume{tag: randomTag()}
	v.path = filepath.Join(dir, strings.ReplaceAll(v.tag, ":", "-"))
	f, err := os.Create(v.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return v
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// kernelDevices counts all there are, of anybody.
func kernelDevices(t *testing.T) int {
	t.Helper()
	names, err := filepath.Glob("/sys/class/ublk-char/ublkc*")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func wantCode(t *testing.T, err error, code string, words ...string) {
	t.Helper()
	var refused *replyError
	if !errors.As(err, &refused) || refused.code != code {
		t.Fatalf("got %v, want the code %s", err, code)
	}
	for _, word := range words {
		if !strings.Contains(refused.message, word) {
			t.Errorf("%q does not name %q", refused.message, word)
		}
	}
}

// openDevice opens a node for direct I/O.
func openDevice(t *testing.T, node string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(node, flags|syscall.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// aligned returns memory fit for direct I/O.
func aligned(t *testing.T, size int) []byte {
	t.Helper()
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return mem
}

// The test program is also a client for scripts (bench/ublk/guest.sh), where there is no driver:
//
//	ublk.test attach|detach|list SOCKET [IMAGE]
func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1][0] == '-' {
		os.Exit(m.Run())
	}
	if err := command(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(verb, socket string, args []string) error {
	c, err := dial(socket)
	if err != nil {
		return err
	}
	defer c.close()
	all, err := c.list()
	if err != nil {
		return err
	}
	if verb == "list" {
		for i := range all {
			d := &all[i]
			fmt.Println(d.node(), text(d.Tag[:]), "state", d.State, "flags", d.Flags, "recoveries",
				d.Recoveries, "reads", d.Reads, "writes", d.Writes, "errors", d.Errors, text(d.Why[:]))
		}
		return nil
	}
	v := &volume{path: args[0]}
	r, err := v.request(0)
	if err != nil {
		return err
	}
	v.tag = fmt.Sprintf("ringvol:bench:%x", r.ImageIno)
	if verb == "attach" {
		d, err := c.attach(v)
		if err == nil {
			fmt.Println(d.node())
		}
		return err
	}
	for i := range all {
		if text(all[i].Tag[:]) == v.tag {
			return c.detach(v, &all[i])
		}
	}
	return nil
}
