// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"ringvol.dev/tests/rig"
)

const (
	// Driver is ringvol's name as a CSI driver.
	Driver = "csi.ringvol.dev"
	// Namespace is where the chart is installed.
	Namespace = "ringvol"
	release   = "ringvol"
	// MoreSettings has settings of the chart that all tests are run with, between spaces.
	MoreSettings = "RINGVOL_E2E_SET"
	// poolBytes is room for a hundred volumes; the file is sparse.
	poolBytes = 20 << 30
	// Less, so that the nodes can be told apart by their room.
	OtherPoolBytes = 8 << 30
)

// NewPool gives the node another disk in place of the one that it had, if it had one: the same path, an empty file system. Not the
// first node.
func (n *Node) NewPool(size int64) error {
	path := n.c.Pool.Path
	file, err := os.CreateTemp(n.c.Dir, n.Name+"-pool-*.img")
	if err != nil {
		return err
	}
	err = file.Truncate(size)
	file.Close()
	if err != nil {
		return err
	}
	if _, err := rig.Run("mkfs.xfs", "-q", "-m", "reflink=1", file.Name()); err != nil {
		return err
	}
	if n.Pool != nil {
		if _, err := n.Run("umount", "--lazy", path); err != nil {
			return err
		}
	}
	n.Pool = &rig.Pool{Name: n.c.Pool.Name, FS: "xfs", Path: path}
	_, err = n.Run("mount", "-o", "loop", file.Name(), path)
	return err
}

// has says whether a loop device is of the node's pool, or of a volume on it.
func (n *Node) has(device string) bool {
	var backing string
	for device != "" {
		text, err := os.ReadFile("/sys/block/" + filepath.Base(device) + "/loop/backing_file")
		if err != nil {
			return false
		}
		backing = strings.TrimSpace(string(text))
		if strings.HasPrefix(backing, filepath.Join(n.c.Dir, n.Name+"-pool-")) {
			return true
		}
		device = loopUnder(device)
	}
	return false
}

// The chart's values for these nodes.
const values = `
mode: %s
pools:
  - {name: default, hostPath: %q, options: init}
storageClasses:
  - {name: ringvol, parameters: {csi.storage.k8s.io/fstype: ext4}}
  - {name: ringvol-xfs, parameters: {csi.storage.k8s.io/fstype: xfs}}
  - {name: ringvol-btrfs, parameters: {csi.storage.k8s.io/fstype: btrfs}}
# Raw block volumes, also on machines without device mapper.
node: {blockOnLoop: %t}
snapshots: {enabled: true}
snapshotController: {enabled: true}
volumeAttributesClasses:
  - {name: ringvol-bronze, parameters: {iops: "1000"}}
  - {name: ringvol-silver, parameters: {iops: "2000", bandwidth: "209715200"}}
# The sidecars' images are made here, so they have other digests.
sidecars:
  provisioner: {digest: ""}
  attacher: {digest: ""}
  snapshotter: {digest: ""}
  resizer: {digest: ""}
  snapshotController: {digest: ""}
`

// What the chart has in mode controller alone.
const controllerValues = `
snapshots: {enabled: true, groups: {enabled: true}}
snapshotMetadata: {enabled: true}
`

// What the health monitor is told where its program is at hand. It asks seldom by itself.
const monitorValues = `
sidecars:
  healthMonitor: {enabled: true, extraArgs: ["--list-volumes-interval=10s"]}
`

