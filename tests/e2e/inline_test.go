// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ringvol.dev/tests/e2e/cluster"
	"ringvol.dev/tests/rig"
)

// inlineOn has the chart allow inline volumes, which makes its CSIDriver object anew.
func (w *world) inlineOn() {
	w.t.Helper()
	before := w.driverObject()
	w.t.Cleanup(func() { w.must("the chart as it was", node.Install()) })
	w.must("the chart", node.Install("inline.enabled=true", "inline.namespaces[0]="+w.namespace, "inline.sources[0]=root", "inline.maxSize=256Mi"))
	if now := w.driverObject(); now.UID == before.UID || !slices.Contains(now.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral) {
		w.t.Errorf("the CSIDriver object is %s as before: %+v", now.UID, now.Spec)
	}
}

// inline gives the pod an inline volume at dataDir.
func inline(attributes map[string]string) podOption {
	return func(pod *corev1.Pod) {
		addVolume(pod, corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: cluster.Driver, VolumeAttributes: attributes}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: "data", MountPath: dataDir})
	}
}

// inlineVolumes are those of the first node whose pod is of this namespace.
func (w *world) inlineVolumes() ([]string, error) {
	out, err := w.tool("ls", "--json")
	if err != nil {
		return nil, err
	}
	var found struct {
		Volumes []struct{ Name, Claim string }
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return nil, err
	}
	var names []string
	for _, v := range found.Volumes {
		if strings.HasPrefix(v.Name, "csi-") && strings.HasPrefix(v.Claim, w.namespace+"/") {
			names = append(names, v.Name)
		}
	}
	return names, nil
}

func (w *world) awaitInline(count int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d inline volumes", count), func() error {
		names, err := w.inlineVolumes()
		if err == nil && len(names) != count {
			err = fmt.Errorf("there are %v", names)
		}
		return err
	})
}

// deleteGolden deletes a golden image of the first node, which is a snapshot that no object of the cluster names.
func deleteGolden(id string) error {
	client, err := dialDriver()
	if err != nil {
		return err
	}
	defer client.Conn.Close()
	return rig.Eventually(patience, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := client.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
		return err
	})
}

// Pods ask for volumes in their own spec: empty ones, and forks of a golden image, which classes name as well. Their data
// outlive the driver and a reboot, and go with their pods.
func TestInlineVolumes(t *testing.T) {
	w := newWorld(t)
	w.inlineOn()
	out, err := w.tool("import", "/etc", "root")
	w.must("import: "+out, err)
	t.Cleanup(func() { w.must("deleting the image", deleteGolden(strings.TrimSpace(out))) })

	w.pod("scratch", inline(map[string]string{"size": "64Mi"}), command("io", dataDir+"/busy", "64"))
	w.pod("fork", inline(map[string]string{"source": "root"}))
	w.awaitPod("scratch")
	w.awaitPod("fork")
	before := w.goesOn("scratch", done{})
	w.stat("fork", dataDir+"/mke2fs.conf")
	w.run("fork", "put", dataDir+"/mke2fs.conf", "1000000", "of the fork")
	w.awaitInline(2)

	w.pod("large", inline(map[string]string{"size": "1Gi"}))
	w.awaitEvent("large", "FailedMount", "--inline max-size")
	w.pod("other", inline(map[string]string{"source": "secret"}))
	w.awaitEvent("other", "FailedMount", "--inline sources")
	w.deletePod("large")
	w.deletePod("other")
	w.awaitInline(2)

	pid, err := node.DriverProcess()
	w.must("the driver's process", err)
	w.must("kill -9", syscall.Kill(pid, syscall.SIGKILL))
	w.eventually("another driver process", func() error {
		now, err := node.DriverProcess()
		if err == nil && now == pid {
			err = errors.New("it is still there")
		}
		return err
	})
	w.must("the driver", node.WaitDriver())
	before = w.goesOn("scratch", before)
	w.must("the reboot", node.Reboot())
	w.must("the driver", node.WaitDriver())
	w.awaitRestarted("scratch")
	w.awaitRestarted("fork")
	w.goesOn("scratch", done{})
	w.run("fork", "check", dataDir+"/mke2fs.conf", "1000000", "of the fork")
	w.deletePod("scratch")
	w.deletePod("fork")
	w.awaitInline(0)

	class := "image-" + w.namespace
	binding := storagev1.VolumeBindingWaitForFirstConsumer
	_, err = node.Client.StorageV1().StorageClasses().Create(w.ctx(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: cluster.Driver, VolumeBindingMode: &binding,
		Parameters: map[string]string{"source": "root"}}, metav1.CreateOptions{})
	w.must("a class that names the image", err)
	t.Cleanup(func() {
		w.must("that class", node.Client.StorageV1().StorageClasses().Delete(w.ctx(), class, metav1.DeleteOptions{}))
	})
	w.claim("data", class, "128Mi")
	w.pod("pod", mounts("data"))
	w.awaitPod("pod")
	if size := w.stat("pod", dataDir).FSBytes; size < 100*mebibyte {
		t.Errorf("the file system has %d bytes, asked for were 128 MiB", size)
	}
	w.stat("pod", dataDir+"/mke2fs.conf")
}

