// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/e2e/cluster"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// kubelet's metrics have the volume's figures, as NodeGetVolumeStats tells them.
func TestVolumeStats(t *testing.T) {
	w := newWorldBeside(t)
	w.claim("data", "ringvol", "64Mi")
	w.pod("pod", mounts("data"))
	w.awaitPod("pod")
	w.run("pod", "put", dataDir+"/file", "20000000", "stats")
	for _, metric := range []string{"capacity_bytes", "used_bytes", "available_bytes", "inodes", "inodes_used"} {
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^kubelet_volume_stats_%s\{namespace="%s",persistentvolumeclaim="data"\} ([1-9].*)$`,
			metric, w.namespace))
		w.eventually("kubelet's "+metric, func() error {
			text, err := node.KubeletMetrics()
			if err == nil && !line.MatchString(text) {
				err = fmt.Errorf("no line like %s", line)
			}
			return err
		})
	}
}

const many = 100

// instants are when a pod's volume and the pod got somewhere, since all were asked for.
type instants struct{ bound, scheduled, running time.Duration }

// A hundred claims and pods at once. Every one gets its volume; the table says how long the steps took and how much of
// that was ringvol's.
func TestHundredAtOnce(t *testing.T) {
	w := newWorld(t)
	served, err := node.DriverServed()
	w.must("the driver's figures", err)
	idle, err := node.DriverMemory()
	w.must("the driver's memory", err)
	asked, reached := w.hundred("ringvol")
	full, err := node.DriverMemory()
	w.must("the driver's memory", err)
	now, err := node.DriverServed()
	w.must("the driver's figures", err)
	t.Log(table(asked, reached) + share(reached, served, now) + memory(idle, full))
}

// hundred asks for that many claims of a class and a pod for each, and waits until all have written to their volume.
func (w *world) hundred(class string) (asked time.Duration, reached map[string]*instants) {
	w.t.Helper()
	begin := time.Now()
	observed := w.observe(begin)
	for i := range many {
		name := fmt.Sprintf("v%02d", i)
		w.claim(name, class, "64Mi")
		w.pod(name, mounts(name))
	}
	asked = time.Since(begin)
	for i := range many {
		w.awaitPod(fmt.Sprintf("v%02d", i))
	}
	reached = observed()
	for i := range many {
		name := fmt.Sprintf("v%02d", i)
		w.run(name, "put", dataDir+"/file", "100000", name)
	}
	return asked, reached
}

// observe notes when claims are bound and pods are scheduled and run; the function it returns ends that.
func (w *world) observe(begin time.Time) func() map[string]*instants {
	w.t.Helper()
	var lock sync.Mutex
	seen := map[string]*instants{}
	note := func(name string, what func(*instants) *time.Duration) {
		lock.Lock()
		defer lock.Unlock()
		if seen[name] == nil {
			seen[name] = &instants{}
		}
		if at := what(seen[name]); *at == 0 {
			*at = time.Since(begin)
		}
	}
	claims, err := node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Watch(w.ctx(), metav1.ListOptions{})
	w.must("watching claims", err)
	pods, err := node.Client.CoreV1().Pods(w.namespace).Watch(w.ctx(), metav1.ListOptions{})
	w.must("watching pods", err)
	var running sync.WaitGroup
	follow := func(events watch.Interface, look func(any)) {
		running.Go(func() {
			for event := range events.ResultChan() {
				look(event.Object)
			}
		})
	}
	follow(claims, func(object any) {
		if claim, ok := object.(*corev1.PersistentVolumeClaim); ok && claim.Status.Phase == corev1.ClaimBound {
			note(claim.Name, func(i *instants) *time.Duration { return &i.bound })
		}
	})
	follow(pods, func(object any) {
		pod, ok := object.(*corev1.Pod)
		if ok && pod.Spec.NodeName != "" {
			note(pod.Name, func(i *instants) *time.Duration { return &i.scheduled })
		}
		if ok && pod.Status.Phase == corev1.PodRunning {
			note(pod.Name, func(i *instants) *time.Duration { return &i.running })
		}
	})
	return func() map[string]*instants {
		claims.Stop()
		pods.Stop()
		running.Wait()
		return seen
	}
}

// steps are what a pod and its claim go through.
var steps = []struct {
	name string
	at   func(*instants) time.Duration
}{
	{"claim bound", func(i *instants) time.Duration { return i.bound }},
	{"pod scheduled", func(i *instants) time.Duration { return i.scheduled }},
	{"pod running", func(i *instants) time.Duration { return i.running }},
}

// seconds are the times of a step, the shortest first.
func seconds(reached map[string]*instants, at func(*instants) time.Duration) []float64 {
	var times []float64
	for _, i := range reached {
		times = append(times, at(i).Seconds())
	}
	slices.Sort(times)
	return times
}

func table(asked time.Duration, reached map[string]*instants) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d claims and pods, asked for within %.1f s; seconds since then\n", len(reached), asked.Seconds())
	fmt.Fprintf(&text, "%-24s %8s %8s %8s\n", "step", "p50", "p90", "last")
	for _, step := range steps {
		times := seconds(reached, step.at)
		fmt.Fprintf(&text, "%-24s %8.2f %8.2f %8.2f\n", step.name, times[len(times)/2], times[len(times)*9/10],
			times[len(times)-1])
	}
	return text.String()
}

func share(reached map[string]*instants, before, after map[string]cluster.Served) string {
	var text strings.Builder
	var sum float64
	fmt.Fprintf(&text, "%-24s %8s %8s\n", "in ringvol", "calls", "ms each")
	for _, method := range []string{"CreateVolume", "NodeStageVolume", "NodePublishVolume"} {
		calls := after[method].Calls - before[method].Calls
		each := (after[method].Seconds - before[method].Seconds) / float64(max(calls, 1))
		sum += each
		fmt.Fprintf(&text, "%-24s %8d %8.2f\n", method, calls, each*1000)
	}
	times := seconds(reached, steps[len(steps)-1].at)
	fmt.Fprintf(&text, "ringvol's share of the time until half of the pods ran: %.2f%%\n", 100*sum/times[len(times)/2])
	return text.String()
}

func memory(idle, full *cluster.Memory) string {
	return fmt.Sprintf("the driver's memory: VmRSS %d KiB before, %d with %d volumes; its control group %d and %d KiB\n"+
		"all processes of the node's pod, shared pages counted once: %d KiB before, %d with %d volumes; mode %s",
		idle.ResidentKiB, full.ResidentKiB, many, idle.GroupKiB, full.GroupKiB, idle.PodKiB, full.PodKiB, many, node.Mode)
}

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
