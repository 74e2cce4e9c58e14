// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

var devicePath = flag.String("device", "", "a disk that the raw groups may overwrite; they are skipped without")

// rawDevice is that disk, cut into partitions that only the kernel knows: nothing is written for them.
type rawDevice struct {
	bench *bench
	file  *os.File
	size  int64
	end   int64 // of the last partition
	parts int
}

// scratch opens the disk of -device, unless anything is on it or uses it; nil: there is none.
func (b *bench) scratch(least int64) (*rawDevice, error) {
	switch {
	case *devicePath == "":
		fmt.Fprintf(os.Stderr, "%s: skipped, it overwrites a disk: name one with -device\n", b.group)
		return nil, nil
	case !rig.HasDeviceMapper():
		fmt.Fprintf(os.Stderr, "%s: skipped, this kernel has no device mapper (scripts/vm/bench.sh raw has a guest with one)\n", b.group)
		return nil, nil
	}
	if found, err := exec.Command("blkid", "--probe", *devicePath).Output(); err == nil {
		return nil, fmt.Errorf("something is on %s: %s; wipefs -a it, if it may go", *devicePath, strings.TrimSpace(string(found)))
	}
	file, err := os.OpenFile(*devicePath, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return nil, fmt.Errorf("%s is in use: %w", *devicePath, err)
	}
	file.Close() // who has all of a disk for himself leaves nobody a partition
	if file, err = os.OpenFile(*devicePath, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	b.Defer(file.Close)
	size, err := rig.Space(*devicePath)
	if err == nil && size < least {
		err = fmt.Errorf("%s has %d MiB, and %d are needed", *devicePath, size/rig.MiB, least/rig.MiB)
	}
	return &rawDevice{bench: b, file: file, size: size, end: rig.MiB}, err
}

// blkpg is struct blkpg_ioctl_arg of linux/blkpg.h, partition what it points to.
type blkpg struct {
	op, flags, length int32
	data              unsafe.Pointer
}

type partition struct {
	start, length int64
	number        int32
	names         [128]byte
	_             int32
}

const (
	ioctlBLKPG   = 0x1269
	addPartition = 1
	delPartition = 2
)

func (r *rawDevice) partition(op int32, p *partition) error {
	arg := blkpg{op: op, length: int32(unsafe.Sizeof(*p)), data: unsafe.Pointer(p)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, r.file.Fd(), ioctlBLKPG, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return fmt.Errorf("partition %d of %s: %w", p.number, r.file.Name(), errno)
	}
	return nil
}

// cut makes the next so many bytes a partition and returns its node. It begins and ends with zeros.
func (r *rawDevice) cut(bytes int64) (string, error) {
	if bytes > r.size-r.end {
		return "", fmt.Errorf("%s is too small by %d MiB", r.file.Name(), (bytes-r.size+r.end)/rig.MiB)
	}
	zeros := make([]byte, rig.MiB)
	for _, at := range []int64{r.end, r.end + bytes - rig.MiB} {
		if _, err := r.file.WriteAt(zeros, at); err != nil {
			return "", err
		}
	}
	if err := r.file.Sync(); err != nil {
		return "", err
	}
	r.parts++
	p := &partition{start: r.end, length: bytes, number: int32(r.parts)}
	if err := r.partition(addPartition, p); err != nil {
		return "", err
	}
	r.bench.Defer(func() error {
		return rig.Eventually(10*time.Second, func() error { return r.partition(delPartition, p) })
	})
	r.end += bytes
	node := r.file.Name()
	if last := node[len(node)-1]; last >= '0' && last <= '9' {
		node += "p"
	}
	node += fmt.Sprint(r.parts)
	return node, rig.Eventually(10*time.Second, func() error { _, err := os.Stat(node); return err })
}

// rest makes all that is left one partition.
func (r *rawDevice) rest() (string, error) {
	return r.cut((r.size - r.end) / rig.MiB * rig.MiB)
}

// ---- the device mapper's bare calls ----

const dmHead = 312 // struct dm_ioctl

const (
	dmCreate  = 3
	dmRemove  = 4
	dmSuspend = 6 // without its flag: resume
	dmResume  = 6
	dmLoad    = 9
	dmMessage = 14

	dmSuspendFlag = 1 << 1
)

// mapper is the control node.
type mapper struct{ file *os.File }

func (b *bench) mapper() (*mapper, error) {
	file, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	b.Defer(file.Close)
	return &mapper{file}, nil
}

func (m *mapper) call(number uintptr, name string, targets []byte, count int) (dev uint64, err error) {
	return m.flagged(number, 0, name, targets, count)
}

func (m *mapper) flagged(number uintptr, flags uint32, name string, targets []byte, count int) (dev uint64, err error) {
	buffer := make([]byte, dmHead+len(targets), 4096)
	put := func(at int, value uint32) { binary.NativeEndian.PutUint32(buffer[at:], value) }
	put(0, 4)
	put(12, uint32(len(buffer)))
	put(16, dmHead)
	put(20, uint32(count))
	put(28, flags)
	copy(buffer[48:], name)
	copy(buffer[dmHead:], targets)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, m.file.Fd(), 3<<30|dmHead<<16|0xfd<<8|number, uintptr(unsafe.Pointer(&buffer[0])))
	if errno != 0 {
		return 0, fmt.Errorf("device mapper, call %d for %s: %w", number, name, errno)
	}
	return binary.NativeEndian.Uint64(buffer[40:]), nil
}

