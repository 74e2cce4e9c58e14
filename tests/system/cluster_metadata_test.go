// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// A volume of a node with two snapshots, many ranges of which differ.
func (b *clusterBed) metadataOf(n *rig.Node, name string, ranges int64) (v *rig.Volume, base, target string) {
	b.t.Helper()
	v = b.ctl.Volume(n, name, rig.BlockCap(), 256*mib)
	b.must(v.Create())
	s, err := v.Snapshot(name + "-base")
	b.must(err)
	base = s.GetSnapshotId()
	beside := &bed{Rig: b.Rig, t: b.t, pool: n.Pools[0]}
	target = beside.scattered(v, name+"-target", ranges)
	return v, base, target
}

// A controller tells what a node tells of its snapshots, whole, and as slowly as the client reads.
func TestClusterMetadata(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	na, nb := b.node("node-a"), b.node("node-b")
	v, base, target := b.metadataOf(na, "one", 12000)
	w, otherBase, other := b.metadataOf(nb, "two", 3)

	allocated, err := b.c.Allocated(short(t), other, 0, 0)
	b.must(err)
	isRanges(t, "allocated", allocated, rig.Range{Start: 0, End: 4 * kib}, rig.Range{Start: 8 * kib, End: 12 * kib},
		rig.Range{Start: 16 * kib, End: 20 * kib})
	delta, err := b.c.Delta(short(t), base, target, 0, 0)
	b.must(err)
	if len(delta.Ranges) != 12000 || delta.Bytes() != 12000*4*kib {
		t.Errorf("%d ranges, %d bytes", len(delta.Ranges), delta.Bytes())
	}
	rest, err := b.c.Delta(short(t), base, target, delta.Ranges[11000].Start, 7)
	b.must(err)
	isRanges(t, "the rest", rest, delta.Ranges[11000:]...)

	_, err = b.c.Delta(short(t), base, other, 0, 0)
	b.refused("snapshots of two nodes", err, codes.FailedPrecondition)
	b.says("it", err, "node-a", "node-b")
	_, err = b.c.Delta(short(t), otherBase, "", 0, 0)
	b.refused("no target", err, codes.InvalidArgument)
	for _, there := range []string{target, other} {
		for _, pair := range [][2]string{{"nonsense", there}, {there, "nonsense"}} {
			_, err = b.c.Delta(short(t), pair[0], pair[1], 0, 0)
			b.refused("an id of nobody, beside one of a node", err, codes.NotFound)
			b.says("it", err, "nonsense")
		}
	}
	_, err = b.c.Allocated(short(t), "nonsense", 0, 0)
	b.refused("no id", err, codes.NotFound)
	_, err = b.c.Allocated(short(t), target, -1, 0)
	b.refused("a negative offset", err, codes.OutOfRange)

	// It stays while somebody is told of it, and is free when that client goes.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := b.c.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target, MaxResults: 1})
	b.must(err)
	_, err = stream.Recv()
	b.must(err)
	b.refused("deleting what is being told of", b.ctl.DeleteSnapshot(target), codes.Aborted)
	cancel()
	b.eventually(func() error { return b.ctl.DeleteSnapshot(base) })

	// A node that is killed ends its streams, and not as if that were all.
	stream2, err := b.c.GetMetadataAllocated(short(t), &csi.GetMetadataAllocatedRequest{SnapshotId: target, MaxResults: 1})
	b.must(err)
	_, err = stream2.Recv()
	b.must(err)
	b.must(na.Kill())
	for err == nil {
		_, err = stream2.Recv()
	}
	b.refused("a stream of a node that was killed", err, codes.Unavailable)
	_, err = b.c.Allocated(short(t), target, 0, 0)
	b.refused("a node that is away", err, codes.Unavailable)
	b.must(na.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	b.eventually(func() error { _, err := b.c.Allocated(short(t), target, 0, 0); return err })

	for _, id := range []string{target, otherBase, other} {
		b.must(b.ctl.DeleteSnapshot(id))
	}
	b.gone(v, w)
}

// The same where controller and node are two processes of one host.
func TestClusterSplitMetadata(t *testing.T) {
	b := open(t, "xfs", nodePool)
	ctl := b.NewSplit("ctl", b.d)
	b.must(ctl.Start())
	c, err := ctl.Client()
	b.must(err)
	v := ctl.Driver.Volume("data", rig.BlockCap(), 32*mib)
	b.must(v.Create())
	base := b.snapshotOf(v, "base")
	target := b.scattered(v, "target", 1000)
	blocks, err := c.Delta(short(t), base, target, 0, 10)
	b.must(err)
	if len(blocks.Ranges) != 1000 || blocks.Messages < 100 {
		t.Errorf("%d ranges in %d messages", len(blocks.Ranges), blocks.Messages)
	}
	blocks, err = c.Allocated(short(t), base, 0, 0)
	b.must(err)
	isRanges(t, "the base", blocks)
	capabilities, err := c.GetPluginCapabilities(short(t), &csi.GetPluginCapabilitiesRequest{})
	b.must(err)
	told := false
	for _, one := range capabilities.GetCapabilities() {
		told = told || one.GetService().GetType() == csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE
	}
	if !told {
		t.Error("the service is not advertised")
	}
	b.must(ctl.DeleteSnapshot(base))
	b.must(ctl.DeleteSnapshot(target))
	b.must(v.Delete())
	b.must(ctl.Term())
}
