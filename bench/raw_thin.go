// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

const (
	thinBlock  = 64 << 10 // of a thin pool, as ours has it
	firstSize  = 256 * rig.MiB
	shotSize   = 1 << 30
	shotWrites = 256 // MiB
)

// rawThin: what a thin volume of a raw pool costs that a thick one does not: its first writes, its making, its snapshots and
// clones.
func rawThin(b *bench) error {
	r, err := b.scratch(7 << 30)
	if r == nil || err != nil {
		return err
	}
	group, err := r.cut(firstSize + 20*rawSmall + 128*rig.MiB)
	if err != nil {
		return err
	}
	bare, err := r.cut(3*shotSize/2 + 64*rig.MiB)
	if err != nil {
		return err
	}
	disk, err := r.rest()
	if err != nil {
		return err
	}
	d, _, err := b.openRaw(disk)
	if err != nil {
		return err
	}
	// Makes the thin pool and the template, and the pool has grown once.
	first := thin(d.Volume("first", rig.MountCap("ext4"), rawSmall))
	if err := errors.Join(first.Up(), first.Gone()); err != nil {
		return err
	}
	l, err := b.lvm(group)
	if err != nil {
		return err
	}
	if l != nil {
		if err := l.thinPool(firstSize+18*rawSmall, thinBlock); err != nil {
			return err
		}
	}
	if err := b.firstWrites(d, l); err != nil {
		return err
	}
	if err := b.rawOne(d, "thin", thin, l, func(name string) (string, error) { return l.createThin(name, rawSmall) }); err != nil {
		return err
	}
	return b.thinShots(d, bare)
}

// firsts are jobs of fio that write no block twice, each on a volume that nothing was written to.
var firsts = []struct {
	what, rw, block string
	depth           int
}{
	// A write for each block of the pool, and 60 KiB left out.
	{"4 KiB first writes, a block of the pool each, 1 in flight", "write:60k", "4k", 1},
	{"4 KiB first writes, a block of the pool each, 32 in flight", "write:60k", "4k", 32},
	{"1 MiB sequential first writes, 1 in flight", "write", "1m", 1},
	{"1 MiB sequential first writes, 32 in flight", "write", "1m", 32},
}

func (b *bench) firstWrites(d *rig.Driver, l *lvm) error {
	var serial atomic.Int64
	for _, w := range firsts {
		run := func(node string) (float64, error) {
			return b.fioRate(node, "--rw="+w.rw, "--bs="+w.block, fmt.Sprintf("--iodepth=%d", w.depth), fmt.Sprintf("--size=%d", int64(firstSize)))
		}
		ours := func() (float64, error) {
			v := thin(d.Volume(fmt.Sprintf("fresh-%d", serial.Add(1)), rig.BlockCap(), firstSize))
			if err := v.Up(); err != nil {
				return 0, err
			}
			rate, err := run(v.Target)
			return rate, errors.Join(err, v.Gone(), reclaimed(d))
		}
		what := row{What: w.what + ": thin volume", Unit: "IOPS", Beside: lvmThin, Bar: "ratio >= 0.9"}
		if l == nil {
			rate, err := ours()
			if err != nil {
				return err
			}
			b.add(row{What: what.What, Unit: what.Unit, Ours: rate, Note: "no LVM is installed"})
			continue
		}
		peer := func() (float64, error) {
			node, err := l.createThin("fresh", firstSize)
			if err != nil {
				return 0, err
			}
			rate, err := run(node)
			return rate, errors.Join(err, l.remove("fresh"))
		}
		if err := b.paired(what, ours, peer); err != nil {
			return err
		}
	}
	return nil
}

// fioRate runs one job and returns its requests a second.
func (b *bench) fioRate(node string, args ...string) (float64, error) {
	args = append([]string{"--name=job", "--output-format=json", "--direct=1", "--ioengine=io_uring", "--allow_file_create=0",
		"--norandommap", "--randseed=1", "--filename=" + node}, args...)
	fio := exec.Command("fio", args...)
	var out, errs bytes.Buffer
	fio.Dir, fio.Stdout, fio.Stderr = b.Dir, &out, &errs
	if err := fio.Run(); err != nil {
		return 0, fmt.Errorf("fio on %s: %w %s", node, err, errs.String())
	}
	var report struct {
		Jobs []struct{ Write struct{ Iops float64 } }
	}
	text := out.Bytes()
	if err := json.Unmarshal(text[max(0, bytes.IndexByte(text, '{')):], &report); err != nil || len(report.Jobs) != 1 {
		return 0, fmt.Errorf("fio on %s: %w: %s", node, err, text)
	}
	return report.Jobs[0].Write.Iops, nil
}

// reclaimed waits until nothing is in the trash any more.
func reclaimed(d *rig.Driver) error {
	p := d.Pools[0]
	return rig.Eventually(5*time.Minute, func() error {
		if left := p.Names("trash"); len(left) > 0 {
			return fmt.Errorf("in the trash: %v", left)
		}
		return nil
	})
}

// ---- snapshots and clones ----

// bareThin is a thin pool of the kernel's, made by hand, with one volume that has a file system.
type bareThin struct {
	mapper           *mapper
	pool, name, node string
	mount            string
	serial           int
}