// volumeByHand is the PersistentVolume that docs/taking-over.md writes for a volume of the first node, for one claim.
func (w *world) volumeByHand(name, id, claim string, policy corev1.PersistentVolumeReclaimPolicy) {
	w.t.Helper()
	volumes := node.Client.CoreV1().PersistentVolumes()
	_, err := volumes.Create(w.ctx(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": cluster.Driver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: policy,
			StorageClassName:              "ringvol",
			ClaimRef:                      &corev1.ObjectReference{Namespace: w.namespace, Name: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: cluster.Driver, VolumeHandle: strings.TrimSpace(id), FSType: "ext4"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "topology.ringvol.dev/node",
					Operator: corev1.NodeSelectorOpIn, Values: []string{cluster.NodeName}}}}}}},
		},
	}, metav1.CreateOptions{})
	w.must("the volume by hand", err)
	w.t.Cleanup(func() { // retained, where the test has failed
		if w.t.Failed() {
			_ = volumes.Delete(w.ctx(), name, metav1.DeleteOptions{})
		}
	})
}

// What another driver has in a directory or in an image file of the node becomes a volume, as docs/taking-over.md has it.
func TestVolumeFromAnotherDriver(t *testing.T) {
	w := newWorldBeside(t)
	old := t.TempDir()
	w.must("its data", os.WriteFile(filepath.Join(old, "file"), []byte("of another driver"), 0o640))
	w.must("an owner", os.Chown(filepath.Join(old, "file"), 1234, 5678))
	archive, err := exec.Command("tar", "-C", old, "--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls", "-cf", "-", ".").Output()
	w.must("tar", err)
	image := filepath.Join(t.TempDir(), "disk.img")
	_, err = rig.Run("mke2fs", "-q", "-t", "ext4", "-d", old, image, "64M")
	w.must("an image file", err)
	device, err := rig.Run("losetup", "-f", "--show", image)
	w.must("losetup", err)
	device = strings.TrimSpace(device)
	t.Cleanup(func() { _, _ = rig.Run("losetup", "-d", device) })
	for kind, take := range map[string]func(name string) (string, error){
		"directory": func(name string) (string, error) {
			return w.toolFed(bytes.NewReader(archive), node.Node, "import", "--volume", "--size", "64Mi", "-", name)
		},
		"device": func(name string) (string, error) { return w.tool("import", "--volume", device, name) },
	} {
		name := kind + "-" + w.namespace
		id, err := take(name)
		w.must("import: "+id, err)
		w.volumeByHand(name, id, kind, corev1.PersistentVolumeReclaimRetain)
		w.claim(kind, "ringvol", "64Mi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = name })
		w.pod(kind, mounts(kind))
		w.awaitPod(kind)
		if has := w.stat(kind, dataDir+"/file"); has.UID != 1234 || has.GID != 5678 || has.Mode&0o777 != 0o640 {
			t.Errorf("from a %s: %+v", kind, has)
		}
		w.run(kind, "put", dataDir+"/more", "1000000", kind)
		w.deletePod(kind)
		w.mayBeDeleted(name)
		w.deleteClaim(kind)
	}
}

// mayBeDeleted sets the policy, once a claim has the volume: the provisioner deletes what is Released and may be deleted, whomever it is
// kept for.
func (w *world) mayBeDeleted(name string) {
	w.t.Helper()
	volumes := node.Client.CoreV1().PersistentVolumes()
	w.eventually("the volume may be deleted", func() error {
		found, err := volumes.Get(w.ctx(), name, metav1.GetOptions{})
		if err == nil && found.Status.Phase != corev1.VolumeBound {
			err = errors.New("it is " + string(found.Status.Phase))
		}
		if err != nil {
			return err
		}
		found.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		_, err = volumes.Update(w.ctx(), found, metav1.UpdateOptions{})
		return err
	})
}

// A volume that was made beside the cluster is brought into it by hand, and given from one claim to another.
func TestVolumeByHand(t *testing.T) {
	w := newWorldBeside(t)
	name := "by-hand-" + w.namespace
	id, err := w.tool("import", "--volume", "--size", fmt.Sprint(64*mebibyte), "/etc", name)
	w.must("import: "+id, err)
	volumes := node.Client.CoreV1().PersistentVolumes()
	w.volumeByHand(name, id, "first", corev1.PersistentVolumeReclaimRetain)
	named := func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = name }
	w.claim("first", "ringvol", "64Mi", named)
	w.pod("pod", mounts("first"))
	w.awaitPod("pod")
	w.stat("pod", dataDir+"/mke2fs.conf")
	w.run("pod", "put", dataDir+"/file", "1000000", "by hand")
	w.deletePod("pod")
	w.must("deleting the first claim",
		node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Delete(w.ctx(), "first", metav1.DeleteOptions{}))
	w.eventually("the volume is released", func() error {
		found, err := volumes.Get(w.ctx(), name, metav1.GetOptions{})
		if err == nil && found.Status.Phase != corev1.VolumeReleased {
			err = errors.New("it is " + string(found.Status.Phase))
		}
		if err != nil {
			return err
		}
		found.Spec.ClaimRef = &corev1.ObjectReference{Namespace: w.namespace, Name: "second"}
		_, err = volumes.Update(w.ctx(), found, metav1.UpdateOptions{})
		return err
	})
	w.claim("second", "ringvol", "64Mi", named)
	w.pod("again", mounts("second"))
	w.awaitPod("again")
	w.mayBeDeleted(name)
	w.run("again", "check", dataDir+"/file", "1000000", "by hand")
	w.deletePod("again")
	w.deleteClaim("second")
}
