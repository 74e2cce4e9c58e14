// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ringvol.dev/tests/e2e/cluster"
)

// tool runs ringvol in the driver's container, as docs/kubernetes.md tells operators to.
func (w *world) tool(args ...string) (string, error) {
	return w.toolOn(node.Node, args...)
}

func (w *world) toolOn(n *cluster.Node, args ...string) (string, error) {
	return w.toolFed(nil, n, args...)
}

func (w *world) toolFed(stdin io.Reader, n *cluster.Node, args ...string) (string, error) {
	pods, err := n.DriverPods()
	if err != nil {
		return "", err
	}
	if len(pods) != 1 {
		return "", fmt.Errorf("%s has %d drivers", n.Name, len(pods))
	}
	return w.execFed(stdin, cluster.Namespace, pods[0].Name, "ringvol", append([]string{"ringvol"}, args...)...)
}

// The operator's tools find driver, pools and volumes in the driver's container without being told where, and doctor is
// content with what the chart gives the driver.
func TestToolsInTheDriverPod(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "ringvol", "64Mi")
	w.pod("pod", mounts("data"))
	w.awaitPod("pod")
	name := w.volume("data").Name

	var found struct {
		Checks []struct{ Check, Verdict, Found, Remedy string }
	}
	out, err := w.tool("doctor", "--json")
	if out == "" {
		w.must("doctor", err)
	}
	w.must("doctor's words", json.Unmarshal([]byte(out), &found))
	verdicts := map[string]string{}
	for _, check := range found.Checks {
		verdicts[check.Check] = check.Verdict
		t.Logf("%-16s %-8s %s", check.Check, check.Verdict, check.Found)
	}
	checks := []string{"kernel", "io_uring", "loop devices", "pool default", "ext4 tools", "xfs tools", "btrfs tools",
		"kubelet", "driver"}
	if node.Mode == "controller" {
		checks = append(checks, "certificate", "controller", "advertised")
	}
	for _, check := range checks {
		if verdicts[check] != "ok" {
			t.Errorf("doctor says %q of %s", verdicts[check], check)
		}
	}
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"top", "--once", "--interval", "1"}} {
		out, err := w.tool(args...)
		w.must(strings.Join(args, " "), err)
		if !strings.Contains(out, name) {
			t.Errorf("%v does not tell of %s:\n%s", args, name, out)
		}
	}
	out, err = w.tool("check")
	w.must("check: "+out, err)
}

// One of two pools is not there: the node is not ready and says why, what is in the other pool works.
func TestPoolMissing(t *testing.T) {
	w := newWorld(t)
	before := w.busyPod("busy", "ringvol")
	class := "on-missing-" + w.namespace
	binding := storagev1.VolumeBindingWaitForFirstConsumer
	_, err := node.Client.StorageV1().StorageClasses().Create(w.ctx(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: cluster.Driver, VolumeBindingMode: &binding,
		Parameters: map[string]string{"pool": "missing"}}, metav1.CreateOptions{})
	w.must("a class of the missing pool", err)
	t.Cleanup(func() {
		w.must("that class", node.Client.StorageV1().StorageClasses().Delete(w.ctx(), class, metav1.DeleteOptions{}))
		w.must("the chart as it was", node.Install())
	})
	// Both nodes at once: the first to be changed is never ready, and the other one would wait for it.
	w.must("a second pool", node.Change("node.maxUnavailable=2", "pools[0].name=default", "pools[0].hostPath="+node.Pool.Path,
		"pools[0].options=init", "pools[1].name=missing", "pools[1].hostPath=/var/lib/not-mounted"))
	w.eventually("a driver that misses a pool", func() error {
		pods, err := node.DriverPods()
		if err != nil {
			return err
		}
		if len(pods) != 1 || !strings.Contains(fmt.Sprint(pods[0].Spec.Containers[0].Env), "not-mounted") {
			return errors.New("the driver before is still there")
		}
		out, err := w.tool("doctor")
		if out == "" {
			return err
		}
		if !strings.Contains(out, "pool missing") {
			return fmt.Errorf("doctor says %s", out)
		}
		for _, condition := range pods[0].Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return errors.New("the driver's pod is ready")
	})
	w.goesOn("busy", before)
	w.worksFromAToZ("other")
	w.claim("nowhere", class, "64Mi")
	w.pod("nowhere", mounts("nowhere"))
	w.awaitEvent("nowhere", "FailedScheduling", "did not have enough free storage")
}

// The image lacks a tool: the claim's event names it.
func TestImageWithoutTool(t *testing.T) {
	w := newWorld(t)
	image, err := node.ImageWithout("usr/sbin/mkfs.btrfs")
	w.must("an image without mkfs.btrfs", err)
	t.Cleanup(func() { w.must("the chart as it was", node.Install()) })
	w.must("the image", node.Install("image.tag="+image[strings.LastIndex(image, ":")+1:]))
	w.claim("btrfs", "ringvol-btrfs", "300Mi")
	w.pod("btrfs", mounts("btrfs"))
	w.awaitEvent("btrfs", "ProvisioningFailed", "mkfs.btrfs is not installed")
	w.worksFromAToZ("other")
}
