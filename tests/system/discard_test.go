// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

var tenantsSecret = bytes.Repeat([]byte("the tenant's own, "), 4096)[:64<<10]

// writeSecret fills the first bytes of a device or file with something that is found again.
func (b *bed) writeSecret(path string, size int64) {
	b.t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	b.must(err)
	defer file.Close()
	for at := int64(0); at < size; at += int64(len(tenantsSecret)) {
		_, err := file.WriteAt(tenantsSecret, at)
		b.must(err)
	}
	b.must(file.Sync())
}

// secrets counts the blocks of a file that begin with what a tenant wrote.
func (b *bed) secrets(path string) (count int) {
	b.t.Helper()
	file, err := os.Open(path)
	b.must(err)
	defer file.Close()
	block := make([]byte, 4096)
	for at := int64(0); ; {
		data, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return count
		}
		b.must(err)
		for at = data / 4096 * 4096; ; at += 4096 {
			n, err := file.ReadAt(block, at)
			if n == 0 && errors.Is(err, io.EOF) {
				return count
			}
			if bytes.Contains(block[:n], tenantsSecret[:18]) {
				count++
			} else if bytes.Equal(block[:n], make([]byte, n)) {
				break
			}
		}
		at += 4096
	}
}

func (b *bed) noTrash() {
	b.t.Helper()
	b.eventually(func() error {
		if names := b.pool.Names("trash"); len(names) > 0 {
			return fmt.Errorf("in the trash: %v", names)
		}
		return nil
	})
}

const secretBytes = 16 * int(mib)

// What a deleted volume held is not on the disk any more: the disk below the pool was told to discard it.
func TestDiscardOnDelete(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t, fs, 1<<30)
			v := b.d.Volume("secret", rig.BlockCap(), 64*mib)
			v.Params = map[string]string{"eraseOnDelete": "discard"}
			b.must(v.Up())
			b.writeSecret(v.Target, int64(secretBytes))
			copied := b.d.Volume("copied", rig.BlockCap(), 0) // shares nothing with what is erased
			b.must(v.Down())
			copied.Source = rig.FromVolume(v.ID)
			b.must(copied.Create())
			unix.Sync()
			if n := b.secrets(b.pool.Disk()); n < 2*secretBytes/4096 {
				t.Fatalf("%d blocks of the disk hold what was written, that is too few to tell", n)
			}
			before, err := rig.Allocated(b.pool.Disk())
			b.must(err)
			b.must(v.Delete())
			b.noTrash()
			if n := b.secrets(b.pool.Disk()); n != secretBytes/4096 {
				t.Errorf("%d blocks of the disk hold what was written, the copy has %d", n, secretBytes/4096)
			}
			after, err := rig.Allocated(b.pool.Disk())
			b.must(err)
			if after > before-int64(secretBytes)*3/4 {
				t.Errorf("the disk has %d bytes, had %d, and %d were deleted", after, before, secretBytes)
			}
			b.must(copied.Delete())
		})
	}
}

// A driver that was killed between giving blocks back and discarding them does not know where they were.
func TestDiscardAfterAKill(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.d.Volume("secret", rig.BlockCap(), 64*mib)
	v.Params = map[string]string{"eraseOnDelete": "discard"}
	b.must(v.Up())
	b.writeSecret(v.Target, int64(secretBytes))
	b.must(v.Down())
	b.must(b.d.Term())
	trash := filepath.Join(b.pool.Path, "trash", "0123456789abcdef")
	b.must(os.Rename(b.pool.Image(v.ID), trash))
	b.must(unix.Setxattr(trash, "trusted.ringvol.punched", nil, 0))
	file, err := os.OpenFile(trash, os.O_WRONLY, 0)
	b.must(err)
	b.must(unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 64*mib))
	b.must(file.Sync())
	b.must(file.Close())
	if n := b.secrets(b.pool.Disk()); n != secretBytes/4096 {
		t.Fatalf("%d blocks of the disk hold what was written, that is too few to tell", n)
	}
	b.start()
	b.noTrash()
	if n := b.secrets(b.pool.Disk()); n != 0 {
		t.Errorf("%d blocks of the disk still hold what was written", n)
	}
}

// A promise that a disk cannot keep is not made.
func TestDiscardRefused(t *testing.T) {
	b := newBed(t, "xfs", 1<<30)
	queue := filepath.Join("/sys/block", filepath.Base(b.pool.Device()), "queue")
	b.must(os.WriteFile(filepath.Join(queue, "discard_max_bytes"), []byte("0"), 0))
	// The number of a loop device keeps it, whoever has it next.
	b.Defer(func() error {
		_ = b.pool.Unmount()
		return rig.Eventually(30*time.Second, func() error { return rig.Remove(b.pool.Device()) })
	})
	b.start()
	v := b.d.Volume("secret", rig.BlockCap(), 64*mib)
	v.Params = map[string]string{"eraseOnDelete": "discard"}
	err := v.Create()
	b.refused("a volume to discard on a disk that takes none", err, codes.FailedPrecondition)
	b.says("it", err, "takes no discards", "use zero")
	doctor := tool(t, nil, "doctor", "--pool", b.poolArg())
	if !strings.Contains(doctor.out, "takes no discards") {
		t.Errorf("doctor does not say it:\n%s", doctor.out)
	}
	v.Params = map[string]string{"eraseOnDelete": "zero"}
	b.must(v.Create())
	b.must(v.Delete())
}
