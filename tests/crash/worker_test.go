// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// How long a call may be repeated after the last kill until it has to have succeeded.
const patience = 60 * time.Second

// What a file system may keep for itself beyond what a fresh one of the least size does. Logs and
// journals stay as they were made, and larger ones of these sizes differ by 2 MiB at most; a growth
// that did not reach the file system leaves 8 MiB or more.
const overheadSlack = 4 * mib

// worker takes its own volumes and snapshots through their lives, one call at a time.
type worker struct {
	t       *torture
	name    string
	random  *rand.Rand
	client  *rig.Client
	current atomic.Pointer[string] // the call under way
	trace   []string               // under the model's lock
	volumes []*volume
	snaps   []*snapshot
	groups  []*group
	inline  *inline
	gone    []string
	serial  int
}

func (t *torture) newWorker(name string, number uint64) (*worker, error) {
	client, err := rig.Dial(t.d.Socket)
	if err != nil {
		return nil, err
	}
	w := &worker{t: t, name: name, client: client, random: rand.New(rand.NewPCG(t.seed, number))}
	w.current.Store(new(string))
	return w, nil
}

func (w *worker) chance(percent int) bool {
	return w.random.IntN(100) < percent
}

func (w *worker) note(format string, args ...any) {
	line := fmt.Sprintf("%9.4f ", time.Since(w.t.began).Seconds()) + fmt.Sprintf(format, args...)
	w.t.model.with(func() { w.trace = append(w.trace, line) })
}

// do calls until it succeeds, as kubelet and the sidecars do, whoever is killed meanwhile. Only an
// answer that says "later" or none at all may come before. false: the test is over.
func (w *worker) do(op, subject string, call func() error) bool {
	return w.doOr(op, subject, call, nil)
}

// doOr may give up after a failed attempt when instead() says so; it then returns false as well.
func (w *worker) doOr(op, subject string, call func() error, instead func() bool) bool {
	w.current.Store(&op)
	defer w.current.Store(new(string))
	w.t.tell(op)
	last := w.t.lastKill()
	began := time.Now()
	for attempt := 1; ; attempt++ {
		w.note("%s %s ...", op, subject)
		err := call()
		code := rig.Code(err)
		w.note("%s %s: %v%s", op, subject, code, reason(err))
		if err == nil {
			return true
		}
		if code != codes.Unavailable && code != codes.Aborted && !w.heldByOthers(err) {
			w.t.violation("%s: %s %s (attempt %d): %v", w.name, op, subject, attempt, err)
			return false
		}
		if !w.t.gate.retries() {
			return false
		}
		if instead != nil && code == codes.Unavailable && instead() {
			return false
		}
		if kill := w.t.lastKill(); kill != last {
			last, began = kill, time.Now()
		}
		if time.Since(began) > patience {
			w.t.violation("%s: %s %s does not converge: attempt %d: %v", w.name, op, subject, attempt, err)
			return false
		}
		w.client.Conn.ResetConnectBackoff()
		time.Sleep(time.Duration(1+w.random.IntN(4)) * time.Millisecond)
	}
}

// heldByOthers: an image that was let go may still be on its device while another's mount namespace
// has a copy of the mount; the driver says so, and the call is repeated.
func (w *worker) heldByOthers(err error) bool {
	t := w.t
	if rig.Code(err) != codes.FailedPrecondition {
		return false
	}
	for _, words := range []string{"elsewhere", "attached to a device", "open in another process"} {
		if strings.Contains(err.Error(), words) {
			t.kept.Add(1)
			for image, devices := range t.devices() {
				for _, device := range devices {
					if by := append(keepers(device), openers(device)...); len(by) > 0 {
						w.note("%s (%s) is kept by %v", device, filepath.Base(image), by)
					}
				}
			}
			return true
		}
	}
	return false
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return " (" + err.Error() + ")"
}

// change is do for a change of a volume: under way, then acknowledged.
func (w *worker) change(op string, v *volume, call func() error, acknowledged func()) bool {
	w.t.model.with(func() { v.busy = op })
	if !w.do(op, v.Name, call) {
		return false
	}
	w.t.model.with(func() {
		acknowledged()
		v.busy = ""
	})
	return true
}

func (w *worker) run() {
	for w.t.gate.passes() {
		w.step()
	}
}

