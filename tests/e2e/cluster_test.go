// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
)

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
