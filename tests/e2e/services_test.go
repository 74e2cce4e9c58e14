// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

func groupResource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "groupsnapshot.storage.k8s.io", Version: "v1", Resource: name}
}

// set makes a StatefulSet whose replicas have a volume each, and waits for them.
func (w *world) set(name, class, size string, replicas int32, options ...podOption) {
	w.t.Helper()
	labels := map[string]string{"app": name}
	pod := podObject("", append(slices.Clone(options), func(pod *corev1.Pod) {
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: dataDir}}
	})...)
	pod.Labels = labels
	claim := claimObject("data", class, size)
	claim.Labels = labels
	_, err := node.Client.AppsV1().StatefulSets(w.namespace).Create(w.ctx(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			Template:             corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*claim},
		}}, metav1.CreateOptions{})
	w.must("set "+name, err)
	for i := range replicas {
		w.awaitPod(fmt.Sprintf("%s-%d", name, i))
	}
}

// group asks for a snapshot of all claims of an app at one moment.
func (w *world) group(name, app string) {
	w.t.Helper()
	_, err := node.Dynamic.Resource(groupResource("volumegroupsnapshots")).Namespace(w.namespace).Create(w.ctx(),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"volumeGroupSnapshotClassName": "ringvol",
				"source": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": app}}}}}}, metav1.CreateOptions{})
	w.must("group "+name, err)
}

// members are the snapshots of a group that can be used, by the claims that they are of.
func (w *world) members(group string) (map[string]string, error) {
	found, err := w.snapshots().List(w.ctx(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	members := map[string]string{}
	for _, snapshot := range found.Items {
		of, _, _ := unstructured.NestedString(snapshot.Object, "status", "volumeGroupSnapshotName")
		if of != group {
			continue
		}
		if ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse"); !ready {
			return nil, fmt.Errorf("%s is not ready: %v", snapshot.GetName(), snapshot.Object["status"])
		}
		claim, _, _ := unstructured.NestedString(snapshot.Object, "spec", "source", "persistentVolumeClaimName")
		members[claim] = snapshot.GetName()
	}
	return members, nil
}

// All volumes of a StatefulSet at one moment: each is restored with what it held then, and the group goes as a whole. Volumes of two
// nodes are no group, and that is said.
func TestGroupSnapshot(t *testing.T) {
	needsController(t)
	const replicas = 3
	w := newWorldBeside(t)
	w.set("set", "ringvol", "64Mi", replicas)
	for i := range replicas {
		name := fmt.Sprintf("set-%d", i)
		w.run(name, "put", dataDir+"/file", "3000000", "before-"+name)
	}
	w.group("group", "set")
	var members map[string]string
	w.eventually("the group's snapshots", func() error {
		var err error
		if members, err = w.members("group"); err != nil || len(members) != replicas {
			return fmt.Errorf("%d of %d: %v: %v", len(members), replicas, err, w.groupState("group"))
		}
		return nil
	})
	for i := range replicas {
		name := fmt.Sprintf("set-%d", i)
		w.run(name, "put", dataDir+"/file", "3000000", "after-"+name)
		restored := "restored-" + name
		w.claim(restored, "ringvol", "64Mi", from("VolumeSnapshot", members["data-"+name]))
		w.pod(restored, mounts(restored))
	}
	for i := range replicas {
		name := fmt.Sprintf("set-%d", i)
		w.awaitPod("restored-" + name)
		w.run("restored-"+name, "check", dataDir+"/file", "3000000", "before-"+name)
		w.run(name, "check", dataDir+"/file", "3000000", "after-"+name)
	}
	w.must("the group goes", node.Dynamic.Resource(groupResource("volumegroupsnapshots")).Namespace(w.namespace).Delete(w.ctx(), "group",
		metav1.DeleteOptions{}))
	w.eventually("its snapshots have gone", func() error {
		found, err := w.snapshots().List(w.ctx(), metav1.ListOptions{})
		if err == nil && len(found.Items) > 0 {
			err = fmt.Errorf("%d are left", len(found.Items))
		}
		return err
	})

	w.claim("far", "ringvol", "64Mi", labelled("apart"))
	w.claim("near", "ringvol", "64Mi", labelled("apart"))
	w.pod("far", mounts("far"), on(cluster.OtherName))
	w.pod("near", mounts("near"))
	w.awaitPod("far")
	w.awaitPod("near")
	w.group("apart", "apart")
	w.eventually("why they are no group", func() error {
		if state := w.groupState("apart"); !strings.Contains(state, "node") || !strings.Contains(state, "FailedPrecondition") {
			return errors.New(state)
		}
		return nil
	})
	w.must("the group that cannot be", node.Dynamic.Resource(groupResource("volumegroupsnapshots")).Namespace(w.namespace).Delete(w.ctx(),
		"apart", metav1.DeleteOptions{}))
}

func labelled(app string) claimOption {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Labels = map[string]string{"app": app} }
}

// groupState is what is said of a group and of what stands behind it.
func (w *world) groupState(name string) string {
	group, err := node.Dynamic.Resource(groupResource("volumegroupsnapshots")).Namespace(w.namespace).Get(w.ctx(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	said := fmt.Sprint(group.Object["status"])
	contents, err := node.Dynamic.Resource(groupResource("volumegroupsnapshotcontents")).List(w.ctx(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, content := range contents.Items {
		if of, _, _ := unstructured.NestedString(content.Object, "spec", "volumeGroupSnapshotRef", "name"); of == name {
			said += fmt.Sprint(" ", content.Object["status"])
		}
	}
	return said
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
