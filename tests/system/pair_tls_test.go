// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// startTLSHD runs the daemon that does the handshakes for the kernel, out of the directory in RINGVOL_TLSHD.
func startTLSHD(t *testing.T) *exec.Cmd {
	t.Helper()
	root := os.Getenv("RINGVOL_TLSHD")
	loader, _ := filepath.Glob(root + "/usr/lib*/ld-linux-x86-64.so.2")
	if more, _ := filepath.Glob(root + "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"); len(loader) == 0 {
		loader = more
	}
	config := filepath.Join(t.TempDir(), "tlshd.conf")
	text := "[debug]\nloglevel=1\ntls=0\nnl=0\n[authenticate]\n[authenticate.client]\n[authenticate.server]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// By a name of its own: processes are called by the file that was run.
	program := filepath.Join(t.TempDir(), "tlshd")
	if err := os.Symlink(loader[0], program); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, "--library-path", root+"/usr/lib/x86_64-linux-gnu", root+"/usr/sbin/tlshd", "-s", "-c", config)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("tlshd: %s", said.String())
		}
	})
	return c
}

// tlsKeys are the kernel's TLS keys for a subsystem.
func tlsKeys(t *testing.T, subsystem string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/keys")
	if err != nil {
		t.Fatal(err)
	}
	identity := fmt.Sprintf(" NVMe0R01 %x:", sha256.Sum256([]byte(subsystem)))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " psk ") && strings.Contains(line, identity) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// wire hears everything that goes over the loopback, until it is closed, and answers whether the words were in it.
func wire(t *testing.T, words []byte) (stop func() (heard int, found bool)) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.ETH_P_ALL<<8&0xff00)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200000})
	over := make(chan struct{})
	done := make(chan struct{})
	heard, found := 0, false
	go func() {
		defer close(done)
		defer unix.Close(fd)
		buf := make([]byte, 1<<17)
		for {
			n, err := unix.Read(fd, buf)
			if n > 0 {
				heard += n
				found = found || bytes.Contains(buf[:n], words)
				continue
			}
			select {
			case <-over:
				return
			default:
			}
			if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	return func() (int, bool) { close(over); <-done; return heard, found }
}

func writeWords(path string, words []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := unix.Mmap(-1, 0, blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(data) }()
	for at := 0; at < blockBytes; at += len(words) {
		copy(data[at:], words)
	}
	_, err = f.WriteAt(data, 0)
	return err
}

// doctorSays expects a verdict of `ringvol doctor`, and a word of its remedy.
func (p *pair) doctorSays(check, verdict, word string) {
	p.owner.t.Helper()
	if f := p.owner.doctor(nil).check(check); f.Verdict != verdict || !strings.Contains(f.Remedy, word) {
		p.owner.t.Errorf("doctor: %+v", f)
	}
}

// Within TLS, from the first connect over a restart to the end: what is written is not on the wire, nobody comes without, and
// nothing of the keys is left.
func TestPairTLS(t *testing.T) {
	if os.Getenv("RINGVOL_TLSHD") == "" {
		t.Skip("no tlshd (RINGVOL_TLSHD)")
	}
	p := openPair(t)
	owner, user := p.owner, p.user
	words := []byte("nobody on the wire reads these words")

	// The same without TLS shows that the wire is heard.
	p.create("plain", "block")
	owner.must(p.attach(false))
	stop := wire(t, []byte(p.w.PublishContext["ringvol.dev/subsystem"]))
	user.must(p.w.Up())
	if heard, found := stop(); !found {
		t.Errorf("without TLS the subsystem's name was not heard in %d bytes", heard)
	}
	stop = wire(t, words)
	owner.must(writeWords(p.w.Target, words))
	if heard, found := stop(); !found {
		t.Errorf("without TLS the words were not heard in %d bytes", heard)
	}
	owner.must(owner.d.Kill())
	owner.d.Args = append(owner.d.Args, "--export-tls")
	owner.start()
	plain := p.v
	p.v = owner.remote("early", "block")
	err := p.attach(false)
	owner.refused("an export with TLS at an address that is open without", err, codes.FailedPrecondition)
	owner.says("an export with TLS at an address that is open without", err, "--export-tls")
	owner.must(p.v.Delete())
	p.v = plain
	user.must(p.w.Down())
	owner.eventually(p.detach)
	owner.must(p.v.Delete())
	p.nothing()

	p.create("private", "block")
	owner.must(p.attach(false))
	context := p.w.PublishContext
	if got := context["ringvol.dev/transport"]; got != "tcp-tls" {
		t.Fatalf("transport %q", got)
	}
	err = p.w.Up()
	user.refused("a stage without tlshd", err, codes.FailedPrecondition, codes.Unavailable)
	user.says("a stage without tlshd", err, "tlshd")
	owner.must(p.attach(false))
	p.doctorSays("nvme TLS", "limited", "ktls-utils")
	startTLSHD(t)
	for _, check := range []string{"nvme-tcp", "nvmet", "nvme TLS"} {
		p.doctorSays(check, "ok", "")
	}
	stop = wire(t, []byte(context["ringvol.dev/subsystem"]))
	owner.eventually(p.w.Up)
	if heard, found := stop(); found || heard == 0 {
		t.Errorf("the subsystem's name was heard: %v, in %d bytes", found, heard)
	}
	user.noSecret()
	stop = wire(t, words)
	owner.must(writeWords(p.w.Target, words))
	if heard, found := stop(); found || heard < blockBytes {
		t.Errorf("the words were heard: %v, in %d bytes", found, heard)
	}
	sum, err := rig.Fill(p.w.Target, dataBytes, 1)
	user.must(err)
	user.must(rig.Check(p.w.Target, dataBytes, sum))
	if keys := tlsKeys(t, context["ringvol.dev/subsystem"]); len(keys) != 1 {
		t.Errorf("keys: %v", keys)
	}

	// Who knows everything else and has no TLS does not get in.
	other := map[string]string{}
	for key, value := range context {
		other[key] = value
	}
	other["ringvol.dev/transport"] = "tcp"
	if c, err := rig.NvmeConnect(other); err == nil {
		t.Error("it was let in without TLS")
		owner.must(c.Disconnect())
	}

	writer := startWriter(p.w.Target)
	writer.moves(owner)
	owner.must(owner.d.Kill())
	writer.moves(owner)
	owner.start()
	writer.moves(owner)
	// The kernel connects anew by itself.
	for _, name := range user.e.Connections() {
		owner.must(os.WriteFile("/sys/class/nvme/"+name+"/reset_controller", []byte("1"), 0o200))
	}
	writer.moves(owner)
	owner.must(writer.finish())
	user.must(rig.Check(p.w.Target, dataBytes, sum))
	user.must(p.w.Down())
	owner.eventually(p.detach)
	p.nothing()
	if keys := tlsKeys(t, context["ringvol.dev/subsystem"]); len(keys) != 0 {
		t.Errorf("keys are left: %v", keys)
	}
	owner.must(p.v.Delete())
}
