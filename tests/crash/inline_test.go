// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const inlinePolicy = "pools=default:plain,namespaces=ci,sources=*,max-size=64Mi"

// inline is what the test knows of an inline volume. What was never published is not there, and so is what was
// unpublished; what has lost its pod is taken away by the driver's sweep.
type inline struct {
	*rig.Inline
	pool      *rig.Pool
	has       content
	published bool
	busy      string // "publish inline", "unpublish inline", "pod goes"
	lost      int    // how many kills there were when its pod went; 0: it has not
}

func (v *inline) image() string { return filepath.Join(v.pool.Path, "volumes", v.ID) }

// inlineStep takes the worker's inline volume through its life.
func (w *worker) inlineStep() {
	v := w.inline
	switch n := w.random.IntN(100); {
	case v == nil:
		w.publishInline()
	case n < 25:
		w.do("publish inline again", v.ID, v.Publish)
		w.checkInline(v)
	case n < 50:
		w.fillInline(v)
	case n < 75:
		w.unpublishInline(v)
	default:
		w.podGoes(v)
	}
}

func (w *worker) publishInline() {
	w.serial++
	name := fmt.Sprintf("%s-%d", w.name, w.serial)
	v := &inline{pool: w.t.pools[w.random.IntN(len(w.t.pools))], busy: "publish inline"}
	attributes := map[string]string{"pool": v.pool.Name, "size": "24Mi", "fstype": "ext4"}
	if v.pool == w.t.pools[0] && w.chance(60) {
		attributes = map[string]string{"source": w.t.root.name}
		v.has = w.t.root.has
	}
	made, err := w.t.d.Inline("csi-"+name, "pod-"+name, attributes)
	if err != nil {
		w.t.violation("%v", err)
		return
	}
	v.Inline = made.On(w.client)
	w.t.model.with(func() { w.t.model.inlines[v.ID] = v })
	instead := false
	if !w.doOr("publish inline", fmt.Sprintf("%s %v", v.ID, attributes), v.Publish, func() bool {
		instead = w.chance(20)
		return instead
	}) {
		if instead { // its pod was deleted meanwhile
			w.unpublishInline(v)
		}
		return
	}
	w.t.model.with(func() { v.published, v.busy = true, "" })
	w.inline = v
	w.checkInline(v)
}

func (w *worker) checkInline(v *inline) {
	if w.t.gate.isStopped() {
		return
	}
	if err := v.check(); err != nil {
		w.t.violation("%s: inline volume %s: %v", w.name, v.ID, err)
	}
}

func (v *inline) check() error {
	if v.has.sum == "" {
		return nil
	}
	return rig.Check(v.Target, v.has.size, v.has.sum)
}

func (w *worker) fillInline(v *inline) {
	size := int64(1+w.random.IntN(8)) * mib / 4
	sum, err := rig.Fill(v.Target, size, w.random.Uint64())
	if err != nil {
		w.t.violation("%s: writing into inline volume %s: %v", w.name, v.ID, err)
		return
	}
	w.t.model.with(func() { v.has = content{size: size, sum: sum} })
}

func (w *worker) unpublishInline(v *inline) {
	w.t.model.with(func() { v.busy = "unpublish inline" })
	if !w.do("unpublish inline", v.ID, v.Unpublish) {
		return
	}
	w.t.model.with(func() { delete(w.t.model.inlines, v.ID) })
	w.inline = nil
	if w.chance(15) {
		w.do("unpublish inline again", v.ID, v.Unpublish)
	}
	if err := v.PodGoes(); err != nil {
		w.t.violation("%s: %v", w.name, err)
	}
}

// podGoes: as after a node was down for long, nobody unpublishes it. Nobody reads it meanwhile, and a driver that looks at it
// keeps it for a moment.
func (w *worker) podGoes(v *inline) {
	w.t.model.with(func() { v.busy = "pod goes" })
	if err := rig.Eventually(patience, func() error { return unix.Unmount(v.Target, 0) }); err != nil {
		w.t.violation("%s: unmounting %s: %v", w.name, v.ID, err)
		return
	}
	if err := v.PodGoes(); err != nil {
		w.t.violation("%s: %v", w.name, err)
	}
	w.t.model.with(func() { v.lost = w.t.killed + 1 })
	w.inline = nil
	w.note("the pod of %s is gone", v.ID)
}

