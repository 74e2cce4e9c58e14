// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

type checkFinding struct {
	Severity, Kind, Path, Message, Remedy string
	Repairable, Repaired                  bool
}

type checkedPool struct {
	Name, Path, UUID   string
	Served             bool
	Volumes, Snapshots int
	Findings           []checkFinding
}

func (p *checkedPool) find(kind, path string) *checkFinding {
	for i, f := range p.Findings {
		if f.Kind == kind && (path == "" || f.Path == path) {
			return &p.Findings[i]
		}
	}
	return nil
}

func (b *bed) check(code int, args ...string) *checkedPool {
	b.t.Helper()
	r := tool(b.t, b.toolEnv, append([]string{"check", "--json", "--pool", b.poolArg()}, args...)...)
	var all struct{ Pools []checkedPool }
	if err := json.Unmarshal([]byte(r.out), &all); err != nil || len(all.Pools) != 1 {
		b.t.Fatalf("check: %v: %+v", err, r)
	}
	if r.code != code {
		b.t.Errorf("check %v: status %d, want %d: %s%s", args, r.code, code, r.err, r.out)
	}
	for _, f := range all.Pools[0].Findings {
		if f.Message == "" || (f.Severity != "note" && f.Remedy == "" && !strings.Contains(f.Message, "pool init")) {
			b.t.Errorf("says too little: %+v", f)
		}
	}
	return &all.Pools[0]
}

// checkBed is a pool with a volume of each sort, a snapshot and data; its driver has ended.
type checkBed struct {
	*bed
	fs, raw, thick *rig.Volume
	snapshot       string // its key
}

func newCheckBed(t *testing.T) *checkBed {
	b := &checkBed{bed: open(t, "xfs", 1<<30)}
	b.untidy = true
	b.fs, b.raw, b.thick = b.volume("fs", "ext4"), b.volume("raw", "block"), b.volume("thick", "block")
	b.thick.Params = map[string]string{"provisioning": "thick"}
	b.must(b.fs.Create())
	b.must(b.thick.Create())
	b.must(b.raw.Up())
	_, err := rig.Fill(b.raw.Target, 4*mib, 1)
	b.must(err)
	_, err = b.fs.Snapshot("snap")
	b.must(err)
	b.must(b.raw.Down())
	b.must(b.d.Term())
	b.d.PoolOptions = ""
	return b
}

func (b *checkBed) path(elem ...string) string {
	return filepath.Join(append([]string{b.pool.Path}, elem...)...)
}

// holdings are all files below the pool that may hold data, by content and record.
func (b *checkBed) holdings() map[string]string {
	b.t.Helper()
	found := map[string]string{}
	b.must(filepath.WalkDir(b.pool.Path, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(b.pool.Path, path)
		if err != nil || entry.IsDir() || strings.HasPrefix(name, "templates/") || name == ".ringvol-probe" {
			return err
		}
		if !entry.Type().IsRegular() {
			found[name] = entry.Type().String()
			return nil
		}
		data, err := os.ReadFile(path)
		sum := sha256.Sum256(data)
		found[name] = hex.EncodeToString(sum[:]) + string(b.record(path))
		return err
	}))
	return found
}

func (b *checkBed) untouched(before map[string]string) {
	b.t.Helper()
	after := b.holdings()
	for name, was := range before {
		if is, there := after[name]; !there || is != was {
			b.t.Errorf("%s is not as it was", name)
		}
	}
}

func (b *checkBed) record(path string) []byte {
	text := make([]byte, 8192)
	n, err := unix.Lgetxattr(path, recordXattr, text)
	if err != nil {
		return nil
	}
	return text[:n]
}

func (b *checkBed) setRecord(path string, text []byte) {
	b.t.Helper()
	b.must(unix.Lsetxattr(path, recordXattr, text, 0))
}

// sealed puts the right checksum below a record's lines.
func sealed(lines string) []byte {
	sum := sha256.Sum256([]byte(lines))
	return fmt.Appendf([]byte(lines), "sum=%s\n", hex.EncodeToString(sum[:])[:16])
}

