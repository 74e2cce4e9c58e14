// SPDX-License-Identifier: Apache-2.0

package power

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ringvol.dev/tests/rig"
)

const inlineSize = 24 * mib

// inline is an inline volume with all of its life. Its pod's directory is on another disk, and is there unless a state
// is looked at without it.
type inline struct {
	*rig.Inline
	source     *golden // nil: it began empty
	born, died span
	filled     []*filling
}

// golden is an image that `ringvol import` made.
type golden struct {
	name, id string
	has      content
	born     span
}

// ---- recording ----

func (r *recorder) publishInline(name string, source *golden) (*inline, error) {
	attributes := map[string]string{"size": fmt.Sprint(inlineSize)}
	if source != nil {
		attributes = map[string]string{"source": source.name}
	}
	made, err := r.d.Inline("csi-"+name, "pod-"+name, attributes)
	v := &inline{Inline: made, source: source}
	r.inlines = append(r.inlines, v)
	if err != nil {
		return v, err
	}
	return v, r.call(&v.born, "publish inline "+name, v.Publish)
}

func (r *recorder) fillInline(v *inline, seed uint64) error {
	f := &filling{}
	v.filled = append(v.filled, f)
	return r.call(&f.span, "fill inline "+v.ID, func() (err error) {
		f.size = payload
		f.sum, err = rig.Fill(v.Target, payload, seed)
		return err
	})
}

func (r *recorder) unpublishInline(v *inline) error {
	return r.call(&v.died, "unpublish inline "+v.ID, v.Unpublish)
}

// imported is an image out of a raw image with a file system: two volumes are on the way.
func (r *recorder) imported(name string) (*golden, error) {
	tree, image := filepath.Join(r.d.Kubelet, "tree"), filepath.Join(r.d.Kubelet, "image")
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return nil, err
	}
	sum, err := rig.Fill(tree, payload, 99)
	if err != nil {
		return nil, err
	}
	if _, err := rig.Run("mkfs.ext4", "-q", "-d", tree, image, fmt.Sprint(inlineSize>>20)+"M"); err != nil {
		return nil, err
	}
	g := &golden{name: name, has: content{payload, sum}}
	r.images = append(r.images, g)
	return g, r.call(&g.born, "import "+name, func() (err error) {
		g.id, err = importImage(r.d, g)
		return err
	})
}

func workDir(d *rig.Driver, g *golden) string { return filepath.Join(d.Kubelet, "import", g.name) }

func importImage(d *rig.Driver, g *golden) (string, error) {
	out, err := rig.Run(rig.Binary(), "import", "--endpoint", "unix://"+d.Socket, "--work-dir", filepath.Dir(workDir(d, g)),
		filepath.Join(d.Kubelet, "image"), g.name)
	return strings.TrimSpace(out), err
}

// runInline is the part of the load that kubelet and an operator make, without a controller.
func (l *script) runInline() {
	step := func(call func() error) { l.step(call) }
	var i1, i2, i3 *inline
	var root *golden
	step(func() (err error) { i1, err = l.publishInline("i1", nil); return err })
	step(func() error { return l.fillInline(i1, 11) })
	step(func() (err error) { root, err = l.imported("root"); return err })
	step(func() (err error) { i2, err = l.publishInline("i2", root); return err })
	step(func() error { return l.fillInline(i2, 12) })
	step(func() error { return l.unpublishInline(i1) })
	step(func() (err error) { i3, err = l.publishInline("i3", root); return err })
	step(func() error { return l.unpublishInline(i3) })
}

// ---- what is there ----

// at says whether it has to be there: done, may be: underway, or must not: notYet.
func (v *inline) at(mark int) state {
	o := object{born: v.born, died: v.died}
	return o.at(mark)
}

func (v *inline) holds(mark int) (content, bool) {
	o := object{filled: v.filled}
	if v.source != nil {
		o.copied = v.source.has
	}
	return o.holds(mark)
}

func (v *inline) image(pool *rig.Pool) string { return filepath.Join(pool.Path, "volumes", v.ID) }

// podsGo: some of the pods were deleted while the node was down. Before the driver starts.
func (a *audit) podsGo() error {
	a.podless = map[*inline]bool{}
	for _, v := range a.inlines {
		if err := v.PodComes(); err != nil {
			return err
		}
		if a.random.IntN(2) == 0 {
			a.podless[v] = true
			if err := v.PodGoes(); err != nil {
				return err
			}
		}
	}
	return nil
}

