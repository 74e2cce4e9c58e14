// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ringvol.dev/tests/e2e/cluster"
)

// Where a pod has its volume: a directory, or a device.
const (
	dataDir    = "/data"
	dataDevice = "/dev/data"
)

// podOption changes a pod before it is made, claimOption a claim.
type (
	podOption   func(*corev1.Pod)
	claimOption func(*corev1.PersistentVolumeClaim)
)

// podObject is a pod on the first node that runs the workload, which waits if it is told nothing else.
func podObject(name string, options ...podOption) *corev1.Pod {
	grace := int64(2)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			NodeSelector:                  map[string]string{corev1.LabelHostname: cluster.NodeName},
			Containers: []corev1.Container{{
				Name:    "workload",
				Image:   cluster.WorkloadImage,
				Command: []string{"/workload", "pause"},
			}},
		},
	}
	for _, option := range options {
		option(pod)
	}
	return pod
}

// on has the pod run on a node; "": wherever the scheduler wants it.
func on(name string) podOption {
	return func(pod *corev1.Pod) {
		if pod.Spec.NodeSelector = nil; name != "" {
			pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name}
		}
	}
}

// command is what the pod's workload is told.
func command(args ...string) podOption {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Command = append([]string{"/workload"}, args...) }
}

// mounts gives the pod a claim's volume at dataDir.
func mounts(claim string) podOption {
	return func(pod *corev1.Pod) {
		addVolume(pod, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: "data", MountPath: dataDir})
	}
}

// device gives the pod a claim's volume as dataDevice.
func device(claim string) podOption {
	return func(pod *corev1.Pod) {
		addVolume(pod, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}})
		pod.Spec.Containers[0].VolumeDevices = append(pod.Spec.Containers[0].VolumeDevices,
			corev1.VolumeDevice{Name: "data", DevicePath: dataDevice})
	}
}

func addVolume(pod *corev1.Pod, source corev1.VolumeSource) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: source})
}

// claimObject asks for a file system of a size.
func claimObject(name, class, size string, options ...claimOption) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	for _, option := range options {
		option(claim)
	}
	return claim
}

// asBlock asks for a device instead.
func asBlock(claim *corev1.PersistentVolumeClaim) {
	mode := corev1.PersistentVolumeBlock
	claim.Spec.VolumeMode = &mode
}

// onePod asks for a volume that only one pod may use.
func onePod(claim *corev1.PersistentVolumeClaim) {
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
}

// from asks for a copy of something in the same namespace.
func from(kind, name string) claimOption {
	return func(claim *corev1.PersistentVolumeClaim) {
		source := &corev1.TypedLocalObjectReference{Kind: kind, Name: name}
		if kind == "VolumeSnapshot" {
			group := "snapshot.storage.k8s.io"
			source.APIGroup = &group
		}
		claim.Spec.DataSource = source
	}
}

func (w *world) claim(name, class, size string, options ...claimOption) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim, err := node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Create(w.ctx(),
		claimObject(name, class, size, options...), metav1.CreateOptions{})
	w.must("claim "+name, err)
	return claim
}

func (w *world) pod(name string, options ...podOption) {
	w.t.Helper()
	_, err := node.Client.CoreV1().Pods(w.namespace).Create(w.ctx(), podObject(name, options...), metav1.CreateOptions{})
	w.must("pod "+name, err)
}
