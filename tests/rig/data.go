// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Fill writes size bytes that follow from seed into the volume at path (a file "data" of a mounted
// volume, the first bytes of a block device), makes them durable and returns their checksum.
func Fill(path string, size int64, seed uint64) (string, error) {
	name, flags := path, os.O_WRONLY
	if info, err := os.Stat(path); err != nil {
		return "", err
	} else if info.IsDir() {
		name, flags = filepath.Join(path, "data"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC
	}
	file, err := os.OpenFile(name, flags, 0o644)
	if err != nil {
		return "", err
	}
	defer file.Close()
	var key [32]byte
	key[0], key[1], key[2] = byte(seed), byte(seed>>8), byte(seed>>16)
	random := rand.NewChaCha8(key)
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(file, sum), random, size); err != nil {
		return "", err
	}
	if err := file.Sync(); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Check reads size bytes back, past the page cache where it can be dropped, and compares.
func Check(path string, size int64, want string) error {
	name := path
	if info, err := os.Stat(path); err != nil {
		return err
	} else if info.IsDir() {
		name = filepath.Join(path, "data")
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	sum := sha256.New()
	if _, err := io.CopyN(sum, file, size); err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("%s: checksum %.12s, was %.12s", name, got, want)
	}
	return nil
}

// Space is the size of what is at path: a file system's total bytes or a device's size.
func Space(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if info.IsDir() {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil {
			return 0, err
		}
		return int64(st.Blocks) * st.Frsize, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return file.Seek(0, io.SeekEnd)
}

// IsMount tells whether path is the root of a mount.
func IsMount(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// Leaks looks for what is left of volumes that are gone: loop devices bound to images of the pools,
// mounts below the kubelet root, trash that is not reclaimed, images, snapshots. It waits a while,
// as trash is reclaimed in the background.
func (d *Driver) Leaks() error {
	return Eventually(20e9, func() error {
		var errs []error
		for _, mount := range MountsBelow(d.Kubelet) {
			errs = append(errs, fmt.Errorf("still mounted: %s", mount))
		}
		for _, name := range d.Ublkd.Devices() {
			errs = append(errs, fmt.Errorf("still a ublk device: %s", name))
		}
		for _, p := range d.Pools {
			for _, loop := range LoopsBelow(p.Path) {
				errs = append(errs, fmt.Errorf("still bound: %s", loop))
			}
			if p.IsRaw() {
				errs = append(errs, p.rawLeaks())
			}
			for _, dir := range []string{"trash", "volumes", "snapshots", "groups"} {
				if names := p.Names(dir); len(names) > 0 {
					errs = append(errs, fmt.Errorf("left in %s/%s: %v", p.Name, dir, names))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// FioVerifies writes to a block device of 32 MiB or more with four jobs of fio, each in a part of its own,
// and reads all of it back, again and again with other data until done is closed: then what the last run
// wrote has been verified, too.
func FioVerifies(node string, done <-chan struct{}) error {
	for seed := 1; ; seed++ {
		fio := exec.Command("fio", "--name=verify", "--filename="+node, "--direct=1",
			"--ioengine=libaio", "--rw=randwrite", "--bs=4k", "--iodepth=16", "--numjobs=4",
			"--size=4m", "--offset_increment=8m", "--verify=crc32c", "--verify_fatal=1",
			"--do_verify=1", fmt.Sprintf("--randseed=%d", seed), "--fsync=64", "--thread")
		if out, err := fio.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		select {
		case <-done:
			return nil
		default:
		}
	}
}
