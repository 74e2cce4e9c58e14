// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"slices"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// A volume's life as a cluster sees it: the sidecars ask the controller, kubelet asks the node.
func TestClusterLife(t *testing.T) {
	b := openCluster(t, "node-a", "node-b", "node-c")
	n := b.node("node-b")
	v := b.volume(n, "pvc-life")
	b.must(v.Up())
	if home := b.homeOf(v.ID); home != n {
		t.Fatalf("%s was made on %v", v.ID, home)
	}
	sum, err := rig.Fill(v.Target, 4*mib, 1)
	b.must(err)

	reply, err := get(t, b.c, v.ID)
	b.must(err)
	if topology := reply.GetVolume().GetAccessibleTopology(); len(topology) != 1 ||
		topology[0].GetSegments()[rig.TopologyKey] != "node-b" {
		t.Errorf("topology is %v", topology)
	}
	b.listed(b.c, v.ID)
	_, err = b.c.ValidateVolumeCapabilities(short(t), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: v.ID, VolumeCapabilities: []*csi.VolumeCapability{v.Cap}})
	b.must(err)

	if err := v.Expand(48*mib, true); err != nil && rig.Code(err) != codes.FailedPrecondition { // CAP_SYS_RESOURCE
		t.Error(err)
	}
	snapshot, err := v.Snapshot("snap-life")
	b.must(err)
	reply2, err := b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{SnapshotId: snapshot.GetSnapshotId()})
	if err != nil || len(reply2.GetEntries()) != 1 {
		t.Errorf("ListSnapshots: %v, %v", reply2, err)
	}
	reply2, err = b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{SourceVolumeId: v.ID})
	if err != nil || len(reply2.GetEntries()) != 1 {
		t.Errorf("ListSnapshots of a volume: %v, %v", reply2, err)
	}
	restored := b.volume(n, "pvc-restored")
	restored.Size = v.Got
	restored.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
	b.must(restored.Up())
	b.must(rig.Check(restored.Target, 4*mib, sum))
	clone := b.volume(n, "pvc-clone")
	clone.Size = v.Got
	clone.Source = rig.FromVolume(v.ID)
	b.must(clone.Create())
	b.listed(b.c, v.ID, restored.ID, clone.ID)

	for _, v := range []*rig.Volume{v, restored} {
		b.must(v.Gone())
	}
	b.gone(clone)
	b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.listed(b.c)
	// Twice is once.
	b.must(v.Delete())
	b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
	_, err = get(t, b.c, v.ID)
	b.refused("ControllerGetVolume of a deleted one", err, codes.NotFound)
}

// What the controller refuses is refused as a node does it, and what no pool has is not "not found".
func TestClusterRefuses(t *testing.T) {
	b := openCluster(t, "node-a")
	v := b.volume(b.node("node-a"), "pvc-odd")
	v.Params = map[string]string{"colour": "blue"}
	err := v.Create()
	b.refused("an unknown parameter", err, codes.InvalidArgument)
	b.says("an unknown parameter", err, "colour")
	_, err = b.c.CreateVolume(short(t), &csi.CreateVolumeRequest{})
	b.refused("CreateVolume without a name", err, codes.InvalidArgument)
	_, err = b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{})
	b.refused("DeleteVolume without an id", err, codes.InvalidArgument)
	for _, id := range []string{"0123abcd.pvc-x.0123abcd"} {
		_, err := b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: id})
		b.refused("DeleteVolume in a pool nobody has", err, codes.Unavailable)
		b.says("DeleteVolume in a pool nobody has", err, "0123abcd")
		_, err = get(t, b.c, id)
		b.refused("ControllerGetVolume in a pool nobody has", err, codes.Unavailable)
		_, err = b.c.DeleteSnapshot(short(t), &csi.DeleteSnapshotRequest{SnapshotId: id})
		b.refused("DeleteSnapshot in a pool nobody has", err, codes.Unavailable)
		_, err = b.c.CreateSnapshot(short(t), &csi.CreateSnapshotRequest{SourceVolumeId: id, Name: "s"})
		b.refused("CreateSnapshot in a pool nobody has", err, codes.Unavailable)
	}
	// What cannot be an id of anybody's is answered as a node answers it.
	_, err = get(t, b.c, "rubbish")
	b.refused("ControllerGetVolume of rubbish", err, codes.NotFound)
	_, err = b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: "rubbish"})
	b.must(err)
	_, err = b.c.ListVolumes(short(t), &csi.ListVolumesRequest{StartingToken: "rubbish"})
	b.refused("a token that is none", err, codes.Aborted)
	_, err = b.c.NodeGetInfo(short(t), &csi.NodeGetInfoRequest{})
	b.refused("NodeGetInfo of a controller", err, codes.Unimplemented)
}

