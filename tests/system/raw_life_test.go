// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// gpt writes an empty partition table, with its copy at the end left out.
func gpt(path string) error {
	size, err := deviceSize(path)
	if err != nil {
		return err
	}
	sectors := uint64(size / 512)
	head := make([]byte, 34*512)
	copy(head[446:], []byte{0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	head[510], head[511] = 0x55, 0xaa
	h := head[512:1024]
	copy(h, "EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")
	binary.LittleEndian.PutUint64(h[24:], 1)
	binary.LittleEndian.PutUint64(h[32:], sectors-1)
	binary.LittleEndian.PutUint64(h[40:], 34)
	binary.LittleEndian.PutUint64(h[48:], sectors-34)
	copy(h[56:], "sixteen bytes id")
	binary.LittleEndian.PutUint64(h[72:], 2)
	binary.LittleEndian.PutUint32(h[80:], 128)
	binary.LittleEndian.PutUint32(h[84:], 128)
	binary.LittleEndian.PutUint32(h[88:], crc32.ChecksumIEEE(head[1024:]))
	binary.LittleEndian.PutUint32(h[16:], crc32.ChecksumIEEE(h[:92]))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(head, 0)
	return errors.Join(err, file.Sync(), file.Close())
}

// What has anything on it, or is in anybody's use, is refused by name, and stays as it is.
func TestRawPoolInitRefuses(t *testing.T) {
	b := bareBed(t)
	const size = 1200 * mib
	mkfs := func(name string, args ...string) func(d *rig.Disk) {
		return func(d *rig.Disk) {
			_, err := rig.Run(name, append(args, d.Path)...)
			b.must(err)
		}
	}
	for _, c := range []struct {
		name  string
		size  int64
		make  func(d *rig.Disk)
		words []string
	}{
		{"ext4", size, mkfs("mkfs.ext4", "-q"), []string{"ext4", "wipefs"}},
		{"btrfs", size, mkfs("mkfs.btrfs", "-q"), []string{"btrfs"}},
		{"gpt", size, func(d *rig.Disk) { b.must(gpt(d.Path)) }, []string{"gpt"}},
		{"dos", size, func(d *rig.Disk) {
			b.must(overwrite(d.Path, func(head []byte) {
				copy(head[446:], []byte{0, 0, 2, 0, 0x83, 0xff, 0xff, 0xff, 0, 8, 0, 0, 0, 16, 0, 0})
				head[510], head[511] = 0x55, 0xaa
			}))
		}, []string{"dos"}},
		{"mounted", size, func(d *rig.Disk) {
			mkfs("mkfs.ext4", "-q")(d)
			dir := b.makeDir(b.Path("mounted"))
			b.must(unix.Mount(d.Path, dir, "ext4", 0, ""))
		}, nil},
		{"held", size, func(d *rig.Disk) {
			name := fmt.Sprintf("holder-%d", os.Getpid())
			_, err := rig.Run("dmsetup", "create", "--noudevsync", name, "--table", "0 2048 linear "+d.Path+" 0")
			b.must(err)
			b.Defer(func() error { _, err := rig.Run("dmsetup", "remove", "--noudevsync", name); return err })
		}, nil},
		{"small", 512 * mib, func(*rig.Disk) {}, []string{"512"}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			d := b.newDisk(strings.ReplaceAll(c.name, " ", "-"), c.size)
			c.make(d)
			_, err := rig.Run("sync")
			b.must(err)
			before := ends(t, d.Image())
			path := b.Path("refused")
			r := b.ringvol(1, "pool", "init", "--device", d.Path, path)
			for _, word := range append(c.words, d.Path) {
				if !strings.Contains(strings.ToLower(r.err), strings.ToLower(word)) {
					t.Errorf("%q does not say %q", r.err, word)
				}
			}
			if ends(t, d.Image()) != before {
				t.Error("the disk was written to")
			}
			if names, err := os.ReadDir(path); err == nil && len(names) > 0 {
				t.Errorf("left in %s: %v", path, names)
			}
		})
	}
	// The disks of two pools, the wrong way round. With a directory that is no pool's place it has moved.
	one, two := b.newDisk("one", size), b.newDisk("two", size)
	b.ringvol(0, "pool", "init", "--device", one.Path, b.Path("place-one"))
	b.ringvol(0, "pool", "init", "--device", two.Path, b.Path("place-two"))
	if r := b.ringvol(1, "pool", "init", "--device", two.Path, b.Path("place-one")); !strings.Contains(r.err, b.Path("place-one")) ||
		!strings.Contains(r.err, two.Path) {
		t.Errorf("%q does not say which", r.err)
	}
	fresh := b.newDisk("fresh", size)
	b.ringvol(1, "pool", "init", "--device", b.Path("nothing"), b.Path("refused"))
	b.ringvol(1, "pool", "init", "--device", b.makeFile(b.Path("file"), "no device"), b.Path("refused"))
	full := b.makeDir(b.Path("full"))
	b.makeFile(filepath.Join(full, "file"), "mine")
	r := b.ringvol(1, "pool", "init", "--device", fresh.Path, full)
	if !strings.Contains(r.err, full) {
		t.Errorf("%q does not say %q", r.err, full)
	}
	pool, err := b.NewPool("directory", "xfs", 512*mib)
	b.must(err)
	b.ringvol(0, "pool", "init", pool.Path)
	r = b.ringvol(1, "pool", "init", "--device", fresh.Path, pool.Path)
	if !strings.Contains(r.err, pool.Path) {
		t.Errorf("%q does not say %q", r.err, pool.Path)
	}
	if !strings.Contains(ends(t, fresh.Image())[:4096], "\x00\x00\x00\x00") || strings.Trim(ends(t, fresh.Image()), "\x00") != "" {
		t.Error("the disk was written to")
	}
}

// What is done is not done again; what was cut short is.
func TestRawPoolInitAgain(t *testing.T) {
	b := newRawBed(t, 1200*mib)
	before, err := rig.HeaderOf(b.disk.Path, 0)
	b.must(err)
	size, err := deviceSize(b.disk.Path)
	b.must(err)
	if copied, err := rig.HeaderOf(b.disk.Path, size-size%mib-mib); err != nil || copied["disk"] != before["disk"] {
		t.Errorf("the copy: %v %v", copied, err)
	}
	b.ringvol(0, "pool", "init", "--device", b.disk.Path, b.pool.Path)
	after, err := rig.HeaderOf(b.disk.Path, 0)
	b.must(err)
	if after["pool"] != before["pool"] || after["disk"] != before["disk"] || after["generation"] != before["generation"] {
		t.Errorf("was %v, is %v", before, after)
	}
	other := b.newDisk("other", 1200*mib)
	r := b.ringvol(1, "pool", "init", "--device", other.Path, b.pool.Path)
	if !strings.Contains(r.err, b.pool.Path) {
		t.Errorf("%q does not say %q", r.err, b.pool.Path)
	}
	_, err = b.RawPool("another", other.Path)
	b.must(err)
	r = b.ringvol(1, "pool", "init", "--device", other.Path, b.pool.Path)
	if !strings.Contains(r.err, "is a disk of the raw pool") {
		t.Errorf("%q does not say that it is another pool's", r.err)
	}
	b.start()
	v := b.volume("made", "block")
	b.must(v.Up())
	b.must(v.Gone())
	b.accounts()
}

func TestRawPoolInitKilled(t *testing.T) {
	b := bareBed(t)
	b.disk = b.newDisk("first", 1200*mib)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	path := b.Path("pool-default")
	killed := 0
	for round := range 12 {
		cmd := toolCommand(short(t), nil, "pool", "init", "--device", b.disk.Path, path)
		b.must(cmd.Start())
		time.Sleep(time.Duration(random.IntN(20*(round+1))) * time.Millisecond)
		_ = cmd.Process.Kill()
		if cmd.Wait() != nil {
			killed++
		}
	}
	t.Logf("%d of 12 killed", killed)
	b.eventually(func() error { // a mkfs of the last one may still be at work
		r := tool(t, nil, "pool", "init", "--device", b.disk.Path, path)
		if r.code != 0 {
			return errors.New(r.err)
		}
		return nil
	})
	b.on(b.disk.Path)
	b.start()
	v := b.volume("made", "ext4")
	b.must(v.Up())
	b.must(v.Gone())
	b.accounts()
	b.check(0)
}

func TestRawPoolLife(t *testing.T) {
	b := openRaw(t, 4<<30)
	b.accounts()
	for _, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
		t.Run(kind, func(t *testing.T) {
			outer := b.bed.t
			b.bed.t = t
			defer func() { b.bed.t = outer }()
			b.life(kind)
		})
	}
	b.accounts()
}

