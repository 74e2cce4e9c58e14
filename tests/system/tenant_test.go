// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// The tenant is this program once more: another user without any capability, with descriptor 3 open on the
// volume's node, 4 on a file of its own and 5 on the device mapper's control node, which no pod has. It
// tries what it can and prints what came of each call.
const tenantVariable = "RINGVOL_TENANT"

func init() {
	if os.Getenv(tenantVariable) != "" {
		tenant()
		os.Exit(0)
	}
}

const (
	tenantNode    = 3
	tenantFile    = 4
	tenantControl = 5
	nobody        = 65534
)

// A call that may harm what is not the tenant's. arg points to zeroes unless it is given.
type attack struct {
	name    string
	fd      int
	request uint
	arg     func(room []byte) uintptr
}

func pointer(room []byte) uintptr          { return uintptr(unsafe.Pointer(&room[0])) }
func value(n uintptr) func([]byte) uintptr { return func([]byte) uintptr { return n } }

func put64(room []byte, words ...uint64) {
	for i, word := range words {
		*(*uint64)(unsafe.Pointer(&room[i*8])) = word
	}
}

// LOOP_CONFIGURE's argument: the descriptor of the tenant's file, and a block size.
func loopConfig(room []byte) uintptr {
	*(*uint32)(unsafe.Pointer(&room[0])) = tenantFile
	*(*uint32)(unsafe.Pointer(&room[4])) = 512
	return pointer(room)
}

// Another volume's tag, an offset into the image and a limit.
func loopStatus(room []byte) uintptr {
	put64(room[24:], 4096, 8192)
	copy(room[56:], "ringvol:00000000:00000000")
	return pointer(room)
}

func reservation(room []byte) uintptr { put64(room, 0, 1); return pointer(room) }

// The volume's first 64 KiB, and far past its end.
func inside(room []byte) uintptr  { put64(room, 0, 64<<10); return pointer(room) }
func outside(room []byte) uintptr { put64(room, 1<<40, 64<<10); return pointer(room) }

// BLKPG: one partition that begins in the volume.
func partition(room []byte) uintptr {
	op := (*struct {
		op, flags, len int32
		data           uintptr
	})(unsafe.Pointer(&room[0]))
	put64(room[512:], 0, 4096)
	*(*int32)(unsafe.Pointer(&room[512+16])) = 1
	op.op, op.len, op.data = 1, 152, pointer(room[512:])
	return pointer(room)
}

// SG_IO with an INQUIRY.
func scsi(room []byte) uintptr {
	*(*int32)(unsafe.Pointer(&room[0])) = 'S'
	*(*int32)(unsafe.Pointer(&room[4])) = -3
	room[8] = 6
	*(*uintptr)(unsafe.Pointer(&room[24])) = pointer(room[512:])
	room[512] = 0x12
	return pointer(room)
}

// A device-mapper call's head: version 4, a size, the name of the volume's own guard.
func mapper(room []byte) uintptr {
	*(*uint32)(unsafe.Pointer(&room[0])) = 4
	*(*uint32)(unsafe.Pointer(&room[12])) = 2048
	*(*uint32)(unsafe.Pointer(&room[16])) = 312
	copy(room[48:], os.Getenv(tenantVariable))
	return pointer(room)
}

func dmRequest(nr uint) uint { return 3<<30 | 312<<16 | 0xfd<<8 | nr }

