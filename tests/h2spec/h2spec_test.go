// SPDX-License-Identifier: Apache-2.0

// Package h2spec runs the HTTP/2 conformance cases of h2spec against the driver, once on a TCP endpoint and once
// on its unix socket. Each case is a test of its own. A miss has to be on the list of misses, and a case on that
// list has to fail, so that the list stays true.
package h2spec

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// misses are the cases that fail, by section and number, each with its reason.
var misses = map[string]string{
	"http2/5.1.1/2": "a HEADERS frame on a lower stream than the last: nghttp2 ignores it, because it cannot tell a " +
		"stream that never was from one that has ended",
}

// fewest is how many cases of h2spec there are at least, and have to pass.
const (
	fewest      = 145
	fewestGood  = 142
	caseTimeout = 2 * time.Second
)

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start runs a driver with a pool that is not there: HTTP/2 is served all the same.
func start(t *testing.T, port int) *rig.Driver {
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	d := r.NewDriver(&rig.Pool{Name: "default", Path: r.Path("none")})
	d.PoolOptions = ""
	d.Args = []string{"--insecure-tcp", "--endpoint", fmt.Sprintf("tcp://127.0.0.1:%d", port)}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	return d
}

// relay carries a TCP port's connections to a unix socket, because h2spec speaks TCP alone.
func relay(t *testing.T, socket string) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go join(in.(*net.TCPConn), socket)
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func join(in *net.TCPConn, socket string) {
	defer in.Close()
	out, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.(*net.UnixConn).CloseWrite()
	}()
	_, _ = io.Copy(in, out)
}

type count struct{ all, good int }

// verdicts makes a test of each case of a group that was run.
func verdicts(t *testing.T, group *spec.TestGroup, n *count) {
	for i, c := range append(append([]*spec.TestCase{}, group.Tests...), group.StrictTests...) {
		if c.Result == nil {
			continue
		}
		n.all++
		id := group.ID() + "/" + strconv.Itoa(i+1)
		if !c.Result.Failed && !c.Result.Skipped {
			n.good++
		}
		t.Run(strings.ReplaceAll(id+" "+c.Desc, "/", "_"), func(t *testing.T) { judge(t, id, c) })
	}
	for _, g := range group.Groups {
		verdicts(t, g, n)
	}
}

func judge(t *testing.T, id string, c *spec.TestCase) {
	why, missed := misses[id]
	switch {
	case c.Result.Skipped:
		t.Skip("h2spec could not run it")
	case c.Result.Failed && !missed:
		var told *spec.TestError
		if errors.As(c.Result.Error, &told) {
			t.Errorf("%s\nexpected: %s\nactual: %s", c.Requirement, strings.Join(told.Expected, "; "), told.Actual)
		} else {
			t.Error(c.Result.Error)
		}
	case !c.Result.Failed && missed:
		t.Errorf("%s passes: take it off the list of misses (%s)", id, why)
	}
}

func run(t *testing.T, port int) {
	c := &config.Config{Host: "127.0.0.1", Port: port, Path: "/csi.v1.Identity/Probe", Timeout: caseTimeout,
		MaxHeaderLen: 4000}
	var n count
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		group.Test(c)
		verdicts(t, group, &n)
	}
	t.Logf("%d of %d", n.good, n.all)
	if n.all < fewest || n.good < fewestGood {
		t.Errorf("%d of %d cases pass; %d of %d have to", n.good, n.all, fewestGood, fewest)
	}
}

func TestH2spec(t *testing.T) {
	port := freePort(t)
	d := start(t, port)
	t.Run("tcp", func(t *testing.T) { run(t, port) })
	t.Run("unix", func(t *testing.T) { run(t, relay(t, d.Socket)) })
	if !d.Running() {
		t.Error("the driver has ended:\n" + d.LogTail(20))
	}
}
