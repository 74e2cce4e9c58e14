// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// health runs `ringvol health`; the line it says, with its status.
func (b *bed) health(args ...string) (int, string) {
	b.t.Helper()
	cmd := exec.Command(rig.Binary(), append([]string{"health", "--endpoint", "unix://" + b.d.Socket}, args...)...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	line := strings.TrimSuffix(string(out), "\n")
	if line == "" || strings.Contains(line, "\n") {
		b.t.Errorf("health %v does not say one line: %q", args, out)
	}
	return cmd.ProcessState.ExitCode(), line
}

func (b *bed) healthIs(want int, word string, args ...string) {
	b.t.Helper()
	if code, line := b.health(args...); code != want || !strings.Contains(line, word) {
		b.t.Errorf("health %v: %d %q, not %d %q", args, code, line, want, word)
	}
}

func TestHealthCommand(t *testing.T) {
	b := newBed(t, "xfs", 512<<20)
	b.healthIs(1, "no driver listens")
	b.healthIs(2, "--timeout '0'", "--timeout", "0")
	b.healthIs(2, "did you mean '--ready'", "--redy")

	// A pool that is not there: no reason to kill the driver, which says what is missing.
	options := b.d.PoolOptions
	b.d.PoolOptions = ""
	b.must(b.d.Start())
	b.healthIs(0, "live")
	b.eventually(func() error {
		if code, line := b.health("--ready"); code != 1 || !strings.Contains(line, "missing") {
			return fmt.Errorf("--ready: %d %q", code, line)
		}
		return nil
	})
	b.must(b.d.Term())

	b.d.PoolOptions = options
	b.start()
	b.healthIs(0, "live")
	b.healthIs(0, "ready", "--ready")
	// Its loop hangs: the kernel accepts for it, and nothing is ever answered.
	b.must(syscall.Kill(b.d.Pid(), syscall.SIGSTOP))
	b.healthIs(1, "has not answered for 1 s", "--timeout", "1")
	b.must(syscall.Kill(b.d.Pid(), syscall.SIGCONT))
	b.healthIs(0, "live")
}

// manyFiles lets this process have so many descriptors.
func manyFiles(t *testing.T, count uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < count {
		t.Skipf("RLIMIT_NOFILE is %d", limit.Max)
	}
}

func dialFrom(host, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	return dialer.Dial("tcp", address)
}

// probe is what kubelet does: a connection of its own, a request, and 200 within the time.
func probe(host, address, path string) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		Dial:              func(_, to string) (net.Conn, error) { return dialFrom(host, to) },
	}}
	reply, err := client.Get("http://" + address + path)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if _, err = io.Copy(io.Discard, reply.Body); err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, reply.Status)
	}
	return err
}

// halfOpen is a client that opens connections and says nothing, or half of a request.
type halfOpen struct {
	stop  atomic.Bool
	dials atomic.Int64
	mutex sync.Mutex
	conns map[int]net.Conn
	ends  sync.WaitGroup
}

// again: what is closed is opened anew, at once.
func newHalfOpen(b *bed, count int, host, address string, again bool) *halfOpen {
	h := &halfOpen{conns: map[int]net.Conn{}}
	dial := func(i int) bool {
		conn, err := dialFrom(host, address)
		if err != nil {
			return false
		}
		h.mutex.Lock()
		defer h.mutex.Unlock()
		h.conns[i] = conn
		h.dials.Add(1)
		if i%2 == 1 {
			_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nX")
		}
		if h.stop.Load() {
			conn.Close()
		}
		return true
	}
	for i := range count {
		if !dial(i) {
			b.t.Fatal("no connection")
		}
		h.ends.Add(1)
		go func() {
			defer h.ends.Done()
			for open := true; open; {
				h.mutex.Lock()
				conn := h.conns[i]
				h.mutex.Unlock()
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
				open = again && !h.stop.Load() && dial(i)
			}
		}()
	}
	return h
}

func (h *halfOpen) end() {
	h.mutex.Lock()
	h.stop.Store(true)
	for _, conn := range h.conns {
		conn.Close()
	}
	h.mutex.Unlock()
	h.ends.Wait()
}

// 300 connections of one address that are half open lose nobody's probe: neither that of another address, nor one of
// the same, nor the command that asks over the unix socket.
func TestHalfOpenConnections(t *testing.T) {
	manyFiles(t, 1000)
	b := openHTTP(t)
	for _, again := range []bool{false, true} {
		h := newHalfOpen(b, 300, "127.0.0.1", b.d.HTTP, again)
		for range 40 {
			for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
				if err := probe("127.0.0.2", b.d.HTTP, path); err != nil {
					t.Errorf("from another address: %v", err)
				}
			}
			// While the others are opened again and again, those of this address are its own affair.
			if !again {
				if err := probe("127.0.0.1", b.d.HTTP, "/healthz"); err != nil {
					t.Errorf("from the same address: %v", err)
				}
			}
			b.healthIs(0, "live")
		}
		h.end()
		t.Logf("opened %d connections", h.dials.Load())
	}
}

// 1,037 connections that are open and say nothing shut nobody out, on any of the endpoints.
func TestIdleConnections(t *testing.T) {
	const idle = 1037
	manyFiles(t, 4*idle)
	b := newBed(t, "xfs", 512<<20)
	address, err := rig.FreeAddress()
	b.must(err)
	b.d.Args = []string{"--insecure-tcp", "--endpoint", "tcp://" + address}
	b.start()
	for _, kind := range []struct{ network, address string }{{"unix", b.d.Socket}, {"tcp", address}} {
		t.Run(kind.network, func(t *testing.T) {
			var conns []net.Conn
			defer func() {
				for _, conn := range conns {
					conn.Close()
				}
			}()
			for range idle {
				conn, err := net.Dial(kind.network, kind.address)
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, conn)
			}
			for range 20 {
				b.healthIs(0, "live")
				b.healthIs(0, "live", "--endpoint", "tcp://"+address)
			}
			// The connection that was there before has called, and is not the one to go.
			if _, err := b.c.GetPluginInfo(short(t), &csi.GetPluginInfoRequest{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// Every local user could call it.
func TestPlainTCPIsRefused(t *testing.T) {
	address, err := rig.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(short(t), rig.Binary(), "serve", "--endpoint", "tcp://"+address, "--pool", "none", "--http", "off")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 2 || strings.Count(string(out), "\n") != 1 ||
		!strings.Contains(string(out), "--insecure-tcp") {
		t.Errorf("status %d: %s", code, out)
	}
}