// Calls of the loop driver: none may be taken, by nobody's doing.
var loopAttacks = []attack{
	{"LOOP_SET_FD", tenantNode, 0x4c00, value(tenantFile)},
	{"LOOP_CLR_FD", tenantNode, 0x4c01, nil},
	{"LOOP_SET_STATUS", tenantNode, 0x4c02, nil},
	{"LOOP_GET_STATUS", tenantNode, 0x4c03, nil},
	{"LOOP_SET_STATUS64", tenantNode, 0x4c04, loopStatus},
	{"LOOP_GET_STATUS64", tenantNode, 0x4c05, nil},
	{"LOOP_CHANGE_FD", tenantNode, 0x4c06, value(tenantFile)},
	{"LOOP_SET_CAPACITY", tenantNode, 0x4c07, nil},
	{"LOOP_SET_DIRECT_IO", tenantNode, 0x4c08, value(1)},
	{"LOOP_SET_DIRECT_IO off", tenantNode, 0x4c08, value(0)},
	{"LOOP_SET_BLOCK_SIZE", tenantNode, 0x4c09, value(4096)},
	{"LOOP_CONFIGURE", tenantNode, 0x4c0a, loopConfig},
}

// Calls that a tenant's block node must refuse.
var otherAttacks = []attack{
	{"BLKPG", tenantNode, unix.BLKPG, partition},
	{"BLKROSET on", tenantNode, unix.BLKROSET, func(room []byte) uintptr { room[0] = 1; return pointer(room) }},
	{"BLKROSET off", tenantNode, unix.BLKROSET, nil},
	{"BLKRRPART", tenantNode, unix.BLKRRPART, nil},
	{"BLKRASET", tenantNode, unix.BLKRASET, value(8)},
	{"BLKBSZSET", tenantNode, unix.BLKBSZSET, func(room []byte) uintptr { room[1] = 16; return pointer(room) }},
	{"BLKFLSBUF", tenantNode, unix.BLKFLSBUF, nil},
	{"BLKSECDISCARD", tenantNode, 0x127d, inside},
	{"BLKDISCARD past the end", tenantNode, 0x1277, outside},
	{"BLKZEROOUT past the end", tenantNode, 0x127f, outside},
	{"BLKTRACESETUP", tenantNode, 0xc0481273, nil},
	{"BLKTRACESTART", tenantNode, 0x1274, nil},
	{"BLKTRACESTOP", tenantNode, 0x1275, nil},
	{"BLKTRACETEARDOWN", tenantNode, 0x1276, nil},
	{"BLKOPENZONE", tenantNode, 0x40101286, inside},
	{"BLKRESETZONE", tenantNode, 0x40101283, inside},
	{"SG_IO", tenantNode, 0x2285, scsi},
	{"SCSI_IOCTL_SEND_COMMAND", tenantNode, 1, nil},
	{"HDIO_DRIVE_CMD", tenantNode, 0x31f, nil},
	{"CDROMEJECT", tenantNode, 0x5309, nil},
	{"FIFREEZE", tenantNode, 0xc0045877, nil},
	{"FITHAW", tenantNode, 0xc0045878, nil},
	{"IOC_PR_REGISTER", tenantNode, 0x401870c8, reservation},
	{"IOC_PR_RESERVE", tenantNode, 0x401070c9, reservation},
	{"IOC_PR_PREEMPT", tenantNode, 0x401870cb, reservation},
	{"IOC_PR_CLEAR", tenantNode, 0x401070cd, reservation},
	{"IOC_OPAL_SAVE", tenantNode, 0x411870dc, nil},
	{"NVME_IOCTL_ADMIN_CMD", tenantNode, 0xc0484e41, nil},
	{"MMC_IOC_CMD", tenantNode, 0xc048b300, nil},
	{"DM_TABLE_LOAD on the node", tenantNode, dmRequest(9), mapper},
	{"DM_REMOVE_ALL", tenantControl, dmRequest(1), mapper},
	{"DM_LIST_DEVICES", tenantControl, dmRequest(2), mapper},
	{"DM_DEV_CREATE", tenantControl, dmRequest(3), mapper},
	{"DM_DEV_REMOVE", tenantControl, dmRequest(4), mapper},
	{"DM_DEV_RENAME", tenantControl, dmRequest(5), mapper},
	{"DM_DEV_SUSPEND", tenantControl, dmRequest(6), mapper},
	{"DM_TABLE_LOAD", tenantControl, dmRequest(9), mapper},
	{"DM_TABLE_CLEAR", tenantControl, dmRequest(10), mapper},
	{"DM_TABLE_STATUS", tenantControl, dmRequest(12), mapper},
	{"DM_TARGET_MSG", tenantControl, dmRequest(14), mapper},
	{"DM_DEV_SET_GEOMETRY", tenantControl, dmRequest(15), mapper},
}

