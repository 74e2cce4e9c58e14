// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// node is this machine with the packages that a node may have unpacked over /usr, in a mount namespace of its
// own for each command: udev's rules run for one device, and nothing of them outlives the command.
type node struct {
	b    *bed
	root string // where the packages are unpacked; "": the machine's own
	etc  string // laid over /etc
}

// $1: packages, $2: over /etc, $3...: the command.
const nodeScript = `set -e
mount --make-rprivate /
[ -z "$1" ] || mount -t overlay overlay -o "lowerdir=$1/usr:/usr" /usr
mount -t tmpfs tmpfs /run
mkdir -p /run/udev/data /run/lock/lvm /run/lvm /run/mdadm /run/ringvol/ublkd
[ ! -d "$UBLKD_STATE" ] || mount --bind "$UBLKD_STATE" /run/ringvol/ublkd
lower=$2; [ -z "$1" ] || [ ! -d "$1/etc" ] || lower=$2:$1/etc
mount -t overlay overlay -o "lowerdir=$lower:/etc" /etc
mkdir /run/cache
for dir in archive backup cache devices; do [ ! -d /etc/lvm/$dir ] || mount --bind /run/cache /etc/lvm/$dir; done
shift 2
exec "$@"`

func newNode(b *bed) *node {
	root := os.Getenv("RINGVOL_NODE_PACKAGES")
	for _, program := range []string{"lvm", "mdadm", "udevadm", "make-bcache"} {
		if _, err := exec.LookPath(program); err != nil && root == "" {
			b.t.Skipf("%s is not installed, and RINGVOL_NODE_PACKAGES names no directory where it is unpacked", program)
		}
	}
	b.untidy = true // the devices are this test's own
	n := &node{b, root, b.Path("etc")}
	for _, dir := range []string{"udev/rules.d", "lvm/cache", "lvm/archive", "lvm/backup", "lvm/devices", "mdadm/mdadm.conf.d"} {
		b.must(os.MkdirAll(filepath.Join(n.etc, dir), 0o755))
	}
	return n
}

// run gives back all output; a command that fails says so there, too.
func (n *node) run(args ...string) string {
	n.b.t.Helper()
	args = append([]string{"--mount", "--propagation", "private", "bash", "-c", nodeScript, "bash", n.root, n.etc}, args...)
	cmd := exec.Command("unshare", args...)
	cmd.Env = append(os.Environ(), "UBLKD_STATE="+n.b.d.Ublkd.State)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v\n", out, err)
	}
	return string(out)
}

