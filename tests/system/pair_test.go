// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// Two drivers in one kernel: one has the volume, the other uses it. Nothing is made by hand.

const userNode = "node-b"

// pair is an owner, the driver that uses its volumes, and the volume at both.
type pair struct {
	owner *bed
	user  *borrowBed
	v, w  *rig.Volume // as the owner's node sees it, and as the user's does
}

func openPair(t *testing.T, args ...string) *pair {
	t.Helper()
	if why := rig.HasNVMe(); why != "" {
		t.Skip(why)
	}
	needDeviceMapper(t)
	p := &pair{owner: openExporter(t)}
	b := newBed(t, "ext4", 256*mib)
	b.d.Node = userNode
	b.d.Args = args
	b.start()
	p.user = &borrowBed{bed: b, e: &rig.Export{Subsystem: "none"}}
	return p
}

func (p *pair) create(name, kind string) { p.has(p.owner.remote(name, kind), kind) }

func (p *pair) has(v *rig.Volume, kind string) {
	p.v = v
	p.w = p.user.d.Volume(v.Name, rig.CapFor(kind), v.Size)
	p.w.ID, p.w.Context, p.w.Secrets, p.w.Got = v.ID, v.Context, v.Secrets, v.Got
	p.user.v = p.w
}

// attach is ControllerPublishVolume to the node of the user, with the capability that it will be staged with.
func (p *pair) attach(readOnly bool) error {
	v := *p.v
	v.Cap = p.w.Cap
	context, err := giveTo(p.owner.t, p.owner.c, &v, userNode, readOnly)
	if err == nil {
		p.w.PublishContext = context
		p.user.e = &rig.Export{Subsystem: context["ringvol.dev/subsystem"], Key: context["ringvol.dev/key"]}
	}
	return err
}

func (p *pair) detach() error { return takeFrom(p.owner.t, p.owner.c, p.v, userNode) }

// nothing is left at either end: no connection, cover, subsystem or host. The port stays.
func (p *pair) nothing() {
	p.owner.t.Helper()
	p.user.nothing()
	for _, what := range []string{"subsystems/nqn.2026-11.dev.ringvol:volume.*", "hosts/nqn.2026-11.dev.ringvol:*"} {
		if left, _ := filepath.Glob(rig.NvmetRoot + "/" + what); len(left) > 0 {
			p.owner.t.Errorf("left in nvmet: %v", left)
		}
	}
}

func TestPairLife(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "block"} {
		t.Run(kind, func(t *testing.T) {
			p := openPair(t)
			owner, user := p.owner, p.user
			p.create("pair-"+kind, kind)
			p.w.PublishContext = nil
			user.refused("stage before it was attached", p.w.Stage(), codes.Unavailable, codes.NotFound, codes.FailedPrecondition)
			owner.twice(func() error { return p.attach(false) })
			user.twice(p.w.Up)
			user.noSecret()
			sum, err := rig.Fill(p.w.Target, dataBytes, 1)
			user.must(err)
			_, err = giveTo(t, owner.c, p.v, "node-c", false)
			owner.refused("a third node", err, codes.FailedPrecondition)
			owner.says("a third node", err, userNode)
			owner.refused("a delete of what another node has", p.v.Delete(), codes.FailedPrecondition)
			owner.refused("a stage on the owner", p.v.Stage(), codes.FailedPrecondition)
			snapshot, err := p.v.Snapshot("of-" + p.v.Name)
			owner.must(err)

			// Neither driver is in the way of I/O, also while the volume grows.
			writer := startWriter(p.w.Target)
			writer.moves(owner)
			size := p.v.Got + 32*mib
			owner.must(p.v.Expand(size, false))
			got, err := user.nodeExpand(size)
			user.must(err)
			if got < size {
				t.Errorf("grown to %d", got)
			}
			for range 3 {
				owner.must(owner.d.Kill())
				writer.moves(owner)
				owner.start()
				writer.moves(owner)
			}
			user.must(user.d.Kill())
			writer.moves(owner)
			user.start()
			owner.must(writer.finish())
			owner.must(p.attach(false))
			user.must(rig.Check(p.w.Target, dataBytes, sum))
			if abnormal, text := user.condition(); abnormal {
				t.Errorf("condition: %s", text)
			}
			if nodes := owner.published(p.v.ID); !slices.Equal(nodes, []string{userNode}) {
				t.Errorf("published on %v", nodes)
			}
			user.must(p.w.Down())
			user.nothing()
			owner.twice(p.detach)
			p.nothing()
			user.refused("a stage of what was taken away", p.w.Stage(), codes.FailedPrecondition, codes.Unavailable)
			p.nothing()

			// What was written there is here, and in the snapshot.
			p.comesBack(sum, size)
			restored := owner.volume("restored", kind)
			restored.Source, restored.Size = rig.FromSnapshot(snapshot.GetSnapshotId()), snapshot.GetSizeBytes()
			owner.must(restored.Up())
			owner.must(rig.Check(restored.Target, dataBytes, sum))
			owner.must(restored.Gone())
			owner.must(owner.d.DeleteSnapshot(snapshot.GetSnapshotId()))
			owner.must(p.v.Gone())
		})
	}
}

