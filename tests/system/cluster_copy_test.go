// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

var clusterRounds = flag.Int("cluster.rounds", 3, "times that a copy between nodes is killed at either end")

const copySize = 128 * mib

// sparse fills a block volume at the start, somewhere in the middle and at the end; most of it stays a hole.
func sparse(t *testing.T, device string, size int64, seed uint64) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_WRONLY|os.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{byte(seed)})
	for _, at := range []struct{ offset, length int64 }{{0, 8 * mib}, {size / 2, 4096}, {size/2 + 12288, 16 * mib}, {size - 4096, 4096}} {
		if _, err := io.Copy(io.NewOffsetWriter(f, at.offset), io.LimitReader(random, at.length)); err != nil {
			t.Fatal(err)
		}
	}
}

// source is a raw block volume with data and holes, not in use, and the checksum of its image.
func (b *clusterBed) source(n *rig.Node, name string) (*rig.Volume, string) {
	b.t.Helper()
	v := b.ctl.Volume(n, name, rig.BlockCap(), copySize)
	b.must(v.Up())
	sparse(b.t, v.Target, copySize, 7)
	b.must(v.Down())
	return v, hex.EncodeToString(sumOf(b.t, n.Pools[0].Image(v.ID)))
}

func (b *clusterBed) copyOf(source *csi.VolumeContentSource, n *rig.Node, name string) *rig.Volume {
	v := b.ctl.Volume(n, name, rig.BlockCap(), copySize)
	v.Source = source
	return v
}

// same checks that a copy's image has the bytes, and the holes.
func (b *clusterBed) same(v *rig.Volume, n *rig.Node, sum string) {
	b.t.Helper()
	image := n.Pools[0].Image(v.ID)
	if got := hex.EncodeToString(sumOf(b.t, image)); got != sum {
		b.t.Errorf("%s has other bytes than its source", v.ID)
	}
	if size, err := rig.Allocated(image); err != nil || size > 28*mib {
		b.t.Errorf("%s: %d bytes allocated of 25 MiB, %v", v.ID, size, err)
	}
}

// quiet waits until neither pool holds anything but these volumes and snapshots: no trash, no half-made copy, no hold.
func (b *clusterBed) quiet() {
	b.t.Helper()
	b.must(rig.Eventually(90*time.Second, func() error {
		var errs []error
		for _, n := range b.Nodes {
			for _, p := range n.Pools {
				if err := p.Strays(); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", n.Node, err))
				}
			}
		}
		return errors.Join(errs...)
	}))
}

// A snapshot is restored and a volume is cloned on another node: bytes and holes are those of the source.
func TestClusterCopy(t *testing.T) {
	b := openCluster(t, "node-a", "node-b", "node-c")
	a, n := b.node("node-a"), b.node("node-b")
	v, sum := b.source(a, "pvc-source")
	snapshot, err := v.Snapshot("snap-source")
	b.must(err)
	restored := b.copyOf(rig.FromSnapshot(snapshot.GetSnapshotId()), n, "pvc-restored")
	b.must(restored.Create())
	if home := b.homeOf(restored.ID); home != n {
		t.Fatalf("made on %v", home)
	}
	b.same(restored, n, sum)
	reply, err := get(t, b.c, restored.ID)
	b.must(err)
	if reply.GetVolume().GetContentSource().GetSnapshot().GetSnapshotId() != snapshot.GetSnapshotId() {
		t.Errorf("its source is %v", reply.GetVolume().GetContentSource())
	}
	// Again is the same, elsewhere it is another one's name.
	again := b.copyOf(rig.FromSnapshot(snapshot.GetSnapshotId()), n, "pvc-restored")
	b.must(again.Create())
	if again.ID != restored.ID {
		t.Errorf("%s and %s", restored.ID, again.ID)
	}
	clone := b.copyOf(rig.FromVolume(v.ID), b.node("node-c"), "pvc-clone")
	b.must(clone.Create())
	b.same(clone, b.node("node-c"), sum)
	// Without a word of where it stays where its source is.
	here := b.copyOf(rig.FromVolume(v.ID), nil, "pvc-here")
	b.must(here.Create())
	if home := b.homeOf(here.ID); home != a {
		t.Errorf("a clone that may be anywhere was made on %v", home)
	}
	// The source goes; its copies stay, and have room of their own.
	b.gone(v, here)
	b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.quiet()
	b.must(restored.Up())
	if got := hex.EncodeToString(sumOf(t, restored.Target)); got != sum {
		t.Error("the device has other bytes")
	}
	b.must(restored.Gone())
	// Larger than its source, and smaller.
	large := b.copyOf(rig.FromVolume(clone.ID), n, "pvc-large")
	large.Size = 2 * copySize
	b.must(large.Create())
	if large.Got < 2*copySize {
		t.Errorf("%d bytes", large.Got)
	}
	small := b.copyOf(rig.FromVolume(clone.ID), n, "pvc-small")
	small.Size, small.Limit = 32*mib, 64*mib
	b.refused("a copy smaller than its source", small.Create(), codes.OutOfRange, codes.InvalidArgument)
	missing := b.copyOf(rig.FromVolume(clone.ID[:8]+".pvc-none.01234567"), n, "pvc-missing")
	b.refused("a copy of nothing", missing.Create(), codes.NotFound)
	b.gone(large, clone)
	b.quiet()
}

