// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// What a container may keep from its processes. This test binary becomes another program that
// cannot make the system calls named in forbidEnv: it is started again as a wrapper, installs a
// filter as container runtimes do, and executes its arguments.
const forbidEnv = "RINGVOL_TEST_FORBID"

var forbiddable = map[string]uint32{"io_uring_setup": unix.SYS_IO_URING_SETUP, "bpf": unix.SYS_BPF}

func init() {
	name := os.Getenv(forbidEnv)
	if name == "" {
		return
	}
	fmt.Fprintln(os.Stderr, becomeConfined(forbiddable[name], os.Args[1:]))
	os.Exit(125)
}

func becomeConfined(number uint32, args []string) error {
	runtime.LockOSThread() // the filter is a thread's, and exec keeps it
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	os.Unsetenv(forbidEnv)
	return fmt.Errorf("%s: %w", args[0], syscall.Exec(args[0], args, os.Environ()))
}

// without is a command of the binary that cannot make a system call.
func without(name string, cmd *exec.Cmd) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	confined := exec.Command(self, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	confined.Env = append(cmd.Env, forbidEnv+"="+name)
	return confined
}

func (b *bed) doctorArgs() []string {
	return []string{"doctor", "--json", "--pool", b.poolArg(), "--endpoint", b.endpoint(), "--kubelet-root", b.d.Kubelet}
}

func TestWithoutIOUring(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	d := parseDoctor(t, finish(t, without("io_uring_setup", toolCommand(context.Background(), nil, b.doctorArgs()...))))
	f := d.check("io_uring")
	if d.CanRun || f.Verdict != "missing" || !strings.Contains(f.Found, "seccomp filter is on") ||
		!strings.Contains(f.Remedy, "privileged") {
		t.Errorf("%+v", f)
	}
	if f := d.check("loop devices"); f.Verdict != "ok" {
		t.Errorf("%+v", f)
	}

	// The tools that ask a driver need no ring of their own.
	ls := finish(t, without("io_uring_setup", toolCommand(context.Background(), nil, "ls", "--endpoint", b.endpoint())))
	if ls.code != 0 || !strings.Contains(ls.out, b.pool.Path) {
		t.Errorf("ls: %+v", ls)
	}
	serve := finish(t, without("io_uring_setup", toolCommand(context.Background(), nil, "serve", "--endpoint",
		"unix://"+b.Path("other.sock"), "--http", "off", "--pool", b.poolArg())))
	if serve.code == 0 || !strings.Contains(serve.err, "io_uring") || !strings.Contains(serve.err, "privileged") {
		t.Errorf("serve: %+v", serve)
	}
}

// As on a node with kernel.io_uring_disabled=2: the call is refused, and the file says why.
func TestIOUringSwitchedOff(t *testing.T) {
	const knob = "/proc/sys/kernel/io_uring_disabled"
	if _, err := os.Stat(knob); err != nil {
		t.Skip("no " + knob)
	}
	b := open(t, "xfs", 1<<30)
	off := b.Path("off")
	b.must(os.WriteFile(off, []byte("2\n"), 0o644))
	cmd := without("io_uring_setup", toolCommand(context.Background(), nil, b.doctorArgs()...))
	script := fmt.Sprintf("mount --bind %q %s && exec \"$@\"", off, knob)
	inside := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, "sh", cmd.Path}, cmd.Args[1:]...)...)
	inside.Env = cmd.Env
	d := parseDoctor(t, finish(t, inside))
	if f := d.check("io_uring"); d.CanRun || f.Verdict != "missing" || !strings.Contains(f.Found, "io_uring_disabled is 2") ||
		f.Remedy != "sysctl -w kernel.io_uring_disabled=0" {
		t.Errorf("%+v", f)
	}
}

func TestWithoutBPFCall(t *testing.T) {
	b := newBed(t, "xfs", 512*mib)
	d := parseDoctor(t, finish(t, without("bpf", toolCommand(context.Background(), nil, b.doctorArgs()...))))
	if f := d.check("BPF probes"); f.Verdict != "limited" || f.Needed || !strings.Contains(f.Remedy, "seccomp") {
		t.Errorf("%+v", f)
	}

	// The driver says so once, and the block layer's counters stand in.
	self, err := os.Executable()
	b.must(err)
	script := b.Path("weak")
	b.must(os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\n%s=bpf exec %q %q \"$@\"\n", forbidEnv, self, rig.Binary()), 0o755))
	t.Setenv("RINGVOL_BIN", script)
	b.must(b.d.ServeHTTP())
	b.start()
	b.eventually(func() error {
		if n := strings.Count(b.d.LogTail(1000), "counted without BPF"); n != 1 {
			return fmt.Errorf("said %d times", n)
		}
		return nil
	})
	v := b.volume("uncounted", "block")
	b.must(v.Up())
	b.readBlocks(v.Target, 100)
	b.eventually(func() error {
		m, err := b.d.Scrape()
		if err != nil {
			return err
		}
		if reads := m.Value("ringvol_volume_io_seconds", "volume", v.Name, "op", "read"); reads < 100 {
			return fmt.Errorf("%v reads", reads)
		}
		return nil
	})
	b.must(v.Gone())
}

// minimalRoot is a directory with the binary, what it is linked to, and nothing else.
func (b *bed) minimalRoot() string {
	b.t.Helper()
	root := b.Path("root")
	for _, dir := range []string{"proc", "sys", "dev", "pool", "run", "tmp"} {
		b.must(os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	out, err := exec.Command("ldd", rig.Binary()).Output()
	b.must(err)
	files := regexp.MustCompile(`/\S+`).FindAllString(string(out), -1)
	for _, file := range append(files, rig.Binary()) {
		text, err := os.ReadFile(file)
		b.must(err)
		to := filepath.Join(root, file)
		if file == rig.Binary() {
			to = filepath.Join(root, "ringvol")
		}
		b.must(os.MkdirAll(filepath.Dir(to), 0o755))
		b.must(os.WriteFile(to, text, 0o755))
	}
	return root
}

func TestDoctorInAMinimalRoot(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	root := b.minimalRoot()
	script := `set -e; cd "$1"; for d in proc sys dev; do mount --rbind /$d $d; done; mount --rbind "$2" pool; shift 2; exec chroot . "$@"`
	doctor := toolCommand(context.Background(), nil)
	inside := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", root, b.pool.Path, "/ringvol", "doctor", "--json",
		"--pool", "default=/pool", "--endpoint", "unix:///run/none.sock")
	inside.Env = doctor.Env
	d := parseDoctor(t, finish(t, inside))
	if d.CanRun {
		t.Error("it can run without mkfs.ext4")
	}
	for check, verdict := range map[string]string{
		"io_uring": "ok", "loop devices": "ok", "pool default": "ok", "ext4 tools": "missing", "xfs tools": "missing",
		"btrfs tools": "missing", "kubelet": "missing", "driver": "missing",
	} {
		if f := d.check(check); f.Verdict != verdict {
			t.Errorf("%s: %+v", check, f)
		}
	}
	if names, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(names) != 0 {
		t.Error(errors.Join(err, fmt.Errorf("it left %v", names)))
	}
}
