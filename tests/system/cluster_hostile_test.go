// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

func (b *clusterBed) sim(id string) *rig.SimNode {
	b.t.Helper()
	s, err := b.NewSim(id)
	b.must(err)
	return s
}

func (b *clusterBed) join(s *rig.SimNode) *rig.SimJoin {
	b.t.Helper()
	j, err := s.Join(b.ctl.Listen)
	b.must(err)
	b.must(j.AwaitWelcome())
	return j
}

// sentAway checks that a node that says these things is told to go, with a reason, and that the controller lives.
func (b *clusterBed) sentAway(what string, s *rig.SimNode, reports ...*ringvolv1.NodeReport) {
	b.t.Helper()
	j, err := s.Open(b.ctl.Listen)
	b.must(err)
	defer j.Leave()
	for _, report := range reports {
		if err := j.Send(report); err != nil {
			break
		}
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := j.Stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		b.refused(what, err, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.AlreadyExists,
			codes.FailedPrecondition, codes.ResourceExhausted, codes.Aborted, codes.Unavailable)
	case <-time.After(20 * time.Second):
		b.t.Errorf("%s: the node was not sent away", what)
	}
	_, err = b.c.GetPluginInfo(short(b.t), &csi.GetPluginInfoRequest{})
	b.must(err)
}

// A node that lies about itself is sent away; nobody else notices.
func TestClusterHostileHello(t *testing.T) {
	b := openCluster(t, "node-a")
	v := b.volume(b.node("node-a"), "pvc-mine")
	b.must(v.Create())
	hello := func(change func(*ringvolv1.Hello)) *ringvolv1.NodeReport {
		h := b.sim("node-s").Hello()
		change(h)
		return &ringvolv1.NodeReport{Hello: h}
	}
	long := strings.Repeat("x", 100000)
	for what, report := range map[string]*ringvolv1.NodeReport{
		"another's id":          hello(func(h *ringvolv1.Hello) { h.NodeId = "node-a" }),
		"no id":                 hello(func(h *ringvolv1.Hello) { h.NodeId = "" }),
		"a long id":             hello(func(h *ringvolv1.Hello) { h.NodeId = long }),
		"another driver":        hello(func(h *ringvolv1.Hello) { h.DriverName = "csi.example.com" }),
		"no driver":             hello(func(h *ringvolv1.Hello) { h.DriverName = "" }),
		"no address":            hello(func(h *ringvolv1.Hello) { h.Address = "" }),
		"a long address":        hello(func(h *ringvolv1.Hello) { h.Address = long }),
		"an odd address":        hello(func(h *ringvolv1.Hello) { h.Address = "no port" }),
		"no instance":           hello(func(h *ringvolv1.Hello) { h.Instance = "" }),
		"a long version":        hello(func(h *ringvolv1.Hello) { h.Version = long }),
		"another's segment":     hello(func(h *ringvolv1.Hello) { h.Topology[0].Value = "node-a" }),
		"no segment of its own": hello(func(h *ringvolv1.Hello) { h.Topology = nil }),
		"too many segments": hello(func(h *ringvolv1.Hello) {
			for i := range 10000 {
				h.Topology = append(h.Topology, &ringvolv1.Segment{Key: fmt.Sprintf("example.com/k%d", i), Value: "v"})
			}
		}),
		"no hello": {Synced: true},
	} {
		b.sentAway(what, b.sim("node-s"), report)
	}
	s := b.sim("node-s")
	b.sentAway("two hellos", s, &ringvolv1.NodeReport{Hello: s.Hello()}, &ringvolv1.NodeReport{Hello: s.Hello()})
	b.listed(b.c, v.ID)
	_, err := get(t, b.c, v.ID)
	b.must(err)
	b.gone(v)
}

