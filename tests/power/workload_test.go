// SPDX-License-Identifier: Apache-2.0

package power

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"unsafe"

	"ringvol.dev/tests/rig"
)

const (
	mib     = rig.MiB
	payload = mib / 4
)

// recorder runs the load, each call between two marks in the log.
type recorder struct {
	d      *rig.Driver
	pool   *rig.Pool
	marker func(number int) error

	mu      sync.Mutex
	last    int
	acks    map[int]string // mark -> what was acknowledged
	objects []*object
	groups  []*group
	inlines []*inline
	images  []*golden
}

func (r *recorder) mark(ack string) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	if ack != "" {
		r.acks[r.last] = ack
	}
	return r.last, r.marker(r.last)
}

// call notes when it was asked for and when it was answered. Calls that change one object follow
// each other; those on different ones may run at once.
func (r *recorder) call(s *span, what string, call func() error) (err error) {
	s.what = what
	if s.begun, err = r.mark(""); err != nil {
		return err
	}
	if err = call(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	s.end, err = r.mark(what)
	return err
}

func (r *recorder) add(o *object) *object {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objects = append(r.objects, o)
	return o
}

func (r *recorder) copied(source *object) content {
	if source == nil {
		return content{}
	}
	r.mu.Lock()
	now := r.last
	r.mu.Unlock()
	c, _ := source.holds(now)
	return c
}

func (r *recorder) plan(name, kind string, size int64, params ...string) *object {
	o := &object{name: name, kind: kind, size: size, params: map[string]string{}}
	for i := 0; i+1 < len(params); i += 2 {
		o.params[params[i]] = params[i+1]
	}
	return r.add(o)
}

func (r *recorder) planFrom(name string, source *object) *object {
	sizes := source.sizes(1 << 30)
	o := r.plan(name, source.kind, sizes[len(sizes)-1])
	o.source = source
	if r.pool.IsRaw() {
		o.params = source.params // thin of thin, thick of thick
	}
	return o
}

func (r *recorder) planSnapshot(name string, source *object) *object {
	o := r.planFrom(name, source)
	o.snapshot = true
	return o
}

func (r *recorder) create(o *object) error {
	o.copied = r.copied(o.source)
	if o.snapshot {
		return r.call(&o.born, "snapshot "+o.name, func() error {
			s, err := o.source.volume(r.d).Snapshot(o.name)
			o.id = s.GetSnapshotId()
			return err
		})
	}
	v := o.volume(r.d)
	return r.call(&o.born, "create "+o.name, func() error {
		err := v.Create()
		o.id, o.context = v.ID, v.Context
		return err
	})
}

func (r *recorder) limit(o *object, iops int) error {
	l := &limiting{iops: iops}
	o.limited = append(o.limited, l)
	return r.call(&l.span, "limit "+o.name, func() error {
		return o.volume(r.d).Modify(map[string]string{"iops": strconv.Itoa(iops)})
	})
}

func (r *recorder) grow(o *object, size int64) error {
	g := &growth{size: size}
	v := o.up
	if v == nil {
		v = o.volume(r.d)
	}
	o.grown = append(o.grown, g)
	return r.call(&g.span, "grow "+o.name, func() error { return v.Expand(size, o.up != nil) })
}

// fill mounts the volume, unless it is, and writes into it.
func (r *recorder) fill(o *object, seed uint64) error {
	f := &filling{}
	o.filled = append(o.filled, f)
	return r.call(&f.span, "fill "+o.name, func() (err error) {
		if o.up == nil {
			v := o.volume(r.d)
			if err = v.Up(); err != nil {
				return err
			}
			o.up = v
		}
		f.size = payload
		if f.sum, err = rig.Fill(o.up.Target, payload, seed); err != nil {
			return err
		}
		f.uuid, err = uuidOf(o.up.Target)
		return err
	})
}

func (r *recorder) down(o *object) error {
	err := o.up.Down()
	o.up = nil
	return err
}

func (r *recorder) remove(o *object) error {
	if o.snapshot {
		return r.call(&o.died, "delete snapshot "+o.name, func() error { return r.d.DeleteSnapshot(o.id) })
	}
	v := o.volume(r.d)
	return r.call(&o.died, "delete "+o.name, v.Delete)
}

// atOnce runs calls side by side.
func atOnce(calls ...func() error) error {
	errs := make([]error, len(calls))
	var all sync.WaitGroup
	for i, call := range calls {
		all.Go(func() { errs[i] = call() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// script makes one call after the other, and no more once one has failed.
type script struct {
	*recorder
	failed error
}

func (s *script) step(call func() error) {
	if s.failed == nil {
		s.failed = call()
	}
}

func (s *script) create(o *object) *object {
	s.step(func() error { return s.recorder.create(o) })
	return o
}

func (s *script) fill(o *object, seed uint64) {
	s.step(func() error { return s.recorder.fill(o, seed) })
}

func (s *script) down(o *object) { s.step(func() error { return s.recorder.down(o) }) }

func (s *script) grow(o *object, size int64) {
	s.step(func() error { return s.recorder.grow(o, size) })
}

func (s *script) remove(o *object) { s.step(func() error { return s.recorder.remove(o) }) }

// run is the load: three or more of each operation, alone and side by side. It ends at the first
// error.
func (r *recorder) run(short bool) error {
	l := &script{recorder: r}

	a := l.create(r.plan("a", "ext4", 32*mib)) // the first one makes the template
	b := l.create(r.plan("b", "block", 16*mib))
	l.fill(a, 1)
	l.fill(b, 2)
	l.down(b)
	s1 := l.create(r.planSnapshot("s1", a)) // of a volume in use
	s2 := l.create(r.planSnapshot("s2", b))
	c := l.create(r.planFrom("c", a))
	l.fill(a, 3) // what s1 and c hold stays
	l.grow(b, 24*mib)
	l.grow(a, 48*mib)
	l.step(func() error { return r.limit(a, 100000) }) // too many to wait for
	l.step(func() error { return r.limit(a, 200000) })
	g1 := r.planGroup("g1", a, c, b)
	g2 := r.planGroup("g2", a, c)
	l.step(func() error { return r.createGroup(g1) })
	l.step(func() error { return r.createGroup(g2) })
	l.step(func() error { return r.removeGroup(g1) })
	// So many that each is named while the names of others are made durable.
	var crowd []func() error
	for i := range 12 {
		var o *object
		if i%4 == 3 {
			o = r.planSnapshot(fmt.Sprintf("y%d", i), b)
		} else {
			o = r.plan(fmt.Sprintf("x%d", i), "block", 16*mib)
		}
		crowd = append(crowd, func() error { return r.create(o) })
	}
	l.step(func() error { return atOnce(crowd...) })
	l.remove(s2)
	l.remove(b)
	l.runInline()
	if short {
		l.down(a)
		l.remove(a)
		return l.failed
	}
	d := l.create(r.planFrom("d", s1))
	l.fill(d, 4)
	again := l.create(r.plan("b", "block", 16*mib)) // the name anew
	l.fill(again, 5)
	l.down(again)
	if r.pool.FS != "btrfs" { // which has no thick volumes
		e := l.create(r.plan("e", "block", 16*mib, "provisioning", "thick", "eraseOnDelete", "zero"))
		l.fill(e, 6)
		l.down(e)
		l.grow(e, 24*mib)
		l.remove(e)
	}
	l.down(d)
	f, g, h := r.plan("f", "ext4", 32*mib), r.plan("g", "block", 16*mib), r.planFrom("h", c)
	s3, s4 := r.planSnapshot("s3", again), r.planSnapshot("s4", d)
	l.step(func() error {
		return atOnce(
			func() error { return r.create(f) },
			func() error { return r.create(g) },
			func() error { return r.create(h) },
			func() error { return r.create(s3) },
			func() error { return r.create(s4) })
	})
	l.fill(h, 7)
	l.down(h)
	l.step(func() error {
		return atOnce(
			func() error { return r.remove(f) },
			func() error { return r.remove(s4) },
			func() error { return r.remove(d) },
			func() error { return r.grow(h, 64*mib) },
			func() error { return r.grow(g, 24*mib) })
	})
	l.down(a)
	l.remove(a) // what was copied from it stays
	l.remove(s1)
	return l.failed
}

// runRaw is the load of a raw pool: thick and thin volumes, each alone and side by side, with snapshots, groups of them and clones.
func (r *recorder) runRaw(short bool) error {
	l := &script{recorder: r}
	plan := func(name, kind string, size int64, provisioning string) *object {
		return r.plan(name, kind, size, "provisioning", provisioning)
	}

	a := l.create(plan("a", "ext4", 32*mib, "thin")) // the first one makes the thin pool and the template
	b := l.create(plan("b", "block", 16*mib, "thin"))
	k := l.create(plan("k", "block", 16*mib, "thick"))
	l.fill(a, 1)
	l.fill(b, 2)
	l.fill(k, 3)
	s1 := l.create(r.planSnapshot("s1", a)) // of a volume in use
	s2 := l.create(r.planSnapshot("s2", b))
	g1, g2 := r.planGroup("g1", a, b), r.planGroup("g2", b, a)
	l.step(func() error { return r.createGroup(g1) })
	l.step(func() error { return r.createGroup(g2) })
	c := l.create(r.planFrom("c", a))
	l.fill(a, 4) // what s1, g1 and c hold stays
	l.step(func() error { return r.removeGroup(g1) })
	l.down(b)
	l.down(k)
	l.grow(b, 24*mib)
	l.grow(a, 48*mib)
	l.grow(k, 24*mib)
	copied := l.create(r.planFrom("l", k))
	var crowd []func() error
	for i := range 12 {
		var o *object
		switch i % 4 {
		case 3:
			o = r.planSnapshot(fmt.Sprintf("y%d", i), b)
		case 2:
			o = plan(fmt.Sprintf("x%d", i), "block", 16*mib, "thick")
		default:
			o = plan(fmt.Sprintf("x%d", i), "block", 16*mib, "thin")
		}
		crowd = append(crowd, func() error { return r.create(o) })
	}
	l.step(func() error { return atOnce(crowd...) })
	l.remove(s2)
	l.remove(k)
	l.remove(b)
	if short {
		l.down(a)
		l.remove(a)
		return l.failed
	}
	d := l.create(r.planFrom("d", s1))
	l.fill(d, 5)
	again := l.create(plan("b", "block", 16*mib, "thick")) // the name anew, where another's bytes were
	l.fill(again, 6)
	l.down(again)
	l.down(d)
	f, g, h := plan("f", "ext4", 32*mib, "thick"), plan("g", "block", 16*mib, "thin"), r.planFrom("h", c)
	s4 := r.planSnapshot("s4", d)
	l.step(func() error {
		return atOnce(
			func() error { return r.create(f) },
			func() error { return r.create(g) },
			func() error { return r.create(h) },
			func() error { return r.create(s4) })
	})
	l.fill(h, 7)
	l.down(h)
	l.step(func() error {
		return atOnce(
			func() error { return r.remove(f) },
			func() error { return r.remove(s4) },
			func() error { return r.remove(d) },
			func() error { return r.remove(copied) },
			func() error { return r.grow(h, 64*mib) },
			func() error { return r.grow(g, 24*mib) })
	})
	l.down(a)
	l.remove(a) // what was copied from it stays
	l.remove(s1)
	return l.failed
}

// uuidOf is the id of the file system that is mounted at path; "" for a device.
func uuidOf(path string) (string, error) {
	const get = 0x8008662c // EXT4_IOC_GETFSUUID, since Linux 6.0
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.IsDir() {
		return "", err
	}
	answer := struct {
		length, flags uint32
		uuid          [16]byte
	}{length: 16}
	if err := ioctl(file, get, unsafe.Pointer(&answer)); err != nil {
		return "", err
	}
	return hex.EncodeToString(answer.uuid[:]), nil
}