// rerecord changes a record's text and seals it again.
func (b *checkBed) rerecord(path, from, to string) {
	b.t.Helper()
	text, _, found := strings.Cut(string(b.record(path)), "sum=")
	if !found || !strings.Contains(text, from) {
		b.t.Fatalf("no %q in %q", from, text)
	}
	b.setRecord(path, sealed(strings.Replace(text, from, to, 1)))
}

func (b *checkBed) write(path string, at int64, data []byte) {
	b.t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	b.must(err)
	defer file.Close()
	_, err = file.WriteAt(data, at)
	b.must(err)
}

// bind attaches a file as ringvol would, with a tag.
func (b *checkBed) bind(path, random string) string {
	b.t.Helper()
	device, err := rig.Attach(path)
	b.must(err)
	file, err := os.Open(device)
	b.must(err)
	defer file.Close()
	info, err := unix.IoctlLoopGetStatus64(int(file.Fd()))
	b.must(err)
	info.File_name = [64]uint8{}
	copy(info.File_name[:], "ringvol:"+b.uuid8()+":"+random)
	b.must(unix.IoctlLoopSetStatus64(int(file.Fd()), info))
	return device
}

// uuid8 is what the ids of the pool's volumes and snapshots begin with.
func (b *bed) uuid8() string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.pool.Path, "ringvol.pool"))
	b.must(err)
	_, uuid, found := strings.Cut(string(text), "uuid=")
	if !found || len(uuid) < 8 {
		b.t.Fatalf("no uuid in %q", text)
	}
	return uuid[:8]
}

func bootMark(t *testing.T) []byte {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return append(bytes.TrimSpace(id), make([]byte, 16)...)
}

type damage struct {
	name     string
	do       func(b *checkBed)
	kind     string
	path     string // "": any
	severity string
	mends    bool // --repair makes it go away
}