// swept tells whether the sweep has had the time of a whole run for it.
func (t *torture) swept(v *inline) bool {
	return v.lost != 0 && t.killed >= v.lost
}

// sweptAll: the last run of the driver finds those whose pods went since it started, and the image that stayed is deleted.
func (t *torture) sweptAll() bool {
	if t.root != nil {
		t.must(t.deleteSnapshot(t.client, t.root.id))
		delete(t.model.images, t.root.name)
	}
	for _, v := range t.model.inlines {
		if !t.swept(v) {
			return t.kill(false, 0) && t.start()
		}
	}
	return true
}

// ---- audits, with the model's lock ----

func (t *torture) inlineMounts(must, may map[string]bool) {
	for _, v := range t.model.inlines {
		switch {
		case v.lost != 0:
		case v.busy != "":
			may[v.Target] = true
		case v.published:
			must[v.Target] = true
		}
	}
}

func (t *torture) auditInlineDevices(all map[string][]string) error {
	var errs []error
	for _, v := range t.model.inlines {
		devices := all[v.image()]
		delete(all, v.image())
		switch {
		case len(devices) > 1:
			errs = append(errs, fmt.Errorf("%s is attached %d times: %v", v.ID, len(devices), devices))
		case v.published && v.busy == "" && len(devices) == 0:
			errs = append(errs, fmt.Errorf("%s is published and not attached", v.ID))
		case t.swept(v) && len(devices) == 1 && !t.keptElsewhere(devices[0]):
			errs = append(errs, fmt.Errorf("the pod of %s is gone, and it is attached: %v", v.ID, devices))
		}
	}
	return errors.Join(errs...)
}

func (t *torture) inlineFiles(pool *rig.Pool, certain, possible map[string]bool) {
	for _, v := range t.model.inlines {
		if v.pool == pool && !t.swept(v) {
			certain["volumes/"+v.ID] = v.published && v.busy == ""
			possible["volumes/"+v.ID] = true
		}
	}
}

func (t *torture) auditInlineData() error {
	var errs []error
	for _, v := range t.model.inlines {
		if v.published && v.busy == "" {
			if err := v.check(); err != nil {
				errs = append(errs, fmt.Errorf("inline volume %s: %w", v.ID, err))
			}
		}
	}
	return errors.Join(errs...)
}

// ---- imports ----

// golden is an image that `ringvol import` makes: whole, or not there.
type golden struct {
	name string
	id   string // "": not acknowledged
	has  content
	busy string
	seen string
}

// importing tells whether a volume of that name is one of an import under way, which the next import of its name takes back.
func (m *model) importing(name string) bool {
	for _, g := range m.images {
		if g.busy == "import" && strings.HasPrefix(name, "import."+g.name+".") {
			return true
		}
	}
	return false
}

func (t *torture) workDir() string { return filepath.Join(t.d.Kubelet, "import") }

func (t *torture) importArgs(g *golden) []string {
	return []string{"import", "--endpoint", "unix://" + t.d.Socket, "--work-dir", t.workDir(), "--pool", t.pools[0].Name,
		"--size", fmt.Sprint(24 * mib), t.tree, g.name}
}

// newImages prepares what is imported, and one image that stays, of which pods' volumes are made.
func (t *torture) newImages() error {
	t.tree = t.rig.Path("tree")
	if err := os.Mkdir(t.tree, 0o755); err != nil {
		return err
	}
	sum, err := rig.Fill(t.tree, mib, t.seed)
	if err != nil {
		return err
	}
	t.root = &golden{name: "root", has: content{size: mib, sum: sum}}
	out, err := rig.Run(rig.Binary(), t.importArgs(t.root)...)
	t.root.id = strings.TrimSpace(out)
	t.model.images[t.root.name] = t.root
	return err
}