// A mounted volume is cloned elsewhere while a pod writes to it: the copy is of one moment, and mounts.
func TestClusterCopyInUse(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			b := openCluster(t, "node-a", "node-b")
			n := b.node("node-b")
			v := b.ctl.Volume(b.node("node-a"), "pvc-used", rig.MountCap(fs), rig.MinSize(fs))
			b.must(v.Up())
			sum, err := rig.Fill(v.Target, 8*mib, 5)
			b.must(err)
			stop, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						_ = os.WriteFile(v.Target+"/busy", []byte(strings.Repeat("x", i%100000)), 0o644)
					}
				}
			}()
			clone := b.ctl.Volume(n, "pvc-clone", rig.MountCap(fs), v.Got)
			clone.Source = rig.FromVolume(v.ID)
			b.must(clone.Up())
			close(stop)
			<-ended
			b.must(rig.Check(clone.Target, 8*mib, sum))
			b.must(clone.Gone())
			b.must(v.Gone())
			b.quiet()
		})
	}
}

// A pool that cannot share extents copies, too: a snapshot is read as it is, a volume that is not in use likewise.
func TestClusterCopyWithoutReflink(t *testing.T) {
	b := newCluster(t)
	a, err := b.NewNode("node-a", "ext4", nodePool)
	b.must(err)
	b.must(a.Start())
	b.nodes("node-b")
	b.must(b.ctl.AwaitJoined("node-a"))
	v, sum := b.source(a, "pvc-source")
	snapshot, err := v.Snapshot("snap-source")
	b.must(err)
	restored := b.copyOf(rig.FromSnapshot(snapshot.GetSnapshotId()), b.node("node-b"), "pvc-restored")
	b.must(restored.Create())
	b.same(restored, b.node("node-b"), sum)
	b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.gone(v, restored)
	b.quiet()
}

// slowCluster has nodes that copy 16 MiB a second.
func slowCluster(t *testing.T) *clusterBed {
	t.Helper()
	b := newCluster(t)
	for _, name := range []string{"node-a", "node-b"} {
		_, err := b.StartNode(name, nodePool, "--transfer-rate", fmt.Sprint(16*mib))
		b.must(err)
	}
	b.must(b.ctl.AwaitJoined("node-a", "node-b"))
	return b
}

// begun waits until bytes of the copy have come from the source.
func (b *clusterBed) begun(source *rig.Node, more int64) {
	b.t.Helper()
	from := source.Down.Bytes(rig.Back)
	b.eventually(func() error {
		if got := source.Down.Bytes(rig.Back) - from; got < more {
			return fmt.Errorf("%d bytes of the copy have come", got)
		}
		return nil
	})
}

