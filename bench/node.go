// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// target is one staged volume of either driver, seen by the same client.
type target struct {
	client          *rig.Client
	id              string
	context         map[string]string
	staging, target string
}

func (t *target) publish() error {
	_, err := t.client.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
		VolumeId: t.id, VolumeContext: t.context, StagingTargetPath: t.staging, TargetPath: t.target,
		VolumeCapability: rig.MountCap("ext4"),
	})
	return err
}

func (t *target) unpublish() error {
	_, err := t.client.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{
		VolumeId: t.id, TargetPath: t.target,
	})
	return err
}

func (t *target) stats() error {
	_, err := t.client.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{
		VolumeId: t.id, VolumePath: t.target,
	})
	return err
}

func (t *target) info() error {
	_, err := t.client.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{})
	return err
}

// stagedAt creates and stages a volume as kubelet would.
func stagedAt(socket, kubelet string) (*target, error) {
	c, err := rig.Dial(socket)
	if err != nil {
		return nil, err
	}
	t := &target{client: c, staging: filepath.Join(kubelet, "globalmount"), target: filepath.Join(kubelet, "pod", "mount")}
	for _, dir := range []string{t.staging, filepath.Dir(t.target)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	reply, err := c.CreateVolume(context.Background(), &csi.CreateVolumeRequest{
		Name: "node", VolumeCapabilities: []*csi.VolumeCapability{rig.MountCap("ext4")},
		CapacityRange: &csi.CapacityRange{RequiredBytes: volumeSize},
	})
	if err != nil {
		return nil, err
	}
	t.id, t.context = reply.GetVolume().GetVolumeId(), reply.GetVolume().GetVolumeContext()
	_, err = c.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: t.id, VolumeContext: t.context, StagingTargetPath: t.staging, VolumeCapability: rig.MountCap("ext4"),
	})
	return t, err
}

// medians are of publish, stats, unpublish and GetPluginInfo, over count calls each.
func (t *target) medians(count int) ([4]float64, error) {
	var times [4][]float64
	for range count {
		for i, call := range []func() error{t.publish, t.stats, t.unpublish, t.info} {
			took, err := micros(1, func(int) error { return call() })
			if err != nil {
				return [4]float64{}, err
			}
			times[i] = append(times[i], took[0])
		}
	}
	return [4]float64{median(times[0]), median(times[1]), median(times[2]), median(times[3])}, nil
}

// node: the calls kubelet makes most, by its own client library.
func node(b *bench) error {
	if !b.havePeer() {
		return nil
	}
	d, _, err := b.open(2 << 30)
	if err != nil {
		return err
	}
	_, socket, err := b.peer()
	if err != nil {
		return err
	}
	if err := awaitSocket("unix", socket); err != nil {
		return err
	}
	ours, err := stagedAt(d.Socket, b.Path("kubelet"))
	if err != nil {
		return err
	}
	theirs, err := stagedAt(socket, b.Path("peer-kubelet"))
	if err != nil {
		return fmt.Errorf("csi-driver-host-path: %w", err)
	}
	var mine, others, ratios [4][]float64
	for range b.rounds {
		x, err := ours.medians(200)
		if err != nil {
			return err
		}
		y, err := theirs.medians(50)
		if err != nil {
			return fmt.Errorf("csi-driver-host-path: %w", err)
		}
		for i := range x {
			mine[i], others[i], ratios[i] = append(mine[i], x[i]), append(others[i], y[i]), append(ratios[i], x[i]/y[i])
		}
	}
	for i, name := range []string{"NodePublishVolume, p50", "NodeGetVolumeStats, p50", "NodeUnpublishVolume, p50", "GetPluginInfo, p50"} {
		r := row{What: name, Unit: "us", Beside: "csi-driver-host-path", Bar: "ratio <= 0.1"}
		if i == 3 {
			r.Bar, r.Note = "", "the client's own share: what no server can save"
		}
		b.addPairs(r, mine[i], others[i], ratios[i])
	}
	return nil
}
