// SPDX-License-Identifier: Apache-2.0

// Package system runs the driver on real loop devices and file systems and talks to it as kubelet
// and the sidecars do.
package system

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const mib = rig.MiB

// bed is a running driver on one pool, and what a test needs around it.
type bed struct {
	*rig.Rig
	t       *testing.T
	d       *rig.Driver
	c       *rig.Client
	pool    *rig.Pool
	toolEnv []string // of tools that are run
	// untidy: the test leaves volumes behind on purpose, nobody looks for leaks.
	untidy bool
}

// newBed makes the pool and the driver, and starts nothing yet.
func newBed(t *testing.T, fs string, size int64) *bed {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	b := &bed{Rig: r, t: t}
	t.Cleanup(b.finish)
	b.pool, err = r.NewPool("default", fs, size)
	b.must(err)
	b.d = r.NewDriver(b.pool)
	return b
}

// start starts the driver and waits until the pools are ready.
func (b *bed) start() *bed {
	b.t.Helper()
	b.must(b.d.Start())
	b.must(b.d.AwaitReady())
	b.connect()
	return b
}

func (b *bed) connect() {
	b.t.Helper()
	var err error
	b.c, err = b.d.Client()
	b.must(err)
}

// open is a started bed; most tests need no more.
func open(t *testing.T, fs string, size int64) *bed {
	t.Helper()
	return newBed(t, fs, size).start()
}

// another is a second pool of a bed that is not started yet.
func (b *bed) another(name string) *rig.Pool {
	b.t.Helper()
	pool, err := b.NewPool(name, "xfs", 1<<30)
	b.must(err)
	b.d.Pools = append(b.d.Pools, pool)
	return pool
}

// beside runs another program until the test ends; its log is in the test's directory.
func (b *bed) beside(program string, args ...string) {
	b.t.Helper()
	log, err := os.Create(b.Path(filepath.Base(program) + ".log"))
	b.must(err)
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	b.must(cmd.Start())
	b.Defer(func() error { _ = cmd.Process.Kill(); _ = cmd.Wait(); return nil })
}

func (b *bed) finish() {
	if b.d != nil {
		if !b.t.Failed() && !b.untidy {
			if err := b.d.Leaks(); err != nil {
				b.t.Errorf("left behind: %v", err)
			}
		}
		if b.d.Running() && !b.t.Failed() {
			if err := b.d.Term(); err != nil {
				b.t.Error(err)
			}
		}
		if b.t.Failed() {
			b.t.Logf("the driver's last words:\n%s", b.d.LogTail(40))
		}
	}
	if err := b.Close(); err != nil {
		b.t.Errorf("cleaning up: %v", err)
	}
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// refused checks that err is one of these codes and that its message says something.
func (b *bed) refused(what string, err error, want ...codes.Code) {
	b.t.Helper()
	refused(b.t, what, err, want...)
}

func refused(t *testing.T, what string, err error, want ...codes.Code) {
	t.Helper()
	got := rig.Code(err)
	for _, code := range want {
		if got == code {
			s, _ := status.FromError(err)
			if strings.TrimSpace(s.Message()) == "" {
				t.Errorf("%s: %v without a message", what, got)
			}
			if len(s.Details()) > 0 {
				t.Errorf("%s: %v with details", what, got)
			}
			return
		}
	}
	t.Errorf("%s: %v (%v), want %v", what, got, err, want)
}

// says checks that the error names a thing.
func (b *bed) says(what string, err error, words ...string) {
	b.t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			b.t.Errorf("%s: %v does not say %q", what, err, word)
		}
	}
}

func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), rig.CallTimeout)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls a condition; the limit only bounds a failure.
func (b *bed) eventually(check func() error) {
	b.t.Helper()
	b.must(rig.Eventually(30*time.Second, check))
}

func (b *bed) volume(name, kind string) *rig.Volume {
	v := b.d.Volume(name, rig.CapFor(kind), rig.MinSize(kind))
	return v
}

type badOptions struct {
	args  []string
	words string
}

// refusedAtStart: a driver with such options says what is wrong with them, and ends.
func refusedAtStart(t *testing.T, all []badOptions) {
	t.Helper()
	for _, c := range all {
		out, err := exec.Command(rig.Binary(), append([]string{"serve"}, c.args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.words) {
			t.Errorf("%q: %v: %s", c.args, err, out)
		}
	}
}
