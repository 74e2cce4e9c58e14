// SPDX-License-Identifier: Apache-2.0

package system

import (
	"os"
	"strconv"
	"testing"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// openRawProbed is a raw pool on a disk that fails where its file has no bytes.
func openRawProbed(t *testing.T) *rawBed {
	t.Helper()
	b := bareBed(t)
	disk, err := b.NewDisk("first", 2<<30, "--direct-io=on")
	b.must(err)
	b.disk = disk
	b.on(disk.Path)
	b.must(b.d.ServeHTTP())
	b.start()
	b.awaitProbes()
	return b
}

func (b *rawBed) thickBlock(name string, size int64) *rig.Volume {
	b.t.Helper()
	v := b.d.Volume(name, rig.BlockCap(), size)
	v.Params = map[string]string{"provisioning": "thick"}
	return v
}

// direct does I/O on a node past the page cache.
type direct struct {
	b   *rawBed
	fd  int
	buf []byte
}

func (b *rawBed) direct(path string) *direct {
	b.t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	b.must(err)
	buf, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	b.must(err)
	b.t.Cleanup(func() { _ = unix.Munmap(buf) })
	return &direct{b, fd, buf}
}

func (d *direct) write(at int64, size int) {
	d.b.t.Helper()
	_, err := unix.Pwrite(d.fd, d.buf[:size], at)
	d.b.must(err)
}

func (d *direct) read(at int64, size int) {
	d.b.t.Helper()
	_, err := unix.Pread(d.fd, d.buf[:size], at)
	d.b.must(err)
}

func plus(a, b ioCounts) ioCounts {
	return ioCounts{a.ops + b.ops, a.bytes + b.bytes, a.errors + b.errors}
}

// statsOfAll are a thick block volume's: its size as its user sees it, and all of it used.
func (b *rawBed) statsOfAll(v *rig.Volume) {
	b.t.Helper()
	reply, err := v.Stats()
	b.must(err)
	if u := reply.GetUsage(); len(u) != 1 || u[0].GetTotal() != v.Got || u[0].GetUsed() != v.Got || u[0].GetAvailable() != 0 {
		b.t.Errorf("stats of %d bytes: %v", v.Got, u)
	}
}

// A request is counted once, also where the device mapper makes two of it: its targets meet before the last MiB.
func TestRawPoolProbes(t *testing.T) {
	b := openRawProbed(t)
	v := b.thickBlock("counted", 64*mib)
	b.must(v.Up())
	b.statsOfAll(v)
	reads, writes, flushes := b.counts(v, "read"), b.counts(v, "write"), b.counts(v, "flush")
	d := b.direct(v.Target)
	for i := range 300 {
		d.write(int64(i)*8192, 4096)
	}
	for i := range 200 {
		d.read(int64(i)*4096, 4096)
	}
	for range 10 {
		d.read(63*mib-4096, 8192)
	}
	d.write(63*mib-4096, 256<<10)
	b.must(unix.Fsync(d.fd))
	b.must(unix.Fsync(d.fd))
	b.same("reads", b.counts(v, "read"), plus(reads, ioCounts{210, 200*4096 + 10*8192, 0}))
	b.same("writes", b.counts(v, "write"), plus(writes, ioCounts{301, 300*4096 + 256<<10, 0}))
	if got := b.counts(v, "flush"); got.ops != flushes.ops+2 {
		t.Errorf("flushes: %+v after %+v", got, flushes)
	}
	b.must(unix.Close(d.fd))
	b.must(v.Gone())
}

// What fails is counted with its volume; the records, before the area, are whole.
func TestRawPoolProbesErrors(t *testing.T) {
	b := openRawProbed(t)
	b.clean()
	v := b.thickBlock("failing", 16*mib)
	b.must(v.Up())
	header, err := rig.HeaderOf(b.disk.Path, 0)
	b.must(err)
	var area int64
	for _, key := range []string{"records-offset", "records-bytes"} {
		n, err := strconv.ParseInt(header[key], 0, 64)
		b.must(err)
		area += n
	}
	d := b.direct(v.Target)
	before := b.counts(v, "read")
	b.must(os.Truncate(b.disk.Image(), area))
	for i := range 3 {
		if _, err := unix.Pread(d.fd, d.buf[:4096], int64(i)*4096); err != unix.EIO {
			t.Errorf("reading what is not there: %v", err)
		}
	}
	b.same("reads", b.counts(v, "read"), plus(before, ioCounts{3, 0, 3}))
	b.must(os.Truncate(b.disk.Image(), 2<<30))
	d.read(0, 4096)
	b.same("reads", b.counts(v, "read"), plus(before, ioCounts{4, 4096, 3}))
	b.must(unix.Close(d.fd))
	b.must(v.Gone())
}

// Of an encrypted volume the device below counts: ciphertext, of which there is as much.
func TestRawPoolProbesEncrypted(t *testing.T) {
	b := openRawProbed(t)
	v := b.thickBlock("secret", 32*mib)
	v.Params["encryption"] = "luks2"
	v.Secrets = map[string]string{"key": "not much of a secret, but a long one"}
	if err := v.Create(); err != nil {
		t.Skip(err)
	}
	b.must(v.Up())
	b.statsOfAll(v)
	reads, writes := b.counts(v, "read"), b.counts(v, "write")
	d := b.direct(v.Target)
	for i := range 50 {
		d.write(int64(i)*8192, 4096)
	}
	for i := range 40 {
		d.read(int64(i)*4096, 4096)
	}
	b.must(unix.Close(d.fd))
	b.same("reads", b.counts(v, "read"), plus(reads, ioCounts{40, 40 * 4096, 0}))
	b.same("writes", b.counts(v, "write"), plus(writes, ioCounts{50, 50 * 4096, 0}))
	b.must(v.Gone())
}
