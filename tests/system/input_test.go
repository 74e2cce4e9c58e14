// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"math"
	"os"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
)

// raw sends bytes as they are: what a Go client would not put into a string field.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = append([]byte(nil), b...); return nil }
func (raw) Name() string                    { return "proto" }

func (b *bed) sendRaw(method string, message []byte) error {
	b.t.Helper()
	var reply []byte
	return b.c.Conn.Invoke(short(b.t), method, &message, &reply, grpc.ForceCodec(raw{}))
}

// createRaw is a CreateVolume request for a small block volume whose name is any bytes.
func createRaw(name string) []byte {
	capability := protowire.AppendTag(nil, 1, protowire.BytesType)
	capability = protowire.AppendBytes(capability, nil)
	capability = protowire.AppendTag(capability, 3, protowire.BytesType)
	capability = protowire.AppendBytes(capability, []byte{8, 1})
	request := protowire.AppendTag(nil, 1, protowire.BytesType)
	request = protowire.AppendBytes(request, []byte(name))
	request = protowire.AppendTag(request, 3, protowire.BytesType)
	return protowire.AppendBytes(request, capability)
}

func TestNames(t *testing.T) {
	b := open(t, "xfs", 4<<30)
	for _, name := range []string{
		"../../etc/passwd", "..", ".", "a/b", "/etc/passwd", "-rf", "=0123456789", "name with spaces",
		"\U0001f4a9\U0001f4a9", "z\u0061\u0308hlen", "a\nb", "%2e%2e", "CON", "a.b.c.d", ".hidden",
		strings.Repeat("n", 128), strings.Repeat("\u00e9", 64), strings.Repeat("../", 42),
	} {
		v := b.d.Volume(name, rig.BlockCap(), 16*mib)
		if err := v.Create(); err != nil {
			// Control characters may be refused; a path may not be made of anything.
			b.refused("CreateVolume "+name, err, codes.InvalidArgument)
			if name != "a\nb" {
				t.Errorf("%q is a good name: %v", name, err)
			}
			continue
		}
		first := v.ID
		b.must(v.Create())
		if v.ID != first {
			t.Errorf("%q has two ids: %s, %s", name, first, v.ID)
		}
		if len(v.ID) > 128 {
			t.Errorf("%q: an id of %d bytes", name, len(v.ID))
		}
		s, err := v.Snapshot(name)
		b.must(err)
		b.must(v.Stage())
		b.must(v.Unstage())
		b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
		b.must(v.Delete())
	}
	for what, name := range map[string]string{
		"129 bytes": strings.Repeat("n", 129), "NUL": "a\x00b", "a leading NUL": "\x00",
		"broken UTF-8": "a\xff\xfeb", "an overlong slash": "..\xc0\xaf..", "a surrogate": "\xed\xa0\x80",
		"nothing": "", "10 KiB": strings.Repeat("x", 10<<10),
	} {
		b.refused("a name of "+what, b.sendRaw("/csi.v1.Controller/CreateVolume", createRaw(name)),
			codes.InvalidArgument)
	}
	for _, dir := range []string{"volumes", "snapshots"} {
		if names := b.pool.Names(dir); len(names) > 0 {
			t.Errorf("left in %s: %q", dir, names)
		}
	}
}

