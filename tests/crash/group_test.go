// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// group is what the test knows of one: snapshots of several volumes of one pool, all there or none.
type group struct {
	name    string
	id      string
	pool    *rig.Pool
	members []*snapshot // their ids are known with the group's
	busy    string
	seen    string // the id an audit saw while its creation was under way
}

// certain tells whether the group has to be there.
func (g *group) certain() bool {
	return g.id != "" && g.busy != "delete"
}

// groupStep makes a group, looks at it, or deletes it.
func (w *worker) groupStep() {
	if len(w.groups) == 0 {
		w.makeGroup()
		return
	}
	g := w.groups[w.random.IntN(len(w.groups))]
	if w.chance(40) {
		w.getGroup(g)
	} else {
		w.deleteGroup(g)
	}
}

// sources are volumes of one pool, own ones and pods. No block volumes, but in a raw pool: two in use cannot be of one moment.
// There thin ones alone.
func (w *worker) sources() []*volume {
	all := slices.Clone(w.volumes)
	for _, p := range w.t.pods {
		all = append(all, p.volume)
	}
	all = slices.DeleteFunc(all, func(v *volume) bool {
		return v.kind == "block" && !v.pool.IsRaw() || v.pool.IsRaw() && !v.thin || !mayCopy(v)
	})
	if len(all) == 0 {
		return nil
	}
	w.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	pool := all[0].pool
	all = slices.DeleteFunc(all, func(v *volume) bool { return v.pool != pool })
	return all[:min(len(all), 1+w.random.IntN(3))]
}

func (w *worker) makeGroup() {
	sources := w.sources()
	if len(sources) == 0 {
		return
	}
	w.serial++
	g := &group{name: fmt.Sprintf("%s-g%d", w.name, w.serial), pool: sources[0].pool, busy: "create"}
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: g.name}
	w.t.model.with(func() {
		for _, v := range sources {
			copied := volume{Volume: *v.Volume.On(w.client), kind: v.kind, pool: v.pool, thin: v.thin}
			g.members = append(g.members, &snapshot{source: &copied, size: v.Got, has: w.t.contentOf(v), pool: v.pool,
				group: g})
			request.SourceVolumeIds = append(request.SourceVolumeIds, v.ID)
		}
		w.t.model.groups[g.name] = g
	})
	var made *csi.VolumeGroupSnapshot
	if !w.do("group", fmt.Sprintf("%s of %d", g.name, len(sources)), func() error {
		ctx, cancel := callContext()
		defer cancel()
		reply, err := w.client.CreateVolumeGroupSnapshot(ctx, request)
		made = reply.GetGroupSnapshot()
		return err
	}) {
		return
	}
	w.t.model.with(func() {
		if err := w.t.model.acknowledge(g, made); err != nil {
			w.t.violation("%s: %v", w.name, err)
		}
	})
	w.groups = append(w.groups, g)
}

// acknowledge enters what a creation has answered. With the model's lock.
func (m *model) acknowledge(g *group, made *csi.VolumeGroupSnapshot) error {
	g.id, g.busy = made.GetGroupSnapshotId(), ""
	if g.seen != "" && g.seen != g.id {
		return fmt.Errorf("%s was made as %s before the kill and as %s by the retry", g.name, g.seen, g.id)
	}
	if rig.KeyOf(g.id) != g.name || len(made.GetSnapshots()) != len(g.members) || !made.GetReadyToUse() {
		return fmt.Errorf("group %s of %d members: %v", g.name, len(g.members), made)
	}
	for i, s := range g.members {
		got := made.GetSnapshots()[i]
		s.id, s.name = got.GetSnapshotId(), rig.KeyOf(got.GetSnapshotId())
		// A pod may have grown between.
		if got.GetSizeBytes() < s.size || m.snapshots[s.name] != nil {
			return fmt.Errorf("member %d of group %s has %d bytes of %d: %v", i, g.name, got.GetSizeBytes(), s.size, got)
		}
		s.size = got.GetSizeBytes()
		if err := s.matches(got); err != nil {
			return fmt.Errorf("group %s: %w", g.name, err)
		}
		m.snapshots[s.name] = s
	}
	return nil
}