// What comes by TLS is decrypted into buffers, of which none keeps a secret when the call is over.
func TestClusterSecretsAreNotKept(t *testing.T) {
	b := openCluster(t, "node-a")
	const secret = "hunter2-is-not-for-long"
	v := b.volume(b.node("node-a"), "pvc-secret")
	req := v.Request()
	req.Secrets = map[string]string{"password": secret}
	reply, err := b.c.CreateVolume(short(t), req)
	b.must(err)
	v.ID = reply.GetVolume().GetVolumeId()
	for name, pid := range map[string]int{"node": b.node("node-a").Pid(), "controller": b.ctl.Pid()} {
		if found, err := inMemory(pid, []byte(secret)); err != nil || found {
			t.Errorf("the secret is in the memory of the %s: %v, %v", name, found, err)
		}
	}
	b.must(v.Delete())
}

// Without a word of where, the node with most room has it; a node that is named has it, or nobody.
func TestClusterPlacement(t *testing.T) {
	b := newCluster(t)
	for _, size := range []int64{1, 4, 2} {
		_, err := b.StartNode(fmt.Sprintf("node-%d", size), size*nodePool)
		b.must(err)
	}
	b.must(b.ctl.AwaitJoined("node-1", "node-2", "node-4"))
	anywhere := b.volume(nil, "pvc-anywhere")
	b.must(anywhere.Create())
	if home := b.homeOf(anywhere.ID); home == nil || home.Node != "node-4" {
		t.Errorf("made on %v, node-4 has most room", home)
	}
	preferred := b.volume(nil, "pvc-preferred")
	preferred.Topology = &csi.TopologyRequirement{
		Requisite: []*csi.Topology{rig.At("node-1"), rig.At("node-2"), rig.At("node-4")},
		Preferred: []*csi.Topology{rig.At("node-2"), rig.At("node-4"), rig.At("node-1")},
	}
	b.must(preferred.Create())
	if home := b.homeOf(preferred.ID); home == nil || home.Node != "node-2" {
		t.Errorf("made on %v, node-2 was preferred", home)
	}
	large := b.ctl.Volume(nil, "pvc-large", rig.MountCap("ext4"), 3*nodePool)
	large.Topology = preferred.Topology
	large.Params = map[string]string{"provisioning": "thick"}
	b.must(large.Create())
	if home := b.homeOf(large.ID); home == nil || home.Node != "node-4" {
		t.Errorf("made on %v, only node-4 has room", home)
	}
	nowhere := b.volume(b.node("node-1"), "pvc-nowhere")
	nowhere.Topology = rig.OnNode("node-9")
	err := nowhere.Create()
	b.refused("a node that is not there", err, codes.ResourceExhausted)
	large2 := b.ctl.Volume(b.node("node-1"), "pvc-large-2", rig.MountCap("ext4"), 3*nodePool)
	b.refused("more than the node has", large2.Create(), codes.ResourceExhausted, codes.OutOfRange)
	other := b.volume(b.node("node-1"), "pvc-other")
	other.Params = map[string]string{"pool": "fast"}
	b.refused("a pool nobody has", other.Create(), codes.ResourceExhausted, codes.InvalidArgument)
	b.gone(anywhere, preferred, large)
}

