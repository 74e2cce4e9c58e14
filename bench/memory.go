// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const (
	volumeSize = 64 * rig.MiB
	inFlight   = 64
)

func (b *bench) createAll(d *rig.Driver, prefix string, count int) error {
	all := volumes(d, prefix, count, rig.MountCap("ext4"), volumeSize)
	return each(count, inFlight, func(i int) error { return all[i].Create() })
}

// memory: the resident memory of a driver that has just started and knows so many volumes.
func memory(b *bench) error {
	d, _, err := b.open(16 << 30)
	if err != nil {
		return err
	}
	bars := []struct {
		count int
		bar   string
	}{{0, "<= 4"}, {min(1000, b.known), "<= 6"}, {b.known, "<= 12"}}
	have := 0
	for _, step := range bars {
		if err := b.createAll(d, fmt.Sprintf("mem%05d", step.count), step.count-have); err != nil {
			return err
		}
		have = step.count
		if err := d.Term(); err != nil {
			return err
		}
		d.Disconnect()
		if err := startReady(d); err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
		family, fresh := familyPss(d.Pid()), statusKiB(d.Pid(), "VmRSS")/1024
		note := fmt.Sprintf("anonymous %.1f MiB; with its helper processes, shared pages counted once (PSS), %.1f MiB",
			statusKiB(d.Pid(), "RssAnon")/1024, family/1024)
		b.add(row{What: fmt.Sprintf("VmRSS, %d volumes known", step.count), Unit: "MiB", Ours: fresh,
			Bar: step.bar, Note: note})
	}
	return nil
}

// firstAnswer is the time from exec to the answer of GetPluginInfo over a unix socket.
func firstAnswer(socket string, launch func() error) (float64, error) {
	begin := time.Now()
	if err := launch(); err != nil {
		return 0, err
	}
	if err := awaitSocket("unix", socket); err != nil {
		return 0, err
	}
	c, err := rig.Dial(socket)
	if err != nil {
		return 0, err
	}
	defer c.Conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = c.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	return float64(time.Since(begin).Microseconds()) / 1000, err
}

// start: exec to the first answer.
func start(b *bench) error {
	d, _, err := b.open(16 << 30)
	if err != nil {
		return err
	}
	ours := func() (float64, error) {
		d.Disconnect()
		if err := d.Term(); err != nil {
			return 0, err
		}
		return firstAnswer(d.Socket, d.Launch)
	}
	if b.havePeer() {
		other := func() (float64, error) {
			var p *process
			took, err := firstAnswer(b.Path("peer.sock"), func() (err error) {
				p, _, err = b.peer()
				return err
			})
			if p != nil {
				p.end()
			}
			return took, err
		}
		r := row{What: "exec to first answer, empty pool", Unit: "ms", Beside: "csi-driver-host-path", Bar: "ratio <= 1"}
		if err := b.paired(r, ours, other); err != nil {
			return err
		}
	}
	if err := b.createAll(d, "start000", b.known); err != nil {
		return err
	}
	var times []float64
	for range b.rounds {
		took, err := ours()
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	b.add(row{What: fmt.Sprintf("exec to first answer, %d volumes", b.known), Unit: "ms", Ours: median(times),
		Low: quantile(times, 0), High: quantile(times, 1), Rounds: len(times), Bar: "<= 250"})
	ready := time.Now()
	if err := d.AwaitReady(); err != nil {
		return err
	}
	if names, _ := filepath.Glob(filepath.Join(d.Pools[0].Path, "volumes", "*")); len(names) != b.known {
		return fmt.Errorf("%d volumes instead of %d", len(names), b.known)
	}
	b.add(row{What: "from there to Probe saying ready", Unit: "ms", Ours: float64(time.Since(ready).Microseconds()) / 1000})
	return nil
}

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
