// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// audit looks at one state of the pool, served by a driver that has just started on it.
type audit struct {
	d       *rig.Driver
	client  *rig.Client
	pool    *rig.Pool
	objects []*object
	groups  []*group
	inlines []*inline
	images  []*golden
	seen    int   // the last mark before the power went
	empty   int64 // what an empty pool had to give
	random  *rand.Rand

	ids      map[*object]string // of those that are there
	groupIDs map[*group]string  // of those that were made anew
	imageIDs map[*golden]string // of those that are there
	podless  map[*inline]bool   // of those whose pod's directory is gone
}

// slack of free space: what a file system's own structures take and give back as they like.
func (a *audit) slack() int64 {
	if a.pool.IsRaw() {
		return 48 * mib // the thin pool's metadata, and templates
	}
	if a.pool.FS == "btrfs" {
		return 24 * mib
	}
	return 4 * mib
}

func (a *audit) run() error {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"listed", a.listed},
		{"inline volumes", a.inlineThere},
		{"at rest", a.atRest},
		{"content", a.contents},
		{"capacity", a.capacity},
		{"again", a.again},
		{"images again", a.imagesAgain},
		{"inline volumes again", a.inlineAgain},
		{"capacity after the repeats", a.capacity},
		{"emptied", a.emptied},
	} {
		if err := patiently(step.run); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// patiently repeats what was answered with "try again": a pool that is slow for a moment, in a guest on a busy
// machine, is sick until it answers.
func patiently(step func() error) error {
	return rig.Eventually(time.Minute, func() error {
		err := step()
		if err != nil && rig.Code(err) != codes.Unavailable {
			return rig.Stop(err)
		}
		return err
	})
}

func callContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), rig.CallTimeout)
}

// ---- what the driver says ----

func (a *audit) find(snapshot bool, name string) *object {
	for _, o := range a.objects {
		if o.snapshot == snapshot && o.name == name && o.at(a.seen) != notYet {
			return o
		}
	}
	return nil
}

func (a *audit) listed() error {
	ctx, cancel := callContext()
	defer cancel()
	volumes, err := a.client.ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return err
	}
	snapshots, err := a.client.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
	if err != nil {
		return err
	}
	a.imageIDs = map[*golden]string{}
	a.ids, a.groupIDs = map[*object]string{}, map[*group]string{}
	var errs []error
	for _, entry := range volumes.GetEntries() {
		v := entry.GetVolume()
		if a.onTheWay(rig.KeyOf(v.GetVolumeId())) {
			continue
		}
		errs = append(errs, a.note(false, v.GetVolumeId(), v.GetCapacityBytes(), func(o *object) error {
			if want := o.volume(a.d).Source; rig.SourceOf(v.GetContentSource()) != rig.SourceOf(want) {
				return fmt.Errorf("%v is of %q, not of %q", o, rig.SourceOf(v.GetContentSource()),
					rig.SourceOf(want))
			}
			return nil
		}))
	}
	for _, entry := range snapshots.GetEntries() {
		s := entry.GetSnapshot()
		if g := a.imageOf(rig.KeyOf(s.GetSnapshotId())); g != nil {
			if g.id != s.GetSnapshotId() {
				errs = append(errs, fmt.Errorf("golden image %s has the id %s, acknowledged was %s", g.name, s.GetSnapshotId(), g.id))
			}
			a.imageIDs[g] = s.GetSnapshotId()
			continue
		}
		errs = append(errs, a.note(true, s.GetSnapshotId(), s.GetSizeBytes(), func(o *object) error {
			if s.GetSourceVolumeId() != o.source.id || !s.GetReadyToUse() {
				return fmt.Errorf("%v is of %s, ready %v; it is of %s", o, s.GetSourceVolumeId(),
					s.GetReadyToUse(), o.source.id)
			}
			if o.group != nil && s.GetGroupSnapshotId() != o.group.id {
				return fmt.Errorf("%v is of the group %q, acknowledged was %s", o, s.GetGroupSnapshotId(), o.group.id)
			}
			return nil
		}))
	}
	for _, o := range a.objects {
		if o.at(a.seen) == done && a.ids[o] == "" {
			errs = append(errs, fmt.Errorf("%v (%s) is lost", o, o.id))
		}
	}
	for _, g := range a.images {
		if g.born.at(a.seen) == done && a.imageIDs[g] == "" {
			errs = append(errs, fmt.Errorf("golden image %s (%s) is lost", g.name, g.id))
		}
	}
	return errors.Join(errs...)
}

