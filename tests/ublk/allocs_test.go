// SPDX-License-Identifier: Apache-2.0
package ublk

import (
	"encoding/binary"
	"os"
	"testing"
)

// The threads that serve I/O call no allocator while they do, whatever the request is.
func TestNoAllocation(t *testing.T) {
	needUblk(t)
	const library = "../../build/vm/allocs.so"
	if _, err := os.Stat(library); err != nil {
		t.Skip("allocs.so is not built (scripts/vm/ublk-tests.sh builds it)")
	}
	counts := t.TempDir() + "/counts"
	if err := os.WriteFile(counts, make([]byte, 16), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func() (data, other uint64) {
		raw, err := os.ReadFile(counts)
		if err != nil {
			t.Fatal(err)
		}
		return binary.LittleEndian.Uint64(raw), binary.LittleEndian.Uint64(raw[8:])
	}
	p := newProcessEnv(t, []string{"LD_PRELOAD=" + library, "RINGVOL_ALLOC_COUNTS=" + counts})
	v := newVolume(t, 32*mib)
	d := p.attach(v)
	f := openDevice(t, d.node(), os.O_RDWR)
	before, other := read()
	if other == 0 {
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
	if after, _ := read(); after != before {
		t.Errorf("%d calls of the allocator while %d requests were served", after-before,
			now.Reads+now.Writes+now.Discards+now.Flushes)
	}
	f.Close()
	p.detach(v, d)
}
