// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"google.golang.org/grpc/codes"
)

const podA, podB = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"

// cgroups is a directory that stands for the node's cgroup hierarchy.
type cgroups struct {
	b    *bed
	root string
}

func (b *bed) cgroups() *cgroups {
	b.t.Helper()
	g := &cgroups{b, b.Path("cgroup")}
	b.must(os.MkdirAll(g.root, 0o755))
	b.must(os.WriteFile(filepath.Join(g.root, "cgroup.controllers"), []byte("cpuset cpu io memory\n"), 0o644))
	b.d.Args = append(b.d.Args, "--cgroup-root", g.root)
	return g
}

func (g *cgroups) file(uid string) string {
	slice := "kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	return filepath.Join(g.root, "kubepods.slice/kubepods-burstable.slice", slice, "io.max")
}

// make gives a pod its cgroup.
func (g *cgroups) make(uid string) {
	g.b.t.Helper()
	g.b.must(os.MkdirAll(filepath.Dir(g.file(uid)), 0o755))
	g.b.must(os.WriteFile(g.file(uid), nil, 0o644))
}

// says waits until the pod's line is of the volume's device and ends like this.
func (g *cgroups) says(uid, want string) {
	g.b.t.Helper()
	g.b.eventually(func() error {
		text, err := os.ReadFile(g.file(uid))
		if err != nil {
			return err
		}
		if _, rest, ok := strings.Cut(string(text), " "); !ok || rest != want {
			return fmt.Errorf("io.max of pod %s has %q, not %q", uid, text, want)
		}
		return nil
	})
}

func target(b *bed, v *rig.Volume, uid string) string {
	b.t.Helper()
	path := filepath.Join(b.d.Kubelet, "pods", uid, "volumes/kubernetes.io~csi", v.Name, "mount")
	b.must(os.MkdirAll(filepath.Dir(path), 0o750))
	return path
}

// TestModifyVolume takes the limits of a loop volume through a life: at the create, in two pods, changed in use,
// over a kill of the driver.
func TestModifyVolume(t *testing.T) {
	b := newBed(t, "xfs", 2<<30)
	g := b.cgroups()
	b.must(b.d.ServeHTTP())
	b.start()
	v := b.d.Volume("limited", rig.MountCap("ext4"), 64*rig.MiB)
	v.Params = map[string]string{"device": "loop"}
	v.Mutable = map[string]string{"iops": "1k", "readIops": "600", "bandwidth": "100Mi"}
	b.must(v.Create())
	b.must(v.Create())
	other := *v
	other.Mutable = map[string]string{"iops": "1k"}
	b.refused("a create with other limits", other.Create(), codes.AlreadyExists)
	b.must(v.Stage())
	g.make(podA)
	b.must(v.PublishAt(target(b, v, podA), false))
	g.says(podA, "rbps=104857600 wbps=104857600 riops=600 wiops=1000")

	b.refused("one wrong parameter", v.Modify(map[string]string{"writeIops": "500", "readIops": "lots"}), codes.InvalidArgument)
	b.refused("a parameter of the class", v.Modify(map[string]string{"writeIops": "500", "device": "loop"}), codes.InvalidArgument)
	b.refused("a volume that is not there", (&rig.Volume{}).On(b.c).Modify(nil), codes.InvalidArgument)
	g.says(podA, "rbps=104857600 wbps=104857600 riops=600 wiops=1000")
	b.must(v.Modify(map[string]string{"bandwidth": "none", "writeIops": "800"}))
	b.must(v.Modify(map[string]string{"bandwidth": "none", "writeIops": "800"}))
	g.says(podA, "rbps=max wbps=max riops=600 wiops=800")

	// Its cgroup comes after the publish.
	b.must(v.PublishAt(target(b, v, podB), false))
	g.says(podA, "rbps=max wbps=max riops=300 wiops=400")
	g.make(podB)
	g.says(podB, "rbps=max wbps=max riops=300 wiops=400")
	metrics, err := b.d.Scrape()
	b.must(err)
	for name, want := range map[string]float64{"ringvol_volume_limit_iops": 800, "ringvol_volume_limit_enforced": 1} {
		labels := []string{"volume", v.Name}
		if name == "ringvol_volume_limit_iops" {
			labels = append(labels, "op", "write")
		}
		if got := metrics.Value(name, labels...); got != want {
			t.Errorf("%s is %v, not %v", name, got, want)
		}
	}

	b.must(b.d.Kill())
	g.make(podA) // made anew, and empty
	b.must(b.d.Start())
	b.connect()
	g.says(podA, "rbps=max wbps=max riops=300 wiops=400")
	b.must(v.Modify(map[string]string{"iops": "0"}))
	g.says(podA, "rbps=max wbps=max riops=max wiops=max")
	g.says(podB, "rbps=max wbps=max riops=max wiops=max")

	b.must(v.UnpublishAt(target(b, v, podA)))
	b.must(v.UnpublishAt(target(b, v, podB)))
	b.must(v.Unstage())
	b.must(v.Delete())
}

// TestLimitNotEnforced says so where the node has no cgroup v2.
func TestLimitNotEnforced(t *testing.T) {
	b := newBed(t, "xfs", 2<<30)
	b.d.Args = append(b.d.Args, "--cgroup-root", b.Path("nowhere"))
	b.start()
	v := b.d.Volume("limited", rig.MountCap("ext4"), 64*rig.MiB)
	v.Params = map[string]string{"device": "loop"}
	b.must(v.Create())
	b.must(v.Stage())
	v.Target = target(b, v, podA)
	b.must(v.Publish())
	b.well(v)
	b.must(v.Modify(map[string]string{"bandwidth": "10M"}))
	b.found(v, "LimitNotEnforced", degraded, "--cgroup-root")
	b.must(v.Modify(map[string]string{"bandwidth": ""}))
	b.well(v)
	b.must(v.Down())
	b.must(v.Delete())
}
