// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"ringvol.dev/tests/e2e/cluster"
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
	return fmt.Sprintf("the driver's memory: VmRSS %d KiB before, %d with %d volumes; its control group %d and %d KiB",
		idle.ResidentKiB, full.ResidentKiB, many, idle.GroupKiB, full.GroupKiB)
}