// Calls that may be taken, as they stay in the volume.
var allowedAttacks = []attack{
	{"BLKDISCARD", tenantNode, 0x1277, inside},
	{"BLKZEROOUT", tenantNode, 0x127f, inside},
}

// Requests that only ask: BLKROGET, BLKGETSIZE, BLKRAGET, BLKFRAGET, BLKSECTGET, BLKSSZGET, BLKBSZGET,
// BLKGETSIZE64, BLKIOMIN, BLKIOOPT, BLKALIGNOFF, BLKPBSZGET, BLKDISCARDZEROES, BLKROTATIONAL,
// BLKGETDISKSEQ, HDIO_GETGEO; and zones, of which there are none.
var questions = strings.Fields("125e 1260 1263 1265 1267 1268 80081270 80081272 1278 1279 127a 127b 127c 127e " +
	"80081280 301 80041284 80041285")

func try(a attack) syscall.Errno {
	room := make([]byte, 8192)
	arg := pointer(room)
	if a.arg != nil {
		arg = a.arg(room)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(a.fd), uintptr(a.request), arg)
	return errno
}

// What the tenant tells of itself.
type tenantReport struct {
	Caps, UID string
	Errno     map[string]syscall.Errno
	// What lies beside the node: opened by path, for the loop devices of this machine.
	Opened []string
	// Requests of every number that were taken, in hexadecimal.
	Taken []string
}

