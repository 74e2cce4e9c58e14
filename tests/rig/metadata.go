// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"io"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Range is a run of a volume's bytes, as SnapshotMetadata tells of it.
type Range struct {
	Start, End int64
}

// Blocks is what one call of SnapshotMetadata has told, in order.
type Blocks struct {
	Capacity int64
	Ranges   []Range
	Messages int
}

// Bytes is the sum of all ranges.
func (b *Blocks) Bytes() (sum int64) {
	for _, r := range b.Ranges {
		sum += r.End - r.Start
	}
	return sum
}

type blockMessage interface {
	GetBlockMetadataType() csi.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

// take adds a message and checks what the specification says of it.
func (b *Blocks) take(m blockMessage, offset int64, maxResults int32) error {
	b.Messages++
	if m.GetBlockMetadataType() != csi.BlockMetadataType_VARIABLE_LENGTH || m.GetVolumeCapacityBytes() <= 0 ||
		b.Capacity != 0 && b.Capacity != m.GetVolumeCapacityBytes() {
		return fmt.Errorf("message %d: type %v, capacity %d after %d", b.Messages, m.GetBlockMetadataType(),
			m.GetVolumeCapacityBytes(), b.Capacity)
	}
	b.Capacity = m.GetVolumeCapacityBytes()
	if n := len(m.GetBlockMetadata()); maxResults > 0 && n > int(maxResults) {
		return fmt.Errorf("message %d: %d ranges, %d were asked for", b.Messages, n, maxResults)
	}
	for _, block := range m.GetBlockMetadata() {
		r := Range{block.GetByteOffset(), block.GetByteOffset() + block.GetSizeBytes()}
		last := offset
		if n := len(b.Ranges); n > 0 {
			last = b.Ranges[n-1].End
		}
		if r.Start < last || r.End <= r.Start || r.End > b.Capacity {
			return fmt.Errorf("message %d: range %v behind %d of %d bytes", b.Messages, r, last, b.Capacity)
		}
		b.Ranges = append(b.Ranges, r)
	}
	return nil
}

// Allocated asks where a snapshot has data, from offset on.
func (c *Client) Allocated(ctx context.Context, id string, offset int64, maxResults int32) (*Blocks, error) {
	stream, err := c.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{
		SnapshotId: id, StartingOffset: offset, MaxResults: maxResults,
	})
	b := &Blocks{}
	for err == nil {
		var m *csi.GetMetadataAllocatedResponse
		if m, err = stream.Recv(); err == nil {
			err = b.take(m, offset, maxResults)
		}
	}
	if err == io.EOF {
		err = nil
	}
	return b, err
}

// Delta asks in what a snapshot differs from an earlier one.
func (c *Client) Delta(ctx context.Context, base, target string, offset int64, maxResults int32) (*Blocks, error) {
	stream, err := c.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{
		BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: offset, MaxResults: maxResults,
	})
	b := &Blocks{}
	for err == nil {
		var m *csi.GetMetadataDeltaResponse
		if m, err = stream.Recv(); err == nil {
			err = b.take(m, offset, maxResults)
		}
	}
	if err == io.EOF {
		err = nil
	}
	return b, err
}
