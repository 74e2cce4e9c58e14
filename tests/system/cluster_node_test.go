// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"ringvol.dev/tests/rig"
	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// told is what a controller knows by what a node has told it so far.
type told struct {
	hello      *ringvolv1.Hello
	pools      map[string]*ringvolv1.NodePool
	objects    map[string]*ringvolv1.NodeObject
	claims     []string
	capacities map[uint32]int64
	synced     bool
}

func toldBy(s *rig.SimController, node string) (*told, error) {
	k := &told{}
	for _, report := range s.Reports(node) {
		if hello := report.GetHello(); hello != nil {
			k = &told{hello: hello, pools: map[string]*ringvolv1.NodePool{}, objects: map[string]*ringvolv1.NodeObject{},
				capacities: map[uint32]int64{}}
		}
		if k.hello == nil {
			return nil, rig.Stop(errors.New("the first message is no hello"))
		}
		for _, pool := range report.GetPools() {
			k.pools[pool.GetUuid()] = pool
			if pool.GetGone() {
				delete(k.pools, pool.GetUuid())
			}
		}
		for _, object := range report.GetObjects() {
			if k.pools[poolOf(k, object.GetId())] == nil {
				return nil, rig.Stop(fmt.Errorf("%s is in a pool that was not told", object.GetId()))
			}
			k.objects[object.GetId()] = object
		}
		for _, id := range report.GetGone() {
			delete(k.objects, id)
		}
		for _, claim := range report.GetClaims() {
			k.claims = append(k.claims, claim.GetKey())
		}
		for _, capacity := range report.GetCapacities() {
			var reply csi.GetCapacityResponse
			if err := proto.Unmarshal(capacity.GetResponse(), &reply); err != nil {
				return nil, rig.Stop(err)
			}
			k.capacities[capacity.GetClass()] = reply.GetAvailableCapacity()
		}
		k.synced = k.synced || report.GetSynced()
	}
	return k, nil
}

func poolOf(k *told, id string) string {
	for uuid := range k.pools {
		if len(id) > 8 && uuid[:8] == id[:8] {
			return uuid
		}
	}
	return ""
}