// A node that claims others' pools and volumes gets none of them.
func TestClusterHostileClaims(t *testing.T) {
	b := openCluster(t, "node-a")
	v := b.volume(b.node("node-a"), "pvc-mine")
	b.must(v.Create())
	// Objects in another's pool, ids that are none, entries that are not theirs.
	s := b.sim("node-s")
	good := s.Add("pvc-good", 32*mib)
	j := b.join(s)
	b.listed(b.c, v.ID, good)
	object := func(id string, entryID string) *ringvolv1.NodeObject {
		o := rig.Object(&csi.Volume{VolumeId: entryID, CapacityBytes: 1})
		o.Id = id
		return o
	}
	for what, report := range map[string]*ringvolv1.NodeReport{
		"another's volume":      {Objects: []*ringvolv1.NodeObject{object(v.ID, v.ID)}},
		"another's pool":        {Objects: []*ringvolv1.NodeObject{object(v.ID[:8]+".pvc-theirs.01234567", v.ID[:8]+".pvc-theirs.01234567")}},
		"no id":                 {Objects: []*ringvolv1.NodeObject{object("", "")}},
		"a path":                {Objects: []*ringvolv1.NodeObject{object(s.Pool8()+".../../etc.01234567", s.Pool8()+".../../etc.01234567")}},
		"not UTF-8":             {Objects: []*ringvolv1.NodeObject{{Id: good, Entry: []byte{0x0a, 2, 0xff, 0xfe}}}},
		"another id inside":     {Objects: []*ringvolv1.NodeObject{object(s.Pool8()+".pvc-inside.01234567", v.ID)}},
		"an entry that is none": {Objects: []*ringvolv1.NodeObject{{Id: good, Entry: bytes.Repeat([]byte{0xff}, 100)}}},
		"an empty entry":        {Objects: []*ringvolv1.NodeObject{{Id: s.Pool8() + ".pvc-empty.01234567"}}},
		"a huge entry":          {Objects: []*ringvolv1.NodeObject{{Id: good, Entry: make([]byte, 512<<10)}}},
		"another's is gone":     {Gone: []string{v.ID}},
		"rubbish is gone":       {Gone: []string{"rubbish"}},
		"a key that is none":    {Claims: []*ringvolv1.NameClaim{{Key: "../x"}}},
		"a long key":            {Claims: []*ringvolv1.NameClaim{{Key: strings.Repeat("x", 100000)}}},
		"a class nobody knows":  {Capacities: []*ringvolv1.NodeCapacity{{Class: 4711, Response: []byte{8, 1}}}},
		"a capacity that is none": {Capacities: []*ringvolv1.NodeCapacity{{Class: 0, Response: bytes.Repeat([]byte{0xff}, 64)},
			{Class: 1, Response: bytes.Repeat([]byte{0xff}, 64)}}},
		"another's pool as its own": {Pools: []*ringvolv1.NodePool{{Name: "default", Uuid: v.ID[:8] + strings.Repeat("0", 24),
			State: ringvolv1.NodePool_READY, AvailableBytes: 1 << 50}}},
		"another's pool is gone": {Pools: []*ringvolv1.NodePool{{Uuid: v.ID[:8] + strings.Repeat("0", 24), Gone: true}}},
		"a uuid that is none":    {Pools: []*ringvolv1.NodePool{{Name: "default", Uuid: "rubbish"}}},
	} {
		// Either it is sent away for it, or what it said has no effect; it tells anew what it has.
		if err := j.Send(report); err != nil || j.Ended() {
			j.Leave()
			j = b.join(s)
			b.must(j.Send(report))
		}
		time.Sleep(50 * time.Millisecond)
		if j.Ended() {
			b.refused(what, j.Err(), codes.InvalidArgument, codes.PermissionDenied, codes.AlreadyExists, codes.FailedPrecondition,
				codes.ResourceExhausted, codes.Aborted)
			j.Leave()
			j = b.join(s)
		}
		got, err := list(short(t), b.c, 0)
		b.must(err)
		for _, id := range got {
			if id != v.ID && id != good && !strings.HasPrefix(id, s.Pool8()) {
				t.Errorf("%s: %q is listed", what, id)
			}
		}
		reply, err := get(t, b.c, v.ID)
		if err != nil || reply.GetVolume().GetVolumeId() != v.ID || reply.GetVolume().GetCapacityBytes() != v.Got {
			t.Errorf("%s: %v, %v", what, reply, err)
		}
	}
	j.Leave()
	s2 := b.sim("node-s2") // two nodes that say the same pool
	s2.Pools[0].Uuid = s.Pools[0].Uuid
	j = b.join(s)
	j2, err := s2.Join(b.ctl.Listen)
	b.must(err)
	foreign := s2.Add("pvc-foreign", 1)
	_ = j2.Send(&ringvolv1.NodeReport{Objects: []*ringvolv1.NodeObject{rig.Object(&csi.Volume{VolumeId: foreign})}})
	time.Sleep(200 * time.Millisecond)
	got, err := list(short(t), b.c, 0)
	b.must(err)
	for _, id := range got {
		if id == foreign {
			t.Errorf("%s is in a pool of another node, and is listed", id)
		}
	}
	b.node("node-a") // unharmed
	b.gone(v)
}

