// SPDX-License-Identifier: Apache-2.0

// Package crash kills the driver at random instants under a mixed load of every call, starts it
// again, and compares what is there with a model of everything that was acknowledged.
//
//	go test ./crash -crash.kills=300 -crash.seed=7 -crash.trace=/tmp/trace
package crash

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

var (
	kills    = flag.Int("crash.kills", 25, "how many times the driver is killed")
	seed     = flag.Uint64("crash.seed", 0, "seed of a run to repeat; 0 draws one")
	traceOut = flag.String("crash.trace", "", "file for what each worker did")
)

const workers = 4

// watched are the calls that are waited for before a kill.
var watched = []string{"create", "delete", "snapshot", "delete snapshot", "expand", "stage", "unstage",
	"publish", "unpublish", "group", "delete group", "publish inline", "unpublish inline", "import"}

// watch is a call somebody waits for.
type watch struct {
	op    string
	begun chan struct{}
}

type torture struct {
	t       *testing.T
	rig     *rig.Rig
	d       *rig.Driver
	client  *rig.Client
	pools   []*rig.Pool // the first shares extents, the second cannot; or one on a raw disk
	pods    []*pod
	workers []*worker
	keeper  *worker
	// Pools in directories alone have these: what is imported, the image of it that stays, and who imports more.
	tree     string
	root     *golden
	importer *worker
	model    *model
	gate     *gate
	random   *rand.Rand
	seed     uint64
	mark     string
	began    time.Time
	resizes  bool // the kernel lets us grow a mounted ext4
	thin     bool // the raw pool has thin volumes, too

	kept       atomic.Int64 // devices found kept by others
	lastKillNs atomic.Int64
	watch      atomic.Pointer[watch]
	killed     int
	inFlight   map[string]int
	overhead   map[string]int64 // of fresh volumes, by kind; written before the load starts
	starts     []time.Duration  // from the start to ready
	logRead    int64

	mu    sync.Mutex
	found []string // violations
}

func (t *torture) lastKill() int64 {
	return t.lastKillNs.Load()
}

// violation notes what must not be; the first one ends the test.
func (t *torture) violation(format string, args ...any) {
	t.mu.Lock()
	t.found = append(t.found, fmt.Sprintf("after %d kills, %.4f s: ", t.killed,
		time.Since(t.began).Seconds())+fmt.Sprintf(format, args...))
	t.mu.Unlock()
	t.gate.stop()
}

func (t *torture) must(err error) {
	t.t.Helper()
	if err != nil {
		t.t.Fatal(err)
	}
}

func TestCrash(t *testing.T) {
	runTorture(t, (*torture).makePools)
}

// The same on a raw disk, where thick volumes share nothing, and what is deleted is overwritten before it is given to others; where
// the kernel has dm-thin, half of the volumes are thin, with snapshots and clones.
func TestCrashRawPool(t *testing.T) {
	if !rig.HasDeviceMapper() {
		t.Skip("this kernel has no device mapper (modprobe dm_mod)")
	}
	runTorture(t, (*torture).makeRawPool)
}

