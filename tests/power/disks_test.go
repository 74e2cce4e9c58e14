// SPDX-License-Identifier: Apache-2.0

package power

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// disks are the four of the guest: the one the pool is on while its writes are recorded, the one with
// the log, the one the log is replayed onto, and the one that takes what a look at a state changes.
type disks struct {
	pool, log, replay, scratch string
	sectors                    int64
	buffer                     []byte // aligned, for direct I/O
	entries                    []entry
	applied                    int // so many are on `replay`
}

const (
	logged = "ringvol-power-logged" // device mapper's names
	view   = "ringvol-power-view"
)

func mapped(name string) string {
	return "/dev/mapper/" + name
}

func newDisks(pool, log, replay, scratch string) (*disks, error) {
	d := &disks{pool: pool, log: log, replay: replay, scratch: scratch}
	size, err := rig.Space(pool)
	if err != nil {
		return nil, err
	}
	d.sectors = size / sector
	d.buffer, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	return d, err
}

func openDirect(path string, flags int) (*os.File, error) {
	return os.OpenFile(path, flags|unix.O_DIRECT, 0)
}

func (d *disks) zero(disk string) error {
	const zeroOut = 0x127f // BLKZEROOUT: start and length in bytes
	file, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	what := [2]uint64{0, uint64(d.sectors) * sector}
	return ioctl(file, zeroOut, unsafe.Pointer(&what))
}

func ioctl(file *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// format makes the file system and the same bytes on the replay disk.
func (d *disks) format(fs string) error {
	mkfs := map[string][]string{
		"xfs": {"mkfs.xfs", "-q", "-f", "-m", "reflink=1"},
		// No background initialization: its flushes would say nothing about us.
		"ext4":  {"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"},
		"btrfs": {"mkfs.btrfs", "-q", "-f"},
	}[fs]
	for _, disk := range []string{d.pool, d.replay} {
		if err := d.zero(disk); err != nil {
			return fmt.Errorf("zeroing %s: %w", disk, err)
		}
	}
	if _, err := rig.Run(mkfs[0], append(mkfs[1:], d.pool)...); err != nil {
		return err
	}
	from, err := openDirect(d.pool, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := openDirect(d.replay, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer to.Close()
	zeros := make([]byte, len(d.buffer))
	for at := int64(0); at < d.sectors*sector; at += int64(len(d.buffer)) {
		n, err := from.ReadAt(d.buffer, at)
		if err != nil && n == 0 {
			return err
		}
		if bytes.Equal(d.buffer[:n], zeros[:n]) {
			continue
		}
		if _, err := to.WriteAt(d.buffer[:n], at); err != nil {
			return err
		}
	}
	return nil
}

// keep reads what is on the pool's disk, chunk by chunk; restore writes it to the replay disk, and takes the header off the pool's:
// of two disks with one header neither would be served.
func (d *disks) keep() (map[int64][]byte, error) {
	from, err := openDirect(d.pool, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	kept, zeros := map[int64][]byte{}, make([]byte, len(d.buffer))
	for at := int64(0); at < d.sectors*sector; at += int64(len(d.buffer)) {
		n, err := from.ReadAt(d.buffer, at)
		if err != nil && n == 0 {
			return nil, err
		}
		if !bytes.Equal(d.buffer[:n], zeros[:n]) {
			kept[at] = bytes.Clone(d.buffer[:n])
		}
	}
	return kept, nil
}

func (d *disks) restore(kept map[int64][]byte) error {
	if err := d.zero(d.pool); err != nil {
		return err
	}
	to, err := openDirect(d.replay, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer to.Close()
	for at, chunk := range kept {
		n := copy(d.buffer, chunk)
		if _, err := to.WriteAt(d.buffer[:n], at); err != nil {
			return err
		}
	}
	return nil
}

func dmsetup(args ...string) error {
	_, err := rig.Run("dmsetup", args...)
	return err
}

func (d *disks) record() error {
	return dmsetup("create", logged, "--table",
		fmt.Sprintf("0 %d log-writes %s %s", d.sectors, d.pool, d.log))
}

func (d *disks) mark(number int) error {
	return dmsetup("message", logged, "0", "mark", fmt.Sprint(number))
}

// stop ends the recording and reads the log's entries, not their data.
func (d *disks) stop() error {
	if err := remove(logged); err != nil {
		return err
	}
	log, err := os.Open(d.log)
	if err != nil {
		return err
	}
	defer log.Close()
	d.entries, err = readLog(log)
	d.applied = 0
	return err
}

// remove takes a device away; somebody may hold it for a moment.
func remove(name string) error {
	if _, err := os.Lstat(mapped(name)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return rig.Eventually(10*time.Second, func() error { return dmsetup("remove", name) })
}

// write puts pieces of the log onto a device.
func (d *disks) write(device string, pieces []piece) error {
	log, err := os.Open(d.log)
	if err != nil {
		return err
	}
	defer log.Close()
	to, err := openDirect(device, os.O_WRONLY)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, p := range pieces {
		for done := int64(0); done < p.length; {
			n := min(p.length-done, int64(len(d.buffer)))
			if p.entry.flags&flagDiscard != 0 {
				clear(d.buffer[:n])
			} else if _, err := log.ReadAt(d.buffer[:n], p.entry.data+p.offset+done); err != nil {
				return err
			}
			if _, err := to.WriteAt(d.buffer[:n], p.entry.at*sector+p.offset+done); err != nil {
				return err
			}
			done += n
		}
	}
	return nil
}

// show makes the state of a point readable as the device `view`, which may be written.
func (d *disks) show(p point, random *rand.Rand) error {
	if p.upto < d.applied {
		return fmt.Errorf("%d entries are applied, %d are wanted", d.applied, p.upto)
	}
	var pieces []piece
	for ; d.applied < p.upto; d.applied++ {
		if e := &d.entries[d.applied]; e.writes() {
			pieces = append(pieces, piece{e, 0, e.sectors * sector})
		}
	}
	if err := d.write(d.replay, pieces); err != nil {
		return err
	}
	// N: what is written to the view need not outlive it. Chunks of 16 sectors.
	if err := dmsetup("create", view, "--table",
		fmt.Sprintf("0 %d snapshot %s %s N 16", d.sectors, d.replay, d.scratch)); err != nil {
		return err
	}
	if p.flush == 0 {
		return nil
	}
	return d.write(mapped(view), surviving(d.entries, p, random))
}

func (d *disks) hide() error {
	forgetBtrfs()
	return remove(view)
}

// forgetBtrfs: btrfs remembers devices by the file system they were last seen with, and takes an
// older state of the same for a mistake.
func forgetBtrfs() {
	const forget = 0x50009405 // BTRFS_IOC_FORGET_DEV
	control, err := os.OpenFile("/dev/btrfs-control", os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer control.Close()
	var all [4096]byte
	_ = ioctl(control, forget, unsafe.Pointer(&all))
}

func mount(device, path, fs string) error {
	if err := unix.Mount(device, path, fs, 0, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", filepath.Base(device), err)
	}
	return nil
}

// unmount: the driver that ended may hold the file system for a moment.
func unmount(path string) error {
	return rig.Eventually(10*time.Second, func() error { return unix.Unmount(path, 0) })
}