// A node that floods the controller with objects and names is stopped, and the controller's memory has an end.
func TestClusterHostileFlood(t *testing.T) {
	b := openCluster(t, "node-a")
	v := b.volume(b.node("node-a"), "pvc-mine")
	b.must(v.Create())
	s := b.sim("node-s")
	j, err := s.Open(b.ctl.Listen)
	b.must(err)
	b.must(j.Send(&ringvolv1.NodeReport{Hello: s.Hello()}))
	b.must(j.Send(&ringvolv1.NodeReport{Pools: s.Pools}))
	drained := make(chan error, 1)
	go func() {
		for {
			if _, err := j.Stream.Recv(); err != nil {
				drained <- err
				return
			}
		}
	}()
	// A name for each second that remains to the universe.
	count := 0
	for stop := time.Now().Add(10 * time.Second); time.Now().Before(stop) && count < 300; count++ {
		report := &ringvolv1.NodeReport{}
		for i := range 2000 {
			report.Claims = append(report.Claims, &ringvolv1.NameClaim{Key: fmt.Sprintf("flood-%d-%d", count, i)})
		}
		if err := j.Send(report); err != nil {
			break
		}
		_, err := b.c.GetPluginInfo(short(t), &csi.GetPluginInfoRequest{})
		b.must(err)
	}
	j.Leave()
	<-drained
	// Pools, too.
	j, err = s.Open(b.ctl.Listen)
	b.must(err)
	b.must(j.Send(&ringvolv1.NodeReport{Hello: s.Hello()}))
	for i := range 100 {
		report := &ringvolv1.NodeReport{}
		for k := range 500 {
			report.Pools = append(report.Pools, &ringvolv1.NodePool{Name: "default",
				Uuid: fmt.Sprintf("%08x%024x", 0xe0000000+i*500+k, 1), State: ringvolv1.NodePool_READY})
		}
		if err := j.Send(report); err != nil {
			break
		}
	}
	j.Leave()
	if rss := rssKiB(t, b.ctl.Pid()); rss > 256<<10 && !testing.Short() { // a build with sanitizers takes more
		t.Errorf("the controller has %d KiB", rss)
	}
	_, err = get(t, b.c, v.ID)
	b.must(err)
	other := b.volume(b.node("node-a"), "pvc-other")
	b.must(other.Create())
	b.gone(v, other)
}

func rssKiB(t *testing.T, pid int) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			fmt.Sscan(rest, &kib)
		}
	}
	return kib
}

// A node that joins and never reads: what is to be told to it has a bound, and the others are told.
func TestClusterNodeNeverReads(t *testing.T) {
	b := openCluster(t, "node-a")
	s := b.sim("node-s")
	conn, err := rig.DialTLS(b.ctl.Listen, s.Cert, grpc.WithInitialWindowSize(65535), grpc.WithStaticStreamWindowSize(65535))
	b.must(err)
	defer conn.Close()
	stream, err := ringvolv1.Join(short(t), conn)
	b.must(err)
	b.must(stream.Send(&ringvolv1.NodeReport{Hello: s.Hello()}))
	b.must(stream.Send(&ringvolv1.NodeReport{Pools: s.Pools, Synced: true}))
	before := rssKiB(t, b.ctl.Pid())
	// Each class is told to it, and each roster; both are the client's to make many of.
	c := b.c
	for i := range 300 {
		_, err := c.GetCapacity(short(t), &csi.GetCapacityRequest{AccessibleTopology: rig.At("node-a"),
			Parameters: map[string]string{"mkfsOptions": fmt.Sprintf("-m %d", i%50), "csi.storage.k8s.io/fstype": "ext4",
				"csi.storage.k8s.io/pvc/name": strings.Repeat("x", 3000) + fmt.Sprint(i)}})
		if err != nil && rig.Code(err) != codes.InvalidArgument && rig.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
	}
	if after := rssKiB(t, b.ctl.Pid()); after > before+64<<10 {
		t.Errorf("%d KiB became %d", before, after)
	}
	v := b.volume(b.node("node-a"), "pvc-beside")
	b.must(v.Create())
	b.gone(v)
}

