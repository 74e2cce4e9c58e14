// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HasThinPools tells why there can be no thin volumes on raw disks here; nil: there can.
func HasThinPools() error {
	if !HasDeviceMapper() {
		return errors.New("this kernel has no device mapper (modprobe dm_mod)")
	}
	if _, err := Run("dmsetup", "target-version", "thin-pool"); err != nil {
		return errors.New("this kernel has no dm-thin (modprobe dm_thin_pool)")
	}
	return nil
}

// ThinDevice is the name of a device of a raw pool's thin pool: "pool", "meta" or "data".
func (p *Pool) ThinDevice(which string) string {
	uuid8, _ := p.UUID8()
	return "ringvol-thin" + which + "-" + uuid8
}

// thinNumber is the number of an image in the thin pool; 0: it has none.
func thinNumber(path string) (int, error) {
	text := make([]byte, 16<<10)
	n, err := unix.Lgetxattr(path, "trusted.ringvol.map", text)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text[:n])) {
		if id, is := strings.CutPrefix(strings.TrimSpace(line), "thin="); is {
			number, err := strconv.ParseInt(id, 16, 32)
			return int(number), err
		}
	}
	return 0, nil
}

// ThinFiles are the numbers that images have, by directory and name.
func (p *Pool) ThinFiles() (map[string]int, error) {
	found := map[string]int{}
	err := p.Look(func(root string) error {
		for _, dir := range []string{"volumes", "snapshots", "trash", "templates"} {
			entries, err := os.ReadDir(root + "/" + dir)
			if err != nil {
				return err
			}
			for _, entry := range entries {
				number, err := thinNumber(root + "/" + dir + "/" + entry.Name())
				if err == nil && number != 0 {
					found[dir+"/"+entry.Name()] = number
				}
			}
		}
		return nil
	})
	return found, err
}

var deviceOfDump = regexp.MustCompile(`<device dev_id="(\d+)"`)

// ThinIDs are the numbers that the kernel's thin pool knows, by its own tool; nothing but the pool's devices is asked. nil: it is
// not active.
func (p *Pool) ThinIDs() (map[int]bool, error) {
	if len(MappedDevices(p.ThinDevice("pool"))) == 0 {
		return nil, nil
	}
	if _, err := Run("dmsetup", "message", p.ThinDevice("pool"), "0", "reserve_metadata_snap"); err != nil {
		return nil, err
	}
	defer func() { _, _ = Run("dmsetup", "message", p.ThinDevice("pool"), "0", "release_metadata_snap") }()
	devices := MappedDevices(p.ThinDevice("meta"))
	if len(devices) != 1 {
		return nil, fmt.Errorf("the metadata's devices: %v", devices)
	}
	dump, err := Run("thin_dump", "-m", "--skip-mappings", devices[0].Node)
	if err != nil {
		return nil, err
	}
	known := map[int]bool{}
	for _, match := range deviceOfDump.FindAllStringSubmatch(dump, -1) {
		number, _ := strconv.Atoi(match[1])
		known[number] = true
	}
	return known, nil
}

// ThinAgrees: nothing waits in the trash, and the kernel's thin pool knows what images say, no more and no less.
func (p *Pool) ThinAgrees() error {
	files, err := p.ThinFiles()
	if err != nil {
		return err
	}
	known, err := p.ThinIDs()
	if err != nil || known == nil {
		return err
	}
	byNumber := map[int]string{}
	var errs []error
	for name, number := range files {
		if other, twice := byNumber[number]; twice {
			errs = append(errs, fmt.Errorf("%s and %s are both %d in the thin pool", name, other, number))
		}
		byNumber[number] = name
		if !known[number] {
			errs = append(errs, fmt.Errorf("%s is %d in the thin pool, which does not know it", name, number))
		}
	}
	for number := range known {
		if _, is := byNumber[number]; !is {
			errs = append(errs, fmt.Errorf("the thin pool knows %d, which no image is", number))
		}
	}
	return errors.Join(errs...)
}

// ThinMetadataAt is where the metadata of the thin pool begin on the first disk.
func (p *Pool) ThinMetadataAt() (int64, error) {
	header, err := HeaderOf(p.Disks[0], 0)
	if err != nil {
		return 0, err
	}
	offset, err := strconv.ParseInt(header["offset"], 0, 64)
	if err != nil {
		return 0, err
	}
	maps, err := p.Maps()
	if err != nil {
		return 0, err
	}
	pieces := maps["thin/metadata"]
	if len(pieces) == 0 {
		return 0, fmt.Errorf("there is no thin pool: %v", maps)
	}
	start, err := strconv.ParseInt(header["start"], 0, 64)
	if err != nil {
		start = 0 // not written where it is 0
	}
	return offset + pieces[0].Address - start, nil
}

// ThinSuper changes the first block of the metadata of a thin pool that is not active, and makes its checksum right unless the
// change is damage.
func (p *Pool) ThinSuper(change func(block []byte), damage bool) error {
	at, err := p.ThinMetadataAt()
	if err != nil {
		return err
	}
	disk, err := os.OpenFile(p.Disks[0], os.O_RDWR|unix.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer disk.Close()
	block := make([]byte, 4096)
	if _, err := disk.ReadAt(block, at); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(block[32:]) != 27022010 {
		return fmt.Errorf("%s has no metadata of dm-thin at %d: %q", p.Disks[0], at, block[:48])
	}
	change(block)
	if !damage {
		sum := ^crc32.Checksum(block[4:], crc32.MakeTable(crc32.Castagnoli)) ^ 160774
		binary.LittleEndian.PutUint32(block, sum)
	}
	_, err = disk.WriteAt(block, at)
	return err
}

const dmTargetMessage = 0xc138fd0e // DM_TARGET_MSG

// ThinMessage says a message to a thin pool's device. As `dmsetup message` does, without a process for each.
func ThinMessage(device, message string) error {
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	const head = 312 // struct dm_ioctl; a sector and the message follow
	request := make([]byte, head+8+len(message)+8)
	order := binary.NativeEndian
	order.PutUint32(request[0:], 4) // the version
	order.PutUint32(request[12:], uint32(len(request)))
	order.PutUint32(request[16:], head)
	copy(request[48:175], device)
	copy(request[head+8:], message)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), dmTargetMessage, uintptr(unsafe.Pointer(&request[0]))); errno != 0 {
		return fmt.Errorf("%s: %q: %w", device, message, errno)
	}
	return nil
}
