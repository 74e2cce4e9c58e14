// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// TopologyKey is the segment that names a node.
const TopologyKey = "topology.ringvol.dev/node"

// Cluster is controllers and nodes that speak over TLS on the loopback.
type Cluster struct {
	*Rig
	CA          *CA
	Controllers []*Controller
	Nodes       []*Node
}

// NewCluster makes the CA; controllers come before the nodes that are to dial them.
func (r *Rig) NewCluster() (*Cluster, error) {
	ca, err := NewCA("ringvol test CA")
	return &Cluster{Rig: r, CA: ca}, err
}

// Controller is one `ringvol controller`. Driver has its socket and its process, and what a client calls; it has no
// pools, and nothing of it is the node's.
type Controller struct {
	Driver
	Listen string
	TLS    TLSFiles
	Split  string // the socket of the one node it forwards to; "": nodes join it
}

// NewController prepares one more; its socket and log lie below a directory of its name.
func (c *Cluster) NewController(name string) (*Controller, error) {
	listen, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	http, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	ctl := &Controller{Listen: listen, Driver: Driver{
		Socket: c.Path(name, "csi", "csi.sock"), HTTP: http, Kubelet: c.Path(name, "kubelet"), Node: name,
		Process: Process{Name: "controller " + name, Log: c.Path(name, "ringvol.log")}, rig: c.Rig,
	}}
	if err := os.MkdirAll(c.Path(name, "csi"), 0o755); err != nil {
		return nil, err
	}
	cert, err := c.CA.IssueFor(ControllerURI)
	if err != nil {
		return nil, err
	}
	if ctl.TLS, err = WriteTLS(c.Path(name, "tls"), cert); err != nil {
		return nil, err
	}
	c.Defer(func() error {
		ctl.Disconnect()
		return ctl.Kill()
	})
	c.Controllers = append(c.Controllers, ctl)
	return ctl, nil
}

// NewSplit prepares a controller that forwards to one driver over its socket (--node). It has no network.
func (r *Rig) NewSplit(name string, d *Driver) *Controller {
	ctl := &Controller{Split: d.Socket, Driver: Driver{
		Socket: r.Path(name, "csi", "csi.sock"), Kubelet: r.Path(name, "kubelet"), Node: name,
		Process: Process{Name: "controller " + name, Log: r.Path(name + ".log")}, rig: r,
	}}
	r.Defer(func() error {
		ctl.Disconnect()
		return ctl.Kill()
	})
	return ctl
}

// Launch runs the controller and does not wait.
func (c *Controller) Launch() error {
	args := append([]string{"controller", "--endpoint", "unix://" + c.Socket, "--listen", c.Listen, "--http", c.HTTP},
		c.TLS.Args()...)
	if c.Split != "" {
		args = []string{"controller", "--endpoint", "unix://" + c.Socket, "--http", "off", "--node", "unix://" + c.Split}
	}
	binary := c.Binary
	if binary == "" {
		binary = Binary()
	}
	return c.launch(binary, append(args, c.Args...), c.Env)
}

// Start runs it and waits until it answers.
func (c *Controller) Start() error {
	if err := c.Launch(); err != nil {
		return err
	}
	return c.AwaitServing()
}

// Restart kills it and starts it again; nodes are not waited for.
func (c *Controller) Restart() error {
	return errors.Join(c.Kill(), c.Start())
}

// Node is one `ringvol serve` of a cluster.
type Node struct {
	*Driver
	Listen      string
	Advertise   string // "": by the wire Down
	TLS         TLSFiles
	Topology    []string // KEY=VALUE, beside its own
	Controllers []string // HOST:PORT

	Up   []*Wire // to each controller
	Down *Wire   // to its --listen, from controllers and nodes
	ca   *CA
}

// NewNode prepares a node with one pool of this size on a file system of its own, and wires to and from all controllers
// that there are.
func (c *Cluster) NewNode(name, fs string, size int64) (*Node, error) {
	if err := os.MkdirAll(c.Path(name, "csi"), 0o755); err != nil {
		return nil, err
	}
	p, err := c.NewPool(name, fs, size)
	if err != nil {
		return nil, err
	}
	p.Name = "default"
	return c.NewNodeOn(name, name, p)
}

// NewNodeOn prepares a node of this id on pools that are there. Its files lie below dir.
func (c *Cluster) NewNodeOn(dir, id string, pools ...*Pool) (*Node, error) {
	if err := os.MkdirAll(c.Path(dir, "csi"), 0o755); err != nil {
		return nil, err
	}
	listen, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	n := &Node{Driver: c.newDriver(dir, id, pools), Listen: listen, ca: c.CA}
	n.Name = "node " + id
	cert, err := c.CA.IssueFor(NodeURI(id))
	if err != nil {
		return nil, err
	}
	if n.TLS, err = WriteTLS(c.Path(dir, "tls"), cert); err != nil {
		return nil, err
	}
	for _, ctl := range c.Controllers {
		w, err := c.NewWire(ctl.Listen)
		if err != nil {
			return nil, err
		}
		n.Up = append(n.Up, w)
		n.Controllers = append(n.Controllers, w.Addr)
	}
	if n.Down, err = c.NewWire(listen); err != nil {
		return nil, err
	}
	c.Nodes = append(c.Nodes, n)
	return n, nil
}