// A controller that joins and never reads: the node does its work, and its memory has an end.
func TestClusterControllerNeverReads(t *testing.T) {
	b := newCluster(t)
	deaf, err := b.NewSimController()
	b.must(err)
	deaf.Deaf = true
	n, err := b.NewNode("node-a", "xfs", nodePool)
	b.must(err)
	n.Controllers = append(n.Controllers, deaf.Address)
	b.must(n.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	before := rssKiB(t, n.Pid())
	direct, err := n.Client()
	b.must(err)
	for i := range 100 {
		v := b.volume(n, fmt.Sprintf("pvc-%d", i)).On(direct)
		b.must(v.Create())
		b.must(v.Delete())
	}
	if after := rssKiB(t, n.Pid()); after > before+16<<10 && !testing.Short() { // a build with sanitizers keeps what is freed
		t.Errorf("%d KiB became %d", before, after)
	}
	// One that came through a controller asks the deaf one, has no answer, and says so or goes on; it does not hang.
	v := b.volume(n, "pvc-routed")
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	_, err = b.c.CreateVolume(ctx, v.Request())
	if err != nil {
		b.refused("CreateVolume beside a deaf controller", err, codes.Unavailable, codes.Aborted)
	}
	b.must(n.Kill()) // what the deaf one keeps would not let it drain
	b.must(n.Start())
	n2, err := n.Client()
	b.must(err)
	v = v.On(n2)
	b.must(v.Create())
	b.must(v.Delete())
}

// A node of the next version: fields and kinds of report that nobody knows are skipped, and a call it does not have says so.
func TestClusterNewerAndOlderNode(t *testing.T) {
	b := newCluster(t)
	unknown := protowire.AppendString(protowire.AppendTag(nil, 4711, protowire.BytesType), "from the next version")
	newer := b.sim("node-newer")
	newer.Version = "99.0.0"
	id := newer.Add("pvc-newer", 32*mib)
	b.must(newer.Listen(b.Rig))
	j, err := newer.Open(b.ctl.Listen)
	b.must(err)
	hello := &ringvolv1.NodeReport{Hello: newer.Hello()}
	hello.Hello.Features = []string{"telepathy"}
	hello.ProtoReflect().SetUnknown(unknown)
	hello.Hello.ProtoReflect().SetUnknown(unknown)
	b.must(j.Send(hello))
	b.must(j.Send(&ringvolv1.NodeReport{Pools: newer.Pools}))
	entry, err := proto.Marshal(&csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: id, CapacityBytes: 32 * mib}})
	b.must(err)
	object := &ringvolv1.NodeObject{Id: id, Entry: append(entry, unknown...)}
	object.ProtoReflect().SetUnknown(unknown)
	b.must(j.Send(&ringvolv1.NodeReport{Objects: []*ringvolv1.NodeObject{object,
		{Kind: 7, Id: newer.Pool8() + ".a-new-kind.01234567"}}}))
	only := &ringvolv1.NodeReport{}
	only.ProtoReflect().SetUnknown(unknown)
	b.must(j.Send(only))
	b.must(j.Send(&ringvolv1.NodeReport{Synced: true}))
	b.listed(b.c, id)
	_, err = get(t, b.c, id)
	b.must(err)
	// It has no copies: a restore elsewhere is refused and not lost.
	older := b.sim("node-older")
	older.Version = ""
	b.must(older.Listen(b.Rig))
	b.join(older)
	clone := b.ctl.Volume(nil, "pvc-clone", rig.MountCap("ext4"), 32*mib)
	clone.Topology = rig.OnNode("node-older")
	clone.Source = rig.FromVolume(id)
	b.refused("a copy from a node that has none", clone.Create(), codes.Unimplemented, codes.ResourceExhausted,
		codes.FailedPrecondition, codes.Unavailable)
	if older.Creates() != 0 {
		t.Error("the node was asked to make a copy that it cannot have")
	}
}

