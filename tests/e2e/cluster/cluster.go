// SPDX-License-Identifier: Apache-2.0

// Package cluster brings up a Kubernetes cluster of two nodes and real parts in namespaces of its own: etcd, the
// control plane, and for each node containerd and kubelet, each a process with a log. What it is made of comes from
// .cache/e2e (scripts/e2e/parts.sh).
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
)

// Cluster is one that runs.
type Cluster struct {
	*Node        // the first, in whose namespaces the control plane runs
	Other *Node  // in namespaces of its own
	Mode  string // of the chart: controller, node

	Dir        string // all that is its own lies here, and is gone after it
	Top        string // the source tree
	Kubeconfig string // of an administrator
	Config     *rest.Config
	Client     *kubernetes.Clientset
	Dynamic    *dynamic.DynamicClient

	pki       *authority
	processes []*Process // in the order they were started
}

// Start brings a cluster up, in the namespaces that Isolate has made.
func Start(dir, top, mode string) (*Cluster, error) {
	c := &Cluster{Dir: dir, Top: top, Mode: mode}
	c.Node = &Node{Name: NodeName, IP: nodeIP, Zone: "zone-a", c: c, podRange: "10.244.0.0/24"}
	c.Other = &Node{Name: OtherName, IP: otherIP, Zone: "zone-b", c: c, podRange: "10.244.1.0/24"}
	for _, sub := range []string{"logs", "pki", "images", NodeName, OtherName} {
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
		{"names", c.serveNames},
		{"node", c.Node.start},
		{"other node", c.Other.start},
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
		os.CopyFS(filepath.Join(to, "pods", NodeName), os.DirFS("/var/log/pods")),
		os.CopyFS(filepath.Join(to, "pods", OtherName), os.DirFS(c.path("node", OtherName, "var/log/pods"))))
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
