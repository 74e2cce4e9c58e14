// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Disk is a disk for raw pools: a sparse file on a loop device.
type Disk struct {
	Path  string // the device's; "": it is not there
	image string
	flags []string
}

// NewDisk makes one; flags go to losetup.
func (r *Rig) NewDisk(name string, size int64, flags ...string) (*Disk, error) {
	d := &Disk{image: r.Path("disk-" + name + ".img"), flags: flags}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(d.image, size); err != nil {
		return nil, err
	}
	r.Defer(func() error {
		_ = d.Detach() // what is held goes with the sweep
		return nil
	})
	return d, d.Attach()
}

// Attach plugs the disk in, perhaps as another device than before.
func (d *Disk) Attach() (err error) {
	d.Path, err = Attach(d.image, d.flags...)
	return err
}

// Detach unplugs it; the kernel keeps it for who has it open.
func (d *Disk) Detach() error {
	if d.Path == "" {
		return nil
	}
	device := d.Path
	d.Path = ""
	return Detach(device)
}

// Image is the file that holds the disk's bytes.
func (d *Disk) Image() string { return d.image }

// Resize gives the disk another size, also in use.
func (d *Disk) Resize(size int64) error {
	if err := os.Truncate(d.image, size); err != nil || d.Path == "" {
		return err
	}
	_, err := Run("losetup", "--set-capacity", d.Path)
	return err
}

// RawPool makes a raw pool on these devices. Its directory is below the rig's.
func (r *Rig) RawPool(name string, devices ...string) (*Pool, error) {
	p := &Pool{Name: name, FS: "xfs", Path: r.Path("pool-" + name), Disks: devices}
	if _, err := Run(Binary(), "pool", "init", "--device", devices[0], p.Path); err != nil {
		return nil, err
	}
	for _, device := range devices[1:] {
		if _, err := Run(Binary(), "pool", "grow", "--device", device, p.Path); err != nil {
			return nil, err
		}
	}
	r.Defer(func() error {
		p.endLook()
		return p.RemoveDevices()
	})
	return p, nil
}

// IsRaw tells whether the pool lies on disks of its own.
func (p *Pool) IsRaw() bool { return len(p.Disks) > 0 }