// A controller of the next version: the node skips what it does not know.
func TestClusterNewerController(t *testing.T) {
	b := newCluster(t)
	sim, err := b.NewSimController()
	b.must(err)
	sim.Version = "99.0.0"
	sim.Extra = protowire.AppendString(protowire.AppendTag(nil, 4711, protowire.BytesType), "from the next version")
	n, err := b.NewNode("node-a", "xfs", nodePool)
	b.must(err)
	n.Controllers = append(n.Controllers, sim.Address)
	b.must(n.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	synced := func() int {
		count := 0
		for _, report := range sim.Reports("node-a") {
			if report.GetSynced() {
				count++
			}
		}
		return count
	}
	b.eventually(func() error {
		if synced() == 0 {
			return errStill
		}
		return nil
	})
	extra := &ringvolv1.ControllerReport{}
	extra.ProtoReflect().SetUnknown(sim.Extra)
	b.must(sim.Say("node-a", extra))
	v := b.volume(n, "pvc-beside")
	b.must(v.Create())
	b.eventually(func() error {
		for _, report := range sim.Reports("node-a") {
			for _, object := range report.GetObjects() {
				if object.GetId() == v.ID {
					return nil
				}
			}
		}
		return errStill
	})
	// A controller that says what cannot be is left alone, or skipped; the node goes on.
	for _, odd := range []*ringvolv1.ControllerReport{
		{Classes: []*ringvolv1.CapacityClass{{Class: 1, Request: bytes.Repeat([]byte{0xff}, 100)}}},
		{Verdicts: []*ringvolv1.NameVerdict{{Key: "nobody-asked", Granted: true}, {Key: strings.Repeat("x", 100000)}}},
		{Roster: &ringvolv1.Roster{Nodes: []*ringvolv1.RosterNode{{NodeId: strings.Repeat("x", 100000)}, {NodeId: "x", Pools: []string{"rubbish"}}}}},
		{Welcome: &ringvolv1.Welcome{}},
	} {
		_ = sim.Say("node-a", odd)
		time.Sleep(50 * time.Millisecond)
	}
	classes := &ringvolv1.ControllerReport{}
	for i := range 10000 {
		classes.Classes = append(classes.Classes, &ringvolv1.CapacityClass{Class: uint32(i)})
	}
	_ = sim.Say("node-a", classes)
	w := b.volume(n, "pvc-after")
	b.eventually(w.Create)
	b.gone(v, w)
}

// A thousand nodes at once, and a restart of the controller with all of them.
func TestClusterThousandNodes(t *testing.T) {
	b := newCluster(t)
	count := 1000
	if testing.Short() {
		count = 100
	}
	cert, err := b.CA.IssueFor(rig.AnyNodeURI)
	b.must(err)
	var ids []string
	sims := make([]*rig.SimNode, count)
	for i := range sims {
		sims[i] = rig.NewSimWith(fmt.Sprintf("node-%04d", i), cert)
		if i == 7 {
			b.must(sims[i].Listen(b.Rig))
		}
		ids = append(ids, sims[i].Add("pvc-"+fmt.Sprint(i), 32*mib))
	}
	begin := make(chan struct{})
	ended := make(chan error, count)
	for _, s := range sims {
		go func() {
			<-begin
			j, err := s.Join(b.ctl.Listen)
			if err == nil {
				err = j.AwaitWelcome()
			}
			ended <- err
		}()
	}
	close(begin)
	for range sims {
		b.must(<-ended)
	}
	b.eventually(func() error {
		got, err := list(short(t), b.c, 0)
		if err == nil && len(got) != len(ids) {
			err = fmt.Errorf("%d of %d are listed", len(got), len(ids))
		}
		return err
	})
	if room, err := b.ctl.Room("node-0007"); err != nil || room != sims[7].Room {
		t.Errorf("%d, %v", room, err)
	}
}