func (b *rawBed) life(kind string) {
	b.t.Helper()
	room := b.capacity(nil)
	v := b.volume("life-"+kind, kind)
	b.twice(v.Create)
	if left := b.capacity(nil); left > room-v.Got || left < room-v.Got-mib {
		b.t.Errorf("%d MiB of room, were %d before a volume of %d", left/mib, room/mib, v.Got/mib)
	}
	b.twice(v.Stage)
	b.twice(v.Publish)
	node := b.mapped(v)
	if size, err := deviceSize(node); err != nil || size != v.Got {
		b.t.Errorf("%s has %d bytes of %d (%v)", node, size, v.Got, err)
	}
	if nodes := b.published(v.ID); !slices.Equal(nodes, []string{b.d.Node}) {
		b.t.Errorf("published on %v", nodes)
	}
	if l := b.ls().volume(v.Name); l.Provisioning != "thick" || l.Device == nil || l.Device.Type != "disk" || l.Device.Path != node ||
		l.Allocated < v.Got {
		b.t.Errorf("ls: %+v %+v", l, l.Device)
	}
	b.refused("DeleteVolume in use", v.Delete(), codes.FailedPrecondition)
	sum, err := rig.Fill(v.Target, dataBytes, 1)
	b.must(err)
	b.usage(v, kind)
	_, err = v.Snapshot("snap-" + kind)
	b.refused("a snapshot", err, codes.FailedPrecondition)
	b.says("a snapshot", err, "clone")

	inUse := b.copyOf("in-use-"+kind, kind, rig.FromVolume(v.ID), nil)
	inUse.Size = v.Got
	if err := inUse.Create(); kind == "block" || kind == "xfs" { // it would be torn; it would be frozen for too long
		b.refused("a copy of what is in use", err, codes.FailedPrecondition)
	} else {
		b.must(err)
		b.must(inUse.Up())
		b.must(rig.Check(inUse.Target, dataBytes, sum))
		b.must(inUse.Gone())
	}

	was, err := rig.Space(v.Target)
	b.must(err)
	b.must(v.Expand(v.Got+64*mib, true))
	b.mapped(v)
	if space, err := rig.Space(v.Target); err != nil || space < was+48*mib {
		b.t.Errorf("%d bytes after growing by 64 MiB, were %d (%v)", space, was, err)
	}
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Down())
	b.noDevices()
	b.must(v.Expand(v.Got+64*mib, false))
	clone := b.copyOf("clone-"+kind, kind, rig.FromVolume(v.ID), nil)
	clone.Size = v.Got + 32*mib
	b.must(clone.Create())
	b.must(clone.Up())
	b.must(rig.Check(clone.Target, dataBytes, sum))
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	if space, err := rig.Space(v.Target); err != nil || space < was+104*mib {
		b.t.Errorf("%d bytes after growing by 128 MiB, were %d (%v)", space, was, err)
	}
	b.must(clone.Gone())
	b.must(v.Down())
	b.twice(v.Delete)
	b.eventually(func() error {
		if now := b.capacity(nil); now != room {
			return fmt.Errorf("%d bytes of room, were %d", now, room)
		}
		return nil
	})
}

