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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"ringvol.dev/tests/rig"
)

const (
	// Driver is ringvol's name as a CSI driver.
	Driver = "csi.ringvol.dev"
	// Namespace is where the chart is installed.
	Namespace = "ringvol"
	release   = "ringvol"
	// poolBytes is room for a hundred volumes; the file is sparse.
	poolBytes = 20 << 30
)

// The chart's values for this node.
const values = `
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
# The sidecars' images are made here, so they have other digests.
sidecars: {provisioner: {digest: ""}, snapshotter: {digest: ""}, resizer: {digest: ""}, snapshotController: {digest: ""}}
`

// Prepare makes what the chart takes for granted: the pool's file system, images, the API of snapshots.
func (c *Cluster) Prepare() error {
	pool, err := (&rig.Rig{Dir: c.Dir}).NewPool("default", "xfs", poolBytes)
	if err != nil {
		return err
	}
	c.Pool = pool
	if err := c.sidecarImages(); err != nil {
		return err
	}
	if err := c.ImportImage(filepath.Join(c.Top, "build/image/ringvol.tar")); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("values.yaml"), fmt.Appendf(nil, values, pool.Path, !rig.HasDeviceMapper()), 0o644); err != nil {
		return err
	}
	return c.snapshotAPI()
}

func (c *Cluster) snapshotAPI() error {
	files, err := filepath.Glob(filepath.Join(c.Top, ".cache/e2e/crds/snapshot.storage.k8s.io_*.yaml"))
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

// Install installs the chart, or changes what is installed, and waits until all of it runs.
func (c *Cluster) Install(settings ...string) error {
	if err := c.upgrade(settings, "--wait", "--timeout", "4m"); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Unwell(Namespace))
	}
	return c.WaitDriver()
}

// Change changes what is installed to something that may never be ready.
func (c *Cluster) Change(settings ...string) error {
	return c.upgrade(settings)
}

func (c *Cluster) upgrade(settings []string, options ...string) error {
	args := append([]string{"upgrade", "--install", release, filepath.Join(c.Top, "deploy/helm/ringvol"),
		"--create-namespace", "--values", c.path("values.yaml")}, options...)
	for _, setting := range settings {
		args = append(args, "--set", setting)
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
func (c *Cluster) DriverPods() ([]corev1.Pod, error) {
	pods, err := c.Client.CoreV1().Pods(Namespace).List(context.Background(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=node"})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// WaitDriver waits until there is one driver pod, ready, and kubelet knows the driver.
func (c *Cluster) WaitDriver() error {
	return rig.Eventually(3*time.Minute, c.DriverReady)
}

// DriverReady is nil if that is so now.
func (c *Cluster) DriverReady() error {
	pods, err := c.DriverPods()
	if err != nil {
		return err
	}
	if len(pods) != 1 || pods[0].DeletionTimestamp != nil {
		return fmt.Errorf("%d driver pods, or one that ends", len(pods))
	}
	if err := Unready(&pods[0]); err != nil {
		return fmt.Errorf("driver pod: %w", err)
	}
	return c.registered()
}

func (c *Cluster) registered() error {
	node, err := c.Client.StorageV1().CSINodes().Get(context.Background(), NodeName, metav1.GetOptions{})
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
func (c *Cluster) DeleteDriverPod() error {
	pods, err := c.DriverPods()
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if err := c.Client.CoreV1().Pods(Namespace).Delete(context.Background(), pod.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	if err := rig.Eventually(2*time.Minute, func() error {
		now, err := c.DriverPods()
		if err == nil && slices.ContainsFunc(now, func(pod corev1.Pod) bool { return pod.UID == pods[0].UID }) {
			err = errors.New("the driver's pod is still there")
		}
		return err
	}); err != nil {
		return err
	}
	return c.WaitDriver()
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

// DriverLogs is the end of all that the driver's pods have said.
func (c *Cluster) DriverLogs() string {
	pods, err := c.DriverPods()
	if err != nil {
		return err.Error()
	}
	var said []string
	for _, pod := range pods {
		for _, container := range pod.Spec.Containers {
			lines := int64(25)
			text, err := c.Client.CoreV1().Pods(Namespace).GetLogs(pod.Name,
				&corev1.PodLogOptions{Container: container.Name, TailLines: &lines}).DoRaw(context.Background())
			said = append(said, fmt.Sprintf("log of %s/%s: %v", pod.Name, container.Name, err), string(text))
		}
	}
	return strings.Join(said, "\n")
}