func TestSizes(t *testing.T) {
	b := open(t, "xfs", 4<<30)
	for _, c := range []struct {
		required, limit int64
	}{
		{-1, 0}, {0, -1}, {math.MinInt64, 0}, {1<<62 + 1, 0}, {math.MaxInt64, 0}, {math.MaxInt64, math.MaxInt64},
		{64 * mib, 32 * mib}, {0, 1}, {0, mib}, {17*mib + 1, 17*mib + 2}, {math.MaxInt64 - 1, 1},
	} {
		v := b.d.Volume("size", rig.BlockCap(), c.required)
		v.Limit = c.limit
		b.refused("a size", v.Create(), codes.OutOfRange, codes.InvalidArgument)
		if t.Failed() {
			t.Fatalf("required %d, limit %d", c.required, c.limit)
		}
	}
	for _, c := range []struct {
		required, limit, want int64
	}{
		{0, 0, 1 << 30}, {1, 0, 16 * mib}, {16 * mib, 16 * mib, 16 * mib}, {16*mib + 1, 0, 17 * mib},
		{20 * mib, 20 * mib, 20 * mib}, {1, 100 * mib, 16 * mib},
	} {
		v := b.d.Volume("size", rig.BlockCap(), c.required)
		v.Limit = c.limit
		b.must(v.Create())
		if v.Got != c.want {
			t.Errorf("required %d, limit %d: %d bytes, want %d", c.required, c.limit, v.Got, c.want)
		}
		b.must(v.Delete())
	}
	for fs, least := range map[string]int64{"xfs": 300 * mib, "ext4": 16 * mib} {
		v := b.d.Volume("size", rig.MountCap(fs), mib)
		b.must(v.Create())
		if v.Got != least {
			t.Errorf("the least %s volume has %d bytes, want %d", fs, v.Got, least)
		}
		b.must(v.Delete())
	}
	v := b.d.Volume("grow", rig.BlockCap(), 32*mib)
	b.must(v.Create())
	for _, c := range [][2]int64{{-1, 0}, {math.MaxInt64, 0}, {64 * mib, 48 * mib}, {0, -5}} {
		_, err := b.c.ControllerExpandVolume(short(t), &csi.ControllerExpandVolumeRequest{
			VolumeId: v.ID, CapacityRange: &csi.CapacityRange{RequiredBytes: c[0], LimitBytes: c[1]},
		})
		b.refused("expanding", err, codes.OutOfRange, codes.InvalidArgument)
	}
	_, err := b.c.ControllerExpandVolume(short(t), &csi.ControllerExpandVolumeRequest{VolumeId: v.ID})
	b.refused("expanding without a range", err, codes.InvalidArgument)
	// Smaller than it is already: nothing to do, and never smaller.
	reply, err := b.c.ControllerExpandVolume(short(t), &csi.ControllerExpandVolumeRequest{
		VolumeId: v.ID, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 * mib},
	})
	b.must(err)
	if reply.GetCapacityBytes() != 32*mib {
		t.Errorf("a smaller size gave %d", reply.GetCapacityBytes())
	}
	b.must(v.Delete())
}

// strangeIDs: none of these was ever a volume.
func strangeIDs(b *bed) map[string]string {
	return map[string]string{
		"never existed":   b.uuid8() + ".nothing.89abcdef",
		"another shape":   "pvc-0b1c2d3e",
		"a path":          "../../etc/passwd",
		"a path as key":   "01234567.../../x.89abcdef",
		"emoji":           "\U0001f4a9",
		"of 4 parts":      b.uuid8() + ".a.b.89abcdef",
		"upper case":      "ABCDEF01.x.ABCDEF01",
		"only dots":       "...",
		"of a percentage": "%s%n%x",
	}
}

