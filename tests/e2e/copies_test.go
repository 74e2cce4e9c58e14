// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"ringvol.dev/tests/e2e/cluster"
)

func (w *world) snapshots() dynamic.ResourceInterface {
	return node.Dynamic.Resource(schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1",
		Resource: "volumesnapshots"}).Namespace(w.namespace)
}

// snapshot takes a snapshot of a claim's volume and waits until it can be used.
func (w *world) snapshot(name, claim string) {
	w.t.Helper()
	_, err := w.snapshots().Create(w.ctx(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"volumeSnapshotClassName": "ringvol",
			"source": map[string]any{"persistentVolumeClaimName": claim}}}}, metav1.CreateOptions{})
	w.must("snapshot "+name, err)
	w.awaitSnapshot(name)
}

func (w *world) awaitSnapshot(name string) {
	w.t.Helper()
	w.eventually("snapshot "+name, func() error {
		found, err := w.snapshots().Get(w.ctx(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ready, _, _ := unstructured.NestedBool(found.Object, "status", "readyToUse"); !ready {
			return fmt.Errorf("it is not ready: %v", found.Object["status"])
		}
		return nil
	})
}

// A snapshot of a volume in use holds what was there, whatever is written afterwards; a volume made from it has that, and
// so has a volume made from a volume. Copies outlive what they were made from.
func TestSnapshotRestoreClone(t *testing.T) {
	w := newWorldBeside(t)
	w.claim("source", "ringvol-xfs", "400Mi")
	w.pod("source", mounts("source"))
	w.awaitPod("source")
	w.run("source", "put", dataDir+"/file", "30000000", "first")
	w.snapshot("snapshot", "source")
	w.run("source", "put", dataDir+"/file", "30000000", "second")

	w.claim("restored", "ringvol-xfs", "400Mi", from("VolumeSnapshot", "snapshot"))
	w.claim("cloned", "ringvol-xfs", "500Mi", from("PersistentVolumeClaim", "source"))
	w.pod("restored", mounts("restored"))
	w.pod("cloned", mounts("cloned"))
	w.awaitPod("restored")
	w.awaitPod("cloned")
	w.run("restored", "check", dataDir+"/file", "30000000", "first")
	w.run("cloned", "check", dataDir+"/file", "30000000", "second")
	if size := w.stat("cloned", dataDir).FSBytes; size < 400*mebibyte {
		t.Errorf("a clone larger than its source has %d bytes", size)
	}

	w.must("deleting the snapshot", w.snapshots().Delete(w.ctx(), "snapshot", metav1.DeleteOptions{}))
	w.deletePod("source")
	w.deleteClaim("source")
	w.run("restored", "check", dataDir+"/file", "30000000", "first")
	w.run("cloned", "check", dataDir+"/file", "30000000", "second")
}

// Somebody else's object leads to a snapshot that is there. In mode controller it simply works; in mode node it has to be said which
// node has it, by a label (docs/kubernetes.md).
func TestPreprovisionedSnapshot(t *testing.T) {
	w := newWorldBeside(t)
	w.claim("source", "ringvol", "64Mi")
	w.pod("source", mounts("source"))
	w.awaitPod("source")
	w.run("source", "put", dataDir+"/file", "3000000", "before")
	w.snapshot("snapshot", "source")
	taken, err := w.snapshots().Get(w.ctx(), "snapshot", metav1.GetOptions{})
	w.must("the snapshot", err)
	bound, _, _ := unstructured.NestedString(taken.Object, "status", "boundVolumeSnapshotContentName")
	contents := node.Dynamic.Resource(cluster.SnapshotContents)
	content, err := contents.Get(w.ctx(), bound, metav1.GetOptions{})
	w.must("its content", err)
	handle, _, _ := unstructured.NestedString(content.Object, "status", "snapshotHandle")

	labels := map[string]any{}
	if node.Mode == "node" {
		labels["snapshot.storage.kubernetes.io/managed-by"] = cluster.NodeName
	}
	name := "given-" + w.namespace
	_, err = contents.Create(w.ctx(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
		"metadata": map[string]any{"name": name, "labels": labels},
		"spec": map[string]any{"deletionPolicy": "Retain", "driver": cluster.Driver, "source": map[string]any{"snapshotHandle": handle},
			"volumeSnapshotRef": map[string]any{"name": "given", "namespace": w.namespace}}}}, metav1.CreateOptions{})
	w.must("a content for it", err)
	t.Cleanup(func() { w.must("that content", contents.Delete(w.ctx(), name, metav1.DeleteOptions{})) })
	_, err = w.snapshots().Create(w.ctx(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": map[string]any{"name": "given"},
		"spec": map[string]any{"source": map[string]any{"volumeSnapshotContentName": name}}}}, metav1.CreateOptions{})
	w.must("a snapshot of that content", err)
	w.awaitSnapshot("given")
	w.claim("restored", "ringvol", "64Mi", from("VolumeSnapshot", "given"))
	w.pod("restored", mounts("restored"))
	w.awaitPod("restored")
	w.run("restored", "check", dataDir+"/file", "3000000", "before")
}

// The same with devices, whose content the driver knows nothing of.
func TestSnapshotOfBlockVolume(t *testing.T) {
	w := newWorldBeside(t)
	w.claim("source", "ringvol", "64Mi", asBlock)
	w.pod("source", device("source"))
	w.awaitPod("source")
	w.run("source", "put", dataDevice, "60000000", "first")
	w.snapshot("snapshot", "source")
	w.run("source", "put", dataDevice, "60000000", "second")
	w.claim("restored", "ringvol", "64Mi", asBlock, from("VolumeSnapshot", "snapshot"))
	w.pod("restored", device("restored"))
	w.awaitPod("restored")
	w.run("restored", "check", dataDevice, "60000000", "first")
}
