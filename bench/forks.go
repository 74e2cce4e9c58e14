// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

const (
	forkImage  = 400 * rig.MiB // what the files of the image take
	forkCount  = 64            // forks of a round
	forkPolicy = "pools=default,namespaces=ci,sources=root,max-size=2Gi"
)

// forkTree is a directory as a prepared root has it: many small files, some large ones, and a database of 64 MiB.
func forkTree(dir string) error {
	random := rand.New(rand.NewChaCha8([32]byte{1}))
	block := make([]byte, 64<<20)
	for i := range block {
		block[i] = byte(random.Uint32())
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "database"), block, 0o644); err != nil {
		return err
	}
	for done, i := 64*rig.MiB, 0; done < forkImage; i++ {
		size := int64(4<<10) << random.IntN(5) // 4 to 64 KiB
		if i%200 == 0 {
			size = 4 * rig.MiB
		}
		size = min(size, forkImage-done)
		at := filepath.Join(dir, fmt.Sprintf("lib%03d", i/100))
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		from := random.Int64N(int64(len(block)) - size)
		if err := os.WriteFile(filepath.Join(at, fmt.Sprint(i)), block[from:from+size], 0o644); err != nil {
			return err
		}
		done += size
	}
	return nil
}

// forkBed is a driver with the golden image "root", and what the bare calls need.
type forkBed struct {
	*bench
	d      *rig.Driver
	p      *rig.Pool
	image  string // the golden image's file
	dir    string // of the pool's file system
	mounts string
	sector string
	serial atomic.Int64
}

func (b *bench) forkBed() (*forkBed, error) {
	d, p, err := b.open(8<<30, "--inline", forkPolicy)
	if err != nil {
		return nil, err
	}
	tree := filepath.Join(p.Path, "bench-tree")
	if err := forkTree(tree); err != nil {
		return nil, err
	}
	out, err := rig.Run(rig.Binary(), "import", "--endpoint", "unix://"+d.Socket, "--work-dir", filepath.Join(d.Kubelet, "import"), tree, "root")
	if err != nil {
		return nil, err
	}
	f := &forkBed{bench: b, d: d, p: p, mounts: b.Path("floor-mounts")}
	if f.dir, err = floorDir(p); err != nil {
		return nil, err
	}
	f.image = filepath.Join(p.Path, "snapshots", rig.KeyOf(strings.TrimSpace(out)))
	look, err := d.Inline("csi-look", "look", map[string]string{"source": "root"})
	if err == nil {
		err = look.Publish()
	}
	if err == nil {
		f.sector, err = sectorOf(look.Target)
	}
	if err == nil {
		err = look.Unpublish()
	}
	return f, errors.Join(err, os.MkdirAll(f.mounts, 0o755), os.RemoveAll(tree), syncAll(p.Path))
}

