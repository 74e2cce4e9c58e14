// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Hostile is a client that says what it likes in frames, with windows of zero, and never reads an answer.
type Hostile struct {
	conn   net.Conn
	framer *http2.Framer
	block  bytes.Buffer
	hpack  *hpack.Encoder
	next   uint32
}

const hostileTimeout = 20 * time.Second

// DialHostile connects to a driver's unix socket.
func DialHostile(socket string) (*Hostile, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	h := &Hostile{conn: conn, framer: http2.NewFramer(conn, nil), next: 1}
	h.hpack = hpack.NewEncoder(&h.block)
	_ = conn.SetDeadline(time.Now().Add(hostileTimeout))
	_, err = conn.Write([]byte(http2.ClientPreface))
	err = errors.Join(err, h.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	if err != nil {
		conn.Close()
		return nil, err
	}
	return h, nil
}

func (h *Hostile) Close() { h.conn.Close() }

// Request sends a request whose message is these bytes. With end it is complete, else it says that more comes.
func (h *Hostile) Request(path string, message []byte, end bool) error {
	h.block.Reset()
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "a"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = h.hpack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	id := h.next
	h.next += 2
	if err := h.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: h.block.Bytes(), EndHeaders: true,
	}); err != nil {
		return err
	}
	length := len(message)
	if !end {
		length += 1 << 20
	}
	body := append([]byte{0, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)}, message...)
	for len(body) > 0 {
		n := min(len(body), 16384)
		if err := h.framer.WriteData(id, end && n == len(body), body[:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	return nil
}

// Hoard opens so many connections that each make the driver keep as much as they can: parts of requests, lists of
// volumes, descriptions of services. The driver may close a connection; then it has had enough of it. They stay
// open until the function that is returned is called.
func Hoard(socket string, connections int) (func(), error) {
	const streams = 128
	symbol := append([]byte{0x22, 17}, "csi.v1.Controller"...) // file_containing_symbol: the largest file
	all := make([]*Hostile, connections)
	var wait sync.WaitGroup
	errs := make([]error, connections)
	for i := range all {
		wait.Go(func() {
			h, err := DialHostile(socket)
			if err != nil {
				errs[i] = fmt.Errorf("hostile connection %d: %w", i, err)
				return
			}
			all[i] = h
			for range streams {
				switch i % 3 {
				case 0:
					err = h.Request("/csi.v1.Controller/CreateVolume", make([]byte, 63<<10), false)
				case 1:
					err = h.Request("/csi.v1.Controller/ListVolumes", nil, true)
				default:
					err = h.Request("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", symbol, true)
				}
				if err != nil {
					return // it was told to go
				}
			}
		})
	}
	wait.Wait()
	return func() {
		for _, h := range all {
			if h != nil {
				h.Close()
			}
		}
	}, errors.Join(errs...)
}
