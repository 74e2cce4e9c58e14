// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

type clusterThing struct {
	ID, Name, Node, State, Why, Address string
	Topology                            []string
	Pools                               []struct{ Name, Uuid8, State string }
}

type clusterListed struct {
	Nodes, Pools, Volumes, Snapshots []clusterThing
	Driver                           *struct{}
}

func (b *clusterBed) ls() (clusterListed, run) {
	b.t.Helper()
	var listed clusterListed
	r := tool(b.t, nil, "ls", "--cluster", "--json", "--endpoint", "unix://"+b.ctl.Socket)
	if r.code == 0 {
		b.must(json.Unmarshal([]byte(r.out), &listed))
	}
	return listed, r
}

func named(things []clusterThing, of func(clusterThing) string, want string) *clusterThing {
	for i := range things {
		if of(things[i]) == want {
			return &things[i]
		}
	}
	return nil
}

// ls --cluster has what all nodes have; a node that is away or stands still is a line, and no hang.
func TestClusterTools(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	v, w := b.volume(b.node("node-a"), "pvc-a"), b.volume(b.node("node-b"), "pvc-b")
	b.must(v.Create())
	b.must(w.Create())
	nodeID := func(c clusterThing) string { return c.ID }
	name := func(c clusterThing) string { return c.Name }
	listed, r := b.ls()
	if r.code != 0 || len(listed.Nodes) != 2 || len(listed.Pools) != 2 || listed.Driver != nil {
		t.Fatalf("%+v", r)
	}
	for volume, node := range map[string]string{"pvc-a": "node-a", "pvc-b": "node-b"} {
		if c := named(listed.Volumes, name, volume); c == nil || c.Node != node {
			t.Errorf("%s: %+v", volume, c)
		}
		n := named(listed.Nodes, nodeID, node)
		if n == nil || n.State != "present" || n.Why != "" || n.Address == "" || len(n.Topology) == 0 || len(n.Pools) != 1 || n.Pools[0].State != "ready" {
			t.Errorf("%s: %+v", node, n)
		}
	}
	// The tables.
	table := tool(t, nil, "ls", "--cluster", "--endpoint", "unix://"+b.ctl.Socket)
	for _, word := range []string{"NODE", "node-a", "node-b", "pvc-a", "present", "ADDRESS"} {
		if !strings.Contains(table.out, word) {
			t.Errorf("ls --cluster lacks %s:\n%s", word, table.out)
		}
	}
	// It stands still: a line, soon.
	process := &b.node("node-b").Process
	b.must(syscall.Kill(process.Pid(), syscall.SIGSTOP))
	still, r := b.ls()
	top := tool(t, nil, "top", "--cluster", "--once", "--json", "--interval", "0.1", "--endpoint", "unix://"+b.ctl.Socket)
	b.must(syscall.Kill(process.Pid(), syscall.SIGCONT))
	if n := named(still.Nodes, nodeID, "node-b"); r.code != 0 || n == nil || n.Why == "" || named(still.Volumes, name, "pvc-a") == nil {
		t.Errorf("a node that stands still: %+v", r)
	}
	if top.code != 0 || !strings.Contains(top.out, `"nodes_missing":[{"id":"node-b"`) {
		t.Errorf("top --cluster: %+v", top)
	}
	// It is away.
	b.must(b.node("node-b").Kill())
	b.must(b.ctl.AwaitAway("node-b"))
	away, r := b.ls()
	if n := named(away.Nodes, nodeID, "node-b"); r.code != 0 || n == nil || n.State != "absent" || len(n.Pools) != 1 {
		t.Errorf("a node that is away: %+v", r)
	}
	if named(away.Volumes, name, "pvc-b") != nil {
		t.Errorf("a volume of a node that is away: %+v", away.Volumes)
	}
	table = tool(t, nil, "ls", "--cluster", "--endpoint", "unix://"+b.ctl.Socket)
	if !strings.Contains(table.out, "absent") || !strings.Contains(table.out, "away") {
		t.Errorf("%+v", table)
	}
	b.must(b.node("node-b").Start())
	b.eventually(func() error {
		if again, r := b.ls(); r.code != 0 || named(again.Volumes, name, "pvc-b") == nil {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	// A node's driver is none, and nobody's pools are read instead of it.
	if r := tool(t, nil, "ls", "--cluster", "--endpoint", "unix://"+b.node("node-a").Socket); r.code != 1 || !strings.Contains(r.err, "no controller") {
		t.Errorf("of a node: %+v", r)
	}
	if r := tool(t, nil, "top", "--cluster", "--once", "--endpoint", "unix://"+b.node("node-a").Socket); r.code != 1 || !strings.Contains(r.err, "controller") {
		t.Errorf("of a node: %+v", r)
	}
	if r := tool(t, nil, "ls", "--cluster", "--endpoint", "unix://"+b.Path("nobody.sock")); r.code != 1 || strings.Contains(r.err, "read from the pools") {
		t.Errorf("of nobody: %+v", r)
	}
	b.gone(v)
	b.gone(w)
}
