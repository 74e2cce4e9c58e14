// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// The lives of a volume as the specification draws them: figure 5, made and published; figure 6, staged besides; figure 7,
// made beforehand; figure 8, published and unpublished and nothing else, as by the node-only plugin of figure 4. Figures 5
// to 7 have ControllerPublishVolume (attach) in them: as the specification says of a plugin without PUBLISH_UNPUBLISH_VOLUME,
// which a driver without --attach is, that step is left out here. TestPairFigures has it.

// unstaged is a driver that publishes without staging.
func unstaged(t *testing.T, args ...string) *bed {
	t.Helper()
	b := newBed(t, "xfs", 2<<30)
	b.d.Args = append([]string{"--staging", "off"}, args...)
	return b.start()
}

func (b *bed) unstagedVolume(name, kind string) *rig.Volume {
	v := b.volume(name, kind)
	v.Unstaged = true
	b.must(v.Paths())
	return v
}

func (b *bed) nodeCapabilities() []csi.NodeServiceCapability_RPC_Type {
	b.t.Helper()
	reply, err := b.c.NodeGetCapabilities(short(b.t), &csi.NodeGetCapabilitiesRequest{})
	b.must(err)
	var all []csi.NodeServiceCapability_RPC_Type
	for _, c := range reply.GetCapabilities() {
		all = append(all, c.GetRpc().GetType())
	}
	return all
}

// notServed: what is not advertised answers UNIMPLEMENTED.
func (b *bed) stagingIsNotServed() {
	b.t.Helper()
	if slices.Contains(b.nodeCapabilities(), csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		b.t.Error("STAGE_UNSTAGE_VOLUME is advertised")
	}
	_, err := b.c.NodeStageVolume(short(b.t), &csi.NodeStageVolumeRequest{})
	b.refused("NodeStageVolume", err, codes.Unimplemented)
	_, err = b.c.NodeUnstageVolume(short(b.t), &csi.NodeUnstageVolumeRequest{})
	b.refused("NodeUnstageVolume", err, codes.Unimplemented)
}

// Figures 4 and 8, a node-only plugin: it has no Controller service, its volumes are made by somebody else, and all that is
// asked of it is to publish and to unpublish.
func TestFigure8NodeOnly(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	volumes := []*rig.Volume{b.unstagedVolume("here", "ext4"), b.unstagedVolume("raw", "block")}
	for _, v := range volumes {
		b.must(v.Create())
	}
	b.must(b.d.Term())
	b.d.Args = []string{"--staging", "off", "--services", "node"}
	b.start()
	plugin, err := b.c.GetPluginCapabilities(short(t), &csi.GetPluginCapabilitiesRequest{})
	b.must(err)
	for _, c := range plugin.GetCapabilities() {
		if c.GetService().GetType() == csi.PluginCapability_Service_CONTROLLER_SERVICE {
			t.Error("a node-only plugin advertises a Controller service")
		}
	}
	_, err = b.c.CreateVolume(short(t), volumes[0].Request())
	b.refused("CreateVolume", err, codes.Unimplemented)
	b.stagingIsNotServed()
	for _, v := range volumes {
		b.twice(v.Publish)
		sum, err := rig.Fill(v.Target, dataBytes, 4)
		b.must(err)
		b.twice(v.Unpublish)
		b.must(v.Publish())
		b.must(rig.Check(v.Target, dataBytes, sum))
		b.must(v.Unpublish())
	}
	b.must(b.d.Term())
	b.d.Args = nil
	b.start()
	for _, v := range volumes {
		b.must(v.Delete())
	}
}

