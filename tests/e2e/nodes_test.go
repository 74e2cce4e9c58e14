// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ringvol.dev/tests/e2e/cluster"
	"ringvol.dev/tests/rig"
)

// needsController is for what the chart's mode controller alone can do.
func needsController(t *testing.T) {
	t.Helper()
	if node.Mode != "controller" {
		t.Skip("the cluster has no controller: ./dev e2e --mode controller")
	}
}

// homeOf is the node that a volume names.
func homeOf(volume *corev1.PersistentVolume) string {
	for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, expression := range term.MatchExpressions {
			if expression.Key == "topology.ringvol.dev/node" && len(expression.Values) == 1 {
				return expression.Values[0]
			}
		}
	}
	return ""
}

// The certificates that helm makes are made once: another upgrade leaves them, and so nodes and controllers go on.
func TestCertificatesAreKept(t *testing.T) {
	needsController(t)
	w := newWorld(t)
	read := func() map[string]string {
		files := map[string]string{}
		for _, name := range []string{"ringvol-controller-tls", "ringvol-node-tls"} {
			secret, err := node.Client.CoreV1().Secrets(cluster.Namespace).Get(w.ctx(), name, metav1.GetOptions{})
			w.must(name, err)
			for file, data := range secret.Data {
				files[name+"/"+file] = string(data)
			}
		}
		return files
	}
	before := read()
	w.must("the chart once more", node.Install("controller.resources.requests.memory=17Mi"))
	t.Cleanup(func() { w.must("the chart as it was", node.Install()) })
	if after := read(); len(before) != 6 || !maps.Equal(before, after) {
		t.Errorf("%d files are not the same after an upgrade", len(before))
	}
	w.worksFromAToZ("after")
}

// Volumes are made where their pods go, on both nodes.
func TestPodsOnBothNodes(t *testing.T) {
	w := newWorldBeside(t)
	for _, name := range []string{cluster.NodeName, cluster.OtherName} {
		w.claim(name, "ringvol", "64Mi")
		w.pod(name, mounts(name), on(name))
	}
	for _, name := range []string{cluster.NodeName, cluster.OtherName} {
		w.awaitPod(name)
		w.run(name, "put", dataDir+"/file", "3000000", name)
		if home := homeOf(w.volume(name)); home != name {
			t.Errorf("the volume of a pod on %s is on %q", name, home)
		}
		w.run(name, "check", dataDir+"/file", "3000000", name)
	}
	for _, name := range []string{cluster.NodeName, cluster.OtherName} {
		w.deletePod(name)
		w.deleteClaim(name)
	}
}

// A snapshot is restored, and a volume in use cloned, on the node that has neither. The copies hold what was there at the
// moment, and outlive what they were made from. How long that took is logged beside the same on one node.
func TestCopiesOnTheOtherNode(t *testing.T) {
	needsController(t)
	w := newWorld(t)
	const bytes = "900000000"
	w.claim("source", "ringvol-xfs", "1200Mi")
	w.pod("source", mounts("source"))
	w.awaitPod("source")
	w.run("source", "put", dataDir+"/file", bytes, "first")
	w.snapshot("snapshot", "source")
	w.run("source", "put", dataDir+"/file", bytes, "second")

	for _, c := range []struct{ name, node, kind, from, holds string }{
		{"restored-here", cluster.NodeName, "VolumeSnapshot", "snapshot", "first"},
		{"restored-there", cluster.OtherName, "VolumeSnapshot", "snapshot", "first"},
		{"cloned-here", cluster.NodeName, "PersistentVolumeClaim", "source", "second"},
		{"cloned-there", cluster.OtherName, "PersistentVolumeClaim", "source", "second"},
	} {
		begin := time.Now()
		w.claim(c.name, "ringvol-xfs", "1200Mi", from(c.kind, c.from))
		w.pod(c.name, mounts(c.name), on(c.node))
		w.awaitPod(c.name)
		t.Logf("%-16s 0.9 GB of data, claim to running pod: %.1f s", c.name, time.Since(begin).Seconds())
		w.run(c.name, "check", dataDir+"/file", bytes, c.holds)
		if home := homeOf(w.volume(c.name)); home != c.node {
			t.Errorf("%s is on %q", c.name, home)
		}
	}

	w.must("deleting the snapshot", w.snapshots().Delete(w.ctx(), "snapshot", metav1.DeleteOptions{}))
	w.deletePod("source")
	w.deleteClaim("source")
	w.run("restored-there", "check", dataDir+"/file", bytes, "first")
	w.run("cloned-there", "check", dataDir+"/file", bytes, "second")
}