// udev runs the rules for the device and gives back what they did.
func (n *node) udev(device string) string {
	n.b.t.Helper()
	out := n.run("udevadm", "test", "--action=change", "/sys/class/block/"+filepath.Base(device))
	if !strings.Contains(out, "DEVNAME="+device) {
		n.b.t.Fatalf("udevadm test %s: %s", device, out)
	}
	var lines []string
	for _, line := range strings.Split(out, "\n") {
		if !strings.HasPrefix(line, "Reading rules file") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// install copies a file of deploy/host into the node's /etc.
func (n *node) install(from, to string) {
	n.b.t.Helper()
	data, err := os.ReadFile(filepath.Join("../../deploy/host", from))
	n.b.must(err)
	n.b.must(os.WriteFile(filepath.Join(n.etc, to), data, 0o644))
}

func (n *node) installRules() {
	n.install("udev/10-ringvol.rules", "udev/rules.d/10-ringvol.rules")
	n.install("udev/62-ringvol.rules", "udev/rules.d/62-ringvol.rules")
}

// attached is the volume's image as a device, as the driver would attach it.
func (n *node) attached(image string) string {
	n.b.t.Helper()
	out, err := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
	if err != nil {
		n.b.t.Fatalf("losetup: %s", out)
	}
	device := strings.TrimSpace(string(out))
	n.b.Defer(func() error {
		holders, _ := filepath.Glob("/sys/block/" + filepath.Base(device) + "/holders/*")
		for _, holder := range holders {
			n.run("mdadm", "--stop", "/dev/"+filepath.Base(holder))
		}
		_, _ = rig.Run("btrfs", "device", "scan", "--forget", device)
		_, err := rig.Run("losetup", "--detach", device)
		return err
	})
	return device
}

// image makes a volume and gives back its file in the pool.
func (b *bed) image(name string) string {
	b.t.Helper()
	b.must(b.d.Volume(name, rig.BlockCap(), 128*mib).Create())
	return filepath.Join(b.pool.Path, "volumes", name)
}

// mdMember writes one of two members of a RAID 1 (superblock 1.2, Documentation/admin-guide/md.rst), so that no
// kernel starts it.
func mdMember(path string) error {
	sb := make([]byte, 260)
	le := binary.LittleEndian
	le.PutUint32(sb[0:], 0xa92b4efc)
	le.PutUint32(sb[4:], 1)
	copy(sb[16:], "set of a tenant.")
	copy(sb[32:], "tenant:0")
	le.PutUint32(sb[72:], 1)    // level
	le.PutUint64(sb[80:], 2048) // sectors
	le.PutUint32(sb[92:], 2)    // disks
	le.PutUint64(sb[128:], 2048)
	le.PutUint64(sb[136:], 2048)
	le.PutUint64(sb[144:], 8) // where this is
	copy(sb[168:], "one of a tenant.")
	le.PutUint64(sb[200:], 1) // events
	le.PutUint32(sb[220:], 2) // roles: 0 and 1
	le.PutUint16(sb[258:], 1)
	var sum uint64
	for i := 0; i < len(sb); i += 4 {
		sum += uint64(le.Uint32(sb[i:]))
	}
	le.PutUint32(sb[216:], uint32(sum)+uint32(sum>>32))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteAt(sb, 4096)
	return err
}

// What a tenant may write, and what the node's own rules then do.
var tenantWrites = []struct {
	name  string
	write func(n *node, image string) error
	acts  string // in udev's output
}{
	{"lvm", func(n *node, image string) error {
		device := n.attached(image)
		out := n.run("lvm", "vgcreate", fmt.Sprintf("tenant%d", os.Getpid()), device)
		if !strings.Contains(out, "successfully created") {
			return fmt.Errorf("vgcreate: %s", out)
		}
		return nil
	}, "pvscan --cache"},
	{"md", func(_ *node, image string) error { return mdMember(image) }, "mdadm --incremental"},
	{"btrfs", func(_ *node, image string) error {
		_, err := rig.Run("mkfs.btrfs", "-q", "-f", image)
		return err
	}, "btrfs ready"},
	{"bcache", func(n *node, image string) error {
		if out := n.run("make-bcache", "-B", image); !strings.Contains(out, "Set UUID") {
			return fmt.Errorf("make-bcache: %s", out)
		}
		return nil
	}, "bcache-register"},
	{"label", func(_ *node, image string) error {
		_, err := rig.Run("mkfs.ext4", "-q", "-F", "-L", "rootfs", image)
		return err
	}, "disk/by-label/rootfs"},
}

var actsOnIt = regexp.MustCompile(`pvscan|vgchange|mdadm|btrfs|bcache|disk/by-|ID_FS_|blkid'`)

// Nothing on the node acts on what a tenant writes into a block volume, once the rules are installed; without them
// udev runs LVM, md, btrfs and bcache on it, and hands out its links.
func TestNodeLeavesVolumesAlone(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	n := newNode(b)
	images := map[string]string{}
	for i, w := range tenantWrites {
		images[w.name] = b.image(fmt.Sprintf("volume-%d", i)) // its name is in udev's output
		b.must(w.write(n, images[w.name]))
	}
	devices := map[string]string{}
	for _, w := range tenantWrites {
		devices[w.name] = n.attached(images[w.name])
		if out := n.udev(devices[w.name]); !strings.Contains(out, w.acts) {
			t.Errorf("%s without the rules: %s", w.name, out)
		}
	}
	n.installRules()
	for _, w := range tenantWrites {
		out := n.udev(devices[w.name])
		if acts := actsOnIt.FindString(out); acts != "" || !strings.Contains(out, "SYSTEMD_READY=0") {
			t.Errorf("%s with the rules: %q in %s", w.name, acts, out)
		}
	}
	// A device of somebody else's is as before, also in a directory of the same name.
	foreign := b.Path("volumes")
	b.must(os.MkdirAll(foreign, 0o755))
	image := filepath.Join(foreign, "disk")
	b.must(os.WriteFile(image, nil, 0o600))
	b.must(os.Truncate(image, 16<<20))
	_, err := rig.Run("mkfs.ext4", "-q", "-F", "-L", "foreign", image)
	b.must(err)
	if out := n.udev(n.attached(image)); !strings.Contains(out, "disk/by-label/foreign") {
		t.Errorf("a device that is not ours: %s", out)
	}
}

// The same of a volume that the driver has published, whatever device it has: the test runs with loop, device mapper
// and ublk.
func TestNodeLeavesPublishedVolumesAlone(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	n := newNode(b)
	v := b.d.Volume("published", rig.BlockCap(), 128*mib)
	b.must(v.Create())
	if err := v.Stage(); rig.Code(err) == codes.FailedPrecondition {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	b.must(v.Publish())
	t.Cleanup(func() { b.must(v.Down()) })
	var st unix.Stat_t
	b.must(unix.Stat(v.Target, &st))
	sys, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))))
	b.must(err)
	device := "/dev/" + filepath.Base(sys)
	// Of all that rules look for, this is what they look for on every device.
	if out := n.run("make-bcache", "-B", device); !strings.Contains(out, "Set UUID") {
		t.Fatalf("make-bcache: %s", out)
	}
	if out := n.udev(device); !strings.Contains(out, "bcache-register") {
		t.Errorf("%s without the rules: %s", device, out)
	}
	n.installRules()
	out := n.udev(device)
	if acts := actsOnIt.FindString(out); acts != "" || !strings.Contains(out, "SYSTEMD_READY=0") {
		t.Errorf("%s with the rules: %q in %s", device, acts, out)
	}
}