func TestStrangeIDs(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("real", "ext4")
	b.must(v.Create())
	s, err := v.Snapshot("real")
	b.must(err)
	ids := strangeIDs(b)
	ids["the right name with another random part"] = v.ID[:len(v.ID)-8] + "00000000"
	ids["a snapshot's"] = s.GetSnapshotId()
	for what, id := range ids {
		w := *v
		w.ID = id
		b.must(w.Paths())
		missing := []codes.Code{codes.NotFound, codes.InvalidArgument}
		if err := w.Delete(); err != nil { // "gone" and "not an id" are both right answers
			b.refused("DeleteVolume of an id that "+what, err, codes.InvalidArgument)
		}
		b.refused("NodeStageVolume: "+what, w.Stage(), missing...)
		b.refused("NodePublishVolume: "+what, w.Publish(), missing...)
		_, err := w.Stats()
		b.refused("NodeGetVolumeStats: "+what, err, missing...)
		b.refused("expand: "+what, w.Expand(64*mib, false), missing...)
		_, err = w.Snapshot("of-nothing")
		b.refused("CreateSnapshot: "+what, err, missing...)
		_, err = b.c.ControllerGetVolume(short(t), &csi.ControllerGetVolumeRequest{VolumeId: id})
		b.refused("ControllerGetVolume: "+what, err, missing...)
		_, err = b.c.ValidateVolumeCapabilities(short(t), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{v.Cap}})
		b.refused("ValidateVolumeCapabilities: "+what, err, missing...)
		_, err = b.c.NodeExpandVolume(short(t), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: v.Staging + "x"})
		b.refused("NodeExpandVolume: "+what, err, missing...)
		x := b.volume("from-nothing", "ext4")
		x.Source = rig.FromVolume(id)
		b.refused("clone: "+what, x.Create(), missing...)
		if id == s.GetSnapshotId() {
			continue
		}
		x.Source = rig.FromSnapshot(id)
		b.refused("restore: "+what, x.Create(), missing...)
		if err := b.d.DeleteSnapshot(id); err != nil {
			b.refused("DeleteSnapshot: "+what, err, codes.InvalidArgument)
		}
		// Kubelet retries these for ever: a path with nothing mounted is done.
		b.must(w.Unpublish())
		b.must(w.Unstage())
	}
	if err := b.d.DeleteSnapshot(v.ID); err != nil {
		b.refused("DeleteSnapshot of a volume", err, codes.InvalidArgument)
	}
	// None of that touched what exists.
	b.must(v.Up())
	b.must(v.Gone())
	if _, err := b.c.GetSnapshot(short(t), &csi.GetSnapshotRequest{SnapshotId: s.GetSnapshotId()}); err != nil {
		t.Error(err)
	}
	b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))

	long := strings.Repeat("x", 10<<10)
	for method, err := range map[string]error{
		"DeleteVolume":   (&bedVolume{b, long}).delete(),
		"DeleteSnapshot": b.d.DeleteSnapshot(long),
		"ControllerGetVolume": second(b.c.ControllerGetVolume(short(t),
			&csi.ControllerGetVolumeRequest{VolumeId: long})),
		"NodeStageVolume": second(b.c.NodeStageVolume(short(t), &csi.NodeStageVolumeRequest{VolumeId: long,
			StagingTargetPath: v.Staging, VolumeCapability: v.Cap})),
	} {
		b.refused(method+" of an id of 10 KiB", err, codes.InvalidArgument)
	}
}

type bedVolume struct {
	b  *bed
	id string
}

func (v *bedVolume) delete() error {
	return second(v.b.c.DeleteVolume(short(v.b.t), &csi.DeleteVolumeRequest{VolumeId: v.id}))
}

func second[T any](_ T, err error) error { return err }

func TestParameters(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	for _, params := range []map[string]string{
		{"unknown": "x"}, {"Pool": "default"}, {"pool": "nosuch"}, {"pool": ""}, {"provisioning": "fat"},
		{"device": "tape"}, {"csi.storage.k8s.io/fstype": "ntfs"}, {"blockSize": "513"}, {"blockSize": "-4096"},
		{"eraseOnDelete": "maybe"}, {"snapshotFreeze": "TRUE?"}, {"mkfsOptions": "-F /dev/sda"},
		{"mkfsOptions": "-L x; rm -rf /"}, {"mkfsOptions": "-E root_owner=0:0 -d /etc"}, {"mkfsOptions": "-J device=/dev/sda"},
		{"": "x"}, {"mkfsOptions": strings.Repeat("-m 1 ", 500)},
	} {
		v := b.volume("params", "ext4")
		v.Cap = rig.MountCap("")
		v.Params = params
		err := v.Create()
		b.refused("parameters", err, codes.InvalidArgument)
		if t.Failed() {
			t.Fatalf("parameters %v: %v", params, err)
		}
	}
	v := b.volume("params", "ext4")
	v.Params = map[string]string{"unknownKey": "x"}
	b.says("an unknown parameter", v.Create(), "unknownKey")
	v.Params = nil
	v.Cap = rig.MountCap("reiserfs")
	err := v.Create()
	b.refused("an unknown file system", err, codes.InvalidArgument)
	b.says("an unknown file system", err, "reiserfs")

	v.Params = map[string]string{
		"pool": "default", "device": "loop", "provisioning": "thin", "csi.storage.k8s.io/fstype": "ext4",
		"mkfsOptions": "-m 1", "blockSize": "4096", "eraseOnDelete": "none", "snapshotFreeze": "false",
		"csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "default",
	}
	v.Cap = rig.MountCap("")
	b.must(v.Up())
	b.must(v.Gone())
	v = b.volume("conflict", "ext4")
	v.Params = map[string]string{"csi.storage.k8s.io/fstype": "xfs"}
	if err := v.Create(); err != nil { // the capability and the class disagree
		b.refused("two file systems", err, codes.InvalidArgument)
	} else {
		b.must(v.Delete())
	}
}