func statusLine(name string) string {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func tenant() {
	r := tenantReport{Caps: statusLine("CapEff"), UID: statusLine("Uid"), Errno: map[string]syscall.Errno{}}
	lists := [][]attack{loopAttacks, otherAttacks, allowedAttacks}
	if os.Geteuid() == 0 { // what root may do to a device of its own is not in question
		lists = lists[:1]
	}
	for _, list := range lists {
		for _, a := range list {
			r.Errno[a.name] = try(a)
		}
	}
	if os.Geteuid() == 0 {
		_ = json.NewEncoder(os.Stdout).Encode(r)
		return
	}
	if _, err := unix.Pwrite(tenantNode, make([]byte, 4096), 0); err != nil {
		r.Errno["write"] = err.(syscall.Errno)
	}
	nodes, _ := filepath.Glob("/dev/loop*")
	nodes = append(nodes, "/dev/loop-control", "/dev/mapper/control")
	for _, path := range nodes {
		for _, mode := range []int{unix.O_RDONLY, unix.O_RDWR} {
			if fd, err := unix.Open(path, mode|unix.O_CLOEXEC, 0); err == nil {
				r.Opened = append(r.Opened, path)
				unix.Close(fd)
			}
		}
	}
	// Every number of the loop driver's, the block layer's, SCSI's, device mapper's and reservations' types.
	for _, kind := range []uint{0x4c, 0x12, 0x22, 0xfd, 0x70, 0x53, 0x03} {
		for nr := range uint(256) {
			for _, shape := range []uint{0, 1<<30 | 8<<16, 2<<30 | 8<<16, 3<<30 | 8<<16, 1<<30 | 16<<16} {
				request := shape | kind<<8 | nr
				if try(attack{fd: tenantNode, request: request}) == 0 {
					r.Taken = append(r.Taken, fmt.Sprintf("%x", request))
				}
			}
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(r)
}

// runTenant lets the tenant loose on a node; privileged: as root, with all capabilities.
func (b *bed) runTenant(node string, mode int, guard string, privileged bool) tenantReport {
	b.t.Helper()
	disk, err := os.OpenFile(node, mode|unix.O_CLOEXEC, 0)
	b.must(err)
	defer disk.Close()
	own, err := os.Create(b.Path("tenants-own"))
	b.must(err)
	defer own.Close()
	b.must(own.Truncate(64 * mib))
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		control, err = os.Open("/dev/null")
	}
	b.must(err)
	defer control.Close()
	// The test's own file may lie where nobody can go.
	self, err := os.Open("/proc/self/exe")
	b.must(err)
	defer self.Close()
	cmd := exec.Command("/proc/self/fd/6")
	cmd.Env = []string{tenantVariable + "=" + guard + "x"}
	cmd.ExtraFiles = []*os.File{disk, own, control, self}
	if !privileged {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &errs, "/"
	var report tenantReport
	if err := cmd.Run(); err != nil {
		b.t.Fatalf("the tenant: %v: %s", err, errs.String())
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		b.t.Fatalf("the tenant said %q: %v", out.String(), err)
	}
	return report
}

// sumOfData is the checksum of a sparse file: of what it holds and where.
func sumOfData(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	for at := int64(0); ; {
		data, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
		hole, err := unix.Seek(int(file.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%d-%d:", data, hole)
		if _, err := io.Copy(sum, io.NewSectionReader(file, data, hole-data)); err != nil {
			return "", err
		}
		at = hole
	}
}

// world is all that a tenant must not change: what the kernel says of the volume's devices, of all loop
// devices, and the bytes of each image but its own.
func (b *bed) world(except string) string {
	b.t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"/sys/block/loop*/loop/*", "/sys/block/loop*/size", "/sys/block/loop*/ro",
		"/sys/block/dm-*/dm/*", "/sys/block/dm-*/size", "/sys/block/dm-*/ro", "/sys/block/ublkb*/size",
		"/sys/block/ublkb*/ro", "/sys/block/*/queue/logical_block_size", "/sys/block/*/queue/read_ahead_kb"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil {
				fmt.Fprintf(&all, "%s %s\n", file, bytes.TrimSpace(text))
			}
		}
	}
	if tables, err := exec.Command("dmsetup", "table").CombinedOutput(); err == nil {
		all.Write(tables)
	}
	for _, name := range b.pool.Names("volumes") {
		path := filepath.Join(b.pool.Path, "volumes", name)
		st, err := os.Stat(path)
		b.must(err)
		fmt.Fprintf(&all, "%s %d", name, st.Size())
		if path != except {
			sum, err := sumOfData(path)
			b.must(err)
			fmt.Fprintf(&all, " %s", sum)
		}
		all.WriteByte('\n')
	}
	return all.String()
}

func sameWorld(t *testing.T, before, after string) {
	t.Helper()
	if before == after {
		return
	}
	had := map[string]bool{}
	for line := range strings.Lines(before) {
		had[line] = true
	}
	for line := range strings.Lines(after) {
		if !had[line] {
			t.Errorf("the tenant changed: %s", line)
		}
		delete(had, line)
	}
	for line := range had {
		t.Errorf("it was: %s", line)
	}
}

// judge checks what the kernel told the tenant. loops: the answer to the loop driver's calls.
func judge(t *testing.T, r tenantReport, privileged bool) {
	t.Helper()
	if !privileged && (strings.Trim(r.Caps, "0") != "" || strings.Fields(r.UID)[1] != fmt.Sprint(nobody)) {
		t.Fatalf("the tenant has capabilities %s, users %s", r.Caps, r.UID)
	}
	for _, a := range loopAttacks {
		if r.Errno[a.name] != unix.ENOTTY {
			t.Errorf("%s: %v, want ENOTTY", a.name, r.Errno[a.name])
		}
	}
	if privileged {
		return
	}
	for _, a := range otherAttacks {
		if r.Errno[a.name] == 0 {
			t.Errorf("%s was taken", a.name)
		}
	}
	if len(r.Opened) > 0 {
		t.Errorf("the tenant opened %v", r.Opened)
	}
	for _, request := range r.Taken {
		if !slices.Contains(questions, request) {
			t.Errorf("the request %s was taken", request)
		}
	}
}

// attackVolume lets a tenant without capabilities, and then one with all, loose on a volume.
func attackVolume(t *testing.T, device string, readOnly bool) {
	b := open(t, "xfs", 2<<30)
	neighbour, v := b.volume("neighbour", "block"), b.volume("attacked", "block")
	for _, volume := range []*rig.Volume{neighbour, v} {
		volume.Params = map[string]string{"device": device}
		b.must(volume.Create())
		b.must(volume.Stage())
	}
	b.must(neighbour.Publish())
	_, err := rig.Fill(neighbour.Target, dataBytes, 5)
	b.must(err)
	b.must(v.Publish())
	sum, err := rig.Fill(v.Target, dataBytes, 6)
	b.must(err)
	if readOnly {
		b.must(v.Unpublish())
		b.must(v.PublishAt(v.Target, true))
	}
	unix.Sync()
	rdev := nodeNumber(t, v.Target)
	guard := strings.ReplaceAll(tagOf(v.ID), ":", "-")
	except := b.pool.Image(v.ID)
	if readOnly {
		except = ""
	}
	before := b.world(except)
	for _, mode := range []int{os.O_RDONLY, os.O_RDWR} {
		if readOnly && mode == os.O_RDWR {
			if file, err := os.OpenFile(v.Target, mode, 0); err != nil {
				continue // the kernel does not even open it
			} else {
				file.Close()
			}
		}
		r := b.runTenant(v.Target, mode, guard, false)
		judge(t, r, false)
		for _, name := range []string{"BLKDISCARD", "BLKZEROOUT", "write"} {
			if taken := r.Errno[name] == 0; taken == (readOnly || mode == os.O_RDONLY) {
				t.Errorf("%s: taken %v, read-only volume %v, mode %d", name, taken, readOnly, mode)
			}
		}
		sameWorld(t, before, b.world(except))
	}
	if device == "loop" {
		judge(t, b.runTenant(v.Target, os.O_RDONLY, guard, true), true)
	}
	if got := nodeNumber(t, v.Target); got != rdev {
		t.Errorf("the node is %x, was %x", got, rdev)
	}
	if readOnly {
		b.must(rig.Check(v.Target, dataBytes, sum))
	} else {
		_, err := rig.Fill(v.Target, dataBytes, 7) // it still is the tenant's
		b.must(err)
	}
	b.must(b.d.Kill()) // and nothing confuses the next driver
	b.start()
	b.must(v.Gone())
	b.must(neighbour.Gone())
}

func nodeNumber(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Rdev
}

// tagOf is the tag of a volume's device, from its id "<pool>.<key>.<random>".
func tagOf(id string) string {
	return "ringvol:" + id[:strings.Index(id, ".")] + ":" + id[strings.LastIndex(id, ".")+1:]
}

func TestGuardTenantAttack(t *testing.T) {
	needDeviceMapper(t)
	t.Run("writable", func(t *testing.T) { attackVolume(t, "loop", false) })
	t.Run("read-only", func(t *testing.T) { attackVolume(t, "loop", true) })
}

// ublk nodes have no such calls, and no guard.
func TestUblkTenantAttack(t *testing.T) {
	if _, err := os.Stat("/dev/ublk-control"); err != nil {
		t.Skip("this kernel has no ublk (/dev/ublk-control)")
	}
	t.Run("writable", func(t *testing.T) { attackVolume(t, "ublk", false) })
	t.Run("read-only", func(t *testing.T) { attackVolume(t, "ublk", true) })
}

func needDeviceMapper(t *testing.T) {
	t.Helper()
	if rig.Device() != "" {
		t.Skip("is about loop devices")
	}
	if !rig.HasDeviceMapper() {
		t.Skip("this kernel has no device mapper (modprobe dm_mod)")
	}
}