// The volume came to its device after the first file of rules had looked and before the probe: the second one
// takes back what the probe found.
func TestNodeRulesLookTwice(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	n := newNode(b)
	image := b.image("late")
	_, err := rig.Run("mkfs.btrfs", "-q", "-f", image)
	b.must(err)
	device := n.attached(image)
	n.install("udev/62-ringvol.rules", "udev/rules.d/62-ringvol.rules")
	out := n.udev(device)
	if !strings.Contains(out, "blkid") {
		t.Fatalf("it was not probed: %s", out)
	}
	for _, acts := range []string{"btrfs ready", "symlink '/dev/disk", "ID_FS_"} {
		if strings.Contains(out, acts) {
			t.Errorf("%q: %s", acts, out)
		}
	}
}

// LVM and mdadm when somebody calls them: they read every disk.
func TestNodeToolsLeaveVolumesAlone(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	n := newNode(b)
	b.must(tenantWrites[0].write(n, b.image("lvm")))
	md := b.image("md")
	b.must(mdMember(md))
	device := n.attached(md)
	group := fmt.Sprintf("tenant%d", os.Getpid())
	if out := n.run("lvm", "vgs"); !strings.Contains(out, group) {
		t.Errorf("vgs without the filter: %s", out)
	}
	n.install("lvm/lvmlocal.conf", "lvm/lvmlocal.conf")
	if out := n.run("lvm", "vgs"); strings.Contains(out, group) {
		t.Errorf("vgs with the filter: %s", out)
	}
	n.install("mdadm/ringvol.conf", "mdadm/mdadm.conf.d/ringvol.conf")
	if out := n.run("mdadm", "--incremental", "--verbose", device); !strings.Contains(out, "auto-assembly is disabled") {
		t.Errorf("mdadm --incremental with our file: %s", out)
	}
	b.must(os.Remove(filepath.Join(n.etc, "mdadm/mdadm.conf.d/ringvol.conf")))
	if out := n.run("mdadm", "--incremental", "--verbose", device); strings.Contains(out, "auto-assembly is disabled") {
		t.Errorf("mdadm --incremental without our file: %s", out)
	}
}
