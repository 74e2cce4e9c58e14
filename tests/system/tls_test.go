// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// tlsBed is a controller, which listens for nodes, and those who attack it.
type tlsBed struct {
	*rig.Cluster
	t    *testing.T
	ctl  *rig.Controller
	node *rig.Cert
}

func openTLS(t *testing.T) *tlsBed {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	b := &tlsBed{t: t}
	t.Cleanup(b.finish)
	if b.Cluster, err = r.NewCluster(); err != nil {
		r.Close()
		t.Fatal(err)
	}
	b.ctl, err = b.StartController("ctl")
	b.must(err)
	b.node, err = b.CA.IssueFor(rig.NodeURI("node-a"))
	b.must(err)
	return b
}

func (b *tlsBed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// finish looks at what is left: the controller runs and ends well, and its log has nothing that it should not.
func (b *tlsBed) finish() {
	if b.Cluster == nil {
		return
	}
	if b.ctl != nil {
		if err := b.ctl.Term(); err != nil {
			b.t.Error(err)
		}
		text, _ := os.ReadFile(b.ctl.Log)
		for _, word := range []string{"PRIVATE KEY", "runtime error", "AddressSanitizer"} {
			if bytes.Contains(text, []byte(word)) {
				b.t.Errorf("the log has %q", word)
			}
		}
		if b.t.Failed() {
			b.t.Log(b.ctl.LogTail(40))
		}
	}
	if err := b.Close(); err != nil {
		b.t.Error(err)
	}
}

// ask makes a connection with a certificate and calls what is not there. Nil: it was answered.
func (b *tlsBed) ask(cert *rig.Cert) error {
	conn, err := rig.DialTLS(b.ctl.Listen, cert)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	err = conn.Invoke(ctx, "/ringvol.v1.Cluster/Nothing", &emptypb.Empty{}, &emptypb.Empty{})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

// serves holds after each attack.
func (b *tlsBed) serves(after string) {
	b.t.Helper()
	if !b.ctl.Running() {
		b.t.Fatalf("after %s the controller has ended", after)
	}
	// A client gives a handshake 5 s, which a busy machine may not have for it.
	if err := rig.Eventually(time.Minute, func() error { return b.ask(b.node) }); err != nil {
		b.t.Fatalf("after %s: %v", after, err)
	}
	if _, err := b.ctl.Probe(); err != nil {
		b.t.Fatalf("after %s, on the socket: %v", after, err)
	}
}

func (b *tlsBed) dial() net.Conn {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.ctl.Listen)
	b.must(err)
	return conn
}

// closed expects the other end to hang up.
func (b *tlsBed) closed(what string, conn net.Conn) {
	b.t.Helper()
	if err := rig.AwaitEnd(conn, 20*time.Second); err != nil {
		b.t.Errorf("%s: %v", what, err)
	}
	conn.Close()
}

func (b *tlsBed) issue(ca *rig.CA, spec rig.CertSpec) *rig.Cert {
	b.t.Helper()
	cert, err := ca.Issue(spec)
	b.must(err)
	return cert
}

// handshake tries with any configuration, and reads: a client of TLS 1.3 learns of a refusal after its own part is done.
func (b *tlsBed) handshake(config *tls.Config) error {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 20 * time.Second}, "tcp", b.ctl.Listen, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, err = conn.Read(make([]byte, 9)) // the server's SETTINGS come first
	return err
}