// syncAll has the disk rest before a round.
func syncAll(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

// pods prepares inline volumes, each of a pod of its own, with what kubelet makes.
func (f *forkBed) pods(count int, attributes map[string]string) ([]*rig.Inline, error) {
	all := make([]*rig.Inline, count)
	for i := range all {
		n := f.serial.Add(1)
		var err error
		if all[i], err = f.d.Inline(fmt.Sprintf("csi-%064d", n), fmt.Sprintf("pod-%d", n), attributes); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func end(all []*rig.Inline) error {
	return each(len(all), 16, func(i int) error {
		return errors.Join(all[i].Unpublish(), all[i].PodGoes())
	})
}

var rootOf = map[string]string{"source": "root"}

// oneByOne: the time of each NodePublishVolume until the pod's path is there.
func (f *forkBed) oneByOne(count int, attributes map[string]string) ([]float64, error) {
	all, err := f.pods(count, attributes)
	if err != nil {
		return nil, err
	}
	times, err := micros(count, func(i int) error { return all[i].Publish() })
	return times, errors.Join(err, end(all), f.settled())
}

// settled: nothing of a round is left for the next one.
func (f *forkBed) settled() error {
	return errors.Join(rig.Eventually(60*time.Second, func() error {
		if left := f.p.Names("trash"); len(left) > 0 {
			return fmt.Errorf("in the trash: %v", left)
		}
		return nil
	}), syncAll(f.p.Path))
}

// available is the memory that the machine could give, in KiB, with nothing in its caches.
func available() float64 {
	_ = os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
	n, _ := strconv.ParseFloat(strings.TrimSuffix(firstLine("/proc/meminfo", "MemAvailable:"), " kB"), 64)
	return n
}

func diskUsed(path string) (float64, error) {
	var st unix.Statfs_t
	err := errors.Join(syncAll(path), unix.Statfs(path, &st))
	return float64(st.Blocks-st.Bfree) * float64(st.Bsize) / (1 << 10), err
}

// forks: writable file systems for pods, made of one image, beside the bare calls, a copy and overlayfs.
func forks(b *bench) error {
	f, err := b.forkBed()
	if err != nil {
		return err
	}
	extents, err := floorRun("extents", f.image)
	if err != nil {
		return err
	}
	b.add(row{What: "extents of the image; a reflink costs time by the extent", Ours: extents[0] * 1000})
	if err := f.beside(); err != nil {
		return err
	}
	if err := f.atOnce(); err != nil {
		return err
	}
	if err := f.takes(); err != nil {
		return err
	}
	return f.firstWrites()
}

// beside: one fork after the other, ours and other ways to one.
func (f *forkBed) beside() error {
	var all []float64
	ours := func() (float64, error) {
		times, err := f.oneByOne(forkCount, rootOf)
		all = append(all, times...)
		return median(times), err
	}
	floor := func() (float64, error) {
		middle, err := floorMedian("fork", f.dir, forkCount, f.image, f.mounts, f.sector)
		return middle, errors.Join(err, f.settled())
	}
	what := "a fork, NodePublishVolume of an inline volume, p50"
	if err := f.paired(row{What: what, Unit: "us", Beside: "FICLONE + LOOP_CONFIGURE + mount", Bar: "ratio <= 2"}, ours, floor); err != nil {
		return err
	}
	f.add(row{What: "of it p99, until the pod's path is there", Unit: "us", Ours: quantile(all, 0.99), Rounds: f.rounds})
	claims := func() (float64, error) {
		round := volumes(f.d, fmt.Sprintf("f%07d", f.serial.Add(1)), forkCount, rig.MountCap(""), 0)
		for _, v := range round {
			v.Params = rootOf
		}
		if err := makePaths(round); err != nil {
			return 0, err
		}
		middle, err := p50(forkCount, func(i int) error { return round[i].Up() })
		return middle, errors.Join(err, each(forkCount, 16, func(i int) error { return down(round[i], round[i].Down) }), f.settled())
	}
	if err := f.paired(row{What: "a fork, create + stage + publish of a class that names the image, p50", Unit: "us",
		Beside: "FICLONE + LOOP_CONFIGURE + mount"}, claims, floor); err != nil {
		return err
	}
	if err := f.paired(row{What: what, Unit: "us", Beside: "overlayfs: mkdir and mount"}, ours, f.overlays(forkCount, nil)); err != nil {
		return err
	}
	rounds := f.rounds
	f.rounds = min(rounds, 3)
	err := f.paired(row{What: what, Unit: "us", Beside: "a copy of the image, fsync, LOOP_CONFIGURE, mount"}, ours, f.copies(2))
	f.rounds = rounds
	return err
}

// copies makes so many of the image, without shared blocks, as a node does that has no reflinks.
func (f *forkBed) copies(count int) func() (float64, error) {
	return func() (float64, error) {
		mount := filepath.Join(f.mounts, "copy")
		file := filepath.Join(f.dir, "copy")
		if err := os.MkdirAll(mount, 0o755); err != nil {
			return 0, err
		}
		var times []float64
		for range count {
			begin := time.Now()
			_, err := rig.Run("dd", "if="+f.image, "of="+file, "bs=4M", "iflag=direct", "oflag=direct", "conv=sparse,fsync", "status=none")
			if err == nil {
				_, err = rig.Run("mount", "-o", "loop", file, mount)
			}
			times = append(times, float64(time.Since(begin).Microseconds()))
			if err == nil {
				err = unix.Unmount(mount, 0)
			}
			if err := errors.Join(err, os.Remove(file)); err != nil {
				return 0, err
			}
		}
		return median(times), errors.Join(os.Remove(mount), f.settled())
	}
}

// overlays are writable directories over one image that is mounted read-only; look is called while all are there.
func (f *forkBed) overlays(count int, look func(dirs []string) error) func() (float64, error) {
	return func() (float64, error) {
		lower, base := filepath.Join(f.mounts, "lower"), filepath.Join(f.dir, "overlays")
		if err := os.MkdirAll(lower, 0o755); err != nil {
			return 0, err
		}
		if _, err := rig.Run("mount", "-o", "loop,ro", f.image, lower); err != nil {
			return 0, err
		}
		var dirs []string
		times, err := micros(count, func(i int) error {
			at := filepath.Join(base, fmt.Sprint(i))
			upper, work, dir := filepath.Join(at, "upper"), filepath.Join(at, "work"), filepath.Join(f.mounts, fmt.Sprintf("overlay%d", i))
			dirs = append(dirs, dir)
			return errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755), os.MkdirAll(dir, 0o755),
				unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work))
		})
		if err == nil && look != nil {
			err = look(dirs)
		}
		for _, dir := range dirs {
			_ = unix.Unmount(dir, 0)
			_ = os.Remove(dir)
		}
		return median(times), errors.Join(err, unix.Unmount(lower, 0), os.RemoveAll(base), f.settled())
	}
}

