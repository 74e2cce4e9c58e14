// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// clusterBed is a controller with nodes, each on an XFS pool of its own.
type clusterBed struct {
	*rig.Cluster
	t   *testing.T
	ctl *rig.Controller // the first
	c   *rig.Client     // of it
	// untidy: the test leaves volumes behind on purpose, nobody looks for leaks.
	untidy bool
}

const nodePool = 1 << 30

// newCluster has a controller that serves, and no nodes.
func newCluster(t *testing.T, args ...string) *clusterBed {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	b := &clusterBed{t: t}
	b.Cluster, err = r.NewCluster()
	t.Cleanup(func() { b.finish(r) })
	b.must(err)
	b.ctl, err = b.StartController("ctl-a", args...)
	b.must(err)
	b.c, err = b.ctl.Client()
	b.must(err)
	return b
}

// openCluster has these nodes, and the controller knows them.
func openCluster(t *testing.T, nodes ...string) *clusterBed {
	t.Helper()
	b := newCluster(t)
	b.nodes(nodes...)
	return b
}

// nodes are started and have joined.
func (b *clusterBed) nodes(names ...string) {
	b.t.Helper()
	for _, name := range names {
		_, err := b.StartNode(name, nodePool)
		b.must(err)
	}
	for _, ctl := range b.Controllers {
		if ctl.Running() {
			b.must(ctl.AwaitJoined(names...))
		}
	}
}

func (b *clusterBed) node(name string) *rig.Node {
	b.t.Helper()
	i := slices.IndexFunc(b.Nodes, func(n *rig.Node) bool { return n.Node == name })
	if i < 0 {
		b.t.Fatalf("no node %s", name)
	}
	return b.Nodes[i]
}

func (b *clusterBed) finish(r *rig.Rig) {
	failed := b.t.Failed()
	for _, n := range b.Nodes {
		n.Mend()
		if !failed && !b.untidy {
			if err := n.Leaks(); err != nil {
				b.t.Errorf("left behind on %s: %v", n.Node, err)
			}
		}
	}
	end := func(p *rig.Process) {
		if p.Running() && !b.t.Failed() {
			if err := p.Term(); err != nil {
				b.t.Error(err)
			}
		}
		if b.t.Failed() {
			b.t.Logf("the last words of %s:\n%s", p.Name, p.LogTail(30))
		}
	}
	for _, n := range b.Nodes {
		end(&n.Process)
	}
	for _, ctl := range b.Controllers {
		end(&ctl.Process)
	}
	if err := r.Close(); err != nil {
		b.t.Errorf("cleaning up: %v", err)
	}
}

func (b *clusterBed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *clusterBed) refused(what string, err error, want ...codes.Code) {
	b.t.Helper()
	refused(b.t, what, err, want...)
}

func (b *clusterBed) says(what string, err error, words ...string) {
	b.t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			b.t.Errorf("%s: %v does not say %q", what, err, word)
		}
	}
}

func (b *clusterBed) eventually(check func() error) {
	b.t.Helper()
	b.must(rig.Eventually(30*time.Second, check))
}

// volume is a small ext4 one on a node, or where the controller likes.
func (b *clusterBed) volume(n *rig.Node, name string) *rig.Volume {
	return b.ctl.Volume(n, name, rig.MountCap("ext4"), 32*mib)
}

// homeOf is the node whose pool holds the volume's image.
func (b *clusterBed) homeOf(id string) *rig.Node {
	b.t.Helper()
	var home *rig.Node
	for _, n := range b.Nodes {
		for _, p := range n.Pools {
			if slices.Contains(p.Names("volumes"), rig.KeyOf(id)) {
				if home != nil {
					b.t.Errorf("%s is on %s and on %s", id, home.Node, n.Node)
				}
				home = n
			}
		}
	}
	return home
}

// madeOnce checks that one pool of the cluster has a volume of this name.
func (b *clusterBed) madeOnce(name string) {
	b.t.Helper()
	var all []string
	for _, n := range b.Nodes {
		for _, p := range n.Pools {
			if slices.Contains(p.Names("volumes"), name) {
				all = append(all, n.Node)
			}
		}
	}
	if len(all) != 1 {
		b.t.Errorf("%s is on %v", name, all)
	}
}

// list is all pages of ListVolumes.
func list(ctx context.Context, c *rig.Client, most int32) ([]string, error) {
	var ids []string
	token := ""
	for {
		reply, err := c.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: most, StartingToken: token})
		if err != nil {
			return nil, err
		}
		for _, entry := range reply.GetEntries() {
			ids = append(ids, entry.GetVolume().GetVolumeId())
		}
		if token = reply.GetNextToken(); token == "" {
			return ids, nil
		}
		if most > 0 && len(reply.GetEntries()) > int(most) {
			return nil, fmt.Errorf("%d entries, %d were asked for", len(reply.GetEntries()), most)
		}
	}
}

// listed checks that these are all volumes, once each.
func (b *clusterBed) listed(c *rig.Client, want ...string) {
	b.t.Helper()
	slices.Sort(want)
	b.eventually(func() error {
		got, err := list(short(b.t), c, 2)
		if err != nil {
			return err
		}
		if !slices.IsSorted(got) {
			return fmt.Errorf("not in order: %q", got)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("listed %q, want %q", got, want)
		}
		return nil
	})
}

func get(t *testing.T, c *rig.Client, id string) (*csi.ControllerGetVolumeResponse, error) {
	return c.ControllerGetVolume(short(t), &csi.ControllerGetVolumeRequest{VolumeId: id})
}

// gone deletes volumes that are nowhere in use.
func (b *clusterBed) gone(all ...*rig.Volume) {
	b.t.Helper()
	for _, v := range all {
		b.eventually(v.Delete)
	}
}

var errStill = errors.New("not yet")
