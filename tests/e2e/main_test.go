// SPDX-License-Identifier: Apache-2.0

// Package e2e runs ringvol on a real Kubernetes node: pods get their volumes from the API server, the scheduler,
// the sidecars and kubelet, and lose none of them in what happens to a node. One cluster serves all tests; each
// has a namespace of its own in it (world.go).
package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringvol.dev/tests/e2e/cluster"
)

// node is the cluster that all tests share.
var node *cluster.Cluster

func TestMain(m *testing.M) {
	os.Exit(cluster.Isolate(func(dir string) int {
		top, err := filepath.Abs("../..")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		node, err = cluster.Start(dir, top, mode())
		if err == nil {
			err = node.Install(settings()...)
		}
		code := 1
		if err == nil && cluster.Offered() {
			err = node.Offer() // ends with the namespaces
		} else if err == nil {
			code = m.Run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e: the cluster does not come up:", err)
		}
		if err := node.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the cluster:", err)
			code = 1
		}
		if err := node.KeepLogs(filepath.Join(top, "build/test-logs/e2e")); err != nil {
			fmt.Fprintln(os.Stderr, "keeping the logs:", err)
		}
		return code
	}))
}

// A pod without a volume: what the other tests stand on works.
func TestPodRuns(t *testing.T) {
	w := newWorld(t)
	w.pod("plain")
	w.awaitPod("plain")
	if out := w.run("plain", "stat", "/"); !strings.Contains(out, "FSBytes") {
		t.Errorf("the workload says %q", out)
	}
	if out, err := w.try("plain", "no-such-command"); err == nil {
		t.Errorf("a command that does not exist succeeds: %q", out)
	}
}

// settings are those of the chart that tests count on from the start: Kubernetes' own want inline volumes, in namespaces of theirs.
func settings() []string {
	if !externalAsked() {
		return nil
	}
	return []string{"inline.enabled=true", "inline.namespaces[0]=*", "inline.maxSize=5Gi"}
}

// mode is the chart's: every scenario is run in both, one after the other (scripts/e2e.sh --mode).
func mode() string {
	if mode := os.Getenv("RINGVOL_E2E_MODE"); mode != "" {
		return mode
	}
	return "controller"
}
