// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

const probePath = "/csi.v1.Identity/Probe"

func (b *bed) peer() *peer {
	b.t.Helper()
	p, err := dialPeer(b.d.Socket)
	b.must(err)
	b.t.Cleanup(func() { p.Close() })
	return p
}

func TestBadMessages(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	p := b.peer()
	garbage := make([]byte, 300)
	for i := range garbage {
		garbage[i] = 0xff
	}
	for _, c := range []struct {
		what    string
		body    []byte
		headers []string
		status  []codes.Code
	}{
		{"a truncated message", message([]byte("x"), 0, 100), nil, []codes.Code{codes.Internal, codes.InvalidArgument}},
		{"half a prefix", []byte{0, 0, 0}, nil, []codes.Code{codes.Internal, codes.InvalidArgument}},
		{"no message", nil, nil, []codes.Code{codes.Internal, codes.InvalidArgument, codes.Unimplemented}},
		{"two messages", append(message(nil, 0, -1), message(nil, 0, -1)...), nil,
			[]codes.Code{codes.Internal, codes.InvalidArgument, codes.Unimplemented}},
		{"an oversized message", message(make([]byte, 65536), 0, 5<<20), nil, []codes.Code{codes.ResourceExhausted}},
		{"a message of 4 GiB", message(nil, 0, 0xffffffff), nil, []codes.Code{codes.ResourceExhausted}},
		{"a compressed message", message([]byte("zzz"), 1, -1), []string{"grpc-encoding", "gzip"},
			[]codes.Code{codes.Unimplemented}},
		{"an unknown compression", message([]byte("zzz"), 1, -1), []string{"grpc-encoding", "rot13"},
			[]codes.Code{codes.Unimplemented}},
		{"the compressed flag without an encoding", message([]byte("zzz"), 1, -1), nil,
			[]codes.Code{codes.Internal, codes.Unimplemented}},
		{"garbage", message(garbage, 0, -1), nil, []codes.Code{codes.Internal, codes.InvalidArgument}},
		{"an unknown flag", message(nil, 0x42, -1), nil,
			[]codes.Code{codes.Internal, codes.InvalidArgument, codes.Unimplemented}},
		{"a bad timeout", message(nil, 0, -1), []string{"grpc-timeout", "soon"},
			[]codes.Code{codes.Internal, codes.InvalidArgument, codes.OK}},
		{"an unknown method", message(nil, 0, -1), []string{":path", "/csi.v1.Identity/Nothing"},
			[]codes.Code{codes.Unimplemented}},
		{"a path of one part", message(nil, 0, -1), []string{":path", "/x"}, []codes.Code{codes.Unimplemented}},
	} {
		a, err := p.call(probePath, c.body, c.headers...)
		if err != nil {
			// The connection may be given up for some; never the driver.
			t.Errorf("%s: %v", c.what, err)
			p = b.peer()
			continue
		}
		status, err := strconv.Atoi(a.headers["grpc-status"])
		if err != nil || !slices.Contains(c.status, codes.Code(status)) {
			t.Errorf("%s: %v (reset %v %v), want %v", c.what, a.headers, a.reset, a.code, c.status)
		}
		if strings.Contains(c.what, "compress") && c.headers != nil && a.headers["grpc-accept-encoding"] == "" {
			t.Errorf("%s: no grpc-accept-encoding in %v", c.what, a.headers)
		}
		if err := p.probe(); err != nil {
			t.Errorf("after %s: %v", c.what, err)
			p = b.peer()
		}
	}
	for _, kind := range []string{"text/html", "application/json", "application/grpc-web"} {
		a, err := p.call(probePath, message(nil, 0, -1), "content-type", kind)
		b.must(err)
		if a.headers[":status"] != "415" {
			t.Errorf("content-type %s: %v", kind, a.headers)
		}
	}
	_, err := b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: strings.Repeat("x", 100)},
		grpc.UseCompressor(gzip.Name))
	b.refused("a client that compresses", err, codes.Unimplemented)
	big := &csi.CreateVolumeRequest{Name: strings.Repeat("x", 5<<20)}
	_, err = b.c.CreateVolume(short(t), big, grpc.MaxCallSendMsgSize(64<<20))
	b.refused("a message of 5 MiB", err, codes.ResourceExhausted)
	b.must(b.d.AwaitReady())
}

