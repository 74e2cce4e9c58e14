// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Volume is one volume as kubelet and the sidecars see it: what to ask for, and what came of it.
type Volume struct {
	Name   string
	Cap    *csi.VolumeCapability
	Size   int64
	Limit  int64
	Params map[string]string
	// What can be changed later.
	Mutable map[string]string
	Source  *csi.VolumeContentSource
	// What kubelet gives of the secrets that the class names, to stage and to grow.
	Secrets map[string]string
	// What external-attacher gives, likewise.
	AttachSecrets map[string]string
	// Where it may be; nil: not said.
	Topology *csi.TopologyRequirement

	ID      string
	Context map[string]string
	// What attaching it to a node has said; nil: nothing.
	PublishContext map[string]string
	Got            int64 // capacity_bytes of the last answer
	Staging        string
	Target         string
	// The orchestrator does not stage (--staging off): Up and Down do without.
	Unstaged bool

	driver *Driver
	client *Client
	node   *Driver // who stages and publishes; nil: the driver
}

// CallTimeout bounds each call; no test measures it.
const CallTimeout = 60 * time.Second

// MountCap is the capability of a mounted volume.
func MountCap(fs string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{
			Mount: &csi.VolumeCapability_MountVolume{FsType: fs, MountFlags: flags},
		},
		AccessMode: &csi.VolumeCapability_AccessMode{
			Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		},
	}
}

// BlockCap is the capability of a raw block volume.
func BlockCap() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{
			Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		},
	}
}

// WithMode sets the access mode of a capability and returns it.
func WithMode(c *csi.VolumeCapability, mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	c.AccessMode = &csi.VolumeCapability_AccessMode{Mode: mode}
	return c
}

// CapFor is the capability of a file system type, or of a block volume for "block".
func CapFor(fs string) *csi.VolumeCapability {
	if fs == "block" {
		return BlockCap()
	}
	return MountCap(fs)
}

// MinSize is a small size the file system accepts.
func MinSize(fs string) int64 {
	switch fs {
	case "xfs":
		return 300 * MiB
	case "btrfs":
		return 256 * MiB
	}
	return 32 * MiB
}

// FromSnapshot is the content source of a restore.
func FromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

// FromVolume is the content source of a clone.
func FromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

// Device is what volumes are attached as when a test does not say: "" is the driver's default, "ublk"
// where RINGVOL_TEST_DEVICE says so.
func Device() string { return os.Getenv("RINGVOL_TEST_DEVICE") }

// Volume prepares one; Create makes it.
func (d *Driver) Volume(name string, c *csi.VolumeCapability, size int64) *Volume {
	return &Volume{Name: name, Cap: c, Size: size, driver: d}
}

// On returns the same volume as seen over another connection (after a restart none is needed).
func (v *Volume) On(c *Client) *Volume {
	w := *v
	w.client = c
	return &w
}

func (v *Volume) call() (*Client, context.Context, context.CancelFunc, error) {
	c, err := v.client, error(nil)
	if c == nil {
		c, err = v.driver.Client()
	}
	ctx, cancel := context.WithTimeout(context.Background(), CallTimeout)
	return c, ctx, cancel, err
}

// nodeDriver is who stages and publishes.
func (v *Volume) nodeDriver() *Driver {
	if v.node != nil {
		return v.node
	}
	return v.driver
}

// nodeCall is call for the RPCs of the node service.
func (v *Volume) nodeCall() (*Client, context.Context, context.CancelFunc, error) {
	c, err := v.client, error(nil)
	if c == nil {
		c, err = v.nodeDriver().Client()
	}
	ctx, cancel := context.WithTimeout(context.Background(), CallTimeout)
	return c, ctx, cancel, err
}

// Request is the CreateVolume request.
func (v *Volume) Request() *csi.CreateVolumeRequest {
	req := &csi.CreateVolumeRequest{
		Name:                v.Name,
		VolumeCapabilities:  []*csi.VolumeCapability{v.Cap},
		Parameters:          v.Params,
		MutableParameters:   v.Mutable,
		VolumeContentSource: v.Source,

		AccessibilityRequirements: v.Topology,
	}
	if device := Device(); device != "" && v.Params["device"] == "" {
		req.Parameters = maps.Clone(v.Params)
		if req.Parameters == nil {
			req.Parameters = map[string]string{}
		}
		req.Parameters["device"] = device
	}
	if v.Size != 0 || v.Limit != 0 {
		req.CapacityRange = &csi.CapacityRange{RequiredBytes: v.Size, LimitBytes: v.Limit}
	}
	return req
}

