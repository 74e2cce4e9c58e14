// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// Two nodes with one id: the first has it, the second is told, and takes over when the first has left.
func TestClusterTwoNodesOneID(t *testing.T) {
	b := openCluster(t, "node-a")
	first := b.node("node-a")
	v := b.volume(first, "pvc-first")
	b.must(v.Create())
	p, err := b.NewPool("second", "xfs", nodePool)
	b.must(err)
	p.Name = "default"
	second, err := b.NewNodeOn("second", "node-a", p)
	b.must(err)
	b.must(second.Start())
	b.eventually(func() error { return logSays(second.Log, "node-a") })
	for range 5 {
		w := b.volume(nil, "pvc-where")
		b.must(w.Create())
		if home := b.homeOf(w.ID); home != first {
			t.Fatalf("made on %v", home)
		}
		b.gone(w)
	}
	b.listed(b.c, v.ID)
	b.eventually(func() error {
		log, _ := os.ReadFile(b.ctl.Log)
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "node-a") && (strings.Contains(line, "two") || strings.Contains(line, "another")) {
				return nil
			}
		}
		return fmt.Errorf("the controller does not say that two nodes have one id")
	})
	b.must(first.Kill())
	w := b.volume(nil, "pvc-then")
	b.eventually(w.Create)
	if home := b.homeOf(w.ID); home != second {
		t.Errorf("made on %v", home)
	}
	// The first one's pool is away.
	_, err = get(t, b.c, v.ID)
	b.refused("a volume of the first", err, codes.Unavailable)
	b.gone(w)
	b.must(second.Leaks()) // it takes what is deleted away while it runs
	b.must(second.Kill())
	b.must(first.Start())
	b.eventually(v.Delete)
}

func logSays(path, word string) error {
	text, err := os.ReadFile(path)
	if err == nil && !strings.Contains(string(text), word) {
		err = fmt.Errorf("%s does not say %q", path, word)
	}
	return err
}

// A pool's disk moves to another node: its volumes are there, under the same ids.
func TestClusterDiskMoves(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	a, n := b.node("node-a"), b.node("node-b")
	v := b.volume(a, "pvc-moving")
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, 2*mib, 3)
	b.must(err)
	b.must(v.Down())
	snapshot, err := v.Snapshot("snap-moving")
	b.must(err)
	b.must(a.Term())
	b.must(b.ctl.AwaitAway("node-a"))
	disk := a.Pools[0]
	moved := *disk
	moved.Name = "moved"
	n.Pools = append(n.Pools, &moved)
	b.must(n.Restart())
	b.must(b.ctl.AwaitJoined("node-b"))
	b.eventually(func() error {
		reply, err := get(t, b.c, v.ID)
		if err == nil && reply.GetVolume().GetAccessibleTopology()[0].GetSegments()[rig.TopologyKey] != "node-b" {
			err = fmt.Errorf("%v", reply.GetVolume().GetAccessibleTopology())
		}
		return err
	})
	b.listed(b.c, v.ID)
	v.At(n)
	v.Staging, v.Target = "", ""
	b.must(v.Paths())
	b.must(v.Up())
	b.must(rig.Check(v.Target, 2*mib, sum))
	b.must(v.Gone())
	b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
	// node-a comes back with another disk.
	p, err := b.NewPool("fresh", "xfs", nodePool)
	b.must(err)
	p.Name = "default"
	a.Pools = []*rig.Pool{p}
	b.must(a.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	b.listed(b.c)
}

// The network is cut during CreateVolume and DeleteVolume, in one direction or in both, at various moments: what comes of
// it is one volume or none, and the retry ends it.
func TestClusterNetworkCut(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	n := b.node("node-a")
	for i, cut := range []struct{ from, to bool }{{true, false}, {false, true}, {true, true}} {
		for k, wait := range []time.Duration{0, 2 * time.Millisecond, 10 * time.Millisecond} {
			name := fmt.Sprintf("pvc-cut-%d-%d", i, k)
			v := b.volume(n, name)
			call := func(do func(context.Context) error) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- do(ctx) }()
				time.Sleep(wait)
				n.Cut(cut.from, cut.to)
				if err := <-done; err != nil {
					b.refused(name, err, codes.DeadlineExceeded, codes.Unavailable)
				}
				n.Mend()
			}
			call(func(ctx context.Context) error {
				_, err := b.c.CreateVolume(ctx, v.Request())
				return err
			})
			b.eventually(v.Create)
			b.madeOnce(name)
			call(func(ctx context.Context) error {
				_, err := b.c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.ID})
				return err
			})
			b.eventually(v.Delete)
			if home := b.homeOf(v.ID); home != nil {
				t.Errorf("%s is deleted and on %s", v.ID, home.Node)
			}
		}
	}
	b.must(b.ctl.AwaitJoined("node-a"))
	b.listed(b.c)
}