// killLeader kills the controller beside the sidecar that works, a moment after now, and says so.
func (w *world) killLeader(sidecar string, after time.Duration) (killed func()) {
	w.t.Helper()
	done := make(chan error, 1)
	go func() {
		time.Sleep(after)
		done <- rig.Eventually(3*time.Minute, func() error {
			pid, err := node.LeadersController(sidecar)
			if err == nil {
				err = syscall.Kill(pid, syscall.SIGKILL)
			}
			return err
		})
	}()
	return func() {
		w.t.Helper()
		w.must("killing the controller beside "+sidecar, <-done)
	}
}

// The controller is killed in the middle of every kind of call. All is done in the end, and once: nobody has a volume or a
// snapshot that no object of the cluster names.
func TestControllerKilledInCalls(t *testing.T) {
	needsController(t)
	w := newWorld(t)
	const bytes = "200000000"
	w.claim("source", "ringvol-xfs", "400Mi")
	w.pod("source", mounts("source"))
	w.awaitPod("source")
	w.run("source", "put", dataDir+"/file", bytes, "source")

	killed := w.killLeader("snapshotter", 200*time.Millisecond)
	w.snapshot("snapshot", "source")
	killed()
	// A copy from one node to the other.
	killed = w.killLeader("provisioner", 1500*time.Millisecond)
	w.claim("restored", "ringvol-xfs", "400Mi", from("VolumeSnapshot", "snapshot"))
	w.pod("restored", mounts("restored"), on(cluster.OtherName))
	w.awaitPod("restored")
	killed()
	w.run("restored", "check", dataDir+"/file", bytes, "source")
	killed = w.killLeader("provisioner", 400*time.Millisecond)
	w.claim("empty", "ringvol", "64Mi")
	w.pod("empty", mounts("empty"), on(cluster.OtherName))
	w.awaitPod("empty")
	killed()
	killed = w.killLeader("resizer", 200*time.Millisecond)
	w.grow("restored", "500Mi")
	w.awaitSize("restored", "500Mi")
	killed()
	w.deletePod("restored")
	killed = w.killLeader("provisioner", 200*time.Millisecond)
	w.deleteClaim("restored")
	killed()
	killed = w.killLeader("snapshotter", 200*time.Millisecond)
	w.must("deleting a snapshot", w.snapshots().Delete(w.ctx(), "snapshot", metav1.DeleteOptions{}))
	w.eventually("no snapshot", func() error {
		_, err := w.snapshots().Get(w.ctx(), "snapshot", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		} else if err == nil {
			err = errors.New("it is there")
		}
		return err
	})
	killed()
	w.must("controllers", node.WaitControllers())
	w.nothingUnnamed()
}

// nothingUnnamed waits until the nodes' volumes and snapshots are those that objects of the cluster name.
func (w *world) nothingUnnamed() {
	w.t.Helper()
	w.eventually("nothing that nobody names", func() error {
		named, err := node.Handles()
		if err != nil {
			return err
		}
		kept, err := w.kept()
		if err != nil {
			return err
		}
		for _, id := range kept {
			if !slices.Contains(named, id) {
				return fmt.Errorf("%s is there, and nobody names it", id)
			}
		}
		return nil
	})
}