// Create makes the volume and notes its id.
func (v *Volume) Create() error {
	c, ctx, cancel, err := v.call()
	defer cancel()
	if err != nil {
		return err
	}
	reply, err := c.CreateVolume(ctx, v.Request())
	if err != nil {
		return fmt.Errorf("CreateVolume %s: %w", v.Name, err)
	}
	v.ID = reply.GetVolume().GetVolumeId()
	v.Context = reply.GetVolume().GetVolumeContext()
	v.Got = reply.GetVolume().GetCapacityBytes()
	if v.ID == "" || v.Got < v.Size {
		return fmt.Errorf("CreateVolume %s: id %q, %d bytes for %d", v.Name, v.ID, v.Got, v.Size)
	}
	return nil
}

// Delete deletes the volume.
func (v *Volume) Delete() error {
	c, ctx, cancel, err := v.call()
	defer cancel()
	if err != nil {
		return err
	}
	if _, err = c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.ID}); err != nil {
		return fmt.Errorf("DeleteVolume %s: %w", v.ID, err)
	}
	return nil
}

// Deleted deletes it, and asks again while its device is held, as a provisioner does: a mount namespace that somebody
// makes meanwhile has copies of the mounts for a moment, or for as long as it lives.
func (v *Volume) Deleted() error {
	return Eventually(30*time.Second, func() error {
		err := v.Delete()
		if err != nil && Code(err) != codes.FailedPrecondition {
			err = Stop(err)
		}
		return err
	})
}

// Paths fills in staging and target paths as kubelet has them, and makes what kubelet makes.
func (v *Volume) Paths() error {
	name := v.Name
	if len(name) > 40 || name == "" || name != filepath.Base(name) {
		name = fmt.Sprintf("v%x", []byte(name))[:min(40, 1+2*len(name))]
	}
	if v.Cap.GetBlock() != nil {
		base := filepath.Join(v.nodeDriver().Kubelet, "plugins/kubernetes.io/csi/volumeDevices")
		v.Staging = filepath.Join(base, "staging", name)
		v.Target = filepath.Join(base, "publish", name, "pod-1")
	} else {
		v.Staging = filepath.Join(v.nodeDriver().Kubelet, "plugins/kubernetes.io/csi/csi.ringvol.dev", name,
			"globalmount")
		v.Target = filepath.Join(v.nodeDriver().Kubelet, "pods/pod-1/volumes/kubernetes.io~csi", name, "mount")
	}
	if err := os.MkdirAll(v.Staging, 0o750); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Dir(v.Target), 0o750)
}

// StageRequest is the NodeStageVolume request.
func (v *Volume) StageRequest() *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{
		VolumeId: v.ID, StagingTargetPath: v.Staging, VolumeCapability: v.Cap, VolumeContext: v.Context,
		Secrets: v.Secrets, PublishContext: v.PublishContext,
	}
}

// Stage stages the volume.
func (v *Volume) Stage() error {
	if v.Staging == "" {
		if err := v.Paths(); err != nil {
			return err
		}
	}
	c, ctx, cancel, err := v.nodeCall()
	defer cancel()
	if err != nil {
		return err
	}
	if _, err = c.NodeStageVolume(ctx, v.StageRequest()); err != nil {
		return fmt.Errorf("NodeStageVolume %s: %w", v.ID, err)
	}
	return nil
}

// Publish publishes it at its target path.
func (v *Volume) Publish() error {
	return v.PublishAt(v.Target, false)
}

// PublishAt publishes it anywhere.
func (v *Volume) PublishAt(target string, readOnly bool) error {
	c, ctx, cancel, err := v.nodeCall()
	defer cancel()
	if err != nil {
		return err
	}
	request := &csi.NodePublishVolumeRequest{
		VolumeId: v.ID, StagingTargetPath: v.Staging, TargetPath: target, VolumeCapability: v.Cap,
		Readonly: readOnly, VolumeContext: v.Context, PublishContext: v.PublishContext,
	}
	if v.Unstaged {
		request.StagingTargetPath, request.Secrets = "", v.Secrets
	}
	_, err = c.NodePublishVolume(ctx, request)
	if err != nil {
		return fmt.Errorf("NodePublishVolume %s: %w", v.ID, err)
	}
	return nil
}

// Unpublish takes it from its target path.
func (v *Volume) Unpublish() error {
	return v.UnpublishAt(v.Target)
}

