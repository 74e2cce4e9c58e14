// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"
)

type doctorFinding struct {
	Check, Verdict, Found, Remedy string
	Needed                        bool
}

type doctorKind struct {
	Kind, Provisioning, Snapshots, Grows, Here string
	InTheWay                                   string `json:"in_the_way"`
}

type doctorSays struct {
	CanRun bool `json:"can_run"`
	Checks []doctorFinding
	Kinds  []doctorKind
}

func (d *doctorSays) check(name string) doctorFinding {
	for _, f := range d.Checks {
		if f.Check == name {
			return f
		}
	}
	return doctorFinding{}
}

func parseDoctor(t *testing.T, r run) *doctorSays {
	t.Helper()
	var d doctorSays
	if err := json.Unmarshal([]byte(r.out), &d); err != nil || r.code != map[bool]int{true: 0, false: 1}[d.CanRun] {
		t.Fatalf("doctor: %v: %+v", err, r)
	}
	needed := true
	for _, f := range d.Checks {
		if !slices.Contains([]string{"ok", "limited", "missing", "unknown"}, f.Verdict) || f.Found == "" ||
			(f.Remedy == "") != (f.Verdict == "ok") {
			t.Errorf("%+v", f)
		}
		needed = needed && (!f.Needed || f.Verdict != "missing")
	}
	for _, k := range d.Kinds {
		if !slices.Contains([]string{"yes", "no", "unknown"}, k.Here) || (k.Here == "yes") != (k.InTheWay == "") ||
			k.InTheWay != "" && d.check(k.InTheWay).Verdict == "ok" || k.Provisioning == "" || k.Snapshots == "" || k.Grows == "" {
			t.Errorf("%+v", k)
		}
	}
	if needed != d.CanRun {
		t.Errorf("can_run is %v: %+v", d.CanRun, d.Checks)
	}
	return &d
}

func (b *bed) doctor(env []string, args ...string) *doctorSays {
	b.t.Helper()
	args = append([]string{"doctor", "--json", "--pool", b.poolArg(), "--endpoint", b.endpoint(), "--kubelet-root",
		b.d.Kubelet}, args...)
	return parseDoctor(b.t, tool(b.t, env, args...))
}

// loops are all loop devices there are, bound or not.
func loops(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/sys/block/loop10480*")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("/sys/block/loop1048[1-9]*")
	if err != nil {
		t.Fatal(err)
	}
	return append(all, more...)
}

func (b *bed) tree() []string {
	b.t.Helper()
	var names []string
	b.must(filepath.WalkDir(b.pool.Path, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	}))
	return names
}

func TestDoctor(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t, fs, 1<<30)
			b.must(os.MkdirAll(b.d.Kubelet, 0o755))
			before := b.tree()
			d := b.doctor(nil)
			if !d.CanRun {
				t.Errorf("cannot run: %+v", d.Checks)
			}
			want := map[string]string{"xfs": "ok", "ext4": "limited", "btrfs": "ok"}[fs]
			if f := d.check("pool default"); f.Verdict != want || !strings.Contains(f.Found, fs) {
				t.Errorf("%+v", f)
			}
			for _, name := range []string{"io_uring", "loop devices", "ext4 tools", "xfs tools", "btrfs tools", "thin tools", "driver"} {
				if f := d.check(name); f.Verdict != "ok" {
					t.Errorf("%s: %+v", name, f)
				}
			}
			if f := d.check("kubelet"); f.Verdict == "missing" {
				t.Errorf("%+v", f)
			}
			mapper := map[bool]string{true: "yes", false: "no"}[rig.HasDeviceMapper()]
			if len(d.Kinds) != 8 || d.Kinds[0].Here != "yes" || d.Kinds[2].Kind != "disk" || d.Kinds[2].Here != mapper {
				t.Errorf("%+v", d.Kinds)
			}
			if after := b.tree(); !slices.Equal(before, after) {
				t.Errorf("the pool had %q, has %q", before, after)
			}
			if left := loops(t); len(left) != 0 {
				t.Errorf("devices are left: %q", left)
			}
			if left := rig.LoopsBelow(b.pool.Path); len(left) != 0 {
				t.Errorf("devices are bound: %q", left)
			}
		})
	}
}

// The driver says it once, the doctor each time.
func TestPoolWithoutJournal(t *testing.T) {
	b := newBed(t, "ext4", 1<<30)
	b.must(b.pool.Unmount())
	_, err := rig.Run("tune2fs", "-O", "^has_journal", b.Path("pool-default.img"))
	b.must(err)
	b.must(b.pool.Mount())
	b.start()
	if f := b.doctor(nil).check("pool default"); f.Verdict != "limited" || !strings.Contains(f.Found, "no journal") ||
		!strings.Contains(f.Remedy, "tune2fs") {
		t.Errorf("%+v", f)
	}
	b.must(b.pool.Remount(true))
	b.notReady()
	b.must(b.pool.Remount(false))
	b.must(b.d.AwaitReady())
	log, err := os.ReadFile(b.d.Log)
	b.must(err)
	if said := strings.Count(string(log), "has no journal"); said != 1 {
		t.Errorf("said %d times: %s", said, log)
	}
}

