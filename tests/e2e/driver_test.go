// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ringvol.dev/tests/e2e/cluster"
	"ringvol.dev/tests/rig"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// worksFromAToZ takes one more volume through its life.
func (w *world) worksFromAToZ(name string) {
	w.t.Helper()
	w.claim(name, "ringvol", "64Mi")
	w.pod(name, mounts(name))
	w.awaitPod(name)
	w.run(name, "put", dataDir+"/file", "1000000", name)
	w.run(name, "check", dataDir+"/file", "1000000", name)
	w.deletePod(name)
	w.deleteClaim(name)
}

// The driver's pod is deleted under a pod that does verified I/O: it sees nothing of that, and the next driver
// knows what the one before has done.
func TestDriverPodDeleted(t *testing.T) {
	w := newWorld(t)
	before := w.busyPod("busy", "ringvol-xfs")
	w.must("deleting the driver's pod", node.DeleteDriverPod())
	w.goesOn("busy", before)
	w.grow("busy", "600Mi")
	w.awaitSize("busy", "600Mi")
	w.worksFromAToZ("after")
}

// A driver that is killed leaves its sockets behind: that of kubelet's registration and its own. Its next start takes
// their place.
func TestDriverKilled(t *testing.T) {
	w := newWorld(t)
	before := w.busyPod("busy", "ringvol")
	pid, err := node.DriverProcess()
	w.must("the driver's process", err)
	w.must("kill -9", syscall.Kill(pid, syscall.SIGKILL))
	w.eventually("another driver process", func() error {
		now, err := node.DriverProcess()
		if err == nil && now == pid {
			err = fmt.Errorf("it is still there")
		}
		return err
	})
	w.must("the driver", node.WaitDriver())
	w.goesOn("busy", before)
	w.worksFromAToZ("after")
}

// A new version comes while volumes are in use.
func TestRollingUpdate(t *testing.T) {
	w := newWorld(t)
	before := w.busyPod("busy", "ringvol-btrfs")
	image, err := node.DriverImage()
	w.must("the image's name", err)
	next := "next"
	w.must("another name for the image", node.TagImage(image, image[:strings.LastIndex(image, ":")+1]+next))
	w.must("the update", node.Install("image.tag="+next))
	pods, err := node.DriverPods()
	w.must("the driver's pod", err)
	if got := pods[0].Spec.Containers[0].Image; !strings.HasSuffix(got, ":"+next) {
		t.Errorf("after the update the driver is %s", got)
	}
	w.goesOn("busy", before)
	w.worksFromAToZ("after")
	w.must("the update back", node.Install())
	w.goesOn("busy", before)
}

// A second driver on the node, as an update with a surge would start it, waits for the first and takes nothing
// away from it; when the first goes, kubelet is served again.
func TestTwoDriverPods(t *testing.T) {
	w := newWorld(t)
	before := w.busyPod("busy", "ringvol")
	pods, err := node.DriverPods()
	w.must("the driver's pod", err)
	second := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "second-driver"}, Spec: pods[0].Spec}
	second.Spec.Containers = second.Spec.Containers[:1]
	_, err = node.Client.CoreV1().Pods(cluster.Namespace).Create(w.ctx(), second, metav1.CreateOptions{})
	w.must("a second driver", err)
	gone := false
	end := func() {
		if gone {
			return
		}
		gone = true
		now := int64(0)
		w.must("ending the second driver", node.Client.CoreV1().Pods(cluster.Namespace).Delete(w.ctx(), second.Name,
			metav1.DeleteOptions{GracePeriodSeconds: &now}))
	}
	t.Cleanup(end)
	w.eventually("the second driver's process", func() error {
		pod, err := node.Client.CoreV1().Pods(cluster.Namespace).Get(w.ctx(), second.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.State.Running != nil || status.RestartCount > 0 || status.State.Terminated != nil {
				return nil
			}
		}
		return fmt.Errorf("has not started")
	})
	w.worksFromAToZ("beside")
	w.goesOn("busy", before)
	end()
	w.must("the first driver", node.WaitDriver())
	w.worksFromAToZ("after")
}

// The chart is taken away and comes back: pods go on, data stays, what was deleted meanwhile is deleted then.
func TestUninstallReinstall(t *testing.T) {
	w := newWorld(t)
	before := w.busyPod("busy", "ringvol-xfs")
	w.claim("idle", "ringvol", "64Mi")
	w.pod("idle", mounts("idle"))
	w.awaitPod("idle")
	w.run("idle", "put", dataDir+"/file", "1000000", "idle")
	w.deletePod("idle")
	w.claim("unwanted", "ringvol", "64Mi")
	w.pod("unwanted", mounts("unwanted"))
	w.awaitPod("unwanted")
	w.deletePod("unwanted")
	unwanted := w.volume("unwanted")

	w.must("uninstalling", node.Uninstall())
	before = w.goesOn("busy", before)
	w.must("deleting a claim", node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Delete(w.ctx(), "unwanted",
		metav1.DeleteOptions{}))
	w.must("installing again", node.Install())
	w.goesOn("busy", before)
	w.pod("idle", mounts("idle"))
	w.awaitPod("idle")
	w.run("idle", "check", dataDir+"/file", "1000000", "idle")
	w.volumeGone(unwanted.Name)
}

// The target directory of a pod's volume is unmounted and removed by hand: the pod can be deleted all the same, and its
// volume too.
func TestTargetRemovedByHand(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "ringvol", "64Mi")
	w.pod("pod", mounts("data"))
	pod := w.awaitPod("pod")
	target := filepath.Join("/var/lib/kubelet/pods", string(pod.UID), "volumes/kubernetes.io~csi", w.volume("data").Name, "mount")
	_, err := rig.Run("umount", target)
	w.must("unmounting by hand", err)
	w.must("removing by hand", os.Remove(target))
	w.deletePod("pod")
	w.deleteClaim("data")
}

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
