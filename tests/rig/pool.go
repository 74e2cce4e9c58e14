// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Pool is a directory for the driver on a file system of its own: a loop-mounted sparse image.
type Pool struct {
	Name   string
	FS     string // "xfs" and "btrfs" can share extents, "ext4" cannot
	Path   string
	image  string
	device string
	// AttachFlags go to losetup with the next Mount, such as --direct-io=on.
	AttachFlags []string

	Disks   []string // of a raw pool (raw.go), devices
	records string   // where a raw pool's records are mounted; "": nowhere
}

// Reflink tells whether the pool's file system shares extents.
func (p *Pool) Reflink() bool {
	return p.FS != "ext4" && !p.IsRaw()
}

// NewPool makes the image and mounts it. The driver is asked to init it.
func (r *Rig) NewPool(name, fs string, size int64) (*Pool, error) {
	p := &Pool{Name: name, FS: fs, Path: r.Path("pool-" + name), image: r.Path("pool-" + name + ".img")}
	if err := os.Mkdir(p.Path, 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(p.image)
	if err != nil {
		return nil, err
	}
	err = file.Truncate(size)
	file.Close()
	if err != nil {
		return nil, err
	}
	mkfs := map[string][]string{
		"xfs":   {"mkfs.xfs", "-q", "-m", "reflink=1", p.image},
		"ext4":  {"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,nodiscard", p.image},
		"btrfs": {"mkfs.btrfs", "-q", p.image},
	}[fs]
	if mkfs == nil {
		return nil, fmt.Errorf("no pool on %q", fs)
	}
	if _, err := Run(mkfs[0], mkfs[1:]...); err != nil {
		return nil, err
	}
	if err := p.Mount(); err != nil {
		return nil, err
	}
	r.Defer(func() error {
		_ = p.Unmount()
		return nil // what stays is found by the sweep
	})
	return p, nil
}

// PoolOn makes one of XFS on a device, and everything on that is lost.
func (r *Rig) PoolOn(name, device string) (*Pool, error) {
	p := &Pool{Name: name, FS: "xfs", Path: r.Path("pool-" + name), device: device}
	if err := os.Mkdir(p.Path, 0o755); err != nil {
		return nil, err
	}
	if _, err := Run("mkfs.xfs", "-q", "-f", "-m", "reflink=1", device); err != nil {
		return nil, err
	}
	if err := unix.Mount(device, p.Path, p.FS, 0, ""); err != nil {
		return nil, fmt.Errorf("mounting %s: %w", device, err)
	}
	r.Defer(p.Unmount)
	return p, nil
}

// Mount attaches and mounts the pool's image.
func (p *Pool) Mount() error {
	device, err := Attach(p.image, p.AttachFlags...)
	if err != nil {
		return err
	}
	if err := unix.Mount(device, p.Path, p.FS, 0, ""); err != nil {
		_ = Detach(device)
		return fmt.Errorf("mounting %s: %w", device, err)
	}
	p.device = device
	// The kernel lets go of the device with the last mount.
	return Detach(device)
}

// Disk is the file that stands for the pool's disk, Device the device it is attached as.
func (p *Pool) Disk() string   { return p.image }
func (p *Pool) Device() string { return p.device }

// Unmount takes the pool away; EBUSY when something below is in use.
func (p *Pool) Unmount() error {
	if err := unix.Unmount(p.Path, 0); err != nil {
		return fmt.Errorf("unmounting %s: %w", p.Path, err)
	}
	return nil
}

// Remount makes the pool's file system read-only, or writable again.
func (p *Pool) Remount(readOnly bool) error {
	flags := uintptr(unix.MS_REMOUNT)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount("", p.Path, "", flags, "")
}

// Names lists what lies in one of the pool's directories.
func (p *Pool) Names(dir string) []string {
	var names []string
	_ = p.Look(func(root string) error {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return err
	})
	return names
}

// Image is the file behind a volume's id ("<pool>.<key>.<random>"). Of a raw pool: while its records are looked at.
func (p *Pool) Image(id string) string {
	return p.object("volumes", id)
}

// RecordOf is the text of an image's record.
func RecordOf(image string) (string, error) {
	text := make([]byte, 4096)
	n, err := unix.Lgetxattr(image, "trusted.ringvol", text)
	if err != nil {
		return "", fmt.Errorf("the record of %s: %w", image, err)
	}
	return string(text[:n]), nil
}

// IDs are those of the pool's volumes, as their records have them: one that has moved here keeps the pool it was born in.
func (p *Pool) IDs() []string {
	var ids []string
	_ = p.Look(func(root string) error {
		mark, err := os.ReadFile(filepath.Join(root, "ringvol.pool"))
		if err != nil {
			return err
		}
		own := keyIn(string(mark), "uuid")
		for _, name := range p.Names("volumes") {
			record, err := RecordOf(filepath.Join(root, "volumes", name))
			if err != nil {
				continue
			}
			born := keyIn(record, "born")
			if born == "" {
				born = own[:min(8, len(own))]
			}
			ids = append(ids, born+"."+name+"."+keyIn(record, "random"))
		}
		return nil
	})
	return ids
}

// keyIn is the value of a line "key=value".
func keyIn(text, key string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return value
		}
	}
	return ""
}

// SnapshotImage is the file behind a snapshot's id.
func (p *Pool) SnapshotImage(id string) string {
	return p.object("snapshots", id)
}

func (p *Pool) object(dir, id string) string {
	first, last := strings.Index(id, "."), strings.LastIndex(id, ".")
	if first < 0 || last <= first {
		return filepath.Join(p.root(), dir, "no-such-id")
	}
	return filepath.Join(p.root(), dir, id[first+1:last])
}

// Allocated is the number of bytes a file really has.
func Allocated(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, err
	}
	return st.Blocks * 512, nil
}
