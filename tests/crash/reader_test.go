// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"strings"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

func callContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), rig.CallTimeout)
}

// ask makes one of the calls that change nothing.
func (w *worker) ask() {
	switch w.random.IntN(10) {
	case 0, 1:
		w.list()
	case 2:
		w.listSnapshots()
	case 3:
		w.get()
	case 4:
		w.capacity()
	case 5:
		w.validate()
	case 6, 7:
		w.health()
	default:
		w.introduce()
	}
}

// stable lists the ids that have to be in any listing that goes on now.
func (m *model) stable() (volumes, snapshots map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes, snapshots = map[string]bool{}, map[string]bool{}
	for _, v := range m.volumes {
		if v.certain() {
			volumes[v.ID] = true
		}
	}
	for _, s := range m.snapshots {
		if s.id != "" && s.busy != "delete" {
			snapshots[s.id] = true
		}
	}
	return volumes, snapshots
}

// pages reads a listing page by page; a page that fails is asked for again with the same token,
// also from the driver's next run.
func (w *worker) pages(what string, page func(max int32, token string) (next string, err error)) bool {
	token := ""
	for {
		max, next := int32(w.random.IntN(5)), ""
		if !w.do(what, token, func() (err error) {
			next, err = page(max, token)
			return err
		}) {
			return false
		}
		if next == "" {
			return true
		}
		token = next
	}
}

// missing is a violation for each id that was there before and after the listing and not in it.
func (w *worker) missing(what string, before, after, found map[string]bool) {
	for id := range before {
		if after[id] && !found[id] {
			w.t.violation("%s: %s is not among the %d %s listed", w.name, id, len(found), what)
		}
	}
}

func (w *worker) list() {
	before, _ := w.t.model.stable()
	found := map[string]bool{}
	if !w.pages("list", func(max int32, token string) (string, error) {
		ctx, cancel := callContext()
		defer cancel()
		reply, err := w.client.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: max, StartingToken: token})
		for _, entry := range reply.GetEntries() {
			found[entry.GetVolume().GetVolumeId()] = true
		}
		return reply.GetNextToken(), err
	}) {
		return
	}
	after, _ := w.t.model.stable()
	w.missing("volumes", before, after, found)
}

func (w *worker) listSnapshots() {
	_, before := w.t.model.stable()
	found := map[string]bool{}
	if !w.pages("list snapshots", func(max int32, token string) (string, error) {
		ctx, cancel := callContext()
		defer cancel()
		reply, err := w.client.ListSnapshots(ctx,
			&csi.ListSnapshotsRequest{MaxEntries: max, StartingToken: token})
		for _, entry := range reply.GetEntries() {
			found[entry.GetSnapshot().GetSnapshotId()] = true
		}
		return reply.GetNextToken(), err
	}) {
		return
	}
	_, after := w.t.model.stable()
	w.missing("snapshots", before, after, found)
}

func (w *worker) get() {
	if len(w.snaps) > 0 && w.chance(50) {
		s := w.snaps[w.random.IntN(len(w.snaps))]
		w.do("get snapshot", s.name, func() error {
			ctx, cancel := callContext()
			defer cancel()
			reply, err := w.client.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: s.id})
			if err != nil {
				return err
			}
			return s.matches(reply.GetSnapshot())
		})
		return
	}
	if len(w.volumes) == 0 {
		return
	}
	v := w.volumes[w.random.IntN(len(w.volumes))]
	w.do("get", v.Name, func() error {
		ctx, cancel := callContext()
		defer cancel()
		reply, err := w.client.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: v.ID})
		if err != nil {
			return err
		}
		return v.matches(reply.GetVolume(), reply.GetStatus().GetPublishedNodeIds())
	})
}

func (w *worker) capacity() {
	pool := w.t.pools[w.random.IntN(len(w.t.pools))]
	w.do("capacity", pool.Name, func() error {
		ctx, cancel := callContext()
		defer cancel()
		reply, err := w.client.GetCapacity(ctx, &csi.GetCapacityRequest{
			Parameters: map[string]string{"pool": pool.Name},
		})
		if err == nil && reply.GetAvailableCapacity() <= 0 {
			return fmt.Errorf("pool %s has no capacity: %v", pool.Name, reply)
		}
		return err
	})
}

func (w *worker) validate() {
	if len(w.volumes) == 0 {
		return
	}
	v := w.volumes[w.random.IntN(len(w.volumes))]
	w.do("validate", v.Name, func() error {
		ctx, cancel := callContext()
		defer cancel()
		reply, err := w.client.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: v.ID, VolumeCapabilities: []*csi.VolumeCapability{v.Cap},
		})
		if err == nil && reply.GetConfirmed() == nil {
			return fmt.Errorf("%s: not confirmed: %s", v.Name, reply.GetMessage())
		}
		return err
	})
}

