// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
)

// openHTTP is a started bed whose driver serves HTTP.
func openHTTP(t *testing.T, args ...string) *bed {
	t.Helper()
	b := newBed(t, "xfs", 2<<30)
	b.must(b.d.ServeHTTP())
	b.d.Args = append(b.d.Args, args...)
	return b.start()
}

func TestHTTP(t *testing.T) {
	b := openHTTP(t)
	url := "http://" + b.d.HTTP
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n"} {
		status, body, err := b.d.Get(path)
		b.must(err)
		if status != 200 || body != want {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	status, body, err := b.d.Get("/")
	b.must(err)
	if status != 404 || !strings.Contains(body, "/metrics") {
		t.Errorf("/: %d %q", status, body)
	}

	// One connection for all that follows, answers without a body and in chunks among them.
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{}}
	reused := 0
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if info.Reused {
			reused++
		}
	}}
	requests := []struct{ method, path string }{{"GET", "/healthz"}, {"HEAD", "/healthz"}, {"GET", "/metrics"},
		{"HEAD", "/metrics"}, {"GET", "/none"}, {"GET", "/healthz?verbose"}}
	for _, r := range requests {
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), r.method, url+r.path, nil)
		b.must(err)
		reply, err := client.Do(req)
		b.must(err)
		text, err := io.ReadAll(reply.Body)
		b.must(err)
		reply.Body.Close()
		if (r.method == "HEAD") != (len(text) == 0) {
			t.Errorf("%s %s: a body of %d bytes", r.method, r.path, len(text))
		}
		if r.path == "/metrics" && reply.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
			t.Errorf("Content-Type %q", reply.Header.Get("Content-Type"))
		}
	}
	if reused != len(requests)-1 {
		t.Errorf("%d of %d requests found the connection open", reused, len(requests)-1)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		req, err := http.NewRequest(method, url+"/healthz", strings.NewReader("body"))
		b.must(err)
		reply, err := client.Do(req)
		b.must(err)
		reply.Body.Close()
		if reply.StatusCode != 405 || reply.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d, Allow %q", method, reply.StatusCode, reply.Header.Get("Allow"))
		}
	}
	req, err := http.NewRequest("GET", url+"/healthz", strings.NewReader("body"))
	b.must(err)
	reply, err := client.Do(req)
	b.must(err)
	reply.Body.Close()
	if reply.StatusCode != 413 {
		t.Errorf("a GET with a body: %d", reply.StatusCode)
	}
	// A connection that is kept open does not keep the driver.
	b.must(b.d.Term())
	log := b.d.LogTail(20)
	if strings.Contains(log, "cut off") || strings.Contains(log, "before all was idle") || !strings.Contains(log, "msg=stopped") {
		t.Errorf("the drain waited for an idle connection:\n%s", log)
	}
}

// talk sends text and reads all answers until the driver closes, which half-closing asks it to.
func talk(t *testing.T, address, text string) []*http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	var replies []*http.Response
	for r := bufio.NewReader(conn); ; {
		reply, err := http.ReadResponse(r, nil)
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return replies
		}
		if err != nil {
			t.Fatalf("after %d answers: %v", len(replies), err)
		}
		body, err := io.ReadAll(reply.Body)
		if err != nil {
			t.Fatal(err)
		}
		reply.Body = io.NopCloser(strings.NewReader(string(body)))
		replies = append(replies, reply)
	}
}

func TestHTTPRaw(t *testing.T) {
	b := openHTTP(t)
	get := "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
	var many strings.Builder
	for range 2000 { // more than one receive takes
		many.WriteString(get)
	}
	if replies := talk(t, b.d.HTTP, many.String()); len(replies) != 2000 {
		t.Errorf("%d of 2000 pipelined requests were answered", len(replies))
	}
	replies := talk(t, b.d.HTTP, get+"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"+get+
		"GET /metrics HTTP/1.0\r\n\r\n"+get)
	if len(replies) != 4 {
		t.Fatalf("%d answers instead of 4: after one to HTTP/1.0 the connection ends", len(replies))
	}
	for _, i := range []int{1, 3} {
		body, _ := io.ReadAll(replies[i].Body)
		if _, err := rig.ParseMetrics(string(body)); err != nil || len(body) == 0 {
			t.Errorf("answer %d: %v", i, err)
		}
	}
	for text, want := range map[string]int{
		"nonsense\r\n\r\n":                                    400,
		"GET /healthz HTTP/1.1\r\n\r\n":                       400,
		"GET /healthz HTTP/2.0\r\nHost: a\r\n\r\n":            505,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                    505,
		"GET /" + strings.Repeat("x", 5000) + " HTTP/1.1\r\n": 414,
		"GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 20000):  431,
	} {
		replies := talk(t, b.d.HTTP, text)
		if len(replies) != 1 || replies[0].StatusCode != want || !replies[0].Close {
			t.Errorf("%.40q: %d answers", text, len(replies))
			for _, r := range replies {
				t.Errorf("  %s", r.Status)
			}
		}
	}
}

