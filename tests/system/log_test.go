// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// secretRPCs are all methods of CSI whose request has a field with secrets.
func secretRPCs(t *testing.T) map[string]protoreflect.MethodDescriptor {
	t.Helper()
	found := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFilesByPackage("csi.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for k := range service.Methods().Len() {
				method := service.Methods().Get(k)
				if method.Input().Fields().ByName("secrets") != nil {
					found[fmt.Sprintf("/%s/%s", service.FullName(), method.Name())] = method
				}
			}
		}
		return true
	})
	if len(found) < 10 {
		t.Fatalf("only %d methods with secrets", len(found))
	}
	return found
}

// withSecrets puts secrets, and whatever else is told apart by a field's name, into a request.
func withSecrets(method protoreflect.MethodDescriptor, from proto.Message, value string) *dynamicpb.Message {
	m := dynamicpb.NewMessage(method.Input())
	if from != nil {
		wire, _ := proto.Marshal(from)
		_ = proto.Unmarshal(wire, m)
	}
	field := method.Input().Fields().ByName("secrets")
	secrets := m.Mutable(field).Map()
	for _, key := range []string{"password", "token"} {
		secrets.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(key+"-"+value))
	}
	return m
}

// Whatever is asked and however it ends, at any level: no secret is in the log, and every line is JSON.
func TestLogs(t *testing.T) {
	const secret = "S3cr3t-0f-4-t3n4nt"
	b := newBed(t, "xfs", 1<<30)
	b.d.Args = []string{"--log-level", "debug", "--log-format", "json"}
	b.start()

	v := b.d.Volume("with \"quotes\"\tand\u009b\u2028 \u00fc", rig.MountCap("ext4"), 32*mib)
	b.must(v.Paths())
	b.must(v.Create())
	invoke := func(path string, method protoreflect.MethodDescriptor, request proto.Message) error {
		reply := dynamicpb.NewMessage(method.Output())
		return b.c.Conn.Invoke(short(t), path, withSecrets(method, request, secret), reply)
	}
	methods := secretRPCs(t)
	call := func(name string, request proto.Message) {
		t.Helper()
		if err := invoke(name, methods[name], request); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What works.
	create := v.Request()
	create.Name = "second"
	call("/csi.v1.Controller/CreateVolume", create)
	call("/csi.v1.Node/NodeStageVolume", v.StageRequest())
	call("/csi.v1.Node/NodePublishVolume", &csi.NodePublishVolumeRequest{VolumeId: v.ID, StagingTargetPath: v.Staging,
		TargetPath: v.Target, VolumeCapability: v.Cap})
	call("/csi.v1.Controller/CreateSnapshot", &csi.CreateSnapshotRequest{SourceVolumeId: v.ID, Name: "snapshot"})
	call("/csi.v1.Controller/ListSnapshots", &csi.ListSnapshotsRequest{})
	call("/csi.v1.Controller/ValidateVolumeCapabilities", &csi.ValidateVolumeCapabilitiesRequest{VolumeId: v.ID,
		VolumeCapabilities: []*csi.VolumeCapability{v.Cap}})
	// What does not: nothing in it, and things that are not there, in every method there is.
	for name, method := range methods {
		_ = invoke(name, method, nil)
		odd := dynamicpb.NewMessage(method.Input())
		for i := range method.Input().Fields().Len() {
			field := method.Input().Fields().Get(i)
			if field.Kind() == protoreflect.StringKind && field.Cardinality() != protoreflect.Repeated {
				odd.Set(field, protoreflect.ValueOfString("no\tsuch\x1b[31m \"thing\" \u00fc"))
			}
		}
		_ = invoke(name, method, odd)
	}
	// A request whose secrets are too large is refused by its fields' names.
	err := b.c.Conn.Invoke(context.Background(), "/csi.v1.Controller/CreateVolume",
		withSecrets(methods["/csi.v1.Controller/CreateVolume"], create, strings.Repeat(secret, 1000)), &csi.CreateVolumeResponse{})
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("secrets of 18 KB: %v", err)
	}
	b.must(v.Down())
	b.must(b.d.Term())

	text, err := os.ReadFile(b.d.Log)
	b.must(err)
	if bytes.Contains(text, []byte(secret)) {
		t.Error("a secret is in the log")
	}
	operations := map[string]int{}
	for line := range bytes.Lines(text) {
		var fields map[string]string
		if err := json.Unmarshal(line, &fields); err != nil || !utf8.Valid(line) {
			t.Errorf("no line of JSON (%v): %q", err, line)
		}
		if strings.HasPrefix(fields["msg"], "operation ") && fields["subject"] == v.Name {
			operations[fields["op"]]++
		}
	}
	for _, op := range []string{"CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		if operations[op] != 1 {
			t.Errorf("%s of one volume has %d lines", op, operations[op])
		}
	}
	b.untidy = true
}

// What is asked again and again is no line at the default level while it goes well: in a cluster's hour 61% of the lines
// were GetCapacity. What fails is one at any level but error, and at debug all is said.
func TestPollsAreDebug(t *testing.T) {
	for _, level := range []string{"info", "debug"} {
		t.Run(level, func(t *testing.T) {
			b := newBed(t, "xfs", 1<<30)
			b.d.Args = []string{"--log-level", level, "--log-format", "json"}
			b.start()
			v := b.volume("polled", "ext4")
			b.must(v.Up())
			for range 3 {
				_, err := b.c.GetCapacity(short(t), &csi.GetCapacityRequest{})
				b.must(err)
				_, err = v.Stats()
				b.must(err)
				_, err = b.c.NodeGetVolumeHealth(short(t), v.ID, v.Target, v.Staging)
				b.must(err)
				_, err = b.c.ListVolumes(short(t), &csi.ListVolumesRequest{})
				b.must(err)
				_, err = b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{})
				b.must(err)
				_, err = b.c.Probe(short(t), &csi.ProbeRequest{})
				b.must(err)
				_, err = b.c.NodeGetCapabilities(short(t), &csi.NodeGetCapabilitiesRequest{})
				b.must(err)
			}
			if _, err := b.c.NodeGetVolumeStats(short(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID + "0",
				VolumePath: v.Target}); err == nil {
				t.Error("statistics of no volume")
			}
			b.must(v.Gone())
			b.must(b.d.Term())
			b.untidy = true // the trash of a driver that has ended

			text, err := os.ReadFile(b.d.Log)
			b.must(err)
			done, failed := map[string]int{}, 0
			for line := range bytes.Lines(text) {
				var fields map[string]string
				b.must(json.Unmarshal(line, &fields))
				if fields["code"] != "" {
					failed++
				} else if fields["op"] != "" {
					done[fields["op"]]++
				}
			}
			polls := 0
			if level == "debug" {
				polls = 3
			}
			for _, op := range []string{"GetCapacity", "NodeGetVolumeStats", "NodeGetVolumeHealth"} {
				if done[op] != polls {
					t.Errorf("%s that went well has %d lines", op, done[op])
				}
				delete(done, op)
			}
			want := map[string]int{"CreateVolume": 1, "NodeStageVolume": 1, "NodePublishVolume": 1,
				"NodeUnpublishVolume": 1, "NodeUnstageVolume": 1, "DeleteVolume": 1}
			if !maps.Equal(done, want) {
				t.Errorf("lines of operations: %v", done)
			}
			if failed != 1 {
				t.Errorf("%d lines of what failed", failed)
			}
		})
	}
}
