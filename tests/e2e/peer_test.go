// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ringvol.dev/tests/e2e/cluster"
)

// The same hundred claims and pods in the same cluster, by ringvol and by csi-driver-host-path in turns. No bar is a test's;
// the tables are for the reader. RINGVOL_E2E_PEER is the directory of the peer's programs.
func TestHundredBesidePeer(t *testing.T) {
	dir := os.Getenv("RINGVOL_E2E_PEER")
	for _, name := range cluster.PeerPrograms {
		if _, err := os.Stat(filepath.Join(dir, name)); dir == "" || err != nil {
			t.Skip("RINGVOL_E2E_PEER names no directory with a built " + name)
		}
	}
	newWorld(t).startPeer(dir)
	text := ""
	for round := range 2 {
		for _, class := range []string{"ringvol", "peer"} {
			t.Run(fmt.Sprintf("%s %d", class, round+1), func(t *testing.T) {
				asked, reached := newWorld(t).hundred(class)
				text += class + ": " + table(asked, reached)
			})
		}
	}
	t.Log(text)
}

// startPeer runs the peer in the world's namespace as its own manifests do, with a provisioner on the node.
func (w *world) startPeer(dir string) {
	w.t.Helper()
	w.must("the peer's images", node.PeerImages(dir))
	w.must("a service account", ignoreExists(node.Client.CoreV1().ServiceAccounts(w.namespace).Create(w.ctx(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "peer"}}, metav1.CreateOptions{})))
	// All rights: what they cost is the same, and who has which is not what is compared.
	w.must("its rights", ignoreExists(node.Client.RbacV1().ClusterRoleBindings().Create(w.ctx(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "peer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "peer", Namespace: w.namespace}},
	}, metav1.CreateOptions{})))
	no := false
	w.must("its CSIDriver", ignoreExists(node.Client.StorageV1().CSIDrivers().Create(w.ctx(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: cluster.PeerDriver},
		Spec: storagev1.CSIDriverSpec{AttachRequired: &no,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}},
	}, metav1.CreateOptions{})))
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	w.must("its class", ignoreExists(node.Client.StorageV1().StorageClasses().Create(w.ctx(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "peer"}, Provisioner: cluster.PeerDriver, VolumeBindingMode: &mode,
	}, metav1.CreateOptions{})))
	_, err := node.Client.CoreV1().Pods(w.namespace).Create(w.ctx(), peerPod(), metav1.CreateOptions{})
	w.must("its pod", err)
	w.awaitPod("peer")
	w.eventually("the peer's registration", func() error {
		found, err := node.Client.StorageV1().CSINodes().Get(w.ctx(), cluster.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, driver := range found.Spec.Drivers {
			if driver.Name == cluster.PeerDriver {
				return nil
			}
		}
		return fmt.Errorf("kubelet has not registered it")
	})
}

func ignoreExists[T any](_ T, err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func peerPod() *corev1.Pod {
	const plugin = "/var/lib/kubelet/plugins/peer"
	yes := true
	both := corev1.MountPropagationBidirectional
	name := corev1.EnvVar{Name: "NODE_NAME",
		ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}
	create := corev1.HostPathDirectoryOrCreate
	volume := func(name, path string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &create}}}
	}
	socket := corev1.VolumeMount{Name: "socket", MountPath: "/csi"}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "peer"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "peer",
			Containers: []corev1.Container{{
				Name:  "driver",
				Image: cluster.PeerImage,
				Args: []string{"--drivername=" + cluster.PeerDriver, "--endpoint=unix:///csi/csi.sock",
					"--nodeid=$(NODE_NAME)", "--statedir=/csi-data-dir"},
				Env:             []corev1.EnvVar{name, {Name: "PATH", Value: "/usr/sbin:/usr/bin"}},
				SecurityContext: &corev1.SecurityContext{Privileged: &yes},
				VolumeMounts: []corev1.VolumeMount{socket, {Name: "usr", MountPath: "/usr", ReadOnly: true},
					{Name: "kubelet", MountPath: "/var/lib/kubelet", MountPropagation: &both},
					{Name: "data", MountPath: "/csi-data-dir"}, {Name: "dev", MountPath: "/dev"}},
			}, {
				Name:  "registrar",
				Image: cluster.PeerRegistrarImage,
				Args:  []string{"--csi-address=/csi/csi.sock", "--kubelet-registration-path=" + plugin + "/csi.sock"},
				VolumeMounts: []corev1.VolumeMount{socket,
					{Name: "registration", MountPath: "/registration"}},
			}, {
				Name:  "provisioner",
				Image: cluster.ProvisionerImage,
				Args: []string{"--csi-address=/csi/csi.sock", "--node-deployment", "--strict-topology",
					"--immediate-topology=false", "--timeout=60s"},
				Env:          []corev1.EnvVar{name},
				VolumeMounts: []corev1.VolumeMount{socket},
			}},
			Volumes: []corev1.Volume{volume("socket", plugin), volume("usr", "/usr"), volume("kubelet", "/var/lib/kubelet"),
				volume("registration", "/var/lib/kubelet/plugins_registry"), volume("data", "/var/lib/peer"), volume("dev", "/dev")},
		},
	}
}