// Figure 5 without its attach: made, published by one call, unpublished by one, deleted.
func TestFigure5Unstaged(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
		t.Run(kind, func(t *testing.T) {
			b := unstaged(t)
			b.stagingIsNotServed()
			v := b.unstagedVolume("life", kind)
			v.Cap = rig.WithMode(v.Cap, multiWriter)
			b.twice(v.Create)
			b.twice(v.Publish)
			if nodes := b.published(v.ID); !slices.Equal(nodes, []string{b.d.Node}) {
				t.Errorf("published on %v", nodes)
			}
			b.refused("DeleteVolume in use", v.Delete(), codes.FailedPrecondition)
			sum, err := rig.Fill(v.Target, dataBytes, 1)
			b.must(err)
			b.usage(v, kind)
			other := b.otherTarget(v)
			b.twice(func() error { return v.PublishAt(other, false) })
			b.must(rig.Check(other, dataBytes, sum))
			b.must(v.Unpublish()) // the first one goes first
			b.must(rig.Check(other, dataBytes, sum))
			if nodes := b.published(v.ID); !slices.Equal(nodes, []string{b.d.Node}) {
				t.Errorf("published on %v", nodes)
			}
			b.restart()
			b.must(v.Publish())
			b.must(rig.Check(v.Target, dataBytes, sum))
			b.must(v.UnpublishAt(other))
			b.twice(v.Unpublish)
			if nodes := b.published(v.ID); len(nodes) != 0 {
				t.Errorf("still published on %v", nodes)
			}
			b.twice(v.Delete)
		})
	}
}

// A writer does not notice that the driver is killed, nor that the next one is of the other mode. What was published
// without staging is unpublished by a driver that stages, and the other way round.
func TestUnstagedRestartsInTheOtherMode(t *testing.T) {
	for _, kind := range []string{"ext4", "block"} {
		for _, first := range []string{"on", "off"} {
			t.Run(kind+" staging "+first, func(t *testing.T) {
				b := newBed(t, "xfs", 1<<30)
				b.d.Args = []string{"--staging", first}
				b.start()
				v := b.volume("life", kind)
				v.Unstaged = first == "off"
				b.must(v.Up())
				w := startWriter(v.Target)
				w.moves(b)
				b.must(b.d.Kill())
				b.d.Args = []string{"--staging", map[string]string{"on": "off", "off": "on"}[first]}
				b.start()
				w.moves(b)
				v.Unstaged = !v.Unstaged
				if v.Unstaged {
					b.must(v.Publish()) // found
					b.must(w.finish())
					b.must(v.Down())
				} else {
					b.must(w.finish())
					b.must(v.Stage())
					b.must(v.Publish())
					b.must(v.Down())
				}
				b.must(v.Gone())
			})
		}
	}
}

// A single writer stays alone, and what is published read-only takes no write beside a target that does.
func TestUnstagedAccessModes(t *testing.T) {
	b := unstaged(t)
	alone := b.unstagedVolume("alone", "ext4")
	alone.Cap = rig.WithMode(alone.Cap, singleWriter)
	b.must(alone.Up())
	other := b.otherTarget(alone)
	b.refused("a second place", alone.PublishAt(other, false), codes.FailedPrecondition)
	b.restart()
	b.refused("a second place after a restart", alone.PublishAt(other, false), codes.FailedPrecondition)
	if _, err := os.Lstat(other); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the refused publish left %s", other)
	}
	b.must(alone.Gone())

	many := b.unstagedVolume("many", "ext4")
	many.Cap = rig.WithMode(many.Cap, multiWriter)
	b.must(many.Create())
	b.must(many.PublishAt(many.Target, true))
	other = b.otherTarget(many)
	b.must(many.PublishAt(other, false))
	b.must(os.WriteFile(filepath.Join(other, "a"), []byte("a"), 0o600))
	if err := os.WriteFile(filepath.Join(many.Target, "b"), nil, 0o600); err == nil {
		t.Error("a read-only target was written to")
	}
	b.must(many.UnpublishAt(other))
	b.must(many.Gone())
}

// Figures 6 and 7: made, staged, published, unpublished, unstaged, deleted; and for one that was made beforehand, whose id
// is written down by hand, the same without the first and the last.
func TestFigure6And7Staged(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	made := b.volume("made", "ext4")
	b.twice(made.Create)
	byHand := b.d.Volume("by-hand", rig.CapFor("ext4"), 0)
	byHand.ID = made.ID
	for range 2 {
		b.twice(byHand.Stage)
		b.twice(byHand.Publish)
		b.refused("NodeUnstageVolume of what is published", byHand.Unstage(), codes.FailedPrecondition)
		b.twice(byHand.Unpublish)
		b.twice(byHand.Unstage)
	}
	b.twice(made.Delete)
}
