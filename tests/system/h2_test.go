// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

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