// onTheWay is a volume of an import that was cut short. Its note was durable before it was made, but lies on a disk whose states
// are not looked at: it is written anew.
func (a *audit) onTheWay(name string) bool {
	for _, g := range a.images {
		if g.born.at(a.seen) == underway && strings.HasPrefix(name, "import."+g.name+".") {
			err := os.MkdirAll(workDir(a.d, g), 0o700)
			return errors.Join(err, os.WriteFile(filepath.Join(workDir(a.d, g), name), nil, 0o600)) == nil
		}
	}
	return false
}

// imageOf is the image of that name which may be there.
func (a *audit) imageOf(name string) *golden {
	i := slices.IndexFunc(a.images, func(g *golden) bool { return g.name == name && g.born.at(a.seen) != notYet })
	if i < 0 {
		return nil
	}
	return a.images[i]
}

// inlineThere compares what lies in the pool; nobody lists inline volumes. One without a pod goes.
func (a *audit) inlineThere() error {
	return rig.Eventually(90*time.Second, func() error {
		var errs []error
		for _, v := range a.inlines {
			_, err := os.Stat(v.image(a.pool))
			switch is := err == nil; {
			case is && a.podless[v]:
				errs = append(errs, fmt.Errorf("inline volume %s is there without its pod", v.ID))
			case is && v.at(a.seen) == notYet:
				errs = append(errs, fmt.Errorf("inline volume %s must not be there", v.ID))
			case !is && v.at(a.seen) == done && !a.podless[v]:
				errs = append(errs, fmt.Errorf("inline volume %s is lost", v.ID))
			}
		}
		return errors.Join(errs...)
	})
}

// inlineNames are those of volumes/ that are no CO's.
func (a *audit) inlineNames() []string {
	var names []string
	for _, v := range a.inlines {
		if _, err := os.Stat(v.image(a.pool)); err == nil {
			names = append(names, v.ID)
		}
	}
	return names
}

// inlineAgain does what kubelet does after a reboot: what its pod has is published again, and goes with it.
func (a *audit) inlineAgain() error {
	for _, v := range a.inlines {
		if v.at(a.seen) == notYet || a.podless[v] {
			continue
		}
		if v.died.at(a.seen) != underway {
			if err := a.publishedAgain(v); err != nil {
				return err
			}
		}
		if err := v.Unpublish(); err != nil {
			return err
		}
		if _, err := os.Stat(v.image(a.pool)); err == nil {
			return fmt.Errorf("inline volume %s is there after its unpublish", v.ID)
		}
		a.podless[v] = true // should this step be repeated
	}
	return nil
}

func (a *audit) publishedAgain(v *inline) error {
	// The image may be of a later state.
	if v.source != nil && v.born.at(a.seen) == underway && v.source.born.at(a.seen) != done {
		return nil
	}
	if err := v.Publish(); err != nil {
		return err
	}
	if c, known := v.holds(a.seen); known && c.sum != "" {
		if err := rig.Check(v.Target, c.size, c.sum); err != nil {
			return fmt.Errorf("inline volume %s: %w", v.ID, err)
		}
	}
	return nil
}

// imagesAgain: an import that was cut short is made again, and takes along what is left of it. What is there is whole.
func (a *audit) imagesAgain() error {
	for _, g := range a.images {
		at := g.born.at(a.seen)
		if at == notYet {
			continue
		}
		if at == underway {
			id, err := importImage(a.d, g)
			if _, rest, there := strings.Cut(fmt.Sprint(err), "is there already ("); there {
				id, _, _ = strings.Cut(rest, ")")
			} else if err != nil {
				return err
			}
			a.imageIDs[g] = id
		}
		for _, name := range a.pool.Names("volumes") {
			if strings.HasPrefix(name, "import.") {
				return fmt.Errorf("%s is left by an import that was made again", name)
			}
		}
		v := a.d.Volume("of-an-image", rig.MountCap("ext4"), 0)
		v.Params = map[string]string{"source": g.name}
		if err := v.Up(); err != nil {
			return err
		}
		if err := errors.Join(rig.Check(v.Target, g.has.size, g.has.sum), v.Gone()); err != nil {
			return fmt.Errorf("golden image %s: %w", g.name, err)
		}
	}
	return nil
}

func (a *audit) imagesGone() error {
	for g, id := range a.imageIDs {
		if err := a.d.DeleteSnapshot(id); err != nil {
			return fmt.Errorf("golden image %s: %w", g.name, err)
		}
		delete(a.imageIDs, g)
	}
	return nil
}

// inlinePromise is what inline volumes were promised, and what they have of it.
func (a *audit) inlinePromise() (promised, has int64, err error) {
	for _, name := range a.inlineNames() {
		bytes, err := rig.Allocated(filepath.Join(a.pool.Path, "volumes", name))
		if err != nil {
			return 0, 0, err
		}
		promised += inlineSize
		has += min(bytes, inlineSize)
	}
	return promised, has, nil
}
