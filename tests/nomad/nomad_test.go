// SPDX-License-Identifier: Apache-2.0

// Package nomad has Nomad's own CSI client drive the driver: its fingerprinting of plugins, its manager of a client's volumes and its
// calls of a controller are code of Nomad's module. The driver runs with the arguments of the job in deploy/nomad.
package nomad

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/dynamicplugins"
	"github.com/hashicorp/nomad/client/pluginmanager/csimanager"
	clientstructs "github.com/hashicorp/nomad/client/structs"
	"github.com/hashicorp/nomad/jobspec2"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/csi"
)

const plugin = "ringvol-node-a"

// bed is a driver as Nomad's job starts it, and Nomad's end of it.
type bed struct {
	*rig.Rig
	t      *testing.T
	driver *rig.Driver
	root   string // Nomad's directory of the plugin, for client and plugin alike
	client csi.CSIPlugin

	lock sync.Mutex
	info map[string]*structs.CSIInfo // as told by the fingerprinter last
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.driver.LogTail(20))
	}
}

func (b *bed) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), rig.CallTimeout)
	b.t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T) *bed {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	b := &bed{Rig: r, t: t, root: r.Path("nomad"), info: map[string]*structs.CSIInfo{}}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	pool, err := r.NewPool("default", "xfs", 2<<30)
	if err != nil {
		t.Fatal(err)
	}
	b.driver = r.NewDriver(pool)
	b.must(os.MkdirAll(b.root, 0o700))
	b.driver.Args = b.jobArguments(pool)
	b.must(b.driver.Start())
	b.must(b.driver.AwaitReady())
	b.client = csi.NewClient(b.driver.Socket, hclog.NewNullLogger())
	r.Defer(b.client.Close)
	return b
}

// jobArguments are those of the job, with the container's paths replaced by the test's. The rig gives the endpoint, the pool and the
// node's name by itself.
func (b *bed) jobArguments(pool *rig.Pool) []string {
	path := filepath.Join("..", "..", "deploy", "nomad", "ringvol.nomad.hcl")
	text, err := os.ReadFile(path)
	b.must(err)
	job, err := jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: path, Body: text, ArgVars: []string{"node=node-a", "pool=" + pool.Path}})
	b.must(err)
	task := job.TaskGroups[0].Tasks[0]
	if task.CSIPluginConfig.ID != plugin {
		b.t.Fatalf("the job's plugin is %s", task.CSIPluginConfig.ID)
	}
	var args []string
	for _, arg := range task.Config["args"].([]any) {
		name, value, _ := strings.Cut(arg.(string), "=")
		switch name {
		case "serve", "--endpoint", "--pool", "--node-id", "--http":
		case "--target-root":
			if value != task.CSIPluginConfig.StagePublishBaseDir {
				b.t.Errorf("the driver's root is %s, and Nomad's %s", value, task.CSIPluginConfig.StagePublishBaseDir)
			}
			args = append(args, name+"="+b.root)
		default:
			args = append(args, arg.(string))
		}
	}
	return args
}

// mounter is what a Nomad client mounts volumes with, once it has found the plugin healthy. stop ends it, as an update of Nomad does.
func (b *bed) mounter() (csimanager.VolumeMounter, func()) {
	b.t.Helper()
	registry := dynamicplugins.NewRegistry(nil, map[string]dynamicplugins.PluginDispenser{
		dynamicplugins.PluginTypeCSINode:       func(*dynamicplugins.PluginInfo) (any, error) { return b.client, nil },
		dynamicplugins.PluginTypeCSIController: func(*dynamicplugins.PluginInfo) (any, error) { return b.client, nil },
	})
	manager := csimanager.New(&csimanager.Config{Logger: hclog.NewNullLogger(), DynamicRegistry: registry,
		TriggerNodeEvent: func(*structs.NodeEvent) {},
		UpdateNodeCSIInfoFunc: func(_ string, info *structs.CSIInfo) {
			b.lock.Lock()
			defer b.lock.Unlock()
			kind := "node"
			if info.ControllerInfo != nil {
				kind = "controller"
			}
			b.info[kind] = info
		}})
	manager.PluginManager().Run()
	for _, kind := range []string{dynamicplugins.PluginTypeCSINode, dynamicplugins.PluginTypeCSIController} {
		b.must(registry.RegisterPlugin(&dynamicplugins.PluginInfo{Name: plugin, Type: kind, Version: "0.1.0", AllocID: "plugin-alloc",
			ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: b.driver.Socket},
			Options:        map[string]string{"Provider": "csi.ringvol.dev", "MountPoint": b.root, "ContainerMountPoint": b.root}}))
	}
	var mounter csimanager.VolumeMounter
	b.must(rig.Eventually(time.Minute, func() error {
		var err error
		mounter, err = manager.MounterForPlugin(b.ctx(), plugin)
		return err
	}))
	return mounter, func() {
		manager.Shutdown()
		registry.Shutdown()
	}
}