func (b *bench) bareThin(device string) (*bareThin, error) {
	m, err := b.mapper()
	if err != nil {
		return nil, err
	}
	t := &bareThin{mapper: m, pool: "bench-thinpool", name: "bench-thin", mount: b.Path("bare-thin")}
	const metadata, data = 32 * rig.MiB, 3 * shotSize / 2
	metaNode, err := m.linear("bench-thinmeta", device, 0, metadata)
	if err != nil {
		return nil, err
	}
	dataNode, err := m.linear("bench-thindata", device, metadata, data)
	if err != nil {
		return nil, err
	}
	metaNumber, err1 := deviceNumber(metaNode)
	dataNumber, err2 := deviceNumber(dataNode)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	pool, err := m.make(t.pool, dmTarget{data, "thin-pool",
		fmt.Sprintf("%s %s %d 0 1 no_discard_passdown", metaNumber, dataNumber, thinBlock/512)})
	if err != nil {
		return nil, err
	}
	number, err := deviceNumber(pool)
	if err == nil {
		err = m.message(t.pool, "create_thin 0")
	}
	if err == nil {
		t.node, err = m.make(t.name, dmTarget{shotSize, "thin", number + " 0"})
	}
	b.Defer(func() error {
		_ = unix.Unmount(t.mount, 0)
		return errors.Join(m.remove(t.name), m.remove(t.pool), m.remove("bench-thindata"), m.remove("bench-thinmeta"))
	})
	if err != nil {
		return nil, err
	}
	if _, err := rig.Run("mkfs.ext4", "-q", t.node); err != nil {
		return nil, err
	}
	if err := os.Mkdir(t.mount, 0o755); err != nil {
		return nil, err
	}
	return t, unix.Mount(t.node, t.mount, "ext4", 0, "")
}

// shotPause is between two snapshots, ours and bare ones. Freezing a file system waits for the kernel's grace periods,
// but not when it was frozen a moment ago.
const shotPause = 300 * time.Millisecond

// shot is what a snapshot of it takes: suspend, which freezes the file system, the message, resume.
func (t *bareThin) shot() (float64, error) {
	t.serial++
	time.Sleep(shotPause)
	begin := time.Now()
	err := errors.Join(t.mapper.suspend(t.name), t.mapper.message(t.pool, fmt.Sprintf("create_snap %d 0", t.serial)), t.mapper.resume(t.name))
	took := float64(time.Since(begin).Nanoseconds()) / 1e3
	return took, errors.Join(err, t.mapper.message(t.pool, fmt.Sprintf("delete %d", t.serial)))
}

// scatter writes 256 MiB of a file of 768 in pieces of 4 KiB at random, as a database does.
func (b *bench) scatter(dir string) error {
	_, err := rig.Run("fio", "--name=random", "--filename="+filepath.Join(dir, "random"), "--size=768m",
		fmt.Sprintf("--io_size=%dm", shotWrites), "--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=io_uring", "--iodepth=16",
		"--randseed=1", "--fallocate=none")
	return err
}

func (b *bench) thinShots(d *rig.Driver, device string) error {
	const each = 5
	v := thin(d.Volume("source", rig.MountCap("ext4"), shotSize))
	if err := v.Up(); err != nil {
		return err
	}
	b.Defer(v.Gone)
	bare, err := b.bareThin(device)
	if err != nil {
		return err
	}
	var serial atomic.Int64
	middle := func(one func() (float64, error)) func() (float64, error) {
		return func() (float64, error) {
			var times []float64
			for range each {
				took, err := one()
				if err != nil {
					return 0, err
				}
				times = append(times, took)
			}
			return median(times), nil
		}
	}
	snapshot := middle(func() (float64, error) {
		time.Sleep(shotPause)
		begin := time.Now()
		s, err := v.Snapshot(fmt.Sprintf("shot-%d", serial.Add(1)))
		took := float64(time.Since(begin).Nanoseconds()) / 1e3
		if err != nil {
			return 0, err
		}
		return took, errors.Join(d.DeleteSnapshot(s.GetSnapshotId()), reclaimed(d))
	})
	clone := middle(func() (float64, error) {
		c := thin(d.Volume(fmt.Sprintf("clone-%d", serial.Add(1)), v.Cap, v.Size))
		c.Source = rig.FromVolume(v.ID)
		time.Sleep(shotPause)
		begin := time.Now()
		err := c.Create()
		took := float64(time.Since(begin).Nanoseconds()) / 1e3
		if err != nil {
			return 0, err
		}
		return took, errors.Join(c.Delete(), reclaimed(d))
	})
	calls := map[string]func() (float64, error){"CreateSnapshot": snapshot, "clone": clone}
	empty := map[string]float64{}
	for _, state := range []string{"of an empty volume", "after 256 MiB of random 4 KiB writes"} {
		for _, what := range []string{"CreateSnapshot", "clone"} {
			if err := b.paired(row{What: what + " " + state, Unit: "us", Beside: "suspend, create_snap, resume", Bar: "ratio <= 1.5"},
				calls[what], middle(bare.shot)); err != nil {
				return err
			}
			took := b.rows[len(b.rows)-1].Ours
			if before, known := empty[what]; known {
				b.add(row{What: what + " after the writes, against an empty volume", Unit: "us", Ours: took, Beside: "empty", Other: before,
					Ratio: took / before, Bar: "ratio <= 1.5"})
			}
			empty[what] = took
		}
		if state == "of an empty volume" {
			if err := errors.Join(b.scatter(v.Target), b.scatter(bare.mount)); err != nil {
				return err
			}
		}
	}
	return nil
}