// UUID8 is the first part of a raw pool's uuid, which its devices are named after.
func (p *Pool) UUID8() (string, error) {
	text, err := os.ReadFile(filepath.Join(p.Path, "ringvol.disk"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		for _, key := range []string{"pool=", "uuid="} {
			if value, found := strings.CutPrefix(strings.TrimSpace(line), key); found && len(value) >= 8 {
				return value[:8], nil
			}
		}
	}
	return "", fmt.Errorf("no uuid in %q", text)
}

// ---- device-mapper devices ----

// Mapped is a device-mapper device as sysfs has it.
type Mapped struct {
	Name, UUID, Node string // Node: /dev/dm-3
	Suspended        bool
}

// MappedDevices lists those whose names begin so.
func MappedDevices(prefix string) (found []Mapped) {
	names, _ := filepath.Glob("/sys/block/dm-*/dm/name")
	for _, name := range names {
		dir := filepath.Dir(name)
		read := func(file string) string {
			text, _ := os.ReadFile(filepath.Join(dir, file))
			return strings.TrimSpace(string(text))
		}
		if m := (Mapped{read("name"), read("uuid"), "/dev/" + filepath.Base(filepath.Dir(dir)),
			read("suspended") == "1"}); strings.HasPrefix(m.Name, prefix) && m.Name != "" {
			found = append(found, m)
		}
	}
	return found
}

// VolumeDevices lists the devices of a raw pool's volumes.
func (p *Pool) VolumeDevices() ([]Mapped, error) {
	uuid8, err := p.UUID8()
	if err != nil {
		return nil, err
	}
	return MappedDevices("ringvol-" + uuid8 + "-"), nil
}

// DeviceName is the name of a volume's device in a raw pool.
func DeviceName(id string) string {
	return "ringvol-" + id[:strings.Index(id, ".")] + "-" + id[strings.LastIndex(id, ".")+1:]
}

// RemoveDevices takes away all devices of a raw pool, as a reboot does. A device in use goes when it is let go.
func (p *Pool) RemoveDevices() error {
	uuid8, err := p.UUID8()
	if err != nil {
		return nil // there is no pool
	}
	return Eventually(20*time.Second, func() error {
		var errs []error
		for _, prefix := range []string{"ringvol-" + uuid8 + "-", "ringvol-thinfill-" + uuid8, "ringvol-thinpool-" + uuid8,
			"ringvol-thindata-" + uuid8, "ringvol-thinmeta-" + uuid8, "ringvol-records-" + uuid8} {
			for _, device := range MappedDevices(prefix) {
				_, _ = Run("dmsetup", "--noudevsync", "resume", device.Name)
				if _, err := Run("dmsetup", "--noudevsync", "remove", device.Name); err != nil {
					errs = append(errs, err)
				}
			}
		}
		return errors.Join(errs...)
	})
}

func (p *Pool) rawLeaks() error {
	devices, err := p.VolumeDevices()
	err = errors.Join(err, p.Look(func(string) error { return nil })) // else nothing would be found in it
	for _, device := range devices {
		err = errors.Join(err, fmt.Errorf("still there: %s (%s)", device.Name, device.Node))
	}
	return err
}

// ---- records ----

func (p *Pool) root() string {
	if p.IsRaw() {
		return p.records
	}
	return p.Path
}

// Look calls with the directory of the pool's records. Those of a raw pool are mounted for it, once more if a driver has them:
// it sees the same file system. Without a driver the device is made as a driver makes it.
func (p *Pool) Look(look func(root string) error) error {
	if p.IsRaw() && p.records == "" {
		if err := p.beginLook(); err != nil {
			return err
		}
		defer p.endLook()
	}
	return look(p.root())
}

func (p *Pool) beginLook() error {
	uuid8, err := p.UUID8()
	if err != nil {
		return err
	}
	name := "ringvol-records-" + uuid8
	if err := p.makeRecords(name); err != nil {
		return err
	}
	devices := MappedDevices(name)
	if len(devices) != 1 {
		return fmt.Errorf("pool %s has %d devices for its records", p.Name, len(devices))
	}
	defer func() { _, _ = Run("dmsetup", "--noudevsync", "remove", "--deferred", name) }()
	dir, err := os.MkdirTemp(filepath.Dir(p.Path), "records-")
	if err != nil {
		return err
	}
	if err := unix.Mount(devices[0].Node, dir, "xfs", 0, "nouuid"); err != nil {
		_ = os.Remove(dir)
		return fmt.Errorf("mounting %s: %w", devices[0].Node, err)
	}
	p.records = dir
	return nil
}

func (p *Pool) makeRecords(name string) error {
	if len(MappedDevices(name)) > 0 {
		return nil
	}
	header, err := HeaderOf(p.Disks[0], 0)
	if err != nil {
		return err
	}
	offset, err1 := strconv.ParseInt(header["records-offset"], 0, 64)
	bytes, err2 := strconv.ParseInt(header["records-bytes"], 0, 64)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("%s: %v: %w", p.Disks[0], header, err)
	}
	_, err = Run("dmsetup", "--noudevsync", "create", name, "--uuid", "RINGVOL-records-"+header["pool"],
		"--table", fmt.Sprintf("0 %d linear %s %d", bytes/512, p.Disks[0], offset/512))
	return err
}

func (p *Pool) endLook() {
	if p.records != "" {
		_ = unix.Unmount(p.records, unix.MNT_DETACH)
		_ = os.Remove(p.records)
		p.records = ""
	}
}

// Piece is a part of an image, where it is in the pool's area.
type Piece struct{ Address, Bytes int64 }

// ParseMap reads the text of a map.
func ParseMap(text string) (pieces []Piece, err error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 2 || fields[0] == "ringvol-map" {
			continue
		}
		address, err1 := strconv.ParseInt(fields[0], 16, 64)
		bytes, err2 := strconv.ParseInt(fields[1], 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("a map with the line %q: %w", lines.Text(), err)
		}
		pieces = append(pieces, Piece{address, bytes})
	}
	return pieces, nil
}

