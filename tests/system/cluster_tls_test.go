// SPDX-License-Identifier: Apache-2.0

package system

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
	"ringvol.dev/tests/rig/ringvolv1"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
)

func (b *clusterBed) dial(address string, cert *rig.Cert) *grpc.ClientConn {
	b.t.Helper()
	conn, err := rig.DialTLS(address, cert)
	b.must(err)
	b.t.Cleanup(func() { conn.Close() })
	return conn
}

func (b *clusterBed) cert(spec rig.CertSpec) *rig.Cert {
	b.t.Helper()
	cert, err := b.CA.Issue(spec)
	b.must(err)
	return cert
}

// Who may call what on the two --listen addresses is said by the certificate, and by nothing else.
func TestClusterWhoMayCall(t *testing.T) {
	b := openCluster(t, "node-a")
	n := b.node("node-a")
	v := b.volume(n, "pvc-mine")
	b.must(v.Create())
	controller := b.cert(rig.CertSpec{URIs: []string{rig.ControllerURI}})
	other := b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-z")}})
	shared := b.cert(rig.CertSpec{URIs: []string{rig.AnyNodeURI}})

	calls := map[string]func(*grpc.ClientConn) error{
		"CreateVolume": func(c *grpc.ClientConn) error {
			_, err := csi.NewControllerClient(c).CreateVolume(short(t), v.Request())
			return err
		},
		"DeleteVolume": func(c *grpc.ClientConn) error {
			_, err := csi.NewControllerClient(c).DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: "rubbish"})
			return err
		},
		"ListVolumes": func(c *grpc.ClientConn) error {
			_, err := csi.NewControllerClient(c).ListVolumes(short(t), &csi.ListVolumesRequest{})
			return err
		},
		"NodeUnpublishVolume": func(c *grpc.ClientConn) error {
			_, err := csi.NewNodeClient(c).NodeUnpublishVolume(short(t),
				&csi.NodeUnpublishVolumeRequest{VolumeId: v.ID, TargetPath: "/mnt/x"})
			return err
		},
		"GrantCopy": func(c *grpc.ClientConn) error {
			_, err := ringvolv1.GrantCopy(short(t), c, &ringvolv1.GrantCopyRequest{SourceId: "rubbish", NodeId: "node-z",
				VolumeName: "x"})
			return err
		},
		"OfferCopy": func(c *grpc.ClientConn) error {
			_, err := ringvolv1.OfferCopy(short(t), c, &ringvolv1.OfferCopyRequest{})
			return err
		},
		"OpenCopy": func(c *grpc.ClientConn) error {
			_, err := ringvolv1.OpenCopy(short(t), c, "00000000000000000000000000000000")
			return err
		},
		"ReadCopy": func(c *grpc.ClientConn) error {
			stream, err := ringvolv1.ReadCopy(short(t), c, &ringvolv1.ReadCopyRequest{Grant: "0"})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"Join": func(c *grpc.ClientConn) error {
			stream, err := ringvolv1.Join(short(t), c)
			if err != nil {
				return err
			}
			if err := stream.Send(&ringvolv1.NodeReport{Hello: b.sim("node-z").Hello()}); err != nil {
				_, err = stream.Recv()
				return err
			}
			_, err = stream.Recv()
			return err
		},
	}
	// What the caller may do reaches the method: whatever that says, it is none of these.
	denied := []codes.Code{codes.PermissionDenied, codes.Unimplemented, codes.Unauthenticated}
	isDenied := func(err error) bool {
		code := rig.Code(err)
		return code == denied[0] || code == denied[1] || code == denied[2]
	}
	for _, who := range []struct {
		name, address string
		cert          *rig.Cert
		may           []string
	}{
		{"a controller at a node", n.Listen, controller, []string{"CreateVolume", "DeleteVolume", "ListVolumes", "GrantCopy", "OfferCopy"}},
		{"a node at a node", n.Listen, other, []string{"OpenCopy", "ReadCopy"}},
		{"any node at a node", n.Listen, shared, []string{"OpenCopy", "ReadCopy"}},
		{"a node at the controller", b.ctl.Listen, other, []string{"Join"}},
		{"any node at the controller", b.ctl.Listen, shared, []string{"Join"}},
		{"a controller at the controller", b.ctl.Listen, controller, nil},
	} {
		conn := b.dial(who.address, who.cert)
		for name, call := range calls {
			may := false
			for _, m := range who.may {
				may = may || m == name
			}
			err := call(conn)
			// A grant that nobody gave may be refused with PERMISSION_DENIED by the method itself.
			if may && name != "OpenCopy" && name != "ReadCopy" && isDenied(err) {
				t.Errorf("%s: %s is refused: %v", who.name, name, err)
			}
			if !may && !isDenied(err) {
				t.Errorf("%s: %s: %v", who.name, name, err)
			}
		}
	}
	b.gone(v)
}