// Messages in pieces of every size, and all requests of a connection in one write.
func TestSplitMessages(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	p := b.peer()
	body, err := proto.Marshal(&csi.ListVolumesRequest{MaxEntries: 3})
	b.must(err)
	whole := message(body, 0, -1)
	for cut := range len(whole) + 1 {
		id, err := p.request("/csi.v1.Controller/ListVolumes", false)
		b.must(err)
		b.must(p.framer.WriteData(id, false, whole[:cut]))
		b.must(p.framer.WriteData(id, false, nil))
		b.must(p.framer.WriteData(id, true, whole[cut:]))
		a, err := p.read(id)
		b.must(err)
		if a.headers["grpc-status"] != "0" {
			t.Errorf("cut at %d: %v", cut, a.headers)
		}
	}
	q := b.peer()
	var last uint32
	for range 50 {
		id, err := q.request(probePath, false)
		b.must(err)
		b.must(q.framer.WriteData(id, true, message(nil, 0, -1)))
		last = id
	}
	if a, err := q.read(last); err != nil || a.headers["grpc-status"] != "0" {
		t.Errorf("the last of 50: %v %v", a, err)
	}
}

// Noise instead of HTTP/2, before and after a proper beginning.
func TestNoise(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	noise := func(n int) []byte {
		out := make([]byte, n)
		for i := range out {
			out[i] = byte(random.Uint32())
		}
		return out
	}
	for i := range 60 {
		conn, err := net.Dial("unix", b.d.Socket)
		b.must(err)
		switch i % 4 {
		case 1:
			_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		case 2:
			_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
		case 3:
			_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		}
		_, _ = conn.Write(noise(random.IntN(4096)))
		conn.Close()
	}
	p := b.peer()
	_, err := p.Write(noise(65536))
	if err == nil {
		b.must(p.closed())
	}
	b.must(b.d.AwaitReady())
}

func TestGrpcurlNeedsNoFiles(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	stream, err := reflectpb.NewServerReflectionClient(b.c.Conn).ServerReflectionInfo(short(t))
	b.must(err)
	ask := func(req *reflectpb.ServerReflectionRequest) *reflectpb.ServerReflectionResponse {
		t.Helper()
		b.must(stream.Send(req))
		reply, err := stream.Recv()
		b.must(err)
		return reply
	}
	var names []string
	for _, s := range ask(&reflectpb.ServerReflectionRequest{
		MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{ListServices: "*"},
	}).GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{"csi.v1.Identity", "csi.v1.Controller", "csi.v1.Node", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not in %v", want, names)
		}
	}
	reply := ask(&reflectpb.ServerReflectionRequest{
		MessageRequest: &reflectpb.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: "csi.v1.Controller.CreateVolume"},
	}).GetFileDescriptorResponse().GetFileDescriptorProto()
	found := false
	for _, raw := range reply {
		var file descriptorpb.FileDescriptorProto
		b.must(proto.Unmarshal(raw, &file))
		found = found || file.GetPackage() == "csi.v1" && len(file.GetService()) == 5
	}
	if !found {
		t.Error("csi.v1 is not described")
	}
	if ask(&reflectpb.ServerReflectionRequest{
		MessageRequest: &reflectpb.ServerReflectionRequest_FileByFilename{FileByFilename: "nothing.proto"},
	}).GetErrorResponse().GetErrorCode() != int32(codes.NotFound) {
		t.Error("a file that is not has no error")
	}
	b.must(stream.CloseSend())

	health := healthpb.NewHealthClient(b.c.Conn)
	for _, service := range []string{"", "csi.v1.Node"} {
		reply, err := health.Check(short(t), &healthpb.HealthCheckRequest{Service: service})
		b.must(err)
		if reply.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v", service, reply.GetStatus())
		}
	}
	_, err = health.Check(short(t), &healthpb.HealthCheckRequest{Service: "nothing"})
	b.refused("health of nothing", err, codes.NotFound)
	watch, err := health.Watch(short(t), &healthpb.HealthCheckRequest{})
	b.must(err)
	if first, err := watch.Recv(); err != nil || first.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("watching: %v %v", first, err)
	}
	// The drain ends with the watcher still there.
	b.must(b.d.Term())
}

