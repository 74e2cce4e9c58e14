// SPDX-License-Identifier: Apache-2.0

package power

import (
	"errors"
	"fmt"
	"slices"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// group is a group of snapshots with all of its life: its members are objects that live as long as it does.
type group struct {
	name    string
	id      string
	members []*object

	born, died span
}

func (r *recorder) planGroup(name string, sources ...*object) *group {
	g := &group{name: name}
	for i, source := range sources {
		member := r.planSnapshot(fmt.Sprintf("%s, member %d", name, i), source)
		member.group = g
		g.members = append(g.members, member)
	}
	r.groups = append(r.groups, g)
	return g
}

func (r *recorder) createGroup(g *group) error {
	for _, o := range g.members {
		sizes := o.source.sizes(1 << 30)
		o.size, o.copied = sizes[len(sizes)-1], r.copied(o.source)
	}
	err := r.call(&g.born, "group "+g.name, func() error {
		made, err := g.create(r.d)
		if err != nil {
			return err
		}
		g.id = made.GetGroupSnapshotId()
		for i, s := range made.GetSnapshots() {
			g.members[i].id, g.members[i].name = s.GetSnapshotId(), rig.KeyOf(s.GetSnapshotId())
		}
		return nil
	})
	for _, o := range g.members {
		o.born = g.born
	}
	return err
}

func (r *recorder) removeGroup(g *group) error {
	err := r.call(&g.died, "delete group "+g.name, func() error { return g.remove(r.d, g.id, g.ids(nil)) })
	for _, o := range g.members {
		o.died = g.died
	}
	return err
}

// ids of its members: as they are now, nil: as they were acknowledged.
func (g *group) ids(now map[*object]string) (ids []string) {
	for _, o := range g.members {
		id := o.id
		if now != nil {
			id = now[o]
		}
		ids = append(ids, id)
	}
	return ids
}

func (g *group) create(d *rig.Driver) (*csi.VolumeGroupSnapshot, error) {
	c, err := d.Client()
	if err != nil {
		return nil, err
	}
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: g.name}
	for _, o := range g.members {
		request.SourceVolumeIds = append(request.SourceVolumeIds, o.source.id)
	}
	ctx, cancel := callContext()
	defer cancel()
	reply, err := c.CreateVolumeGroupSnapshot(ctx, request)
	if made := reply.GetGroupSnapshot(); err == nil && len(made.GetSnapshots()) != len(g.members) {
		err = fmt.Errorf("group %s: %v", g.name, made)
	}
	return reply.GetGroupSnapshot(), err
}

func (g *group) remove(d *rig.Driver, id string, members []string) error {
	c, err := d.Client()
	if err != nil {
		return err
	}
	ctx, cancel := callContext()
	defer cancel()
	_, err = c.DeleteVolumeGroupSnapshot(ctx,
		&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members})
	return err
}

// ---- the audit ----

// there is how many of its members are.
func (a *audit) there(g *group) (count int) {
	for _, o := range g.members {
		if a.ids[o] != "" {
			count++
		}
	}
	return count
}

// groupsWhole: all members are there, with the group's file, or nothing of it is.
func (a *audit) groupsWhole() error {
	var errs []error
	var want []string
	for _, g := range a.groups {
		if n := a.there(g); n == len(g.members) {
			want = append(want, g.name)
		} else if n != 0 {
			errs = append(errs, fmt.Errorf("group %s has %d members of %d", g.name, n, len(g.members)))
		}
	}
	slices.Sort(want)
	if got := a.pool.Names("groups"); !slices.Equal(got, want) {
		errs = append(errs, fmt.Errorf("groups holds %v, listed are members of %v", got, want))
	}
	return errors.Join(errs...)
}

// groupsAgain repeats the calls for groups that were under way.
func (a *audit) groupsAgain() error {
	for _, g := range a.groups {
		var err error
		switch {
		case g.born.at(a.seen) == underway && a.sourcesThere(g):
			err = a.groupBornAgain(g)
		case g.died.at(a.seen) == underway:
			err = a.removeGroup(g, g.ids(nil))
		case g.died.at(a.seen) == done:
			err = g.remove(a.d, g.id, g.ids(nil))
		}
		if err != nil {
			return fmt.Errorf("group %s: %w", g.name, err)
		}
	}
	return nil
}

func (a *audit) sourcesThere(g *group) bool {
	return !slices.ContainsFunc(g.members, func(o *object) bool { return a.ids[o.source] == "" })
}

func (a *audit) groupBornAgain(g *group) error {
	made, err := g.create(a.d)
	if err != nil {
		return err
	}
	if a.there(g) != 0 && made.GetGroupSnapshotId() != g.id {
		return fmt.Errorf("the repeat gives %s, there was %s", made.GetGroupSnapshotId(), g.id)
	}
	a.groupIDs[g] = made.GetGroupSnapshotId()
	for i, s := range made.GetSnapshots() {
		a.ids[g.members[i]] = s.GetSnapshotId()
	}
	return nil
}

func (a *audit) removeGroup(g *group, ids []string) error {
	id := g.id
	if anew := a.groupIDs[g]; anew != "" {
		id = anew
	}
	if err := g.remove(a.d, id, ids); err != nil {
		return err
	}
	for _, o := range g.members {
		delete(a.ids, o)
	}
	return nil
}
