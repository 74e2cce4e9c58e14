// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// freeName reuses the names of what was deleted.
func (w *worker) freeName() string {
	for {
		w.serial++
		name := fmt.Sprintf("%s-v%d", w.name, w.serial%8)
		taken := false
		for _, v := range w.volumes {
			taken = taken || v.Name == name
		}
		if !taken {
			return name
		}
	}
}

func (w *worker) create() {
	v := w.plan()
	if v == nil {
		return
	}
	w.t.model.with(func() {
		v.busy = "create"
		w.t.model.volumes[v.Name] = v
	})
	made := v.Volume
	if !w.do("create", v.Name+" "+describe(v), made.Create) {
		return
	}
	w.t.model.with(func() {
		if v.seen != "" && v.seen != made.ID {
			w.t.violation("%s: %s was made as %s before the kill and as %s by the retry", w.name,
				v.Name, v.seen, made.ID)
		}
		if rig.KeyOf(made.ID) != v.Name || w.t.model.gone[made.ID] {
			w.t.violation("%s: %s has the id %s", w.name, v.Name, made.ID)
		}
		v.Volume, v.busy = made, ""
	})
	w.volumes = append(w.volumes, v)
	if w.chance(20) { // the same arguments: the same volume
		again := made
		if w.do("create again", v.Name, again.Create) && (again.ID != made.ID || again.Got != made.Got) {
			w.t.violation("%s: the same creation of %s gave %s and %s", w.name, v.Name, made.ID, again.ID)
		}
	}
	if err := v.Paths(); err != nil {
		w.t.violation("%v", err)
	}
}

func describe(v *volume) string {
	text := fmt.Sprintf("%s %s %d MiB %s", v.pool.Name, v.kind, v.Size/mib, rig.SourceOf(v.Source))
	for _, key := range []string{"provisioning", "eraseOnDelete", "snapshotFreeze"} {
		if value := v.Params[key]; value != "" {
			text += " " + key + "=" + value
		}
	}
	return strings.TrimSpace(text)
}

func (w *worker) newVolume(name string, pool *rig.Pool, kind string, size int64) *volume {
	v := &volume{kind: kind, pool: pool, copyable: true, overhead: w.t.overhead[kind]}
	v.Volume = *w.t.d.Volume(name, rig.CapFor(kind), size).On(w.client)
	v.Params = map[string]string{"pool": pool.Name}
	return v
}

func sizeFor(kind string) int64 {
	return map[string]int64{"ext4": 24 * mib, "block": 16 * mib, "xfs": 300 * mib}[kind]
}

// plan decides what to create: empty, from a snapshot, or from a volume (a pod's, too).
func (w *worker) plan() *volume {
	name := w.freeName()
	switch n := w.random.IntN(100); {
	case n < 22 && len(w.snaps) > 0:
		s := w.snaps[w.random.IntN(len(w.snaps))]
		v := w.newVolume(name, s.pool, s.source.kind, s.size)
		v.Source, v.has = rig.FromSnapshot(s.id), s.has
		if s.source.thin {
			v.makeThin()
		}
		return v
	case n < 34:
		source := w.t.pods[w.random.IntN(len(w.t.pods))]
		if mayCopy(source.volume) {
			return w.planClone(name, source.volume)
		}
	case n < 46 && len(w.volumes) > 0:
		if source := w.volumes[w.random.IntN(len(w.volumes))]; mayCopy(source) {
			return w.planClone(name, source)
		}
	}
	pool, kind := w.t.pools[0], "ext4"
	if w.chance(30) {
		pool = w.t.pools[len(w.t.pools)-1]
	}
	switch n := w.random.IntN(100); {
	case n < 35:
		kind = "block"
	case n < 50 && pool.Reflink():
		kind = "xfs"
	}
	v := w.newVolume(name, pool, kind, sizeFor(kind)+int64(w.random.IntN(2))*8*mib)
	if pool.IsRaw() && w.t.thin && w.chance(60) {
		v.makeThin()
		return v
	}
	switch n := w.random.IntN(100); {
	case n < 12 && kind != "xfs":
		v.Params["provisioning"], v.thick = "thick", true
	case n < 20 && kind != "xfs" && !pool.IsRaw():
		v.Params["eraseOnDelete"] = []string{"zero", "discard"}[n%2]
		v.copyable = false
	case n < 26:
		v.Params["snapshotFreeze"] = "true"
	}
	return v
}

// mayCopy: a raw device in use would be torn without reflink and is refused.
func mayCopy(v *volume) bool {
	return v.copyable && (v.shares() || v.kind != "block" || !v.staged)
}

func (w *worker) planClone(name string, source *volume) *volume {
	var v *volume
	w.t.model.with(func() {
		v = w.newVolume(name, source.pool, source.kind, source.Got)
		v.Source, v.has = rig.FromVolume(source.ID), w.t.contentOf(source)
		if source.thin {
			v.makeThin()
		}
	})
	// A pod may grow meanwhile; less than the source has is refused, and a repeat has to be equal.
	if w.t.isPod(source) || w.chance(30) {
		v.Size += 64 * mib
	}
	return v
}

// A check or growth of an unmounted file system goes on when the driver that started it is killed,
// and has the device for itself. Staging again waits for it, and says "later" if that lasts.
func TestToolOutlivesItsDriver(t *testing.T) {
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pool, err := r.NewPool("default", "xfs", 1<<30)
	must(err)
	d := r.NewDriver(pool)
	must(d.Start())
	must(d.AwaitReady())
	v := d.Volume("checked", rig.MountCap("ext4"), rig.MinSize("ext4"))
	must(v.Create())
	must(v.Stage())
	device := rig.LoopsBelow(pool.Path)[0]
	take := func() (tool *os.File) {
		must(rig.Eventually(10*time.Second, func() (err error) {
			tool, err = os.OpenFile(device, os.O_RDWR|unix.O_EXCL, 0)
			return err
		}))
		return tool
	}
	// Attached and not mounted, as a kill during the check leaves it.
	interrupt := func() *os.File {
		must(d.Kill())
		must(unix.Unmount(v.Staging, 0))
		must(d.Start())
		must(d.AwaitReady())
		return take()
	}
	tool := interrupt()
	ended := time.AfterFunc(300*time.Millisecond, func() { tool.Close() })
	must(v.Stage())
	if ended.Stop() {
		t.Error("staged beside the tool")
	}
	held := func() {
		t.Helper()
		err := v.Stage()
		if rig.Code(err) != codes.Aborted {
			t.Errorf("staging while a tool has the device: %v", err)
		} else if pid := fmt.Sprintf("(pid %d)", os.Getpid()); !strings.Contains(err.Error(), pid) {
			t.Errorf("%v does not say %q", err, pid)
		}
	}
	tool = interrupt()
	held()
	tool.Close()
	must(v.Stage())
	// A file system that needs a check is not one that is lost, as long as it cannot be checked.
	must(d.Kill())
	must(unix.Unmount(v.Staging, 0))
	_, err = rig.Run("debugfs", "-w", "-R", "set_super_value state 2", pool.Image(v.ID))
	must(err)
	must(d.Start())
	must(d.AwaitReady())
	tool = take()
	held()
	tool.Close()
	must(v.Stage())
	must(v.Unstage())
	must(v.Delete())
	must(d.Leaks())
}