// note compares something that is there with what is known of it. The call that made it was answered
// in the end, so that its id is known also where the power went before.
func (a *audit) note(snapshot bool, id string, size int64, compare func(o *object) error) error {
	o := a.find(snapshot, rig.KeyOf(id))
	switch {
	case o == nil:
		return fmt.Errorf("%s must not be there (snapshot: %v)", id, snapshot)
	case a.ids[o] != "":
		return fmt.Errorf("%v is there twice", o)
	case id != o.id:
		return fmt.Errorf("%v has the id %s, acknowledged was %s", o, id, o.id)
	case !slices.Contains(o.sizes(a.seen), size):
		return fmt.Errorf("%v has %d bytes, not one of %v", o, size, o.sizes(a.seen))
	}
	a.ids[o] = id
	return compare(o)
}

// ---- what lies in the pool ----

func (a *audit) atRest() error {
	return rig.Eventually(20*time.Second, func() error {
		errs := []error{a.pool.Strays(), a.groupsWhole(), a.limits()}
		for _, dir := range []string{"volumes", "snapshots"} {
			want := []string{}
			if dir == "volumes" {
				want = append(want, a.inlineNames()...)
			}
			for g, id := range a.imageIDs {
				if dir == "snapshots" && id != "" {
					want = append(want, g.name)
				}
			}
			for o, id := range a.ids {
				if o.snapshot == (dir == "snapshots") {
					want = append(want, rig.KeyOf(id))
				}
			}
			slices.Sort(want)
			got := slices.DeleteFunc(a.pool.Names(dir), a.onTheWay)
			if !slices.Equal(got, want) {
				errs = append(errs, fmt.Errorf("%s holds %v, listed are %v", dir, got, want))
			}
		}
		return errors.Join(errs...)
	})
}