// kept are the ids of volumes and snapshots that the nodes have.
func (w *world) kept() ([]string, error) {
	var kept []string
	for _, n := range []*cluster.Node{node.Node, node.Other} {
		out, err := w.toolOn(n, "ls", "--json")
		if err != nil {
			return nil, err
		}
		var has struct{ Volumes, Snapshots []struct{ ID string } }
		if err := json.Unmarshal([]byte(out), &has); err != nil {
			return nil, err
		}
		for _, one := range append(has.Volumes, has.Snapshots...) {
			kept = append(kept, one.ID)
		}
	}
	return kept, nil
}

// A node is cut off the network and comes back. Meanwhile what it has is neither lost nor deleted, the other node works on, and
// what was asked for is done afterwards.
func TestNodeAwayAndBack(t *testing.T) {
	needsController(t)
	w := newWorld(t)
	w.claim("away", "ringvol", "64Mi")
	w.pod("away", mounts("away"), on(cluster.OtherName))
	w.awaitPod("away")
	w.run("away", "put", dataDir+"/file", "1000000", "away")
	w.deletePod("away")
	w.claim("unwanted", "ringvol", "64Mi")
	w.pod("unwanted", mounts("unwanted"), on(cluster.OtherName))
	w.awaitPod("unwanted")
	w.deletePod("unwanted")
	unwanted := w.volume("unwanted")

	w.must("cutting the node off", node.Other.Cut())
	back := false
	mend := func() {
		if !back {
			back = true
			w.must("the node's network", node.Other.Mend())
			w.must("the node", node.Other.WaitNode())
			w.must("its driver", node.Other.WaitDriver())
		}
	}
	t.Cleanup(mend)
	w.must("deleting a claim", node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Delete(w.ctx(), "unwanted", metav1.DeleteOptions{}))
	w.awaitVolumeEvent(unwanted.Name, "VolumeFailedDelete", cluster.OtherName)
	w.worksFromAToZ("meanwhile")
	if _, err := node.Client.CoreV1().PersistentVolumes().Get(w.ctx(), unwanted.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("a volume of a node that is away: %v", err)
	}
	mend()
	w.volumeGone(unwanted.Name)
	w.pod("away", mounts("away"), on(cluster.OtherName))
	w.awaitPod("away")
	w.run("away", "check", dataDir+"/file", "1000000", "away")
}

// awaitVolumeEvent waits for an event about a PersistentVolume.
func (w *world) awaitVolumeEvent(volume string, words ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("an event about %s with %q", volume, words), func() error {
		events, err := node.Client.CoreV1().Events("").List(w.ctx(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + volume})
		if err != nil {
			return err
		}
		var seen []string
		for _, event := range events.Items {
			text := event.Reason + ": " + event.Message
			seen = append(seen, text)
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) }) {
				return nil
			}
		}
		return fmt.Errorf("there are: %s", strings.Join(seen, "; "))
	})
}

// A pool's disk is lost, and another one is put in its place. What was on it cannot be deleted before somebody says that it is
// gone for good.
func TestPoolForgotten(t *testing.T) {
	needsController(t)
	w := newWorld(t)
	w.claim("lost", "ringvol", "64Mi")
	w.pod("lost", mounts("lost"), on(cluster.OtherName))
	w.awaitPod("lost")
	w.deletePod("lost")
	lost := w.volume("lost")
	uuid, _, _ := strings.Cut(lost.Spec.CSI.VolumeHandle, ".")

	w.must("another disk", node.Other.NewPool(cluster.OtherPoolBytes))
	w.must("another driver", node.Other.DeleteDriverPod())
	w.must("deleting the claim", node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Delete(w.ctx(), "lost", metav1.DeleteOptions{}))
	w.awaitVolumeEvent(lost.Name, "VolumeFailedDelete", uuid)
	if _, err := node.Client.CoreV1().PersistentVolumes().Get(w.ctx(), lost.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("a volume of a pool that is away: %v", err)
	}
	t.Cleanup(func() { w.must("the chart as it was", node.Install()) })
	w.must("forgetting it", node.Install("text:controller.forgetPools={"+uuid+"}"))
	w.volumeGone(lost.Name)
	w.claim("next", "ringvol", "64Mi")
	w.pod("next", mounts("next"), on(cluster.OtherName))
	w.awaitPod("next")
}

