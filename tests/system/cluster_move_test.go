// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

var moveRounds = flag.Int("move.rounds", 20, "times that a node or the controller is killed while a volume moves")

// move is `ringvol move` of a volume to a node; more are its flags.
func (b *clusterBed) move(volume, node string, more ...string) run {
	b.t.Helper()
	args := []string{"move", "--endpoint", "unix://" + b.ctl.Socket, "--timeout", "90", volume}
	if node != "" {
		args = append(args, node)
	}
	return tool(b.t, nil, append(args, more...)...)
}

// moved has the volume moved, and checks where it is and what it has. From then on it is used there.
func (b *clusterBed) moved(v *rig.Volume, n *rig.Node, sum string) {
	b.t.Helper()
	if r := b.move(v.ID, n.Node); r.code != 0 {
		b.t.Fatalf("%+v", r)
	}
	b.isAt(v, n, sum)
}

func (b *clusterBed) isAt(v *rig.Volume, n *rig.Node, sum string) {
	b.t.Helper()
	b.madeOnce(v.Name)
	if home := b.homeOf(v.ID); home != n {
		b.t.Fatalf("%s is on %v, not on %s", v.ID, home, n.Node)
	}
	if sum != "" {
		b.same(v, n, sum)
	}
	v.At(n)
	// Lists have what the pools' records have, once each.
	b.eventually(func() error {
		var want []string
		for _, n := range b.Nodes {
			for _, p := range n.Pools {
				want = append(want, p.IDs()...)
			}
		}
		got, err := list(short(b.t), b.c, 2)
		slices.Sort(want)
		slices.Sort(got)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("listed %q, the pools have %q", got, want)
		}
		return err
	})
}

// A volume that nobody uses moves, with its bytes and holes; it keeps its id, and is used and deleted where it is.
func TestClusterMove(t *testing.T) {
	b := openCluster(t, "node-a", "node-b", "node-c")
	a, n := b.node("node-a"), b.node("node-b")
	v, sum := b.source(a, "pvc-moves")
	id := v.ID
	r := b.move("pvc-moves", "node-b")
	if r.code != 0 || !strings.Contains(r.out, "pvc-moves is on node node-b, in pool default") {
		t.Fatalf("%+v", r)
	}
	b.isAt(v, n, sum)
	reply, err := get(t, b.c, id)
	b.must(err)
	if got := reply.GetVolume(); got.GetVolumeId() != id || got.GetAccessibleTopology()[0].GetSegments()["topology.ringvol.dev/node"] != "node-b" {
		t.Errorf("%v", got)
	}
	// It is there already, by name and by id.
	for _, volume := range []string{"pvc-moves", id} {
		if r := b.move(volume, "node-b"); r.code != 0 || !strings.Contains(r.out, "already on node node-b") {
			t.Errorf("%+v", r)
		}
	}
	// The name is one in the cluster, wherever it is asked for.
	again := b.ctl.Volume(a, "pvc-moves", rig.BlockCap(), copySize)
	b.must(again.Create())
	if again.ID != id {
		t.Errorf("%s was made anew as %s", id, again.ID)
	}
	b.must(v.Up())
	if got := hex.EncodeToString(sumOf(t, v.Target)); got != sum {
		t.Error("the device has other bytes")
	}
	b.must(v.Down())
	// The node that it left knows nothing of it, and says where it is.
	old := b.ctl.Volume(a, "pvc-moves", rig.BlockCap(), copySize)
	old.ID, old.Context = id, v.Context
	b.refused("staging it where it was", old.Stage(), codes.Unavailable, codes.NotFound, codes.FailedPrecondition)
	b.gone(v)
	b.must(v.Delete())
	b.quiet()
	// The name is free, on the node that it was born on.
	b.must(again.Create())
	if again.ID == id {
		t.Error("a new volume has the old one's id")
	}
	b.gone(again)
}

