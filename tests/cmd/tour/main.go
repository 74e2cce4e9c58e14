// SPDX-License-Identifier: Apache-2.0

// The tour starts the driver on a pool of its own and takes volumes through their life with the gRPC
// client that kubelet and the sidecars use, printing each step and its time.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const (
	manyVolumes  = 100
	manyInFlight = 16
	dataBytes    = 8 * rig.MiB
)

func main() {
	interrupted, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	defer stop()
	r, err := rig.New()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
		os.Exit(1)
	}
	ended := make(chan error, 1)
	go func() { ended <- tour(r) }()
	status := 0
	select {
	case err = <-ended:
		if err != nil {
			fmt.Fprintln(os.Stderr, "\nfailed:", err)
			status = 1
		}
	case <-interrupted.Done():
		fmt.Fprintln(os.Stderr, "\ninterrupted, cleaning up")
		status = 130
	}
	if err := r.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "cleaning up:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func tour(r *rig.Rig) error {
	fmt.Printf("%-46s %10s\n", "step", "ms")
	var d *rig.Driver
	err := steps("",
		step{"make a pool: a sparse XFS image of 1 GiB", func() error {
			p, err := r.NewPool("default", "xfs", 1024*rig.MiB)
			if err == nil {
				d = r.NewDriver(p)
			}
			return err
		}},
		step{"start the driver, wait until it is ready", func() error {
			if err := d.Start(); err != nil {
				return err
			}
			return d.AwaitReady()
		}})
	if err != nil {
		return err
	}
	for _, part := range []func() error{
		// ext4 grows online only with CAP_SYS_RESOURCE, which root does not have everywhere.
		func() error { return life(d, "ext4", 64*rig.MiB, 0) },
		func() error { return life(d, "xfs", 300*rig.MiB, 320*rig.MiB) },
		func() error { return life(d, "block", 64*rig.MiB, 128*rig.MiB) },
		func() error { return many(d) },
		func() error {
			return steps("", step{"nothing is left behind", d.Leaks}, step{"stop the driver", d.Term})
		},
	} {
		if err = part(); err != nil {
			break
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "\nthe driver's last words:\n%s\n", d.LogTail(15))
	}
	return err
}

type step struct {
	what string
	run  func() error
}