// Names that exist with other arguments.
func TestExistsWithOtherArguments(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	v := b.volume("taken", "ext4")
	b.must(v.Create())
	other := *v
	other.Size = 64 * mib
	b.refused("another size", other.Create(), codes.AlreadyExists)
	other = *v
	other.Cap = rig.BlockCap()
	b.refused("another access type", other.Create(), codes.AlreadyExists)
	other = *v
	other.Cap = rig.MountCap("xfs")
	other.Size = 300 * mib
	b.refused("another file system", other.Create(), codes.AlreadyExists)
	s, err := v.Snapshot("source")
	b.must(err)
	other = *v
	other.Source = rig.FromSnapshot(s.GetSnapshotId())
	b.refused("another source", other.Create(), codes.AlreadyExists)
	other = *v
	other.Limit = 16 * mib
	other.Size = 16 * mib
	b.refused("a limit below its size", other.Create(), codes.AlreadyExists)
	other = *v
	other.Size = 16 * mib // what exists is large enough, no limit
	b.must(other.Create())
	if other.ID != v.ID {
		t.Errorf("two ids for one name: %s %s", other.ID, v.ID)
	}
	b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
	b.must(v.Delete())
}

// Each RPC with what has to be there left out, and what is not served.
func TestErrorCodes(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	v := b.volume("codes", "ext4")
	b.must(v.Create())
	b.must(v.Paths())
	ctx := short(t)
	capability := v.Cap
	c := b.c
	staged := v.Staging
	for _, x := range []struct {
		what string
		err  error
		want codes.Code
	}{
		{"CreateVolume without a name", second(c.CreateVolume(ctx, &csi.CreateVolumeRequest{
			VolumeCapabilities: []*csi.VolumeCapability{capability}})), codes.InvalidArgument},
		{"CreateVolume without capabilities", second(c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "x"})),
			codes.InvalidArgument},
		{"CreateVolume with an empty capability", second(c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "x",
			VolumeCapabilities: []*csi.VolumeCapability{{}}})), codes.InvalidArgument},
		{"CreateVolume for block and mount", second(c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "x",
			VolumeCapabilities: []*csi.VolumeCapability{rig.MountCap("ext4"), rig.BlockCap()}})), codes.InvalidArgument},
		{"CreateVolume with an empty source", second(c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "x",
			VolumeCapabilities:  []*csi.VolumeCapability{capability},
			VolumeContentSource: &csi.VolumeContentSource{}})), codes.InvalidArgument},
		{"CreateVolume elsewhere", second(c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "x",
			VolumeCapabilities: []*csi.VolumeCapability{capability},
			AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{
				{Segments: map[string]string{"topology.ringvol.dev/node": "elsewhere"}}}}})), codes.ResourceExhausted},
		{"CreateVolume larger than the pool", second(c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "x",
			CapacityRange:      &csi.CapacityRange{RequiredBytes: 1 << 40},
			VolumeCapabilities: []*csi.VolumeCapability{capability}})), codes.ResourceExhausted},
		{"DeleteVolume without an id", second(c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{})), codes.InvalidArgument},
		{"ValidateVolumeCapabilities without an id", second(c.ValidateVolumeCapabilities(ctx,
			&csi.ValidateVolumeCapabilitiesRequest{VolumeCapabilities: []*csi.VolumeCapability{capability}})),
			codes.InvalidArgument},
		{"ValidateVolumeCapabilities without capabilities", second(c.ValidateVolumeCapabilities(ctx,
			&csi.ValidateVolumeCapabilitiesRequest{VolumeId: v.ID})), codes.InvalidArgument},
		{"ListSnapshots with a bad token", second(c.ListSnapshots(ctx, &csi.ListSnapshotsRequest{
			StartingToken: "\x7fnot a token"})), codes.Aborted},
		{"CreateSnapshot without a name", second(c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
			SourceVolumeId: v.ID})), codes.InvalidArgument},
		{"CreateSnapshot without a source", second(c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
			Name: "x"})), codes.InvalidArgument},
		{"CreateSnapshot with a parameter", second(c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
			Name: "x", SourceVolumeId: v.ID, Parameters: map[string]string{"unknown": "x"}})), codes.InvalidArgument},
		{"DeleteSnapshot without an id", second(c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{})),
			codes.InvalidArgument},
		{"GetSnapshot without an id", second(c.GetSnapshot(ctx, &csi.GetSnapshotRequest{})), codes.InvalidArgument},
		{"GetSnapshot of nothing", second(c.GetSnapshot(ctx, &csi.GetSnapshotRequest{
			SnapshotId: b.uuid8() + ".nothing.89abcdef"})), codes.NotFound},
		{"ControllerExpandVolume without an id", second(c.ControllerExpandVolume(ctx,
			&csi.ControllerExpandVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: 1}})),
			codes.InvalidArgument},
		{"ControllerGetVolume without an id", second(c.ControllerGetVolume(ctx,
			&csi.ControllerGetVolumeRequest{})), codes.InvalidArgument},
		{"NodeStageVolume without an id", second(c.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			StagingTargetPath: staged, VolumeCapability: capability})), codes.InvalidArgument},
		{"NodeStageVolume without a path", second(c.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.ID, VolumeCapability: capability})), codes.InvalidArgument},
		{"NodeStageVolume without a capability", second(c.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.ID, StagingTargetPath: staged})), codes.InvalidArgument},
		{"NodePublishVolume not staged", second(c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.ID, StagingTargetPath: staged, TargetPath: v.Target, VolumeCapability: capability})),
			codes.FailedPrecondition},
		{"NodePublishVolume without a staging path", second(c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.ID, TargetPath: v.Target, VolumeCapability: capability})), codes.FailedPrecondition},
		{"NodePublishVolume without a target", second(c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.ID, StagingTargetPath: staged, VolumeCapability: capability})), codes.InvalidArgument},
		{"NodePublishVolume without a capability", second(c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.ID, StagingTargetPath: staged, TargetPath: v.Target})), codes.InvalidArgument},
		{"NodeUnpublishVolume without a target", second(c.NodeUnpublishVolume(ctx,
			&csi.NodeUnpublishVolumeRequest{VolumeId: v.ID})), codes.InvalidArgument},
		{"NodeUnpublishVolume without an id", second(c.NodeUnpublishVolume(ctx,
			&csi.NodeUnpublishVolumeRequest{TargetPath: v.Target})), codes.InvalidArgument},
		{"NodeUnstageVolume without a path", second(c.NodeUnstageVolume(ctx,
			&csi.NodeUnstageVolumeRequest{VolumeId: v.ID})), codes.InvalidArgument},
		{"NodeUnstageVolume without an id", second(c.NodeUnstageVolume(ctx,
			&csi.NodeUnstageVolumeRequest{StagingTargetPath: staged})), codes.InvalidArgument},
		{"NodeGetVolumeStats without a path", second(c.NodeGetVolumeStats(ctx,
			&csi.NodeGetVolumeStatsRequest{VolumeId: v.ID})), codes.InvalidArgument},
		{"NodeGetVolumeStats without an id", second(c.NodeGetVolumeStats(ctx,
			&csi.NodeGetVolumeStatsRequest{VolumePath: v.Target})), codes.InvalidArgument},
		{"NodeGetVolumeStats not published", second(c.NodeGetVolumeStats(ctx,
			&csi.NodeGetVolumeStatsRequest{VolumeId: v.ID, VolumePath: v.Target})), codes.NotFound},
		{"NodeExpandVolume without an id", second(c.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumePath: v.Target})), codes.InvalidArgument},
		{"NodeExpandVolume without a path", second(c.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: v.ID})), codes.InvalidArgument},
		{"ControllerPublishVolume", second(c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
			VolumeId: v.ID, NodeId: b.d.Node, VolumeCapability: capability})), codes.Unimplemented},
		{"ControllerModifyVolume", second(c.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
			VolumeId: v.ID, MutableParameters: map[string]string{"colour": "red"}})), codes.InvalidArgument},
		{"a method that is not", c.Conn.Invoke(ctx, "/csi.v1.Controller/NoSuch", &csi.ProbeRequest{},
			&csi.ProbeResponse{}), codes.Unimplemented},
		{"a service that is not", c.Conn.Invoke(ctx, "/csi.v9.Nothing/NoSuch", &csi.ProbeRequest{},
			&csi.ProbeResponse{}), codes.Unimplemented},
		{"a method of later work", c.Conn.Invoke(ctx, "/csi.v1.Controller/ControllerPublishVolume",
			&csi.ProbeRequest{}, &csi.ProbeResponse{}), codes.Unimplemented},
	} {
		b.refused(x.what, x.err, x.want)
	}
	b.must(v.Stage())
	other := *v
	other.Cap = rig.MountCap("ext4")
	other.Staging = v.Staging + "-other"
	b.must(os.MkdirAll(other.Staging, 0o755))
	if err := other.Stage(); err != nil { // at a second path: refused, or staged there too
		b.refused("staging at another path", err, codes.FailedPrecondition, codes.AlreadyExists)
	} else {
		b.must(other.Unstage())
	}
	wrong := *v
	wrong.Cap = rig.BlockCap()
	b.refused("staging as block what is staged as mount", wrong.Stage(), codes.AlreadyExists,
		codes.InvalidArgument, codes.FailedPrecondition)
	b.must(v.Unstage())
	b.must(v.Delete())
}