// What cannot be: no such volume, no such node, no such pool.
func TestClusterMoveRefused(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	v := b.volume(b.node("node-a"), "pvc-stays")
	b.must(v.Create())
	for what, r := range map[string]run{
		"does not exist":     b.move(v.ID[:8]+".pvc-none.01234567", "node-b"),
		"no volume pvc-none": b.move("pvc-none", "node-b"),
		"no node node-z":     b.move(v.ID, "node-z"),
		"no pool fast":       b.move(v.ID, "node-b", "--pool", "fast"),
	} {
		if r.code != 1 || !strings.Contains(r.err, what) {
			t.Errorf("%s: %+v", what, r)
		}
	}
	for _, args := range [][]string{{}, {"x", "y", "z"}, {"--all"}, {"--all", "x", "--from", "y"}, {"x", "--from", "y"}, {"x", "--to", "y"}} {
		if r := tool(t, nil, append([]string{"move"}, args...)...); r.code != 2 || !strings.Contains(r.err, "--help") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	// A node's driver is no controller, and where nobody listens nobody is waited for.
	if r := tool(t, nil, "move", "--endpoint", "unix://"+b.node("node-a").Socket, v.ID); r.code != 1 || !strings.Contains(r.err, "no controller of a cluster") {
		t.Errorf("%+v", r)
	}
	if r := tool(t, nil, "move", "--endpoint", "unix://"+b.Path("nobody.sock"), v.ID); r.code != 1 || !strings.Contains(r.err, "no driver listens") {
		t.Errorf("%+v", r)
	}
	b.isAt(v, b.node("node-a"), "")
	b.gone(v)
	b.quiet()
}

// A volume in use is copied and waits; when its pod is gone it moves, with what was written meanwhile.
func TestClusterMoveInUse(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			b := openCluster(t, "node-a", "node-b")
			n := b.node("node-b")
			v := b.ctl.Volume(b.node("node-a"), "pvc-used", rig.MountCap(fs), rig.MinSize(fs))
			b.must(v.Up())
			b.must(os.Mkdir(v.Target+"/first", 0o755))
			first, err := rig.Fill(v.Target+"/first", 8*mib, 5)
			b.must(err)
			r := b.move(v.ID, "node-b", "--timeout", "8")
			if r.code != 1 || !strings.Contains(r.err, "in use") || !strings.Contains(r.err, "run it again") {
				t.Fatalf("%+v", r)
			}
			b.isAt(v, b.node("node-a"), "")
			v.At(b.node("node-a"))
			b.must(os.Mkdir(v.Target+"/second", 0o755))
			second, err := rig.Fill(v.Target+"/second", 4*mib, 6)
			b.must(err)
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			cmd := toolCommand(ctx, nil, "move", "--endpoint", "unix://"+b.ctl.Socket, v.ID, "node-b")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			b.must(cmd.Start())
			time.Sleep(2 * time.Second)
			b.must(os.WriteFile(v.Target+"/last", []byte("the last words"), 0o644))
			b.must(rig.Eventually(30*time.Second, v.Down))
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, out.String())
			}
			b.isAt(v, n, "")
			b.must(v.Up())
			b.must(rig.Check(v.Target+"/first", 8*mib, first))
			b.must(rig.Check(v.Target+"/second", 4*mib, second))
			if last, err := os.ReadFile(v.Target + "/last"); err != nil || string(last) != "the last words" {
				t.Errorf("%q, %v", last, err)
			}
			b.must(v.Gone())
			b.quiet()
		})
	}
}