// The scheduler knows each node's room, and a claim that only one of them can hold finds it.
func TestCapacityOfEachNode(t *testing.T) {
	w := newWorldBeside(t)
	room := map[string]int64{}
	w.eventually("both nodes' room", func() error {
		found, err := node.Client.StorageV1().CSIStorageCapacities(cluster.Namespace).List(w.ctx(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, capacity := range found.Items {
			if capacity.StorageClassName == "ringvol" && capacity.Capacity != nil && capacity.NodeTopology != nil {
				room[capacity.NodeTopology.MatchLabels["topology.ringvol.dev/node"]] = capacity.Capacity.Value()
			}
		}
		if room[cluster.NodeName] == 0 || room[cluster.OtherName] == 0 {
			return fmt.Errorf("of %v", room)
		}
		return nil
	})
	if room[cluster.NodeName] <= room[cluster.OtherName] {
		t.Errorf("the smaller node has more room: %v", room)
	}
	w.claim("large", "ringvol-xfs", fmt.Sprint(cluster.OtherPoolBytes+1<<30))
	w.pod("large", mounts("large"), on(""))
	if pod := w.awaitPod("large"); pod.Spec.NodeName != cluster.NodeName {
		t.Errorf("a volume that only %s can hold is on %s", cluster.NodeName, pod.Spec.NodeName)
	}
}

// The replicas of a set are spread over the nodes, each with its volume.
func TestStatefulSetSpread(t *testing.T) {
	w := newWorldBeside(t)
	labels := map[string]string{"app": "spread"}
	pod := podObject("", mounts("data"), on(""))
	pod.Labels, pod.Spec.Volumes = labels, nil
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname,
		WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: labels}}}
	const replicas = 4
	count := int32(replicas)
	_, err := node.Client.AppsV1().StatefulSets(w.namespace).Create(w.ctx(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "spread"},
		Spec: appsv1.StatefulSetSpec{Replicas: &count, ServiceName: "spread", PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector:             &metav1.LabelSelector{MatchLabels: labels},
			Template:             corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*claimObject("data", "ringvol", "64Mi")},
		}}, metav1.CreateOptions{})
	w.must("the set", err)
	on := map[string]int{}
	for i := range replicas {
		name := fmt.Sprintf("spread-%d", i)
		place := w.awaitPod(name).Spec.NodeName
		on[place]++
		if home := homeOf(w.volume("data-" + name)); home != place {
			t.Errorf("%s is on %s, its volume on %s", name, place, home)
		}
		w.run(name, "put", dataDir+"/file", "1000000", name)
	}
	if on[cluster.NodeName] != replicas/2 || on[cluster.OtherName] != replicas/2 {
		t.Errorf("replicas are on %v", on)
	}
}

