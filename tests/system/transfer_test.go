// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
	"ringvol.dev/tests/rig/ringvolv1"
)

// transferBed is two nodes that speak over TLS, and no controller: the test is it.
func transferBed(t *testing.T, args ...string) (*clusterBed, *rig.Node, *rig.Node) {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	b := &clusterBed{t: t}
	b.Cluster, err = r.NewCluster()
	t.Cleanup(func() { b.finish(r) })
	b.must(err)
	nobody, err := rig.FreeAddress()
	b.must(err)
	for _, name := range []string{"node-a", "node-b"} {
		n, err := b.NewNode(name, "xfs", nodePool)
		b.must(err)
		n.Args = args
		n.Controllers = []string{nobody}
		b.must(n.Start())
	}
	return b, b.node("node-a"), b.node("node-b")
}

// arrange does what a controller does before it forwards a CreateVolume.
func (b *clusterBed) arrange(from, to *rig.Node, source, name string) error {
	cert := b.cert(rig.CertSpec{URIs: []string{rig.ControllerURI}})
	reply, err := ringvolv1.GrantCopy(short(b.t), b.dial(from.Listen, cert),
		&ringvolv1.GrantCopyRequest{SourceId: source, NodeId: to.Node, VolumeName: name})
	if err != nil {
		return err
	}
	_, err = ringvolv1.OfferCopy(short(b.t), b.dial(to.Listen, cert), &ringvolv1.OfferCopyRequest{
		SourceId: source, VolumeName: name, Grant: reply.GetGrant(), NodeId: from.Node, Address: from.Listen})
	return err
}

// on prepares a raw block volume with data and holes of its source's size.
func (b *clusterBed) on(n *rig.Node, name string) *rig.Volume {
	return n.Volume(name, rig.BlockCap(), copySize)
}

// -cluster.rounds times one end is killed at a random moment of a copy. The copy goes on or begins anew, its bytes are
// those of the source, and nothing is left behind.
func TestTransferKilled(t *testing.T) {
	b, from, to := transferBed(t, "--transfer-rate", fmt.Sprint(24*mib))
	v := b.on(from, "pvc-source")
	b.must(v.Up())
	sparse(t, v.Target, copySize, 7)
	b.must(v.Down())
	sum := hex.EncodeToString(sumOf(t, from.Pools[0].Image(v.ID)))
	snapshot, err := v.Snapshot("snap-source")
	b.must(err)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for i := range *clusterRounds {
		c := b.on(to, fmt.Sprintf("pvc-copy-%d", i))
		source := v.ID
		c.Source = rig.FromVolume(source)
		if i%2 == 1 {
			source = snapshot.GetSnapshotId()
			c.Source = rig.FromSnapshot(source)
		}
		made := func() error {
			if err := b.arrange(from, to, source, c.Name); err != nil {
				return err
			}
			return c.Create()
		}
		first := make(chan error, 1)
		go func() { first <- made() }()
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		who := []*rig.Node{from, to}[random.IntN(2)]
		b.must(who.Restart())
		answer, id := <-first, c.ID
		b.must(rig.Eventually(90*time.Second, made))
		if answer == nil && id != c.ID {
			t.Fatalf("round %d: %s was acknowledged, and is %s", i, id, c.ID)
		}
		b.same(c, to, sum)
		b.must(c.Delete())
		if t.Failed() {
			return
		}
	}
	b.must(from.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.must(v.Delete())
	b.quiet()
}

// Without an offer a copy stays where its source is.
func TestTransferWithoutOffer(t *testing.T) {
	b, from, to := transferBed(t)
	v := b.on(from, "pvc-source")
	b.must(v.Create())
	c := b.on(to, "pvc-copy")
	c.Source = rig.FromVolume(v.ID)
	err := c.Create()
	b.says("a copy without an offer", err, "ResourceExhausted", "is not on node node-b")
	b.must(b.arrange(from, to, v.ID, "pvc-copy"))
	b.must(c.Create())
	b.must(c.Delete())
	b.must(v.Delete())
	b.quiet()
}