var damages = []damage{
	{"a damaged record", func(b *checkBed) {
		text := b.record(b.path("volumes", "raw"))
		text[len(text)/2] ^= 1
		b.setRecord(b.path("volumes", "raw"), text)
	}, "Quarantined", "volumes/raw", "problem", false},
	{"a record without its sum", func(b *checkBed) {
		b.setRecord(b.path("volumes", "fs"), []byte("ringvol-record 1\n"))
	}, "Quarantined", "volumes/fs", "problem", false},
	{"a record of the future", func(b *checkBed) {
		b.setRecord(b.path("volumes", "fs"), sealed("ringvol-record 99\nkind=volume\n"))
	}, "Quarantined", "volumes/fs", "problem", false},
	{"no record", func(b *checkBed) {
		b.must(unix.Lremovexattr(b.path("snapshots", "snap"), recordXattr))
	}, "Quarantined", "snapshots/snap", "problem", false},
	{"a directory in an image's place", func(b *checkBed) {
		b.must(os.Mkdir(b.path("volumes", "dir"), 0o700))
	}, "Quarantined", "volumes/dir", "problem", false},
	{"a link in an image's place", func(b *checkBed) {
		b.must(os.Symlink("/etc/passwd", b.path("volumes", "link")))
	}, "Quarantined", "volumes/link", "problem", false},
	{"a strange name", func(b *checkBed) {
		b.write(b.path("volumes", ".what\x1b[31m"), 0, []byte("x"))
	}, "UnknownFile", "volumes/.what\x1b[31m", "note", false},
	{"a file beside", func(b *checkBed) {
		b.write(b.path("notes.txt"), 0, []byte("x"))
	}, "UnknownFile", "notes.txt", "note", false},
	{"a truncated image", func(b *checkBed) {
		b.must(os.Truncate(b.path("volumes", "raw"), 3*mib))
	}, "ImageTruncated", "volumes/raw", "problem", false},
	{"a truncated snapshot", func(b *checkBed) {
		b.must(os.Truncate(b.path("snapshots", "snap"), mib))
	}, "ImageTruncated", "snapshots/snap", "problem", false},
	{"an image that has grown", func(b *checkBed) {
		b.must(os.Truncate(b.path("volumes", "raw"), b.raw.Got+mib))
	}, "ImageLarger", "volumes/raw", "note", false},
	{"an odd size", func(b *checkBed) {
		b.rerecord(b.path("volumes", "raw"), fmt.Sprintf("%d", b.raw.Got), fmt.Sprintf("%d", b.raw.Got-512))
	}, "SizeOdd", "volumes/raw", "problem", false},
	{"one random part twice", func(b *checkBed) {
		randoms := strings.Split(b.raw.ID, ".")
		random := randoms[len(randoms)-1]
		other := strings.Split(b.fs.ID, ".")
		b.rerecord(b.path("volumes", "fs"), other[len(other)-1], random)
	}, "SameRandom", "", "problem", false},
	{"trash", func(b *checkBed) {
		b.write(b.path("trash", "0123456789abcdef"), 0, make([]byte, 4096))
	}, "TrashLeft", "trash/0123456789abcdef", "leftover", false},
	{"a damaged template", func(b *checkBed) {
		names := b.pool.Names("templates")
		if len(names) == 0 {
			b.t.Fatal("no template")
		}
		b.write(b.path("templates", names[0]), 0, make([]byte, 1<<20))
	}, "TemplateDamaged", "", "leftover", true},
	{"a strange template", func(b *checkBed) {
		b.write(b.path("templates", "ext4-mine"), 0, []byte("x"))
	}, "UnknownFile", "templates/ext4-mine", "note", false},
	{"an orphan device", func(b *checkBed) {
		b.write(b.Path("gone.img"), 0, make([]byte, mib))
		b.bind(b.Path("gone.img"), "deadbeef")
	}, "OrphanDevice", "", "leftover", true},
	{"a device of another file", func(b *checkBed) {
		b.write(b.Path("other.img"), 0, make([]byte, mib))
		parts := strings.Split(b.raw.ID, ".")
		b.bind(b.Path("other.img"), parts[len(parts)-1])
	}, "DeviceOfAnotherFile", "", "problem", false},
	{"a mark of a freeze", func(b *checkBed) {
		b.must(unix.Setxattr(b.path("volumes", "fs"), "trusted.ringvol.frozen", bootMark(b.t), 0))
	}, "FrozenMark", "volumes/fs", "leftover", true},
	{"a reflinked copy", func(b *checkBed) {
		_, err := rig.Run("cp", "--reflink=always", b.path("volumes", "raw"), b.path("copy"))
		b.must(err)
	}, "SharesExtents", "volumes/raw", "problem", false},
	{"a hole in a thick volume", func(b *checkBed) {
		file, err := os.OpenFile(b.path("volumes", "thick"), os.O_RDWR, 0)
		b.must(err)
		defer file.Close()
		b.must(unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 2*mib))
	}, "ThickNotAllocated", "volumes/thick", "problem", false},
	{"no file system", func(b *checkBed) {
		b.write(b.path("volumes", "fs"), 0, make([]byte, 65536))
	}, "FileSystemMissing", "volumes/fs", "problem", false},
	{"a second name", func(b *checkBed) {
		b.must(os.Link(b.path("volumes", "raw"), b.path("second")))
	}, "HardLinked", "volumes/raw", "problem", false},
	{"a damaged note of a volume that has moved away", func(b *checkBed) {
		b.write(b.path("departed", "away"), 0, []byte("nonsense"))
	}, "DepartureDamaged", "departed/away", "problem", false},
	{"a volume that has moved away", func(b *checkBed) {
		note := "ringvol-departure 1\nid=" + b.raw.ID + "\nmoves=1\nto=deadbeef\nnode=b\ngrant=" +
			strings.Repeat("0", 32) + "\n"
		b.write(b.path("departed", "raw"), 0, []byte(sealed(note)))
	}, "DepartureLeft", "departed/raw", "leftover", false},
	{"what a probe left", func(b *checkBed) {
		b.write(b.path(".ringvol-probe"), 0, make([]byte, 4096))
	}, "ProbeLeft", ".ringvol-probe", "leftover", true},
	{"no trash", func(b *checkBed) {
		b.must(os.Remove(b.path("trash")))
	}, "DirectoryMissing", "trash", "leftover", true},
	{"a link in the place of trash", func(b *checkBed) {
		b.must(os.Remove(b.path("trash")))
		b.must(os.Symlink("/tmp", b.path("trash")))
	}, "DirectoryUnreadable", "trash", "problem", false},
	{"a file in the place of trash", func(b *checkBed) {
		b.must(os.Remove(b.path("trash")))
		b.write(b.path("trash"), 0, []byte("x"))
	}, "DirectoryUnreadable", "trash", "problem", false},
	{"no snapshots", func(b *checkBed) {
		b.must(os.Rename(b.path("snapshots"), b.path("elsewhere")))
	}, "DirectoryMissing", "snapshots", "leftover", true},
	{"no volumes", func(b *checkBed) {
		b.must(os.Rename(b.path("volumes"), b.path("elsewhere")))
	}, "PoolSick", "", "problem", false},
	{"a damaged ringvol.pool", func(b *checkBed) {
		b.write(b.path("ringvol.pool"), 3, []byte("X"))
	}, "PoolSick", "", "problem", false},
	{"no ringvol.pool", func(b *checkBed) {
		b.must(os.Rename(b.path("ringvol.pool"), b.path("ringvol.old")))
	}, "PoolMissing", "", "problem", false},
}