func (w *worker) getGroup(g *group) {
	w.do("get group", g.name, func() error {
		ctx, cancel := callContext()
		defer cancel()
		reply, err := w.client.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.id,
			SnapshotIds: g.memberIDs()})
		if err != nil {
			return err
		}
		got := reply.GetGroupSnapshot()
		if got.GetGroupSnapshotId() != g.id || len(got.GetSnapshots()) != len(g.members) {
			return fmt.Errorf("group %s: %v", g.name, got)
		}
		var errs []error
		for i, s := range g.members {
			errs = append(errs, s.matches(got.GetSnapshots()[i]))
		}
		return errors.Join(errs...)
	})
}

func (g *group) memberIDs() (ids []string) {
	for _, s := range g.members {
		ids = append(ids, s.id)
	}
	return ids
}

func (w *worker) deleteGroup(g *group) {
	w.t.model.with(func() {
		g.busy = "delete"
		for _, s := range g.members {
			s.busy = "delete"
		}
	})
	if !w.do("delete group", g.name, func() error {
		ctx, cancel := callContext()
		defer cancel()
		_, err := w.client.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.id,
			SnapshotIds: g.memberIDs()})
		return err
	}) {
		return
	}
	w.t.model.with(func() {
		delete(w.t.model.groups, g.name)
		for _, s := range g.members {
			delete(w.t.model.snapshots, s.name)
			w.t.model.gone[s.id] = true
		}
	})
	w.groups = slices.DeleteFunc(w.groups, func(other *group) bool { return other == g })
}

// inGroupUnderWay: a group freezes its volumes, and whoever was killed meanwhile has left them so.
func (m *model) inGroupUnderWay(v *volume) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.groups {
		if g.busy == "create" && slices.ContainsFunc(g.members, func(s *snapshot) bool { return s.source.ID == v.ID }) {
			return true
		}
	}
	return false
}

// ---- what an audit finds ----

// groupOf is the group whose creation is under way and which a listed member belongs to; nil: none.
func (m *model) groupOf(got *csi.Snapshot) *group {
	g := m.groups[rig.KeyOf(got.GetGroupSnapshotId())]
	if got.GetGroupSnapshotId() == "" || g == nil || g.id != "" {
		return nil
	}
	return g
}

// compareGroups: of a group whose creation was cut short all members are listed, or none is; so it is with one whose
// deletion was. With the model's lock.
func (m *model) compareGroups(listed []*csi.Snapshot) error {
	count, ids := map[*group]int{}, map[*group]string{}
	var errs []error
	for _, got := range listed {
		g := m.groups[rig.KeyOf(got.GetGroupSnapshotId())]
		if got.GetGroupSnapshotId() == "" || g == nil {
			continue // said by compareSnapshots
		}
		if id := ids[g]; id != "" && id != got.GetGroupSnapshotId() {
			errs = append(errs, fmt.Errorf("members of two groups of the name %s: %s and %s", g.name, id,
				got.GetGroupSnapshotId()))
		}
		ids[g] = got.GetGroupSnapshotId()
		count[g]++
	}
	for _, g := range m.groups {
		if g.id == "" {
			g.seen = ids[g]
		}
		if n := count[g]; n != len(g.members) && (n != 0 || g.certain()) {
			errs = append(errs, fmt.Errorf("group %s (%s, under way: %q) has %d members of %d", g.name, g.id, g.busy, n,
				len(g.members)))
		}
	}
	return errors.Join(errs...)
}

// auditGroups compares a pool's files of groups and of their members. With the model's lock.
func (m *model) auditGroups(pool *rig.Pool) error {
	files, members := map[string]bool{}, map[string]int{}
	var errs []error
	for _, name := range pool.Names("groups") {
		files[name] = true
		if g := m.groups[name]; g == nil || g.pool != pool {
			errs = append(errs, fmt.Errorf("pool %s: groups/%s is nobody's", pool.Name, name))
		}
	}
	for _, name := range pool.Names("snapshots") {
		members[groupInName(name)]++
	}
	for _, g := range m.groups {
		if g.pool != pool {
			continue
		}
		want := 0
		if files[g.name] {
			want = len(g.members)
		}
		if n := members[g.name]; n != want || g.certain() && !files[g.name] {
			errs = append(errs, fmt.Errorf("pool %s: group %s (under way: %q) has a file: %v; and %d members of %d",
				pool.Name, g.name, g.busy, files[g.name], n, len(g.members)))
		}
	}
	return errors.Join(errs...)
}

// groupInName is the name of the group that a member's name begins with; that of another snapshot has no dot.
func groupInName(name string) string {
	group, _, is := strings.Cut(name, ".")
	if !is {
		return ""
	}
	return group
}