// rss is the driver's resident memory in bytes.
func rss(t *testing.T, pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func TestTenThousandConnections(t *testing.T) {
	const count = 10000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur < count+500 {
		if limit.Max < count+500 {
			t.Skipf("only %d files may be open", limit.Max)
		}
		limit.Cur = limit.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Skip(err)
		}
	}
	b := open(t, "xfs", 1<<30)
	before := rss(t, b.d.Pid())
	conns := make([]net.Conn, 0, count)
	closeAll := func() {
		for _, conn := range conns {
			conn.Close()
		}
		conns = nil
	}
	defer closeAll()
	for i := range count {
		var conn net.Conn
		b.eventually(func() (err error) { // a full backlog answers EAGAIN
			conn, err = net.Dial("unix", b.d.Socket)
			return err
		})
		conns = append(conns, conn)
		if i%1000 == 0 {
			if _, err := b.d.Probe(); err != nil {
				t.Fatalf("with %d connections: %v", i, err)
			}
		}
	}
	b.must(b.d.AwaitReady())
	v := b.volume("meanwhile", "block")
	b.must(v.Up())
	b.must(v.Gone())
	if after := rss(t, b.d.Pid()); after > before+512*mib {
		t.Errorf("%d MiB before, %d with the connections", before/mib, after/mib)
	}
	closeAll()
	b.eventually(func() error { return b.peer().probe() })
}

// A client that asks for much and reads nothing.
func TestClientThatStopsReading(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	for i := range 50 {
		b.must(b.d.Volume(fmt.Sprintf("a-volume-with-a-long-name-%d", i), rig.BlockCap(), 16*mib).Create())
	}
	before := rss(t, b.d.Pid())
	for range 4 {
		p := b.peer()
		_ = p.SetDeadline(time.Now().Add(3 * time.Second))
		b.must(p.framer.WriteWindowUpdate(0, 1<<30))
		for range 5000 {
			id, err := p.request("/csi.v1.Controller/ListVolumes", false)
			if err == nil {
				err = p.framer.WriteData(id, true, message(nil, 0, -1))
			}
			if err != nil {
				break // it stopped listening to us, which is right
			}
		}
	}
	b.must(b.d.AwaitReady())
	v := b.volume("meanwhile", "block")
	b.must(v.Up())
	b.must(v.Gone())
	if after := rss(t, b.d.Pid()); after > before+128*mib {
		t.Errorf("%d MiB before, %d with clients that do not read", before/mib, after/mib)
	}
	reply, err := b.c.ListVolumes(short(t), &csi.ListVolumesRequest{})
	b.must(err)
	if len(reply.GetEntries()) != 50 {
		t.Errorf("%d volumes", len(reply.GetEntries()))
	}
	for _, entry := range reply.GetEntries() {
		_, err := b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: entry.GetVolume().GetVolumeId()})
		b.must(err)
	}
}

// Streams opened and reset as fast as they can be, and pings without end.
func TestFloods(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	p := b.peer()
	var err error
	for range 20000 {
		var id uint32
		if id, err = p.request("/csi.v1.Controller/ListVolumes", true); err != nil {
			break
		}
		if err = p.framer.WriteRSTStream(id, 8); err != nil {
			break
		}
	}
	t.Logf("resets ended with %v", err)
	b.must(b.d.AwaitReady())
	q := b.peer()
	goaway := errors.New("no GOAWAY")
	go func() {
		for range 20000 {
			if q.framer.WritePing(false, [8]byte{1}) != nil {
				return
			}
		}
	}()
	for {
		frame, err := q.framer.ReadFrame()
		if err != nil {
			break
		}
		if frame.Header().Type == 7 {
			goaway = nil
		}
	}
	if goaway != nil {
		t.Error("pings without end and no GOAWAY")
	}
	b.must(b.d.AwaitReady())
}

