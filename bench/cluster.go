// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func (b *bench) newCluster(args ...string) (*rig.Cluster, *rig.Controller, error) {
	c, err := b.NewCluster()
	if err != nil {
		return nil, nil, err
	}
	ctl, err := c.StartController("controller", append([]string{"--log-level", "warn"}, args...)...)
	return c, ctl, err
}

// diskNode is a node whose pool's disk is a loop device with direct I/O: no second page cache flatters it.
func diskNode(c *rig.Cluster, name string, size int64, args ...string) (*rig.Node, error) {
	n, err := c.NewNode(name, "xfs", size)
	if err != nil {
		return nil, err
	}
	p := n.Pools[0]
	if err := p.Unmount(); err != nil {
		return nil, err
	}
	p.AttachFlags = []string{"--direct-io=on"}
	if err := p.Mount(); err != nil {
		return nil, err
	}
	n.PoolOptions = ",init,overcommit=1000"
	n.Args = append([]string{"--log-level", "warn"}, args...)
	return n, n.Start()
}

// cluster: what a call costs more through a controller than at the node, and what a node of a cluster weighs.
func cluster(b *bench) error {
	c, ctl, err := b.newCluster()
	if err != nil {
		return err
	}
	n, err := diskNode(c, "node-a", 32<<30)
	if err != nil {
		return err
	}
	if err := ctl.AwaitJoined("node-a"); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // helpers that were too many have gone
	b.nodeMemory(n, "idle", "<= 8")
	if err := b.routed(ctl, n.Driver, "", "<= 150"); err != nil {
		return err
	}
	split := b.NewSplit("split", n.Driver)
	if err := split.Start(); err != nil {
		return err
	}
	if err := b.routed(split, n.Driver, " of one node (--node)", ""); err != nil {
		return err
	}
	all := make([]*rig.Volume, 100)
	for i := range all {
		all[i] = ctl.Volume(n, fmt.Sprintf("pvc-mounted0-0000-4000-8000-%012d", i), rig.MountCap("ext4"), volumeSize)
		if err := all[i].Up(); err != nil {
			return err
		}
	}
	time.Sleep(15 * time.Second)
	b.nodeMemory(n, "100 mounted volumes", "<= 10")
	return each(len(all), 8, func(i int) error { return down(all[i], all[i].Down) })
}

func (b *bench) nodeMemory(n *rig.Node, what, bar string) {
	b.add(row{What: "VmRSS of a node of a cluster, " + what, Unit: "MiB", Ours: statusKiB(n.Pid(), "VmRSS") / 1024, Bar: bar,
		Note: fmt.Sprintf("anonymous %.1f MiB; with its helper processes, shared pages counted once (PSS), %.1f MiB",
			statusKiB(n.Pid(), "RssAnon")/1024, familyPss(n.Pid())/1024)})
}

// routed compares medians of calls, taken in turns.
func (b *bench) routed(ctl *rig.Controller, n *rig.Driver, which, bar string) error {
	through, err := ctl.Client()
	if err != nil {
		return err
	}
	direct, err := n.Client()
	if err != nil {
		return err
	}
	made := 0
	ctx := context.Background()
	v := ctl.Driver.Volume("pvc-looked-at", rig.MountCap("ext4"), volumeSize)
	if err := v.Create(); err != nil {
		return err
	}
	const calls = 200
	for _, one := range []struct {
		name string
		call func(*rig.Client) (float64, error)
	}{
		{"GetPluginInfo", func(c *rig.Client) (float64, error) {
			return p50(calls, func(int) error {
				_, err := c.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
				return err
			})
		}},
		{"ControllerGetVolume", func(c *rig.Client) (float64, error) {
			return p50(calls, func(int) error {
				_, err := c.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: v.ID})
				return err
			})
		}},
		{"CreateVolume", func(c *rig.Client) (float64, error) {
			all := make([]*rig.Volume, calls)
			for i := range all {
				made++
				all[i] = ctl.Driver.Volume(fmt.Sprintf("pvc-routed00-0000-4000-8000-%012d", made), rig.MountCap("ext4"), volumeSize).On(c)
			}
			took, err := p50(calls, func(i int) error { return all[i].Create() })
			if err == nil {
				err = each(calls, 8, func(i int) error { return all[i].Delete() })
			}
			return took, err
		}},
	} {
		if _, err := one.call(through); err != nil { // templates, connections
			return err
		}
		var more, at []float64
		for i := range b.rounds {
			clients := []*rig.Client{through, direct}
			var took [2]float64
			for k := range clients {
				k = (k + i) % 2
				if took[k], err = one.call(clients[k]); err != nil {
					return fmt.Errorf("%s: %w", one.name, err)
				}
			}
			more, at = append(more, took[0]-took[1]), append(at, took[1])
		}
		b.add(row{What: one.name + " p50, how much more through the controller" + which + " than at the node", Unit: "us", Ours: median(more),
			Bar: bar, Rounds: b.rounds, Note: fmt.Sprintf("at the node %.0f us", median(at))})
	}
	return v.Delete()
}