func (w *worker) step() {
	n := w.random.IntN(100)
	switch {
	case len(w.volumes) == 0 || (n < 25 && len(w.volumes) < 4):
		w.create()
	case n < 30 && len(w.snaps) > 0 && (len(w.snaps) >= 3 || w.chance(40)):
		w.deleteSnapshot(w.snaps[w.random.IntN(len(w.snaps))])
	case n < 33 && len(w.snaps) < 3:
		w.snapshotPod()
	case n < 37:
		w.ask()
	case n < 42 && len(w.volumes) > 0:
		w.modify(w.volumes[w.random.IntN(len(w.volumes))])
	case n < 44 && len(w.gone) > 0:
		w.deleteAgain()
	case n < 50:
		w.groupStep()
	case n < 62 && !w.t.pools[0].IsRaw():
		w.inlineStep()
	default:
		w.advance(w.volumes[w.random.IntN(len(w.volumes))])
	}
}

// advance does something to a volume that its state allows.
func (w *worker) advance(v *volume) {
	n := w.random.IntN(100)
	switch {
	case !v.staged && n < 50:
		w.stage(v)
	case !v.staged && n < 62:
		w.expand(v)
	case !v.staged && n < 70:
		w.snapshot(v)
	case !v.staged:
		w.delete(v)
	case !v.published && n < 65:
		w.publish(v)
	case !v.published && n < 85:
		w.unstage(v)
	case !v.published:
		w.snapshot(v)
	case n < 25:
		w.fill(v)
	case n < 40:
		w.check(v)
	case n < 48:
		w.stats(v)
	case n < 63:
		w.snapshot(v)
	case n < 73:
		w.expand(v)
	default:
		w.unpublish(v)
	}
}

// ---- the life ----

func (w *worker) stage(v *volume) {
	w.t.model.with(func() { v.busy = "stage" })
	instead := false
	ok := w.doOr("stage", v.Name, v.Stage, func() bool {
		instead = w.chance(20)
		return instead
	})
	if instead { // kubelet has changed its mind
		w.change("unstage instead", v, v.Unstage, func() {})
		return
	}
	if !ok {
		return
	}
	w.t.model.with(func() { v.staged, v.busy = true, "" })
	if w.chance(15) {
		w.do("stage again", v.Name, v.Stage)
	}
}

func (w *worker) publish(v *volume) {
	w.t.model.with(func() { v.busy = "publish" })
	instead := false
	ok := w.doOr("publish", v.Name, v.Publish, func() bool {
		instead = w.chance(20)
		return instead
	})
	if instead {
		w.change("unpublish instead", v, v.Unpublish, func() {})
		return
	}
	if !ok {
		return
	}
	w.t.model.with(func() { v.published, v.busy = true, "" })
	if w.chance(15) {
		w.do("publish again", v.Name, v.Publish)
	}
	w.check(v)
}

func (w *worker) unpublish(v *volume) {
	w.change("unpublish", v, v.Unpublish, func() { v.published = false })
	if w.chance(15) {
		w.do("unpublish again", v.Name, v.Unpublish)
	}
}

func (w *worker) unstage(v *volume) {
	w.change("unstage", v, v.Unstage, func() { v.staged = false })
	if w.chance(15) {
		w.do("unstage again", v.Name, v.Unstage)
	}
}

func (w *worker) delete(v *volume) {
	if !w.change("delete", v, v.Delete, func() {
		delete(w.t.model.volumes, v.Name)
		w.t.model.gone[v.ID] = true
	}) {
		return
	}
	for i := range w.volumes {
		if w.volumes[i] == v {
			w.volumes = append(w.volumes[:i], w.volumes[i+1:]...)
			break
		}
	}
	w.gone = append(w.gone, v.ID)
}

// deleteAgain: a late repeat means the volume of then, also where the name is taken again.
func (w *worker) deleteAgain() {
	late := w.t.d.Volume("", nil, 0).On(w.client)
	late.ID = w.gone[w.random.IntN(len(w.gone))]
	w.do("delete again", late.ID, late.Delete)
}

func (w *worker) expand(v *volume) {
	if v.kind == "ext4" && v.staged && !w.t.resizes {
		return // the kernel refuses without CAP_SYS_RESOURCE
	}
	if v.Got > sizeFor(v.kind)+96*mib {
		return
	}
	want := v.Got + int64(1+w.random.IntN(3))*8*mib
	w.t.model.with(func() { v.want = want })
	grown := v.Volume
	if w.change("expand", v, func() error { return grown.Expand(want, v.staged) }, func() { v.Got = grown.Got }) &&
		v.Got != want {
		w.t.violation("%s: %s has %d bytes after it grew to %d", w.name, v.Name, v.Got, want)
	}
	if v.published {
		w.check(v)
	}
}