// Nodes say which zone they are in, and a class that allows one zone has its volumes there.
func TestZones(t *testing.T) {
	w := newWorld(t)
	t.Cleanup(func() { w.must("the chart without zones", node.Install()) })
	label := strings.ReplaceAll(cluster.ZoneLabel, ".", `\.`)
	var settings []string
	for i, n := range []*cluster.Node{node.Node, node.Other} {
		settings = append(settings, fmt.Sprintf("nodeGroups[%d].name=%s", i, n.Zone),
			fmt.Sprintf("nodeGroups[%d].nodeSelector.%s=%s", i, label, n.Zone), fmt.Sprintf("nodeGroups[%d].topology.%s=%s", i, label, n.Zone))
	}
	w.must("groups of nodes", node.Install(settings...))
	w.eventually("both nodes' keys", func() error {
		for _, name := range []string{cluster.NodeName, cluster.OtherName} {
			found, err := node.Client.StorageV1().CSINodes().Get(w.ctx(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(found.Spec.Drivers, func(driver storagev1.CSINodeDriver) bool {
				return driver.Name == cluster.Driver && slices.Contains(driver.TopologyKeys, cluster.ZoneLabel)
			}) {
				return fmt.Errorf("%s has %+v", name, found.Spec.Drivers)
			}
		}
		return nil
	})
	class := "zone-" + w.namespace
	binding := storagev1.VolumeBindingWaitForFirstConsumer
	_, err := node.Client.StorageV1().StorageClasses().Create(w.ctx(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: cluster.Driver, VolumeBindingMode: &binding,
		AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
			{Key: cluster.ZoneLabel, Values: []string{node.Other.Zone}}}}},
	}, metav1.CreateOptions{})
	w.must("a class of one zone", err)
	t.Cleanup(func() {
		w.must("that class", node.Client.StorageV1().StorageClasses().Delete(w.ctx(), class, metav1.DeleteOptions{}))
	})
	w.claim("zoned", class, "64Mi")
	w.pod("zoned", mounts("zoned"), on(""))
	if pod := w.awaitPod("zoned"); pod.Spec.NodeName != cluster.OtherName {
		t.Errorf("a pod of %s is on %s", node.Other.Zone, pod.Spec.NodeName)
	}
	if affinity := fmt.Sprint(w.volume("zoned").Spec.NodeAffinity); !strings.Contains(affinity, node.Other.Zone) {
		t.Errorf("the volume names no zone: %s", affinity)
	}
	w.deletePod("zoned")
	w.deleteClaim("zoned")
}

// Without a pod that waits for it, a volume is made where most room is.
func TestImmediateBinding(t *testing.T) {
	needsController(t)
	w := newWorldBeside(t)
	class := "now-" + w.namespace
	binding := storagev1.VolumeBindingImmediate
	_, err := node.Client.StorageV1().StorageClasses().Create(w.ctx(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: cluster.Driver, VolumeBindingMode: &binding}, metav1.CreateOptions{})
	w.must("a class that binds at once", err)
	t.Cleanup(func() {
		w.must("that class", node.Client.StorageV1().StorageClasses().Delete(w.ctx(), class, metav1.DeleteOptions{}))
	})
	w.claim("now", class, "64Mi")
	if home := homeOf(w.volume("now")); home != cluster.NodeName {
		t.Errorf("the volume is on %s, which has less room", home)
	}
	w.pod("now", mounts("now"), on(""))
	w.awaitPod("now")
}

// An installation is moved from one mode to the other and back, under a pod that does verified I/O. Volumes and snapshots of before
// are there, can be restored from, and are deleted.
func TestModeChanged(t *testing.T) {
	w := newWorld(t)
	other := map[string]string{"controller": "node", "node": "controller"}[node.Mode]
	t.Cleanup(func() { w.must("the chart as it was", node.Install()) })
	before := w.busyPod("busy", "ringvol")
	w.claim("data", "ringvol-xfs", "320Mi")
	w.pod("data", mounts("data"))
	w.awaitPod("data")
	w.run("data", "put", dataDir+"/file", "10000000", "data")
	w.snapshot("snapshot-"+node.Mode, "data")
	for _, mode := range []string{other, node.Mode} {
		w.must("mode "+mode, node.Install("mode="+mode))
		before = w.goesOn("busy", before)
		w.must("labels of snapshots", node.LabelContents(cluster.NodeName))
		restored := "from-" + mode
		w.snapshot("later-"+mode, "data")
		w.claim(restored, "ringvol-xfs", "320Mi", from("VolumeSnapshot", "snapshot-"+node.Mode))
		w.pod(restored, mounts(restored))
		w.awaitPod(restored)
		w.run(restored, "check", dataDir+"/file", "10000000", "data")
		w.worksFromAToZ("life-" + mode)
	}
	// What one mode made the other deletes: at the end of the test all snapshots go.
	want := resource.MustParse("320Mi")
	if has := w.volume("data").Spec.Capacity[corev1.ResourceStorage]; has.Cmp(want) != 0 {
		t.Errorf("the volume has %s", has.String())
	}
}
