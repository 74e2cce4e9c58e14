// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const (
	attachSize = 128 * rig.MiB
	queues     = "nr_io_queues=8" // as ours has: one for each processor, and no more than that
)

// attachPair is a driver that has volumes, one that uses them, and devices to be given away by hand.
type attachPair struct {
	*bench
	owner, user *rig.Driver
	hand, under string // partitions
	serial      int
}

// attach: volumes of another node, over NVMe and TCP on the loopback, beside nvmet and nvme-tcp set up by hand.
func attach(b *bench) error {
	if why := rig.HasNVMe(); why != "" {
		fmt.Fprintf(os.Stderr, "%s: skipped, %s (scripts/vm/bench.sh raw has a guest with it)\n", b.group, why)
		return nil
	}
	r, err := b.scratch(1 << 30)
	if r == nil || err != nil {
		return err
	}
	p := &attachPair{bench: b}
	if p.hand, err = r.cut(attachSize); err != nil {
		return err
	}
	if p.under, err = r.cut(attachSize); err != nil {
		return err
	}
	disk, err := r.rest()
	if err != nil {
		return err
	}
	if err := p.open(disk); err != nil {
		return err
	}
	if err := p.speed(); err != nil {
		return err
	}
	return p.calls()
}

// open starts both drivers, each with a directory of its own.
func (p *attachPair) open(disk string) error {
	address, err := rig.FreeAddress()
	if err != nil {
		return err
	}
	if p.owner, _, err = p.openRaw(disk); err != nil {
		return err
	}
	p.owner.Args = append(p.owner.Args, "--attach", "--export-address", address)
	if err := errors.Join(p.owner.Kill(), startReady(p.owner)); err != nil {
		return err
	}
	other, err := rig.New()
	if err != nil {
		return err
	}
	p.Defer(other.Close)
	pool, err := other.NewPool("default", "xfs", 512*rig.MiB)
	if err != nil {
		return err
	}
	if err := os.Mkdir(other.Path("csi"), 0o755); err != nil {
		return err
	}
	p.user = other.NewDriver(pool)
	p.user.Node = "node-b"
	p.user.Args = []string{"--log-level", "warn"}
	return startReady(p.user)
}

// volume is one of the owner's, and the same as the other node sees it.
func (p *attachPair) volume() (*rig.Volume, *rig.Volume, error) {
	p.serial++
	name := fmt.Sprintf("attach-%d", p.serial)
	v := p.owner.Volume(name, rig.BlockCap(), attachSize)
	v.Params = map[string]string{"pool": "raw", "attach": "remote", "provisioning": "thick"}
	if err := v.Create(); err != nil {
		return nil, nil, err
	}
	w := p.user.Volume(name, v.Cap, v.Size)
	w.ID, w.Context = v.ID, v.Context
	return v, w, w.Paths()
}

// ask calls the owner.
func (p *attachPair) ask(call func(ctx context.Context, c *rig.Client) error) error {
	c, err := p.owner.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), rig.CallTimeout)
	defer cancel()
	return call(ctx, c)
}

func (p *attachPair) give(w *rig.Volume) error {
	return p.ask(func(ctx context.Context, c *rig.Client) error { return giveTo(ctx, c, w, p.user.Node) })
}

func (p *attachPair) take(w *rig.Volume) error {
	return p.ask(func(ctx context.Context, c *rig.Client) error { return takeFrom(ctx, c, w, p.user.Node) })
}

// giveTo attaches a volume to a node, where it can be staged from then on.
func giveTo(ctx context.Context, c *rig.Client, v *rig.Volume, node string) error {
	answer, err := c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: v.ID, NodeId: node, VolumeCapability: v.Cap, VolumeContext: v.Context})
	v.PublishContext = answer.GetPublishContext()
	return err
}

func takeFrom(ctx context.Context, c *rig.Client, v *rig.Volume, node string) error {
	_, err := c.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.ID, NodeId: node})
	return err
}

func (p *attachPair) speed() error {
	local := thick(p.owner.Volume("local", rig.BlockCap(), attachSize))
	v, w, err := p.volume()
	if err == nil {
		err = errors.Join(local.Up(), p.give(w), w.Up())
	}
	if err != nil {
		return err
	}
	e, err := p.GiveDevice(1, p.hand)
	if err != nil {
		return err
	}
	client, err := rig.NvmeConnect(e.Context("block"), queues)
	if err != nil {
		return err
	}
	covered, uncover, err := p.covered()
	if err != nil {
		return err
	}
	here := &variant{name: "volume on its own node", node: local.Target}
	remote := &variant{name: "volume of another node", node: w.Target}
	hand := &variant{name: "nvmet and nvme-tcp by hand", node: client.Device}
	same := &variant{name: "the same, with a device-mapper device on either end", node: covered}
	err = p.measureAll([]*variant{here, remote, hand, same})
	if err == nil {
		p.against(remote, hand, "ratio >= 0.97")
		p.against(remote, same, "")
		p.against(remote, here, "")
	}
	return errors.Join(err, uncover(), client.Disconnect(), e.Withdraw(), w.Down(), p.take(w), local.Gone(), v.Delete())
}

// covered is nvmet and nvme-tcp by hand with what a volume has besides: a device of its own below, and a cover above.
func (p *attachPair) covered() (node string, end func() error, err error) {
	linear := func(name, over string) (string, error) {
		_, err := rig.Run("dmsetup", "create", "--noudevsync", name, "--table", fmt.Sprintf("0 %d linear %s 0", attachSize/512, over))
		return "/dev/mapper/" + name, err
	}
	remove := func(name string) error {
		_, err := rig.Run("dmsetup", "remove", "--noudevsync", name)
		return err
	}
	own, err := linear("bench-own", p.under)
	if err != nil {
		return "", nil, err
	}
	e, err := p.GiveDevice(3, own)
	if err != nil {
		return "", nil, err
	}
	client, err := rig.NvmeConnect(e.Context("block"), queues)
	if err != nil {
		return "", nil, err
	}
	cover, err := linear("bench-cover", client.Device)
	return cover, func() error {
		return errors.Join(remove("bench-cover"), client.Disconnect(), e.Withdraw(), remove("bench-own"))
	}, err
}

// calls: until the device is there on the other node.
func (p *attachPair) calls() error {
	const each = 5
	ours := func() (float64, error) {
		var times []float64
		for range each {
			v, w, err := p.volume()
			if err != nil {
				return 0, err
			}
			begin := time.Now()
			err = errors.Join(p.give(w), w.Stage())
			times = append(times, float64(time.Since(begin).Nanoseconds())/1e3)
			if err := errors.Join(err, w.Unstage(), p.take(w), v.Delete(), zeroed(p.owner)); err != nil {
				return 0, err
			}
		}
		return median(times), nil
	}
	hand := func() (float64, error) {
		var times []float64
		for range each {
			begin := time.Now()
			e, err := p.GiveDevice(2, p.hand)
			if err != nil {
				return 0, err
			}
			client, err := rig.NvmeConnect(e.Context("block"), queues)
			if err != nil {
				return 0, err
			}
			times = append(times, float64(time.Since(begin).Nanoseconds())/1e3)
			if err := errors.Join(client.Disconnect(), e.Withdraw()); err != nil {
				return 0, err
			}
		}
		return median(times), nil
	}
	return p.paired(row{What: "ControllerPublishVolume and NodeStageVolume of a block volume on another node, p50", Unit: "us",
		Beside: "configfs and connect by hand, a port each", Bar: "ratio <= 2"}, ours, hand)
}