// create is what Nomad's server asks a controller for when somebody says "nomad volume create".
func (b *bed) create(name, fs string) *structs.CSIVolume {
	b.t.Helper()
	ask := clientstructs.ClientCSIControllerCreateVolumeRequest{Name: name, CapacityMin: 320 << 20, CapacityMax: 320 << 20,
		VolumeCapabilities: []*structs.CSIVolumeCapability{{AttachmentMode: structs.CSIVolumeAttachmentModeFilesystem,
			AccessMode: structs.CSIVolumeAccessModeSingleNodeWriter}},
		MountOptions: &structs.CSIMountOptions{FSType: fs}, Parameters: map[string]string{"pool": "default"},
		RequestedTopologies: &structs.CSITopologyRequest{Required: []*structs.CSITopology{
			{Segments: map[string]string{"topology.ringvol.dev/node": "node-a"}}}}}
	request, err := ask.ToCSIRequest()
	b.must(err)
	answer, err := b.client.ControllerCreateVolume(b.ctx(), request)
	b.must(err)
	again, err := b.client.ControllerCreateVolume(b.ctx(), request)
	b.must(err)
	if again.Volume.ExternalVolumeID != answer.Volume.ExternalVolumeID || answer.Volume.CapacityBytes != 320<<20 {
		b.t.Errorf("%+v, and again %+v", answer.Volume, again.Volume)
	}
	b.must(b.client.ControllerValidateCapabilities(b.ctx(), &csi.ControllerValidateVolumeRequest{
		ExternalID: answer.Volume.ExternalVolumeID, Capabilities: request.VolumeCapabilities,
		Parameters: request.Parameters, Context: answer.Volume.VolumeContext}))
	return &structs.CSIVolume{ID: name, Namespace: "default", ExternalID: answer.Volume.ExternalVolumeID, PluginID: plugin,
		Context: answer.Volume.VolumeContext, MountOptions: &structs.CSIMountOptions{FSType: fs}}
}

var writer = &csimanager.UsageOptions{AttachmentMode: structs.CSIVolumeAttachmentModeFilesystem,
	AccessMode: structs.CSIVolumeAccessModeSingleNodeWriter}

func (b *bed) mount(m csimanager.VolumeMounter, v *structs.CSIVolume, alloc string) string {
	b.t.Helper()
	info, err := m.MountVolume(b.ctx(), v, &structs.Allocation{ID: alloc}, writer, nil)
	b.must(err)
	return info.Source
}

func (b *bed) unmount(m csimanager.VolumeMounter, v *structs.CSIVolume, alloc string) {
	b.t.Helper()
	b.must(m.UnmountVolume(b.ctx(), v.ID, v.RemoteID(), alloc, writer))
}

// nothingMounted: no mounts in Nomad's directory, and no devices.
func (b *bed) nothingMounted() {
	b.t.Helper()
	if mounts := rig.MountsBelow(b.root); len(mounts) > 0 {
		b.t.Errorf("mounted: %q", mounts)
	}
	if loops := rig.LoopsBelow(b.driver.Pools[0].Path); len(loops) > 0 {
		b.t.Errorf("devices: %q", loops)
	}
}

// What a Nomad client finds out about the plugin.
func TestFingerprint(t *testing.T) {
	b := open(t)
	_, stop := b.mounter()
	defer stop()
	b.must(rig.Eventually(time.Minute, func() error {
		b.lock.Lock()
		defer b.lock.Unlock()
		for _, kind := range []string{"node", "controller"} {
			if info := b.info[kind]; info == nil || !info.Healthy {
				return os.ErrNotExist
			}
		}
		return nil
	}))
	b.lock.Lock()
	defer b.lock.Unlock()
	node, controller := b.info["node"], b.info["controller"]
	if !node.RequiresControllerPlugin || !node.RequiresTopologies || !node.NodeInfo.RequiresNodeStageVolume || node.NodeInfo.ID != "node-a" ||
		node.NodeInfo.AccessibleTopology.Segments["topology.ringvol.dev/node"] != "node-a" {
		t.Errorf("of the node: %+v %+v", node, node.NodeInfo)
	}
	c := controller.ControllerInfo
	if !c.SupportsCreateDelete || !c.SupportsListVolumes || !c.SupportsCreateDeleteSnapshot || !c.SupportsListSnapshots || !c.SupportsClone ||
		c.SupportsAttachDetach {
		t.Errorf("of the controller: %+v", c)
	}
	name, version, err := b.client.PluginGetInfo(b.ctx())
	b.must(err)
	if name != "csi.ringvol.dev" || version == "" {
		t.Errorf("plugin %s %s", name, version)
	}
	ready, err := b.client.PluginProbe(b.ctx())
	b.must(err)
	if !ready {
		t.Error("it is not ready")
	}
}

