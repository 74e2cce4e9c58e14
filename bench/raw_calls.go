// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

const (
	rawSmall = 16 * rig.MiB
	rawClone = 64 * rig.MiB
)

// thickVolumes are mount volumes of the raw pool.
func thickVolumes(d *rig.Driver, prefix string, count int, size int64) []*rig.Volume {
	return rawVolumes(d, prefix, count, size, thick)
}

func rawVolumes(d *rig.Driver, prefix string, count int, size int64, kind func(*rig.Volume) *rig.Volume) []*rig.Volume {
	all := volumes(d, prefix, count, rig.MountCap("ext4"), size)
	for _, v := range all {
		kind(v)
	}
	return all
}

// rawCalls: what it costs to make volumes of a raw pool, beside LVM's tools and the kernel's bare calls.
func rawCalls(b *bench) error {
	r, err := b.scratch(4 << 30)
	if r == nil || err != nil {
		return err
	}
	count := min(*rawMany, int(r.size/(3*rawSmall)))
	bare, err := r.cut(int64(count+1) * rawSmall)
	if err != nil {
		return err
	}
	group, err := r.cut(20*rawSmall + 64*rig.MiB)
	if err != nil {
		return err
	}
	disk, err := r.rest()
	if err != nil {
		return err
	}
	d, p, err := b.openRaw(disk)
	if err != nil {
		return err
	}
	first := thickVolumes(d, "first", 1, rawSmall)[0] // makes the template
	if err := errors.Join(first.Up(), first.Gone(), zeroed(d)); err != nil {
		return err
	}
	l, err := b.lvm(group)
	if err != nil {
		return err
	}
	if err := b.rawOne(d, "thick", thick, l, func(name string) (string, error) { return l.create(name, rawSmall) }); err != nil {
		return err
	}
	if err := b.rawClones(d, bare); err != nil {
		return err
	}
	return b.rawMany(d, p, bare, count)
}

// rawOne: one volume of a kind after the other, beside lvcreate, mkfs.ext4 and mount. create makes LVM's.
func (b *bench) rawOne(d *rig.Driver, name string, kind func(*rig.Volume) *rig.Volume, l *lvm,
	create func(name string) (string, error)) error {
	const each = 5
	mount := b.Path("lvm-mount")
	if err := os.Mkdir(mount, 0o755); err != nil {
		return err
	}
	var serial atomic.Int64
	var started, created []float64
	ours := func() (float64, error) {
		all := rawVolumes(d, fmt.Sprintf("o%07d", serial.Add(1)), each, rawSmall, kind)
		if err := makePaths(all); err != nil {
			return 0, err
		}
		watch, err := watchForks(d.Pid())
		if err != nil {
			return 0, err
		}
		middle, err := p50(each, func(i int) error {
			begin := time.Now()
			err := all[i].Create()
			created = append(created, float64(time.Since(begin).Microseconds()))
			return errors.Join(err, all[i].Stage())
		})
		if err != nil {
			return 0, err
		}
		forked, err := watch.result()
		started = append(started, float64(forked))
		for _, v := range all {
			err = errors.Join(err, down(v, v.Unstage))
		}
		return middle, errors.Join(err, zeroed(d))
	}
	tools := func() (float64, error) {
		var times []float64
		for range each {
			begin := time.Now()
			node, err := create("bench")
			if err == nil {
				_, err = rig.Run("mkfs.ext4", "-q", node)
			}
			if err == nil {
				err = unix.Mount(node, mount, "ext4", 0, "")
			}
			times = append(times, float64(time.Since(begin).Microseconds()))
			if err := errors.Join(err, unix.Unmount(mount, 0), l.remove("bench")); err != nil {
				return 0, err
			}
		}
		return median(times), nil
	}
	what := "CreateVolume and NodeStageVolume of a " + name + " volume, 16 MiB, ext4, p50"
	if l == nil {
		middle, err := ours()
		b.add(row{What: what, Unit: "us", Ours: middle, Note: "no LVM is installed"})
		return err
	}
	err := b.paired(row{What: what, Unit: "us", Beside: "lvcreate, mkfs.ext4, mount", Bar: "ratio <= 0.1"}, ours, tools)
	if err != nil {
		return err
	}
	b.add(row{What: "of it CreateVolume of a " + name + " volume", Unit: "us", Ours: median(created), Rounds: len(started)})
	b.add(row{What: "processes the driver started for the " + name + " ones, most of the rounds", Ours: slices.Max(started), Rounds: len(started), Bar: "<= 0",
		Note: "by the kernel's process events"})
	return nil
}