// modify gives the volume other I/O limits, high enough that nothing waits for them.
func (w *worker) modify(v *volume) {
	want := 100000 + w.random.IntN(100000)
	w.t.model.with(func() { v.asked = want })
	w.change("modify", v, func() error {
		return v.Modify(map[string]string{"iops": strconv.Itoa(want), "snapshotFreeze": strconv.FormatBool(v.frozen)})
	}, func() { v.iops = want })
}

// ---- snapshots ----

func (w *worker) snapshotPod() {
	w.snapshotOf(w.t.pods[w.random.IntN(len(w.t.pods))].volume)
}

func (w *worker) snapshot(v *volume) {
	if mayCopy(v) && len(w.snaps) < 3 {
		w.snapshotOf(v)
	}
}

func (w *worker) snapshotOf(v *volume) {
	if v.pool.IsRaw() && !v.thin {
		return // thick volumes there have none
	}
	w.serial++
	s := &snapshot{name: fmt.Sprintf("%s-s%d", w.name, w.serial), pool: v.pool, busy: "create"}
	w.t.model.with(func() {
		copied := volume{Volume: *v.Volume.On(w.client), kind: v.kind, pool: v.pool, thin: v.thin}
		s.source, s.size, s.has = &copied, v.Got, w.t.contentOf(v)
		w.t.model.snapshots[s.name] = s
	})
	var id string
	var size int64
	if !w.do("snapshot", s.name+" of "+v.Name, func() error {
		got, err := s.source.Snapshot(s.name)
		id, size = got.GetSnapshotId(), got.GetSizeBytes()
		return err
	}) {
		return
	}
	w.t.model.with(func() {
		if s.seen != "" && s.seen != id {
			w.t.violation("%s: %s was made as %s before the kill and as %s by the retry", w.name,
				s.name, s.seen, id)
		}
		// A pod may have grown between.
		if size < s.size || rig.KeyOf(id) != s.name {
			w.t.violation("%s: %s has the id %s and %d bytes of %d", w.name, s.name, id, size, s.size)
		}
		s.id, s.size, s.busy = id, size, ""
	})
	w.snaps = append(w.snaps, s)
}

func (w *worker) deleteSnapshot(s *snapshot) {
	w.t.model.with(func() { s.busy = "delete" })
	if !w.do("delete snapshot", s.name, func() error { return w.t.deleteSnapshot(w.client, s.id) }) {
		return
	}
	w.t.model.with(func() {
		delete(w.t.model.snapshots, s.name)
		w.t.model.gone[s.id] = true
	})
	for i := range w.snaps {
		if w.snaps[i] == s {
			w.snaps = append(w.snaps[:i], w.snaps[i+1:]...)
			return
		}
	}
}

// ---- data ----

func (w *worker) fill(v *volume) {
	size := int64(1+w.random.IntN(8)) * mib / 4
	w.note("fill %s with %d bytes", v.Name, size)
	sum, err := rig.Fill(v.Target, size, w.random.Uint64())
	if err != nil {
		w.t.violation("%s: writing into %s: %v", w.name, v.Name, err)
		return
	}
	w.t.model.with(func() { v.has.size, v.has.sum = size, sum })
}

func (w *worker) check(v *volume) {
	w.note("check %s", v.Name)
	if err := v.check(); err != nil {
		w.t.violation("%s: %s: %v", w.name, v.Name, err)
	}
}

// check reads a published volume.
func (v *volume) check() error {
	if v.has.sum != "" {
		if err := rig.Check(v.Target, v.has.size, v.has.sum); err != nil {
			return err
		}
	}
	if v.has.log > 0 {
		if err := checkLog(v.Target, v.has.log); err != nil {
			return err
		}
	}
	space, err := rig.Space(v.Target)
	if err != nil {
		return err
	}
	switch over := v.Got - space; {
	case v.kind == "block" && over != 0:
		return fmt.Errorf("the device has %d bytes of %d", space, v.Got)
	case v.kind != "block" && (over < 0 || over > v.overhead+overheadSlack):
		return fmt.Errorf("the file system has %d bytes of %d, %d less; a fresh one has %d less", space, v.Got,
			over, v.overhead)
	}
	return nil
}

