// SPDX-License-Identifier: Apache-2.0
package ublk

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"
)

// What the data process has done, by preload/counts.c.
type counts struct {
	Data, Other, Entered uint64
}

// newCounted starts a data process that counts, and says how to read it.
func newCounted(t *testing.T) (*process, func() counts) {
	t.Helper()
	needUblk(t)
	const library = "../../build/vm/counts.so"
	if _, err := os.Stat(library); err != nil {
		t.Skip("counts.so is not built (scripts/vm/tests.sh ublk builds it)")
	}
	file := t.TempDir() + "/counts"
	if err := os.WriteFile(file, make([]byte, binary.Size(counts{})), 0o600); err != nil {
		t.Fatal(err)
	}
	return newProcessEnv(t, []string{"LD_PRELOAD=" + library, "RINGVOL_COUNTS=" + file}), func() (c counts) {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := binary.Read(bytes.NewReader(raw), binary.LittleEndian, &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// One request after the other: a read enters the kernel once, a write twice at most.
func TestSystemCalls(t *testing.T) {
	p, read := newCounted(t)
	v := newVolume(t, 16*mib)
	d := p.attach(v)
	f := openDevice(t, d.node(), os.O_RDWR)
	buffer := aligned(t, mib)
	for at := int64(0); at < 16*mib; at += mib {
		if _, err := f.WriteAt(buffer, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	const requests = 500
	each := func(what string, most float64, call func(b []byte, at int64) (int, error)) {
		before := read().Entered
		for i := int64(0); i < requests; i++ {
			if _, err := call(buffer[:4096], i*37%4096*4096); err != nil {
				t.Fatal(err)
			}
		}
		calls := float64(read().Entered-before) / requests
		t.Logf("a %s takes %.3f system calls", what, calls)
		if calls == 0 || calls > most {
			t.Errorf("a %s takes %.3f system calls, want %v at most", what, calls, most)
		}
	}
	each("write", 2.01, f.WriteAt)
	each("read", 1.05, f.ReadAt)
	f.Close()
	p.detach(v, d)
}

// The threads that serve I/O call no allocator while they do, whatever the request is.
func TestNoAllocation(t *testing.T) {
	p, read := newCounted(t)
	v := newVolume(t, 32*mib)
	d := p.attach(v)
	f := openDevice(t, d.node(), os.O_RDWR)
	before := read()
	if before.Other == 0 {
		t.Fatal("nothing is counted")
	}
	buffer := aligned(t, mib)
	for i := int64(0); i < 500; i++ {
		size := 4096 << (i % 9)
		at := i * 37 % 31 * mib
		if _, err := f.WriteAt(buffer[:size], at); err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(buffer[:size], at); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
			blkRange(t, f, blkDiscard, uint64(at), mib)
			blkRange(t, f, blkZeroOut, uint64(at), mib)
		}
	}
	now := p.client.find(t, v.tag)
	if now.Reads < 500 || now.Writes < 500 || now.Discards < 20 || now.Flushes < 10 {
		t.Errorf("not all of it came through: %+v", now)
	}
	if after := read(); after.Data != before.Data {
		t.Errorf("%d calls of the allocator while %d requests were served", after.Data-before.Data,
			now.Reads+now.Writes+now.Discards+now.Flushes)
	}
	f.Close()
	p.detach(v, d)
}