func steps(on string, list ...step) error {
	for _, s := range list {
		start := time.Now()
		err := s.run()
		took := time.Since(start)
		what := s.what
		if on != "" {
			what = fmt.Sprintf("%-6s %s", on, s.what)
		}
		fmt.Printf("%-46s %10.2f\n", what, float64(took.Microseconds())/1000)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

// life is a volume's whole life; grown == 0 leaves it as large as it is.
func life(d *rig.Driver, kind string, size, grown int64) error {
	fmt.Println()
	v := d.Volume("tour-"+kind, rig.CapFor(kind), size)
	restored := d.Volume("tour-"+kind+"-restored", v.Cap, max(size, grown))
	cloned := d.Volume("tour-"+kind+"-clone", v.Cap, max(size, grown))
	for _, w := range []*rig.Volume{v, restored, cloned} {
		if kind != "block" {
			w.Params = map[string]string{"csi.storage.k8s.io/fstype": kind}
		}
	}
	var sum string
	var snapshot *csi.Snapshot
	check := func(w *rig.Volume) func() error {
		return func() error { return rig.Check(w.Target, dataBytes, sum) }
	}
	list := []step{
		{fmt.Sprintf("CreateVolume, %d MiB", size/rig.MiB), v.Create},
		{"NodeStageVolume", v.Stage},
		{"NodePublishVolume", v.Publish},
		{fmt.Sprintf("write %d MiB, fsync", dataBytes/rig.MiB), func() (err error) {
			sum, err = rig.Fill(v.Target, dataBytes, 1)
			return err
		}},
		{"NodeGetVolumeStats", func() error { return stats(v) }},
		{"CreateSnapshot of the mounted volume", func() (err error) {
			snapshot, err = v.Snapshot("tour-" + kind + "-snapshot")
			return err
		}},
	}
	if grown > 0 {
		list = append(list, step{fmt.Sprintf("expand to %d MiB while in use", grown/rig.MiB), func() error {
			return expand(v, grown)
		}})
	}
	list = append(list,
		step{"CreateVolume from the snapshot", func() error {
			restored.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
			return restored.Create()
		}},
		step{"stage and publish the restored volume", restored.Up},
		step{"its data is the same", check(restored)},
		step{"unpublish, unstage, delete it", restored.Gone},
		step{"DeleteSnapshot", func() error { return d.DeleteSnapshot(snapshot.GetSnapshotId()) }},
		step{"NodeUnpublishVolume", v.Unpublish},
		step{"NodeUnstageVolume", v.Unstage},
		step{"CreateVolume as a clone", func() error {
			cloned.Source = rig.FromVolume(v.ID)
			return cloned.Create()
		}},
		step{"stage and publish the clone", cloned.Up},
		step{"its data is the same", check(cloned)},
		step{"unpublish, unstage, delete it", cloned.Gone},
		step{"DeleteVolume", v.Deleted},
	)
	return steps(kind, list...)
}

func stats(v *rig.Volume) error {
	reply, err := v.Stats()
	if err != nil {
		return err
	}
	for _, usage := range reply.GetUsage() {
		if usage.GetUnit() == csi.VolumeUsage_BYTES && usage.GetTotal() > 0 {
			return nil
		}
	}
	return errors.New("no bytes in the usage")
}

func expand(v *rig.Volume, size int64) error {
	before, err := rig.Space(v.Target)
	if err != nil {
		return err
	}
	if err := v.Expand(size, true); err != nil {
		return err
	}
	after, err := rig.Space(v.Target)
	if err == nil && after <= before {
		err = fmt.Errorf("%s has %d bytes, as before", v.Target, after)
	}
	return err
}

// many takes volumes through create, stage, publish, unpublish, unstage, delete, several at once.
func many(d *rig.Driver) error {
	names := []string{"CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume",
		"NodeUnstageVolume", "DeleteVolume"}
	times := make(map[string][]time.Duration)
	var lock sync.Mutex
	var wait sync.WaitGroup
	queue := make(chan int)
	failed := make(chan error, manyInFlight)
	start := time.Now()
	for range manyInFlight {
		wait.Go(func() {
			for i := range queue {
				v := d.Volume(fmt.Sprintf("tour-many-%d", i), rig.MountCap("ext4"), 16*rig.MiB)
				for k, run := range []func() error{v.Create, v.Stage, v.Publish, v.Unpublish, v.Unstage, v.Deleted} {
					began := time.Now()
					if err := run(); err != nil {
						failed <- err
						return
					}
					lock.Lock()
					times[names[k]] = append(times[names[k]], time.Since(began))
					lock.Unlock()
				}
			}
		})
	}
	var err error
feed:
	for i := range manyVolumes {
		select {
		case queue <- i:
		case err = <-failed:
			break feed
		}
	}
	close(queue)
	wait.Wait()
	took := time.Since(start)
	select {
	case err = <-failed:
	default:
	}
	fmt.Printf("\n%d volumes, %d in flight: %.2f s\n", manyVolumes, manyInFlight, took.Seconds())
	fmt.Printf("%-24s %10s %10s %10s\n", "ms", "p50", "p99", "max")
	for _, name := range names {
		list := times[name]
		if len(list) == 0 {
			continue
		}
		slices.Sort(list)
		at := func(q float64) float64 {
			return float64(list[int(q*float64(len(list)-1))].Microseconds()) / 1000
		}
		fmt.Printf("%-24s %10.2f %10.2f %10.2f\n", name, at(0.5), at(0.99), at(1))
	}
	fmt.Println(strings.Repeat("-", 57))
	return err
}
