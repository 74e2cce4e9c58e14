// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	reg "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registering is a driver that registers, itself or by a sidecar, with the test, which plays kubelet.
type registering struct {
	*bed
	dir, socket string
}

func newRegistering(t *testing.T) *registering {
	b := newBed(t, "xfs", 512<<20)
	r := &registering{bed: b, dir: b.Path("plugins_registry")}
	r.socket = filepath.Join(r.dir, "csi.ringvol.dev-reg.sock")
	b.d.Args = append(b.d.Args, "--kubelet-registration", r.dir, "--kubelet-endpoint", "/var/lib/kubelet/plugins/x/csi.sock")
	return r
}

// ask does what kubelet does with a socket it has found.
func (r *registering) ask(status *reg.RegistrationStatus) (*reg.PluginInfo, error) {
	conn, err := grpc.NewClient("unix://"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := reg.NewRegistrationClient(conn)
	info, err := client.GetInfo(short(r.t), &reg.InfoRequest{})
	if err == nil && status != nil {
		_, err = client.NotifyRegistrationStatus(short(r.t), status)
	}
	return info, err
}

func (r *registering) await(status *reg.RegistrationStatus) {
	r.t.Helper()
	r.must(rig.Eventually(40*time.Second, func() error {
		info, err := r.ask(status)
		if err != nil {
			return err
		}
		if info.Type != "CSIPlugin" || info.Name != "csi.ringvol.dev" ||
			info.Endpoint != "/var/lib/kubelet/plugins/x/csi.sock" ||
			len(info.SupportedVersions) != 1 || info.SupportedVersions[0] != "1.0.0" {
			return rig.Stop(errors.New(info.String()))
		}
		return nil
	}))
}

func (r *registering) awaitGone() {
	r.t.Helper()
	r.must(rig.Eventually(30*time.Second, func() error {
		if _, err := os.Lstat(r.socket); err == nil {
			return errors.New("the registration socket is still there")
		}
		return nil
	}))
}

func (r *registering) awaitLog(words ...string) {
	r.t.Helper()
	r.must(rig.Eventually(10*time.Second, func() error {
		text, err := os.ReadFile(r.d.Log)
		if err != nil {
			return err
		}
		for _, line := range strings.Split(string(text), "\n") {
			found := true
			for _, word := range words {
				found = found && strings.Contains(line, word)
			}
			if found {
				return nil
			}
		}
		return errors.New("not in the log: " + strings.Join(words, ", "))
	}))
}

func TestRegistration(t *testing.T) {
	r := newRegistering(t)
	r.start()
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
	r.awaitLog("registered with kubelet")
	st, err := os.Stat(r.socket)
	r.must(err)
	if st.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v", st.Mode())
	}
	// Kubelet starts anew and finds the socket again.
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
	r.must(r.d.Term())
	if _, err := os.Lstat(r.socket); err == nil {
		t.Error("the registration socket survived the driver")
	}
}

// A killed driver leaves its socket; the next one replaces it.
func TestRegistrationAfterKill(t *testing.T) {
	r := newRegistering(t)
	r.start()
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
	r.must(r.d.Kill())
	if _, err := os.Lstat(r.socket); err != nil {
		t.Fatalf("nothing to replace: %v", err)
	}
	r.start()
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
}

// Somebody empties kubelet's directory, or all of it is made anew.
func TestRegistrationSocketVanishes(t *testing.T) {
	r := newRegistering(t)
	r.start()
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
	r.must(os.RemoveAll(r.dir))
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
	// What somebody else put there is not removed.
	r.must(os.Remove(r.socket))
	r.must(os.WriteFile(r.socket, []byte("not a socket"), 0o600))
	r.awaitLog("cannot register with kubelet yet", "not a socket")
	r.must(os.Remove(r.socket))
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
}

