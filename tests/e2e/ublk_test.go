// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ringvol.dev/tests/e2e/cluster"
)

func ublkPod() (*corev1.Pod, error) {
	pods, err := node.Client.CoreV1().Pods(cluster.Namespace).List(context.Background(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=ublkd"})
	if err != nil {
		return nil, err
	}
	if len(pods.Items) != 1 {
		return nil, fmt.Errorf("%d pods of the data process", len(pods.Items))
	}
	return &pods.Items[0], cluster.Unready(&pods.Items[0])
}

// The pod of the data process is deleted under a pod that does verified I/O on a ublk device, then the driver's:
// what is in flight waits and goes on.
func TestUblkPodDeleted(t *testing.T) {
	if _, err := os.Stat("/dev/ublk-control"); err != nil {
		t.Skipf("this kernel has no ublk (%v)", err)
	}
	w := newWorld(t)
	t.Cleanup(func() { w.must("the chart without ublk", node.Install()) })
	w.must("the chart with ublk", node.Install("ublk.enabled=true"))
	class := "ublk-" + w.namespace
	binding, growing := storagev1.VolumeBindingWaitForFirstConsumer, true
	_, err := node.Client.StorageV1().StorageClasses().Create(w.ctx(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: cluster.Driver, VolumeBindingMode: &binding,
		AllowVolumeExpansion: &growing, Parameters: map[string]string{"device": "ublk"}}, metav1.CreateOptions{})
	w.must("a class of ublk devices", err)
	t.Cleanup(func() {
		w.must("that class", node.Client.StorageV1().StorageClasses().Delete(w.ctx(), class, metav1.DeleteOptions{}))
	})

	before := w.busyPod("busy", class)
	pod, err := ublkPod()
	w.must("the data process's pod", err)
	w.must("deleting it", node.Client.CoreV1().Pods(cluster.Namespace).Delete(w.ctx(), pod.Name, metav1.DeleteOptions{}))
	w.eventually("another one", func() error {
		now, err := ublkPod()
		if err == nil && now.UID == pod.UID {
			err = errors.New("it is the same")
		}
		return err
	})
	before = w.goesOn("busy", before)
	w.must("deleting the driver's pod", node.DeleteDriverPod())
	w.goesOn("busy", before)
	// The data process goes with the chart's next change, and no volume may be left to it.
	w.deletePod("busy")
	w.deleteClaim("busy")
}
