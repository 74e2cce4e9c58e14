// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// castagnoli is what a chunk says of its data and its offset.
func castagnoli(offset uint64, data []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(data, table), table, binary.LittleEndian.AppendUint64(nil, offset))
}

// liar is the source of a copy that says what a test wants.
type liar struct {
	open *ringvolv1.OpenCopyResponse
	read func(*ringvolv1.ReadCopyRequest, ringvolv1.ReadServer) error
}

func (l *liar) OpenCopy(context.Context, *ringvolv1.OpenCopyRequest) (*ringvolv1.OpenCopyResponse, error) {
	if l.open == nil {
		return nil, status.Error(codes.Internal, "this source says nothing")
	}
	return l.open, nil
}

func (l *liar) ReadCopy(request *ringvolv1.ReadCopyRequest, stream ringvolv1.ReadServer) error {
	return l.read(request, stream)
}

func (l *liar) CloseCopy(context.Context, *ringvolv1.CloseCopyRequest) (*ringvolv1.CloseCopyResponse, error) {
	return &ringvolv1.CloseCopyResponse{}, nil
}

// The bytes of another node are hostile until they are checked: whatever a source sends, the node that copies has a whole
// volume or none, and nothing is left.
func TestClusterHostileSource(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	n := b.node("node-b")
	// A true answer, to be told with lies in it.
	v, _ := b.source(b.node("node-a"), "pvc-truth")
	reader := b.dial(b.node("node-a").Listen, b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-z")}}))
	grant := b.granted(b.node("node-a"), v.ID, "node-z", "x")
	truth, err := ringvolv1.OpenCopy(short(t), reader, grant)
	b.must(err)
	b.must(ringvolv1.CloseCopy(short(t), reader, grant))
	size := truth.GetSizeBytes()

	l := &liar{}
	s := b.sim("node-s")
	s.Transfer = l
	s.Granted = func(*ringvolv1.GrantCopyRequest) (*ringvolv1.GrantCopyResponse, error) {
		return &ringvolv1.GrantCopyResponse{Grant: "0123456789abcdef0123456789abcdef"}, nil
	}
	// The record says whose it is, so the volume is called as the true one, in a pool of its own.
	id := s.Pool8() + v.ID[8:]
	s.AddID(id, int64(size))
	b.must(s.Listen(b.Rig))
	b.join(s)
	b.must(b.ctl.AwaitJoined("node-s"))

	block := make([]byte, 64<<10)
	for i := range block {
		block[i] = byte(i)
	}
	good := func(offset uint64, data []byte) *ringvolv1.ReadCopyResponse {
		return &ringvolv1.ReadCopyResponse{Offset: offset, Data: data, Checksum: castagnoli(offset, data)}
	}
	end := &ringvolv1.ReadCopyResponse{Offset: size, End: true}
	say := func(all ...*ringvolv1.ReadCopyResponse) func(*ringvolv1.ReadCopyRequest, ringvolv1.ReadServer) error {
		return func(_ *ringvolv1.ReadCopyRequest, stream ringvolv1.ReadServer) error {
			for _, part := range all {
				if err := stream.Send(part); err != nil {
					return err
				}
			}
			return nil
		}
	}
	wrong := good(0, block)
	wrong.Checksum++
	opened := func(change func(*ringvolv1.OpenCopyResponse)) *ringvolv1.OpenCopyResponse {
		o := &ringvolv1.OpenCopyResponse{SizeBytes: size, AllocatedBytes: truth.GetAllocatedBytes(), Record: truth.GetRecord()}
		change(o)
		return o
	}
	honest := opened(func(*ringvolv1.OpenCopyResponse) {})
	lies := []struct {
		name string
		open *ringvolv1.OpenCopyResponse
		read func(*ringvolv1.ReadCopyRequest, ringvolv1.ReadServer) error
	}{
		{"nothing at all", nil, say()},
		{"no record", opened(func(o *ringvolv1.OpenCopyResponse) { o.Record = nil }), say(end)},
		{"a record of rubbish", opened(func(o *ringvolv1.OpenCopyResponse) { o.Record = block[:200] }), say(end)},
		{"a huge record", opened(func(o *ringvolv1.OpenCopyResponse) { o.Record = make([]byte, 1<<20) }), say(end)},
		{"a size of zero", opened(func(o *ringvolv1.OpenCopyResponse) { o.SizeBytes = 0 }), say(end)},
		{"a size that is odd", opened(func(o *ringvolv1.OpenCopyResponse) { o.SizeBytes = 12345 }), say(end)},
		{"a size of everything", opened(func(o *ringvolv1.OpenCopyResponse) { o.SizeBytes = 1 << 62 }), say(end)},
		{"a checksum that is wrong", honest, say(wrong, end)},
		{"no checksum", honest, say(&ringvolv1.ReadCopyResponse{Data: block}, end)},
		{"backwards", honest, say(good(1<<20, block), good(0, block), end)},
		{"twice the same", honest, say(good(0, block), good(0, block), end)},
		{"behind the end", honest, say(good(size, block), end)},
		{"over the end", honest, say(good(size-4096, block), end)},
		{"far behind the end", honest, say(good(1<<62, block), end)},
		{"an odd offset", honest, say(good(1, block), end)},
		{"an odd length", honest, say(good(0, block[:1000]), end)},
		{"an end that is early", honest, say(&ringvolv1.ReadCopyResponse{Offset: 4096, End: true})},
		{"an end that is late", honest, say(&ringvolv1.ReadCopyResponse{Offset: size + 4096, End: true})},
		{"no end", honest, say(good(0, block))},
	}
	for _, lie := range lies {
		l.open, l.read = lie.open, lie.read
		c := b.copyOf(rig.FromVolume(id), n, "pvc-believed")
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		_, err := b.c.CreateVolume(ctx, c.Request())
		cancel()
		b.refused(lie.name, err, codes.Unavailable, codes.Internal, codes.DataLoss, codes.InvalidArgument, codes.DeadlineExceeded,
			codes.Aborted, codes.OutOfRange, codes.FailedPrecondition, codes.ResourceExhausted)
		if names := n.Pools[0].Names("volumes"); len(names) != 0 {
			t.Fatalf("%s: there is %q", lie.name, names)
		}
	}
	// It tells the truth at last.
	l.open, l.read = honest, say(good(0, block), good(1<<20, block), end)
	c := b.copyOf(rig.FromVolume(id), n, "pvc-believed")
	b.must(rig.Eventually(90*time.Second, c.Create))
	_, err = b.c.ControllerGetVolume(short(t), &csi.ControllerGetVolumeRequest{VolumeId: c.ID})
	b.must(err)
	b.gone(c, v)
	b.quiet()
}