// An older kubelet registers by v1beta1, which has the names and messages of v1; it stages below .../pv/NAME (until 1.23),
// makes the target itself, and knows of fewer fields: no staging path with NodeGetVolumeStats (until 1.19), nothing but
// one path with NodeExpandVolume.
func TestRegistrationOfOlderKubelet(t *testing.T) {
	r := newRegistering(t)
	r.start()
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
	r.awaitLog("registered with kubelet")

	v := r.volume("older", "xfs")
	r.must(v.Create())
	v.Staging = filepath.Join(r.d.Kubelet, "plugins/kubernetes.io/csi/pv/older/globalmount")
	v.Target = filepath.Join(r.d.Kubelet, "pods/pod-1/volumes/kubernetes.io~csi/older/mount")
	r.must(errors.Join(os.MkdirAll(v.Staging, 0o750), os.MkdirAll(v.Target, 0o750)))
	r.must(v.Stage())
	r.must(v.Publish())
	_, err := v.Stats()
	r.must(err)
	grown, err := r.c.ControllerExpandVolume(short(t), &csi.ControllerExpandVolumeRequest{VolumeId: v.ID,
		CapacityRange: &csi.CapacityRange{RequiredBytes: v.Size + 16*mib}})
	r.must(err)
	if !grown.NodeExpansionRequired {
		t.Error("nothing is left for the node to do")
	}
	_, err = r.c.NodeExpandVolume(short(t), &csi.NodeExpandVolumeRequest{VolumeId: v.ID, VolumePath: v.Target})
	r.must(err)
	r.must(v.Gone())
}

// Kubelet refuses, and looks at a socket again only when it appears.
func TestRegistrationRefused(t *testing.T) {
	r := newRegistering(t)
	r.start()
	r.await(nil)
	before, err := os.Stat(r.socket)
	r.must(err)
	_, err = r.ask(&reg.RegistrationStatus{Error: "two of a kind\nis one too many"})
	r.must(err)
	r.awaitLog("kubelet does not register the driver", "two of a kind")
	r.must(rig.Eventually(40*time.Second, func() error {
		now, err := os.Stat(r.socket)
		if err == nil && now.Sys().(*syscall.Stat_t).Ino == before.Sys().(*syscall.Stat_t).Ino &&
			now.ModTime().Equal(before.ModTime()) {
			err = errors.New("it is the old socket")
		}
		return err
	}))
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
}

// An update that starts the new driver while the old one lives: the new one takes over.
func TestRegistrationOfTwo(t *testing.T) {
	r := newRegistering(t)
	r.start()
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
	second := r.NewDriver()
	second.Socket = r.Path("csi-2", "csi.sock")
	second.Log = r.Path("ringvol-2.log")
	second.Args = append([]string{"--pool", "default=" + r.Path("pool-of-none")}, r.d.Args...)
	r.must(second.Start())
	r.must(rig.Eventually(20*time.Second, func() error {
		text, err := os.ReadFile(second.Log)
		if err == nil && !strings.Contains(string(text), "cannot register with kubelet yet") {
			err = errors.New("the second does not say that it waits")
		}
		return err
	}))
	r.await(nil)
	r.must(r.d.Term())
	r.await(&reg.RegistrationStatus{PluginRegistered: true})
	r.must(second.Term())
	r.awaitGone()
}

func TestRegistrationOptions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--kubelet-registration plugins", "absolute"},
		{"--kubelet-registration /x --insecure-tcp --endpoint tcp://127.0.0.1:9", "unix socket"},
		{"--kubelet-registration /x --kubelet-endpoint unix:///x", "absolute"},
		{"--kubelet-registration /" + strings.Repeat("x", 100), "longer than"},
	} {
		out, err := rig.Run(rig.Binary(), append([]string{"serve"}, strings.Fields(c.args)...)...)
		if err == nil || !strings.Contains(out+err.Error(), c.want) {
			t.Errorf("%s: %v %s", c.args, err, out)
		}
	}
}

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
