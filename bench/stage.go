// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// stageFloor is what a floor of stages needs: an image to clone, a directory, a mount point, the
// sector size the driver's devices have.
type stageFloor struct {
	template, dir, mount, sector string
}

func (b *bench) stageFloor(d *rig.Driver, p *rig.Pool) (*stageFloor, error) {
	dir, err := floorDir(p)
	if err != nil {
		return nil, err
	}
	f := &stageFloor{dir: dir, mount: b.Path("floor-mount")}
	if err := os.Mkdir(f.mount, 0o755); err != nil {
		return nil, err
	}
	look := d.Volume("look", rig.MountCap("ext4"), volumeSize)
	source := d.Volume("source", rig.MountCap("ext4"), volumeSize)
	if err := look.Create(); err != nil {
		return nil, err
	}
	if err := look.Stage(); err != nil {
		return nil, err
	}
	if f.sector, err = sectorOf(look.Staging); err != nil {
		return nil, err
	}
	if err := look.Unstage(); err != nil {
		return nil, err
	}
	if err := source.Create(); err != nil {
		return nil, err
	}
	f.template = p.Image(source.ID)
	return f, rig.Eventually(30*time.Second, look.Delete)
}

// stage: NodeStageVolume of volumes never staged before, their template warm.
func stage(b *bench) error {
	const count = 50
	d, p, err := b.open(8 << 30)
	if err != nil {
		return err
	}
	f, err := b.stageFloor(d, p)
	if err != nil {
		return err
	}
	var serial atomic.Int64
	var started []float64
	ours := func() (float64, error) {
		all := volumes(d, fmt.Sprintf("s%07d", serial.Add(1)), count, rig.MountCap("ext4"), volumeSize)
		if err := makePaths(all); err != nil {
			return 0, err
		}
		if err := each(count, 1, func(i int) error { return all[i].Create() }); err != nil {
			return 0, err
		}
		watch, err := watchForks(d.Pid())
		if err != nil {
			return 0, err
		}
		middle, err := p50(count, func(i int) error { return all[i].Stage() })
		if err != nil {
			return 0, err
		}
		forked, err := watch.result()
		if err != nil {
			return 0, err
		}
		started = append(started, float64(forked))
		return middle, each(count, 1, func(i int) error { return down(all[i], all[i].Unstage) })
	}
	floor := func(kind string) func() (float64, error) {
		return func() (float64, error) { return floorMedian(kind, f.dir, count, f.template, f.mount, f.sector) }
	}
	err = b.paired(row{What: "NodeStageVolume, fresh ext4, p50", Unit: "us", Beside: "LOOP_CONFIGURE + mount", Bar: "ratio <= 2"},
		ours, floor("stage"))
	if err != nil {
		return err
	}
	err = b.paired(row{What: "the same, the floor with a UUID of its own", Unit: "us", Beside: "LOOP_CONFIGURE + mount + SETFSUUID"},
		ours, floor("uuid"))
	if err != nil {
		return err
	}
	b.add(row{What: fmt.Sprintf("processes the driver started during %d stages, most of the rounds", count),
		Ours: slices.Max(started), Rounds: len(started), Bar: "<= 0", Note: "by the kernel's process events"})
	return nil
}

// many: the bars' thousand volumes, 16 calls in flight, beside the same system calls one by one.
func many(b *bench) error {
	const count, atATime = 1000, 16
	d, p, err := b.open(8 << 30)
	if err != nil {
		return err
	}
	f, err := b.stageFloor(d, p)
	if err != nil {
		return err
	}
	round := 0
	var parts [3][]float64
	ours := func() (float64, error) {
		round++
		all := volumes(d, fmt.Sprintf("m%07d", round), count, rig.MountCap("ext4"), volumeSize)
		if err := makePaths(all); err != nil {
			return 0, err
		}
		start := time.Now()
		for k, call := range []func(v *rig.Volume) error{(*rig.Volume).Create, (*rig.Volume).Stage, (*rig.Volume).Publish} {
			begin := time.Now()
			if err := each(count, atATime, func(i int) error { return call(all[i]) }); err != nil {
				return 0, err
			}
			parts[k] = append(parts[k], float64(time.Since(begin).Microseconds())/1e3/count)
		}
		took := float64(time.Since(start).Microseconds()) / 1e3 / count
		return took, each(count, atATime, func(i int) error { return down(all[i], all[i].Down) })
	}
	floor := func() (float64, error) {
		us, err := floorMedian("life", f.dir, count, f.template, f.mount, f.sector)
		return us / 1e3 / count, err
	}
	rounds := b.rounds
	b.rounds = min(rounds, 5)
	err = b.paired(row{What: "1,000 volumes created, staged, published, 16 in flight, each", Unit: "ms",
		Beside: "the same calls in a loop", Bar: "ratio <= 2"}, ours, floor)
	b.rounds = rounds
	for k, name := range []string{"of it create", "of it stage", "of it publish"} {
		b.add(row{What: name, Unit: "ms", Ours: median(parts[k])})
	}
	return err
}

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
