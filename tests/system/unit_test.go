// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// What deploy/ringvol.service leaves of a root process, without systemd: this test binary becomes the
// driver with the filters and capabilities that systemd would give it. Devices (a control group's) and IP
// addresses are not looked at.
const unitEnv = "RINGVOL_TEST_UNIT"

const unitFile = "../../deploy/ringvol.service"

type unitLimits struct {
	Calls                                                  []uint32 // system calls that are allowed; others get Errno
	Errno                                                  uint32
	Families                                               []uint32 // of sockets
	Capabilities                                           []uint
	NoSetID, NoNamespaces, NoWriteExecute, NoNewPrivileges bool
}

func init() {
	text := os.Getenv(unitEnv)
	if text == "" {
		return
	}
	os.Unsetenv(unitEnv)
	var limits unitLimits
	err := json.Unmarshal([]byte(text), &limits)
	if err == nil {
		err = limits.become(os.Args[1:])
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(125)
}

// ---- filters, as systemd 252 makes them (src/shared/seccomp-util.c) ----

const seccompAllow = unix.SECCOMP_RET_ALLOW

func seccompErrno(errno uint32) uint32 { return unix.SECCOMP_RET_ERRNO | errno }

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// The lower half of an argument, where the numbers and flags are that are asked about.
func loadArg(i uint32) unix.SockFilter { return load(16 + 8*i) }

func give(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

func ifEqual(k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

func ifAny(bits uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: bits, Jt: yes, Jf: no}
}

// choose answers `then` for one of these values of what was loaded, `other` for the rest.
func choose(from unix.SockFilter, values []uint32, then, other uint32) []unix.SockFilter {
	filter := []unix.SockFilter{from}
	for _, value := range values {
		filter = append(filter, ifEqual(value, 0, 1), give(then))
	}
	return append(filter, give(other))
}

func refuse(call, errno uint32) []unix.SockFilter {
	return choose(load(0), []uint32{call}, seccompErrno(errno), seccompAllow)
}

// ofCall applies a filter to one system call.
func ofCall(call uint32, filter ...unix.SockFilter) []unix.SockFilter {
	return append([]unix.SockFilter{load(0), ifEqual(call, 1, 0), give(seccompAllow)}, filter...)
}

// refuseAny refuses a call with one of these bits in an argument.
func refuseAny(call, arg, bits, errno uint32) []unix.SockFilter {
	return ofCall(call, loadArg(arg), ifAny(bits, 0, 1), give(seccompErrno(errno)), give(seccompAllow))
}

func (u *unitLimits) filters() (all [][]unix.SockFilter) {
	eperm := uint32(unix.EPERM)
	all = append(all, ofCall(unix.SYS_SOCKET,
		choose(loadArg(0), u.Families, seccompAllow, seccompErrno(uint32(unix.EAFNOSUPPORT)))...))
	if u.NoSetID { // whose flags lie behind a pointer
		all = append(all, refuse(unix.SYS_OPENAT2, uint32(unix.ENOSYS)))
	}
	if u.NoNamespaces {
		spaces := uint32(unix.CLONE_NEWCGROUP | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWNS |
			unix.CLONE_NEWPID | unix.CLONE_NEWUSER | unix.CLONE_NEWUTS)
		all = append(all, refuse(unix.SYS_SETNS, eperm), refuse(unix.SYS_CLONE3, uint32(unix.ENOSYS)),
			refuseAny(unix.SYS_UNSHARE, 0, spaces, eperm), refuseAny(unix.SYS_CLONE, 0, spaces, eperm))
	}
	if u.NoWriteExecute {
		all = append(all, refuseAny(unix.SYS_MPROTECT, 2, unix.PROT_EXEC, eperm),
			refuseAny(unix.SYS_PKEY_MPROTECT, 2, unix.PROT_EXEC, eperm),
			ofCall(unix.SYS_MMAP, loadArg(2), ifAny(unix.PROT_WRITE, 0, 2), ifAny(unix.PROT_EXEC, 0, 1),
				give(seccompErrno(eperm)), give(seccompAllow)))
	}
	return append(all, choose(load(0), u.Calls, seccompAllow, seccompErrno(u.Errno)))
}

func (u *unitLimits) become(args []string) error {
	runtime.LockOSThread() // all of it is a thread's, and exec keeps it
	for c := uint(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(u.Capabilities, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
	if u.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no_new_privs: %w", err)
		}
	}
	filters := u.filters()
	if len(u.Calls) == 0 {
		filters = nil // capabilities alone
	}
	for _, filter := range filters {
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
			return fmt.Errorf("seccomp: %w", err)
		}
	}
	return fmt.Errorf("%s: %w", args[0], syscall.Exec(args[0], args, os.Environ()))
}

// ---- the unit ----

// definitions are the numbers of a C header's "#define <prefix>NAME number".
func definitions(t *testing.T, pattern, prefix string) map[string]uint32 {
	t.Helper()
	files, _ := filepath.Glob(pattern)
	numbers := map[string]uint32{}
	line := regexp.MustCompile(`(?m)^#define\s+` + prefix + `(\w+)\s+(\d+)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range line.FindAllStringSubmatch(string(text), -1) {
			n, _ := strconv.ParseUint(match[2], 10, 32)
			numbers[match[1]] = uint32(n)
		}
	}
	if len(numbers) == 0 {
		t.Skipf("no %s says the numbers of %s... (the package linux-libc-dev has it)", pattern, prefix)
	}
	return numbers
}

// callsOf are the system calls of a set of systemd's, "@mount", or the one that is named.
func callsOf(t *testing.T, name string) (calls []string) {
	t.Helper()
	if !strings.HasPrefix(name, "@") {
		return []string{name}
	}
	out, err := exec.Command("systemd-analyze", "--no-pager", "syscall-filter", name).Output()
	if err != nil {
		t.Skipf("systemd-analyze syscall-filter %s: %v", name, err)
	}
	for line := range strings.Lines(string(out)) {
		word := strings.TrimSpace(line)
		if line != word+"\n" && word != "" && !strings.HasPrefix(word, "#") {
			calls = append(calls, callsOf(t, word)...)
		}
	}
	return calls
}

// limitsOf reads what a unit's text leaves a process.
func limitsOf(t *testing.T, text string) *unitLimits {
	t.Helper()
	settings := map[string]string{} // what is set twice adds up
	for line := range strings.Lines(text) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(key, "#") {
			settings[key] = strings.TrimSpace(settings[key] + " " + value)
		}
	}
	// What is not yes is not seen here: the test would say less than it seems to.
	on := func(key string) bool {
		value := settings[key]
		if value != "" && value != "yes" && value != "no" {
			t.Fatalf("%s=%s: yes and no are understood", key, value)
		}
		return value == "yes"
	}
	words := func(key string) []string {
		all := strings.Fields(settings[key])
		if len(all) == 0 || strings.HasPrefix(all[0], "~") {
			t.Fatalf("%s=%s: a list of what is allowed is understood", key, settings[key])
		}
		return all
	}
	u := &unitLimits{
		NoSetID: on("RestrictSUIDSGID"), NoNamespaces: on("RestrictNamespaces"),
		NoWriteExecute: on("MemoryDenyWriteExecute"), NoNewPrivileges: on("NoNewPrivileges"),
	}
	if settings["SystemCallErrorNumber"] != "EPERM" {
		t.Fatalf("SystemCallErrorNumber=%s: EPERM is understood", settings["SystemCallErrorNumber"])
	}
	u.Errno = uint32(unix.EPERM)
	numbers := definitions(t, "/usr/include/*/asm/unistd_64.h", "__NR_")
	for _, word := range append(words("SystemCallFilter"), "@default") {
		for _, call := range callsOf(t, word) {
			if number, found := numbers[call]; found { // else of another architecture
				u.Calls = append(u.Calls, number)
			}
		}
	}
	families := map[string]uint32{
		"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK,
	}
	for _, word := range words("RestrictAddressFamilies") {
		family, found := families[word]
		if !found {
			t.Fatalf("RestrictAddressFamilies has %s, which is not known here", word)
		}
		u.Families = append(u.Families, family)
	}
	u.Capabilities = capabilitiesOf(t, words("CapabilityBoundingSet"))
	return u
}

func capabilitiesOf(t *testing.T, names []string) (all []uint) {
	t.Helper()
	capabilities := map[string]uint{
		"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "CAP_FOWNER": unix.CAP_FOWNER,
		"CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE,
	}
	for _, name := range names {
		c, found := capabilities[name]
		if !found {
			t.Fatalf("CapabilityBoundingSet has %s, which is not known here", name)
		}
		all = append(all, c)
	}
	return all
}

// inside makes a bed's driver one that has no more than this.
func (b *bed) inside(u *unitLimits) {
	b.t.Helper()
	self, err := os.Executable()
	b.must(err)
	text, err := json.Marshal(u)
	b.must(err)
	script := b.Path("inside")
	b.must(os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\n%s='%s' exec %q %q \"$@\"\n", unitEnv, text, self, rig.Binary()), 0o755))
	b.d.Binary = script
}

// ---- what a driver does there ----

func unitBed(t *testing.T, confine func(b *bed)) *bed {
	t.Helper()
	b := newBed(t, "xfs", 2<<30)
	confine(b)
	b.d.Args = append(b.d.Args, "--log-format", "json")
	b.must(b.d.ServeHTTP())
	b.start()
	b.probesSettled()
	return b
}

// warnings are what the driver has said that is no information, each once.
func (b *bed) warnings() []string {
	b.t.Helper()
	text, err := os.ReadFile(b.d.Log)
	b.must(err)
	said := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		var l struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			said[strings.TrimSpace(line)] = true
		} else if l.Level != "info" && l.Level != "debug" {
			said[l.Msg] = true
		}
	}
	return slices.Sorted(maps.Keys(said))
}

// life takes a volume through everything, and says how each step went.
func (b *bed) life(kind string) (steps []string) {
	b.t.Helper()
	v := b.volume("unit-"+kind, kind)
	v.Params = map[string]string{"snapshotFreeze": "true"}
	step := func(name string, err error) {
		steps = append(steps, fmt.Sprintf("%s %s: %v", kind, name, rig.Code(err)))
		if err != nil {
			b.t.Logf("%s %s: %v", kind, name, err)
		}
	}
	var snapshot string
	step("create", v.Create())
	step("stage", v.Stage())
	step("publish", v.Publish())
	_, err := v.Stats()
	step("stats", err)
	s, err := v.Snapshot("snap-" + kind)
	if err == nil {
		snapshot = s.GetSnapshotId()
	}
	step("snapshot", err)
	step("expand", v.Expand(v.Got+64*mib, true))
	step("unpublish", v.Unpublish())
	step("unstage", v.Unstage())
	step("stage after growth", v.Stage()) // where ext4 grows without CAP_SYS_RESOURCE
	step("unstage after growth", v.Unstage())
	step("delete snapshot", b.d.DeleteSnapshot(snapshot))
	step("delete", rig.Eventually(rig.CallTimeout, func() error { // a look into its device keeps it for a moment
		err := v.Delete()
		if rig.Code(err) != codes.FailedPrecondition && err != nil {
			err = rig.Stop(err)
		}
		return err
	}))
	return steps
}

// sameInside takes volumes through their life with and without a driver's limits: all goes the same, and nothing
// more is warned of.
func sameInside(t *testing.T, confine func(b *bed)) {
	t.Helper()
	all := func(confine func(b *bed)) (steps, warnings []string) {
		b := unitBed(t, confine)
		for _, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
			steps = append(steps, b.life(kind)...)
		}
		return steps, b.warnings()
	}
	steps, warnings := all(func(*bed) {})
	insideSteps, insideWarnings := all(confine)
	if !slices.Equal(steps, insideSteps) {
		t.Errorf("outside:\n%s\ninside:\n%s", strings.Join(steps, "\n"), strings.Join(insideSteps, "\n"))
	}
	for _, warning := range insideWarnings {
		if !slices.Contains(warnings, warning) {
			t.Errorf("it is said inside alone: %s", warning)
		}
	}
}

// The unit's capabilities without its filters: also on kernels where the rest of this file cannot be run, and which
// ask for others.
func TestWithTheUnitsCapabilities(t *testing.T) {
	if strings.Contains(rig.Binary(), "asan") {
		t.Skip("the sanitizer looks for leaks by ptrace")
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Skip(err)
	}
	match := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(CAP_.*)$`).FindSubmatch(text)
	if match == nil {
		t.Fatal("the unit has no CapabilityBoundingSet")
	}
	limits := &unitLimits{Capabilities: capabilitiesOf(t, strings.Fields(string(match[1]))), NoNewPrivileges: true}
	sameInside(t, func(b *bed) { b.inside(limits) })
}

// Inside the unit all goes as outside of it, and nothing more is warned of.
func TestInsideTheUnit(t *testing.T) {
	if strings.Contains(rig.Binary(), "asan") {
		t.Skip("the sanitizer looks for leaks by calls that the unit does not allow")
	}
	if runtime.GOARCH != "amd64" {
		t.Skipf("filters are made for x86-64, this is %s", runtime.GOARCH)
	}
	text, err := os.ReadFile(unitFile)
	if err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skipf("what SystemCallFilter's sets are is not known: %v", err)
	}
	unit := limitsOf(t, string(text))

	sameInside(t, func(b *bed) { b.inside(unit) })

	// The filters do what they are for: with what was in the unit once, it would be seen.
	t.Run("RestrictSUIDSGID", func(t *testing.T) {
		b := unitBed(t, func(b *bed) { b.inside(limitsOf(t, string(text)+"\nRestrictSUIDSGID=yes\n")) })
		v := b.volume("v", "block")
		b.must(v.Create())
		if err := v.Stage(); err == nil {
			t.Error("a volume was staged without openat2")
			b.must(v.Unstage())
		}
		b.must(v.Delete())
	})
	t.Run("AF_NETLINK", func(t *testing.T) {
		b := unitBed(t, func(b *bed) { b.inside(limitsOf(t, strings.ReplaceAll(string(text), " AF_NETLINK", ""))) })
		if said := strings.Join(b.warnings(), "\n"); !strings.Contains(said, "no uevents") {
			t.Errorf("warned of: %s", said)
		}
	})
}