// atOnce: how many a second, when many are asked for.
func (f *forkBed) atOnce() error {
	const count, atATime = 256, 16
	var rates, times []float64
	for range f.rounds {
		all, err := f.pods(count, rootOf)
		if err != nil {
			return err
		}
		took := make([]float64, count)
		begin := time.Now()
		err = each(count, atATime, func(i int) error {
			begin := time.Now()
			err := all[i].Publish()
			took[i] = float64(time.Since(begin).Microseconds())
			return err
		})
		rates = append(rates, count/time.Since(begin).Seconds())
		times = append(times, took...)
		if err := errors.Join(err, end(all), f.settled()); err != nil {
			return err
		}
	}
	f.add(row{What: fmt.Sprintf("forks, %d at once", atATime), Unit: "1/s", Ours: median(rates), Low: quantile(rates, 0), High: quantile(rates, 1),
		Rounds: f.rounds})
	f.add(row{What: "of them p99, until the pod's path is there", Unit: "us", Ours: quantile(times, 0.99), Rounds: f.rounds})
	return nil
}

// takes: what forks that are there take of memory and disk, and overlays.
func (f *forkBed) takes() error {
	const count = 256
	type use struct{ memory, disk float64 }
	now := func() (use, error) {
		disk, err := diskUsed(f.p.Path)
		return use{available(), disk}, err
	}
	var ours, theirs use
	settle := func() { time.Sleep(500 * time.Millisecond) }
	all, err := f.pods(count, rootOf)
	if err != nil {
		return err
	}
	before, err := now()
	if err != nil {
		return err
	}
	if err := each(count, 16, func(i int) error { return all[i].Publish() }); err != nil {
		return err
	}
	settle()
	after, err := now()
	ours = use{(before.memory - after.memory) / count, (after.disk - before.disk) / count}
	if err := errors.Join(err, end(all), f.settled()); err != nil {
		return err
	}
	settle()
	if before, err = now(); err != nil {
		return err
	}
	if _, err := f.overlays(count, func([]string) error {
		settle()
		after, err := now()
		theirs = use{(before.memory - after.memory) / count, (after.disk - before.disk) / count}
		return err
	})(); err != nil {
		return err
	}
	f.add(row{What: fmt.Sprintf("memory of the machine that one of %d forks takes, untouched", count), Unit: "KiB", Ours: ours.memory,
		Note: fmt.Sprintf("MemAvailable before and after, without caches; overlayfs: %.1f KiB", theirs.memory)})
	f.add(row{What: "room in the pool that one takes, untouched", Unit: "KiB", Ours: ours.disk, Other: theirs.disk, Beside: "overlayfs",
		Ratio: ours.disk / max(theirs.disk, 0.001)})
	return nil
}