// health asks for it in one of the four ways. Nothing is wrong with the disks under this test, so
// nothing may be found; a volume that may be taken from under a question is left out.
func (w *worker) health() {
	var published []*volume
	for _, v := range w.volumes {
		if v.published {
			published = append(published, v)
		}
	}
	n := w.random.IntN(4)
	if len(published) == 0 {
		n %= 2
	}
	switch n {
	case 0:
		w.listHealth()
	case 1:
		w.do("storage health", "", func() error {
			ctx, cancel := callContext()
			defer cancel()
			return well(w.client.NodeGetStorageHealth(ctx))
		})
	case 2:
		v := published[w.random.IntN(len(published))]
		w.do("volume health", v.Name, func() error {
			ctx, cancel := callContext()
			defer cancel()
			return well(w.client.ControllerGetVolumeHealth(ctx, v.ID))
		})
	case 3:
		v := published[w.random.IntN(len(published))]
		w.do("node volume health", v.Name, func() error {
			ctx, cancel := callContext()
			defer cancel()
			return well(w.client.NodeGetVolumeHealth(ctx, v.ID, v.Target, v.Staging))
		})
	}
}

// well: what the machine is like (its disk full or slow, its cgroups not cgroup v2's) is no finding of this test.
func well(h *rig.Health, err error) error {
	if err != nil {
		return err
	}
	for _, f := range h.Findings {
		switch f.Reason {
		case "PoolFull", "PoolNearlyFull", "Slow", "LimitNotEnforced":
		default:
			return fmt.Errorf("findings: %v", h)
		}
	}
	return nil
}

// listHealth goes through all pages; this worker's own published volumes are well in any.
func (w *worker) listHealth() {
	own := map[string]bool{}
	for _, v := range w.volumes {
		own[v.ID] = v.published
	}
	w.pages("list health", func(max int32, token string) (string, error) {
		ctx, cancel := callContext()
		defer cancel()
		page, next, err := w.client.ControllerListVolumeHealth(ctx, max, token)
		for _, h := range page {
			if err == nil && own[h.ID] {
				err = well(h, nil)
			}
		}
		return next, err
	})
}

func (w *worker) introduce() {
	w.do("introduce", "", func() error {
		ctx, cancel := callContext()
		defer cancel()
		calls := []func() error{
			func() error { _, err := w.client.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}); return err },
			func() error {
				_, err := w.client.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
				return err
			},
			func() error { _, err := w.client.Probe(ctx, &csi.ProbeRequest{}); return err },
			func() error {
				_, err := w.client.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
				return err
			},
			func() error {
				_, err := w.client.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
				return err
			},
			func() error {
				reply, err := w.client.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
				if err == nil && reply.GetNodeId() != w.t.d.Node {
					return fmt.Errorf("the node is %q", reply.GetNodeId())
				}
				return err
			},
		}
		for _, call := range calls {
			if err := call(); err != nil {
				return err
			}
		}
		return nil
	})
}

// ---- pods ----

// pod is a volume in use all the time: a writer lives in it, everybody takes copies of it.
type pod struct {
	*volume
	writer *writer
}

// keep is the step of the one who looks after the pods.
func (w *worker) keep() {
	p := w.t.pods[w.random.IntN(len(w.t.pods))]
	switch n := w.random.IntN(100); {
	case n < 25:
		w.stats(p.volume)
	case n < 45:
		w.expand(p.volume)
	case n < 75 && p.kind != "block" && p.extra == "":
		path := p.Target + "-extra"
		w.t.model.with(func() { p.maybe = path })
		w.change("publish extra", p.volume, func() error { return p.PublishAt(path, true) },
			func() { p.extra, p.maybe = path, "" })
	case n < 75 && p.kind != "block":
		w.change("unpublish extra", p.volume, func() error { return p.UnpublishAt(p.extra) },
			func() { p.extra = "" })
	default:
		w.ask()
	}
}

func (t *torture) isPod(v *volume) bool {
	return strings.HasPrefix(v.Name, "pod-")
}

// contentOf is what a copy asked for now has to hold. With the model's lock.
func (t *torture) contentOf(v *volume) content {
	has := v.has
	for _, p := range t.pods {
		if p.volume == v {
			has.log = p.writer.synced.Load()
		}
	}
	return has
}
