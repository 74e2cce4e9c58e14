// SPDX-License-Identifier: Apache-2.0

// Package ublk drives the data process (`ringvol ublkd`) by its socket, without a driver. It runs as
// root on a kernel with ublk: in the guest, by scripts/vm/tests.sh ublk.
package ublk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

// The messages of src/backends/ublk/ublkd_proto.h; every field is at its natural place, so that
// encoding/binary writes them without gaps.

const (
	magic   = 0x6b627672
	version = 1

	typeHello  = 1
	typeAttach = 2
	typeDetach = 3
	typeResize = 4
	typeList   = 5

	stateNone       = 0
	stateAttaching  = 1
	stateLive       = 2
	stateRecovering = 3
	stateWaiting    = 4
	stateDetaching  = 5

	flagReadOnly  = 1 << 0
	flagNoDiscard = 1 << 1
	flagDirectIO  = 1 << 2
	flagZeroCopy  = 1 << 3
	flagHasUblk   = 1 << 8
	flagCanResize = 1 << 9
)

type head struct {
	Magic   uint32
	Version uint16
	Type    uint16
	ID      uint64
}

type request struct {
	Head               head
	ImageDev, ImageIno uint64
	Tag                [64]byte
	DevID              uint32
	Flags              uint32
	BlockSize          uint32
	Queues, Depth      uint16
	Path               [4096]byte
}

type device struct {
	State        uint32
	DevID        uint32
	Major, Minor uint32
	Node         [32]byte
	Tag          [64]byte
	ImageDev     uint64
	ImageIno     uint64
	SizeBytes    uint64
	BlockSize    uint32
	Flags        uint32
	Queues       uint16
	Depth        uint16
	Recoveries   uint32
	Reads        uint64
	Writes       uint64
	Flushes      uint64
	Discards     uint64
	ReadBytes    uint64
	WrittenBytes uint64
	Errors       uint64
	LastErrorNs  uint64
	LastErrno    uint32
	Pad          uint32
	Why          [384]byte
}

type reply struct {
	Head     head
	Res      int32
	Flags    uint32
	Code     [24]byte
	Message  [384]byte
	Features uint64
	Pid      int32
	Devices  uint32
	Build    [32]byte
	Device   device
}

func text(b []byte) string {
	return string(bytes.TrimRight(b, "\x00"))
}

func (d *device) node() string { return text(d.Node[:]) }

// replyError is what the data process refused a request with.
type replyError struct {
	code, message string
	errno         syscall.Errno
}

func (e *replyError) Error() string { return e.code + ": " + e.message }

type client struct {
	fd   int
	next uint64
}

func dial(path string) (*client, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	// A test that waits longer has found a hang.
	tv := syscall.NsecToTimeval(int64(60 * time.Second))
	_ = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &tv)
	return &client{fd: fd}, nil
}

func (c *client) close() { syscall.Close(c.fd) }

func (c *client) send(r *request, image *os.File) error {
	c.next++
	r.Head.Magic, r.Head.Version, r.Head.ID = magic, version, c.next
	var buf bytes.Buffer
	if err := binary.Write(&buf, binary.LittleEndian, r); err != nil {
		return err
	}
	var rights []byte
	if image != nil {
		rights = syscall.UnixRights(int(image.Fd()))
	}
	return syscall.Sendmsg(c.fd, buf.Bytes(), rights, nil, 0)
}

func (c *client) receive() (*reply, error) {
	raw := make([]byte, 8192)
	n, _, err := syscall.Recvfrom(c.fd, raw, 0)
	for err == syscall.EINTR {
		n, _, err = syscall.Recvfrom(c.fd, raw, 0)
	}
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("the connection was closed")
	}
	var out reply
	if err := binary.Read(bytes.NewReader(raw[:n]), binary.LittleEndian, &out); err != nil {
		return nil, fmt.Errorf("a reply of %d bytes: %w", n, err)
	}
	if out.Res < 0 {
		return &out, &replyError{text(out.Code[:]), text(out.Message[:]), syscall.Errno(-out.Res)}
	}
	return &out, nil
}

func (c *client) call(r *request, image *os.File) (*reply, error) {
	if err := c.send(r, image); err != nil {
		return nil, err
	}
	return c.receive()
}

func (c *client) hello() (*reply, error) {
	return c.call(&request{Head: head{Type: typeHello}}, nil)
}

// An image and how it is attached.
type volume struct {
	path          string
	tag           string
	flags         uint32
	blockSize     uint32
	queues, depth uint16
	buffered      bool
	hidden        bool // its path is not told
}

func (v *volume) open() (*os.File, error) {
	flags := os.O_RDWR
	if v.flags&flagReadOnly != 0 {
		flags = os.O_RDONLY
	}
	if !v.buffered {
		flags |= syscall.O_DIRECT
	}
	return os.OpenFile(v.path, flags, 0)
}

func (v *volume) request(kind uint16) (*request, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(v.path, &st); err != nil {
		return nil, err
	}
	r := &request{Head: head{Type: kind}, ImageDev: st.Dev, ImageIno: st.Ino, Flags: v.flags,
		BlockSize: v.blockSize, Queues: v.queues, Depth: v.depth}
	if r.BlockSize == 0 {
		r.BlockSize = 512
	}
	copy(r.Tag[:], v.tag)
	if !v.hidden {
		copy(r.Path[:], v.path)
	}
	return r, nil
}

func (c *client) attach(v *volume) (*device, error) {
	image, err := v.open()
	if err != nil {
		return nil, err
	}
	defer image.Close()
	r, err := v.request(typeAttach)
	if err != nil {
		return nil, err
	}
	out, err := c.call(r, image)
	if err != nil {
		return nil, err
	}
	return &out.Device, nil
}

func (c *client) named(kind uint16, v *volume, d *device) (*reply, error) {
	r, err := v.request(kind)
	if err != nil {
		return nil, err
	}
	r.DevID = d.DevID
	return c.call(r, nil)
}

func (c *client) detach(v *volume, d *device) error {
	_, err := c.named(typeDetach, v, d)
	return err
}

func (c *client) list() ([]device, error) {
	var all []device
	r := &request{Head: head{Type: typeList}}
	for {
		out, err := c.call(r, nil)
		if err != nil {
			return nil, err
		}
		if out.Device.State == stateNone {
			return all, nil
		}
		all = append(all, out.Device)
		r.DevID = out.Device.DevID + 1
	}
}

func (c *client) find(t *testing.T, tag string) *device {
	t.Helper()
	all, err := c.list()
	if err != nil {
		t.Fatal("list:", err)
	}
	for i := range all {
		if text(all[i].Tag[:]) == tag {
			return &all[i]
		}
	}
	return nil
}