// comesBack: the owner's node uses it, and finds all of it.
func (p *pair) comesBack(sum string, size int64) {
	p.owner.t.Helper()
	_, err := giveTo(p.owner.t, p.owner.c, p.v, p.owner.d.Node, false)
	p.owner.must(err)
	p.owner.must(p.v.Up())
	p.owner.must(rig.Check(p.v.Target, dataBytes, sum))
	if space, err := rig.Space(p.v.Target); err != nil || space < size*8/10-32*mib {
		p.owner.t.Errorf("%d bytes of %d (%v)", space, size, err)
	}
	p.owner.must(p.v.Down())
	p.owner.must(takeFrom(p.owner.t, p.owner.c, p.v, ""))
	p.owner.must(p.v.Paths())
}

// The lives of a volume as the specification draws them, with attach, on another node than its own: figure 5, published
// by one call of the node's; figure 6, staged besides; figure 7, made beforehand, its id written down by hand. Each call
// is made twice.
func TestPairFigures(t *testing.T) {
	for _, staging := range []string{"off", "on"} {
		t.Run("staging "+staging, func(t *testing.T) {
			p := openPair(t, "--staging", staging)
			owner, user := p.owner, p.user
			for _, kind := range []string{"ext4", "block"} {
				p.create("life-"+kind, kind)
				owner.must(p.v.Create())
				p.w.Context = nil // by hand
				p.w.Unstaged = staging == "off"
				user.must(p.w.Paths())
				sum := ""
				for round := range 2 {
					owner.twice(func() error { return p.attach(false) })
					if staging == "on" {
						user.twice(p.w.Stage)
					}
					user.twice(p.w.Publish)
					if round == 0 {
						var err error
						sum, err = rig.Fill(p.w.Target, dataBytes, 5)
						user.must(err)
					}
					user.must(rig.Check(p.w.Target, dataBytes, sum))
					user.twice(p.w.Unpublish)
					if staging == "on" {
						user.twice(p.w.Unstage)
					}
					user.nothing()
					owner.refused("a delete of what is attached", p.v.Delete(), codes.FailedPrecondition)
					owner.twice(p.detach)
					p.nothing()
				}
				owner.twice(p.v.Delete)
			}
		})
	}
}