// What raw pools have not is refused with what they have.
func TestRawPoolRefusals(t *testing.T) {
	b := openRaw(t, 1200*mib)
	for what, params := range map[string]map[string]string{
		"thin": {"provisioning": "thin", "eraseOnDelete": "zero"}, "loop": {"device": "loop"}, "ublk": {"device": "ublk"},
	} {
		v := b.volume("refused", "block")
		v.Params = params
		err := v.Create()
		b.refused(what, err, codes.FailedPrecondition, codes.InvalidArgument)
		b.says(what, err, "default", map[string]string{"thin": "thick"}[what])
	}
	for what, params := range map[string]map[string]string{
		"thick": {"provisioning": "thick"}, "in-blocks-of-512": {"blockSize": "512"},
	} {
		v := b.volume("taken-"+what, "block")
		v.Params = params
		b.must(v.Create())
		b.must(v.Delete())
	}
	b.accounts()
	// And what they have is refused elsewhere.
	plain := open(t, "xfs", 1<<30)
	v := plain.volume("refused", "block")
	v.Params = map[string]string{"device": "disk"}
	err := v.Create()
	plain.refused("a disk in a directory pool", err, codes.FailedPrecondition, codes.InvalidArgument)
}

// GetCapacity is what can be had, in one volume or in many; what was deleted is had again at once.
func TestRawPoolFull(t *testing.T) {
	b := openRaw(t, 1200*mib)
	b.accounts()
	room := b.capacity(nil)
	b.refused("more than there is", b.d.Volume("large", rig.BlockCap(), room+mib).Create(), codes.ResourceExhausted)
	all := b.d.Volume("all", rig.BlockCap(), room)
	b.must(all.Create())
	if left := b.capacity(nil); left != 0 {
		t.Errorf("%d bytes left", left)
	}
	b.refused("one more", b.d.Volume("one", rig.BlockCap(), 16*mib).Create(), codes.ResourceExhausted)
	b.must(all.Delete())
	b.must(b.d.Volume("all", rig.BlockCap(), room).Create()) // it waits until the first is overwritten
	b.must(b.deleteByName("all"))

	var volumes []*rig.Volume
	made := int64(0)
	for {
		v := b.d.Volume(fmt.Sprintf("v-%d", len(volumes)), rig.BlockCap(), 48*mib)
		err := v.Create()
		if rig.Code(err) == codes.ResourceExhausted {
			break
		}
		b.must(err)
		made += v.Got
		volumes = append(volumes, v)
	}
	if room-made >= 48*mib {
		t.Errorf("full with %d volumes, which are %d MiB of %d", len(volumes), made/mib, room/mib)
	}
	b.refused("growing in a full pool", volumes[0].Expand(room, false), codes.ResourceExhausted, codes.OutOfRange)
	// Every other one goes: what is free lies in pieces, and one volume has them all.
	freed := room - made
	for i := 0; i < len(volumes); i += 2 {
		b.must(volumes[i].Delete())
		freed += volumes[i].Got
	}
	b.clean()
	if now := b.capacity(nil); now != freed {
		t.Errorf("%d MiB of room, %d are free", now/mib, freed/mib)
	}
	pieces := b.d.Volume("pieces", rig.BlockCap(), freed)
	b.must(pieces.Up())
	if table, err := rig.Run("dmsetup", "table", rig.DeviceName(pieces.ID)); err != nil || strings.Count(table, "\n") < len(volumes)/2 {
		t.Errorf("its table: %v %s", err, table)
	}
	b.must(onlyZeros(b.mapped(pieces)))
	b.must(numbered(pieces.Target))
	b.must(pieces.Down())
	b.must(pieces.Up())
	b.must(checkNumbers(pieces.Target))
	b.must(pieces.Gone())
	for i := 1; i < len(volumes); i += 2 {
		b.must(volumes[i].Delete())
	}
	b.accounts()
	if now := b.capacity(nil); now != room {
		t.Errorf("%d bytes of room, were %d", now, room)
	}
}

