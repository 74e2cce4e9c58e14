// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// The health RPCs of CSI 1.13, spoken by hand: the bindings of 1.12, which most clients in the field
// have, do not know them, and one program cannot have both.

// Finding is one entry of a VolumeHealth or StorageBackendHealth.
type Finding struct {
	Status  uint64 // VolumeHealthErrorType or StorageHealthErrorType
	Reason  string
	Message string
}

// Health is a VolumeHealth.
type Health struct {
	ID       string
	Findings []Finding
}

// Has tells whether one of the findings is of this kind.
func (h *Health) Has(reason string) bool {
	for _, f := range h.Findings {
		if f.Reason == reason {
			return true
		}
	}
	return false
}

func (h *Health) String() string {
	var all []string
	for _, f := range h.Findings {
		all = append(all, fmt.Sprintf("%d %s: %s", f.Status, f.Reason, f.Message))
	}
	return "[" + strings.Join(all, " | ") + "]"
}

// asIs is a codec for messages that are bytes already.
type asIs struct{}

func (asIs) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (asIs) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (asIs) Name() string { return "proto" }

func (c *Client) invoke(ctx context.Context, method string, request []byte) ([]byte, error) {
	var reply []byte
	err := c.Conn.Invoke(ctx, "/csi.v1."+method, &request, &reply, grpc.ForceCodec(asIs{}))
	return reply, err
}

// field appends a string field.
func field(b []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// fields calls each for every field of a message; bytes is nil for a number.
func fields(b []byte, each func(number protowire.Number, bytes []byte, value uint64) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var bytes []byte
		var value uint64
		switch kind {
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(b)
			if bytes == nil {
				bytes = []byte{}
			}
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(b)
		default:
			return fmt.Errorf("field %d has wire type %d", number, kind)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := each(number, bytes, value); err != nil {
			return err
		}
	}
	return nil
}

func parseFinding(b []byte) (f Finding, err error) {
	err = fields(b, func(number protowire.Number, bytes []byte, value uint64) error {
		switch number {
		case 1:
			f.Status = value
		case 2:
			f.Reason = string(bytes)
		case 3:
			f.Message = string(bytes)
		}
		return nil
	})
	return f, err
}

func parseHealth(b []byte) (*Health, error) {
	h := &Health{}
	return h, fields(b, func(number protowire.Number, bytes []byte, _ uint64) error {
		if number == 1 {
			h.ID = string(bytes)
			return nil
		}
		f, err := parseFinding(bytes)
		h.Findings = append(h.Findings, f)
		return err
	})
}

// volumeHealth calls a method whose answer's field 1 is a VolumeHealth.
func (c *Client) volumeHealth(ctx context.Context, method string, request []byte) (h *Health, err error) {
	reply, err := c.invoke(ctx, method, request)
	if err != nil {
		return nil, err
	}
	err = fields(reply, func(_ protowire.Number, bytes []byte, _ uint64) (err error) {
		h, err = parseHealth(bytes)
		return err
	})
	if err == nil && h == nil {
		err = fmt.Errorf("%s: no volume_health", method)
	}
	return h, err
}

// ControllerGetVolumeHealth asks for one volume.
func (c *Client) ControllerGetVolumeHealth(ctx context.Context, id string) (*Health, error) {
	return c.volumeHealth(ctx, "Controller/ControllerGetVolumeHealth", field(nil, 1, id))
}

// NodeGetVolumeHealth asks for one volume; paths may be empty.
func (c *Client) NodeGetVolumeHealth(ctx context.Context, id, target, staging string) (*Health, error) {
	return c.volumeHealth(ctx, "Node/NodeGetVolumeHealth", field(field(field(nil, 1, id), 2, target), 3, staging))
}

// ControllerListVolumeHealth asks for a page.
func (c *Client) ControllerListVolumeHealth(ctx context.Context, most int32, token string) (page []*Health, next string, err error) {
	request := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(most))
	reply, err := c.invoke(ctx, "Controller/ControllerListVolumeHealth", field(request, 2, token))
	if err != nil {
		return nil, "", err
	}
	err = fields(reply, func(number protowire.Number, bytes []byte, _ uint64) error {
		if number == 2 {
			next = string(bytes)
			return nil
		}
		h, err := parseHealth(bytes)
		page = append(page, h)
		return err
	})
	return page, next, err
}

// NodeGetStorageHealth asks for the pools.
func (c *Client) NodeGetStorageHealth(ctx context.Context) (*Health, error) {
	reply, err := c.invoke(ctx, "Node/NodeGetStorageHealth", nil)
	if err != nil {
		return nil, err
	}
	h := &Health{}
	return h, fields(reply, func(_ protowire.Number, bytes []byte, _ uint64) error {
		f, err := parseFinding(bytes)
		h.Findings = append(h.Findings, f)
		return err
	})
}