// Secrets may not come back: not in an answer, not in the log. Nor are they in memory when the call is over.
func TestSecretsAreNotKept(t *testing.T) {
	b := newBed(t, "xfs", 1<<30)
	b.d.Args = []string{"--log-level", "debug"}
	b.start()
	const secret = "hunter2-do-not-log"
	secrets := map[string]string{"password": secret}
	v := b.volume("secret", "ext4")
	req := v.Request()
	req.Secrets = secrets
	reply, err := b.c.CreateVolume(short(t), req)
	b.must(err)
	v.ID = reply.GetVolume().GetVolumeId()
	b.must(v.Paths())
	stage := v.StageRequest()
	stage.Secrets = secrets
	_, err = b.c.NodeStageVolume(short(t), stage)
	b.must(err)
	b.notInMemory(secret)
	b.must(v.Unstage())
	req.Name = ""
	_, err = b.c.CreateVolume(short(t), req)
	b.refused("no name", err, codes.InvalidArgument)
	errs := []error{err}
	for _, flag := range []string{"password=" + secret, secret, "commit=" + secret} {
		flagged := v.Request()
		flagged.Name = "flagged"
		flagged.VolumeCapabilities = []*csi.VolumeCapability{rig.MountCap("ext4", flag)}
		_, err = b.c.CreateVolume(short(t), flagged)
		b.refused("a secret flag", err, codes.InvalidArgument)
		errs = append(errs, err)
		stage.VolumeCapability = rig.MountCap("ext4", "noatime", flag)
		_, err = b.c.NodeStageVolume(short(t), stage)
		b.refused("a secret flag", err, codes.InvalidArgument)
		errs = append(errs, err)
	}
	for _, err := range errs {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the secret is in an error: %v", err)
		}
	}
	text, err := os.ReadFile(b.d.Log)
	b.must(err)
	if strings.Contains(string(text), secret) {
		t.Error("the secret is in the log")
	}
	_, err = b.c.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: v.ID, Secrets: secrets})
	b.must(err)
}