// firstWrites: 4 KiB into the image's file of 64 MiB, durable, the first in each fork; and what that takes of the pool.
func (f *forkBed) firstWrites() error {
	const count = 8
	var disk [2]float64
	write := func(which int, dirs []string) (float64, error) {
		before, err := diskUsed(f.p.Path)
		if err != nil {
			return 0, err
		}
		middle, err := p50(len(dirs), func(i int) error {
			file, err := os.OpenFile(filepath.Join(dirs[i], "database"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = file.WriteAt(make([]byte, 4096), 32<<20)
			return errors.Join(err, file.Sync(), file.Close())
		})
		after, err2 := diskUsed(f.p.Path)
		disk[which] = (after - before) / float64(len(dirs))
		return middle, errors.Join(err, err2)
	}
	ours := func() (float64, error) {
		all, err := f.pods(count, rootOf)
		if err != nil {
			return 0, err
		}
		var dirs []string
		for _, v := range all {
			dirs = append(dirs, v.Target)
			if err := v.Publish(); err != nil {
				return 0, err
			}
		}
		middle, err := write(0, dirs)
		return middle, errors.Join(err, end(all), f.settled())
	}
	theirs := func() (middle float64, err error) {
		_, err = f.overlays(count, func(dirs []string) error {
			middle, err = write(1, dirs)
			return err
		})()
		return middle, err
	}
	rounds := f.rounds
	f.rounds = min(rounds, 3)
	err := f.paired(row{What: "the first 4 KiB written into a file of 64 MiB of a fork, durable", Unit: "us", Beside: "overlayfs, which copies the file"},
		ours, theirs)
	f.rounds = rounds
	f.add(row{What: "room in the pool that this takes", Unit: "KiB", Ours: disk[0], Other: disk[1], Beside: "overlayfs", Ratio: disk[0] / max(disk[1], 0.001)})
	return err
}

// inline: a pod's volume by one call, beside create + stage + publish of a claim's.
func inline(b *bench) error {
	const count = 50
	d, p, err := b.open(8<<30, "--inline", forkPolicy)
	if err != nil {
		return err
	}
	f := &forkBed{bench: b, d: d, p: p}
	size := fmt.Sprint(volumeSize)
	ours := func() (float64, error) {
		times, err := f.oneByOne(count, map[string]string{"size": size, "fstype": "ext4"})
		return median(times), err
	}
	claims := func() (float64, error) {
		round := volumes(d, fmt.Sprintf("i%07d", f.serial.Add(1)), count, rig.MountCap("ext4"), volumeSize)
		if err := makePaths(round); err != nil {
			return 0, err
		}
		middle, err := p50(count, func(i int) error { return round[i].Up() })
		return middle, errors.Join(err, each(count, 16, func(i int) error { return down(round[i], round[i].Down) }), f.settled())
	}
	for _, warm := range []func() (float64, error){ours, claims} { // the template, helpers, loop devices
		if _, err := warm(); err != nil {
			return err
		}
	}
	return b.paired(row{What: "NodePublishVolume of an inline volume, fresh ext4, p50", Unit: "us",
		Beside: "create + stage + publish of a persistent one", Bar: "ratio <= 1"}, ours, claims)
}
