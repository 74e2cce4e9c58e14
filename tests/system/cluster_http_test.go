// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// What Kubernetes and Prometheus ask the controller: alive from the start, ready when what there is is known.
func TestClusterHTTP(t *testing.T) {
	b := newCluster(t)
	answers := func(path string, want int) func() error {
		return func() error {
			code, body, err := b.ctl.Get(path)
			if err == nil && code != want {
				err = fmt.Errorf("%s: %d, %s", path, code, body)
			}
			return err
		}
	}
	b.eventually(answers("/healthz", 200))
	b.must(answers("/readyz", 503)())
	b.nodes("node-a", "node-b")
	b.eventually(answers("/readyz", 200))
	v := b.volume(b.node("node-a"), "pvc-counted")
	b.must(v.Create())
	_, err := get(t, b.c, v.ID)
	b.must(err)
	families, err := b.ctl.Scrape()
	b.must(err)
	for _, name := range []string{"ringvol_build_info", "ringvol_rpc_duration_seconds", "ringvol_rpc_in_flight",
		"ringvol_reactor_loop_seconds"} {
		if families[name] == nil {
			t.Errorf("/metrics has no %s", name)
		}
	}
	// Nodes, as they are and when one has left.
	b.must(b.node("node-b").Kill())
	b.must(b.ctl.AwaitAway("node-b"))
	b.must(answers("/healthz", 200)())
	_, body, err := b.ctl.Get("/metrics")
	b.must(err)
	if !strings.Contains(body, "node-b") {
		t.Errorf("/metrics says nothing of node-b:\n%s", body)
	}
	probe, err := b.c.Probe(short(t), &csi.ProbeRequest{})
	if err != nil || (probe.GetReady() != nil && !probe.GetReady().GetValue()) {
		t.Errorf("Probe: %v, %v", probe, err)
	}
	b.must(b.node("node-b").Start())
	b.gone(v)
}

// The address for nodes is in use: clients are served, and nodes join when it is free. A killed controller's sockets are closed
// by the kernel some time after its end.
func TestClusterAddressInUse(t *testing.T) {
	b := newCluster(t)
	b.must(b.ctl.Kill())
	var other net.Listener
	var err error
	b.eventually(func() error { other, err = net.Listen("tcp", b.ctl.Listen); return err })
	b.must(b.ctl.Start())
	if !strings.Contains(b.ctl.LogTail(50), "address is in use") {
		t.Errorf("no word of an address in use:\n%s", b.ctl.LogTail(50))
	}
	b.c, err = b.ctl.Client()
	b.must(err)
	_, err = b.c.GetPluginInfo(short(t), &csi.GetPluginInfoRequest{})
	b.must(err)
	b.must(other.Close())
	b.nodes("node-a")
	v := b.volume(b.node("node-a"), "pvc-late")
	b.must(v.Create())
	b.gone(v)
}

// What cannot be is said in one line, with a hint, and the status is 2.
func TestClusterOptions(t *testing.T) {
	b := newCluster(t)
	files := b.ctl.TLS.Args()
	node := []string{"serve", "--endpoint", "unix://" + b.Path("x.sock"), "--pool", "x=" + b.Dir, "--http", "off", "--node-id", "x"}
	controller := []string{"controller", "--endpoint", "unix://" + b.Path("y.sock"), "--http", "off"}
	with := func(base []string, more ...string) []string { return append(append([]string(nil), base...), more...) }
	for what, args := range map[string][]string{
		"no --listen":                  with(controller, files...),
		"no certificates":              with(controller, "--listen", "127.0.0.1:0"),
		"a port that is none":          with(with(controller, files...), "--listen", "127.0.0.1:65536"),
		"a name to listen on":          with(with(controller, files...), "--listen", "localhost:0"),
		"a pool to forget that is odd": with(with(controller, files...), "--listen", "127.0.0.1:0", "--forget-pool", "x"),
		"--node and --listen":          with(controller, "--node", "unix:///run/x.sock", "--listen", "127.0.0.1:0"),
		"--node over the network":      with(controller, "--node", "10.0.0.1:1"),
		"an operand":                   with(controller, "x"),
		"a node without certificates":  with(node, "--controller", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--advertise", "127.0.0.1:1"),
		"a controller without a port":  with(with(node, files...), "--controller", "127.0.0.1", "--listen", "127.0.0.1:0", "--advertise", "127.0.0.1:1"),
		"a topology that is odd":       with(node, "--topology", "zone"),
		"its own segment":              with(node, "--topology", rig.TopologyKey+"=y"),
		"a rate that is none":          with(node, "--transfer-rate", "fast"),
	} {
		r := tool(t, nil, args...)
		if r.code != 2 || strings.Count(strings.TrimSpace(r.err), "\n") != 0 || r.err == "" {
			t.Errorf("%s: %+v", what, r)
		}
	}
}
