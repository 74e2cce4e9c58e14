// SPDX-License-Identifier: Apache-2.0

// Package cluster brings up one Kubernetes node of real parts in namespaces of its own: etcd, the control plane,
// containerd and kubelet, each a process with a log. What it is made of comes from .cache/e2e
// (scripts/e2e/parts.sh).
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ringvol.dev/tests/rig"
)

// Cluster is one that runs.
type Cluster struct {
	Dir        string // all that is its own lies here, and is gone after it
	Top        string // the source tree
	Kubeconfig string // of an administrator
	Config     *rest.Config
	Client     *kubernetes.Clientset
	Dynamic    *dynamic.DynamicClient
	Kubelet    *Process
	Pool       *rig.Pool // the driver's

	containerd *Process
	pki        *authority
	processes  []*Process // in the order they were started
}

// Start brings a cluster up, in the namespaces that Isolate has made.
func Start(dir, top string) (*Cluster, error) {
	c := &Cluster{Dir: dir, Top: top}
	for _, sub := range []string{"logs", "pki", "cni", "images"} {
		if err := os.MkdirAll(c.path(sub), 0o755); err != nil {
			return nil, err
		}
	}
	begin := time.Now()
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"network", c.network},
		{"control plane", c.control},
		{"node", c.node},
		{"pods' image", c.images},
		{"what ringvol needs", c.Prepare},
	} {
		if err := step.run(); err != nil {
			return c, fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(os.Stderr, "e2e: %s: %.1f s\n", step.name, time.Since(begin).Seconds())
	}
	return c, nil
}

// Stop ends all parts, the last first. It is the namespaces that tidy up: nothing is asked to end well.
func (c *Cluster) Stop() error {
	var errs []error
	for i := len(c.processes) - 1; i >= 0; i-- {
		errs = append(errs, c.processes[i].Kill())
	}
	return errors.Join(errs...)
}

// KeepLogs copies the logs to a directory that outlives the cluster.
func (c *Cluster) KeepLogs(to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return errors.Join(os.CopyFS(filepath.Join(to, "parts"), os.DirFS(c.path("logs"))),
		os.CopyFS(filepath.Join(to, "pods"), os.DirFS("/var/log/pods")))
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.Dir}, elem...)...)
}

func (c *Cluster) bin(name string) string {
	return filepath.Join(c.Top, ".cache/e2e/bin", name)
}

func (c *Cluster) debian(path string) string {
	return filepath.Join(c.Top, ".cache/e2e/debian", path)
}

// run runs a program as a part of the cluster and returns what it printed.
func (c *Cluster) run(limit time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = c.environment()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// environment is what the parts are started with: containerd finds its shim and runc on the path.
func (c *Cluster) environment() []string {
	return []string{"PATH=" + c.debian("usr/bin") + ":" + c.debian("usr/sbin") + ":/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + c.Dir, "TMPDIR=" + c.Dir}
}
