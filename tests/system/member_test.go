// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// A node with controllers that a test plays.
type memberBed struct {
	*clusterBed
	sims []*rig.SimController
	n    *rig.Node
}

func openMember(t *testing.T, controllers int, size int64, args ...string) *memberBed {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	b := &memberBed{clusterBed: &clusterBed{t: t}}
	b.Cluster, err = r.NewCluster()
	t.Cleanup(func() { b.finish(r) })
	b.must(err)
	b.n, err = b.NewNode("node-a", "xfs", size)
	b.must(err)
	for range controllers {
		sim, err := b.NewSimController()
		b.must(err)
		b.sims = append(b.sims, sim)
		b.n.Controllers = append(b.n.Controllers, sim.Address)
	}
	b.n.HTTP, err = rig.FreeAddress()
	b.must(err)
	b.n.Args = append(args, "--http", b.n.HTTP)
	b.must(b.n.Start())
	return b
}

// told is true once a controller has a report that says so.
func (b *memberBed) told(sim *rig.SimController, is func(*ringvolv1.NodeReport) bool) {
	b.t.Helper()
	b.eventually(func() error {
		for _, report := range sim.Reports("node-a") {
			if is(report) {
				return nil
			}
		}
		return fmt.Errorf("not told")
	})
}

func isSynced(report *ringvolv1.NodeReport) bool { return report.GetSynced() }

func hasObject(id string) func(*ringvolv1.NodeReport) bool {
	return func(report *ringvolv1.NodeReport) bool {
		for _, object := range report.GetObjects() {
			if object.GetId() == id {
				return true
			}
		}
		return false
	}
}

func (b *memberBed) up(sim *rig.SimController, want float64) {
	b.t.Helper()
	b.eventually(func() error {
		m, err := b.n.Scrape()
		if err != nil {
			return err
		}
		if got := m.Value("ringvol_controller_up", "controller", sim.Address); got != want {
			return fmt.Errorf("ringvol_controller_up is %v, not %v", got, want)
		}
		return nil
	})
}

func TestNodeJoins(t *testing.T) {
	b := openMember(t, 2, nodePool, "--topology", "topology.kubernetes.io/zone=z1")
	for _, sim := range b.sims {
		b.told(sim, isSynced)
		hello := sim.Reports("node-a")[0].GetHello()
		if hello.GetNodeId() != "node-a" || hello.GetAddress() != b.n.Down.Addr || len(hello.GetInstance()) != 32 ||
			len(hello.GetTopology()) != 2 || hello.GetTopology()[1].GetValue() != "z1" {
			t.Errorf("Hello was %v", hello)
		}
		b.up(sim, 1)
	}
	c, err := b.n.Client()
	b.must(err)
	v := b.n.Volume("told", rig.MountCap("ext4"), 32*mib).On(c)
	b.must(v.Create())
	for _, sim := range b.sims {
		b.told(sim, hasObject(v.ID))
	}
	b.must(v.Delete())
	b.told(b.sims[0], func(report *ringvolv1.NodeReport) bool {
		return len(report.GetGone()) == 1 && report.GetGone()[0] == v.ID
	})

	// One that ends the call is joined again, and the node is ready all the while.
	b.must(b.sims[1].End("node-a"))
	if status, body, err := b.n.Get("/readyz"); err != nil || status != http.StatusOK {
		t.Errorf("/readyz: %d %q %v", status, body, err)
	}
	b.eventually(func() error {
		hellos := 0
		for _, report := range b.sims[1].Reports("node-a") {
			if report.GetHello() != nil {
				hellos++
			}
		}
		if hellos < 2 {
			return fmt.Errorf("%d hellos", hellos)
		}
		return nil
	})
	m, err := b.n.Scrape()
	b.must(err)
	if end := m.Value("ringvol_tls_certificate_expiry_timestamp_seconds"); end < float64(time.Now().Unix()) {
		t.Errorf("the certificate has ended at %v", end)
	}
	documented := documentedMetrics(t)
	for name := range m {
		if !documented[name] {
			t.Errorf("%s is not in docs/metrics.md", name)
		}
	}
	for _, name := range []string{"ringvol_controller_up", "ringvol_controller_joins_total", "ringvol_names_refused_total",
		"ringvol_tls_certificate_expiry_timestamp_seconds"} {
		if m[name] == nil {
			t.Errorf("%s is not there", name)
		}
	}
}

