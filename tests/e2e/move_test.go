// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ringvol.dev/tests/e2e/cluster"
)

// mover runs `ringvol move` beside a controller.
func (w *world) mover(args ...string) (string, error) {
	return w.exec(cluster.Namespace, "ringvol-controller-0", "ringvol", append([]string{"ringvol", "move"}, args...)...)
}

// movedObject makes the PersistentVolume anew for another node, step by step as docs/moving.md has it.
func (w *world) movedObject(volume *corev1.PersistentVolume, to string) {
	w.t.Helper()
	volumes := node.Client.CoreV1().PersistentVolumes()
	patch := func(what, text string) {
		w.t.Helper()
		_, err := volumes.Patch(w.ctx(), volume.Name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
		w.must(what, err)
	}
	patch("Retain", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	saved, err := volumes.Get(w.ctx(), volume.Name, metav1.GetOptions{})
	w.must("the object", err)
	anew := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: saved.Name, Labels: saved.Labels, Annotations: saved.Annotations}, Spec: saved.Spec}
	anew.Spec.ClaimRef.ResourceVersion = ""
	anew.Spec.NodeAffinity.Required.NodeSelectorTerms = []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "topology.ringvol.dev/node", Operator: corev1.NodeSelectorOpIn, Values: []string{to}}}}}
	w.must("deleting the object", volumes.Delete(w.ctx(), saved.Name, metav1.DeleteOptions{}))
	patch("its finalizers", `{"metadata":{"finalizers":null}}`)
	_, err = volumes.Create(w.ctx(), anew, metav1.CreateOptions{})
	w.must("making it anew", err)
	w.eventually("it is bound", func() error {
		found, err := volumes.Get(w.ctx(), saved.Name, metav1.GetOptions{})
		if err == nil && found.Status.Phase != corev1.VolumeBound {
			err = errors.New("it is " + string(found.Status.Phase))
		}
		return err
	})
	patch("as it was", fmt.Sprintf(`{"spec":{"persistentVolumeReclaimPolicy":%q}}`, volume.Spec.PersistentVolumeReclaimPolicy))
}

// A claim's volume moves to the other node and back: copied under its pod, taken when that is gone. Its claim stays, and so
// do its data and its snapshots.
func TestVolumeMoves(t *testing.T) {
	needsController(t)
	w := newWorld(t)
	const bytes = "20000000"
	w.claim("data", "ringvol-xfs", "320Mi")
	w.pod("first", mounts("data"), on(cluster.NodeName))
	w.awaitPod("first")
	w.run("first", "put", dataDir+"/file", bytes, "before")
	w.snapshot("snapshot", "data")
	volume := w.volume("data")
	out, err := w.mover("--timeout", "10", volume.Name, cluster.OtherName)
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("a volume in use moved: %v: %s", err, out)
	}
	w.run("first", "put", dataDir+"/file", bytes, "meanwhile")
	w.deletePod("first")
	for i, to := range []string{cluster.OtherName, cluster.NodeName} {
		out, err = w.mover("--timeout", "60", volume.Name, to)
		w.must("ringvol move: "+out, err)
		w.movedObject(volume, to)
		if home := homeOf(w.volume("data")); home != to {
			t.Errorf("its object names %s, not %s", home, to)
		}
		name := fmt.Sprintf("pod-%d", i)
		w.pod(name, mounts("data"), on(""))
		w.awaitPod(name)
		w.run(name, "check", dataDir+"/file", bytes, "meanwhile")
		w.deletePod(name)
	}
	w.claim("restored", "ringvol-xfs", "320Mi", from("VolumeSnapshot", "snapshot"))
	w.pod("restored", mounts("restored"), on(cluster.OtherName))
	w.awaitPod("restored")
	w.run("restored", "check", dataDir+"/file", bytes, "before")
	w.deletePod("restored")
	w.deleteClaim("restored")
	w.deleteClaim("data")
}