func TestCheckDamage(t *testing.T) {
	for _, d := range damages {
		t.Run(strings.ReplaceAll(d.name, " ", "_"), func(t *testing.T) {
			b := newCheckBed(t)
			if clean := b.check(0); len(clean.Findings) != 0 || clean.Volumes != 3 || clean.Snapshots != 1 {
				t.Fatalf("before: %+v", clean)
			}
			d.do(b)
			before := b.holdings()
			bad := map[string]int{"problem": 1, "leftover": 1, "note": 0}[d.severity]
			f := b.check(bad).find(d.kind, d.path)
			if f == nil || f.Severity != d.severity || f.Repairable != d.mends || f.Repaired {
				t.Fatalf("%s %s: %+v in %+v", d.kind, d.path, f, b.check(bad))
			}
			text := tool(t, nil, "check", "--pool", b.poolArg())
			if text.code != bad || !strings.Contains(text.out, d.kind) || strings.Contains(text.out, "\x1b") {
				t.Errorf("for people: %+v", text)
			}
			after := bad
			if d.mends {
				after = 4
			}
			f = b.check(after, "--repair").find(d.kind, d.path)
			if f == nil || f.Repaired != d.mends {
				t.Errorf("--repair: %+v", f)
			}
			if d.mends {
				if again := b.check(0); again.find(d.kind, d.path) != nil {
					t.Errorf("after --repair: %+v", again)
				}
			}
			b.untouched(before)
		})
	}
}

// Everything is said at once, and a driver says of the pool what check said.
func TestCheckSaysItAll(t *testing.T) {
	b := newCheckBed(t)
	together := map[string]bool{}
	for _, d := range damages {
		switch d.name {
		case "no ringvol.pool", "a damaged ringvol.pool", "no snapshots", "no volumes", "no trash",
			"a link in the place of trash", "a file in the place of trash", "one random part twice",
			"a record without its sum", "a record of the future", "no file system", "a damaged record",
			"a truncated snapshot", "an image that has grown", "an odd size", "a volume that has moved away":
			continue // they exclude others
		}
		d.do(b)
		together[d.kind] = true
	}
	p := b.check(1)
	for kind := range together {
		if p.find(kind, "") == nil && kind != "ThickNotAllocated" && kind != "SharesExtents" {
			t.Errorf("no %s among %+v", kind, p.Findings)
		}
	}
	before := b.holdings()
	b.check(1, "--repair")
	b.untouched(before)
	// ls reads the same without a driver, and says all of it, whole.
	text := tool(t, nil, "ls", "--endpoint", b.endpoint(), "--pool", b.poolArg())
	if text.code != 0 || !strings.Contains(text.out, "raw: ImageTruncated: the image is shorter than its record says") {
		t.Errorf("ls: %+v", text)
	}
	b.start()
	l := b.ls()
	for _, q := range l.Quarantined {
		if p.find("Quarantined", q.Kind+"s/"+q.Key) == nil {
			t.Errorf("the driver quarantined %+v", q)
		}
	}
	if len(l.Quarantined) == 0 {
		t.Error("the driver quarantined nothing")
	}
}

