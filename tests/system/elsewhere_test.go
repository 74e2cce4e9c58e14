// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// elsewhere is a volume, a snapshot of it and what a call needs besides; their pool is another node's.
type elsewhere struct {
	c                *rig.Client
	ctx              context.Context
	volume, snapshot string
	staging, target  string
}

func (e *elsewhere) create(source *csi.VolumeContentSource) error {
	return second(e.c.CreateVolume(e.ctx, &csi.CreateVolumeRequest{
		Name: "copy", VolumeCapabilities: []*csi.VolumeCapability{rig.MountCap("ext4")}, VolumeContentSource: source,
	}))
}

// elsewhereCalls are all RPCs that name a volume or snapshot, each with what it answers for one that another node has.
var elsewhereCalls = []struct {
	method string
	want   codes.Code
	call   func(e *elsewhere) error
}{
	{"Controller/CreateVolume", codes.ResourceExhausted, func(e *elsewhere) error {
		return e.create(rig.FromSnapshot(e.snapshot))
	}},
	{"Controller/CreateVolume", codes.ResourceExhausted, func(e *elsewhere) error {
		return e.create(rig.FromVolume(e.volume))
	}},
	{"Controller/DeleteVolume", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.DeleteVolume(e.ctx, &csi.DeleteVolumeRequest{VolumeId: e.volume}))
	}},
	{"Controller/ControllerPublishVolume", codes.Unimplemented, func(e *elsewhere) error {
		return second(e.c.ControllerPublishVolume(e.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: e.volume,
			NodeId: "a", VolumeCapability: rig.MountCap("ext4")}))
	}},
	{"Controller/ControllerUnpublishVolume", codes.Unimplemented, func(e *elsewhere) error {
		return second(e.c.ControllerUnpublishVolume(e.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: e.volume,
			NodeId: "a"}))
	}},
	{"Controller/ValidateVolumeCapabilities", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.ValidateVolumeCapabilities(e.ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: e.volume,
			VolumeCapabilities: []*csi.VolumeCapability{rig.MountCap("ext4")}}))
	}},
	{"Controller/CreateSnapshot", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.CreateSnapshot(e.ctx, &csi.CreateSnapshotRequest{Name: "another", SourceVolumeId: e.volume}))
	}},
	{"Controller/DeleteSnapshot", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.DeleteSnapshot(e.ctx, &csi.DeleteSnapshotRequest{SnapshotId: e.snapshot}))
	}},
	{"Controller/ListSnapshots", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.ListSnapshots(e.ctx, &csi.ListSnapshotsRequest{SnapshotId: e.snapshot}))
	}},
	{"Controller/ListSnapshots", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.ListSnapshots(e.ctx, &csi.ListSnapshotsRequest{SourceVolumeId: e.volume}))
	}},
	{"Controller/GetSnapshot", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.GetSnapshot(e.ctx, &csi.GetSnapshotRequest{SnapshotId: e.snapshot}))
	}},
	{"Controller/ControllerExpandVolume", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.ControllerExpandVolume(e.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: e.volume,
			CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib}}))
	}},
	{"Controller/ControllerGetVolume", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.ControllerGetVolume(e.ctx, &csi.ControllerGetVolumeRequest{VolumeId: e.volume}))
	}},
	{"Controller/ControllerModifyVolume", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.ControllerModifyVolume(e.ctx, &csi.ControllerModifyVolumeRequest{VolumeId: e.volume}))
	}},
	{"Controller/ControllerGetVolumeHealth", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.ControllerGetVolumeHealth(e.ctx, e.volume))
	}},
	{"Node/NodeStageVolume", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.NodeStageVolume(e.ctx, &csi.NodeStageVolumeRequest{VolumeId: e.volume,
			StagingTargetPath: e.staging, VolumeCapability: rig.MountCap("ext4")}))
	}},
	{"Node/NodeUnstageVolume", codes.OK, func(e *elsewhere) error { // nothing of it is here: kubelet has to get on
		return second(e.c.NodeUnstageVolume(e.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: e.volume,
			StagingTargetPath: e.staging}))
	}},
	{"Node/NodePublishVolume", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.NodePublishVolume(e.ctx, &csi.NodePublishVolumeRequest{VolumeId: e.volume,
			StagingTargetPath: e.staging, TargetPath: e.target, VolumeCapability: rig.MountCap("ext4")}))
	}},
	{"Node/NodeUnpublishVolume", codes.OK, func(e *elsewhere) error {
		return second(e.c.NodeUnpublishVolume(e.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: e.volume,
			TargetPath: e.target + "-missing"}))
	}},
	{"Node/NodeGetVolumeStats", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.NodeGetVolumeStats(e.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: e.volume,
			VolumePath: e.target}))
	}},
	{"Node/NodeExpandVolume", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.NodeExpandVolume(e.ctx, &csi.NodeExpandVolumeRequest{VolumeId: e.volume,
			VolumePath: e.target}))
	}},
	{"Node/NodeGetVolumeHealth", codes.Unavailable, func(e *elsewhere) error {
		return second(e.c.NodeGetVolumeHealth(e.ctx, e.volume, e.target, e.staging))
	}},
}

// A volume of another node is not a volume that does not exist: its controller must not take it for deleted, and a
// copy of it is to be scheduled where it is.
func TestPoolOfAnotherNode(t *testing.T) {
	a := open(t, "xfs", 1<<30)
	v := a.volume("far", "ext4")
	a.must(v.Create())
	s, err := v.Snapshot("far")
	a.must(err)

	b := newBed(t, "xfs", 1<<30)
	b.d.Args = []string{"--csi-version", "1.13"}
	b.start()
	e := &elsewhere{c: b.c, ctx: short(t), volume: v.ID, snapshot: s.GetSnapshotId(),
		staging: b.Path("staging"), target: b.Path("target")}
	b.must(os.MkdirAll(e.staging, 0o755))
	uuid8 := v.ID[:8]
	listed := map[string]bool{}
	for _, x := range elsewhereCalls {
		listed[x.method] = true
		err := x.call(e)
		switch x.want {
		case codes.OK:
			b.must(err)
		case codes.Unimplemented:
			b.refused(x.method, err, x.want)
		default:
			b.refused(x.method, err, x.want)
			b.says(x.method, err, uuid8)
		}
		if x.want == codes.ResourceExhausted {
			b.says(x.method, err, "Schedule the pod there", b.d.Node)
		}
	}
	for _, method := range methodsWithIDs() {
		if !listed[method] {
			t.Errorf("%s is not asked", method)
		}
	}
	// Nobody has deleted anything.
	a.must(v.Up())
	a.must(v.Gone())
	a.must(a.d.DeleteSnapshot(s.GetSnapshotId()))
}

// methodsWithIDs are the RPCs of the services that are served whose requests name a volume or a snapshot.
func methodsWithIDs() (methods []string) {
	protoregistry.GlobalFiles.RangeFilesByPackage("csi.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			if name := service.Name(); name != "Controller" && name != "Node" {
				continue
			}
			for k := range service.Methods().Len() {
				method := service.Methods().Get(k)
				for f := range method.Input().Fields().Len() {
					name := string(method.Input().Fields().Get(f).Name())
					if strings.HasSuffix(name, "volume_id") || name == "snapshot_id" || name == "volume_content_source" {
						methods = append(methods, fmt.Sprintf("%s/%s", service.Name(), method.Name()))
						break
					}
				}
			}
		}
		return true
	})
	return methods
}
