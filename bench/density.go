// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// density: every call's p50 with thousands of mounted volumes, beside 100 of them: one driver, which first
// has the few and then the many. The bare LOOP_CONFIGURE + mount is measured in both states as well and tells
// what the kernel itself loses.
func density(b *bench) error {
	const few = 100
	d, p, err := b.open(32 << 30)
	if err != nil {
		return err
	}
	f, err := b.stageFloor(d, p)
	if err != nil {
		return err
	}
	all := volumes(d, "dense000", b.dense, rig.MountCap("ext4"), volumeSize)
	if err := makePaths(all); err != nil {
		return err
	}
	up := func(from, to int) error {
		return each(to-from, 16, func(i int) error { return all[from+i].Up() })
	}
	if err := up(0, few); err != nil {
		return err
	}
	small, floorSmall, err := densityRounds(b, d, f, "few")
	if err != nil {
		return err
	}
	if err := up(few, b.dense); err != nil {
		return err
	}
	large, floorLarge, err := densityRounds(b, d, f, "many")
	if err != nil {
		return err
	}
	for i, name := range densityCalls {
		ratios := make([]float64, len(large[i]))
		for k := range ratios {
			ratios[k] = large[i][k] / small[i][k]
		}
		r := row{What: fmt.Sprintf("%s p50 with %d mounted volumes", name, b.dense), Unit: "us",
			Beside: fmt.Sprintf("with %d", few), Bar: "ratio <= 1.5"}
		b.addPairs(r, large[i], small[i], ratios)
	}
	ratios := make([]float64, len(floorLarge))
	for k := range ratios {
		ratios[k] = floorLarge[k] / floorSmall[k]
	}
	b.addPairs(row{What: fmt.Sprintf("the kernel's own: bare LOOP_CONFIGURE + mount with %d mounted volumes", b.dense), Unit: "us",
		Beside: fmt.Sprintf("with %d", few)}, floorLarge, floorSmall, ratios)
	stage := large[slices.Index(densityCalls, "NodeStageVolume")]
	fair := make([]float64, len(stage))
	for k := range fair {
		fair[k] = stage[k] / floorLarge[k]
	}
	b.addPairs(row{What: fmt.Sprintf("NodeStageVolume p50 with %d mounted volumes, the kernel's own as floor", b.dense), Unit: "us",
		Beside: fmt.Sprintf("LOOP_CONFIGURE + mount with %d", b.dense)}, stage, floorLarge, fair)
	return each(len(all), 16, func(i int) error { return down(all[i], all[i].Down) })
}

var densityCalls = []string{"CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeGetVolumeStats",
	"ControllerGetVolume", "CreateSnapshot", "DeleteSnapshot", "CreateVolume from a volume", "ControllerExpandVolume",
	"NodeUnpublishVolume", "NodeUnstageVolume", "DeleteVolume", "GetCapacity", "ListVolumes of 100", "ValidateVolumeCapabilities",
	"Probe"}

func densityRounds(b *bench, d *rig.Driver, f *stageFloor, prefix string) (calls [][]float64, floor []float64, err error) {
	const count = 40
	c, err := d.Client()
	if err != nil {
		return nil, nil, err
	}
	calls = make([][]float64, len(densityCalls))
	for round := range b.rounds {
		vs := volumes(d, fmt.Sprintf("%-4.4s%04d", prefix, round), count, rig.MountCap("ext4"), volumeSize)
		for _, v := range vs {
			v.Name = strings.ReplaceAll(v.Name, " ", "-")
		}
		clones := volumes(d, fmt.Sprintf("%.3sc%04d", prefix, round), count, rig.MountCap("ext4"), volumeSize)
		blocks := volumes(d, fmt.Sprintf("%.3sb%04d", prefix, round), count, rig.BlockCap(), volumeSize)
		snapshots := make([]string, count)
		if err := makePaths(vs); err != nil {
			return nil, nil, err
		}
		if err := each(count, 1, func(i int) error { return blocks[i].Create() }); err != nil {
			return nil, nil, err
		}
		ctx := context.Background()
		for k, call := range []func(i int) error{
			func(i int) error { return vs[i].Create() },
			func(i int) error { return vs[i].Stage() },
			func(i int) error { return vs[i].Publish() },
			func(i int) error { _, err := vs[i].Stats(); return err },
			func(i int) error {
				_, err := c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: vs[i].ID})
				return err
			},
			func(i int) error {
				s, err := vs[i].Snapshot(vs[i].Name)
				snapshots[i] = s.GetSnapshotId()
				return err
			},
			func(i int) error { return d.DeleteSnapshot(snapshots[i]) },
			func(i int) error { clones[i].Source = rig.FromVolume(vs[i].ID); return clones[i].Create() },
			func(i int) error { return blocks[i].Expand(volumeSize+rig.MiB, false) },
			func(i int) error { return vs[i].Unpublish() },
			func(i int) error { return vs[i].Unstage() },
			func(i int) error { return rig.Eventually(30*time.Second, vs[i].Delete) },
			func(i int) error { _, err := c.GetCapacity(ctx, &csi.GetCapacityRequest{}); return err },
			func(i int) error { _, err := c.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 100}); return err },
			func(i int) error {
				_, err := c.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{
					VolumeId: clones[i].ID, VolumeCapabilities: []*csi.VolumeCapability{clones[i].Cap}})
				return err
			},
			func(i int) error { _, err := c.Probe(ctx, &csi.ProbeRequest{}); return err },
		} {
			middle, err := p50(count, call)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", densityCalls[k], err)
			}
			calls[k] = append(calls[k], middle)
		}
		middle, err := floorMedian("stage", f.dir, count, f.template, f.mount, f.sector)
		if err != nil {
			return nil, nil, err
		}
		floor = append(floor, middle)
		if err := each(count, 8, func(i int) error {
			if err := clones[i].Delete(); err != nil {
				return err
			}
			return blocks[i].Delete()
		}); err != nil {
			return nil, nil, err
		}
	}
	return calls, floor, nil
}