// Launch runs the node and does not wait.
func (n *Node) Launch() error {
	args := n.Args
	defer func() { n.Args = args }()
	advertise := n.Advertise
	if advertise == "" {
		advertise = n.Down.Addr
	}
	n.Args = append(slices.Clone(args), "--listen", n.Listen, "--advertise", advertise)
	n.Args = append(n.Args, n.TLS.Args()...)
	for _, controller := range n.Controllers {
		n.Args = append(n.Args, "--controller", controller)
	}
	for _, segment := range n.Topology {
		n.Args = append(n.Args, "--topology", segment)
	}
	return n.Driver.Launch()
}

// Start runs it and waits until it is ready; AwaitJoined waits for a controller to know it.
func (n *Node) Start() error {
	if err := n.Launch(); err != nil {
		return err
	}
	if err := n.AwaitServing(); err != nil {
		return err
	}
	return n.AwaitReady()
}

// Restart kills it and starts it again.
func (n *Node) Restart() error {
	return errors.Join(n.Kill(), n.Start())
}

// Cut cuts everything between the node and the others: its own calls and those of others to it. From: what the node
// says does not arrive; to: what is said to it does not.
func (n *Node) Cut(from, to bool) {
	for _, d := range []struct {
		on       bool
		up, down int
	}{{from, Forth, Back}, {to, Back, Forth}} {
		if d.on {
			for _, w := range n.Up {
				w.Cut(d.up)
			}
			n.Down.Cut(d.down)
		}
	}
}

// Mend undoes it.
func (n *Node) Mend() {
	for _, w := range append(slices.Clone(n.Up), n.Down) {
		w.Mend()
	}
}

// StartController makes and starts one.
func (c *Cluster) StartController(name string, args ...string) (*Controller, error) {
	ctl, err := c.NewController(name)
	if err != nil {
		return nil, err
	}
	ctl.Args = args
	return ctl, ctl.Start()
}

// StartNode makes one on an XFS pool and starts it.
func (c *Cluster) StartNode(name string, size int64, args ...string) (*Node, error) {
	n, err := c.NewNode(name, "xfs", size)
	if err != nil {
		return nil, err
	}
	n.Args = args
	return n, n.Start()
}

// At is an accessibility term or requirement that names a node.
func At(id string) *csi.Topology {
	return &csi.Topology{Segments: map[string]string{TopologyKey: id}}
}

// OnNode is what external-provisioner asks for when the scheduler has chosen a node.
func OnNode(id string) *csi.TopologyRequirement {
	return &csi.TopologyRequirement{Requisite: []*csi.Topology{At(id)}, Preferred: []*csi.Topology{At(id)}}
}

// Room is what GetCapacity of a controller says for a node; 0 if it is away.
func (c *Controller) Room(id string) (int64, error) {
	client, err := c.Client()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request := &csi.GetCapacityRequest{}
	if id != "" {
		request.AccessibleTopology = At(id)
	}
	reply, err := client.GetCapacity(ctx, request)
	return reply.GetAvailableCapacity(), err
}

// AwaitJoined waits until the controller answers for these nodes, and has been there for long enough to know who is missing.
func (c *Controller) AwaitJoined(ids ...string) error {
	for _, id := range ids {
		err := Eventually(30*time.Second, func() error {
			if !c.Running() {
				return Stop(fmt.Errorf("the controller ended: %v\n%s", c.exit, c.LogTail(20)))
			}
			room, err := c.Room(id)
			if err == nil && room == 0 {
				err = fmt.Errorf("%s is not there", id)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return Eventually(30*time.Second, func() error {
		client, err := c.Client()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err = client.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: 1})
		if err != nil && strings.Contains(err.Error(), "just started") {
			return err
		}
		return nil // what else is wrong with the list is the test's
	})
}

// AwaitAway waits until the controller has noticed that a node has left. Silence takes 15 s to be noticed.
func (c *Controller) AwaitAway(id string) error {
	return Eventually(60*time.Second, func() error {
		room, err := c.Room(id)
		if err == nil && room != 0 {
			err = fmt.Errorf("%s is there, with %d", id, room)
		}
		return err
	})
}

// Volume prepares one that is made through the controller on a node, and used at the node. With a nil node the
// controller chooses.
func (c *Controller) Volume(n *Node, name string, cap *csi.VolumeCapability, size int64) *Volume {
	v := c.Driver.Volume(name, cap, size)
	if n != nil {
		v.Topology = OnNode(n.Node)
		v.At(n)
	}
	return v
}

// At has the volume staged and published at a node.
func (v *Volume) At(n *Node) {
	v.AtDriver(n.Driver)
}

// AtDriver is At for a driver that is in no cluster.
func (v *Volume) AtDriver(d *Driver) {
	v.node = d
}

// DialTLS connects to a --listen address with a certificate.
func DialTLS(address string, cert *Cert, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(cert.ClientTLS())),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond,
		}, MinConnectTimeout: 5 * time.Second}),
	}, options...)
	return grpc.NewClient("passthrough:///"+address, options...)
}