func TestTLSRefusals(t *testing.T) {
	b := openTLS(t)
	other, err := rig.NewCA("another")
	b.must(err)
	now := time.Now()
	node := []string{rig.NodeURI("node-a")}
	for what, cert := range map[string]*rig.Cert{
		"another CA":        b.issue(other, rig.CertSpec{URIs: node}),
		"expired":           b.issue(b.CA, rig.CertSpec{URIs: node, NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)}),
		"not yet valid":     b.issue(b.CA, rig.CertSpec{URIs: node, NotBefore: now.Add(time.Hour)}),
		"no identity":       b.issue(b.CA, rig.CertSpec{DNS: []string{"ringvol"}}),
		"another's":         b.issue(b.CA, rig.CertSpec{URIs: []string{"spiffe://cluster/node-a"}}),
		"two identities":    b.issue(b.CA, rig.CertSpec{URIs: []string{rig.NodeURI("node-a"), rig.NodeURI("node-b")}}),
		"a misspelled one":  b.issue(b.CA, rig.CertSpec{URIs: []string{"ringvol://nodes/node-a"}}),
		"a server's usage":  b.issue(b.CA, rig.CertSpec{URIs: node, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}),
		"a code's signer's": b.issue(b.CA, rig.CertSpec{URIs: node, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}}),
	} {
		config := cert.ClientTLS()
		config.VerifyConnection = nil // the other CA does not know the controller
		if err := b.handshake(config); err == nil {
			t.Errorf("%s: accepted", what)
		} else if !strings.Contains(err.Error(), "remote error") {
			t.Errorf("%s: no alert: %v", what, err)
		}
	}
	for what, change := range map[string]func(*tls.Config){
		"no certificate": func(c *tls.Config) { c.Certificates = nil },
		"TLS 1.2":        func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
		"TLS 1.0":        func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS10 },
		"http/1.1":       func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} },
		"no protocol":    func(c *tls.Config) { c.NextProtos = nil },
		"a key that is not the certificate's": func(c *tls.Config) {
			c.Certificates[0].PrivateKey = b.issue(b.CA, rig.CertSpec{URIs: node}).Key
		},
	} {
		config := b.node.ClientTLS()
		change(config)
		if err := b.handshake(config); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	for what, spec := range map[string]rig.CertSpec{
		"other names beside it": {URIs: append([]string{"spiffe://cluster/node-a"}, node...), DNS: []string{"node-a"}},
		"no usage":              {URIs: node, NoUsage: true},
		"every node's":          {URIs: []string{rig.AnyNodeURI}},
	} {
		if err := b.ask(b.issue(b.CA, spec)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	b.serves("refusals")
}

// TestTLSGarbage sends what is no handshake.
func TestTLSGarbage(t *testing.T) {
	b := openTLS(t)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	bytesOf := func(n int) []byte {
		all := make([]byte, n)
		random.Read(all)
		return all
	}
	hello := b.clientHello()
	tests := map[string][]byte{
		"nothing but an end":        {},
		"HTTP/1":                    []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"HTTP/2":                    []byte(preface),
		"SSL 2":                     {0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10, 1, 0, 0x80},
		"a record that is too long": {22, 3, 1, 0xff, 0xff, 1, 2, 3},
		"a message that is too long": append([]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff},
			make([]byte, 0x3ffc)...),
		"an empty record":     {22, 3, 1, 0, 0},
		"data at first":       {23, 3, 3, 0, 5, 'h', 'e', 'l', 'l', 'o'},
		"an alert at first":   {21, 3, 3, 0, 2, 2, 40},
		"an unknown record":   {99, 3, 3, 0, 1, 0},
		"half a hello":        hello[:len(hello)/2],
		"two hellos":          append(bytes.Clone(hello), hello...),
		"a hello, then data":  append(bytes.Clone(hello), 23, 3, 3, 0, 1, 0),
		"a hello, then alert": append(bytes.Clone(hello), 21, 3, 3, 0, 2, 1, 0),
		"a hello, then dust":  append(bytes.Clone(hello), bytesOf(5000)...),
		"changes of ciphers":  append(bytes.Clone(hello), bytes.Repeat([]byte{20, 3, 3, 0, 1, 1}, 30000)...),
		"much of nothing":     make([]byte, 300000),
	}
	for i := range 200 {
		what := fmt.Sprintf("dust %d", i)
		switch {
		case i < 50:
			tests[what] = bytesOf(1 + random.Intn(20000))
		case i < 100: // looks like a record
			dust := bytesOf(5 + random.Intn(17000))
			copy(dust, []byte{byte(20 + random.Intn(4)), 3, byte(random.Intn(4))})
			tests[what] = dust
		default: // a hello with some bytes changed
			changed := bytes.Clone(hello)
			for range 1 + random.Intn(8) {
				changed[random.Intn(len(changed))] = byte(random.Intn(256))
			}
			tests[what] = changed
		}
	}
	var wait sync.WaitGroup
	limit := make(chan struct{}, 32)
	for what, data := range tests {
		limit <- struct{}{}
		wait.Go(func() {
			defer func() { <-limit }()
			conn := b.dial()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			for len(data) > 0 { // it may hang up in the middle
				n := min(len(data), 1+len(data)/3)
				if _, err := conn.Write(data[:n]); err != nil {
					break
				}
				data = data[n:]
			}
			_ = conn.(*net.TCPConn).CloseWrite()
			b.closed(what, conn)
		})
	}
	wait.Wait()
	b.serves("garbage")
}

// clientHello is a good one, as bytes.
func (b *tlsBed) clientHello() []byte {
	ours, theirs := net.Pipe()
	go func() {
		_ = tls.Client(theirs, b.node.ClientTLS()).Handshake()
	}()
	buffer := make([]byte, 1<<16)
	_ = ours.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := ours.Read(buffer)
	b.must(err)
	ours.Close()
	return buffer[:n]
}

// slowConn writes a byte at a time.
type slowConn struct{ net.Conn }

func (c slowConn) Write(data []byte) (int, error) {
	for i := range data {
		if _, err := c.Conn.Write(data[i : i+1]); err != nil {
			return i, err
		}
		if i%64 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return len(data), nil
}

// smallRecords cuts handshake records that are not encrypted into records of one byte.
type smallRecords struct{ net.Conn }

func (c smallRecords) Write(data []byte) (int, error) {
	if len(data) < 5 || data[0] != rig.RecordHandshake {
		return c.Conn.Write(data)
	}
	var all []byte
	for _, one := range data[5:] {
		all = append(all, rig.RecordHandshake, 3, 1, 0, 1, one)
	}
	_, err := c.Conn.Write(all)
	return len(data), err
}

// TestTLSPieces makes handshakes in any pieces.
func TestTLSPieces(t *testing.T) {
	b := openTLS(t)
	for what, wrap := range map[string]func(net.Conn) net.Conn{
		"bytes":         func(c net.Conn) net.Conn { return slowConn{c} },
		"small records": func(c net.Conn) net.Conn { return smallRecords{c} },
	} {
		conn := b.dial()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		client := tls.Client(wrap(conn), b.node.ClientTLS())
		if err := client.Handshake(); err != nil {
			t.Errorf("%s: %v", what, err)
		} else if _, err := client.Read(make([]byte, 9)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		conn.Close()
	}
	b.serves("pieces")
}

// TestTLSCrowd opens thousands of connections that say nothing, or a part of a handshake, and keeps them.
func TestTLSCrowd(t *testing.T) {
	b := openTLS(t)
	const many = 3000
	before := rssKiB(t, b.ctl.Pid())
	hello := b.clientHello()
	conns := make([]net.Conn, 0, many)
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	for i := range many {
		conn, err := net.Dial("tcp", b.ctl.Listen)
		b.must(err)
		conns = append(conns, conn)
		switch i % 3 {
		case 1:
			_, _ = conn.Write(hello[:1+i%(len(hello)-1)])
		case 2:
			_, _ = conn.Write(hello)
		}
		if i%500 == 499 {
			b.serves(fmt.Sprintf("%d silent connections", i+1))
		}
	}
	during := rssKiB(t, b.ctl.Pid())
	t.Logf("VmRSS: %d KiB before, %d with %d silent connections", before, during, many)
	if during > before+128<<10 && !testing.Short() { // a build with sanitizers takes more
		t.Errorf("%d KiB more", during-before)
	}
	for i, conn := range conns { // none is kept for ever
		if err := rig.AwaitEnd(conn, 30*time.Second); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	b.serves("a crowd")
}

// TestTLSManyHandshakes has as many clients as there can be nodes come at once, while one who is there keeps calling.
func TestTLSManyHandshakes(t *testing.T) {
	b := openTLS(t)
	const many = 500
	start := make(chan struct{})
	errs := make(chan error, many)
	for range many {
		go func() {
			<-start
			errs <- rig.Eventually(time.Minute, func() error { return b.ask(b.node) })
		}()
	}
	conn, err := rig.DialTLS(b.ctl.Listen, b.node)
	b.must(err)
	defer conn.Close()
	call := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := conn.Invoke(ctx, "/ringvol.v1.Cluster/Nothing", &emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) == codes.Unimplemented {
			return nil
		}
		return fmt.Errorf("a call among handshakes: %w", err)
	}
	b.must(call())
	began := time.Now()
	close(start)
	var longest time.Duration
	calls := 0
	for done := 0; done < many; {
		at := time.Now()
		b.must(call())
		longest = max(longest, time.Since(at))
		calls++
		for more := true; more; {
			select {
			case err := <-errs:
				b.must(err)
				done++
			default:
				more = false
			}
		}
	}
	t.Logf("%d connections in %v; meanwhile %d calls of another, the longest took %v", many, time.Since(began), calls, longest)
}

// preface is how a client of HTTP/2 begins.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// TestTLSRecords misbehaves once the handshake is over.
func TestTLSRecords(t *testing.T) {
	b := openTLS(t)
	preface := []byte(preface)
	random := rand.New(rand.NewSource(7))
	tests := map[string]func(r *rig.Records) error{
		"renegotiation": func(r *rig.Records) error { return r.Write(rig.RecordHandshake, b.clientHello()[5:]) },
		"a message that is not known": func(r *rig.Records) error {
			return r.Write(rig.RecordHandshake, []byte{77, 0, 0, 1, 0})
		},
		"a certificate, unasked": func(r *rig.Records) error {
			return r.Write(rig.RecordHandshake, []byte{11, 0, 0, 4, 0, 0, 0, 0})
		},
		"a message that never ends": func(r *rig.Records) error {
			return r.Write(rig.RecordHandshake, append([]byte{24, 0xff, 0xff, 0xff}, make([]byte, 8000)...))
		},
		"an empty message":        func(r *rig.Records) error { return r.Write(rig.RecordHandshake, nil) },
		"a record without a type": func(r *rig.Records) error { return r.Write(0, make([]byte, 100)) },
		"an unknown type":         func(r *rig.Records) error { return r.Write(99, []byte("x")) },
		"a record that is too long": func(r *rig.Records) error {
			_, err := r.Conn.Write(r.Seal(rig.RecordData, make([]byte, 1<<14+300), 0))
			return err
		},
		"content that is too long": func(r *rig.Records) error {
			_, err := r.Conn.Write(r.Seal(rig.RecordData, make([]byte, 1<<14+1), 0))
			return err
		},
		"plain text": func(r *rig.Records) error {
			_, err := r.Conn.Write([]byte{23, 3, 3, 0, 40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
				20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40})
			return err
		},
		"the same record twice": func(r *rig.Records) error {
			record := r.Seal(rig.RecordData, preface, 0)
			_, err := r.Conn.Write(append(bytes.Clone(record), record...))
			return err
		},
		"a changed record": func(r *rig.Records) error {
			record := r.Seal(rig.RecordData, preface, 0)
			record[5+random.Intn(len(record)-5)] ^= 1
			_, err := r.Conn.Write(record)
			return err
		},
		"an end in the middle of a record": func(r *rig.Records) error {
			record := r.Seal(rig.RecordData, preface, 0)
			_, err := r.Conn.Write(record[:len(record)-3])
			return errors.Join(err, r.Conn.(*net.TCPConn).CloseWrite())
		},
		"an end without a word": func(r *rig.Records) error { return r.Conn.(*net.TCPConn).CloseWrite() },
		"an alert":              func(r *rig.Records) error { return r.Write(rig.RecordAlert, []byte{2, 80}) },
		"goodbye":               func(r *rig.Records) error { return r.Write(rig.RecordAlert, []byte{1, 0}) },
		"half an alert":         func(r *rig.Records) error { return r.Write(rig.RecordAlert, []byte{1}) },
		"a change of ciphers": func(r *rig.Records) error {
			_, err := r.Conn.Write([]byte{20, 3, 3, 0, 1, 1})
			return err
		},
		"alerts without end": func(r *rig.Records) error {
			return flood(func() ([]byte, error) { return r.Seal(rig.RecordAlert, []byte{1, 90}, 0), nil }, r)
		},
		"new keys without end": func(r *rig.Records) error {
			return flood(func() ([]byte, error) { return r.KeyUpdate(false) }, r)
		},
		"new keys without end, and asked for": func(r *rig.Records) error {
			return flood(func() ([]byte, error) { return r.KeyUpdate(true) }, r)
		},
		"empty records without end": func(r *rig.Records) error {
			return flood(func() ([]byte, error) { return r.Seal(rig.RecordData, nil, 0), nil }, r)
		},
		"padding without end": func(r *rig.Records) error {
			return flood(func() ([]byte, error) { return r.Seal(rig.RecordData, nil, 16000), nil }, r)
		},
		"another protocol inside": func(r *rig.Records) error {
			return r.Write(rig.RecordData, []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
		},
	}
	for what, attack := range tests {
		r, err := rig.DialRecords(b.ctl.Listen, b.node)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		_ = attack(r) // it may hang up in the middle
		b.closed(what, r.Conn)
		b.serves(what)
	}

	// What is legal is no attack: keys made anew now and then, padding, a change of the stream's pieces.
	r, err := rig.DialRecords(b.ctl.Listen, b.node)
	b.must(err)
	defer r.Close()
	_, err = r.Conn.Write(r.Seal(rig.RecordData, preface, 1000))
	b.must(err)
	for range 10 {
		update, err := r.KeyUpdate(true)
		b.must(err)
		_, err = r.Conn.Write(update)
		b.must(err)
		for _, one := range []byte("\x00\x00\x08\x06\x01\x00\x00\x00\x00pingping") { // ACK of a ping: nobody minds
			b.must(r.Write(rig.RecordData, []byte{one}))
		}
	}
	if err := rig.AwaitEnd(r.Conn, 2*time.Second); err == nil {
		t.Error("a client that did nothing wrong was cut off")
	}
}

// flood sends what next makes until the other end has had enough.
func flood(next func() ([]byte, error), r *rig.Records) error {
	for range 20000 {
		record, err := next()
		if err != nil {
			return err
		}
		if _, err := r.Conn.Write(record); err != nil {
			return nil
		}
	}
	return nil
}

// TestTLSReload replaces the files of a controller that serves.
func TestTLSReload(t *testing.T) {
	b := openTLS(t)
	other, err := rig.NewCA("another")
	b.must(err)
	stranger, err := other.IssueFor(rig.NodeURI("node-b"))
	b.must(err)
	own, err := b.CA.IssueFor(rig.ControllerURI)
	b.must(err)
	held, err := rig.DialRecords(b.ctl.Listen, b.node)
	b.must(err)
	defer held.Close()
	b.must(held.Write(rig.RecordData, []byte(preface))) // else it is half open, and ends by itself
	if err := b.askAs(stranger); err == nil {
		t.Fatal("a stranger was accepted")
	}
	// Both are trusted: the stranger comes in, and nobody is sent away.
	_, err = rig.WriteTLS(b.ctl.TLS.Dir, own, b.CA, other)
	b.must(err)
	b.must(rig.Eventually(30*time.Second, func() error { return b.askAs(stranger) }))
	b.serves("a wider trust")
	// Files that are bad change nothing, and are told of once.
	_, err = rig.WriteTLSBytes(b.ctl.TLS.Dir, own.CertPEM(), []byte("nonsense"), b.CA.PEM())
	b.must(err)
	b.must(rig.Eventually(30*time.Second, func() error { return logSays(b.ctl.Log, "stay in force") }))
	time.Sleep(5 * time.Second)
	text, err := os.ReadFile(b.ctl.Log)
	b.must(err)
	if n := strings.Count(string(text), "stay in force"); n != 1 {
		t.Errorf("said %d times", n)
	}
	b.serves("bad files")
	b.must(b.askAs(stranger))
	// The old CA is not trusted any longer: who is there has to go.
	_, err = rig.WriteTLS(b.ctl.TLS.Dir, own, other)
	b.must(err)
	b.closed("a connection whose CA is gone", held.Conn)
	if err := b.ask(b.node); err == nil {
		t.Error("a node of the old CA was accepted")
	}
	b.must(b.askAs(stranger))
	m, err := b.ctl.Scrape()
	b.must(err)
	if revoked := m.Value("ringvol_tls_revoked_total"); revoked != 1 {
		t.Errorf("%v connections were revoked", revoked)
	}
	if good, refused := m.Value("ringvol_tls_handshakes_total", "result", "good"),
		m.Value("ringvol_tls_handshakes_total", "result", "refused"); good < 3 || refused < 2 {
		t.Errorf("%v good handshakes, %v refused", good, refused)
	}
	if m.Value("ringvol_tls_certificate_good") != 1 {
		t.Error("the certificate is not good")
	}
	end := time.Unix(int64(m.Value("ringvol_tls_certificate_expiry_timestamp_seconds")), 0)
	if left := time.Until(end); left < 23*time.Hour || left > 24*time.Hour {
		t.Errorf("it ends in %v", left)
	}
	b.must(logSays(b.ctl.Log, "from=127.0.0.1"))
	_, err = rig.WriteTLS(b.ctl.TLS.Dir, own, b.CA)
	b.must(err)
	b.must(rig.Eventually(30*time.Second, func() error { return b.ask(b.node) }))
}

// askAs makes a handshake with a certificate of another CA than the controller's.
func (b *tlsBed) askAs(cert *rig.Cert) error {
	config := cert.ClientTLS()
	config.VerifyConnection = nil
	return b.handshake(config)
}
