// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"ringvol.dev/tests/rig"
)

// How long anything may take before a test gives up on it; no test asks how long it took.
const patience = 3 * time.Minute

// world is a test's namespace and what is done in it. What it asks for it gets, or the test ends.
type world struct {
	t         *testing.T
	namespace string
}

// newWorld makes a namespace. At the end of the test it is deleted, and every volume of it has to go.
func newWorld(t *testing.T) *world {
	t.Helper()
	created, err := node.Client.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("a namespace: %v", err)
	}
	w := &world{t: t, namespace: created.Name}
	t.Cleanup(w.end)
	w.eventually("a service account", func() error {
		_, err := node.Client.CoreV1().ServiceAccounts(w.namespace).Get(w.ctx(), "default", metav1.GetOptions{})
		return err
	})
	return w
}

func (w *world) ctx() context.Context { return context.Background() }

func (w *world) must(what string, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	w.must(what, rig.Eventually(patience, check))
}

func (w *world) end() {
	w.t.Helper()
	if w.t.Failed() {
		w.explain()
	}
	w.must("deleting the namespace", node.Client.CoreV1().Namespaces().Delete(w.ctx(), w.namespace,
		metav1.DeleteOptions{}))
	err := rig.Eventually(patience, func() error {
		if _, err := node.Client.CoreV1().Namespaces().Get(w.ctx(), w.namespace, metav1.GetOptions{}); err == nil {
			return fmt.Errorf("namespace %s is still there: %s", w.namespace, w.remains())
		} else if !apierrors.IsNotFound(err) {
			return err
		}
		volumes, err := node.Client.CoreV1().PersistentVolumes().List(w.ctx(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, volume := range volumes.Items {
			if claim := volume.Spec.ClaimRef; claim != nil && claim.Namespace == w.namespace {
				return fmt.Errorf("volume %s of %s is still there: %s", volume.Name, claim.Name, volume.Status.Message)
			}
		}
		return nil
	})
	if err != nil {
		w.t.Errorf("tidying up: %v", err)
	}
}

func (w *world) remains() string {
	var names []string
	if pods, err := node.Client.CoreV1().Pods(w.namespace).List(w.ctx(), metav1.ListOptions{}); err == nil {
		for _, pod := range pods.Items {
			names = append(names, "pod "+pod.Name)
		}
	}
	if claims, err := node.Client.CoreV1().PersistentVolumeClaims(w.namespace).List(w.ctx(), metav1.ListOptions{}); err == nil {
		for _, claim := range claims.Items {
			names = append(names, "claim "+claim.Name)
		}
	}
	return strings.Join(names, ", ")
}

// explain logs what a reader of a failure wants to know first: pods that are not well, and the events.
func (w *world) explain() {
	pods, err := node.Client.CoreV1().Pods("").List(w.ctx(), metav1.ListOptions{})
	if err == nil {
		for _, pod := range pods.Items {
			if unwell := podUnwell(&pod); unwell != nil {
				w.t.Logf("pod %s/%s: %v", pod.Namespace, pod.Name, unwell)
			}
		}
	}
	for _, event := range w.events() {
		w.t.Logf("event %s %s: %s: %s", event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason, event.Message)
	}
}

func (w *world) events() []corev1.Event {
	events, err := node.Client.CoreV1().Events(w.namespace).List(w.ctx(), metav1.ListOptions{})
	if err != nil {
		return nil
	}
	slices.SortFunc(events.Items, func(a, b corev1.Event) int {
		return a.LastTimestamp.Compare(b.LastTimestamp.Time)
	})
	return events.Items
}

// awaitEvent waits for an event about an object whose reason and message have these words in them.
func (w *world) awaitEvent(object string, words ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("an event about %s with %q", object, words), func() error {
		var seen []string
		for _, event := range w.events() {
			if event.InvolvedObject.Name != object {
				continue
			}
			text := event.Reason + ": " + event.Message
			seen = append(seen, text)
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) }) {
				return nil
			}
		}
		return fmt.Errorf("there are: %s", strings.Join(seen, "; "))
	})
}

// podUnwell is why a pod is not running and ready, nil if it is.
func podUnwell(pod *corev1.Pod) error {
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
	return fmt.Errorf("%s", strings.Join(why, ", "))
}

// awaitPod waits for a pod to run and be ready.
func (w *world) awaitPod(name string) *corev1.Pod {
	w.t.Helper()
	var found *corev1.Pod
	w.eventually("pod "+name, func() error {
		pod, err := node.Client.CoreV1().Pods(w.namespace).Get(w.ctx(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found = pod
		return podUnwell(pod)
	})
	return found
}

// deletePod deletes a pod and waits until it is gone, its volumes published no more.
func (w *world) deletePod(name string) {
	w.t.Helper()
	w.must("deleting pod "+name, node.Client.CoreV1().Pods(w.namespace).Delete(w.ctx(), name, metav1.DeleteOptions{}))
	w.eventually("pod "+name+" gone", func() error {
		_, err := node.Client.CoreV1().Pods(w.namespace).Get(w.ctx(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		} else if err == nil {
			err = fmt.Errorf("it is there")
		}
		return err
	})
}

// try runs the workload's command in a pod of its.
func (w *world) try(pod string, args ...string) (string, error) {
	request := node.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(w.namespace).Name(pod).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{Command: append([]string{"/workload"}, args...),
		Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(node.Config, "GET", request.URL().String())
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(w.ctx(), patience)
	defer cancel()
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return stdout.String(), fmt.Errorf("%s in pod %s: %w: %s", strings.Join(args, " "), pod, err, stderr.String())
	}
	return stdout.String(), nil
}

// run is try that has to succeed.
func (w *world) run(pod string, args ...string) string {
	w.t.Helper()
	out, err := w.try(pod, args...)
	w.must("run", err)
	return out
}
