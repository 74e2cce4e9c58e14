// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Binary is the driver under test: RINGVOL_BIN, else the release build.
func Binary() string {
	if path := os.Getenv("RINGVOL_BIN"); path != "" {
		return path
	}
	for dir, _ := os.Getwd(); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if path := filepath.Join(dir, "build", "ringvol"); isFile(path) {
			return path
		}
	}
	return "ringvol"
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// Driver is one `ringvol serve` with its arguments; it can be ended and started again.
type Driver struct {
	Socket  string
	HTTP    string // address and port; "": none is served
	Kubelet string // a kubelet root: what staging and target paths lie below
	Node    string
	Env     []string // added to our own
	Args    []string // added to those of the pools
	Pools   []*Pool
	Process

	Binary      string // "": the binary under test; or a copy of it
	PoolOptions string // after the path, ",init" at first
	Guarded     bool   // loop nodes are not accepted, also where there is no device mapper

	rig   *Rig
	Ublkd *Ublkd // the data process of ublk volumes, at paths of this driver's own
	conn  *grpc.ClientConn
}

// HasDeviceMapper tells whether the kernel can guard raw block volumes.
func HasDeviceMapper() bool {
	_, err := os.Stat("/sys/class/misc/device-mapper")
	return err == nil
}

// NewDriver prepares a driver on these pools; Start starts it.
func (r *Rig) NewDriver(pools ...*Pool) *Driver {
	return r.newDriver("", "node-a", pools)
}

// newDriver prepares one whose files lie below a directory of the rig's.
func (r *Rig) newDriver(dir, node string, pools []*Pool) *Driver {
	d := &Driver{
		Socket:  r.Path(dir, "csi", "csi.sock"),
		Kubelet: r.Path(dir, "kubelet"),
		Node:    node,
		Pools:   pools,
		Process: Process{Name: "driver", Log: r.Path(dir, "ringvol.log")},
		rig:     r,

		PoolOptions: ",init",
	}
	d.Ublkd = r.newUblkd(dir)
	r.Defer(func() error {
		d.Disconnect()
		return d.Kill()
	})
	return d
}

// Start runs the driver and waits until it answers.
func (d *Driver) Start() error {
	if err := d.Launch(); err != nil {
		return err
	}
	return d.AwaitServing()
}

// AwaitReady waits until Probe says that a pool is there.
func (d *Driver) AwaitReady() error {
	return Eventually(30*time.Second, func() error {
		ready, err := d.Probe()
		if err == nil && !ready {
			err = errors.New("serving, but not ready")
		}
		return err
	})
}

// Launch runs the driver and does not wait.
func (d *Driver) Launch() error {
	args := []string{"serve", "--endpoint", "unix://" + d.Socket, "--node-id", d.Node, "--http", "off",
		"--ublkd-socket", d.Ublkd.Socket, "--ublkd-state-dir", d.Ublkd.State}
	if !d.Guarded && !HasDeviceMapper() {
		args = append(args, "--block-on-loop")
	}
	for _, p := range d.Pools {
		args = append(args, "--pool", fmt.Sprintf("%s=%s%s", p.Name, p.Path, d.PoolOptions))
	}
	binary := d.Binary
	if binary == "" {
		binary = Binary()
	}
	return d.launch(binary, append(args, d.Args...), d.Env)
}

// AwaitServing waits until the driver answers anything at all.
func (d *Driver) AwaitServing() error {
	return Eventually(30*time.Second, func() error {
		if !d.Running() {
			return Stop(fmt.Errorf("the driver ended: %v\n%s", d.exit, d.LogTail(20)))
		}
		c, err := d.Client()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = c.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		return err
	})
}
