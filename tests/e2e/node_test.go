// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ringvol.dev/tests/e2e/cluster"
)

// kubelet is started again: pods do not notice, and it finds the driver again.
func TestKubeletRestarted(t *testing.T) {
	w := newWorld(t)
	before := w.busyPod("busy", "ringvol")
	w.must("stopping kubelet", node.Kubelet.Stop())
	w.must("starting kubelet", node.Kubelet.Start())
	w.must("the node", node.WaitNode())
	w.must("the driver", node.WaitDriver())
	w.goesOn("busy", before)
	w.worksFromAToZ("after")
}

// A pod and its claim are deleted by force while kubelet is away. kubelet, when it is back, knows of the mounts by
// their traces on disk alone; the volume is unstaged and deleted in the end.
func TestPodForgottenByKubelet(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "ringvol", "64Mi")
	w.pod("pod", mounts("data"))
	w.awaitPod("pod")
	volume := w.volume("data")
	w.must("killing kubelet", node.Kubelet.Kill())
	now := int64(0)
	w.must("deleting the pod by force", node.Client.CoreV1().Pods(w.namespace).Delete(w.ctx(), "pod",
		metav1.DeleteOptions{GracePeriodSeconds: &now}))
	w.must("deleting the claim", node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Delete(w.ctx(), "data",
		metav1.DeleteOptions{}))
	w.must("starting kubelet", node.Kubelet.Start())
	w.must("the node", node.WaitNode())
	w.volumeGone(volume.Name)
	w.worksFromAToZ("after")
}

// The node goes down without a word and comes up again: no mounts, no devices. Pods find their data, and work.
func TestNodeRebooted(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "ringvol-xfs", "320Mi")
	w.pod("pod", mounts("data"))
	w.awaitPod("pod")
	w.run("pod", "put", dataDir+"/file", "30000000", "reboot")
	w.busyPod("busy", "ringvol")
	w.claim("device", "ringvol", "64Mi", asBlock)
	w.pod("device", device("device"))
	w.awaitPod("device")
	w.run("device", "put", dataDevice, "30000000", "reboot")

	w.must("the reboot", node.Reboot())
	w.must("the driver", node.WaitDriver())
	for _, pod := range []string{"pod", "busy", "device"} {
		w.awaitRestarted(pod)
	}
	w.run("pod", "check", dataDir+"/file", "30000000", "reboot")
	w.run("device", "check", dataDevice, "30000000", "reboot")
	w.goesOn("busy", done{})
	w.worksFromAToZ("after")
}

// awaitRestarted waits for a pod whose container has been started once more.
func (w *world) awaitRestarted(name string) {
	w.t.Helper()
	w.eventually("pod "+name+" started again", func() error {
		pod, err := node.Client.CoreV1().Pods(w.namespace).Get(w.ctx(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.RestartCount == 0 {
				return errors.New("it has not been")
			}
		}
		return cluster.Unready(pod)
	})
}
