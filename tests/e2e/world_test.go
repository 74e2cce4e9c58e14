// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"ringvol.dev/tests/e2e/cluster"
	"ringvol.dev/tests/rig"
)

// How long anything may take before a test gives up on it, on a machine that does much else; no test asks how long it took.
const patience = 10 * time.Minute

// world is a test's namespace and what is done in it. What it asks for it gets, or the test ends.
type world struct {
	t         *testing.T
	namespace string
}

// newWorldBeside is newWorld for a test that changes nothing but its own namespace: it runs beside others.
func newWorldBeside(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorld(t)
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
	w.t.Log(node.Unwell(""))
	w.t.Log(node.DriverLogs())
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
		return cluster.Unready(pod)
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
	return w.exec(w.namespace, pod, "workload", append([]string{"/workload"}, args...)...)
}

// exec runs a command in a container of any pod, and returns what it says on standard output.
func (w *world) exec(namespace, pod, container string, command ...string) (string, error) {
	return w.execFed(nil, namespace, pod, container, command...)
}

// execFed is exec with a standard input, if there is one.
func (w *world) execFed(stdin io.Reader, namespace, pod, container string, command ...string) (string, error) {
	request := node.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{Container: container, Command: command,
		Stdin: stdin != nil, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(node.Config, "GET", request.URL().String())
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(w.ctx(), patience)
	defer cancel()
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &stdout, Stderr: &stderr}); err != nil {
		return stdout.String(), fmt.Errorf("%s in pod %s: %w: %s", strings.Join(command, " "), pod, err, stderr.String())
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

// stat is what a pod sees of a path.
func (w *world) stat(pod, path string) seen {
	w.t.Helper()
	var s seen
	w.must("stat", json.Unmarshal([]byte(w.run(pod, "stat", path)), &s))
	return s
}

// seen is what 'workload stat' prints, done what 'workload status' prints.
type (
	seen struct {
		UID, GID, Mode       uint32
		FSBytes, DeviceBytes int64
		ReadOnly             bool
	}
	done struct {
		Writes, Reads uint64
		Error         string
	}
)

// progress is what a pod that runs 'workload io' has done; an I/O error that it has seen is final.
func (w *world) progress(pod string) (done, error) {
	var d done
	out, err := w.try(pod, "status")
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		return d, err
	}
	if d.Error != "" {
		return d, rig.Stop(fmt.Errorf("I/O in pod %s: %s", pod, d.Error))
	}
	return d, nil
}

// goesOn waits until a pod has written and read on since then.
func (w *world) goesOn(pod string, since done) done {
	w.t.Helper()
	var now done
	w.eventually("I/O of pod "+pod, func() error {
		var err error
		if now, err = w.progress(pod); err != nil {
			return err
		}
		if now.Writes <= since.Writes+10 || now.Reads <= since.Reads {
			return fmt.Errorf("%d writes and %d reads, before %d and %d", now.Writes, now.Reads, since.Writes, since.Reads)
		}
		return nil
	})
	return now
}

// busyPod makes a claim and a pod that does verified I/O on it.
func (w *world) busyPod(name, class string) done {
	w.t.Helper()
	w.claim(name, class, "400Mi")
	w.pod(name, mounts(name), command("io", dataDir+"/busy", "256"))
	w.awaitPod(name)
	return w.goesOn(name, done{})
}

// volume is the volume a claim is bound to.
func (w *world) volume(claim string) *corev1.PersistentVolume {
	w.t.Helper()
	var volume *corev1.PersistentVolume
	w.eventually("claim "+claim, func() error {
		found, err := node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Get(w.ctx(), claim, metav1.GetOptions{})
		if err == nil && found.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("is %s", found.Status.Phase)
		}
		if err != nil {
			return err
		}
		volume, err = node.Client.CoreV1().PersistentVolumes().Get(w.ctx(), found.Spec.VolumeName, metav1.GetOptions{})
		return err
	})
	return volume
}

// deleteClaim deletes a claim and waits until its volume is gone.
func (w *world) deleteClaim(name string) {
	w.t.Helper()
	volume := w.volume(name)
	w.must("deleting claim "+name, node.Client.CoreV1().PersistentVolumeClaims(w.namespace).Delete(w.ctx(), name,
		metav1.DeleteOptions{}))
	w.volumeGone(volume.Name)
}

func (w *world) volumeGone(name string) {
	w.t.Helper()
	w.eventually("volume "+name+" gone", func() error {
		volume, err := node.Client.CoreV1().PersistentVolumes().Get(w.ctx(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		} else if err == nil {
			err = fmt.Errorf("it is %s: %s", volume.Status.Phase, volume.Status.Message)
		}
		return err
	})
}