// valueFiles writes the values of a mode, and of what is at hand, each into a file of its own: a later one goes before an earlier.
func (c *Cluster) valueFiles(mode string) ([]string, error) {
	texts := []string{fmt.Sprintf(values, mode, c.Pool.Path, !rig.HasDeviceMapper())}
	if mode == "controller" {
		texts = append(texts, controllerValues)
	}
	if mode == "controller" && os.Getenv(MonitorProgram) != "" {
		texts = append(texts, monitorValues)
	}
	var files []string
	for i, text := range texts {
		files = append(files, c.path(fmt.Sprintf("values-%d.yaml", i)))
		if err := os.WriteFile(files[i], []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// Prepare makes what the chart takes for granted: the pool's file system, images, the API of snapshots.
func (c *Cluster) Prepare() error {
	pool, err := (&rig.Rig{Dir: c.Dir}).NewPool("default", "xfs", poolBytes)
	if err != nil {
		return err
	}
	c.Pool = pool
	if err := c.Other.NewPool(OtherPoolBytes); err != nil {
		return err
	}
	if err := c.sidecarImages(); err != nil {
		return err
	}
	if err := c.ImportImage(filepath.Join(c.Top, "build/image/ringvol.tar")); err != nil {
		return err
	}
	return c.snapshotAPI()
}

func (c *Cluster) snapshotAPI() error {
	files, err := filepath.Glob(filepath.Join(c.Top, ".cache/e2e/crds/*.yaml"))
	if err == nil && len(files) == 0 {
		err = errors.New("no definitions of snapshots in .cache/e2e/crds")
	}
	if err != nil {
		return err
	}
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var object unstructured.Unstructured
		if err := yaml.Unmarshal(text, &object.Object); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if _, err := c.Dynamic.Resource(resource).Create(context.Background(), &object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// Install installs the chart, or changes what is installed, and waits until all of it runs. A setting is NAME=VALUE; "text:" before
// it says that the value is a text, though it looks like a number.
func (c *Cluster) Install(settings ...string) error {
	if err := c.upgrade(settings, "--wait", "--timeout", "4m"); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Unwell(Namespace))
	}
	for _, n := range c.nodes() {
		if err := n.WaitDriver(); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return nil
}

// Change changes what is installed to something that may never be ready.
func (c *Cluster) Change(settings ...string) error {
	return c.upgrade(settings)
}

func (c *Cluster) upgrade(settings []string, options ...string) error {
	args := append([]string{"upgrade", "--install", release, filepath.Join(c.Top, "deploy/helm/ringvol"),
		"--create-namespace"}, options...)
	mode := c.Mode
	settings = append(strings.Fields(os.Getenv(MoreSettings)), settings...)
	for _, setting := range settings {
		if other, is := strings.CutPrefix(setting, "mode="); is {
			mode = other
		}
	}
	files, err := c.valueFiles(mode)
	if err != nil {
		return err
	}
	for _, file := range files {
		args = append(args, "--values", file)
	}
	for _, setting := range settings {
		if text, is := strings.CutPrefix(setting, "text:"); is {
			args = append(args, "--set-string", text)
		} else {
			args = append(args, "--set", setting)
		}
	}
	return c.helm(args...)
}

// Uninstall takes the chart away, and waits until its pods are gone.
func (c *Cluster) Uninstall() error {
	if err := c.helm("uninstall", release, "--wait", "--timeout", "4m"); err != nil {
		return err
	}
	return rig.Eventually(2*time.Minute, func() error {
		pods, err := c.Client.CoreV1().Pods(Namespace).List(context.Background(), metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
}

func (c *Cluster) helm(args ...string) error {
	out, err := c.run(5*time.Minute, c.bin("helm"), append([]string{"--kubeconfig", c.Kubeconfig,
		"--namespace", Namespace}, args...)...)
	if err != nil {
		return fmt.Errorf("helm %s: %w: %s", args[0], err, out)
	}
	return nil
}

// DriverPods lists the node's driver pods.
func (n *Node) DriverPods() ([]corev1.Pod, error) {
	return n.c.pods("node", "spec.nodeName="+n.Name)
}

// ControllerPods lists the cluster's controllers.
func (c *Cluster) ControllerPods() ([]corev1.Pod, error) {
	return c.pods("controller", "")
}

func (c *Cluster) pods(component, fields string) ([]corev1.Pod, error) {
	pods, err := c.Client.CoreV1().Pods(Namespace).List(context.Background(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component, FieldSelector: fields})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// WaitDriver waits until the node has one driver pod, ready, and kubelet knows the driver.
func (n *Node) WaitDriver() error {
	return rig.Eventually(3*time.Minute, n.DriverReady)
}

// DriverReady is nil if that is so now.
func (n *Node) DriverReady() error {
	pods, err := n.DriverPods()
	if err != nil {
		return err
	}
	if len(pods) != 1 || pods[0].DeletionTimestamp != nil {
		return fmt.Errorf("%d driver pods, or one that ends", len(pods))
	}
	if err := Unready(&pods[0]); err != nil {
		return fmt.Errorf("driver pod: %w", err)
	}
	return n.registered()
}

func (n *Node) registered() error {
	node, err := n.c.Client.StorageV1().CSINodes().Get(context.Background(), n.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil {
		for _, driver := range node.Spec.Drivers {
			if driver.Name == Driver {
				return nil
			}
		}
	}
	return fmt.Errorf("kubelet has not registered %s", Driver)
}

// DeleteDriverPod deletes the driver's pod and waits for the next one.
func (n *Node) DeleteDriverPod() error {
	pods, err := n.DriverPods()
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if err := n.c.Client.CoreV1().Pods(Namespace).Delete(context.Background(), pod.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	if err := rig.Eventually(2*time.Minute, func() error {
		now, err := n.DriverPods()
		if err == nil && slices.ContainsFunc(now, func(pod corev1.Pod) bool { return pod.UID == pods[0].UID }) {
			err = errors.New("the driver's pod is still there")
		}
		return err
	}); err != nil {
		return err
	}
	return n.WaitDriver()
}

// Unready is why a pod is not running and ready, nil if it is.
func Unready(pod *corev1.Pod) error {
	why := []string{string(pod.Status.Phase)}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
		if condition.Status != corev1.ConditionTrue && condition.Message != "" {
			why = append(why, condition.Message)
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Waiting != nil {
			why = append(why, status.Name+" "+status.State.Waiting.Reason+" "+status.State.Waiting.Message)
		}
		if status.State.Terminated != nil {
			why = append(why, fmt.Sprintf("%s ended with %d %s", status.Name, status.State.Terminated.ExitCode,
				status.State.Terminated.Message))
		}
	}
	return errors.New(strings.Join(why, ", "))
}

// Unwell says which pods of a namespace (all with "") are not ready, and the namespace's warnings.
func (c *Cluster) Unwell(namespace string) string {
	var said []string
	if pods, err := c.Client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{}); err == nil {
		for _, pod := range pods.Items {
			if err := Unready(&pod); err != nil {
				said = append(said, fmt.Sprintf("pod %s/%s: %v", pod.Namespace, pod.Name, err))
			}
		}
	}
	if events, err := c.Client.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{}); err == nil {
		for _, event := range events.Items {
			if event.Type != corev1.EventTypeNormal {
				said = append(said, fmt.Sprintf("event %s %s: %s: %s", event.InvolvedObject.Kind,
					event.InvolvedObject.Name, event.Reason, event.Message))
			}
		}
	}
	return strings.Join(said, "\n")
}

// DriverLogs is the end of all that the chart's pods have said.
func (c *Cluster) DriverLogs() string {
	pods, err := c.Client.CoreV1().Pods(Namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var said []string
	for _, pod := range pods.Items {
		for _, container := range pod.Spec.Containers {
			lines := int64(25)
			text, err := c.Client.CoreV1().Pods(Namespace).GetLogs(pod.Name,
				&corev1.PodLogOptions{Container: container.Name, TailLines: &lines}).DoRaw(context.Background())
			said = append(said, fmt.Sprintf("log of %s/%s: %v", pod.Name, container.Name, err), string(text))
		}
	}
	return strings.Join(said, "\n")
}

// loopUnder is the loop device that a loop device's file lies on; "" if it is none.
func loopUnder(device string) string {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return ""
	}
	on := info.Device
	if info.Rdevice != 0 {
		on = info.Rdevice
	}
	if unix.Major(on) != 7 {
		return ""
	}
	return fmt.Sprintf("/dev/loop%d", unix.Minor(on))
}

// WaitControllers waits until all controllers are ready.
func (c *Cluster) WaitControllers() error {
	return rig.Eventually(5*time.Minute, func() error {
		pods, err := c.ControllerPods()
		if err != nil {
			return err
		}
		if len(pods) != 2 {
			return fmt.Errorf("%d controllers", len(pods))
		}
		for _, pod := range pods {
			if err := Unready(&pod); err != nil {
				return fmt.Errorf("%s: %w", pod.Name, err)
			}
		}
		return nil
	})
}

// SnapshotContents are what stands behind snapshots.
var SnapshotContents = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotcontents"}

// Handles are the ids of volumes and snapshots that objects of the cluster name.
func (c *Cluster) Handles() ([]string, error) {
	var named []string
	volumes, err := c.Client.CoreV1().PersistentVolumes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, volume := range volumes.Items {
		if volume.Spec.CSI != nil && volume.Spec.CSI.Driver == Driver {
			named = append(named, volume.Spec.CSI.VolumeHandle)
		}
	}
	contents, err := c.Dynamic.Resource(SnapshotContents).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, content := range contents.Items {
		if handle, found, _ := unstructured.NestedString(content.Object, "status", "snapshotHandle"); found {
			named = append(named, handle)
		}
	}
	return named, nil
}

// LabelContents gives all contents of snapshots the label by which a node's snapshotter finds them, as docs/kubernetes.md has it.
func (c *Cluster) LabelContents(node string) error {
	contents, err := c.Dynamic.Resource(SnapshotContents).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": %q}}}`, node)
	for _, content := range contents.Items {
		if _, err := c.Dynamic.Resource(SnapshotContents).Patch(context.Background(), content.GetName(), types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}