// A create that came through a controller is asked of the others: one says that another node has the name.
func TestNodeAsksForNames(t *testing.T) {
	b := openMember(t, 2, nodePool)
	for _, sim := range b.sims {
		b.told(sim, isSynced)
	}
	conn, err := rig.DialTLS(b.n.Listen, b.sims[0].Cert)
	b.must(err)
	defer conn.Close()
	routed := csi.NewControllerClient(conn)
	request := func(name string) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 32 * mib},
			VolumeCapabilities: []*csi.VolumeCapability{rig.MountCap("ext4")}}
	}
	made, err := routed.CreateVolume(short(t), request("granted"))
	b.must(err)
	for _, sim := range b.sims {
		b.told(sim, func(report *ringvolv1.NodeReport) bool {
			return len(report.GetClaims()) == 1 && report.GetClaims()[0].GetKey() == "granted"
		})
		b.told(sim, func(report *ringvolv1.NodeReport) bool {
			return len(report.GetReleased()) == 1 && report.GetReleased()[0].GetKey() == "granted"
		})
	}
	_, err = routed.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
	b.must(err)

	b.sims[1].Verdict = func(_ string, claim *ringvolv1.NameClaim) *ringvolv1.NameVerdict {
		return &ringvolv1.NameVerdict{Kind: claim.GetKind(), Key: claim.GetKey(), NodeId: "node-z"}
	}
	_, err = routed.CreateVolume(short(t), request("refused"))
	b.refused("a name of another node", err, codes.Aborted)
	// A controller that says nothing is taken as left.
	b.sims[1].Verdict = func(string, *ringvolv1.NameClaim) *ringvolv1.NameVerdict { return nil }
	made, err = routed.CreateVolume(short(t), request("late"))
	b.must(err)
	_, err = routed.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
	b.must(err)
}

// What --listen serves, and to whom.
func TestNodeListens(t *testing.T) {
	b := openMember(t, 1, nodePool)
	b.told(b.sims[0], isSynced)
	other, err := b.CA.IssueFor(rig.NodeURI("node-b"))
	b.must(err)
	for _, who := range []struct {
		name                        string
		cert                        *rig.Cert
		volumes, identity, transfer codes.Code
	}{
		{"a controller", b.sims[0].Cert, codes.OK, codes.Unimplemented, codes.PermissionDenied},
		{"a node", other, codes.PermissionDenied, codes.Unimplemented, codes.NotFound},
	} {
		conn, err := rig.DialTLS(b.n.Listen, who.cert)
		b.must(err)
		code := func(what string, err error, want codes.Code) {
			if got := status.Code(err); got != want {
				t.Errorf("%s: %v, not %v (%v)", what, got, want, err)
			}
		}
		_, err = csi.NewControllerClient(conn).ListVolumes(short(t), &csi.ListVolumesRequest{})
		code(who.name+" lists volumes", err, who.volumes)
		_, err = csi.NewIdentityClient(conn).Probe(short(t), &csi.ProbeRequest{})
		code(who.name+" probes", err, who.identity)
		_, err = grpc_health_v1.NewHealthClient(conn).Check(short(t), &grpc_health_v1.HealthCheckRequest{})
		code(who.name+" asks for health", err, codes.Unimplemented)
		_, err = csi.NewNodeClient(conn).NodeGetInfo(short(t), &csi.NodeGetInfoRequest{})
		code(who.name+" asks for the node service", err, codes.Unimplemented)
		_, err = ringvolv1.OpenCopy(short(t), conn, "0123456789abcdef0123456789abcdef")
		code(who.name+" opens a copy", err, who.transfer)
		_ = conn.Close()
	}
}

// The bar of a node's pod: 8 MiB idle and 10 MiB with 100 volumes.
func TestNodeMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("a build with sanitizers takes more")
	}
	b := openMember(t, 2, 4<<30)
	for _, sim := range b.sims {
		b.told(sim, isSynced)
	}
	time.Sleep(6 * time.Second) // the probes are loaded after the start, and what handshakes leave goes
	idle := residentBytes(t, b.n.Pid())
	c, err := b.n.Client()
	b.must(err)
	var all []*rig.Volume
	for i := range 100 {
		v := b.n.Volume(fmt.Sprintf("memory-%03d", i), rig.BlockCap(), 16*mib).On(c)
		b.must(v.Create())
		all = append(all, v)
	}
	b.told(b.sims[0], hasObject(all[len(all)-1].ID))
	time.Sleep(6 * time.Second)
	full := residentBytes(t, b.n.Pid())
	t.Logf("VmRSS: %d KiB idle, %d KiB with %d volumes", idle>>10, full>>10, len(all))
	if idle > 8*mib || full > 10*mib {
		t.Errorf("%d bytes idle and %d with %d volumes", idle, full, len(all))
	}
	for _, v := range all {
		b.must(v.Delete())
	}
}
