// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const mebibyte = 1 << 20

// A claim becomes a volume, a pod writes to it, and the next pod finds what was written.
func TestVolumeKeepsData(t *testing.T) {
	for _, class := range []string{"ringvol", "ringvol-xfs", "ringvol-btrfs"} {
		t.Run(class, func(t *testing.T) {
			w := newWorldBeside(t)
			w.claim("data", class, "320Mi")
			w.pod("writer", mounts("data"))
			w.awaitPod("writer")
			w.run("writer", "put", dataDir+"/file", "20000000", class)
			if size := w.stat("writer", dataDir).FSBytes; size < 250*mebibyte || size > 320*mebibyte {
				t.Errorf("the file system has %d bytes, asked for were 320 MiB", size)
			}
			w.deletePod("writer")
			w.pod("reader", mounts("data"))
			w.awaitPod("reader")
			w.run("reader", "check", dataDir+"/file", "20000000", class)
			if out, err := w.try("reader", "check", dataDir+"/file", "20000000", "another seed"); err == nil {
				t.Errorf("any data will do: %q", out)
			}
		})
	}
}

// A raw device, as large as asked for, that keeps what is written to it.
func TestBlockVolume(t *testing.T) {
	w := newWorldBeside(t)
	w.claim("data", "ringvol", "64Mi", asBlock)
	w.pod("writer", device("data"))
	w.awaitPod("writer")
	if size := w.stat("writer", dataDevice).DeviceBytes; size != 64*mebibyte {
		t.Errorf("the device has %d bytes, asked for were 64 MiB", size)
	}
	w.run("writer", "put", dataDevice, "50000000", "block")
	w.deletePod("writer")
	w.pod("reader", device("data"))
	w.awaitPod("reader")
	w.run("reader", "check", dataDevice, "50000000", "block")
}

// kubelet gives the volume to the pod's group, so that a process without rights can write to it.
func TestGroupOfVolume(t *testing.T) {
	const user, group = int64(65532), int64(4711)
	w := newWorldBeside(t)
	w.claim("data", "ringvol", "64Mi")
	w.pod("pod", mounts("data"), func(pod *corev1.Pod) {
		id, gid := user, group
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &id, RunAsGroup: &id, FSGroup: &gid}
	})
	w.awaitPod("pod")
	if s := w.stat("pod", dataDir); int64(s.GID) != group || s.Mode&0o2070 != 0o2070 {
		t.Errorf("the volume belongs to group %d with mode %o", s.GID, s.Mode)
	}
	w.run("pod", "put", dataDir+"/file", "1000000", "group")
	if s := w.stat("pod", dataDir+"/file"); int64(s.UID) != user || int64(s.GID) != group {
		t.Errorf("a new file belongs to %d:%d", s.UID, s.GID)
	}
}

// ReadWriteOncePod: the second pod waits until the first is gone.
func TestOnePodOnly(t *testing.T) {
	w := newWorldBeside(t)
	w.claim("data", "ringvol", "64Mi", onePod)
	w.pod("first", mounts("data"))
	w.awaitPod("first")
	w.pod("second", mounts("data"))
	w.awaitEvent("second", "FailedScheduling", "ReadWriteOncePod")
	w.deletePod("first")
	w.awaitPod("second")
}

// A volume that is written in the pod's own specification, and goes with it.
func TestEphemeralVolume(t *testing.T) {
	w := newWorldBeside(t)
	w.pod("pod", func(pod *corev1.Pod) {
		template := &corev1.PersistentVolumeClaimTemplate{Spec: claimObject("", "ringvol", "64Mi").Spec}
		addVolume(pod, corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}})
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: dataDir}}
	})
	w.awaitPod("pod")
	w.run("pod", "put", dataDir+"/file", "1000000", "ephemeral")
	volume := w.volume("pod-data")
	w.deletePod("pod")
	w.volumeGone(volume.Name)
}