// importLoop imports an image again and again, now and then by a command that is killed, and makes a volume of it.
func (w *worker) importLoop() {
	for w.t.gate.passes() {
		if w.t.root != nil {
			w.importOnce()
		}
		time.Sleep(time.Duration(w.random.IntN(300)) * time.Millisecond)
	}
}

func (w *worker) importOnce() {
	g := &golden{name: "cut", has: w.t.root.has, busy: "import"}
	w.t.model.with(func() { w.t.model.images[g.name] = g })
	for w.chance(40) {
		w.importKilled(g)
	}
	if !w.do("import", g.name, func() error { return w.t.imports(g) }) {
		return
	}
	w.t.model.with(func() {
		if g.seen != "" && g.seen != g.id {
			w.t.violation("%s: %s was imported as %s before the kill and as %s by the retry", w.name, g.name, g.seen, g.id)
		}
		g.busy = ""
	})
	w.useImage(g)
	w.t.model.with(func() { g.busy = "delete" })
	if !w.do("delete image", g.name, func() error { return w.t.deleteSnapshot(w.client, g.id) }) {
		return
	}
	w.t.model.with(func() {
		delete(w.t.model.images, g.name)
		w.t.model.gone[g.id] = true
	})
}

// importKilled has the command killed somewhere in the middle, or behind its end.
func (w *worker) importKilled(g *golden) {
	after := time.Duration(w.random.IntN(600)) * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	err := exec.CommandContext(ctx, rig.Binary(), w.t.importArgs(g)...).Run()
	w.note("import %s, killed after %v: %v", g.name, after, err)
}

// imports runs the command to its end. It asks again where the driver is away, and gives up where it was never there. What it
// could not take back it says, and the next import of the name takes that back before it finds the name taken.
func (t *torture) imports(g *golden) error {
	ctx, cancel := callContext()
	defer cancel()
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, rig.Binary(), t.importArgs(g)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, rest, there := strings.Cut(errs.String(), "is there already ("); there {
		g.id, _, _ = strings.Cut(rest, ")")
		return nil
	}
	if err != nil || errs.Len() > 0 {
		return status.Errorf(codes.Unavailable, "import: %v: %s", err, errs.String())
	}
	g.id = strings.TrimSpace(out.String())
	return nil
}

// useImage looks at what the image holds, in a volume whose class names it.
func (w *worker) useImage(g *golden) {
	w.serial++
	v := w.newVolume(fmt.Sprintf("%s-v%d", w.name, w.serial), w.t.pools[0], "ext4", 24*mib)
	v.Params["source"] = g.name
	v.has, v.busy = g.has, "create"
	w.t.model.with(func() { w.t.model.volumes[v.Name] = v })
	made := v.Volume
	if !w.do("create of an image", v.Name, made.Create) {
		return
	}
	made.Source = rig.FromSnapshot(g.id) // what it says of itself
	w.t.model.with(func() { v.Volume, v.busy = made, "" })
	if err := v.Paths(); err != nil {
		w.t.violation("%v", err)
		return
	}
	w.stage(v)
	if v.staged {
		w.publish(v)
	}
	if v.published {
		w.unpublish(v)
	}
	if v.staged && !v.published {
		w.unstage(v)
	}
	if !v.staged && v.busy == "" {
		w.delete(v)
	}
}

// compareImage compares an image that is listed.
func (m *model) compareImage(name, id string) error {
	switch g := m.images[name]; {
	case g.id == "":
		g.seen = id
	case g.id != id:
		return fmt.Errorf("golden image %s is %s, acknowledged was %s", name, id, g.id)
	}
	return nil
}

func (m *model) lostImages(listed map[string]bool) error {
	var errs []error
	for _, g := range m.images {
		if g.id != "" && g.busy == "" && !listed[g.name] {
			errs = append(errs, fmt.Errorf("golden image %s (%s) is lost", g.name, g.id))
		}
	}
	return errors.Join(errs...)
}

// importedAt: something of an import under way is mounted there.
func (t *torture) importedAt(path string) bool {
	for _, g := range t.model.images {
		if g.busy == "import" && strings.HasPrefix(path, filepath.Join(t.workDir(), g.name)+"/") {
			return true
		}
	}
	return false
}
