// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"net"
	"sync"
	"time"
)

// Wire is a stretch of network between two processes: whoever dials Addr gets what listens at the other end. It can be
// cut in one direction or in both. What is sent while it is cut arrives when it is mended, as with TCP after a loss.
type Wire struct {
	Addr string

	listener net.Listener
	to       string
	mu       sync.Mutex
	mended   *sync.Cond
	cut      [2]bool // Forth, Back
	closed   bool
	conns    map[net.Conn]bool
	bytes    [2]int64
}

// The directions of a wire: from who dialled, and to it.
const (
	Forth = 0
	Back  = 1
)

// NewWire leads from a new address of the loopback to this one.
func (r *Rig) NewWire(to string) (*Wire, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{Addr: listener.Addr().String(), listener: listener, to: to, conns: map[net.Conn]bool{}}
	w.mended = sync.NewCond(&w.mu)
	go w.serve()
	r.Defer(func() error { w.close(); return nil })
	return w, nil
}

// Cut lets nothing through any more in these directions; none named: in both.
func (w *Wire) Cut(directions ...int) {
	w.set(true, directions)
}

// Mend undoes it.
func (w *Wire) Mend() {
	w.set(false, nil)
}

func (w *Wire) set(cut bool, directions []int) {
	if len(directions) == 0 {
		directions = []int{Forth, Back}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range directions {
		w.cut[d] = cut
	}
	w.mended.Broadcast()
}

// Break resets all connections there are; new ones can be made.
func (w *Wire) Break() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn := range w.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		conn.Close()
	}
}

// Bytes is how many have gone in a direction.
func (w *Wire) Bytes(direction int) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes[direction]
}

func (w *Wire) serve() {
	for {
		conn, err := w.listener.Accept()
		if err != nil {
			return
		}
		go w.carry(conn)
	}
}

func (w *Wire) track(conn net.Conn, add bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if add && !w.closed {
		w.conns[conn] = true
		return true
	}
	delete(w.conns, conn)
	return false
}

// through waits while the direction is cut; false: the wire is gone.
func (w *Wire) through(direction, bytes int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.cut[direction] && !w.closed {
		w.mended.Wait()
	}
	w.bytes[direction] += int64(bytes)
	return !w.closed
}

func (w *Wire) carry(from net.Conn) {
	defer from.Close()
	if !w.track(from, true) {
		return
	}
	defer w.track(from, false)
	if !w.through(Forth, 0) {
		return
	}
	to, err := net.DialTimeout("tcp", w.to, 5*time.Second)
	if err != nil {
		if tcp, ok := from.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		return
	}
	defer to.Close()
	if !w.track(to, true) {
		return
	}
	defer w.track(to, false)
	var both sync.WaitGroup
	both.Go(func() { w.copy(to, from, Forth) })
	both.Go(func() { w.copy(from, to, Back) })
	both.Wait()
}

func (w *Wire) copy(to, from net.Conn, direction int) {
	block := make([]byte, 64<<10)
	for {
		n, err := from.Read(block)
		if !w.through(direction, n) {
			return
		}
		if n > 0 {
			if _, err := to.Write(block[:n]); err != nil {
				from.Close()
				return
			}
		}
		if err != nil { // an end or a reset; the other side sees it when this direction lets it through
			to.Close()
			return
		}
	}
}

func (w *Wire) close() {
	w.mu.Lock()
	w.closed = true
	for conn := range w.conns {
		conn.Close()
	}
	w.mended.Broadcast()
	w.mu.Unlock()
	w.listener.Close()
}
