// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// moverChunk is what Velero's block data mover reads, compares and stores at a time.
const moverChunk = 1 * mib

// backup is a volume in a repository: chunk by chunk, nil where it reads as zeros.
type backup struct {
	size   int64
	chunks map[int64][]byte
}

// directBuffer is aligned as direct I/O asks for.
func directBuffer(n int64) []byte {
	b := make([]byte, n+4096)
	skip := 4096 - int64(uintptr(unsafe.Pointer(&b[0]))%4096)
	return b[skip : skip+n]
}

// read takes in the chunks in which there are ranges, from a block device, with direct I/O.
func (k *backup) read(device string, blocks *rig.Blocks) (read int64, err error) {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("opening %s: %w", device, err)
	}
	file := os.NewFile(uintptr(fd), device)
	defer file.Close()
	wanted := map[int64]bool{}
	for _, r := range blocks.Ranges {
		for i := r.Start / moverChunk; i*moverChunk < r.End; i++ {
			wanted[i] = true
		}
	}
	for i := range wanted {
		chunk := directBuffer(min(moverChunk, k.size-i*moverChunk))
		if _, err := io.ReadFull(io.NewSectionReader(file, i*moverChunk, int64(len(chunk))), chunk); err != nil {
			return 0, err
		}
		k.chunks[i] = chunk
		read += int64(len(chunk))
	}
	return read, nil
}

// restore writes all of it to a block device.
func (k *backup) restore(device string) error {
	fd, err := unix.Open(device, unix.O_WRONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", device, err)
	}
	file := os.NewFile(uintptr(fd), device)
	defer file.Close()
	zeros := directBuffer(moverChunk)
	for i := int64(0); i*moverChunk < k.size; i++ {
		chunk := k.chunks[i]
		if chunk == nil {
			chunk = zeros[:min(moverChunk, k.size-i*moverChunk)]
		}
		if _, err := file.WriteAt(chunk, i*moverChunk); err != nil {
			return err
		}
	}
	return file.Sync()
}

// equals compares with what a device or image holds.
func (k *backup) equals(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	got, zeros := make([]byte, moverChunk), make([]byte, moverChunk)
	for i := int64(0); i*moverChunk < k.size; i++ {
		want := k.chunks[i]
		if want == nil {
			want = zeros[:min(moverChunk, k.size-i*moverChunk)]
		}
		if _, err := io.ReadFull(file, got[:len(want)]); err != nil {
			return err
		}
		if !bytes.Equal(got[:len(want)], want) {
			return fmt.Errorf("%s: MiB %d is another", path, i)
		}
	}
	return nil
}

// mover does what Velero's block data mover does: a snapshot becomes a block volume, and what the driver says has changed is
// read of it. base "": everything that is allocated.
type mover struct {
	t    *testing.T
	c    *rig.Client // of who tells
	make func(name string) *rig.Volume
	last string
}

func (m *mover) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *mover) backup(k *backup, source *rig.Volume, name string) (read int64) {
	m.t.Helper()
	s, err := source.Snapshot(name)
	m.must(err)
	id := s.GetSnapshotId()
	v := m.make("backup-" + name)
	v.Cap, v.Size, v.Source = rig.BlockCap(), 0, rig.FromSnapshot(id)
	m.must(v.Up())
	var blocks *rig.Blocks
	if m.last == "" {
		blocks, err = m.c.Allocated(short(m.t), id, 0, 0)
	} else {
		blocks, err = m.c.Delta(short(m.t), m.last, id, 0, 0)
	}
	m.must(err)
	if k.size = v.Got; blocks.Capacity != 0 && blocks.Capacity != v.Got {
		m.t.Errorf("the volume has %d bytes, its snapshot %d", v.Got, blocks.Capacity)
	}
	read, err = k.read(v.Target, blocks)
	m.must(err)
	m.must(k.equals(v.Target))
	m.must(v.Gone())
	m.last = id
	return read
}

// change writes, overwrites, cuts and removes files below a directory.
func change(dir string, round int) error {
	text := bytes.Repeat([]byte(fmt.Sprintf("round %d. ", round)), 3000)
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("new-%d", round)), text, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "kept"), text[:len(text)/(round+1)], 0o600); err != nil {
		return err
	}
	if round > 1 {
		return os.Remove(filepath.Join(dir, fmt.Sprintf("new-%d", round-2)))
	}
	return nil
}

// backsUp backs a volume up and changes it, again and again, restores the last backup elsewhere into a block volume, takes that
// over as a file system, and compares.
func backsUp(m *mover, source, restored *rig.Volume, kind string, deleteSnapshot func(string) error) {
	t := m.t
	m.must(source.Up())
	sum, err := rig.Fill(source.Target, dataBytes, 3)
	m.must(err)
	k := &backup{chunks: map[int64][]byte{}}
	full := m.backup(k, source, "full")
	for round := range 4 {
		m.must(change(source.Target, round))
		base := m.last
		read := m.backup(k, source, fmt.Sprintf("increment-%d", round))
		t.Logf("%s: increment %d read %d KiB, the full backup %d KiB, the volume has %d KiB", kind, round, read/kib, full/kib, k.size/kib)
		if read >= full {
			t.Errorf("an increment read %d bytes, the full backup %d", read, full)
		}
		m.must(deleteSnapshot(base))
	}
	files, err := os.ReadDir(source.Target)
	m.must(err)

	restored.Cap, restored.Size = rig.BlockCap(), k.size
	m.must(restored.Up())
	m.must(k.restore(restored.Target))
	m.must(k.equals(restored.Target))
	m.must(restored.Down())
	mounted := *restored
	mounted.Cap = rig.MountCap(kind)
	m.must(mounted.Paths())
	m.must(mounted.Up())
	m.must(rig.Check(mounted.Target, dataBytes, sum))
	for _, f := range files {
		if f.IsDir() {
			continue
		}
		want, err := os.ReadFile(filepath.Join(source.Target, f.Name()))
		m.must(err)
		got, err := os.ReadFile(filepath.Join(mounted.Target, f.Name()))
		m.must(err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is another", f.Name())
		}
	}
	m.must(mounted.Gone())
	m.must(source.Gone())
	m.must(deleteSnapshot(m.last))
}

func TestBackup(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		for _, fs := range []string{"xfs", "btrfs"} {
			t.Run(kind+" in a pool on "+fs, func(t *testing.T) {
				b := newBed(t, fs, 4<<30)
				elsewhere, err := b.NewPool("elsewhere", "ext4", 2<<30)
				b.must(err)
				b.d.Pools = append(b.d.Pools, elsewhere)
				b.start()
				m := &mover{t: t, c: b.c, make: func(name string) *rig.Volume { return b.d.Volume(name, nil, 0) }}
				restored := b.d.Volume("restored", nil, 0)
				restored.Params = map[string]string{"pool": "elsewhere", "allowVolumeModeChange": "true"}
				backsUp(m, b.volume("source", kind), restored, kind, b.d.DeleteSnapshot)
			})
		}
	}
}

// The same through a controller, and restored on another node.
func TestClusterBackup(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	na, nb := b.node("node-a"), b.node("node-b")
	m := &mover{t: t, c: b.c, make: func(name string) *rig.Volume { return b.ctl.Volume(na, name, nil, 0) }}
	restored := b.ctl.Volume(nb, "restored", nil, 0)
	restored.Params = changesMode
	backsUp(m, b.volume(na, "source"), restored, "ext4", b.ctl.DeleteSnapshot)
}