func TestCheckBesideADriver(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	b.untidy = true
	v, other := b.volume("v", "ext4"), b.volume("other", "block")
	b.must(v.Up())
	b.must(other.Create())
	if p := b.check(0); !p.Served || p.Volumes != 2 || len(p.Findings) != 0 {
		t.Errorf("beside its driver: %+v", p)
	}
	b.must(os.WriteFile(filepath.Join(b.pool.Path, ".ringvol-probe"), []byte("x"), 0o600))
	r := tool(t, nil, "check", "--repair", "--pool", b.poolArg())
	if r.code != 1 || !strings.Contains(r.err, "a driver serves pool default") {
		t.Errorf("--repair beside a driver: %+v", r)
	}
	if _, err := os.Stat(filepath.Join(b.pool.Path, ".ringvol-probe")); err != nil {
		t.Errorf("repaired beside a driver: %v", err)
	}
	b.must(os.Remove(filepath.Join(b.pool.Path, ".ringvol-probe")))
	// While volumes come and go nothing is wrong.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 40 {
			w := b.volume("coming and going", "ext4")
			if err := errors.Join(w.Create(), w.Stage(), w.Unstage(), w.Delete()); err != nil {
				t.Error(err)
			}
		}
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		if p := b.check(0); len(p.Findings) != 0 {
			for _, f := range p.Findings {
				if f.Kind != "TrashLeft" || f.Severity != "note" {
					t.Errorf("%+v", f)
				}
			}
		}
	}
	// The driver goes on as if nothing had been.
	b.must(v.Gone())
	b.must(other.Delete())
}

// What check cannot read or see: it says so, and leaves it alone.

// An image that cannot be read is no clean one. Without /proc no file system but a sound one can be looked for: it
// stands for a disk that cannot be read there.
func TestCheckUnreadable(t *testing.T) {
	if strings.Contains(rig.Binary(), "asan") {
		t.Skip("the sanitizer needs /proc")
	}
	b := newCheckBed(t)
	b.write(b.path("volumes", "fs"), 0, make([]byte, 65536))
	cmd := toolCommand(context.Background(), nil, "check", "--json", "--pool", b.poolArg())
	inside := exec.Command("unshare", append([]string{"--mount", "sh", "-c",
		"mount -t tmpfs none /proc && exec \"$@\"", "sh", cmd.Path}, cmd.Args[1:]...)...)
	inside.Env = cmd.Env
	r := finish(t, inside)
	var all struct{ Pools []checkedPool }
	if err := json.Unmarshal([]byte(r.out), &all); err != nil || len(all.Pools) != 1 {
		t.Fatalf("%v: %+v", err, r)
	}
	if f := all.Pools[0].find("ImageUnreadable", "volumes/fs"); r.code != 1 || f == nil || f.Severity != "problem" || f.Repairable {
		t.Errorf("%+v", r)
	}
}