// linear makes a device over a part of another, of targets of these lengths, and returns its node.
func (m *mapper) linear(name, over string, start int64, lengths ...int64) (string, error) {
	number, err := deviceNumber(over)
	if err != nil {
		return "", err
	}
	var targets []dmTarget
	at := start
	for _, length := range lengths {
		targets = append(targets, dmTarget{length, "linear", fmt.Sprintf("%s %d", number, at/512)})
		at += length
	}
	return m.make(name, targets...)
}

// dmTarget is one line of a table: so many bytes, one after the other.
type dmTarget struct {
	length       int64
	kind, params string
}

// deviceNumber is "7:3".
func deviceNumber(node string) (string, error) {
	var st unix.Stat_t
	err := unix.Stat(node, &st)
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), err
}

// make makes a device of these targets and returns its node.
func (m *mapper) make(name string, targets ...dmTarget) (string, error) {
	var table []byte
	var at int64
	for _, t := range targets {
		entry := make([]byte, 40+(len(t.params)+8)/8*8)
		binary.NativeEndian.PutUint64(entry[0:], uint64(at/512))
		binary.NativeEndian.PutUint64(entry[8:], uint64(t.length/512))
		binary.NativeEndian.PutUint32(entry[20:], uint32(len(entry)))
		copy(entry[24:], t.kind)
		copy(entry[40:], t.params)
		table = append(table, entry...)
		at += t.length
	}
	dev, err := m.call(dmCreate, name, nil, 0)
	if err != nil {
		return "", err
	}
	if _, err = m.call(dmLoad, name, table, len(targets)); err == nil {
		_, err = m.call(dmResume, name, nil, 0)
	}
	if err != nil {
		_ = m.remove(name)
		return "", err
	}
	return fmt.Sprintf("/dev/dm-%d", unix.Minor(dev)), nil
}

// message says something to a device's target.
func (m *mapper) message(name, text string) error {
	_, err := m.call(dmMessage, name, append(make([]byte, 8), text+"\x00"...), 0)
	return err
}

// suspend freezes what is mounted, too; resume thaws it.
func (m *mapper) suspend(name string) error {
	_, err := m.flagged(dmSuspend, dmSuspendFlag, name, nil, 0)
	return err
}

func (m *mapper) resume(name string) error {
	_, err := m.call(dmResume, name, nil, 0)
	return err
}

func (m *mapper) remove(name string) error {
	_, err := m.call(dmRemove, name, nil, 0)
	return err
}

// ---- peers, by their tools ----

// lvm is a volume group on a device, without udev, daemons and files of the machine.
type lvm struct{ config, group string }

func (b *bench) lvm(device string) (*lvm, error) {
	if _, err := exec.LookPath("lvm"); err != nil {
		return nil, nil
	}
	l := &lvm{group: fmt.Sprintf("ringvolbench%d", os.Getpid())}
	l.config = fmt.Sprintf(`devices { use_devicesfile=0 global_filter=["a|^%s$|","r|.*|"] obtain_device_list_from_udev=0 `+
		`external_device_info_source="none" multipath_component_detection=0 md_component_detection=0 types=["nullb",16] } `+
		`activation { udev_sync=0 udev_rules=0 monitoring=0 } global { event_activation=0 use_lvmpolld=0 } backup { backup=0 archive=0 }`,
		device)
	if err := l.run("pvcreate", "-y", device); err != nil {
		return nil, err
	}
	b.Defer(func() error { return l.run("vgremove", "-y", "-f", l.group) })
	return l, l.run("vgcreate", l.group, device)
}

func (l *lvm) run(command string, args ...string) error {
	_, err := rig.Run("lvm", append([]string{command, "--config", l.config, "-qq"}, args...)...)
	return err
}

// create makes a thick volume and returns its node.
func (l *lvm) create(name string, bytes int64) (string, error) {
	err := l.run("lvcreate", "-y", "-W", "n", "-Z", "n", "-n", name, "-L", fmt.Sprintf("%db", bytes), l.group)
	return l.node(name), err
}

