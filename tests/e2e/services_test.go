// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ringvol.dev/tests/e2e/cluster"
)

// What the scheduler is told of a node follows what the driver says.
func TestNodeAllocatable(t *testing.T) {
	w := newWorld(t)
	count := func() (int32, error) {
		found, err := node.Client.StorageV1().CSINodes().Get(w.ctx(), cluster.NodeName, metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		for _, driver := range found.Spec.Drivers {
			if driver.Name == cluster.Driver && driver.Allocatable != nil && driver.Allocatable.Count != nil {
				return *driver.Allocatable.Count, nil
			}
		}
		return 0, errors.New("the node says nothing of it")
	}
	is := func(what string, want int32) {
		t.Helper()
		w.eventually(what, func() error {
			if got, err := count(); err != nil || got != want {
				return fmt.Errorf("the node can have %d volumes, not %d (%v)", got, want, err)
			}
			return nil
		})
	}
	driver, err := node.Client.StorageV1().CSIDrivers().Get(w.ctx(), cluster.Driver, metav1.GetOptions{})
	w.must("the driver's object", err)
	if period := driver.Spec.NodeAllocatableUpdatePeriodSeconds; period == nil || *period != 60 {
		t.Errorf("kubelet asks for it every %v s", period)
	}
	is("as many as there are numbers", 1<<20)
	w.must("a bound", node.Install("node.maxVolumes=100"))
	t.Cleanup(func() {
		w.must("no bound", node.Install())
		is("as before", 1<<20)
	})
	is("the bound", 100)
}

// goDown has a mounted XFS or ext4 refuse everything from now on, as after an error of its disk.
func goDown(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const goingDown, noLog = 0x8004587d, 2
	how := uint32(noLog)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), goingDown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		return errno
	}
	return nil
}

// A volume that is not well any more: its claim's events say so, and say when it is well again.
func TestHealthMonitor(t *testing.T) {
	needsController(t)
	if os.Getenv(cluster.MonitorProgram) == "" {
		t.Skip(cluster.MonitorProgram + " names no csi-external-health-monitor-controller")
	}
	w := newWorldBeside(t)
	w.claim("data", "ringvol-xfs", "400Mi")
	w.pod("pod", mounts("data"))
	pod := w.awaitPod("pod")
	volume := w.volume("data")
	w.must("the file system goes down", goDown(filepath.Join("/var/lib/kubelet/pods", string(pod.UID),
		"volumes/kubernetes.io~csi", volume.Name, "mount")))
	w.awaitEvent("data", "VolumeConditionAbnormal", "shut down")
	w.deletePod("pod")
	w.pod("again", mounts("data"))
	w.awaitPod("again")
	w.awaitEvent("data", "VolumeConditionNormal")
}

// attributes asks for a class of attributes.
func attributes(class string) claimOption {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeAttributesClassName = &class }
}

// awaitAttributes waits until a claim's volume has the class.
func (w *world) awaitAttributes(claim, class string) {
	w.t.Helper()
	w.eventually("class "+class+" of claim "+claim, func() error {
		found, err := node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Get(w.ctx(), claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if has := found.Status.CurrentVolumeAttributesClassName; has == nil || *has != class {
			return fmt.Errorf("it has %v; %+v, conditions %+v", has, found.Status.ModifyVolumeStatus, found.Status.Conditions)
		}
		return nil
	})
}

// A volume is made with a class of attributes and gets another one while its pod writes to it. A class that no node understands changes
// nothing, and the claim says why.
func TestAttributesClass(t *testing.T) {
	needsController(t)
	w := newWorld(t)
	w.claim("data", "ringvol", "400Mi", attributes("ringvol-bronze"))
	w.pod("data", mounts("data"), command("io", dataDir+"/busy", "256"))
	w.awaitPod("data")
	before := w.goesOn("data", done{})
	w.awaitAttributes("data", "ringvol-bronze")

	change := func(class string) {
		t.Helper()
		_, err := node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Patch(w.ctx(), "data", types.MergePatchType,
			fmt.Appendf(nil, `{"spec": {"volumeAttributesClassName": %q}}`, class), metav1.PatchOptions{})
		w.must("class "+class, err)
	}
	change("ringvol-silver")
	w.awaitAttributes("data", "ringvol-silver")
	before = w.goesOn("data", before)
	w.limited("data", `"read_iops":2000,"write_iops":2000,"read_bandwidth":209715200,"write_bandwidth":209715200`)

	w.must("the chart with a wrong class", node.Change("volumeAttributesClasses[2].name=ringvol-wrong",
		"volumeAttributesClasses[0].name=ringvol-bronze", "text:volumeAttributesClasses[0].parameters.iops=1000",
		"volumeAttributesClasses[1].name=ringvol-silver", "text:volumeAttributesClasses[1].parameters.iops=2000",
		"text:volumeAttributesClasses[1].parameters.bandwidth=209715200",
		"text:volumeAttributesClasses[2].parameters.iops=0", "text:volumeAttributesClasses[2].parameters.readIops=5"))
	t.Cleanup(func() { w.must("the chart as it was", node.Install()) })
	change("ringvol-wrong")
	w.awaitEvent("data", "VolumeModifyFailed", "InvalidArgument")
	change("ringvol-silver")
	w.awaitAttributes("data", "ringvol-silver")
	w.goesOn("data", before)
}

// limited checks what the driver says of the limits of the only claim that has some: which they are, and that they are in force, or why
// not.
func (w *world) limited(claim, limits string) {
	w.t.Helper()
	pods, err := node.DriverPods()
	w.must("the driver's pod", err)
	w.eventually("the limits of claim "+claim, func() error {
		out, err := w.exec(cluster.Namespace, pods[0].Name, "ringvol", "ringvol", "ls", "--json")
		if err != nil {
			return err
		}
		if !strings.Contains(out, limits) || strings.Contains(out, "LimitNotEnforced") == hasCgroup2() {
			return fmt.Errorf("cgroup v2: %v: %s", hasCgroup2(), out)
		}
		return nil
	})
}

// hasCgroup2 says whether limits can be enforced on this machine.
func hasCgroup2() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}