// UnpublishAt takes it from a path; the path has to be gone afterwards.
func (v *Volume) UnpublishAt(target string) error {
	c, ctx, cancel, err := v.nodeCall()
	defer cancel()
	if err != nil {
		return err
	}
	_, err = c.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID, TargetPath: target})
	if err != nil {
		return fmt.Errorf("NodeUnpublishVolume %s: %w", v.ID, err)
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("NodeUnpublishVolume %s: %s is still there (%v)", v.ID, target, err)
	}
	return nil
}

// Unstage undoes Stage.
func (v *Volume) Unstage() error {
	c, ctx, cancel, err := v.nodeCall()
	defer cancel()
	if err != nil {
		return err
	}
	_, err = c.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
		VolumeId: v.ID, StagingTargetPath: v.Staging,
	})
	if err != nil {
		return fmt.Errorf("NodeUnstageVolume %s: %w", v.ID, err)
	}
	return nil
}

// Up is Create (unless it was), Stage and Publish.
func (v *Volume) Up() error {
	if v.ID == "" {
		if err := v.Create(); err != nil {
			return err
		}
	}
	if v.Unstaged {
		if err := v.Paths(); err != nil {
			return err
		}
	} else if err := v.Stage(); err != nil {
		return err
	}
	return v.Publish()
}

// Down is Unpublish and Unstage.
func (v *Volume) Down() error {
	if err := v.Unpublish(); err != nil || v.Unstaged {
		return err
	}
	return v.Unstage()
}

// Gone is Down and Delete. Who looks into a device, as another driver's scan does, keeps it for a moment, and
// the delete is refused until then: the caller retries.
func (v *Volume) Gone() error {
	if err := v.Down(); err != nil {
		return err
	}
	return v.Deleted()
}

// Stats asks for usage at the target path.
func (v *Volume) Stats() (*csi.NodeGetVolumeStatsResponse, error) {
	c, ctx, cancel, err := v.nodeCall()
	defer cancel()
	if err != nil {
		return nil, err
	}
	return c.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID, VolumePath: v.Target})
}

// Modify changes mutable parameters, as external-resizer does.
func (v *Volume) Modify(params map[string]string) error {
	c, ctx, cancel, err := v.call()
	defer cancel()
	if err != nil {
		return err
	}
	_, err = c.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: v.ID, MutableParameters: params})
	if err != nil {
		return fmt.Errorf("ControllerModifyVolume %s: %w", v.ID, err)
	}
	return nil
}

// Expand grows the volume as external-resizer and kubelet do: the controller first, then the node
// if the controller says so and the volume is staged.
func (v *Volume) Expand(size int64, node bool) error {
	c, ctx, cancel, err := v.call()
	defer cancel()
	if err != nil {
		return err
	}
	reply, err := c.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: v.ID, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: v.Cap,
	})
	if err != nil {
		return fmt.Errorf("ControllerExpandVolume %s: %w", v.ID, err)
	}
	if reply.GetCapacityBytes() < size {
		return fmt.Errorf("ControllerExpandVolume %s: %d bytes for %d", v.ID, reply.GetCapacityBytes(), size)
	}
	v.Got = reply.GetCapacityBytes()
	if !node || !reply.GetNodeExpansionRequired() {
		return nil
	}
	c, ctx, cancelNode, err := v.nodeCall()
	defer cancelNode()
	if err != nil {
		return err
	}
	_, err = c.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: v.ID, VolumePath: v.Target, StagingTargetPath: v.Staging,
		CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: v.Cap,
		Secrets: v.Secrets,
	})
	if err != nil {
		return fmt.Errorf("NodeExpandVolume %s: %w", v.ID, err)
	}
	return nil
}

// Snapshot takes a snapshot and waits until it is ready.
func (v *Volume) Snapshot(name string) (*csi.Snapshot, error) {
	c, ctx, cancel, err := v.call()
	defer cancel()
	if err != nil {
		return nil, err
	}
	for {
		reply, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{SourceVolumeId: v.ID, Name: name})
		if err != nil {
			return nil, fmt.Errorf("CreateSnapshot %s of %s: %w", name, v.ID, err)
		}
		if reply.GetSnapshot().GetReadyToUse() {
			return reply.GetSnapshot(), nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// DeleteSnapshot deletes one by id.
func (d *Driver) DeleteSnapshot(id string) error {
	c, err := d.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), CallTimeout)
	defer cancel()
	if _, err = c.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id}); err != nil {
		return fmt.Errorf("DeleteSnapshot %s: %w", id, err)
	}
	return nil
}

// Code of an error, wrapped or not; OK for nil.
func Code(err error) codes.Code {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Code()
	}
	return status.Code(err)
}
