// SPDX-License-Identifier: Apache-2.0

// Package proto compares proto/csi.proto with the specification's Go bindings: everything that is
// there has to be in ours, with the same numbers, types and options. Ours may have more (1.13).
package proto

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

func ours(t *testing.T) protoreflect.FileDescriptor {
	t.Helper()
	return oursOf(t, "csi.proto")
}

// oursOf reads the descriptor set of the build (RINGVOL_DESCRIPTORS), or has protoc make one.
func oursOf(t *testing.T, name string) protoreflect.FileDescriptor {
	t.Helper()
	path := os.Getenv("RINGVOL_DESCRIPTORS")
	if path == "" {
		path = filepath.Join(t.TempDir(), "set.pb")
		out, err := exec.Command("protoc", "-I../../proto", "--include_imports",
			"--descriptor_set_out="+path, name).CombinedOutput()
		if err != nil {
			t.Fatalf("protoc: %v: %s", err, out)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &set); err != nil {
		t.Fatal(err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		t.Fatal(err)
	}
	file, err := files.FindFileByPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

type compare struct {
	report func(format string, args ...any)
	count  int
}

func (c *compare) equal(where protoreflect.FullName, what string, got, want any) {
	c.count++
	if fmt.Sprint(got) != fmt.Sprint(want) {
		c.report("%s: %s is %v, the specification has %v", where, what, got, want)
	}
}

// options compares the custom options (csi_secret, alpha_*) by number.
func (c *compare) options(where protoreflect.FullName, got, want protoreflect.ProtoMessage) {
	c.equal(where, "options", numbers(got), numbers(want))
}

func numbers(options protoreflect.ProtoMessage) map[protoreflect.FieldNumber]string {
	found := map[protoreflect.FieldNumber]string{}
	if options == nil || !options.ProtoReflect().IsValid() {
		return found
	}
	// Our extensions are unknown to the Go runtime, the specification's are linked in: through the
	// wire both read the same.
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(options)
	if err != nil {
		return found
	}
	plain := dynamicpb.NewMessage(options.ProtoReflect().Descriptor())
	if err := (proto.UnmarshalOptions{Resolver: nothing{}}).Unmarshal(raw, plain); err != nil {
		return found
	}
	for raw := plain.GetUnknown(); len(raw) > 0; {
		number, value, n := consume(raw)
		if n <= 0 {
			break
		}
		found[number] = fmt.Sprintf("%x", value)
		raw = raw[n:]
	}
	return found
}

func (c *compare) file(got, want protoreflect.FileDescriptor) {
	for i := range want.Services().Len() {
		c.service(got, want.Services().Get(i))
	}
	c.enums(got.Enums(), want.Enums())
	c.messages(got.Messages(), want.Messages())
	for i := range want.Extensions().Len() {
		w := want.Extensions().Get(i)
		g := got.Extensions().ByName(w.Name())
		if g == nil {
			c.report("%s is missing", w.FullName())
			continue
		}
		c.equal(w.FullName(), "number", g.Number(), w.Number())
		c.equal(w.FullName(), "extended", g.ContainingMessage().FullName(), w.ContainingMessage().FullName())
	}
}

func (c *compare) service(file protoreflect.FileDescriptor, want protoreflect.ServiceDescriptor) {
	got := file.Services().ByName(want.Name())
	if got == nil {
		c.report("%s is missing", want.FullName())
		return
	}
	c.options(want.FullName(), got.Options(), want.Options())
	for i := range want.Methods().Len() {
		w := want.Methods().Get(i)
		g := got.Methods().ByName(w.Name())
		if g == nil {
			c.report("%s is missing", w.FullName())
			continue
		}
		c.equal(w.FullName(), "request", g.Input().FullName(), w.Input().FullName())
		c.equal(w.FullName(), "response", g.Output().FullName(), w.Output().FullName())
		c.equal(w.FullName(), "client streaming", g.IsStreamingClient(), w.IsStreamingClient())
		c.equal(w.FullName(), "server streaming", g.IsStreamingServer(), w.IsStreamingServer())
		c.options(w.FullName(), g.Options(), w.Options())
	}
}

func (c *compare) enums(got, want protoreflect.EnumDescriptors) {
	for i := range want.Len() {
		w := want.Get(i)
		g := got.ByName(w.Name())
		if g == nil {
			c.report("%s is missing", w.FullName())
			continue
		}
		c.options(w.FullName(), g.Options(), w.Options())
		for k := range w.Values().Len() {
			value := w.Values().Get(k)
			mine := g.Values().ByName(value.Name())
			if mine == nil {
				c.report("%s is missing", value.FullName())
				continue
			}
			c.equal(value.FullName(), "number", mine.Number(), value.Number())
			c.options(value.FullName(), mine.Options(), value.Options())
		}
	}
}

func (c *compare) messages(got, want protoreflect.MessageDescriptors) {
	for i := range want.Len() {
		w := want.Get(i)
		g := got.ByName(w.Name())
		if g == nil {
			c.report("%s is missing", w.FullName())
			continue
		}
		c.equal(w.FullName(), "map entry", g.IsMapEntry(), w.IsMapEntry())
		c.options(w.FullName(), g.Options(), w.Options())
		for k := range w.Fields().Len() {
			c.field(g, w.Fields().Get(k))
		}
		c.enums(g.Enums(), w.Enums())
		c.messages(g.Messages(), w.Messages())
	}
}

func (c *compare) field(message protoreflect.MessageDescriptor, want protoreflect.FieldDescriptor) {
	name := want.FullName()
	got := message.Fields().ByName(want.Name())
	if got == nil {
		c.report("%s is missing", name)
		return
	}
	c.equal(name, "number", got.Number(), want.Number())
	c.equal(name, "type", got.Kind(), want.Kind())
	c.equal(name, "cardinality", got.Cardinality(), want.Cardinality())
	c.equal(name, "map", got.IsMap(), want.IsMap())
	c.equal(name, "JSON name", got.JSONName(), want.JSONName())
	oneof := func(f protoreflect.FieldDescriptor) protoreflect.Name {
		if f.ContainingOneof() == nil {
			return ""
		}
		return f.ContainingOneof().Name()
	}
	c.equal(name, "oneof", oneof(got), oneof(want))
	if want.Message() != nil && got.Message() != nil {
		c.equal(name, "message", got.Message().FullName(), want.Message().FullName())
	}
	if want.Enum() != nil && got.Enum() != nil {
		c.equal(name, "enum", got.Enum().FullName(), want.Enum().FullName())
	}
	c.options(name, got.Options(), want.Options())
}

func TestSameAsSpecification(t *testing.T) {
	got := ours(t)
	c := &compare{report: t.Errorf}
	c.file(got, csi.File_csi_proto)
	if c.count < 2000 {
		t.Errorf("only %d things compared", c.count)
	}
	t.Logf("%d things compared", c.count)
}

// The comparison sees a changed number and a secret that is not marked.
func TestComparisonSees(t *testing.T) {
	raw := protodesc.ToFileDescriptorProto(ours(t))
	for _, message := range raw.MessageType {
		if message.GetName() == "Volume" {
			message.Field[0].Number = proto.Int32(9)
		}
		if message.GetName() == "DeleteVolumeRequest" {
			message.Field[1].Options = nil
		}
	}
	changed, err := protodesc.NewFile(raw, resolver(ours(t)))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	c := &compare{report: func(_ string, args ...any) { seen[fmt.Sprint(args...)] = true }}
	c.file(changed, csi.File_csi_proto)
	if len(seen) != 2 {
		t.Errorf("two differences were made, seen: %v", seen)
	}
}

// What the tests speak to the processes of a cluster is what proto/cluster.proto says today; go generate in
// tests/rig/ringvolv1 makes it anew.
func TestClusterBindings(t *testing.T) {
	got := protodesc.ToFileDescriptorProto(ringvolv1.File_cluster_proto)
	want := protodesc.ToFileDescriptorProto(oursOf(t, "cluster.proto"))
	if !proto.Equal(got, want) {
		t.Error("tests/rig/ringvolv1/cluster.pb.go is not made from proto/cluster.proto: go generate ./tests/rig/ringvolv1")
	}
}

func TestAllOf113(t *testing.T) {
	file := ours(t)
	methods := 0
	for i := range file.Services().Len() {
		methods += file.Services().Get(i).Methods().Len()
	}
	if methods != 36 {
		t.Errorf("%d RPCs, CSI 1.13 has 36", methods)
	}
	for message, field := range map[protoreflect.Name]protoreflect.Name{
		"NodeGetVolumeHealthResponse": "volume_health",
		"NodeGetVolumeStatsResponse":  "volume_condition", // 1.12
		"Snapshot":                    "accessible_topology",
		"VolumeHealth":                "health_statuses",
	} {
		m := file.Messages().ByName(message)
		if m == nil || m.Fields().ByName(field) == nil {
			t.Errorf("%s.%s is missing", message, field)
		}
	}
}

// nothing resolves no extension, so that all of them stay unknown fields.
type nothing struct{}

func (nothing) FindExtensionByName(protoreflect.FullName) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

func (nothing) FindExtensionByNumber(protoreflect.FullName, protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	return nil, protoregistry.NotFound
}

// consume takes one field off: its number, its raw value, and its length.
func consume(raw []byte) (protoreflect.FieldNumber, []byte, int) {
	number, kind, tag := protowire.ConsumeTag(raw)
	if tag < 0 {
		return 0, nil, -1
	}
	value := protowire.ConsumeFieldValue(number, kind, raw[tag:])
	if value < 0 {
		return 0, nil, -1
	}
	return number, raw[tag : tag+value], tag + value
}

// resolver finds what a file imports.
func resolver(file protoreflect.FileDescriptor) *protoregistry.Files {
	files := new(protoregistry.Files)
	for i := range file.Imports().Len() {
		_ = files.RegisterFile(file.Imports().Get(i).FileDescriptor)
	}
	return files
}