// A cut that lasts: the node is away for the controller, the controller for the node; when it is mended they find each other.
func TestClusterNetworkCutForLong(t *testing.T) {
	for name, cut := range map[string]struct{ from, to bool }{"from": {true, false}, "to": {false, true}, "both": {true, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openCluster(t, "node-a", "node-b")
			n := b.node("node-a")
			v := b.volume(n, "pvc-there")
			b.must(v.Create())
			n.Cut(cut.from, cut.to)
			b.must(b.ctl.AwaitAway("node-a"))
			_, err := get(t, b.c, v.ID)
			b.refused("a volume behind the cut", err, codes.Unavailable)
			b.says("a volume behind the cut", err, "node-a")
			b.listed(b.c, v.ID)
			w := b.volume(nil, "pvc-elsewhere")
			b.must(w.Create())
			if home := b.homeOf(w.ID); home == nil || home.Node != "node-b" {
				t.Errorf("made on %v", home)
			}
			n.Mend()
			b.must(b.ctl.AwaitJoined("node-a"))
			_, err = get(t, b.c, v.ID)
			b.must(err)
			b.gone(v, w)
		})
	}
}

// Connections are reset again and again under load: nothing is made twice, nothing is lost.
func TestClusterConnectionsBreak(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(150 * time.Millisecond):
				for _, n := range b.Nodes {
					n.Down.Break()
					n.Up[0].Break()
				}
			}
		}
	}()
	var all []*rig.Volume
	var ids []string
	for i := range 30 {
		v := b.volume(nil, fmt.Sprintf("pvc-%02d", i))
		b.eventually(v.Create)
		all, ids = append(all, v), append(ids, v.ID)
	}
	close(stop)
	<-ended
	b.must(b.ctl.AwaitJoined("node-a", "node-b"))
	for _, v := range all {
		b.madeOnce(v.Name)
	}
	b.listed(b.c, ids...)
	b.gone(all...)
	b.listed(b.c)
}