// The life of a volume in Nomad: created, used by two allocations, through restarts of the driver and of Nomad's client, snapshots,
// deleted.
func TestVolumeLife(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			b := open(t)
			mounter, stop := b.mounter()
			v := b.create("data", fs)
			one := b.mount(mounter, v, "alloc-1")
			sum, err := rig.Fill(one, 8<<20, 11)
			b.must(err)
			two := b.mount(mounter, v, "alloc-2")
			b.must(rig.Check(two, 8<<20, sum))

			b.must(b.driver.Kill())
			b.must(rig.Check(one, 8<<20, sum))
			b.must(b.driver.Start())
			b.must(b.driver.AwaitReady())
			// An update of Nomad: the new client mounts what is mounted, for the same allocations.
			stop()
			mounter, stop = b.mounter()
			defer stop()
			if again := b.mount(mounter, v, "alloc-1"); again != one {
				t.Errorf("mounted at %s, and not at %s", again, one)
			}
			b.mount(mounter, v, "alloc-2")
			b.snapshots(v)
			b.unmount(mounter, v, "alloc-1")
			b.unmount(mounter, v, "alloc-1")
			b.must(rig.Check(two, 8<<20, sum))
			b.unmount(mounter, v, "alloc-2")
			b.nothingMounted()

			b.must(b.client.ControllerDeleteVolume(b.ctx(), &csi.ControllerDeleteVolumeRequest{ExternalVolumeID: v.ExternalID}))
			b.must(b.client.ControllerDeleteVolume(b.ctx(), &csi.ControllerDeleteVolumeRequest{ExternalVolumeID: v.ExternalID}))
			list, err := b.client.ControllerListVolumes(b.ctx(), &csi.ControllerListVolumesRequest{})
			b.must(err)
			if len(list.Entries) != 0 {
				t.Errorf("left: %+v", list.Entries)
			}
		})
	}
}

// snapshots: nomad volume snapshot create, list, delete.
func (b *bed) snapshots(v *structs.CSIVolume) {
	b.t.Helper()
	answer, err := b.client.ControllerCreateSnapshot(b.ctx(), &csi.ControllerCreateSnapshotRequest{VolumeID: v.ExternalID, Name: "snap"})
	b.must(err)
	if !answer.Snapshot.IsReady || answer.Snapshot.SourceVolumeID != v.ExternalID {
		b.t.Errorf("snapshot %+v", answer.Snapshot)
	}
	list, err := b.client.ControllerListSnapshots(b.ctx(), &csi.ControllerListSnapshotsRequest{MaxEntries: 10})
	b.must(err)
	if !slices.ContainsFunc(list.Entries, func(e *csi.ListSnapshotsResponse_Entry) bool { return e.Snapshot.ID == answer.Snapshot.ID }) {
		b.t.Errorf("the list of snapshots has %+v", list.Entries)
	}
	b.must(b.client.ControllerDeleteSnapshot(b.ctx(), &csi.ControllerDeleteSnapshotRequest{SnapshotID: answer.Snapshot.ID}))
}

// A driver that publishes without staging: Nomad's client sees that it has not to stage.
func TestWithoutStaging(t *testing.T) {
	b := open(t)
	b.must(b.driver.Kill())
	b.driver.Args = append(b.driver.Args, "--staging=off")
	b.must(b.driver.Start())
	b.must(b.driver.AwaitReady())
	mounter, stop := b.mounter()
	defer stop()
	v := b.create("data", "ext4")
	one := b.mount(mounter, v, "alloc-1")
	sum, err := rig.Fill(one, 8<<20, 5)
	b.must(err)
	b.must(rig.Check(b.mount(mounter, v, "alloc-2"), 8<<20, sum))
	b.unmount(mounter, v, "alloc-1")
	b.unmount(mounter, v, "alloc-2")
	b.nothingMounted()
	b.must(b.client.ControllerDeleteVolume(b.ctx(), &csi.ControllerDeleteVolumeRequest{ExternalVolumeID: v.ExternalID}))
}