// Each replica of a StatefulSet has a volume of its own and finds it again.
func TestStatefulSet(t *testing.T) {
	const replicas = 3
	w := newWorldBeside(t)
	count := int32(replicas)
	labels := map[string]string{"app": "set"}
	pod := podObject("", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: dataDir}}
	})
	pod.Labels = labels
	_, err := node.Client.AppsV1().StatefulSets(w.namespace).Create(w.ctx(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "set"},
		Spec: appsv1.StatefulSetSpec{
			Replicas:             &count,
			Selector:             &metav1.LabelSelector{MatchLabels: labels},
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			Template:             corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*claimObject("data", "ringvol", "64Mi")},
		}}, metav1.CreateOptions{})
	w.must("the set", err)
	var before [replicas]*corev1.Pod
	for i := range replicas {
		name := fmt.Sprintf("set-%d", i)
		before[i] = w.awaitPod(name)
		w.run(name, "put", dataDir+"/file", "3000000", name)
	}
	for i := range replicas {
		w.must("deleting a replica", node.Client.CoreV1().Pods(w.namespace).Delete(w.ctx(), before[i].Name, metav1.DeleteOptions{}))
	}
	for i := range replicas {
		name := before[i].Name
		w.eventually("another "+name, func() error {
			pod, err := node.Client.CoreV1().Pods(w.namespace).Get(w.ctx(), name, metav1.GetOptions{})
			if err == nil && pod.UID == before[i].UID {
				err = fmt.Errorf("it is the same pod still")
			}
			return err
		})
		w.awaitPod(name)
		w.run(name, "check", dataDir+"/file", "3000000", name)
	}
}

func (w *world) grow(claim, size string) {
	w.t.Helper()
	patch := fmt.Sprintf(`{"spec": {"resources": {"requests": {"storage": %q}}}}`, size)
	_, err := node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Patch(w.ctx(), claim, types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{})
	w.must("growing "+claim, err)
}

func (w *world) awaitSize(claim, size string) {
	w.t.Helper()
	want := resource.MustParse(size)
	w.eventually("claim "+claim+" of "+size, func() error {
		found, err := node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Get(w.ctx(), claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if has := found.Status.Capacity[corev1.ResourceStorage]; has.Cmp(want) != 0 {
			return fmt.Errorf("it has %s, conditions %v", has.String(), found.Status.Conditions)
		}
		return nil
	})
}

// A volume grows under a pod that writes to it. (XFS: for ext4 the kernel asks for CAP_SYS_RESOURCE, which
// not every machine that runs this has.)
func TestGrowInUse(t *testing.T) {
	w := newWorldBeside(t)
	before := w.busyPod("busy", "ringvol-xfs")
	was := w.stat("busy", dataDir).FSBytes
	w.grow("busy", "600Mi")
	w.awaitSize("busy", "600Mi")
	if is := w.stat("busy", dataDir).FSBytes; is < was+190*mebibyte {
		t.Errorf("the file system had %d bytes and has %d", was, is)
	}
	w.goesOn("busy", before)
}

// A device grows under its pod.
func TestGrowBlockVolume(t *testing.T) {
	w := newWorldBeside(t)
	w.claim("data", "ringvol", "64Mi", asBlock)
	w.pod("pod", device("data"))
	w.awaitPod("pod")
	w.run("pod", "put", dataDevice, "60000000", "grow")
	w.grow("data", "128Mi")
	w.awaitSize("data", "128Mi")
	if is := w.stat("pod", dataDevice).DeviceBytes; is != 128*mebibyte {
		t.Errorf("the device has %d bytes", is)
	}
	w.run("pod", "check", dataDevice, "60000000", "grow")
}

// A claim that asks for more than there is waits, and the scheduler says why; one that fits is not disturbed.
func TestNoRoom(t *testing.T) {
	w := newWorldBeside(t)
	capacities, err := node.Client.StorageV1().CSIStorageCapacities("").List(w.ctx(), metav1.ListOptions{})
	w.must("capacities", err)
	classes := map[string]bool{}
	for _, capacity := range capacities.Items {
		if capacity.Capacity != nil && capacity.Capacity.Sign() > 0 {
			classes[capacity.StorageClassName] = true
		}
	}
	if !classes["ringvol"] || !classes["ringvol-xfs"] {
		t.Errorf("no room is told of for some classes: %v", classes)
	}
	w.claim("large", "ringvol", "10Ti")
	w.pod("waits", mounts("large"))
	w.awaitEvent("waits", "FailedScheduling", "did not have enough free storage")
	w.claim("small", "ringvol", "64Mi")
	w.pod("runs", mounts("small"))
	w.awaitPod("runs")
}