// rawClones: a copy of a written volume, beside the same bytes read and written by hand.
func (b *bench) rawClones(d *rig.Driver, bare string) error {
	source := thick(d.Volume("source", rig.BlockCap(), rawClone))
	if err := source.Up(); err != nil {
		return err
	}
	if _, err := rig.Run("dd", "if=/dev/urandom", "of="+source.Target, "bs=1M", "count=64", "oflag=direct", "status=none"); err != nil {
		return err
	}
	if err := source.Down(); err != nil {
		return err
	}
	defer source.Delete()
	var serial atomic.Int64
	ours := func() (float64, error) {
		v := thick(d.Volume(fmt.Sprintf("clone-%d", serial.Add(1)), rig.BlockCap(), rawClone))
		v.Source = rig.FromVolume(source.ID)
		begin := time.Now()
		err := v.Create()
		took := float64(time.Since(begin).Microseconds()) / 1e3
		if err != nil {
			return 0, err
		}
		return took, errors.Join(v.Delete(), zeroed(d))
	}
	hand := func() (float64, error) {
		file, err := os.OpenFile(bare, os.O_RDWR|unix.O_DIRECT, 0)
		if err != nil {
			return 0, err
		}
		defer file.Close()
		block, err := unix.Mmap(-1, 0, int(rig.MiB), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return 0, err
		}
		defer unix.Munmap(block)
		begin := time.Now()
		for at := int64(0); at < rawClone && err == nil; at += rig.MiB {
			if _, err = file.ReadAt(block, at); err == nil {
				_, err = file.WriteAt(block, rawClone+at)
			}
		}
		err = errors.Join(err, file.Sync())
		return float64(time.Since(begin).Microseconds()) / 1e3, err
	}
	return b.paired(row{What: "clone of 64 MiB, all of it written", Unit: "ms", Beside: "read, write, fsync, 1 MiB at a time"}, ours, hand)
}

// bareVolumes are file systems that lie side by side on a device, made once.
type bareVolumes struct {
	mapper *mapper
	device string
	paths  []string
}

func (b *bench) bareVolumes(device string, count int) (*bareVolumes, error) {
	m, err := b.mapper()
	if err != nil {
		return nil, err
	}
	v := &bareVolumes{m, device, make([]string, count)}
	image := b.Path("bare.img")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, rawSmall)); err != nil {
		return nil, err
	}
	if _, err := rig.Run("mkfs.ext4", "-q", "-F", image); err != nil {
		return nil, err
	}
	for i := range v.paths {
		v.paths[i] = b.Path("bare", fmt.Sprint(i))
		if err := os.MkdirAll(v.paths[i]+"/target", 0o755); err != nil {
			return nil, err
		}
		if err := os.Mkdir(v.paths[i]+"/staging", 0o755); err != nil {
			return nil, err
		}
		if _, err := rig.Run("dd", "if="+image, "of="+device, "bs=1M", fmt.Sprintf("seek=%d", int64(i)*rawSmall/rig.MiB), "conv=notrunc,sparse",
			"status=none"); err != nil {
			return nil, err
		}
	}
	unix.Sync()
	return v, nil
}

func bareName(i int) string { return fmt.Sprintf("bench-bare-%d", i) }