// Keys beside the node's: a zone is a place, a volume is accessible from its node alone.
func TestClusterZones(t *testing.T) {
	b := newCluster(t)
	const key = "topology.kubernetes.io/zone"
	zone := func(name string) *csi.Topology { return &csi.Topology{Segments: map[string]string{key: name}} }
	for name, z := range map[string]string{"node-a": "one", "node-b": "two", "node-c": "two"} {
		n, err := b.NewNode(name, "xfs", nodePool)
		b.must(err)
		n.Topology = []string{key + "=" + z}
		b.must(n.Start())
	}
	b.must(b.ctl.AwaitJoined("node-a", "node-b", "node-c"))
	c, err := b.node("node-b").Client()
	b.must(err)
	info, err := c.NodeGetInfo(short(t), &csi.NodeGetInfoRequest{})
	b.must(err)
	if got := info.GetAccessibleTopology().GetSegments(); got[key] != "two" || got[rig.TopologyKey] != "node-b" {
		t.Errorf("node-b says it is at %v", got)
	}
	var all []*rig.Volume
	for i, z := range []string{"one", "two", "two"} {
		v := b.volume(nil, fmt.Sprintf("pvc-%d", i))
		v.Topology = &csi.TopologyRequirement{Requisite: []*csi.Topology{zone(z)}}
		b.must(v.Create())
		all = append(all, v)
		home := b.homeOf(v.ID)
		if home == nil || home.Topology[0] != key+"="+z {
			t.Errorf("zone %s: made on %v", z, home)
		}
	}
	one, err := b.c.GetCapacity(short(t), &csi.GetCapacityRequest{AccessibleTopology: zone("one")})
	b.must(err)
	two, err := b.c.GetCapacity(short(t), &csi.GetCapacityRequest{AccessibleTopology: zone("two")})
	b.must(err)
	if one.GetAvailableCapacity() == 0 || two.GetAvailableCapacity() <= one.GetAvailableCapacity() {
		t.Errorf("zone one has %d, zone two of two nodes %d", one.GetAvailableCapacity(), two.GetAvailableCapacity())
	}
	three, err := b.c.GetCapacity(short(t), &csi.GetCapacityRequest{AccessibleTopology: zone("three")})
	if err != nil || three.GetAvailableCapacity() != 0 {
		t.Errorf("zone three: %v, %v", three, err)
	}
	v := b.volume(nil, "pvc-three")
	v.Topology = &csi.TopologyRequirement{Requisite: []*csi.Topology{zone("three")}}
	b.refused("a zone without nodes", v.Create(), codes.ResourceExhausted)
	b.gone(all...)
}

// GetCapacity is each node's own, 0 for one that is not there, and the sum without a node; it follows what is made.
func TestClusterCapacity(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	direct := func(n *rig.Node) int64 {
		c, err := n.Client()
		b.must(err)
		reply, err := c.GetCapacity(short(t), &csi.GetCapacityRequest{})
		b.must(err)
		return reply.GetAvailableCapacity()
	}
	agree := func() error {
		sum := int64(0)
		for _, n := range b.Nodes {
			want := direct(n)
			got, err := b.ctl.Room(n.Node)
			if err != nil || got != want {
				return fmt.Errorf("%s: %d, %v; the node says %d", n.Node, got, err, want)
			}
			sum += want
		}
		if got, err := b.ctl.Room(""); err != nil || got != sum {
			return fmt.Errorf("all: %d, %v; the sum is %d", got, err, sum)
		}
		return nil
	}
	b.eventually(agree)
	before, err := b.ctl.Room("node-a")
	b.must(err)
	v := b.ctl.Volume(b.node("node-a"), "pvc-room", rig.MountCap("ext4"), 256*mib)
	b.must(v.Create())
	b.eventually(agree)
	after, err := b.ctl.Room("node-a")
	b.must(err)
	if after > before-200*mib {
		t.Errorf("%d before 256 MiB were promised, %d after", before, after)
	}
	if room, err := b.ctl.Room("node-z"); err != nil || room != 0 {
		t.Errorf("a node nobody knows: %d, %v", room, err)
	}
	// As a provisioner asks for classes: parameters and a capability.
	for _, fs := range []string{"ext4", "xfs"} {
		reply, err := b.c.GetCapacity(short(t), &csi.GetCapacityRequest{
			Parameters:         map[string]string{"csi.storage.k8s.io/fstype": fs},
			VolumeCapabilities: []*csi.VolumeCapability{rig.MountCap(fs)}, AccessibleTopology: rig.At("node-b"),
		})
		if err != nil || reply.GetAvailableCapacity() == 0 {
			t.Errorf("%s: %v, %v", fs, reply, err)
		}
	}
	_, err = b.c.GetCapacity(short(t), &csi.GetCapacityRequest{Parameters: map[string]string{"colour": "blue"}})
	b.refused("a class that cannot be", err, codes.InvalidArgument)
	b.gone(v)
}