func (w *worker) stats(v *volume) {
	w.do("stats", v.Name, func() error {
		reply, err := v.Stats()
		condition := reply.GetVolumeCondition()
		// The targets here are in no pod's directory, and so the limits that a modify set are not enforced.
		sound := !condition.GetAbnormal() ||
			v.asked != 0 && strings.HasPrefix(condition.GetMessage(), "its I/O limits are not enforced")
		if err == nil && (len(reply.GetUsage()) == 0 || reply.GetUsage()[0].GetTotal() == 0 || !sound) {
			return fmt.Errorf("stats of %s: %v", v.Name, reply)
		}
		return err
	})
}

func (t *torture) deleteSnapshot(client *rig.Client, id string) error {
	ctx, cancel := callContext()
	defer cancel()
	_, err := client.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

// ---- the end ----

// finish takes everything down, and looks once more at each byte: volumes where they are,
// snapshots in a volume restored from them.
func (w *worker) finish() {
	for _, s := range append([]*snapshot(nil), w.snaps...) {
		if !w.restore(s) {
			return
		}
		w.deleteSnapshot(s)
	}
	if w.inline != nil && !w.t.gate.isStopped() {
		w.checkInline(w.inline)
		w.unpublishInline(w.inline)
	}
	for len(w.groups) > 0 && !w.t.gate.isStopped() {
		g := w.groups[0]
		for _, s := range g.members {
			if !w.restore(s) {
				return
			}
		}
		w.deleteGroup(g)
	}
	for len(w.volumes) > 0 && !w.t.gate.isStopped() {
		v := w.volumes[0]
		if !v.staged {
			w.stage(v)
		}
		if v.staged && !v.published {
			w.publish(v)
		}
		w.check(v)
		w.unpublish(v)
		w.unstage(v)
		w.delete(v)
	}
}

// restore looks at what a snapshot holds, in a volume made of it. Nobody kills meanwhile.
func (w *worker) restore(s *snapshot) bool {
	v := w.newVolume(w.name+"-restored", s.pool, s.source.kind, s.size)
	v.Source, v.has = rig.FromSnapshot(s.id), s.has
	if s.source.thin {
		v.makeThin()
	}
	if v.Create() != nil || v.Up() != nil {
		w.t.violation("%s: %s cannot be restored", w.name, s.name)
		return false
	}
	if err := v.check(); err != nil {
		w.t.violation("%s: restored from %s (of %s): %v", w.name, s.name, s.source.Name, err)
		return false
	}
	if err := v.Gone(); err != nil {
		w.t.violation("%s: %v", w.name, err)
		return false
	}
	return true
}

// writeTrace appends what the worker did to a file; the last lines are returned.
func (w *worker) writeTrace(file *os.File, last int) string {
	lines := w.trace
	if file != nil {
		fmt.Fprintf(file, "== %s\n%s\n", w.name, strings.Join(lines, "\n"))
	}
	return strings.Join(lines[max(0, len(lines)-last):], "\n")
}

// gate is where the workers meet the one who kills. Paused, they stop between two operations; held,
// also in the middle of one whose call has failed, before they ask again.
type gate struct {
	mu                       sync.Mutex
	cond                     *sync.Cond
	total, idle, held        int
	paused, holding, stopped bool
}

func newGate(total int) *gate {
	g := &gate{total: total, paused: true}
	g.cond = sync.NewCond(&g.mu)
	return g
}

// passes waits between two operations; false: no more of them.
func (g *gate) passes() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle++
	g.cond.Broadcast()
	for g.paused && !g.stopped {
		g.cond.Wait()
	}
	g.idle--
	return !g.stopped
}

// retries waits after a failed call; false: not again.
func (g *gate) retries() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held++
	g.cond.Broadcast()
	for g.holding && !g.stopped {
		g.cond.Wait()
	}
	g.held--
	return !g.stopped
}

func (g *gate) set(paused, holding bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused, g.holding = paused, holding
	g.cond.Broadcast()
}

func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	g.cond.Broadcast()
}

func (g *gate) isStopped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopped
}

// awaitQuiet waits until all of them stand; with heldToo in the middle of a call will do.
func (g *gate) awaitQuiet(heldToo bool, limit time.Duration) error {
	late := false
	timer := time.AfterFunc(limit, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		late = true
		g.cond.Broadcast()
	})
	defer timer.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.stopped && !late {
		standing := g.idle
		if heldToo {
			standing += g.held
		}
		if standing == g.total {
			return nil
		}
		g.cond.Wait()
	}
	if g.stopped {
		return errStopped
	}
	return fmt.Errorf("after %v %d of %d workers still wait for an answer", limit,
		g.total-g.idle, g.total)
}