// up makes a device of two targets, mounts it, and binds that to a target unless it is only to be staged.
func (v *bareVolumes) up(i int, published bool) error {
	node, err := v.mapper.linear(bareName(i), v.device, int64(i)*rawSmall, rawSmall-rig.MiB, rig.MiB)
	if err != nil {
		return err
	}
	if err := unix.Mount(node, v.paths[i]+"/staging", "ext4", 0, ""); err != nil || !published {
		return err
	}
	return unix.Mount(v.paths[i]+"/staging", v.paths[i]+"/target", "", unix.MS_BIND, "")
}

func (v *bareVolumes) down(i int, published bool) error {
	var err error
	if published {
		err = unix.Unmount(v.paths[i]+"/target", 0)
	}
	return errors.Join(err, unix.Unmount(v.paths[i]+"/staging", 0), v.mapper.remove(bareName(i)))
}

// timed is the time of so many, 16 in flight, in ms each; and then their end.
func (v *bareVolumes) timed(published bool) (float64, error) {
	begin := time.Now()
	if err := each(len(v.paths), 16, func(i int) error { return v.up(i, published) }); err != nil {
		return 0, err
	}
	took := float64(time.Since(begin).Microseconds()) / 1e3 / float64(len(v.paths))
	return took, each(len(v.paths), 16, func(i int) error { return v.down(i, published) })
}

// rawMany: many volumes at once, and what is there after a reboot.
func (b *bench) rawMany(d *rig.Driver, p *rig.Pool, device string, count int) error {
	bare, err := b.bareVolumes(device, count)
	if err != nil {
		return err
	}
	round := 0
	make16 := func() (float64, error) {
		round++
		all := thickVolumes(d, fmt.Sprintf("r%07d", round), count, rawSmall)
		if err := makePaths(all); err != nil {
			return 0, err
		}
		begin := time.Now()
		for _, call := range []func(v *rig.Volume) error{(*rig.Volume).Create, (*rig.Volume).Stage, (*rig.Volume).Publish} {
			if err := each(count, 16, func(i int) error { return call(all[i]) }); err != nil {
				return 0, err
			}
		}
		took := float64(time.Since(begin).Microseconds()) / 1e3 / float64(count)
		if err := each(count, 16, func(i int) error { return down(all[i], all[i].Down) }); err != nil {
			return 0, err
		}
		return took, zeroed(d)
	}
	err = b.paired(row{What: fmt.Sprintf("%d thick volumes created, staged, published, 16 in flight, each", count), Unit: "ms",
		Beside: "three calls of the device mapper, mount, bind mount", Bar: "ratio <= 2"}, make16,
		func() (float64, error) { return bare.timed(true) })
	if err != nil {
		return err
	}
	all := thickVolumes(d, "reboot0", count, rawSmall)
	if err := makePaths(all); err != nil {
		return err
	}
	if err := each(count, 16, func(i int) error { return all[i].Create() }); err != nil {
		return err
	}
	var firsts []float64
	reboot := func() (float64, error) {
		if err := errors.Join(d.Kill(), p.RemoveDevices()); err != nil {
			return 0, err
		}
		begin := time.Now()
		if err := startReady(d); err != nil {
			return 0, err
		}
		if err := all[0].Stage(); err != nil {
			return 0, err
		}
		firsts = append(firsts, float64(time.Since(begin).Microseconds())/1e3)
		if err := each(count-1, 16, func(i int) error { return all[i+1].Stage() }); err != nil {
			return 0, err
		}
		took := float64(time.Since(begin).Microseconds()) / 1e3
		return took, each(count, 16, func(i int) error { return all[i].Unstage() })
	}
	err = b.paired(row{What: fmt.Sprintf("%d volumes after a reboot: the driver's start until all are staged", count), Unit: "ms",
		Beside: "three calls of the device mapper and mount for each", Bar: "ratio <= 2"}, reboot,
		func() (float64, error) { took, err := bare.timed(false); return took * float64(count), err })
	if err != nil {
		return err
	}
	b.add(row{What: "of it until the first is staged", Unit: "ms", Ours: median(firsts), Rounds: len(firsts)})
	return each(count, 16, func(i int) error { return all[i].Delete() })
}