// Several nodes at once: readers, one writer of a block volume, and many.
func TestPairModes(t *testing.T) {
	p := openPair(t)
	owner, user := p.owner, p.user
	const (
		readers   = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		oneWriter = csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
		writers   = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	)
	p.create("read", "ext4")
	owner.must(p.attach(false))
	user.must(p.w.Up())
	sum, err := rig.Fill(p.w.Target, dataBytes, 6)
	user.must(err)
	user.must(p.w.Down())
	owner.must(p.detach())
	p.w.Cap = rig.WithMode(p.w.Cap, writers)
	owner.refused("a file system of many writers", p.attach(false), codes.InvalidArgument)
	p.v.Cap, p.w.Cap = rig.WithMode(p.v.Cap, readers), rig.WithMode(p.w.Cap, readers)
	owner.must(p.attach(true))
	for _, node := range []string{"node-c", owner.d.Node} {
		_, err = giveTo(t, owner.c, p.v, node, true)
		owner.must(err)
	}
	for _, one := range []*rig.Volume{p.w, p.v} {
		owner.must(one.Up())
		owner.must(rig.Check(one.Target, dataBytes, sum))
		if writable(one.Target) == nil {
			t.Errorf("%s can be written to", one.Target)
		}
	}
	alone := *p.v
	alone.Cap = rig.CapFor("ext4")
	_, err = giveTo(t, owner.c, &alone, "node-d", false)
	owner.refused("a writer beside readers", err, codes.FailedPrecondition)
	user.must(p.w.Down())
	owner.must(p.v.Down())
	owner.must(takeFrom(t, owner.c, p.v, ""))
	owner.must(p.v.Delete())
	p.nothing()

	p.create("write", "block")
	p.v.Cap, p.w.Cap = rig.WithMode(p.v.Cap, oneWriter), rig.WithMode(p.w.Cap, oneWriter)
	_, err = giveTo(t, owner.c, p.v, "node-c", false)
	owner.must(err)
	owner.refused("a second writer", p.attach(false), codes.FailedPrecondition)
	owner.must(p.attach(true))
	user.must(p.w.Stage())
	user.must(p.w.PublishAt(p.w.Target, true))
	if writable(p.w.Target) == nil {
		t.Error("a reader writes")
	}
	user.must(p.w.Down())
	owner.must(takeFrom(t, owner.c, p.v, ""))
	p.nothing()

	p.v.Cap, p.w.Cap = rig.WithMode(p.v.Cap, writers), rig.WithMode(p.w.Cap, writers)
	owner.must(p.attach(false))
	_, err = giveTo(t, owner.c, p.v, owner.d.Node, false)
	owner.must(err)
	owner.must(p.v.Up())
	user.must(p.w.Up())
	for i, one := range []*rig.Volume{p.v, p.w} {
		f := owner.openDirect(one.Target)
		owner.must(writeBlock(f, int64(i), byte('a'+i)))
		f.Close()
		if !owner.imageHas(p.v, int64(i), byte('a'+i)) {
			t.Errorf("what node %d wrote is not in the image", i)
		}
	}
	owner.must(p.v.Down())
	user.must(p.w.Down())
	owner.must(takeFrom(t, owner.c, p.v, ""))
	owner.must(p.v.Delete())
	p.nothing()
}

// noting writes numbered blocks and notes which were acknowledged, and which of them after the owner's answer.
type noting struct {
	file     *os.File
	offset   int64 // where block 0 is
	data     []byte
	last     [512]uint64 // what each block has, as acknowledged
	lost     uint64      // the write that failed, which is there or not
	err      error       // of that
	stop     atomic.Bool
	count    atomic.Int64
	slowest  atomic.Int64 // nanoseconds that a write has taken at most
	answered atomic.Bool
	late     int64
	done     chan struct{}
}