// A list that is being read goes on behind its token while nodes come and go, and no volume is in it twice.
func TestClusterListTokens(t *testing.T) {
	b := openCluster(t, "node-a", "node-b", "node-c")
	var all []*rig.Volume
	var ids []string
	for i := range 12 {
		v := b.volume(b.Nodes[i%3], fmt.Sprintf("pvc-%02d", i))
		b.must(v.Create())
		all, ids = append(all, v), append(ids, v.ID)
	}
	b.listed(b.c, ids...)
	slices.Sort(ids)
	page := func(token string) *csi.ListVolumesResponse {
		reply, err := b.c.ListVolumes(short(t), &csi.ListVolumesRequest{MaxEntries: 3, StartingToken: token})
		b.must(err)
		return reply
	}
	var got []string
	token := ""
	for i := 0; ; i++ {
		reply := page(token)
		for _, entry := range reply.GetEntries() {
			got = append(got, entry.GetVolume().GetVolumeId())
		}
		if token = reply.GetNextToken(); token == "" {
			break
		}
		switch i {
		case 0:
			b.must(b.node("node-b").Kill())
			b.must(b.ctl.AwaitAway("node-b"))
		case 1:
			b.must(b.node("node-b").Start())
			b.must(b.ctl.AwaitJoined("node-b"))
		case 2:
			b.must(b.node("node-a").Restart())
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("listed %q, there are %q", got, ids)
	}
	// A token whose volume has gone means what comes behind it.
	first := page("")
	last := first.GetEntries()[2].GetVolume().GetVolumeId()
	b.must(b.ctl.AwaitJoined("node-a", "node-b", "node-c"))
	for _, v := range all {
		if v.ID == last {
			b.gone(v)
		}
	}
	if next := page(first.GetNextToken()); next.GetEntries()[0].GetVolume().GetVolumeId() != ids[3] {
		t.Errorf("behind %s comes %s, not %s", last, next.GetEntries()[0].GetVolume().GetVolumeId(), ids[3])
	}
	b.gone(all...)
}

// What the controller says of itself.
func TestClusterIdentity(t *testing.T) {
	b := newCluster(t)
	info, err := b.c.GetPluginInfo(short(t), &csi.GetPluginInfoRequest{})
	b.must(err)
	if info.GetName() != "csi.ringvol.dev" || info.GetVendorVersion() == "" {
		t.Errorf("%v", info)
	}
	_, err = b.c.Probe(short(t), &csi.ProbeRequest{})
	b.must(err)
	plugin, err := b.c.GetPluginCapabilities(short(t), &csi.GetPluginCapabilitiesRequest{})
	b.must(err)
	var services []csi.PluginCapability_Service_Type
	for _, c := range plugin.GetCapabilities() {
		services = append(services, c.GetService().GetType())
	}
	for _, want := range []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE,
		csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS} {
		if !slices.Contains(services, want) {
			t.Errorf("%v has no %v", services, want)
		}
	}
	caps, err := b.c.ControllerGetCapabilities(short(t), &csi.ControllerGetCapabilitiesRequest{})
	b.must(err)
	if len(caps.GetCapabilities()) < 8 {
		t.Errorf("%v", caps)
	}
	// Nobody has joined: what there is is not known, so nothing is said of it.
	_, err = b.c.ListVolumes(short(t), &csi.ListVolumesRequest{})
	b.refused("ListVolumes before any node", err, codes.Unavailable)
	_, err = b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{})
	b.refused("ListSnapshots before any node", err, codes.Unavailable)
	b.refused("CreateVolume before any node", b.volume(nil, "pvc-early").Create(), codes.Unavailable, codes.ResourceExhausted)
	b.nodes("node-a")
	b.listed(b.c)
}