// Certificates that are wrong, expired, not yet valid, another CA's, or none at all.
func TestClusterBadCertificates(t *testing.T) {
	b := openCluster(t, "node-a")
	foreignCA, err := rig.NewCA("another")
	b.must(err)
	foreign, err := foreignCA.IssueFor(rig.ControllerURI)
	b.must(err)
	day := 24 * time.Hour
	for what, cert := range map[string]*rig.Cert{
		"nobody":         b.cert(rig.CertSpec{}),
		"names of hosts": b.cert(rig.CertSpec{DNS: []string{"controller", "ringvol"}}),
		"another scheme": b.cert(rig.CertSpec{URIs: []string{"spiffe://controller"}}),
		"two identities": b.cert(rig.CertSpec{URIs: []string{rig.ControllerURI, rig.NodeURI("node-a")}}),
		"expired":        b.cert(rig.CertSpec{URIs: []string{rig.ControllerURI}, NotBefore: time.Now().Add(-2 * day), NotAfter: time.Now().Add(-day)}),
		"not yet valid":  b.cert(rig.CertSpec{URIs: []string{rig.ControllerURI}, NotBefore: time.Now().Add(day), NotAfter: time.Now().Add(2 * day)}),
		"another CA's":   foreign,
	} {
		for _, address := range []string{b.ctl.Listen, b.node("node-a").Listen} {
			conn, err := tls.Dial("tcp", address, &tls.Config{Certificates: []tls.Certificate{cert.TLS()}, InsecureSkipVerify: true,
				NextProtos: []string{"h2"}})
			if err != nil {
				continue
			}
			// In TLS 1.3 the client hears of it with its first read.
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			_, err = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			if err == nil {
				t.Errorf("%s: %s answers", what, address)
			} else if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %s holds the connection", what, address)
			}
			conn.Close()
		}
	}
	plain, err := grpc.NewClient("passthrough:///"+b.node("node-a").Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	b.must(err)
	defer plain.Close()
	_, err = csi.NewControllerClient(plain).ListVolumes(short(t), &csi.ListVolumesRequest{})
	b.refused("without TLS", err, codes.Unavailable)
	// A node whose certificate is another's does not join.
	p, err := b.NewPool("liar", "xfs", nodePool)
	b.must(err)
	p.Name = "default"
	liar, err := b.NewNodeOn("liar", "node-liar", p)
	b.must(err)
	liar.TLS, err = rig.WriteTLS(b.Path("liar", "tls"), b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-else")}}))
	b.must(err)
	b.must(liar.Launch())
	time.Sleep(3 * time.Second)
	if room, err := b.ctl.Room("node-liar"); err != nil || room != 0 {
		t.Errorf("node-liar has joined: %d, %v", room, err)
	}
	if liar.Running() {
		b.must(liar.Kill())
	} else if _, err := liar.Wait(time.Second); err != nil {
		t.Error(err)
	}
}

// Certificates are replaced while everything runs: the old CA is not trusted any more, and who has no new one is let go.
func TestClusterReload(t *testing.T) {
	b := openCluster(t, "node-a", "node-b")
	v := b.volume(b.node("node-a"), "pvc-through")
	b.must(v.Create())
	next, err := rig.NewCA("next")
	b.must(err)
	write := func(dir string, uri string, by *rig.CA, trust ...*rig.CA) {
		cert, err := by.IssueFor(uri)
		b.must(err)
		_, err = rig.WriteTLS(b.Path(dir, "tls"), cert, trust...)
		b.must(err)
	}
	old := b.CA
	// Both are trusted, then all have one of the new, then the old one goes; node-b misses that.
	steps := []func(dir, uri string){
		func(dir, uri string) { write(dir, uri, old, old, next) },
		func(dir, uri string) { write(dir, uri, next, old, next) },
		func(dir, uri string) { write(dir, uri, next, next) },
	}
	for i, step := range steps {
		step("ctl-a", rig.ControllerURI)
		step("node-a", rig.NodeURI("node-a"))
		if i == 0 {
			step("node-b", rig.NodeURI("node-b"))
		}
		// Nobody sees anything of it.
		for stop := time.Now().Add(4 * time.Second); time.Now().Before(stop); time.Sleep(100 * time.Millisecond) {
			b.eventually(func() error { _, err := get(t, b.c, v.ID); return err })
		}
	}
	b.must(rig.Eventually(90*time.Second, func() error {
		room, err := b.ctl.Room("node-b")
		if err == nil && room != 0 {
			err = fmt.Errorf("node-b is still there")
		}
		return err
	}))
	b.must(b.ctl.AwaitJoined("node-a"))
	write("node-b", rig.NodeURI("node-b"), next, next)
	b.must(rig.Eventually(90*time.Second, func() error { return b.ctl.AwaitJoined("node-b") }))
	b.gone(v)
}

// A certificate that ends while its connections last: they go on until the peers have new ones, or end; what is sure is that
// a new one cures it without a restart.
func TestClusterCertificateExpires(t *testing.T) {
	b := newCluster(t)
	n, err := b.NewNode("node-a", "xfs", nodePool)
	b.must(err)
	short5 := b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-a")}, NotAfter: time.Now().Add(8 * time.Second)})
	n.TLS, err = rig.WriteTLS(b.Path("node-a", "tls"), short5)
	b.must(err)
	b.must(n.Start())
	b.must(b.ctl.AwaitJoined("node-a"))
	v := b.volume(n, "pvc-there")
	b.must(v.Create())
	time.Sleep(9 * time.Second)
	// No new connection is made with it.
	n.Up[0].Break()
	n.Down.Break()
	b.must(b.ctl.AwaitAway("node-a"))
	_, err = get(t, b.c, v.ID)
	b.refused("a node with an expired certificate", err, codes.Unavailable)
	direct, err := n.Client()
	b.must(err)
	_, err = direct.ControllerGetVolume(short(t), &csi.ControllerGetVolumeRequest{VolumeId: v.ID})
	b.must(err)
	_, err = rig.WriteTLS(b.Path("node-a", "tls"), b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-a")}}))
	b.must(err)
	b.must(rig.Eventually(90*time.Second, func() error { return b.ctl.AwaitJoined("node-a") }))
	b.gone(v)
}