// Clients that dawdle get no more places of HTTP than an address has: nobody notices, the oldest make room for those that
// follow, and the others are told in time.
func TestHTTPSlowClients(t *testing.T) {
	b := openHTTP(t)
	var slow []net.Conn
	for range 300 { // the limit of an address is 128
		conn, err := net.Dial("tcp", b.d.HTTP)
		b.must(err)
		defer conn.Close()
		_, err = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nX")
		b.must(err)
		slow = append(slow, conn)
	}
	if _, err := b.d.Probe(); err != nil {
		t.Errorf("gRPC suffers from slow HTTP clients: %v", err)
	}
	if status, _, err := b.d.Get("/healthz"); err != nil || status != 200 {
		t.Errorf("/healthz: %d, %v", status, err)
	}
	_ = slow[0].SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := slow[0].Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest is still there: %d, %v", n, err)
	}
	last := slow[len(slow)-1]
	_ = last.SetReadDeadline(time.Now().Add(20 * time.Second))
	reply, err := http.ReadResponse(bufio.NewReader(last), nil)
	b.must(err)
	if reply.StatusCode != 408 {
		t.Errorf("a slow client was told %s", reply.Status)
	}
}

// A hundred scrapers while volumes come and go: each gets a whole and sound answer.
func TestManyScrapers(t *testing.T) {
	b := openHTTP(t)
	stop := make(chan struct{})
	var churn, scrapers sync.WaitGroup
	for i := range 4 {
		churn.Go(func() {
			v := b.d.Volume(fmt.Sprintf("churn-%d", i), rig.BlockCap(), 16*mib)
			for {
				if err := v.Create(); err != nil {
					t.Error(err)
					return
				}
				if err := v.Stage(); err != nil {
					t.Error(err)
				}
				if err := v.Unstage(); err != nil {
					t.Error(err)
				}
				if err := rig.Eventually(20*time.Second, v.Delete); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 100 {
		scrapers.Go(func() {
			for range 3 {
				m, err := b.d.Scrape()
				if errors.Is(err, io.EOF) { // on a busy machine it connected and sent nothing for 10 s
					m, err = b.d.Scrape()
				}
				if err != nil {
					t.Error(err)
				} else if m.Value("ringvol_pool_ready", "pool", "default") != 1 {
					t.Error("the pool is not told of")
				}
			}
		})
	}
	scrapers.Wait()
	close(stop)
	churn.Wait()
}

// A pool whose statfs hangs: /healthz says so, and nobody waits for it.
func TestHTTPHungPool(t *testing.T) {
	b := openHTTP(t)
	end := b.hang(b.pool.Path)
	reads := func(want int, word string) func() error {
		return func() error {
			status, body, err := b.d.Get("/healthz")
			if err == nil && (status != want || !strings.Contains(body, word)) {
				err = fmt.Errorf("/healthz: %d %q", status, body)
			}
			return err
		}
	}
	b.must(rig.Eventually(30*time.Second, reads(503, "does not answer")))
	status, body, err := b.d.Get("/readyz")
	b.must(err)
	if status != 503 || !strings.Contains(body, "does not answer") {
		t.Errorf("/readyz: %d %q", status, body)
	}
	b.healthIs(1, "does not answer")
	b.healthIs(1, "does not answer", "--ready")
	m, err := b.d.Scrape()
	b.must(err)
	if m.Value("ringvol_pool_ready", "pool", "default") != 0 {
		t.Error("the metrics do not know that the pool hangs")
	}
	end()
	b.must(rig.Eventually(30*time.Second, reads(200, "ok")))
	b.healthIs(0, "live")
	b.must(rig.Eventually(30*time.Second, func() error {
		status, _, err := b.d.Get("/readyz")
		if err == nil && status != 200 {
			err = fmt.Errorf("/readyz: %d", status)
		}
		return err
	}))
}

func TestHTTPMissingPool(t *testing.T) {
	b := newBed(t, "xfs", 512<<20)
	b.must(b.d.ServeHTTP())
	b.d.PoolOptions = ""
	b.must(b.d.Start())
	// Until the pool was looked at it is being read, and no less unready.
	b.eventually(func() error {
		status, body, err := b.d.Get("/readyz")
		if err == nil && (status != 503 || !strings.Contains(body, "missing")) {
			err = fmt.Errorf("/readyz: %d %q", status, body)
		}
		return err
	})
	status, body, err := b.d.Get("/healthz")
	b.must(err)
	if status != 200 {
		t.Errorf("/healthz of a driver whose pool is not there: %d %q; a restart would not help", status, body)
	}
}

func TestHTTPAddress(t *testing.T) {
	b := newBed(t, "xfs", 512<<20)
	b.must(b.d.ServeHTTP())
	// In use: CSI is served, HTTP follows when the address is free.
	other, err := net.Listen("tcp", b.d.HTTP)
	b.must(err)
	b.start()
	if !strings.Contains(b.d.LogTail(50), "address is in use") {
		t.Errorf("no word of an address in use:\n%s", b.d.LogTail(50))
	}
	other.Close()
	b.must(rig.Eventually(30*time.Second, func() error { _, _, err := b.d.Get("/healthz"); return err }))
	b.must(b.d.Term())

	// Not this host's: the option is wrong, and the driver says so.
	b.d.Args = []string{"--http", "192.0.2.1:9808"}
	b.must(b.d.Launch())
	code, err := b.d.Wait(20 * time.Second)
	b.must(err)
	if code != 1 || !strings.Contains(b.d.LogTail(5), "--http 192.0.2.1:9808") {
		t.Errorf("status %d:\n%s", code, b.d.LogTail(5))
	}
}