// Snapshots stay where they were taken, are listed by their volume wherever they are, and are restored from either node.
func TestClusterMoveSnapshots(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	a, n := b.node("node-a"), b.node("node-b")
	v, sum := b.source(a, "pvc-moves")
	before, err := v.Snapshot("snap-before")
	b.must(err)
	b.moved(v, n, sum)
	after, err := v.Snapshot("snap-after")
	b.must(err)
	b.eventually(func() error {
		var ids []string
		token := ""
		for {
			reply, err := b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{SourceVolumeId: v.ID, MaxEntries: 1, StartingToken: token})
			if err != nil {
				return err
			}
			for _, entry := range reply.GetEntries() {
				ids = append(ids, entry.GetSnapshot().GetSnapshotId())
			}
			if token = reply.GetNextToken(); token == "" {
				break
			}
		}
		want := []string{before.GetSnapshotId(), after.GetSnapshotId()}
		slices.Sort(ids)
		slices.Sort(want)
		if !slices.Equal(ids, want) {
			return fmt.Errorf("listed %q, want %q", ids, want)
		}
		return nil
	})
	var made []*rig.Volume
	for i, snapshot := range []*csi.Snapshot{before, after} {
		for k, node := range []*rig.Node{a, n} {
			c := b.copyOf(rig.FromSnapshot(snapshot.GetSnapshotId()), node, fmt.Sprintf("pvc-restored-%d-%d", i, k))
			b.must(c.Create())
			b.same(c, node, sum)
			made = append(made, c)
		}
	}
	clone := b.copyOf(rig.FromVolume(v.ID), a, "pvc-clone")
	b.must(clone.Create())
	b.same(clone, a, sum)
	b.gone(append(made, clone, v)...)
	b.must(b.ctl.DeleteSnapshot(before.GetSnapshotId()))
	b.must(b.ctl.DeleteSnapshot(after.GetSnapshotId()))
	b.quiet()
}