// An ignored SIGCHLD survives exec, and with it nobody would know how a tool has ended.
func TestDoctorStartedWithoutChildSignals(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	cmd := toolCommand(context.Background(), nil, "doctor", "--json", "--pool", b.poolArg())
	env, err := exec.LookPath("env")
	b.must(err)
	cmd.Path, cmd.Args = env, append([]string{"env", "--ignore-signal=CHLD"}, cmd.Args...)
	d := parseDoctor(t, finish(t, cmd))
	for _, name := range []string{"ext4 tools", "xfs tools", "btrfs tools"} {
		if f := d.check(name); f.Verdict != "ok" {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestDoctorWithoutAPool(t *testing.T) {
	b := newBed(t, "xfs", 1<<30) // a directory that nobody made a pool
	d := b.doctor(nil)
	f := d.check("pool default")
	if d.CanRun || f.Verdict != "missing" || !strings.Contains(f.Remedy, "ringvol pool init") {
		t.Errorf("%+v", d.Checks)
	}
	if d.check("driver").Verdict != "missing" || d.check("kubelet").Verdict != "missing" {
		t.Errorf("%+v", d.Checks)
	}
	if names := b.tree(); len(names) != 1 {
		t.Errorf("it made %q", names)
	}
	d = b.doctor(nil, "--pool", "other="+b.Path("nothing"))
	if d.CanRun || d.check("pool other").Verdict != "missing" {
		t.Errorf("%+v", d.Checks)
	}
}

// onlyTools makes a directory with links to some tools, and scripts.
func (b *bed) onlyTools(names []string, scripts map[string]string) string {
	b.t.Helper()
	dir, err := os.MkdirTemp(b.Dir, "bin-")
	b.must(err)
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			path = filepath.Join("/usr/sbin", name)
		}
		b.must(os.Symlink(path, filepath.Join(dir, name)))
	}
	for name, script := range scripts {
		b.must(os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	return "PATH=" + dir
}

func TestDoctorWithoutTools(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	ext4 := []string{"mkfs.ext4", "e2fsck", "resize2fs"}
	d := b.doctor([]string{b.onlyTools(nil, nil)})
	for check, pkg := range map[string]string{"ext4 tools": "e2fsprogs", "xfs tools": "xfsprogs", "btrfs tools": "btrfs-progs",
		"thin tools": "thin-provisioning-tools"} {
		if f := d.check(check); f.Verdict != "missing" || !strings.Contains(f.Remedy, pkg) {
			t.Errorf("%+v", f)
		}
	}
	if d.CanRun {
		t.Error("it can run without mkfs.ext4")
	}
	d = b.doctor([]string{b.onlyTools(ext4[:2], nil)})
	if f := d.check("ext4 tools"); !d.CanRun || f.Verdict != "limited" || !strings.Contains(f.Found, "no resize2fs") {
		t.Errorf("%+v", f)
	}
	d = b.doctor([]string{b.onlyTools(ext4, map[string]string{
		"mkfs.xfs":   "echo mkfs.xfs version 6.1.0",
		"xfs_repair": "exec /bin/sleep 600", // one that hangs is as good as none
	})})
	if f := d.check("xfs tools"); f.Verdict != "limited" || !strings.Contains(f.Found, "no xfs_repair; mkfs.xfs 6.1.0") {
		t.Errorf("%+v", f)
	}
	if f := d.check("ext4 tools"); f.Verdict != "ok" {
		t.Errorf("%+v", f)
	}
	d = b.doctor([]string{b.onlyTools(ext4[1:], map[string]string{
		"mkfs.ext4": "[ \"$1\" = -V ] && { echo mke2fs 1.46.2; exit 0; }; echo Bad option assume_storage_prezeroed; exit 1",
	})})
	if f := d.check("ext4 tools"); d.CanRun || f.Verdict != "missing" || !strings.Contains(f.Remedy, "1.47") {
		t.Errorf("an old mkfs.ext4: %+v", f)
	}
}

func TestDoctorWithoutCapabilities(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	cmd := toolCommand(context.Background(), nil)
	args := []string{"--bounding-set", "-all", "--inh-caps", "-all", cmd.Path, "doctor", "--json", "--pool", b.poolArg(),
		"--endpoint", b.endpoint()}
	setpriv := exec.Command("setpriv", args...)
	setpriv.Env = cmd.Env
	d := parseDoctor(t, finish(t, setpriv))
	if d.CanRun {
		t.Error("it can run without capabilities")
	}
	if f := d.check("capabilities"); f.Verdict != "missing" || !strings.Contains(f.Remedy, "privileged") {
		t.Errorf("%+v", f)
	}
	if f := d.check("BPF probes"); f.Verdict != "limited" || !strings.Contains(f.Remedy, "CAP_BPF") {
		t.Errorf("%+v", f)
	}
	if f := d.check("capabilities"); !strings.Contains(f.Found, "CAP_SYS_ADMIN") {
		t.Errorf("%+v", f)
	}
}

func TestToolsOnNarrowTerminals(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("a volume whose name is longer than the terminal is wide", "ext4")
	b.must(v.Up())
	for _, args := range [][]string{
		{"ls", "--endpoint", b.endpoint()},
		{"doctor", "--pool", b.poolArg(), "--endpoint", b.endpoint()},
		{"check", "--pool", b.poolArg()},
	} {
		for _, columns := range []uint16{20, 200} {
			s := newScreen(t, columns, 24, nil, args...)
			b.must(ended(s.cmd))
			if code := s.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("%q: status %d: %s", args, code, s.text())
			}
			b.eventually(func() error { return s.drained() })
			for line := range strings.Lines(colours.ReplaceAllString(s.text(), "")) {
				line = strings.TrimRight(line, "\r\n")
				if n := len([]rune(line)); n > int(columns) {
					t.Errorf("%q: %d columns on a terminal of %d: %q", args, n, columns, line)
				}
			}
			if testing.Verbose() {
				t.Log(s.text())
			}
		}
	}
	b.must(v.Gone())
}
