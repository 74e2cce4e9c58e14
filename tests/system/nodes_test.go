// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// giveTo is ControllerPublishVolume as external-attacher makes it.
func giveTo(t *testing.T, c *rig.Client, v *rig.Volume, node string, readOnly bool) (map[string]string, error) {
	t.Helper()
	answer, err := c.ControllerPublishVolume(short(t), &csi.ControllerPublishVolumeRequest{
		VolumeId: v.ID, NodeId: node, VolumeCapability: v.Cap, Readonly: readOnly, VolumeContext: v.Context,
		Secrets: v.AttachSecrets})
	return answer.GetPublishContext(), err
}

func takeFrom(t *testing.T, c *rig.Client, v *rig.Volume, node string) error {
	t.Helper()
	_, err := c.ControllerUnpublishVolume(short(t), &csi.ControllerUnpublishVolumeRequest{VolumeId: v.ID, NodeId: node})
	return err
}

// attachedTo says which nodes ListVolumes has for the volume.
func attachedTo(t *testing.T, c *rig.Client, v *rig.Volume) []string {
	t.Helper()
	answer, err := c.ListVolumes(short(t), &csi.ListVolumesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range answer.Entries {
		if entry.Volume.VolumeId == v.ID {
			return entry.GetStatus().GetPublishedNodeIds()
		}
	}
	t.Fatalf("%s is in no list", v.ID)
	return nil
}

// A volume is attached to its node, used there, and let go, through killed drivers.
func TestAttachToOwnNode(t *testing.T) {
	b := newBed(t, "xfs", 2<<30)
	b.d.Args = []string{"--attach"}
	own := b.d.Node
	b.start()
	v := b.volume("attached", "ext4")
	b.must(v.Create())
	for range 2 {
		context, err := giveTo(t, b.c, v, own, false)
		b.must(err)
		if len(context) != 0 {
			t.Errorf("the own node's context is %v", context)
		}
	}
	_, err := giveTo(t, b.c, v, "worker-2", false)
	b.refused("another node", err, codes.NotFound)
	_, err = giveTo(t, b.c, v, own, true)
	b.refused("read-only beside writable", err, codes.AlreadyExists)
	b.listsAttached("attached", own)
	b.must(v.Stage())
	b.must(v.Publish())
	b.must(b.d.Kill())
	b.listsAttached("attached", own) // by the pools alone
	b.start()
	if nodes := attachedTo(t, b.c, v); !slices.Equal(nodes, []string{own}) {
		t.Errorf("after a kill it is attached to %v", nodes)
	}
	b.refused("DeleteVolume of what is attached", v.Delete(), codes.FailedPrecondition)
	b.must(v.Down())
	b.refused("DeleteVolume of what is attached", v.Delete(), codes.FailedPrecondition)
	b.must(takeFrom(t, b.c, v, ""))
	b.must(takeFrom(t, b.c, v, own))
	if nodes := attachedTo(t, b.c, v); len(nodes) != 0 {
		t.Errorf("it is attached to nobody, and to %v", nodes)
	}
	b.listsAttached("attached")
	b.must(v.Delete())
	b.must(takeFrom(t, b.c, v, own))
}

// listsAttached: that is what ls says of a volume, as a table and in JSON.
func (b *bed) listsAttached(name string, nodes ...string) {
	b.t.Helper()
	var got []string
	for _, a := range b.ls("--pool", b.poolArg()).volume(name).Attachments {
		if a.ReadOnly || a.Exported {
			b.t.Errorf("%s: %+v", name, a)
		}
		got = append(got, a.NodeID)
	}
	if !slices.Equal(got, nodes) {
		b.t.Errorf("ls: %s is attached to %v", name, got)
	}
	if r := tool(b.t, nil, "ls", "--endpoint", b.endpoint(), "--pool", b.poolArg()); r.code != 0 || strings.Contains(r.out, "ATTACHED TO") != (len(nodes) > 0) {
		b.t.Errorf("%+v", r)
	}
}

// A controller knows the nodes that have joined, and asks the one that has the volume.
func TestAttachThroughController(t *testing.T) {
	b := newCluster(t, "--attach")
	for _, name := range []string{"node-a", "node-b"} {
		_, err := b.StartNode(name, nodePool, "--attach")
		b.must(err)
	}
	b.must(b.ctl.AwaitJoined("node-a", "node-b"))
	v := b.volume(b.node("node-a"), "pvc-attached")
	b.must(v.Create())
	_, err := giveTo(t, b.c, v, "node-c", false)
	b.refused("a node that never joined", err, codes.NotFound)
	_, err = giveTo(t, b.c, v, "node-b", false)
	b.refused("a node that has it not", err, codes.FailedPrecondition)
	_, err = giveTo(t, b.c, v, "node-a", false)
	b.must(err)
	b.eventually(func() error {
		if nodes := attachedTo(t, b.c, v); !slices.Equal(nodes, []string{"node-a"}) {
			return fmt.Errorf("attached to %v", nodes)
		}
		return nil
	})
	b.must(takeFrom(t, b.c, v, "node-a"))
	b.gone(v)
}
