// SPDX-License-Identifier: Apache-2.0

package system

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
)

// Certificates and who is reached with them, as an administrator sees it who has just made them.
func TestDoctorCluster(t *testing.T) {
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	b := &clusterBed{t: t}
	b.Cluster, err = r.NewCluster()
	b.must(err)
	controller, err := b.NewSimController()
	b.must(err)
	foreign, err := rig.NewCA("another")
	b.must(err)
	stranger := rig.Cluster{Rig: r, CA: foreign}
	strange, err := stranger.NewSimController()
	b.must(err)
	self := b.sim("node-a")
	b.must(self.Listen(r))
	other := b.sim("node-b")
	b.must(other.Listen(r))
	// One that takes connections and says nothing, and one that has gone.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	defer silent.Close()
	nobody, err := rig.FreeAddress()
	b.must(err)

	good := b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-a")}})
	write := func(name string, c *rig.Cert) rig.TLSFiles {
		files, err := rig.WriteTLS(b.Path("doctor-"+name), c)
		b.must(err)
		return files
	}
	files := write("good", good)
	doctor := func(files rig.TLSFiles, args ...string) *doctorSays {
		t.Helper()
		args = append(append([]string{"doctor", "--json", "--pool", "x=" + r.Dir, "--endpoint", "unix://" + r.Path("none.sock")},
			files.Args()...), args...)
		return parseDoctor(t, tool(t, nil, args...))
	}
	expect := func(what string, d *doctorSays, check, verdict string, words ...string) {
		t.Helper()
		f := d.check(check)
		for _, word := range words {
			if !strings.Contains(f.Found, word) {
				t.Errorf("%s: %+v does not say %q", what, f, word)
			}
		}
		if f.Verdict != verdict {
			t.Errorf("%s: %+v, not %s", what, f, verdict)
		}
	}
	all := doctor(files, "--controller", controller.Address, "--advertise", self.Address, "--node-id", "node-a")
	expect("all is well", all, "certificate", "ok", "ringvol://node/node-a", "days")
	expect("all is well", all, "controller", "ok", "ringvol://controller")
	expect("all is well", all, "advertised", "ok", "ringvol://node/node-a")

	expect("another node's", doctor(files, "--node-id", "node-z"), "certificate", "missing", "node-a", "node-z")
	expect("nobody there", doctor(files, "--controller", nobody), "controller", "missing", "refused")
	expect("no such name", doctor(files, "--controller", "no.such.name.invalid:1"), "controller", "missing", "no.such.name")
	expect("no port", doctor(files, "--controller", "127.0.0.1"), "controller", "missing", "HOST:PORT")
	expect("a node instead", doctor(files, "--controller", other.Address), "controller", "missing", "ringvol://node/node-b")
	expect("another's address", doctor(files, "--advertise", other.Address, "--node-id", "node-a"), "advertised", "missing", "node-b")
	expect("silence", doctor(files, "--controller", silent.Addr().String()), "controller", "missing", "said nothing")
	expect("another CA", doctor(files, "--controller", strange.Address), "controller", "missing", "not trusted")
	// Trusted by us, and they do not trust us.
	one, err := rig.WriteTLS(b.Path("doctor-both"), good, b.CA, foreign)
	b.must(err)
	expect("not trusted by them", doctor(one, "--controller", strange.Address), "controller", "missing", "accept our certificate")

	day := 24 * time.Hour
	soon := write("soon", b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-a")}, NotBefore: time.Now().Add(-100 * day),
		NotAfter: time.Now().Add(2*day + time.Hour)}))
	expect("at its end", doctor(soon), "certificate", "limited", "2 days")
	over := write("over", b.cert(rig.CertSpec{URIs: []string{rig.NodeURI("node-a")}, NotBefore: time.Now().Add(-2 * day),
		NotAfter: time.Now().Add(-day)}))
	expect("expired", doctor(over), "certificate", "missing", "ringvol://node/node-a")
	nameless := write("nameless", b.cert(rig.CertSpec{}))
	expect("nobody's", doctor(nameless), "certificate", "missing", "ringvol://")
	key, err := b.cert(rig.CertSpec{}).KeyPEM()
	b.must(err)
	mixed, err := rig.WriteTLSBytes(b.Path("doctor-mixed"), good.CertPEM(), key, b.CA.PEM())
	b.must(err)
	expect("another key", doctor(mixed), "certificate", "missing", "does not belong")
	b.must(os.Remove(mixed.Key))
	expect("no key", doctor(mixed), "certificate", "missing", "--tls-key")
	d := parseDoctor(t, tool(t, nil, "doctor", "--json", "--pool", "x="+r.Dir, "--endpoint", "unix://"+r.Path("none.sock"),
		"--tls-cert", files.Cert))
	expect("half of it", d, "certificate", "missing", "--tls-key")
	d = parseDoctor(t, tool(t, nil, "doctor", "--json", "--pool", "x="+r.Dir, "--endpoint", "unix://"+r.Path("none.sock")))
	if f := d.check("certificate"); f.Found != "" {
		t.Errorf("in no cluster: %+v", f)
	}
}