// A call whose client is gone goes on; the retry gets what it made.
func TestCancelledCreate(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("cancelled", "ext4")
	body, err := proto.Marshal(v.Request())
	b.must(err)
	for range 20 {
		p := b.peer()
		id, err := p.request("/csi.v1.Controller/CreateVolume", false)
		b.must(err)
		b.must(p.framer.WriteData(id, true, message(body, 0, -1)))
		b.must(p.framer.WriteRSTStream(id, 8))
		p.Close()
	}
	b.must(v.Create())
	if names := b.pool.Names("volumes"); len(names) != 1 {
		t.Errorf("volumes: %v", names)
	}
	b.must(v.Delete())
}

// peer is an HTTP/2 client that can be made to misbehave: frames by hand on a unix socket.
type peer struct {
	net.Conn
	framer *http2.Framer
	block  bytes.Buffer
	hpack  *hpack.Encoder
	next   uint32
}

// answer is what came back on one stream.
type answer struct {
	headers map[string]string // trailers included
	data    []byte
	reset   bool
	code    http2.ErrCode
}

func dialPeer(socket string) (*peer, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	p := &peer{Conn: conn, framer: http2.NewFramer(conn, conn), next: 1}
	p.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.hpack = hpack.NewEncoder(&p.block)
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		conn.Close()
		return nil, err
	}
	if err := p.framer.WriteSettings(); err != nil {
		conn.Close()
		return nil, err
	}
	return p, nil
}

// request opens a stream; headers override the usual ones, an empty value leaves one out.
func (p *peer) request(path string, end bool, headers ...string) (uint32, error) {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "localhost"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}
outer:
	for i := 0; i+1 < len(headers); i += 2 {
		for k := range fields {
			if fields[k].Name == headers[i] {
				fields[k].Value = headers[i+1]
				continue outer
			}
		}
		fields = append(fields, hpack.HeaderField{Name: headers[i], Value: headers[i+1]})
	}
	p.block.Reset()
	for _, field := range fields {
		if field.Value != "" {
			if err := p.hpack.WriteField(field); err != nil {
				return 0, err
			}
		}
	}
	id := p.next
	p.next += 2
	return id, p.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: p.block.Bytes(), EndHeaders: true, EndStream: end,
	})
}

// message is a gRPC message with its prefix; length < 0 tells the truth.
func message(body []byte, flags byte, length int) []byte {
	if length < 0 {
		length = len(body)
	}
	out := []byte{flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(out[1:], uint32(length))
	return append(out, body...)
}

// read takes frames until the stream has ended.
func (p *peer) read(stream uint32) (*answer, error) {
	a := &answer{headers: map[string]string{}}
	for {
		frame, err := p.framer.ReadFrame()
		if err != nil {
			return a, err
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = p.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = p.framer.WritePing(true, f.Data)
			}
		case *http2.GoAwayFrame:
			return a, fmt.Errorf("GOAWAY %v %s", f.ErrCode, f.DebugData())
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				a.reset, a.code = true, f.ErrCode
				return a, nil
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID != stream {
				continue
			}
			for _, field := range f.Fields {
				a.headers[field.Name] = field.Value
			}
			if f.StreamEnded() {
				return a, nil
			}
		case *http2.DataFrame:
			if f.StreamID != stream {
				continue
			}
			a.data = append(a.data, f.Data()...)
			if f.StreamEnded() {
				return a, nil
			}
		}
	}
}

// call sends one request whose body is these bytes and reads the answer.
func (p *peer) call(path string, body []byte, headers ...string) (*answer, error) {
	id, err := p.request(path, false, headers...)
	if err != nil {
		return nil, err
	}
	for first := true; first || len(body) > 0; first = false {
		n := min(len(body), 16384)
		if err := p.framer.WriteData(id, n == len(body), body[:n]); err != nil {
			return nil, err
		}
		body = body[n:]
	}
	return p.read(id)
}

// probe is a call that has to work.
func (p *peer) probe() error {
	a, err := p.call("/csi.v1.Identity/Probe", message(nil, 0, -1))
	if err != nil {
		return err
	}
	if a.headers["grpc-status"] != "0" {
		return fmt.Errorf("Probe: %v", a.headers)
	}
	return nil
}

// closed waits for the other side to close, reading what still comes.
func (p *peer) closed() error {
	for {
		if _, err := p.framer.ReadFrame(); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				return errors.New("the connection stays open")
			}
			if strings.Contains(err.Error(), "frame too large") {
				continue
			}
			return nil
		}
	}
}