// limits: a record has what was acknowledged last, or what was under way.
func (a *audit) limits() error {
	var errs []error
	for o, id := range a.ids {
		if len(o.limited) == 0 {
			continue
		}
		text, err := rig.RecordOf(a.pool.Image(id))
		if err == nil && !slices.ContainsFunc(o.limits(a.seen), func(iops int) bool {
			return iops == 0 && !strings.Contains(text, "_iops=") ||
				strings.Contains(text, fmt.Sprintf("\nread_iops=%d\nwrite_iops=%d\n", iops, iops))
		}) {
			err = fmt.Errorf("%v has not one of the limits %v, its record says\n%s", o, o.limits(a.seen), text)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (a *audit) image(o *object) string {
	if o.snapshot {
		return a.pool.SnapshotImage(a.ids[o])
	}
	return a.pool.Image(a.ids[o])
}

// ---- what they hold ----

// contents reads every image that is a device's, and mounts what was changed last and one more: all of
// them at each state would take hours.
func (a *audit) contents() error {
	var mounted []*object
	for _, o := range a.objects {
		if a.ids[o] == "" {
			continue
		}
		if a.pool.IsRaw() { // whose images have no bytes
			mounted = append(mounted, o)
			continue
		}
		info, err := os.Stat(a.image(o))
		if err != nil || info.Size() < o.sizes(a.seen)[0] {
			return fmt.Errorf("the image of %v: %v, %d bytes", o, err, info.Size())
		}
		if o.kind != "block" {
			mounted = append(mounted, o)
			continue
		}
		if c, known := o.holds(a.seen); known && c.sum != "" {
			if err := rig.Check(a.image(o), c.size, c.sum); err != nil {
				return fmt.Errorf("%v: %w", o, err)
			}
		}
	}
	slices.SortStableFunc(mounted, func(x, y *object) int { return y.latest(a.seen) - x.latest(a.seen) })
	for i, other := range a.random.Perm(len(mounted)) {
		if i == 0 && other > 0 {
			mounted[1], mounted[other] = mounted[other], mounted[1]
		}
	}
	for _, o := range mounted[:min(2, len(mounted))] {
		if err := a.mountable(o); err != nil {
			return err
		}
	}
	return nil
}

// mountable takes it up, reads it, and takes it down: a snapshot in a volume restored from it.
func (a *audit) mountable(o *object) error {
	v := o.volume(a.d)
	v.ID = a.ids[o]
	if o.snapshot {
		v = a.d.Volume("restored", rig.CapFor(o.kind), o.size)
		v.Source = rig.FromSnapshot(a.ids[o])
		v.Params = o.params
	}
	if err := v.Up(); err != nil {
		return fmt.Errorf("%v: %w", o, err)
	}
	if c, known := o.holds(a.seen); known && c.sum != "" {
		if err := rig.Check(v.Target, c.size, c.sum); err != nil {
			return fmt.Errorf("%v: %w", o, err)
		}
	}
	if want := o.uuid(a.seen); want != "" && !o.snapshot {
		if got, err := uuidOf(v.Target); err != nil || got != want {
			return fmt.Errorf("%v: its file system's id is %s, was %s (%v)", o, got, want, err)
		}
	}
	if err := v.Down(); err != nil {
		return fmt.Errorf("%v: %w", o, err)
	}
	if o.snapshot {
		return v.Delete()
	}
	return nil
}

// ---- room ----

func (a *audit) available() (int64, error) {
	ctx, cancel := callContext()
	defer cancel()
	request := &csi.GetCapacityRequest{}
	if a.pool.IsRaw() { // to thick ones its thin pool gives nothing for a minute after the last thin one
		request.Parameters = map[string]string{"provisioning": "thin"}
	}
	reply, err := a.client.GetCapacity(ctx, request)
	return reply.GetAvailableCapacity(), err
}

// capacity: free space less the reserve and less what was promised; what volumes have got of that
// already counts as free, unless snapshots and clones share it.
func (a *audit) capacity() error {
	if a.pool.IsRaw() {
		return a.area()
	}
	return rig.Eventually(10*time.Second, func() error {
		got, err := a.available()
		if err != nil {
			return err
		}
		ctx, cancel := callContext()
		defer cancel()
		volumes, err := a.client.ListVolumes(ctx, &csi.ListVolumesRequest{})
		if err != nil {
			return err
		}
		var st unix.Statfs_t
		if err := unix.Statfs(a.pool.Path, &st); err != nil {
			return err
		}
		least := int64(st.Bavail)*st.Bsize - int64(st.Blocks)*st.Bsize/20
		most := least
		for _, entry := range volumes.GetEntries() {
			size := entry.GetVolume().GetCapacityBytes()
			has, err := rig.Allocated(a.pool.Image(entry.GetVolume().GetVolumeId()))
			if err != nil {
				return err
			}
			least -= size
			most += min(has, size) - size
		}
		promised, has, err := a.inlinePromise()
		if err != nil {
			return err
		}
		least -= promised
		most += has - promised
		if got < max(0, least)-a.slack() || got > max(0, most)+a.slack() {
			return fmt.Errorf("%d MiB to give, not between %d and %d", got/mib, least/mib, most/mib)
		}
		return nil
	})
}

// area: no part of a raw pool's disk is two images', and the kernel's thin pool knows what images say, and no more.
func (a *audit) area() error {
	return rig.Eventually(20*time.Second, func() error {
		_, err := a.available()
		_, err2 := a.pool.Maps()
		return errors.Join(err, err2, a.pool.ThinAgrees())
	})
}

// ---- what was cut short ----

// again repeats the calls that were under way: they succeed, and what they are for is there whole.
func (a *audit) again() error {
	for _, o := range a.objects {
		var err error
		switch {
		case o.group != nil: // groupsAgain
		case o.born.at(a.seen) == underway:
			err = a.bornAgain(o)
		case o.died.at(a.seen) == underway:
			err = a.remove(o, o.id)
		case o.at(a.seen) == done:
			for _, l := range o.limited {
				if l.at(a.seen) == underway && err == nil {
					err = o.volume(a.d).Modify(map[string]string{"iops": strconv.Itoa(l.iops)})
				}
			}
			for _, g := range o.grown {
				if g.at(a.seen) == underway && err == nil {
					v := o.volume(a.d)
					if err = v.Expand(g.size, false); err == nil && v.Got != g.size {
						err = fmt.Errorf("%d bytes instead of %d", v.Got, g.size)
					}
					if err == nil && o.kind != "block" {
						err = a.mountable(o)
					}
				}
			}
		}
		if err != nil {
			return fmt.Errorf("%v: %w", o, err)
		}
	}
	if err := a.groupsAgain(); err != nil {
		return err
	}
	return a.gone()
}

// gone: a late repeat of an acknowledged deletion succeeds, and what has the name now stays.
func (a *audit) gone() error {
	for _, o := range a.objects {
		if o.group == nil && o.died.at(a.seen) == done {
			if err := a.remove(o, o.id); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *audit) bornAgain(o *object) error {
	var id string
	if o.snapshot {
		s, err := o.source.volume(a.d).Snapshot(o.name)
		if err != nil {
			return err
		}
		id = s.GetSnapshotId()
	} else {
		v := o.volume(a.d)
		if err := v.Create(); err != nil {
			return err
		}
		id = v.ID
	}
	if a.ids[o] != "" && a.ids[o] != id {
		return fmt.Errorf("the repeat gives %s, there was %s", id, a.ids[o])
	}
	a.ids[o] = id
	if o.kind != "block" || a.pool.IsRaw() {
		return a.mountable(o)
	}
	if o.copied.sum != "" {
		return rig.Check(a.image(o), o.copied.size, o.copied.sum)
	}
	return nil
}

func (a *audit) remove(o *object, id string) error {
	var err error
	if o.snapshot {
		err = a.d.DeleteSnapshot(id)
	} else {
		v := o.volume(a.d)
		v.ID = id
		err = v.Delete()
	}
	if err == nil && a.ids[o] == id {
		delete(a.ids, o)
	}
	return err
}

// ---- the end ----

// emptied deletes everything: the room it took is free again, so nothing was leaked.
func (a *audit) emptied() error {
	for _, g := range a.groups {
		if a.there(g) > 0 {
			if err := a.removeGroup(g, g.ids(a.ids)); err != nil {
				return fmt.Errorf("group %s: %w", g.name, err)
			}
		}
	}
	for _, o := range a.objects {
		if id := a.ids[o]; id != "" {
			if err := a.remove(o, id); err != nil {
				return fmt.Errorf("%v: %w", o, err)
			}
		}
	}
	if err := a.imagesGone(); err != nil {
		return err
	}
	if err := a.atRest(); err != nil {
		return err
	}
	kept := int64(0)
	for _, name := range a.pool.Names("templates") {
		if a.pool.IsRaw() {
			break
		}
		has, err := rig.Allocated(filepath.Join(a.pool.Path, "templates", name))
		if err != nil {
			return err
		}
		kept += has
	}
	return rig.Eventually(20*time.Second, func() error {
		if err := syncFS(a.pool.Path); err != nil { // btrfs frees with a commit
			return err
		}
		if a.pool.IsRaw() {
			if err := errors.Join(a.pool.Strays(), a.area()); err != nil {
				return err
			}
		}
		got, err := a.available()
		if err == nil && got+kept < a.empty-a.slack() {
			err = fmt.Errorf("an empty pool has %d MiB to give, %d MiB are missing", got/mib,
				(a.empty-kept-got)/mib)
		}
		return err
	})
}

func syncFS(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}
