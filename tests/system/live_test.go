// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
)

// A volume moves to the node that uses it, over the other one's export, under I/O that is checked. All nodes share a
// kernel: each sees the others' devices, and must leave them alone.

type liveBed struct {
	*clusterBed
	v      *rig.Volume
	before []string // what others have in nvmet
}

func openLive(t *testing.T) *liveBed {
	t.Helper()
	if why := rig.HasNVMe(); why != "" {
		t.Skip(why)
	}
	needDeviceMapper(t)
	b := newCluster(t, "--attach")
	names := []string{"node-a", "node-b"}
	for _, name := range names {
		address, err := rig.FreeAddress()
		b.must(err)
		_, err = b.StartNode(name, nodePool, "--attach", "--export-address", address)
		b.must(err)
	}
	b.must(b.ctl.AwaitJoined(names...))
	return &liveBed{clusterBed: b, before: rig.NvmetSubsystems()}
}

// lent: a volume of one node that another one uses.
func (b *liveBed) lent(name, kind string, owner, user *rig.Node) {
	b.t.Helper()
	kind, encrypted := strings.CutPrefix(kind, "encrypted ")
	b.v = b.ctl.Volume(owner, name, rig.CapFor(kind), 128*mib)
	b.v.Params = remoteClass
	if encrypted {
		b.v.Params = map[string]string{"attach": "remote", "encryption": "luks2"}
		b.v.Secrets = map[string]string{"key": randomKey}
		b.v.AttachSecrets = b.v.Secrets
	}
	b.must(b.v.Create())
	if home := b.homeOf(b.v.ID); home != owner {
		b.t.Fatalf("%s was made on %v", b.v.ID, home)
	}
	b.lend(user)
}

func (b *liveBed) lend(user *rig.Node) {
	b.t.Helper()
	context, err := giveTo(b.t, b.c, b.v, user.Node, false)
	b.must(err)
	b.v.PublishContext = context
	b.v.At(user)
	b.must(b.v.Up())
}

// nothingOf: no export, no connection and no image of it is left at the node that it left.
func (b *liveBed) nothingOf(n *rig.Node) {
	b.t.Helper()
	b.eventually(func() error {
		exports := slices.DeleteFunc(rig.NvmetSubsystems(), func(s string) bool { return slices.Contains(b.before, s) })
		if len(exports) > 0 {
			return fmt.Errorf("exported: %v", exports)
		}
		for _, pattern := range []string{filepath.Join(n.Pools[0].Path, "volumes/*"), filepath.Join(n.Pools[0].Path, "trash/*"), filepath.Join(n.Pools[0].Path, "copies/*")} {
			if left, _ := filepath.Glob(pattern); len(left) > 0 {
				return fmt.Errorf("left: %v", left)
			}
		}
		return nil
	})
}

func (b *liveBed) isOn(n *rig.Node) {
	b.t.Helper()
	b.madeOnce(b.v.Name)
	if home := b.homeOf(b.v.ID); home != n {
		b.t.Fatalf("%s is on %v, not on %s", b.v.ID, home, n.Node)
	}
	b.eventually(func() error {
		if nodes := attachedTo(b.t, b.c, b.v); !slices.Equal(nodes, []string{n.Node}) {
			return fmt.Errorf("attached to %v", nodes)
		}
		return nil
	})
}

func (b *liveBed) well() {
	b.t.Helper()
	stats, err := b.v.Stats()
	b.must(err)
	if stats.GetVolumeCondition().GetAbnormal() {
		b.t.Errorf("condition: %s", stats.GetVolumeCondition().GetMessage())
	}
}

// numbered writes blocks past the page cache, and knows which number each has as acknowledged.
func (b *liveBed) numbered(round int) *noting {
	b.t.Helper()
	path, offset := b.v.Target, int64(64*mib) // past what Fill wrote
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "numbered")
		offset = 0
		b.must(os.WriteFile(path, make([]byte, 512*blockBytes), 0o600))
	}
	return startNoting(&borrowBed{bed: &bed{t: b.t}}, path, offset, round)
}