// clusterMany: a thousand nodes that are simulated, with a hundred volumes each, before one controller.
func clusterMany(b *bench) error {
	nodes, each := 1000, 100
	if text := os.Getenv("RINGVOL_BENCH_NODES"); text != "" {
		var err error
		if nodes, err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	c, ctl, err := b.newCluster()
	if err != nil {
		return err
	}
	cert, err := c.CA.IssueFor(rig.AnyNodeURI)
	if err != nil {
		return err
	}
	shared := rig.NewSimWith("shared", cert)
	if err := shared.Listen(b.Rig); err != nil {
		return err
	}
	var stops []func()
	begin := time.Now()
	for i := range nodes {
		s := rig.NewSimWith(fmt.Sprintf("node-%04d", i), cert)
		s.Address = shared.Address
		for k := range each {
			// As long as a name from external-provisioner.
			s.Add(fmt.Sprintf("pvc-%08x-0000-4000-8000-%012d", i, k), volumeSize)
		}
		stops = append(stops, s.Keep(ctl.Listen))
	}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	client, err := ctl.Client()
	if err != nil {
		return err
	}
	ctx := context.Background()
	// Everybody is there when all have said their room, and whole is the list.
	whole := func() error {
		return rig.Eventually(2*time.Minute, func() error {
			reply, err := client.GetCapacity(ctx, &csi.GetCapacityRequest{})
			if err == nil && reply.GetAvailableCapacity() != int64(nodes)*shared.Room {
				err = fmt.Errorf("%d of %d nodes have joined", reply.GetAvailableCapacity()/shared.Room, nodes)
			}
			return err
		})
	}
	if err := whole(); err != nil {
		return err
	}
	note := fmt.Sprintf("%d nodes with %d volumes each; the nodes' side of TLS is on the same two processors", nodes, each)
	b.add(row{What: "all nodes have joined, the first time", Unit: "s", Ours: time.Since(begin).Seconds(), Note: note})
	var restarts []float64
	for range 3 {
		if err := ctl.Kill(); err != nil {
			return err
		}
		begin := time.Now()
		if err := ctl.Start(); err != nil {
			return err
		}
		if err := whole(); err != nil {
			return err
		}
		restarts = append(restarts, time.Since(begin).Seconds())
	}
	b.add(row{What: "all nodes have joined after a restart of the controller", Unit: "s", Ours: median(restarts), Bar: "<= 5", Rounds: 3, Note: note})

	count, token := 0, ""
	for {
		page, err := client.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: token, MaxEntries: 1000})
		if status.Code(err) == codes.Unavailable { // for three seconds after its start
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		count += len(page.GetEntries())
		if token = page.GetNextToken(); token == "" {
			break
		}
	}
	if count != nodes*each {
		return fmt.Errorf("%d volumes are listed, there are %d", count, nodes*each)
	}
	if err := b.asked(ctl, nodes); err != nil {
		return err
	}
	time.Sleep(6 * time.Second) // connections and OpenSSL give back what the last calls needed
	b.add(row{What: "controller's VmRSS then, 6 s after the last call", Unit: "MiB", Ours: statusKiB(ctl.Pid(), "VmRSS") / 1024, Bar: "<= 64", Note: note})
	return nil
}

// asked: GetCapacity as a provisioner asks for each node and class, and pages of a list from its middle.
func (b *bench) asked(ctl *rig.Controller, nodes int) error {
	client, err := ctl.Client()
	if err != nil {
		return err
	}
	ctx := context.Background()
	capacity := &csi.GetCapacityRequest{AccessibleTopology: rig.At(fmt.Sprintf("node-%04d", nodes/2)),
		Parameters:         map[string]string{"csi.storage.k8s.io/fstype": "xfs"},
		VolumeCapabilities: []*csi.VolumeCapability{rig.MountCap("xfs")}}
	if _, err := client.GetCapacity(ctx, capacity); err != nil {
		return err
	}
	page, err := client.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: int32(nodes * 50)})
	if err != nil {
		return err
	}
	list := &csi.ListVolumesRequest{MaxEntries: 100, StartingToken: page.GetNextToken()}
	for _, one := range []struct {
		what, path, bar string
		request         proto.Message
		count           int
	}{
		{"GetCapacity of a class at one node, 1 connection, 50 streams", "/csi.v1.Controller/GetCapacity", ">= 20000", capacity, 200000},
		{"pages of ListVolumes, 100 entries, from the middle, the same way", "/csi.v1.Controller/ListVolumes", ">= 500", list, 5000},
	} {
		message, err := proto.Marshal(one.request)
		if err != nil {
			return err
		}
		body := b.Path("request")
		if err := os.WriteFile(body, append([]byte{0, 0, 0, byte(len(message) >> 8), byte(len(message))}, message...), 0o644); err != nil {
			return err
		}
		var rates []float64
		for range b.rounds {
			rate, err := h2loadSome(one.count, body, "--base-uri=unix:"+ctl.Socket, "http://localhost"+one.path)
			if err != nil {
				return err
			}
			rates = append(rates, rate)
		}
		b.add(row{What: one.what, Unit: "req/s", Ours: median(rates), Bar: one.bar, Rounds: b.rounds})
	}
	return nil
}
