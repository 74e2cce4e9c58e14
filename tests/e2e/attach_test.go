// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ringvol.dev/tests/e2e/cluster"
	"ringvol.dev/tests/rig"
)

// What external-attacher marks objects with.
var attacherFinalizer = "external-attacher/" + strings.ReplaceAll(cluster.Driver, ".", "-")

// attachments are the driver's VolumeAttachments of a volume; "": of all volumes.
func (w *world) attachments(volume string) ([]storagev1.VolumeAttachment, error) {
	found, err := node.Client.StorageV1().VolumeAttachments().List(w.ctx(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found.Items, func(a storagev1.VolumeAttachment) bool {
		of := a.Spec.Source.PersistentVolumeName
		return a.Spec.Attacher != cluster.Driver || volume != "" && (of == nil || *of != volume)
	}), nil
}

// dialDriver connects to the driver of the first node.
func dialDriver() (*rig.Client, error) {
	return rig.Dial("/var/lib/kubelet/plugins/" + cluster.Driver + "/csi.sock")
}

// published are the nodes that the driver of the first node says a volume of its is attached to.
func published(handle string) ([]string, error) {
	client, err := dialDriver()
	if err != nil {
		return nil, err
	}
	defer client.Conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := client.ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return nil, err
	}
	for _, entry := range answer.Entries {
		if entry.Volume.VolumeId == handle {
			return entry.Status.PublishedNodeIds, nil
		}
	}
	return nil, fmt.Errorf("volume %s is not in the list", handle)
}

// awaitAttached waits until a claim's volume is attached to a node of its own, and nowhere else.
func (w *world) awaitAttached(claim, to string) {
	w.t.Helper()
	volume := w.volume(claim)
	w.eventually("claim "+claim+" attached to "+to, func() error {
		found, err := w.attachments(volume.Name)
		if err != nil {
			return err
		}
		if len(found) != 1 || found[0].Spec.NodeName != to || !found[0].Status.Attached || found[0].DeletionTimestamp != nil {
			return fmt.Errorf("its attachments: %s", explained(found))
		}
		if to != cluster.NodeName {
			return nil
		}
		if nodes, err := published(volume.Spec.CSI.VolumeHandle); err != nil || !slices.Equal(nodes, []string{to}) {
			return fmt.Errorf("the driver says %q: %v", nodes, err)
		}
		return nil
	})
}

// awaitDetached waits until a volume of the first node is attached nowhere, whoever is asked.
func (w *world) awaitDetached(claim string) {
	w.t.Helper()
	volume := w.volume(claim)
	w.eventually("claim "+claim+" detached", func() error {
		if found, err := w.attachments(volume.Name); err != nil || len(found) != 0 {
			return fmt.Errorf("its attachments: %s (%v)", explained(found), err)
		}
		if nodes, err := published(volume.Spec.CSI.VolumeHandle); err != nil || len(nodes) != 0 {
			return fmt.Errorf("the driver says %q: %v", nodes, err)
		}
		return nil
	})
}

// explained is what attachments say of themselves.
func explained(attachments []storagev1.VolumeAttachment) string {
	var said []string
	for _, a := range attachments {
		status, err := json.Marshal(a.Status)
		said = append(said, fmt.Sprintf("%s to %s: %s, deleted %v (%v)", a.Name, a.Spec.NodeName, status, a.DeletionTimestamp, err))
	}
	return strings.Join(said, "; ")
}

func (w *world) driverObject() *storagev1.CSIDriver {
	w.t.Helper()
	driver, err := node.Client.StorageV1().CSIDrivers().Get(w.ctx(), cluster.Driver, metav1.GetOptions{})
	w.must("the CSIDriver object", err)
	return driver
}

// attachOn turns attaching on, as an operator does. However the test ends, the chart is as it was before.
func (w *world) attachOn() {
	w.t.Helper()
	before := w.driverObject()
	w.t.Cleanup(func() {
		if *w.driverObject().Spec.AttachRequired {
			w.must("attaching ends", node.Install("attach.enabled=true", "attach.ending=true"))
			w.noAttachments()
		}
		w.takeFinalizers()
		w.must("the chart as it was", node.Install())
	})
	w.must("attaching", node.Install("attach.enabled=true"))
	if now := w.driverObject(); !*now.Spec.AttachRequired || now.UID == before.UID {
		w.t.Errorf("the CSIDriver object is %s as before: %+v", now.UID, now.Spec)
	}
}