// The rate is kept, and the operation is seen.
func TestClusterCopyRate(t *testing.T) {
	b := slowCluster(t)
	a, n := b.node("node-a"), b.node("node-b")
	v, sum := b.source(a, "pvc-source")
	c := b.copyOf(rig.FromVolume(v.ID), n, "pvc-copy")
	made := make(chan error, 1)
	begin := time.Now()
	go func() { made <- c.Create() }()
	b.begun(a, 4*mib)
	out, err := rig.Run(rig.Binary(), "ls", "--json", "--endpoint", "unix://"+n.Socket)
	if err != nil || !strings.Contains(out, "CreateVolume") {
		t.Errorf("ls does not show the copy: %v\n%s", err, out)
	}
	b.must(<-made)
	// 24 MiB at 16 a second; a burst at the start may be free.
	if took := time.Since(begin); took < 700*time.Millisecond {
		t.Errorf("24 MiB in %v, at 16 MiB a second", took)
	}
	b.same(c, n, sum)
	b.gone(v, c)
	b.quiet()
}

// The source is deleted while it is read: the delete is answered, the copy is whole, and then the bytes go.
func TestClusterCopySourceDeleted(t *testing.T) {
	for _, what := range []string{"volume", "snapshot"} {
		t.Run(what, func(t *testing.T) {
			b := slowCluster(t)
			a, n := b.node("node-a"), b.node("node-b")
			v, sum := b.source(a, "pvc-source")
			from, remove := rig.FromVolume(v.ID), v.Delete
			if what == "snapshot" {
				snapshot, err := v.Snapshot("snap-source")
				b.must(err)
				from = rig.FromSnapshot(snapshot.GetSnapshotId())
				remove = func() error { return b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()) }
				defer b.gone(v)
			}
			c := b.copyOf(from, n, "pvc-copy")
			made := make(chan error, 1)
			go func() { made <- c.Create() }()
			b.begun(a, 4*mib)
			b.must(remove())
			b.must(<-made)
			b.same(c, n, sum)
			b.gone(c)
		})
	}
}

// Either end is killed, or the controller, or the wire is cut or broken, in the middle: the copy goes on, or begins anew,
// and is whole.
func TestClusterCopyInterrupted(t *testing.T) {
	for what, strike := range map[string]func(b *clusterBed){
		"source killed":      func(b *clusterBed) { b.must(b.node("node-a").Restart()) },
		"destination killed": func(b *clusterBed) { b.must(b.node("node-b").Restart()) },
		"controller killed":  func(b *clusterBed) { b.must(b.ctl.Restart()) },
		"both killed": func(b *clusterBed) {
			b.must(b.node("node-a").Kill())
			b.must(b.node("node-b").Restart())
			time.Sleep(time.Second)
			b.must(b.node("node-a").Start())
		},
		"connection broken": func(b *clusterBed) { b.node("node-a").Down.Break() },
		"cut to the source": func(b *clusterBed) { b.cutFor(rig.Forth) },
		"cut from it":       func(b *clusterBed) { b.cutFor(rig.Back) },
		"cut":               func(b *clusterBed) { b.cutFor(rig.Forth, rig.Back) },
	} {
		t.Run(strings.ReplaceAll(what, " ", "-"), func(t *testing.T) {
			t.Parallel()
			b := slowCluster(t)
			a, n := b.node("node-a"), b.node("node-b")
			v, sum := b.source(a, "pvc-source")
			c := b.copyOf(rig.FromVolume(v.ID), n, "pvc-copy")
			made := make(chan error, 1)
			go func() { made <- c.Create() }()
			b.begun(a, 8*mib)
			strike(b)
			if err := <-made; err != nil {
				b.refused("CreateVolume while "+what, err, codes.Unavailable, codes.Aborted, codes.DeadlineExceeded)
			}
			b.must(b.ctl.AwaitJoined("node-a", "node-b"))
			b.must(rig.Eventually(60*time.Second, c.Create))
			b.madeOnce("pvc-copy")
			b.same(c, n, sum)
			b.gone(v, c)
			b.quiet()
		})
	}
}

func (b *clusterBed) cutFor(directions ...int) {
	w := b.node("node-a").Down
	w.Cut(directions...)
	time.Sleep(3 * time.Second)
	w.Mend()
}