// checked: a writer goes on; then it is stopped, and every block has what was acknowledged last.
func (b *liveBed) checked(n *noting) {
	b.t.Helper()
	path := n.file.Name()
	goesOn(&borrowBed{bed: &bed{t: b.t}}, n, "after the move")
	n.endWell(b.t)
	file, err := os.Open(path)
	b.must(err)
	defer file.Close()
	data := make([]byte, len(n.last)*blockBytes)
	_, err = file.ReadAt(data, n.offset)
	b.must(err)
	n.holds(b.t, data)
}

func TestPairMoves(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "block", "encrypted ext4", "encrypted block"} {
		t.Run(kind, func(t *testing.T) {
			b := openLive(t)
			if strings.HasPrefix(kind, "encrypted") {
				needCrypt(t)
			}
			owner, user := b.node("node-a"), b.node("node-b")
			b.lent("pvc-live", kind, owner, user)
			b.v.AttachSecrets = nil // its first use is over
			v := b.v
			sum, err := rig.Fill(v.Target, dataBytes, 1)
			b.must(err)
			n := b.numbered(1)
			r := b.move(v.ID, "node-b")
			// In one kernel its old device may be in the way of the new one, for a moment.
			if r.code != 0 || !strings.Contains(r.out, "on node node-b") {
				t.Fatalf("%+v", r)
			}
			t.Logf("the slowest write took %v", time.Duration(n.slowest.Load()))
			b.isOn(user)
			b.nothingOf(owner)
			// Whoever asks for it with what it said when it was attached finds it as it is.
			b.must(v.Stage())
			b.must(v.Publish())
			b.well()
			for range 2 {
				b.must(user.Restart())
				b.must(owner.Restart())
				b.well()
			}
			b.must(b.ctl.AwaitJoined("node-a", "node-b"))
			b.must(v.Stage())
			snapshot, err := v.Snapshot("of-live")
			b.must(err)
			if kind != "ext4" { // whose growth needs a capability
				b.must(v.Expand(v.Got+32*mib, true))
			}
			b.checked(n)
			b.must(rig.Check(v.Target, dataBytes, sum))
			b.refused("a delete of what is attached", v.Delete(), 9)
			b.must(v.Down())
			if names := covers(); len(names) > 0 {
				t.Errorf("left behind: %v", names)
			}
			b.must(takeFrom(t, b.c, v, user.Node))
			// It is an ordinary volume of its node now.
			v.PublishContext = nil
			_, err = giveTo(t, b.c, v, user.Node, false)
			b.must(err)
			b.must(v.Up())
			b.must(rig.Check(v.Target, dataBytes, sum))
			b.must(v.Down())
			b.must(takeFrom(t, b.c, v, user.Node))
			b.must(b.ctl.DeleteSnapshot(snapshot.GetSnapshotId()))
			b.gone(v)
		})
	}
}

// It goes to where the pod is, and the pod to where it was, again and again. Meanwhile one of the nodes is killed, or the
// controller. No write is lost, whichever comes first.
func TestPairMovesKilled(t *testing.T) {
	b := openLive(t)
	rounds := min(*moveRounds, 6)
	owner, user := b.node("node-a"), b.node("node-b")
	b.lent("pvc-killed", "block", owner, user)
	sum, err := rig.Fill(b.v.Target, dataBytes, 2)
	b.must(err)
	for round := range rounds {
		n := b.numbered(round)
		done := make(chan run, 1)
		go func() { done <- b.move(b.v.ID, user.Node) }()
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
		switch which := rand.IntN(3); which {
		case 0:
			b.must(owner.Restart())
		case 1:
			b.must(user.Restart())
		default:
			b.must(b.ctl.Restart())
		}
		r := <-done
		b.must(b.ctl.AwaitJoined("node-a", "node-b"))
		for i := 0; r.code != 0 && i < 5; i++ {
			t.Logf("round %d: %s", round, r.err)
			r = b.move(b.v.ID, user.Node)
		}
		if r.code != 0 {
			t.Fatalf("round %d: %+v", round, r)
		}
		b.isOn(user)
		b.checked(n)
		b.must(rig.Check(b.v.Target, dataBytes, sum))
		b.nothingOf(owner)
		b.must(b.v.Down())
		b.must(takeFrom(t, b.c, b.v, ""))
		owner, user = user, owner
		b.lend(user)
	}
	b.must(b.v.Down())
	b.must(takeFrom(t, b.c, b.v, ""))
	b.gone(b.v)
}
