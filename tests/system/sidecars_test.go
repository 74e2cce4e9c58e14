// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ringvol.dev/tests/rig"
)

// sidecar is a program of those that ringvol makes unnecessary and that work all the same. Their modules are not on the
// Go proxy: RINGVOL_SIDECARS is a directory of built ones.
func sidecar(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv("RINGVOL_SIDECARS"), name)
	if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
		t.Skip("RINGVOL_SIDECARS names no directory with a built " + name)
	}
	return path
}

func TestNodeDriverRegistrar(t *testing.T) {
	program := sidecar(t, "csi-node-driver-registrar")
	b := open(t, "xfs", 512*mib)
	dir := b.Path("registry")
	b.must(os.Mkdir(dir, 0o700))
	const kubelets = "/var/lib/kubelet/plugins/x/csi.sock"
	b.beside(program, "--csi-address="+b.d.Socket, "--kubelet-registration-path="+kubelets, "--plugin-registration-path="+dir)
	r := &registering{bed: b, socket: filepath.Join(dir, "csi.ringvol.dev-reg.sock")}
	b.eventually(func() error {
		info, err := r.ask(nil)
		if err == nil && (info.Name != "csi.ringvol.dev" || info.Endpoint != kubelets) {
			err = rig.Stop(errors.New(info.String()))
		}
		return err
	})
}

// The probe says well of a driver that serves and not of one that is gone.
func TestLivenessProbe(t *testing.T) {
	program := sidecar(t, "livenessprobe")
	b := open(t, "xfs", 512*mib)
	address, err := rig.FreeAddress()
	b.must(err)
	_, port, err := net.SplitHostPort(address)
	b.must(err)
	b.beside(program, "--csi-address="+b.d.Socket, "--health-port="+port, "--probe-timeout=10s")
	says := func(want bool) {
		t.Helper()
		client := &http.Client{Timeout: 20 * time.Second}
		b.eventually(func() error {
			reply, err := client.Get("http://" + address + "/healthz")
			if err != nil {
				return err
			}
			reply.Body.Close()
			if (reply.StatusCode == http.StatusOK) != want {
				return fmt.Errorf("/healthz answers %s", reply.Status)
			}
			return nil
		})
	}
	says(true)
	b.must(b.d.Kill())
	says(false)
	b.start()
	says(true)
}