func runTorture(t *testing.T, pools func(*torture)) {
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	c := &torture{t: t, rig: r, model: newModel(), gate: newGate(workers + 2), seed: *seed,
		began: time.Now(), inFlight: map[string]int{}, overhead: map[string]int64{}}
	if c.seed == 0 {
		c.seed = uint64(time.Now().UnixNano()) % 1000000
	}
	c.random = rand.New(rand.NewPCG(c.seed, 1000))
	t.Logf("seed %d, %d kills", c.seed, *kills)
	t.Cleanup(func() {
		c.endPods()
		if err := r.Close(); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	pools(c)
	c.setUp()
	free := c.free()
	done := c.startLoad()
	for c.killed < *kills && c.round() {
	}
	c.gate.stop()
	<-done
	if len(c.found) == 0 {
		c.finish(free)
	}
	c.report()
}

// ---- before and after ----

func (t *torture) makePools() {
	shared, err := t.rig.NewPool("default", "xfs", 8<<30)
	t.must(err)
	plain := &rig.Pool{Name: "plain", FS: "ext4", Path: t.rig.Path("pool-plain")}
	t.must(os.Mkdir(plain.Path, 0o755))
	t.pools = []*rig.Pool{shared, plain}
	t.d = t.rig.NewDriver(t.pools...)
	t.d.PoolOptions = ",init,overcommit=50"
	t.d.Args = []string{"--inline", inlinePolicy}
}

func (t *torture) makeRawPool() {
	disk, err := t.rig.NewDisk("first", 6<<30)
	t.must(err)
	pool, err := t.rig.RawPool("default", disk.Path)
	t.must(err)
	t.pools = []*rig.Pool{pool}
	t.d = t.rig.NewDriver(pool)
	t.d.PoolOptions = ",overcommit=5"
	why := rig.HasThinPools()
	if t.thin = why == nil; !t.thin {
		t.t.Logf("no thin volumes: %v", why)
	}
}

func (t *torture) setUp() {
	t.mark = "RINGVOL_CRASH_TEST=" + t.rig.Dir
	t.d.Env = append(t.d.Env, t.mark)
	t.resizes = haveSysResource()
	t.must(t.d.Start())
	t.must(t.d.AwaitReady())
	var err error
	t.client, err = t.d.Client()
	t.must(err)
	t.keeper, err = t.newWorker("keeper", 0)
	t.must(err)
	for i := range uint64(workers) {
		w, err := t.newWorker(fmt.Sprintf("w%d", i+1), i+1)
		t.must(err)
		t.workers = append(t.workers, w)
	}
	t.importer, err = t.newWorker("im", workers+1)
	t.must(err)
	if !t.pools[0].IsRaw() {
		t.must(t.newImages())
	}
}

// all are those who make calls.
func (t *torture) all() []*worker {
	return append([]*worker{t.keeper, t.importer}, t.workers...)
}

func haveSysResource() bool {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		var caps uint64
		if _, err := fmt.Sscanf(line, "CapEff: %x", &caps); err == nil {
			return caps>>unix.CAP_SYS_RESOURCE&1 != 0
		}
	}
	return false
}

// free is what the first pool's file system has, and what templates keep of it.
func (t *torture) free() int64 {
	if t.pools[0].IsRaw() {
		t.must(rig.Eventually(60*time.Second, t.pools[0].Strays)) // nothing waits to be overwritten
		room, err := t.room()
		t.must(err)
		return room
	}
	var st unix.Statfs_t
	unix.Sync()
	t.must(unix.Statfs(t.pools[0].Path, &st))
	free := int64(st.Bfree) * st.Bsize
	for _, name := range t.pools[0].Names("templates") {
		bytes, err := rig.Allocated(filepath.Join(t.pools[0].Path, "templates", name))
		t.must(err)
		free += bytes
	}
	return free
}

// room is what the first pool's driver says of it.
func (t *torture) room() (int64, error) {
	ctx, cancel := callContext()
	defer cancel()
	reply, err := t.client.GetCapacity(ctx, &csi.GetCapacityRequest{Parameters: map[string]string{"pool": t.pools[0].Name}})
	return reply.GetAvailableCapacity(), err
}

// learnOverhead measures a fresh volume: what any other of its kind, copies too, is compared with.
func (t *torture) learnOverhead(v *volume) error {
	if v.kind == "block" {
		return nil
	}
	space, err := rig.Space(v.Target)
	v.overhead = v.Got - space
	t.overhead[v.kind] = max(t.overhead[v.kind], v.overhead)
	return err
}

// startLoad brings the pods up and lets the workers go.
func (t *torture) startLoad() <-chan struct{} {
	for i, plan := range []struct {
		kind, freeze string
		pool         int
		thin         bool // in a raw pool
	}{{"ext4", "", 0, false}, {"ext4", "true", 0, true}, {"xfs", "", 0, true}, {"block", "", 0, true}, {"ext4", "", 1, false}} {
		pool := t.pools[plan.pool%len(t.pools)]
		thin := pool.IsRaw() && plan.thin && t.thin
		if pool.IsRaw() && plan.kind == "xfs" && !thin {
			plan.kind = "ext4" // all of a copy is written
		}
		v := t.keeper.newVolume(fmt.Sprintf("pod-%d", i), pool, plan.kind, sizeFor(plan.kind))
		if thin {
			v.makeThin()
		}
		if plan.freeze != "" {
			v.Params["snapshotFreeze"] = plan.freeze
		}
		// A thin one is held still by its device, whatever its class says.
		v.frozen = plan.freeze != "" || !v.shares() || thin
		t.must(v.Up())
		t.must(t.learnOverhead(v))
		sum, err := rig.Fill(v.Target, mib, t.seed+uint64(i))
		t.must(err)
		v.has = content{size: mib, sum: sum}
		v.staged, v.published = true, true
		t.model.volumes[v.Name] = v
		t.pods = append(t.pods, &pod{volume: v, writer: startWriter(v.Target)})
	}
	done := make(chan struct{})
	var wait sync.WaitGroup
	for _, w := range t.workers {
		wait.Go(w.run)
	}
	wait.Go(t.importer.importLoop)
	wait.Go(func() {
		for t.keeper.t.gate.passes() {
			t.keeper.keep()
			time.Sleep(time.Millisecond)
		}
	})
	go func() {
		wait.Wait()
		close(done)
	}()
	return done
}

// finish takes everything down and looks for what is left.
func (t *torture) finish(free int64) {
	t.gate = newGate(workers)
	t.gate.set(false, false)
	var wait sync.WaitGroup
	for _, w := range t.workers {
		wait.Go(w.finish)
	}
	wait.Wait()
	for _, p := range t.pods {
		if err := p.writer.finish(); err != nil {
			t.violation("the writer in %s saw: %v", p.Name, err)
			return
		}
		if err := checkLog(p.Target, p.writer.synced.Load()); err != nil {
			t.violation("%v", err)
			return
		}
		if p.extra != "" {
			t.must(p.UnpublishAt(p.extra))
		}
		if err := errors.Join(p.check(), p.Gone()); err != nil {
			t.violation("%s: %v", p.Name, err)
			return
		}
		delete(t.model.volumes, p.Name)
	}
	if len(t.found) > 0 || !t.sweptAll() {
		return
	}
	if err := t.audit(); err != nil {
		t.violation("at the end: %v", err)
		return
	}
	slack, patient := int64(8*mib), time.Minute
	if t.thin {
		slack = 48 * mib // the thin pool's metadata, and what templates have in it
		patient *= 5     // without volumes it is taken away after a minute, and overwritten before thick ones get its room
	}
	if err := rig.Eventually(patient, func() error {
		if now := t.free(); now < free-slack {
			return fmt.Errorf("the pool has %d KiB less than at the start%s", (free-now)/1024, t.whoHasIt())
		}
		return nil
	}); err != nil {
		t.violation("at the end: %v", err)
		return
	}
	t.t.Logf("free space at the end: %+d KiB", (t.free()-free)/1024)
	if files := deletedFiles(t.d.Pid()); len(files) > 0 {
		t.violation("at the end the driver holds %v", files)
		return
	}
	if err := t.d.Term(); err != nil {
		t.violation("%v", err)
	}
}

// whoHasIt tells what a raw pool's room is taken by.
func (t *torture) whoHasIt() string {
	if !t.pools[0].IsRaw() {
		return ""
	}
	maps, _ := t.pools[0].Maps()
	status, _ := rig.Run("dmsetup", "status")
	return fmt.Sprintf(": %v\n%s", maps, status)
}

// deletedFiles lists what a process has open that has no name.
func deletedFiles(pid int) []string {
	var found []string
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		if path, err := os.Readlink(file); err == nil && strings.HasSuffix(path, " (deleted)") {
			found = append(found, path)
		}
	}
	return found
}

