// SPDX-License-Identifier: Apache-2.0

// Package power takes the power away: every write of the pool's disk is recorded by dm-log-writes
// while volumes are made, copied, grown and deleted; then each state the disk may have been left in
// is made again, mounted, served by the driver and compared with what had been acknowledged by then.
// It needs four disks and device mapper: docs/power-loss.md.
package power

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

var (
	seed   = flag.Uint64("power.seed", 0, "seed of a run to repeat; 0 draws one")
	most   = flag.Int("power.points", 0, "look at so many states, drawn by the seed; 0: all of them")
	from   = flag.Int("power.from", 0, "leave out so many of the first states, which another run has looked at")
	keepOn = flag.Int("power.failures", 5, "give a file system up after so many bad states")
)

func TestPowerLoss(t *testing.T) {
	names := strings.Fields(os.Getenv("RINGVOL_POWER_DISKS"))
	if len(names) != 4 {
		t.Skip("RINGVOL_POWER_DISKS does not name four disks to use up")
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("repeat with -power.seed=%d", *seed)
	for _, fs := range []string{"xfs", "ext4", "btrfs", raw} {
		t.Run(fs, func(t *testing.T) {
			d, err := newDisks(names[0], names[1], names[2], names[3])
			if err != nil {
				t.Fatal(err)
			}
			if d.sectors*sector < 1100*mib && fs == raw {
				t.Skip("a raw pool takes disks of 1.1 GiB: scripts/vm/tests.sh power 6.12 -test.run=/raw")
			}
			losePower(t, fs, d)
		})
	}
}

// raw stands for a pool on the disk itself, with thick and thin volumes.
const raw = "raw"

type run struct {
	*testing.T
	disks *disks
	rig   *rig.Rig
	pool  *rig.Pool
	d     *rig.Driver
	empty int64
}

func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func losePower(t *testing.T, fs string, d *disks) {
	r := &run{T: t, disks: d}
	var err error
	r.rig, err = rig.New()
	r.must(err)
	t.Cleanup(func() {
		if r.d != nil {
			_ = r.d.Kill()
			_ = r.takeDown()
		}
		if err := r.rig.Close(); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
		for _, name := range []string{view, logged} {
			if err := remove(name); err != nil {
				t.Error(err)
			}
		}
	})
	r.pool = &rig.Pool{Name: "default", FS: fs, Path: r.rig.Path("pool")}
	if fs == raw {
		r.pool.Disks = []string{d.pool}
	}
	r.must(os.Mkdir(r.pool.Path, 0o755))
	r.d = r.rig.NewDriver(r.pool)
	r.d.Args = []string{"--inline", "pools=default,namespaces=ci,sources=*"}

	load := r.record()
	points, n := findPoints(d.entries, func(mark int) bool { return load.acks[mark] != "" })
	t.Logf("%d calls acknowledged; %d flushes, %d writes through the cache: %d states, %d of them "+
		"with a lost cache", n.acks, n.flushes, n.fua, n.points, n.losses)
	if n.acks != len(load.acks) {
		t.Fatalf("%d marks of acknowledgements in the log, not %d", n.acks, len(load.acks))
	}
	r.must(r.bootAnew())
	r.replay(load, points)
}

// bootAnew gives the kernel another boot id, as it has after a loss of power.
func (r *run) bootAnew() error {
	const id = "/proc/sys/kernel/random/boot_id"
	path := r.rig.Path("boot_id")
	if err := os.WriteFile(path, []byte("00000000-0000-4000-8000-000000000000\n"), 0o444); err != nil {
		return err
	}
	r.rig.Defer(func() error { return unix.Unmount(id, 0) })
	return unix.Mount(path, id, "", unix.MS_BIND, "")
}

// record runs the load on a pool whose writes are logged.
func (r *run) record() *recorder {
	var kept map[int64][]byte
	if r.pool.IsRaw() {
		kept = r.initRaw()
	} else {
		r.must(r.disks.format(r.pool.FS))
	}
	r.must(r.disks.record())
	r.must(r.attach(mapped(logged)))
	load := &recorder{d: r.d, pool: r.pool, marker: r.disks.mark, acks: map[int]string{}}
	began := time.Now()
	var ready span
	r.must(load.call(&ready, "pool", func() error {
		if err := r.d.Start(); err != nil {
			return err
		}
		return r.d.AwaitReady()
	}))
	client, err := r.d.Client()
	r.must(err)
	r.empty, err = (&audit{client: client, pool: r.pool}).available()
	r.must(err)
	run := load.run
	if r.pool.IsRaw() {
		run = load.runRaw
	}
	if err := run(testing.Short()); err != nil {
		r.Fatalf("recording: %v\n%s", err, r.d.LogTail(12))
	}
	// What comes now is not looked at.
	count := load.last
	r.must(r.d.Kill())
	r.must(r.takeDown())
	r.must(r.disks.stop())
	if r.pool.IsRaw() {
		r.must(r.disks.restore(kept))
	}
	for i := range r.disks.entries {
		if r.disks.entries[i].mark == count {
			r.disks.entries = r.disks.entries[:i+1]
			break
		}
	}
	r.Logf("recorded in %.0f s: %d requests", time.Since(began).Seconds(), len(r.disks.entries))
	return load
}

// initRaw makes a raw pool on the disk, has all of it zeroed, and returns what is on it then.
func (r *run) initRaw() map[int64][]byte {
	for _, disk := range []string{r.disks.pool, r.disks.replay} {
		r.must(r.disks.zero(disk))
	}
	_, err := rig.Run(rig.Binary(), "pool", "init", "--device", r.disks.pool, r.pool.Path)
	r.must(err)
	r.d.PoolOptions = ",overcommit=4"
	r.must(r.d.Start())
	r.must(r.d.AwaitReady())
	r.must(rig.Eventually(10*time.Minute, r.pool.Strays))
	r.must(r.d.Term())
	r.must(r.pool.RemoveDevices())
	kept, err := r.disks.keep()
	r.must(err)
	return kept
}

// attach has the pool on that device.
func (r *run) attach(device string) error {
	if r.pool.IsRaw() {
		node, err := filepath.EvalSymlinks(device)
		r.pool.Disks = []string{node}
		return err
	}
	return mount(device, r.pool.Path, r.pool.FS)
}

func (r *run) takeDown() error {
	for _, path := range slices.Backward(rig.MountsBelow(r.d.Kubelet)) {
		if err := unmount(path); err != nil {
			return err
		}
	}
	for _, loop := range rig.LoopsBelow(r.pool.Path) {
		if err := rig.Detach(loop); err != nil {
			return err
		}
	}
	if r.pool.IsRaw() {
		return r.pool.RemoveDevices()
	}
	return unmount(r.pool.Path)
}

// replay looks at the states in their order.
func (r *run) replay(load *recorder, points []point) {
	draw := rand.New(rand.NewPCG(*seed, 0))
	chosen := draw.Perm(len(points))
	if *most > 0 && *most < len(chosen) {
		slices.SortStableFunc(chosen, func(x, y int) int { // the hardest first
			return rank(points[y]) - rank(points[x])
		})
		chosen = chosen[:*most]
	}
	slices.SortFunc(chosen, func(x, y int) int {
		if points[x].upto != points[y].upto {
			return points[x].upto - points[y].upto
		}
		return x - y
	})
	chosen = chosen[min(*from, len(chosen)):]
	began, bad := time.Now(), 0
	for at, i := range chosen {
		if at%50 == 49 {
			r.Logf("%d of %d states, %.0f s", at+1, len(chosen), time.Since(began).Seconds())
		}
		if err := r.look(load, points[i], uint64(i)+1); err != nil {
			bad++
			r.Errorf("state %d (%s; %s): %v\n%s", i, points[i].name, r.doing(load, points[i].seen), err,
				r.d.LogTail(12))
		}
		if bad >= *keepOn {
			r.Fatalf("given up after %d bad states", bad)
		}
		_ = os.Truncate(r.d.Log, 0)
	}
	r.Logf("%d of %d states looked at in %.0f s", len(chosen), len(points), time.Since(began).Seconds())
}

func rank(p point) int {
	if p.ack {
		return 1
	}
	return 0
}

// doing says what was under way.
func (r *run) doing(load *recorder, seen int) string {
	words := []string{fmt.Sprintf("mark %d of %d", seen, load.last)}
	note := func(s *span) {
		if s.at(seen) == underway {
			words = append(words, s.what)
		}
	}
	for _, o := range load.objects {
		note(&o.born)
		note(&o.died)
		for _, g := range o.grown {
			note(&g.span)
		}
		for _, f := range o.filled {
			note(&f.span)
		}
		for _, l := range o.limited {
			note(&l.span)
		}
	}
	for _, v := range load.inlines {
		note(&v.born)
		note(&v.died)
	}
	for _, g := range load.images {
		note(&g.born)
	}
	return strings.Join(words, ", ")
}

// look makes a state, starts the driver on it and audits; whatever comes of that, the state is gone
// afterwards.
func (r *run) look(load *recorder, p point, number uint64) (err error) {
	random := rand.New(rand.NewPCG(*seed, number))
	if err := r.disks.show(p, random); err != nil {
		r.Fatalf("state %d: %v", number-1, err)
	}
	defer func() {
		r.d.Disconnect()
		_ = r.d.Kill()
		_ = r.takeDown()
		r.must(r.disks.hide())
	}()
	if err := r.attach(mapped(view)); err != nil {
		return err
	}
	a := &audit{d: r.d, pool: r.pool, objects: load.objects, groups: load.groups, inlines: load.inlines, images: load.images,
		seen: p.seen, empty: r.empty, random: random}
	if err := a.podsGo(); err != nil {
		return err
	}
	if err := r.d.Start(); err != nil {
		return err
	}
	if err := r.d.AwaitReady(); err != nil {
		return err
	}
	if a.client, err = r.d.Client(); err != nil {
		return err
	}
	if err := a.run(); err != nil {
		return err
	}
	return r.d.Term()
}