// MapOf reads an image's map; none where its bytes are in the file.
func MapOf(path string) ([]Piece, error) {
	text := make([]byte, 16<<10)
	n, err := unix.Lgetxattr(path, "trusted.ringvol.map", text)
	if errors.Is(err, unix.ENODATA) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the map of %s: %w", path, err)
	}
	return ParseMap(string(text[:n]))
}

// Maps reads the maps of everything in a raw pool, by directory and name. An error also says which overlap.
func (p *Pool) Maps() (map[string][]Piece, error) {
	maps := map[string][]Piece{}
	err := p.Look(func(root string) error {
		return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			pieces, err := MapOf(path)
			if errors.Is(err, unix.ENOENT) {
				return nil // it has just been deleted
			}
			if name, _ := filepath.Rel(root, path); len(pieces) > 0 {
				maps[name] = pieces
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return maps, overlaps(maps)
}

func overlaps(maps map[string][]Piece) error {
	type owned struct {
		Piece
		by string
	}
	var all []owned
	for name, pieces := range maps {
		for _, piece := range pieces {
			all = append(all, owned{piece, name})
		}
	}
	slices.SortFunc(all, func(a, b owned) int { return int((a.Address - b.Address) >> 20) })
	for i := 1; i < len(all); i++ {
		if all[i-1].Address+all[i-1].Bytes > all[i].Address {
			return fmt.Errorf("%s has %x+%x, and %s has %x+%x", all[i-1].by, all[i-1].Address, all[i-1].Bytes,
				all[i].by, all[i].Address, all[i].Bytes)
		}
	}
	return nil
}

// Mapped bytes of all these maps.
func MappedBytes(maps map[string][]Piece) (sum int64) {
	for _, pieces := range maps {
		for _, piece := range pieces {
			sum += piece.Bytes
		}
	}
	return sum
}

// ---- what a disk says of itself ----

// HeaderOf reads the header of a disk at an offset of the device.
func HeaderOf(device string, offset int64) (map[string]string, error) {
	file, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	block := make([]byte, 4096)
	if _, err := file.ReadAt(block, offset); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(string(block), "ringvol-disk ") {
		return nil, fmt.Errorf("%s has no header at %d: %.16q", device, offset, block)
	}
	fields := map[string]string{}
	for _, word := range strings.Fields(strings.TrimRight(string(block), "\x00")) {
		if key, value, found := strings.Cut(word, "="); found {
			fields[key] = value
		}
	}
	return fields, nil
}

// OwnedBy has a disk say that the pool is another machine's.
func OwnedBy(device, node, machine string) error {
	size, err := Space(device)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(device, os.O_RDWR|unix.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, at := range []int64{size - size%MiB - MiB, 0} {
		block := make([]byte, 4096)
		if _, err := file.ReadAt(block, at); err != nil {
			return err
		}
		text, _, found := strings.Cut(string(block), "sum=")
		if !found {
			return fmt.Errorf("%s has no header at %d", device, at)
		}
		var lines strings.Builder
		for line := range strings.Lines(text) {
			switch key, _, _ := strings.Cut(line, "="); key {
			case "owner":
				line = "owner=" + node + "\nowner-machine=" + machine + "\n"
			case "owner-machine": // what is empty has no line
				line = ""
			}
			lines.WriteString(line)
		}
		sum := sha256.Sum256([]byte(lines.String()))
		clear(block)
		copy(block, fmt.Sprintf("%ssum=%x\n", lines.String(), sum[:8]))
		if _, err := file.WriteAt(block, at); err != nil {
			return err
		}
	}
	return nil
}

// AreaBytes is how large the area of a raw pool's disks is, as their headers say.
func (p *Pool) AreaBytes() (sum int64, err error) {
	for _, device := range p.Disks {
		header, err := HeaderOf(device, 0)
		if err != nil {
			return 0, err
		}
		bytes, err := strconv.ParseInt(header["bytes"], 0, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: bytes=%q", device, header["bytes"])
		}
		sum += bytes
	}
	return sum, nil
}