// ---- a round ----

// round lets the load run for a while, kills, starts again, and audits. Every other time the audit
// comes before any call is repeated, else the calls are repeated as soon as somebody answers.
func (t *torture) round() bool {
	auditFirst := t.random.IntN(2) == 0
	after := time.Duration(t.random.IntN(250_000)) * time.Microsecond
	if t.random.IntN(4) == 0 {
		after /= 20 // while they come back
	}
	t.gate.set(false, false)
	time.Sleep(after)
	if t.random.IntN(2) == 0 {
		t.await(watched[t.random.IntN(len(watched))], time.Duration(t.random.IntN(4_000))*time.Microsecond)
	}
	if !t.kill(auditFirst, after) {
		return false
	}
	if t.random.IntN(4) == 0 && !t.podsMove() {
		return false
	}
	for t.random.IntN(3) == 0 {
		if !t.killStarting() {
			return false
		}
	}
	if !t.start() {
		return false
	}
	if auditFirst && (!t.quiet(true) || !t.audited("before anything was repeated")) {
		return false
	}
	t.gate.set(true, false)
	return t.quiet(false) && t.podsMove() && t.audited("after everything was repeated") && t.readLog()
}

// await waits for somebody's call, not for long, and then a moment.
func (t *torture) await(op string, moment time.Duration) {
	w := &watch{op: op, begun: make(chan struct{}, 1)}
	t.watch.Store(w)
	select {
	case <-w.begun:
		time.Sleep(moment)
	case <-time.After(400 * time.Millisecond):
	}
	t.watch.Store(nil)
}