// What --repair cannot see it leaves alone: a device with its binding, a freeze with its mark.
func TestCheckKeepsWhatItCannotSee(t *testing.T) {
	const mark = "trusted.ringvol.frozen"
	marked := func(b *checkBed) bool {
		_, err := unix.Getxattr(b.path("volumes", "fs"), mark, make([]byte, 256))
		return err == nil
	}
	random := func(id string) string { return id[strings.LastIndex(id, ".")+1:] }
	bound := func(b *checkBed, device string) bool {
		_, err := os.Stat("/sys/block/" + filepath.Base(device) + "/loop/backing_file")
		return err == nil
	}
	t.Run("no volumes", func(t *testing.T) {
		b := newCheckBed(t)
		device := b.bind(b.path("volumes", "raw"), random(b.raw.ID))
		b.must(os.Rename(b.path("volumes"), b.path("elsewhere")))
		if p := b.check(1, "--repair"); p.find("PoolSick", "") == nil || p.find("OrphanDevice", "") != nil {
			t.Errorf("%+v", p)
		}
		if !bound(b, device) {
			t.Errorf("%s was let go", device)
		}
	})
	t.Run("a quarantined volume", func(t *testing.T) {
		b := newCheckBed(t)
		device := b.bind(b.path("volumes", "raw"), random(b.raw.ID))
		b.setRecord(b.path("volumes", "raw"), []byte("ringvol-record 1\n"))
		if f := b.check(1, "--repair").find("OrphanDevice", device); f == nil || f.Repairable || f.Repaired {
			t.Errorf("%+v", f)
		}
		if !bound(b, device) {
			t.Errorf("%s was let go", device)
		}
	})
	t.Run("a silent data process", func(t *testing.T) {
		b := newCheckBed(t)
		socket := b.Path("silent.sock")
		listener, err := net.Listen("unixpacket", socket)
		b.must(err)
		defer listener.Close()
		b.toolEnv = []string{"RINGVOL_UBLKD_SOCKET=" + socket, "RINGVOL_UBLKD_STATE_DIR=" + b.Path("none")}
		b.write(b.Path("gone.img"), 0, make([]byte, mib))
		device := b.bind(b.Path("gone.img"), "deadbeef")
		b.must(unix.Setxattr(b.path("volumes", "fs"), mark, bootMark(t), 0))
		p := b.check(1, "--repair")
		if p.find("DevicesUnknown", "") == nil {
			t.Errorf("%+v", p)
		}
		for _, kind := range []string{"FrozenMark", "OrphanDevice"} {
			if f := p.find(kind, ""); f == nil || f.Repairable || f.Repaired {
				t.Errorf("%s: %+v", kind, f)
			}
		}
		if !bound(b, device) || !marked(b) {
			t.Errorf("bound %v, marked %v", bound(b, device), marked(b))
		}
	})
	t.Run("a device that is not found", func(t *testing.T) {
		b := newCheckBed(t)
		// As a data process at another socket has it: the image's lock tells that there is a device.
		image, err := os.Open(b.path("volumes", "fs"))
		b.must(err)
		defer image.Close()
		b.must(unix.Flock(int(image.Fd()), unix.LOCK_EX))
		b.must(unix.Setxattr(b.path("volumes", "fs"), mark, bootMark(t), 0))
		if f := b.check(1, "--repair").find("FrozenMark", ""); f == nil || f.Repaired || !strings.Contains(f.Remedy, "busy") {
			t.Errorf("%+v", f)
		}
		if !marked(b) {
			t.Error("the mark was taken away")
		}
		b.must(unix.Flock(int(image.Fd()), unix.LOCK_UN))
		b.check(4, "--repair")
	})
}

// A snapshot that was cut short has left a mounted volume frozen: its users wait until it is thawed.
func TestCheckThaws(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("v", "xfs")
	b.must(v.Up())
	b.must(b.d.Kill())
	dir, err := os.Open(v.Target)
	b.must(err)
	const fiFreeze, fiThaw = 0xC0045877, 0xC0045878
	b.must(unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0))
	defer unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
	image := b.pool.Image(v.ID)
	b.must(unix.Setxattr(image, "trusted.ringvol.frozen", bootMark(t), 0))
	if f := b.check(1).find("FrozenMark", "volumes/v"); f == nil || !strings.Contains(f.Message, "may be frozen") {
		t.Errorf("%+v", f)
	}
	b.check(4, "--repair")
	if err := unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0); err == nil {
		t.Error("it was still frozen")
	}
	dir.Close()
	b.check(0)
	b.d.PoolOptions = ""
	b.start()
	b.must(v.Gone())
}
