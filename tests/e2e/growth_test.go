// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"
)

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