// noAttachments waits until no volume is attached. What kubelet mounted while attaching was on is in use to the attach/detach controller for
// as long as its pod runs; its attachment is taken away by hand, as docs/attach.md has it.
func (w *world) noAttachments() {
	w.t.Helper()
	w.eventually("no attachment but of what is in use", func() error {
		found, err := w.attachments("")
		if err != nil {
			return err
		}
		return w.deleteInUse(found)
	})
	w.eventually("no attachment", func() error {
		found, err := w.attachments("")
		if err == nil && len(found) > 0 {
			err = errors.New(explained(found))
		}
		return err
	})
}

// deleteInUse deletes attachments if all of them are of volumes that their nodes report in use.
func (w *world) deleteInUse(attachments []storagev1.VolumeAttachment) error {
	for _, a := range attachments {
		found, err := node.Client.CoreV1().Nodes().Get(w.ctx(), a.Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		volume, err := node.Client.CoreV1().PersistentVolumes().Get(w.ctx(), *a.Spec.Source.PersistentVolumeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(found.Status.VolumesInUse, func(name corev1.UniqueVolumeName) bool {
			return strings.HasSuffix(string(name), "^"+volume.Spec.CSI.VolumeHandle)
		}) {
			return errors.New(explained(attachments))
		}
	}
	for _, a := range attachments {
		err := node.Client.StorageV1().VolumeAttachments().Delete(w.ctx(), a.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// takeFinalizers takes from volumes what their attacher has put on them, as docs/attach.md has it.
func (w *world) takeFinalizers() {
	w.t.Helper()
	volumes, err := node.Client.CoreV1().PersistentVolumes().List(w.ctx(), metav1.ListOptions{})
	w.must("volumes", err)
	for _, volume := range volumes.Items {
		at := slices.Index(volume.Finalizers, attacherFinalizer)
		if at < 0 {
			continue
		}
		_, err := node.Client.CoreV1().PersistentVolumes().Patch(w.ctx(), volume.Name, types.JSONPatchType,
			fmt.Appendf(nil, `[{"op": "test", "path": "/metadata/finalizers/%[1]d", "value": %[2]q}, {"op": "remove", "path": "/metadata/finalizers/%[1]d"}]`,
				at, attacherFinalizer), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			w.must("the finalizer of "+volume.Name, err)
		}
	}
}

// offAgain turns attaching off under running pods, in the two upgrades that it takes, and sees the chart refuse every shorter way.
func (w *world) offAgain() {
	w.t.Helper()
	refused := func(says string) {
		w.t.Helper()
		if err := node.Change(); err == nil || !strings.Contains(err.Error(), says) {
			w.t.Errorf("turned off all the same, %q is not said: %v", says, err)
		}
	}
	refused("in two upgrades")
	w.must("attaching ends", node.Install("attach.enabled=true", "attach.ending=true"))
	if *w.driverObject().Spec.AttachRequired {
		w.t.Error("attaching has not ended")
	}
	w.noAttachments()
	refused("has the finalizer " + attacherFinalizer)
	w.takeFinalizers()
	w.must("attaching is off", node.Install())
}

// Attaching is turned on and off again under pods that do verified I/O. Their volumes get attachments and lose them; between the two,
// volumes are attached for their pods by the attach/detach controller and external-attacher, and detached after them.
func TestAttaching(t *testing.T) {
	needsController(t)
	w := newWorld(t)
	before := w.busyPod("busy", "ringvol-xfs")
	w.claim("old", "ringvol", "64Mi")
	w.pod("old", mounts("old"))
	w.awaitPod("old")
	w.run("old", "put", dataDir+"/file", "1000000", "old")

	w.attachOn()
	before = w.goesOn("busy", before)
	w.awaitAttached("busy", cluster.NodeName)
	w.awaitAttached("old", cluster.NodeName)
	w.deletePod("old")
	w.awaitDetached("old")
	w.pod("again", mounts("old"))
	w.awaitPod("again")
	w.run("again", "check", dataDir+"/file", "1000000", "old")
	w.awaitAttached("old", cluster.NodeName)

	// Two pods of one node share an attachment.
	w.pod("beside", mounts("old"))
	w.awaitPod("beside")
	w.deletePod("again")
	w.awaitAttached("old", cluster.NodeName)
	w.run("beside", "check", dataDir+"/file", "1000000", "old")

	w.claim("device", "ringvol", "64Mi", asBlock)
	w.pod("device", device("device"))
	w.awaitPod("device")
	w.awaitAttached("device", cluster.NodeName)
	w.deletePod("device")
	w.deleteClaim("device")

	// What is attached grows, and outlives its driver.
	w.grow("busy", "600Mi")
	w.awaitSize("busy", "600Mi")
	w.must("deleting the driver's pod", node.DeleteDriverPod())
	w.awaitAttached("busy", cluster.NodeName)
	before = w.goesOn("busy", before)
	w.worksFromAToZ("new")

	w.offAgain()
	before = w.goesOn("busy", before)
	w.deletePod("beside")
	w.deleteClaim("old")
	w.worksFromAToZ("after")
	w.goesOn("busy", before)
}

// cordoned keeps new pods off a node, or lets them come again.
func (w *world) cordoned(name string, is bool) {
	w.t.Helper()
	_, err := node.Client.CoreV1().Nodes().Patch(w.ctx(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec": {"unschedulable": %v}}`, is), metav1.PatchOptions{})
	w.must("cordon", err)
}

// outOfService says of a node that it has failed for good, or takes that back.
func (w *world) outOfService(name string, is bool) {
	w.t.Helper()
	w.eventually("the taint of "+name, func() error {
		found, err := node.Client.CoreV1().Nodes().Get(w.ctx(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found.Spec.Taints = slices.DeleteFunc(found.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeOutOfService })
		if is {
			found.Spec.Taints = append(found.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown",
				Effect: corev1.TaintEffectNoExecute})
		}
		_, err = node.Client.CoreV1().Nodes().Update(w.ctx(), found, metav1.UpdateOptions{})
		return err
	})
}

// A volume stays where it is: a pod waits for its node while that is cordoned. A node fails and is said to be out of service: its pods
// go, and their volumes are detached by force as far as the control plane goes. The driver takes that note back only once its node answers
// again, and then the pod finds its data.
func TestAttachedNodeFails(t *testing.T) {
	needsController(t)
	w := newWorld(t)
	w.attachOn()
	w.claim("stays", "ringvol", "64Mi")
	w.pod("stays", mounts("stays"), on(cluster.OtherName))
	w.awaitPod("stays")
	w.awaitAttached("stays", cluster.OtherName)
	w.run("stays", "put", dataDir+"/file", "1000000", "stays")
	w.deletePod("stays")

	w.cordoned(cluster.OtherName, true)
	uncordoned := false
	uncordon := func() {
		if !uncordoned {
			uncordoned = true
			w.cordoned(cluster.OtherName, false)
		}
	}
	t.Cleanup(uncordon)
	w.pod("stays", mounts("stays"), on(""))
	w.awaitEvent("stays", "FailedScheduling", "affinity", "unschedulable")
	uncordon()
	if pod := w.awaitPod("stays"); pod.Spec.NodeName != cluster.OtherName {
		t.Errorf("the pod is on %s", pod.Spec.NodeName)
	}
	w.awaitAttached("stays", cluster.OtherName)

	w.must("cutting the node off", node.Other.Cut())
	back := false
	mend := func() {
		if !back {
			back = true
			w.must("the node's network", node.Other.Mend())
			w.outOfService(cluster.OtherName, false)
			w.must("the node", node.Other.WaitNode())
			w.must("its driver", node.Other.WaitDriver())
		}
	}
	t.Cleanup(mend)
	w.eventually("the node is not ready", w.notReady)
	w.outOfService(cluster.OtherName, true)
	w.eventually("the pod gone, its volume being detached", func() error {
		if _, err := node.Client.CoreV1().Pods(w.namespace).Get(w.ctx(), "stays", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod: %v", err)
		}
		found, err := w.attachments(w.volume("stays").Name)
		if err != nil {
			return err
		}
		if len(found) != 1 || found[0].DeletionTimestamp == nil || found[0].Status.DetachError == nil ||
			!strings.Contains(found[0].Status.DetachError.Message, "Unavailable") {
			return fmt.Errorf("attachments: %s", explained(found))
		}
		return nil
	})
	w.worksFromAToZ("meanwhile")
	mend()
	w.awaitDetachedElsewhere("stays")
	w.pod("stays", mounts("stays"), on(""))
	w.awaitPod("stays")
	w.awaitAttached("stays", cluster.OtherName)
	w.run("stays", "check", dataDir+"/file", "1000000", "stays")
	w.deletePod("stays")
	w.deleteClaim("stays")
}

// awaitDetachedElsewhere is awaitDetached for a volume of another node, whose driver is not asked.
func (w *world) awaitDetachedElsewhere(claim string) {
	w.t.Helper()
	volume := w.volume(claim)
	w.eventually("claim "+claim+" detached", func() error {
		if found, err := w.attachments(volume.Name); err != nil || len(found) != 0 {
			return fmt.Errorf("its attachments: %s (%v)", explained(found), err)
		}
		return nil
	})
}

// notReady is nil once the control plane takes the other node for failed.
func (w *world) notReady() error {
	found, err := node.Client.CoreV1().Nodes().Get(w.ctx(), cluster.OtherName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range found.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return nil
		}
	}
	return errors.New("it is")
}

// A node's kernel has no nvmet: a volume of a class with attach: remote is used on its own node like any other, and a pod elsewhere waits
// with an event that names the module. The nodes' pods have their nodes' network meanwhile, and are found by the controllers there.
func TestAttachWithoutNvmet(t *testing.T) {
	needsController(t)
	if _, err := os.Stat("/sys/kernel/config/nvmet"); err == nil {
		t.Skip("this kernel has nvmet")
	}
	w := newWorld(t)
	w.attachOn()
	const class = "ringvol-anywhere"
	w.must("attaching to other nodes", node.Install("attach.enabled=true", "attach.remote.enabled=true",
		"storageClasses[0].name="+class, "storageClasses[0].parameters.attach=remote"))
	pods, err := node.DriverPods()
	w.must("the driver's pod", err)
	if !pods[0].Spec.HostNetwork || pods[0].Status.PodIP != pods[0].Status.HostIP {
		t.Errorf("the driver has the address %s on the node %s", pods[0].Status.PodIP, pods[0].Status.HostIP)
	}
	w.claim("data", class, "64Mi")
	w.pod("owner", mounts("data"))
	w.awaitPod("owner")
	w.run("owner", "put", dataDir+"/file", "1000000", "data")
	w.awaitAttached("data", cluster.NodeName)
	if affinity := w.volume("data").Spec.NodeAffinity; affinity != nil {
		t.Errorf("the volume is bound to %v", affinity)
	}
	w.deletePod("owner")
	w.awaitDetached("data")
	w.pod("elsewhere", mounts("data"), on(cluster.OtherName))
	w.awaitEvent("elsewhere", "FailedAttachVolume", "modprobe nvmet")
	w.deletePod("elsewhere")
	w.awaitDetached("data")
	w.pod("again", mounts("data"))
	w.awaitPod("again")
	w.run("again", "check", dataDir+"/file", "1000000", "data")
	w.deletePod("again")
	w.deleteClaim("data")
}

// Pods that run where their volumes are not. The nodes here share a kernel, and its NVMe client reconnects from the machine's own network,
// which is none of theirs.
func TestAttachedElsewhere(t *testing.T) {
	needsController(t)
	for _, name := range []string{"a pod on the other node", "a StatefulSet whose node is cordoned", "a device written by two nodes",
		"an owner that is killed", "growth"} {
		t.Run(name, func(t *testing.T) {
			t.Skip("needs machines whose kernels have nvmet-tcp and nvme-tcp; drivers do it between guests (docs/vm.md)")
		})
	}
}