// What a node says to a controller: who it is, what it has, and everything that changes.
func TestClusterNodeTells(t *testing.T) {
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	b := &clusterBed{t: t}
	b.Cluster, err = r.NewCluster()
	t.Cleanup(func() { b.finish(r) })
	b.must(err)
	sim, err := b.NewSimController()
	b.must(err)
	n, err := b.NewNode("node-a", "xfs", nodePool)
	b.must(err)
	n.Controllers, n.Topology = []string{sim.Address}, []string{"topology.kubernetes.io/zone=one"}
	b.must(n.Start())
	c, err := n.Client()
	b.must(err)
	knows := func(what string, check func(*told) error) {
		t.Helper()
		if err := rig.Eventually(rig.CallTimeout, func() error {
			k, err := toldBy(sim, "node-a")
			if err == nil && !k.synced {
				err = errStill
			}
			if err == nil {
				err = check(k)
			}
			return err
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	knows("hello", func(k *told) error {
		h := k.hello
		if h.GetNodeId() != "node-a" || h.GetDriverName() != "csi.ringvol.dev" || h.GetVersion() == "" || len(h.GetInstance()) < 16 ||
			h.GetAddress() != n.Down.Addr {
			return rig.Stop(fmt.Errorf("%v", h))
		}
		segments := map[string]string{}
		for _, s := range h.GetTopology() {
			segments[s.GetKey()] = s.GetValue()
		}
		if segments[rig.TopologyKey] != "node-a" || segments["topology.kubernetes.io/zone"] != "one" || len(segments) != 2 {
			return rig.Stop(fmt.Errorf("%v", segments))
		}
		return nil
	})
	var room uint64
	knows("pools", func(k *told) error {
		for uuid, pool := range k.pools {
			if room = pool.GetAvailableBytes(); len(uuid) == 32 && pool.GetName() == "default" &&
				pool.GetState() == ringvolv1.NodePool_READY && room > nodePool/2 && len(k.pools) == 1 {
				return nil
			}
		}
		return fmt.Errorf("%v", k.pools)
	})
	v := n.Driver.Volume("pvc-told", rig.MountCap("ext4"), 64*mib)
	b.must(v.Create())
	entry := func(k *told) (*csi.ListVolumesResponse_Entry, error) {
		var entry csi.ListVolumesResponse_Entry
		object := k.objects[v.ID]
		if object == nil || object.GetKind() != ringvolv1.NodeObject_VOLUME {
			return nil, fmt.Errorf("%v", k.objects)
		}
		return &entry, proto.Unmarshal(object.GetEntry(), &entry)
	}
	knows("a volume", func(k *told) error {
		e, err := entry(k)
		if err == nil && (e.GetVolume().GetVolumeId() != v.ID || e.GetVolume().GetCapacityBytes() != v.Got) {
			err = rig.Stop(fmt.Errorf("%v", e))
		}
		return err
	})
	knows("less room", func(k *told) error {
		for _, pool := range k.pools {
			if pool.GetAvailableBytes()+60<<20 < room {
				return nil
			}
		}
		return fmt.Errorf("%v", k.pools)
	})
	if err := v.Expand(128*mib, false); err != nil {
		t.Fatal(err)
	}
	knows("its size", func(k *told) error {
		e, err := entry(k)
		if err == nil && e.GetVolume().GetCapacityBytes() != 128*mib {
			err = fmt.Errorf("%v", e)
		}
		return err
	})
	snapshot, err := v.Snapshot("snap-told")
	b.must(err)
	knows("a snapshot", func(k *told) error {
		object := k.objects[snapshot.GetSnapshotId()]
		var e csi.ListSnapshotsResponse_Entry
		if object == nil || object.GetKind() != ringvolv1.NodeObject_SNAPSHOT || object.GetSourceId() != v.ID {
			return fmt.Errorf("%v", object)
		}
		if err := proto.Unmarshal(object.GetEntry(), &e); err != nil || e.GetSnapshot().GetSnapshotId() != snapshot.GetSnapshotId() {
			return rig.Stop(fmt.Errorf("%v, %v", &e, err))
		}
		return nil
	})
	// Health, and its end.
	b.must(os.Truncate(n.Pools[0].Image(v.ID), 64*mib))
	h, err := c.ControllerGetVolumeHealth(short(t), v.ID)
	b.must(err)
	if len(h.Findings) == 0 {
		t.Logf("a short image is well: %v", h)
	} else {
		knows("sickness", func(k *told) error {
			if len(k.objects[v.ID].GetHealth()) == 0 {
				return errStill
			}
			return nil
		})
	}
	b.must(os.Truncate(n.Pools[0].Image(v.ID), 128*mib))
	knows("its end", func(k *told) error {
		if len(k.objects[v.ID].GetHealth()) != 0 {
			return errStill
		}
		return nil
	})
	// Capacity: each class at once, and when it changes.
	request, err := proto.Marshal(&csi.GetCapacityRequest{Parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"}})
	b.must(err)
	b.must(sim.Say("node-a", &ringvolv1.ControllerReport{Classes: []*ringvolv1.CapacityClass{{Class: 7, Request: request}, {Class: 9}}}))
	capacity := func() (now int64) {
		reply, err := c.GetCapacity(short(t), &csi.GetCapacityRequest{})
		b.must(err)
		return reply.GetAvailableCapacity()
	}
	knows("capacity", func(k *told) error {
		if now := capacity(); k.capacities[7] != now || k.capacities[9] != now {
			return fmt.Errorf("%v, it is %d", k.capacities, now)
		}
		return nil
	})
	b.must(n.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.must(v.Delete())
	knows("nothing", func(k *told) error {
		if now := capacity(); len(k.objects) != 0 || k.capacities[7] != now {
			return fmt.Errorf("%v, %v", k.objects, k.capacities)
		}
		return nil
	})
	// A roster is taken along.
	roster := &ringvolv1.Roster{Nodes: []*ringvolv1.RosterNode{{NodeId: "node-a", Pools: []string{"01234567"}},
		{NodeId: "node-z", Pools: []string{"89abcdef"}}}}
	b.must(sim.Say("node-a", &ringvolv1.ControllerReport{Roster: roster}))
	second, err := b.NewSimController()
	b.must(err)
	b.must(n.Restart()) // memory alone holds it
	n.Controllers = append(n.Controllers, second.Address)
	b.must(n.Restart())
	b.must(rig.Eventually(rig.CallTimeout, func() error {
		k, err := toldBy(second, "node-a")
		if err == nil && !k.synced {
			err = errStill
		}
		return err
	}))
	knows("a new instance", func(k *told) error {
		var instances []string
		for _, report := range sim.Reports("node-a") {
			if hello := report.GetHello(); hello != nil && !slices.Contains(instances, hello.GetInstance()) {
				instances = append(instances, hello.GetInstance())
			}
		}
		if len(instances) < 2 {
			return fmt.Errorf("%q", instances)
		}
		return nil
	})
	b.must(sim.Say("node-a", &ringvolv1.ControllerReport{Roster: roster}))
	b.must(second.End("node-a"))
	b.must(rig.Eventually(rig.CallTimeout, func() error {
		k, err := toldBy(second, "node-a")
		if err != nil {
			return err
		}
		for _, node := range k.hello.GetRoster() {
			if node.GetNodeId() == "node-z" && slices.Equal(node.GetPools(), []string{"89abcdef"}) {
				return nil
			}
		}
		return fmt.Errorf("the roster is %v", k.hello.GetRoster())
	}))
}