func (b *bed) deleteByName(name string) error {
	reply, err := b.c.ListVolumes(short(b.t), &csi.ListVolumesRequest{})
	if err != nil {
		return err
	}
	for _, entry := range reply.GetEntries() {
		if id := entry.GetVolume().GetVolumeId(); rig.KeyOf(id) == name {
			_, err := b.c.DeleteVolume(short(b.t), &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		}
	}
	return fmt.Errorf("no volume %s", name)
}

// The tools say the same with a driver and without.
func TestRawPoolTools(t *testing.T) {
	b := openRaw(t, 1200*mib)
	b.accounts()
	fs, block := b.volume("fs", "ext4"), b.volume("block", "block")
	b.must(fs.Up())
	b.must(block.Create())
	online := b.ls()
	b.sameAsCSI(online)
	if p := online.Pools[0]; p.State != "ready" || p.Volumes != 2 || p.Path != b.pool.Path {
		t.Errorf("pools: %+v", online.Pools)
	}
	if p := b.check(0); !p.Served || p.Volumes != 2 || len(p.Findings) != 0 {
		t.Errorf("check: %+v", p)
	}
	if d := b.doctor(nil, "--pool", b.poolArg()).check("pool default"); d.Verdict != "ok" {
		t.Errorf("doctor: %+v", d)
	}
	b.must(b.d.Term())
	b.d.Disconnect()
	offline := parseList(t, tool(t, nil, "ls", "--json", "--endpoint", b.endpoint(), "--pool", b.poolArg()))
	if p := offline.Pools; len(p) != 1 || p[0].State != "ready" || p[0].Volumes != 2 {
		t.Errorf("offline: %+v", p)
	}
	for _, name := range []string{"fs", "block"} {
		was, is := online.volume(name), offline.volume(name)
		if is == nil || is.ID != was.ID || is.Size != was.Size || is.FS != was.FS || is.Provisioning != was.Provisioning ||
			(is.Device == nil) != (was.Device == nil) || len(is.Mounts) != len(was.Mounts) {
			t.Errorf("%s was %+v, is %+v", name, was, is)
		}
		if is != nil && is.Device != nil && (is.Device.Path != was.Device.Path || is.Device.Type != "disk") {
			t.Errorf("device was %v, is %v", was.Device, is.Device)
		}
	}
	if p := b.check(0); p.Served || p.Volumes != 2 || len(p.Findings) != 0 {
		t.Errorf("check: %+v", p)
	}
	if d := b.doctor(nil, "--pool", b.poolArg()).check("pool default"); d.Verdict != "ok" {
		t.Errorf("doctor: %+v", d)
	}
	b.must(b.d.ServeHTTP())
	b.start()
	m, err := b.d.Scrape()
	b.must(err)
	if m["ringvol_pool_zeroing_bytes"] == nil {
		t.Error("nothing is told of what is to be overwritten")
	}
	b.must(fs.Gone())
	b.must(block.Delete())
	b.clean()
	b.must(b.d.Term())
	b.check(0)
}