// thinPool makes a thin pool of blocks of that size; what is discarded goes no further, as in ours.
func (l *lvm) thinPool(bytes, block int64) error {
	return l.run("lvcreate", "-y", "--type", "thin-pool", "-n", "thinpool", "-L", fmt.Sprintf("%db", bytes), "-c", fmt.Sprintf("%db", block),
		"--poolmetadatasize", "16m", "--poolmetadataspare", "n", "-Z", "y", "--discards", "nopassdown", l.group)
}

// createThin makes a thin volume and returns its node.
func (l *lvm) createThin(name string, bytes int64) (string, error) {
	err := l.run("lvcreate", "-y", "-W", "n", "-n", name, "-V", fmt.Sprintf("%db", bytes), "--thinpool", l.group+"/thinpool")
	return l.node(name), err
}

func (l *lvm) node(name string) string { return "/dev/mapper/" + l.group + "-" + name }

func (l *lvm) remove(name string) error { return l.run("lvremove", "-y", "-f", l.group+"/"+name) }

const benchKey = "bm90IGEgc2VjcmV0LCBidXQgYSBrZXkgb2YgYSBiZW5jaA=="

// cryptByHand formats a device with cryptsetup as a volume of ours is, opens it with the same flags, and returns the node.
func (b *bench) cryptByHand(device, ourNode string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(ourNode, &st); err != nil {
		return "", err
	}
	table, err := rig.Run("dmsetup", "table", "-j", fmt.Sprint(unix.Major(st.Rdev)), "-m", fmt.Sprint(unix.Minor(st.Rdev)))
	if err != nil {
		return "", err
	}
	flags := []string{}
	sector := "512"
	for _, word := range strings.Fields(table) {
		switch {
		case word == "no_read_workqueue", word == "no_write_workqueue", word == "same_cpu_crypt", word == "submit_from_crypt_cpus":
			flags = append(flags, "--perf-"+word)
		case word == "allow_discards":
			flags = append(flags, "--allow-discards")
		case strings.HasPrefix(word, "sector_size:"):
			sector = strings.TrimPrefix(word, "sector_size:")
		}
	}
	key := b.Path("bench.key")
	if err := os.WriteFile(key, []byte(benchKey), 0o600); err != nil {
		return "", err
	}
	if _, err := rig.Run("cryptsetup", "luksFormat", "-q", "--type", "luks2", "--cipher", "aes-xts-plain64", "--key-size", "512",
		"--sector-size", sector, "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--key-file", key, device); err != nil {
		return "", err
	}
	name := fmt.Sprintf("bench-%d", os.Getpid())
	_, err = rig.Run("cryptsetup", append(flags, "open", "--type", "luks2", "--key-file", key, device, name)...)
	b.Defer(func() error { _, err := rig.Run("cryptsetup", "close", name); return err })
	return filepath.Join("/dev/mapper", name), err
}

// ---- drivers on such a disk ----

// openRaw starts a driver on a raw pool on that partition, all of which is zeroed.
func (b *bench) openRaw(device string, more ...*rig.Pool) (*rig.Driver, *rig.Pool, error) {
	p, err := b.RawPool("raw", device)
	if err != nil {
		return nil, nil, err
	}
	if err := os.Mkdir(b.Path("csi"), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, nil, err
	}
	d := b.NewDriver(append([]*rig.Pool{p}, more...)...)
	d.PoolOptions = ""
	d.Args = []string{"--log-level", "warn"}
	if err := d.ServeHTTP(); err != nil {
		return nil, nil, err
	}
	if err := startReady(d); err != nil {
		return nil, nil, err
	}
	return d, p, zeroed(d)
}

// zeroed waits until nothing of a raw pool has to be overwritten any more: who is measured next waits for nothing, and
// has the disk for himself.
func zeroed(d *rig.Driver) error {
	return rig.Eventually(30*time.Minute, func() error {
		m, err := d.Scrape()
		if err != nil {
			return err
		}
		if bytes := m.Value("ringvol_pool_zeroing_bytes", "pool", "raw"); bytes != 0 {
			return fmt.Errorf("%.0f MiB of the pool are still to be overwritten", bytes/float64(rig.MiB))
		}
		return nil
	})
}

func thick(v *rig.Volume) *rig.Volume {
	v.Params = map[string]string{"pool": "raw", "provisioning": "thick"}
	return v
}

func thin(v *rig.Volume) *rig.Volume {
	v.Params = map[string]string{"pool": "raw", "provisioning": "thin"}
	return v
}

func encrypted(v *rig.Volume) *rig.Volume {
	v.Params = map[string]string{"pool": "raw", "provisioning": "thick", "encryption": "luks2"}
	v.Secrets = map[string]string{"key": benchKey}
	return v
}