// Given up: nobody asks for the copy again, and its name is deleted by nobody either. The half-made one goes, and so does
// what the source held.
func TestClusterCopyGivenUp(t *testing.T) {
	b := slowCluster(t)
	a, n := b.node("node-a"), b.node("node-b")
	v, _ := b.source(a, "pvc-source")
	c := b.copyOf(rig.FromVolume(v.ID), n, "pvc-copy")
	made := make(chan error, 1)
	go func() { made <- c.Create() }()
	b.begun(a, 4*mib)
	b.must(a.Kill())
	if err := <-made; err != nil {
		b.refused("CreateVolume without its source", err, codes.Unavailable, codes.Aborted, codes.DeadlineExceeded)
	}
	// The source never comes back with what it held: its pool is taken away and it starts anew. Deletion of the source
	// is what an administrator does then.
	b.must(a.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	b.must(rig.Eventually(60*time.Second, c.Create))
	b.gone(c, v)
	b.quiet()
}

// -cluster.rounds times (the lane "cluster": 50) one end or the controller is killed at a random moment. Each copy is whole
// in the end, and nothing is left behind.
func TestClusterCopyKilledOften(t *testing.T) {
	b := slowCluster(t)
	a, n := b.node("node-a"), b.node("node-b")
	v, sum := b.source(a, "pvc-source")
	snapshot, err := v.Snapshot("snap-source")
	b.must(err)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for i := range *clusterRounds {
		from := rig.FromVolume(v.ID)
		if i%2 == 1 {
			from = rig.FromSnapshot(snapshot.GetSnapshotId())
		}
		c := b.copyOf(from, n, fmt.Sprintf("pvc-copy-%d", i))
		made := make(chan error, 1)
		go func() { made <- c.Create() }()
		time.Sleep(time.Duration(random.IntN(2500)) * time.Millisecond)
		who := []interface{ Restart() error }{a, n, b.ctl}[random.IntN(3)]
		b.must(who.Restart())
		answer := <-made
		b.must(b.ctl.AwaitJoined("node-a", "node-b"))
		id := c.ID
		b.must(rig.Eventually(90*time.Second, c.Create))
		if answer == nil && id != c.ID {
			t.Fatalf("round %d: %s was acknowledged, and is %s", i, id, c.ID)
		}
		b.madeOnce(c.Name)
		b.same(c, n, sum)
		b.gone(c)
		if t.Failed() {
			return
		}
	}
	b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.gone(v)
	// A destination that was killed behind its commit has not said that it needs its source no longer. The source keeps what it
	// held for such a copy until nobody has read it for half an hour (TRANSFER_IDLE_MS); everything else is gone.
	b.must(rig.Eventually(90*time.Second, n.Pools[0].Strays))
	holds := a.Pools[0].Names("copies")
	for _, name := range holds {
		if !strings.HasPrefix(name, "send-") {
			t.Errorf("the source's copies: %v", holds)
		}
	}
	if len(holds) > 2**clusterRounds {
		t.Errorf("%d files are held after %d copies", len(holds), *clusterRounds)
	}
	t.Logf("%d files are held for copies that were not closed", len(holds))
	if names := a.Pools[0].Names("trash"); len(names) > 0 {
		b.must(rig.Eventually(30*time.Second, func() error {
			if names := a.Pools[0].Names("trash"); len(names) > 0 {
				return fmt.Errorf("trash: %v", names)
			}
			return nil
		}))
	}
}

// granted asks a node for a grant, as a controller does.
func (b *clusterBed) granted(n *rig.Node, id, reader, name string) string {
	b.t.Helper()
	conn := b.dial(n.Listen, b.cert(rig.CertSpec{URIs: []string{rig.ControllerURI}}))
	reply, err := ringvolv1.GrantCopy(short(b.t), conn, &ringvolv1.GrantCopyRequest{SourceId: id, NodeId: reader, VolumeName: name})
	b.must(err)
	if len(reply.GetGrant()) != 32 {
		b.t.Fatalf("the grant is %q", reply.GetGrant())
	}
	return reply.GetGrant()
}

// A grant is for one node and one copy; what is read with it is the source.
func TestClusterGrant(t *testing.T) {
	b := openCluster(t, "node-a")
	a := b.node("node-a")
	v, sum := b.source(a, "pvc-source")
	reader := b.dial(a.Listen, b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-z")}}))
	thief := b.dial(a.Listen, b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-y")}}))
	grant := b.granted(a, v.ID, "node-z", "pvc-copy")
	if same := b.granted(a, v.ID, "node-z", "pvc-copy"); same != grant {
		t.Errorf("the same copy has two grants")
	}
	for what, guess := range map[string]string{"no grant": "", "a guess": strings.Repeat("0", 32), "a long one": strings.Repeat("0", 5000),
		"not hex": strings.Repeat("z", 32), "a part of it": grant[:31]} {
		_, err := ringvolv1.OpenCopy(short(t), reader, guess)
		b.refused(what, err, codes.PermissionDenied, codes.NotFound, codes.InvalidArgument)
	}
	_, err := ringvolv1.OpenCopy(short(t), thief, grant)
	b.refused("a stolen grant", err, codes.PermissionDenied, codes.NotFound)
	stolen, err := ringvolv1.ReadCopy(short(t), thief, &ringvolv1.ReadCopyRequest{Grant: grant})
	if err == nil {
		_, err = stolen.Recv()
	}
	b.refused("reading with a stolen grant", err, codes.PermissionDenied, codes.NotFound)
	b.refused("closing with a stolen grant", ringvolv1.CloseCopy(short(t), thief, grant), codes.PermissionDenied, codes.NotFound)

	open, err := ringvolv1.OpenCopy(short(t), reader, grant)
	b.must(err)
	if open.GetSizeBytes() != uint64(v.Got) || len(open.GetRecord()) == 0 {
		t.Errorf("%v", open)
	}
	image := make([]byte, v.Got)
	read := func(from uint64, most int) (at uint64, end bool) {
		ctx, cancel := context.WithTimeout(context.Background(), rig.CallTimeout)
		defer cancel() // what is not read any more would hold up the connection
		stream, err := ringvolv1.ReadCopy(ctx, reader, &ringvolv1.ReadCopyRequest{Grant: grant, Offset: from})
		b.must(err)
		at = from
		for range most {
			part, err := stream.Recv()
			b.must(err)
			if part.GetOffset() < at || part.GetOffset()%4096 != 0 {
				t.Fatalf("%d after %d", part.GetOffset(), at)
			}
			if part.GetEnd() {
				return part.GetOffset(), true
			}
			if part.GetChecksum() != castagnoli(part.GetOffset(), part.GetData()) {
				t.Fatalf("the checksum at %d is wrong", part.GetOffset())
			}
			copy(image[part.GetOffset():], part.GetData())
			at = part.GetOffset() + uint64(len(part.GetData()))
		}
		return at, false
	}
	at, end := read(0, 3) // and lost; it goes on from there
	if end {
		t.Fatal("it ended after three messages")
	}
	if at, end = read(at, 1<<20); !end || at != uint64(v.Got) {
		t.Errorf("it ended at %d of %d", at, v.Got)
	}
	got := sha256.Sum256(image)
	if hex.EncodeToString(got[:]) != sum {
		t.Error("what was read is not the source")
	}
	for _, odd := range []uint64{1, 4095, uint64(v.Got) + 4096, 1 << 63} {
		stream, err := ringvolv1.ReadCopy(short(t), reader, &ringvolv1.ReadCopyRequest{Grant: grant, Offset: odd})
		if err == nil {
			_, err = stream.Recv()
		}
		b.refused(fmt.Sprintf("reading from %d", odd), err, codes.InvalidArgument, codes.OutOfRange)
	}
	b.must(ringvolv1.CloseCopy(short(t), reader, grant))
	_, err = ringvolv1.OpenCopy(short(t), reader, grant)
	b.refused("a grant that was closed", err, codes.PermissionDenied, codes.NotFound)
	b.gone(v)
	b.quiet()
}