// tell is called at the begin of each call.
func (t *torture) tell(op string) {
	if w := t.watch.Load(); w != nil && w.op == op {
		select {
		case w.begun <- struct{}{}:
		default:
		}
	}
}

func (t *torture) kill(hold bool, after time.Duration) bool {
	if !t.d.Running() {
		t.violation("the driver ended by itself:\n%s", t.d.LogTail(40))
		return false
	}
	t.gate.set(true, hold)
	t.lastKillNs.Store(time.Now().UnixNano())
	var calls []string
	for _, w := range t.all() {
		if op := *w.current.Load(); op != "" {
			calls = append(calls, op)
			t.inFlight[op]++
		}
	}
	_ = t.d.Kill()
	t.killed++
	t.keeper.note("KILL %d, %v after the load went on; under way: %v; audit first: %v", t.killed, after,
		calls, hold)
	return !t.gate.isStopped()
}

// killStarting kills the driver again somewhere in its start.
func (t *torture) killStarting() bool {
	usual := 20 * time.Millisecond
	if n := len(t.starts); n > 0 {
		usual += t.starts[n-1]
	}
	after := time.Duration(t.random.Float64() * float64(usual))
	if err := t.d.Launch(); err != nil {
		t.violation("%v", err)
		return false
	}
	time.Sleep(after)
	if !t.d.Running() {
		t.violation("the driver ended while it started:\n%s", t.d.LogTail(20))
		return false
	}
	t.lastKillNs.Store(time.Now().UnixNano())
	_ = t.d.Kill()
	t.killed++
	t.inFlight["(start)"]++
	t.keeper.note("KILL %d, %v after the start", t.killed, after)
	return true
}

func (t *torture) start() bool {
	began := time.Now()
	t.client.Conn.ResetConnectBackoff()
	if err := t.d.Launch(); err != nil {
		t.violation("%v", err)
		return false
	}
	if err := rig.Eventually(60*time.Second, func() error {
		if !t.d.Running() {
			return rig.Stop(fmt.Errorf("the driver ended:\n%s", t.d.LogTail(20)))
		}
		t.client.Conn.ResetConnectBackoff()
		ctx, cancel := callContext()
		defer cancel()
		reply, err := t.client.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && !reply.GetReady().GetValue() {
			err = errors.New("serving, but not ready")
		}
		return err
	}); err != nil {
		t.violation("starting again: %v", err)
		return false
	}
	t.starts = append(t.starts, time.Since(began))
	t.keeper.note("READY after %v", time.Since(began))
	return true
}

func (t *torture) quiet(heldToo bool) bool {
	err := t.gate.awaitQuiet(heldToo, patience+30*time.Second)
	if err != nil && !errors.Is(err, errStopped) {
		t.violation("%v", err)
	}
	return err == nil
}

// podsMove: volumes in use work on, whether there is a driver or not. Where a copy or a group freezes a volume
// it stands until the next start.
func (t *torture) podsMove() bool {
	for _, p := range t.pods {
		from := p.writer.synced.Load()
		if err := rig.Eventually(60*time.Second, func() error {
			if err := p.writer.failure(); err != nil {
				return rig.Stop(err)
			}
			if p.writer.synced.Load() == from && (t.d.Running() || !p.frozen && !t.model.inGroupUnderWay(p.volume)) {
				return fmt.Errorf("it stands at block %d", from)
			}
			return nil
		}); err != nil {
			t.violation("the writer in %s: %v", p.Name, err)
			return false
		}
	}
	return true
}

// endPods ends writers of a test that failed: they keep mounts busy, and one that a dead driver has
// frozen would wait for ever.
func (t *torture) endPods() {
	if t.d == nil {
		return
	}
	_ = t.d.Kill()
	for _, p := range t.pods {
		p.writer.stop.Store(true)
		if dir, err := os.Open(p.Staging); err == nil {
			_ = unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
			dir.Close()
		}
		<-p.writer.done
	}
}

const fiThaw = 0xc0045878 // FITHAW

func (t *torture) audited(when string) bool {
	if err := t.audit(); err != nil {
		t.violation("%s:\n%v", when, err)
		return false
	}
	return true
}