// A controller is told to end: it takes no more, answers what runs, and the nodes go on and find the next one.
func TestClusterControllerDrains(t *testing.T) {
	b := newCluster(t)
	sim := b.sim("node-s")
	release := make(chan struct{})
	sim.BeforeCreate = func(context.Context, *csi.CreateVolumeRequest) error { <-release; return nil }
	b.must(sim.Listen(b.Rig))
	j := b.join(sim)
	b.must(b.ctl.AwaitJoined("node-s"))
	v := b.ctl.Volume(nil, "pvc-drained", rig.MountCap("ext4"), 32*mib)
	made := make(chan error, 1)
	go func() { made <- v.Create() }()
	b.eventually(func() error {
		if sim.Creates() == 0 {
			return errStill
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- b.ctl.Term() }()
	time.Sleep(300 * time.Millisecond)
	close(release)
	if err := <-made; err != nil {
		b.refused("CreateVolume while the controller drains", err, codes.Unavailable)
	}
	b.must(<-ended)
	_ = j.AwaitEnd(10 * time.Second)
	b.must(b.ctl.Start())
	j = b.join(sim)
	b.must(b.ctl.AwaitJoined("node-s"))
	b.eventually(v.Create)
	j.Leave()
}

// A node that drains is away at once, not after the silence.
func TestClusterNodeDrains(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	begin := time.Now()
	b.must(b.node("node-a").Term())
	b.must(b.ctl.AwaitAway("node-a"))
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("noticed after %v", took)
	}
	v := b.volume(nil, "pvc-elsewhere")
	b.must(v.Create())
	b.gone(v)
	b.must(b.node("node-a").Start())
	b.must(b.ctl.AwaitJoined("node-a"))
}

// The second replica knows what the first does, and takes its work over.
func TestClusterReplicas(t *testing.T) {
	b := newCluster(t)
	second, err := b.StartController("ctl-b")
	b.must(err)
	b.nodes("node-a", "node-b")
	c2, err := second.Client()
	b.must(err)
	v := b.volume(b.node("node-a"), "pvc-first")
	b.must(v.Create())
	b.listed(c2, v.ID)
	b.must(b.ctl.Kill())
	w := second.Volume(b.node("node-b"), "pvc-second", rig.MountCap("ext4"), 32*mib)
	b.must(w.Create())
	again := second.Volume(nil, "pvc-first", rig.MountCap("ext4"), 32*mib)
	b.must(again.Create())
	if again.ID != v.ID {
		t.Errorf("%s and %s", v.ID, again.ID)
	}
	b.must(second.Volume(nil, "pvc-first", rig.MountCap("ext4"), 32*mib).Create())
	b.must(b.ctl.Start())
	b.must(b.ctl.AwaitJoined("node-a", "node-b"))
	b.listed(b.c, v.ID, w.ID)
	b.gone(v, w)
	b.listed(c2)
}

// A node goes, and is back with another address.
func TestClusterNodeMoves(t *testing.T) {
	b := openCluster(t, "node-a")
	n := b.node("node-a")
	v := b.volume(n, "pvc-there")
	b.must(v.Create())
	b.must(n.Kill())
	n.Down.Cut()
	var err error
	n.Listen, err = rig.FreeAddress()
	b.must(err)
	n.Down, err = b.NewWire(n.Listen)
	b.must(err)
	b.must(n.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	_, err = get(t, b.c, v.ID)
	b.must(err)
	b.gone(v)
}

// A cable is pulled, with packets on it: no proxy ends or acknowledges anything here. Each side notices by itself, and they
// find each other again.
func TestClusterCablePulled(t *testing.T) {
	b := newCluster(t)
	cable, err := b.NewCable()
	if err != nil {
		t.Skip(err)
	}
	b.must(b.ctl.Kill())
	b.ctl.Wrap, b.ctl.Listen = cable.In[0], cable.Addr[0]+":9810"
	b.must(b.ctl.Start())
	n, err := b.NewNode("node-a", "xfs", nodePool)
	b.must(err)
	n.Wrap, n.Listen, n.Advertise = cable.In[1], cable.Addr[1]+":9809", cable.Addr[1]+":9809"
	n.Controllers = []string{b.ctl.Listen}
	b.must(n.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	v := b.volume(n, "pvc-there")
	b.must(v.Create())
	for i := range 2 {
		b.must(cable.Pull())
		w := b.volume(n, fmt.Sprintf("pvc-%d", i))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err = b.c.CreateVolume(ctx, w.Request())
		cancel()
		b.refused("CreateVolume without a cable", err, codes.DeadlineExceeded, codes.Unavailable)
		if i == 0 { // long enough to be noticed, then not
			b.must(b.ctl.AwaitAway("node-a"))
			_, err = get(t, b.c, v.ID)
			b.refused("a volume behind the cable", err, codes.Unavailable)
		}
		b.must(cable.Plug())
		b.must(b.ctl.AwaitJoined("node-a"))
		b.eventually(w.Create)
		b.madeOnce(w.Name)
		b.gone(w)
	}
	b.gone(v)
}

// Machines whose clocks are an hour apart, each way: nothing of ours compares them.
func TestClusterClocksApart(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if _, missing := os.Stat("preload/clock.c"); err != nil || missing != nil {
		t.Skip("no C compiler, or no source, for another machine's clock")
	}
	if testing.Short() {
		t.Skip("the sanitizer has to be the first library, and so does another machine's clock")
	}
	b := newCluster(t)
	shim := b.Path("clock.so")
	_, err = rig.Run(cc, "-O2", "-Wall", "-shared", "-fPIC", "-o", shim, "preload/clock.c", "-ldl")
	b.must(err)
	// Certificates are compared with the clock, by everybody.
	long := time.Now().Add(-10 * time.Hour)
	b.CA, err = rig.NewCASince("ringvol test CA", long)
	b.must(err)
	write := func(dir, uri string) {
		_, err := rig.WriteTLS(b.Path(dir, "tls"), b.cert(rig.CertSpec{URIs: []string{uri}, NotBefore: long}))
		b.must(err)
	}
	b.must(b.ctl.Kill())
	write("ctl-a", rig.ControllerURI)
	b.must(b.ctl.Start())
	for name, ahead := range map[string]int{"node-a": 3600, "node-b": -3600} {
		n, err := b.NewNode(name, "xfs", nodePool)
		b.must(err)
		write(name, rig.NodeURI(name))
		n.Env = []string{"LD_PRELOAD=" + shim, fmt.Sprintf("CLOCK_AHEAD=%d", ahead)}
		b.must(n.Start())
	}
	b.must(b.ctl.AwaitJoined("node-a", "node-b"))
	for _, way := range [][2]string{{"node-a", "node-b"}, {"node-b", "node-a"}} {
		from, to := b.node(way[0]), b.node(way[1])
		v, sum := b.source(from, "pvc-source")
		snapshot, err := v.Snapshot("snap-source")
		b.must(err)
		// The clocks really are apart.
		if off := time.Since(snapshot.GetCreationTime().AsTime()).Abs(); off < 50*time.Minute {
			t.Errorf("%s says it is %v off", from.Node, off)
		}
		c := b.copyOf(rig.FromSnapshot(snapshot.GetSnapshotId()), to, "pvc-copy")
		b.must(c.Create())
		b.same(c, to, sum)
		b.must(from.Restart())
		b.must(b.ctl.AwaitJoined(from.Node))
		b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
		b.gone(c, v)
	}
	b.listed(b.c)
	b.quiet()
}