func startNoting(b *borrowBed, path string, offset int64, round int) *noting {
	b.t.Helper()
	n := &noting{file: b.openDirect(path), offset: offset, done: make(chan struct{})}
	var err error
	n.data, err = unix.Mmap(-1, 0, blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	b.must(err)
	go n.run(uint64(round) << 32)
	goesOn(b, n, "at first")
	return n
}

func (n *noting) run(first uint64) {
	defer close(n.done)
	for i := first + 1; !n.stop.Load(); i++ {
		at := i % uint64(len(n.last))
		after := n.answered.Load()
		binary.LittleEndian.PutUint64(n.data, i)
		start := time.Now()
		if _, err := n.file.WriteAt(n.data, n.offset+int64(at)*blockBytes); err != nil {
			n.lost, n.err = i, err
			return
		}
		n.slowest.Store(max(n.slowest.Load(), int64(time.Since(start))))
		n.last[at] = i
		n.count.Add(1)
		if after {
			n.late++
		}
	}
}

// holds compares what the blocks have with what was acknowledged last. A write that failed is there or not.
func (n *noting) holds(t *testing.T, blocks []byte) {
	t.Helper()
	for at, number := range n.last {
		has := binary.LittleEndian.Uint64(blocks[at*blockBytes:])
		if number != 0 && has != number && (n.lost == 0 || has != n.lost) {
			t.Fatalf("block %d has %x, acknowledged was %x", at, has, number)
		}
	}
}

// endWell ends a writer of which no write may have failed.
func (n *noting) endWell(t *testing.T) {
	t.Helper()
	n.stop.Store(true)
	n.end()
	if n.lost != 0 {
		t.Fatalf("write %d has failed: %v", n.lost&0xffffffff, n.err)
	}
}

func (n *noting) end() {
	<-n.done
	n.file.Close()
	_ = unix.Munmap(n.data)
}

// From the answer to ControllerUnpublishVolume on nothing is acknowledged to the node, and nothing of it reaches the image,
// which has everything that was acknowledged before. RINGVOL_FENCE_ROUNDS asks for other than 8 rounds.
func TestPairFencing(t *testing.T) {
	p := openPair(t)
	owner, user := p.owner, p.user
	p.create("fenced", "block")
	rounds := 8
	if n, err := strconv.Atoi(os.Getenv("RINGVOL_FENCE_ROUNDS")); err == nil {
		rounds = n
	} else if testing.Short() {
		rounds = 3
	}
	image := filepath.Join(owner.pool.Path, "volumes", p.v.Name)
	var acknowledged, late int64
	for round := range rounds {
		owner.must(p.attach(false))
		user.must(p.w.Up())
		n := startNoting(user, p.w.Target, 0, round)
		owner.must(p.detach())
		n.answered.Store(true)
		before, err := os.ReadFile(image)
		owner.must(err)
		n.end()
		after, err := os.ReadFile(image)
		owner.must(err)
		if !bytes.Equal(before, after) {
			t.Fatalf("round %d: the image has changed after the answer", round)
		}
		n.holds(t, after)
		acknowledged += n.count.Load()
		late += n.late
		user.must(p.w.Down())
		// What the last request holds goes with that.
		user.eventually(func() error {
			if names := covers(); len(names) > 0 {
				return fmt.Errorf("left behind: %v", names)
			}
			return nil
		})
		p.nothing()
	}
	if late != 0 {
		t.Errorf("%d writes were acknowledged after the answer", late)
	}
	t.Logf("%d rounds, %d writes acknowledged, %d of them after the answer", rounds, acknowledged, late)
	owner.must(p.v.Delete())
}

// The owner's driver is killed again and again under writes that are checked: nobody notices. RINGVOL_KILL_ROUNDS asks for other than 10
// rounds.
func TestPairOwnerKilled(t *testing.T) {
	p := openPair(t)
	owner, user := p.owner, p.user
	p.create("killed", "block")
	owner.must(p.attach(false))
	user.must(p.w.Up())
	rounds := 10
	if n, err := strconv.Atoi(os.Getenv("RINGVOL_KILL_ROUNDS")); err == nil {
		rounds = n
	}
	n := startNoting(user, p.w.Target, 0, 1)
	for range rounds {
		owner.must(owner.d.Kill())
		goesOn(user, n, "while there is no driver")
		owner.start()
		goesOn(user, n, "beside the next one")
	}
	n.endWell(t)
	image, err := os.ReadFile(filepath.Join(owner.pool.Path, "volumes", p.v.Name))
	owner.must(err)
	n.holds(t, image)
	t.Logf("%d kills, %d writes, the slowest took %v", rounds, n.count.Load(), time.Duration(n.slowest.Load()))
	user.must(p.w.Down())
	owner.must(p.detach())
	owner.must(p.v.Delete())
	p.nothing()
}

// goesOn waits for fifty more writes.
func goesOn(b *borrowBed, n *noting, when string) {
	b.t.Helper()
	start := n.count.Load()
	b.eventually(func() error {
		if count := n.count.Load(); count < start+50 {
			return fmt.Errorf("%d writes %s", count-start, when)
		}
		return nil
	})
}

// The owner's node is booted anew. Each of its volumes is back for its user, whoever comes first.
func TestPairReboot(t *testing.T) {
	p := openPair(t)
	owner, user := p.owner, p.user
	var contexts []map[string]string
	var mine, theirs []*rig.Volume
	var writers []*writer
	for i := range 5 {
		p.create(fmt.Sprintf("booted-%d", i), "ext4") // without a guard over its device
		owner.must(p.attach(false))
		user.must(p.w.Up())
		contexts = append(contexts, p.w.PublishContext)
		mine, theirs = append(mine, p.v), append(theirs, p.w)
		writers = append(writers, startWriter(p.w.Target))
	}
	owner.must(owner.d.Kill())
	for _, context := range contexts {
		owner.endExport(context)
	}
	reboot(owner)
	owner.start()
	for i, writer := range writers {
		writer.moves(owner)
		if err := writer.finish(); err != nil {
			t.Errorf("volume %d: %v", i, err)
		}
	}
	for i := range mine {
		user.must(theirs[i].Down())
		p.v = mine[i]
		owner.must(p.detach())
		owner.must(p.v.Delete())
	}
	p.nothing()
}