// Back and forth and on to a third node, written to in each place; deleted on a node that it was not born on, while the one
// that it was born on is away, and again when that is back.
func TestClusterMoveOften(t *testing.T) {
	b := openCluster(t, "node-a", "node-b", "node-c")
	a, n, c := b.node("node-a"), b.node("node-b"), b.node("node-c")
	v, sum := b.source(a, "pvc-moves")
	for i, to := range []*rig.Node{n, a, n, c, a, c} {
		b.moved(v, to, sum)
		b.must(v.Up())
		sparse(t, v.Target, copySize, uint64(20+i))
		b.must(v.Down())
		sum = hex.EncodeToString(sumOf(t, to.Pools[0].Image(v.ID)))
		// A node that starts anew tells the same.
		if i == 2 {
			b.must(a.Restart())
			b.must(b.ctl.AwaitJoined("node-a", "node-b", "node-c"))
			b.isAt(v, to, sum)
		}
	}
	b.must(a.Kill())
	b.must(b.ctl.AwaitAway("node-a"))
	b.must(v.Up())
	b.must(v.Down())
	b.gone(v)
	b.refused("deleting it again without the node that it was born on", v.Delete(), codes.Unavailable)
	b.must(a.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	b.eventually(v.Delete)
	b.must(v.Delete())
	b.quiet()
}

// A controller that starts anew knows where it is, and --forget-pool of the pool that it was born in forgets it not.
func TestClusterMoveForgottenPool(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	a, n := b.node("node-a"), b.node("node-b")
	v, sum := b.source(a, "pvc-moves")
	b.moved(v, n, sum)
	b.untidy = true // the note of its departure stays on the node that is gone
	b.must(a.Kill())
	b.must(b.ctl.AwaitAway("node-a"))
	b.ctl.Args = append(b.ctl.Args, "--forget-pool", v.ID[:8])
	b.must(b.ctl.Restart())
	b.must(b.ctl.AwaitJoined("node-b"))
	b.eventually(func() error {
		_, err := get(t, b.c, v.ID)
		return err
	})
	b.isAt(v, n, sum)
	b.must(v.Up())
	b.must(v.Down())
	b.gone(v)
	if home := b.homeOf(v.ID); home != nil {
		t.Errorf("it is on %s", home.Node)
	}
}

// `ringvol move --all` empties a node, those in use last, and says what stays.
func TestClusterMoveAll(t *testing.T) {
	b := openCluster(t, "node-a", "node-b", "node-c")
	a := b.node("node-a")
	var all []*rig.Volume
	for i := range 4 {
		v := b.volume(a, fmt.Sprintf("pvc-%d", i))
		b.must(v.Create())
		all = append(all, v)
	}
	other := b.volume(b.node("node-b"), "pvc-other")
	b.must(other.Create())
	used := all[0]
	b.must(used.Up())
	snapshot, err := all[1].Snapshot("snap-stays")
	b.must(err)
	drain := []string{"move", "--endpoint", "unix://" + b.ctl.Socket, "--all", "--from", "node-a"}
	if r := tool(t, nil, append(drain, "--timeout", "15")...); r.code != 1 || !strings.Contains(r.err, "pvc-0: ") || strings.Count(r.out, " is on node ") != 3 {
		t.Fatalf("%+v", r)
	}
	if home := b.homeOf(used.ID); home != a {
		t.Errorf("a volume in use is on %v", home)
	}
	// It has been copied to one node, and to no other one: the next call goes on there.
	var copied []string
	for _, n := range b.Nodes {
		if slices.Contains(n.Pools[0].Names("copies"), "part-pvc-0") {
			copied = append(copied, n.Node)
		}
	}
	if len(copied) != 1 {
		t.Fatalf("parts of it are on %v", copied)
	}
	b.must(used.Down())
	r := tool(t, nil, append(drain, "--timeout", "60")...)
	if r.code != 0 || !strings.Contains(r.out, "pvc-0 is on node "+copied[0]) || !strings.Contains(r.out, "moved: 1, not moved: 0, snapshots left on node: 1 (node-a)") {
		t.Fatalf("%+v", r)
	}
	if names := a.Pools[0].Names("volumes"); len(names) != 0 {
		t.Errorf("left on node-a: %v", names)
	}
	if r := tool(t, nil, append(drain, "--timeout", "60")...); r.code != 0 || !strings.Contains(r.out, "moved: 0, not moved: 0") {
		t.Errorf("%+v", r)
	}
	if r := tool(t, nil, "move", "--endpoint", "unix://"+b.ctl.Socket, "--all", "--from", "node-z"); r.code != 1 || !strings.Contains(r.err, "no node node-z") {
		t.Errorf("%+v", r)
	}
	b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
	b.gone(append(all, other)...)
	b.quiet()
}

// -move.rounds times either node, or the controller, is killed at a random moment of a move. The volume is never lost and
// never twice, its bytes are the same, and the move is finished by asking again.
func TestClusterMoveKilled(t *testing.T) {
	b := slowCluster(t)
	a, n := b.node("node-a"), b.node("node-b")
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	v, sum := b.source(a, "pvc-moves")
	from, to := a, n
	for i := range *moveRounds {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		cmd := toolCommand(ctx, nil, "move", "--endpoint", "unix://"+b.ctl.Socket, "--timeout", "120", v.ID, to.Node)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		b.must(cmd.Start())
		// 25 MiB at 16 a second; a third of the strikes come around the end.
		time.Sleep(time.Duration(random.IntN(2600)) * time.Millisecond)
		what := []string{"the node it leaves", "the node it goes to", "both nodes", "the controller"}[random.IntN(4)]
		switch what {
		case "the node it leaves":
			b.must(from.Restart())
		case "the node it goes to":
			b.must(to.Restart())
		case "both nodes":
			b.must(from.Kill())
			b.must(to.Kill())
			b.must(from.Start())
			b.must(to.Start())
		case "the controller":
			b.must(b.ctl.Restart())
		}
		b.must(b.ctl.AwaitJoined("node-a", "node-b"))
		err := cmd.Wait()
		cancel()
		if err != nil {
			// A command that was started before the controller was killed may not have met one yet.
			t.Logf("round %d, %s: %v: %s", i, what, err, out.String())
			if r := b.move(v.ID, to.Node); r.code != 0 {
				t.Fatalf("round %d, %s: %+v", i, what, r)
			}
		}
		b.isAt(v, to, sum)
		from, to = to, from
	}
	b.must(v.Up())
	if got := hex.EncodeToString(sumOf(t, v.Target)); got != sum {
		t.Error("the device has other bytes")
	}
	b.must(v.Gone())
	b.quiet()
}

// finishedPart has an image of a volume be what a node has of it between the other's note and its own name.
func finishedPart(b *clusterBed, image string, v *rig.Volume, from, to *rig.Node, grant, uuid8 string) {
	b.t.Helper()
	info, err := os.Stat(image)
	b.must(err)
	digest := sha256.Sum256([]byte(grant))
	of := fmt.Sprintf("ringvol-part 1\nof=%s %.16s\nsize=%d\nfrom=%d\n", v.ID, hex.EncodeToString(digest[:]), info.Size(), info.Size())
	text := strings.Join([]string{"ringvol-take 1", v.ID, v.Name, grant, from.Node, from.Listen, uuid8, "1", ""}, "\x00")
	b.must(unix.Setxattr(image, "trusted.ringvol.part", []byte(of), 0))
	b.must(unix.Setxattr(image, "trusted.ringvol.finished", []byte(text), 0))
	b.must(os.Rename(image, filepath.Join(to.Pools[0].Path, "copies", "part-"+v.Name)))
}

// A node that died between the other's note and its own name for the volume goes on by itself, whoever does not ask.
func TestClusterMoveArrives(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	a, n := b.node("node-a"), b.node("node-b")
	v, sum := b.source(a, "pvc-moves")
	from := strings.SplitN(v.ID, ".", 2)[0]
	b.moved(v, n, sum)
	note, err := os.ReadFile(filepath.Join(a.Pools[0].Path, "departed", v.Name))
	b.must(err)
	_, grant, _ := strings.Cut(string(note), "\ngrant=")
	grant = grant[:32]
	b.must(n.Kill())
	finishedPart(b, n.Pools[0].Image(v.ID), v, a, n, grant, from)
	b.must(a.Kill())
	b.must(n.Start())
	// The node that it left cannot be asked: what there is of the volume stays.
	time.Sleep(3 * time.Second)
	if parts := n.Pools[0].Names("copies"); !slices.Contains(parts, "part-"+v.Name) {
		t.Fatalf("the part is gone: %v", parts)
	}
	b.must(a.Start())
	b.must(b.ctl.AwaitJoined("node-a", "node-b"))
	b.eventually(func() error {
		if home := b.homeOf(v.ID); home != n {
			return fmt.Errorf("it is on %v", home)
		}
		return nil
	})
	b.isAt(v, n, sum)
	// One that never left, by a grant that nobody knows: the part goes, and the volume is where it was.
	b.must(n.Kill())
	w, kept := b.source(a, "pvc-stays")
	record, err := rig.RecordOf(a.Pools[0].Image(w.ID))
	b.must(err)
	image := filepath.Join(n.Pools[0].Path, "copies", "image")
	b.must(os.WriteFile(image, nil, 0o600))
	b.must(os.Truncate(image, copySize))
	b.must(unix.Setxattr(image, "trusted.ringvol", []byte(record), 0))
	finishedPart(b, image, w, a, n, strings.Repeat("0", 32), from)
	b.must(n.Start())
	b.must(b.ctl.AwaitJoined("node-a", "node-b"))
	b.eventually(func() error {
		if parts := n.Pools[0].Names("copies"); len(parts) != 0 {
			return fmt.Errorf("left: %v", parts)
		}
		return nil
	})
	b.isAt(w, a, kept)
	b.moved(w, n, kept)
	b.gone(v, w)
	b.quiet()
}
