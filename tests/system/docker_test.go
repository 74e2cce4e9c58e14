// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// dockerBed is a driver with a plugin, and docker's end of it.
type dockerBed struct {
	*bed
	socket, mounts string
	client         *http.Client
}

func newDockerBed(t *testing.T, fs string, args ...string) *dockerBed {
	t.Helper()
	b := &dockerBed{bed: newBed(t, fs, 2<<30)}
	b.socket, b.mounts = b.Path("docker", "ringvol.sock"), b.Path("docker-mounts")
	b.d.Args = []string{"--docker-plugin", b.socket, "--docker-mounts", b.mounts}
	for _, arg := range args {
		b.d.Args = append(b.d.Args, strings.ReplaceAll(arg, "KUBELET", b.d.Kubelet))
	}
	b.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", b.socket)
	}}}
	t.Cleanup(b.client.CloseIdleConnections)
	b.start()
	return b
}

// dockerVolume and dockerAnswer are all that the protocol answers with.
type (
	dockerVolume struct {
		Name, Mountpoint, CreatedAt string
		Status                      map[string]any
	}
	dockerAnswer struct {
		Implements   []string
		Capabilities struct{ Scope string }
		Mountpoint   string
		Volume       *dockerVolume
		Volumes      []dockerVolume
		Err          string
	}
)

// ask makes a request as docker makes it. An error has the plugin's words.
func (b *dockerBed) ask(verb string, request any) (dockerAnswer, error) {
	var answer dockerAnswer
	var body bytes.Buffer
	if request != nil {
		b.must(json.NewEncoder(&body).Encode(request))
	}
	r, err := http.NewRequest("POST", "http://plugin/"+verb, &body)
	b.must(err)
	r.Header.Set("Accept", "application/vnd.docker.plugins.v1.2+json")
	reply, err := b.client.Do(r)
	if err != nil {
		return answer, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("%s answers %d %q: %w", verb, reply.StatusCode, text, err)
	}
	if (reply.StatusCode == http.StatusOK) != (answer.Err == "") {
		return answer, fmt.Errorf("%s answers %d with %q", verb, reply.StatusCode, text)
	}
	if answer.Err != "" {
		return answer, fmt.Errorf("%s: %d: %s", verb, reply.StatusCode, answer.Err)
	}
	return answer, nil
}

type asked map[string]any

func (b *dockerBed) create(name string, options map[string]string) {
	b.t.Helper()
	_, err := b.ask("VolumeDriver.Create", asked{"Name": name, "Opts": options})
	b.must(err)
}

func (b *dockerBed) mount(name, id string) string {
	b.t.Helper()
	answer, err := b.ask("VolumeDriver.Mount", asked{"Name": name, "ID": id})
	b.must(err)
	if answer.Mountpoint == "" {
		b.t.Fatalf("Mount of %s tells no place", name)
	}
	return answer.Mountpoint
}

func (b *dockerBed) unmount(name, id string) {
	b.t.Helper()
	_, err := b.ask("VolumeDriver.Unmount", asked{"Name": name, "ID": id})
	b.must(err)
}

func (b *dockerBed) remove(name string) {
	b.t.Helper()
	_, err := b.ask("VolumeDriver.Remove", asked{"Name": name})
	b.must(err)
}

func (b *dockerBed) refuses(verb string, request asked, words string) {
	b.t.Helper()
	if _, err := b.ask(verb, request); err == nil || !strings.Contains(err.Error(), words) {
		b.t.Errorf("%s %v: %v, without %q", verb, request, err, words)
	}
}

func (b *dockerBed) get(name string) *dockerVolume {
	b.t.Helper()
	answer, err := b.ask("VolumeDriver.Get", asked{"Name": name})
	b.must(err)
	return answer.Volume
}

func (b *dockerBed) names() (names []string) {
	b.t.Helper()
	answer, err := b.ask("VolumeDriver.List", asked{})
	b.must(err)
	for _, volume := range answer.Volumes {
		names = append(names, volume.Name)
	}
	return names
}

// nothingMounted: no mounts, and no directories but the plugin's own.
func (b *dockerBed) nothingMounted() {
	b.t.Helper()
	if mounts := rig.MountsBelow(b.mounts); len(mounts) > 0 {
		b.t.Errorf("mounted: %q", mounts)
	}
	entries, err := os.ReadDir(b.mounts)
	b.must(err)
	if len(entries) > 0 {
		b.t.Errorf("left: %v", entries)
	}
}

// A volume's whole life as docker leads it, with and without staging. Each thing twice.
func TestDockerLife(t *testing.T) {
	for _, staging := range []string{"on", "off"} {
		t.Run("staging "+staging, func(t *testing.T) {
			b := newDockerBed(t, "xfs", "--staging", staging)
			answer, err := b.ask("Plugin.Activate", nil)
			b.must(err)
			if len(answer.Implements) != 1 || answer.Implements[0] != "VolumeDriver" {
				t.Errorf("it implements %q", answer.Implements)
			}
			answer, err = b.ask("VolumeDriver.Capabilities", asked{})
			b.must(err)
			if answer.Capabilities.Scope != "local" {
				t.Errorf("scope %q", answer.Capabilities.Scope)
			}

			options := map[string]string{"size": "320Mi", "fsType": "xfs"}
			b.create("data", options)
			b.create("data", options)
			v := b.get("data")
			if v.Name != "data" || v.Mountpoint != "" || v.CreatedAt == "" || v.Status["fs"] != "xfs" ||
				v.Status["size_bytes"] != float64(320*mib) {
				t.Errorf("Get tells %+v", v)
			}
			// Two containers, one of them twice.
			one, two := b.mount("data", "c1"), b.mount("data", "c2")
			if again := b.mount("data", "c1"); again != one || one == two {
				t.Errorf("mounted at %s, %s and %s", one, two, again)
			}
			var st unix.Statfs_t
			b.must(unix.Statfs(one, &st))
			if st.Type != unix.XFS_SUPER_MAGIC {
				t.Errorf("file system %#x", st.Type)
			}
			sum, err := rig.Fill(one, dataBytes, 3)
			b.must(err)
			b.must(rig.Check(two, dataBytes, sum))
			for _, verb := range []string{"Get", "Path"} {
				answer, err := b.ask("VolumeDriver."+verb, asked{"Name": "data"})
				b.must(err)
				at := answer.Mountpoint
				if verb == "Get" {
					at = answer.Volume.Mountpoint
				}
				if at != one && at != two {
					t.Errorf("%s tells %q", verb, at)
				}
			}
			b.refuses("VolumeDriver.Remove", asked{"Name": "data"}, "is mounted at")
			b.unmount("data", "c1")
			b.unmount("data", "c1")
			b.must(rig.Check(two, dataBytes, sum))
			b.unmount("data", "c2")
			b.nothingMounted()
			// Other tests' copies of the mount may keep it for a while.
			b.must(rig.Eventually(20*time.Second, func() error {
				if left := rig.LoopsBelow(b.pool.Path); len(left) != 0 {
					return fmt.Errorf("devices are left: %v", left)
				}
				return nil
			}))
			b.must(rig.Check(b.mount("data", "c3"), dataBytes, sum))
			b.unmount("data", "c3")
			b.remove("data")
			b.remove("data")
			b.unmount("data", "c3")
			b.refuses("VolumeDriver.Get", asked{"Name": "data"}, "there is no volume data")
			b.refuses("VolumeDriver.Mount", asked{"Name": "data", "ID": "c"}, "there is no volume data")
			b.nothingMounted()
		})
	}
}

// Who uses a volume is what the kernel has mounted: a killed driver forgets nothing of it, and a container notices nothing.
func TestDockerOutlivesTheDriver(t *testing.T) {
	for _, staging := range []string{"on", "off"} {
		t.Run("staging "+staging, func(t *testing.T) {
			b := newDockerBed(t, "xfs", "--staging", staging)
			b.create("data", map[string]string{"size": "64Mi"})
			one, two := b.mount("data", "c1"), b.mount("data", "c2")
			w := startWriter(one)
			w.moves(b.bed)
			b.must(b.d.Kill())
			if _, err := os.Stat(b.socket); err != nil {
				t.Errorf("a killed driver's socket: %v", err)
			}
			b.start()
			w.moves(b.bed)
			if at := b.get("data").Mountpoint; at != one && at != two {
				t.Errorf("after the restart it is at %q", at)
			}
			if again := b.mount("data", "c1"); again != one {
				t.Errorf("mounted at %s, and not at %s", again, one)
			}
			b.refuses("VolumeDriver.Remove", asked{"Name": "data"}, "is mounted at")
			b.unmount("data", "c2")
			w.moves(b.bed)
			b.must(w.finish())
			b.must(b.d.Kill())
			b.start()
			b.unmount("data", "c1")
			b.nothingMounted()
			b.remove("data")
		})
	}
}

// Containers that start and end at once.
func TestDockerManyAtOnce(t *testing.T) {
	b := newDockerBed(t, "xfs")
	b.create("data", map[string]string{"size": "64Mi"})
	const containers = 12
	var wait sync.WaitGroup
	failures := make(chan error, 2*containers)
	for i := range containers {
		wait.Go(func() {
			request := asked{"Name": "data", "ID": fmt.Sprint("c", i)}
			answer, err := b.ask("VolumeDriver.Mount", request)
			if err == nil {
				err = os.WriteFile(filepath.Join(answer.Mountpoint, fmt.Sprint(i)), []byte("x"), 0o600)
			}
			failures <- err
			_, err = b.ask("VolumeDriver.Unmount", request)
			failures <- err
		})
	}
	wait.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			t.Error(err)
		}
	}
	b.nothingMounted()
	entries, err := os.ReadDir(b.mount("data", "last"))
	b.must(err)
	if len(entries) < containers {
		t.Errorf("%d files of %d", len(entries), containers)
	}
	b.unmount("data", "last")
	b.remove("data")
}

// What docker's names and options become, and what is refused.
func TestDockerEdge(t *testing.T) {
	b := newDockerBed(t, "xfs", "--target-root", "KUBELET")
	info, err := os.Stat(b.socket)
	b.must(err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v", info.Mode())
	}
	long := strings.Repeat("0123456789abcdef", 4) // as docker names volumes by itself
	b.create(long, map[string]string{"size": "64Mi"})
	b.create("Plain-1.x_y", map[string]string{"size": "64Mi", "provisioning": "thick"})
	b.create("copy", map[string]string{"from": "Plain-1.x_y"})
	// One that CSI made under such a name is docker's as well; others are not.
	for _, name := range []string{"docker-csi", "pvc-1", "dock", "zebra", "0docker-x", "=x"} {
		_, err := b.c.CreateVolume(short(t), &csi.CreateVolumeRequest{Name: name,
			VolumeCapabilities: []*csi.VolumeCapability{rig.MountCap("")}, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib}})
		b.must(err)
	}
	want := map[string]bool{long: true, "Plain-1.x_y": true, "copy": true, "csi": true}
	names := b.names()
	for _, name := range names {
		if !want[name] {
			t.Errorf("docker is told of %q", name)
		}
	}
	if len(names) != len(want) {
		t.Errorf("docker is told of %q", names)
	}
	// The kernel names no path outside of the plugin's directory.
	at := b.mount(long, long)
	if !strings.HasPrefix(at, b.mounts+"/"+long+"/") {
		t.Errorf("mounted at %s", at)
	}
	b.unmount(long, long)
	b.unmount(long, "never-mounted")

	b.refuses("VolumeDriver.Create", asked{"Name": "../x"}, "Name has")
	b.refuses("VolumeDriver.Mount", asked{"Name": "copy", "ID": "../../x"}, "ID has")
	b.refuses("VolumeDriver.Create", asked{"Name": "a", "Opts": map[string]string{"size": "much"}}, "option size")
	b.refuses("VolumeDriver.Create", asked{"Name": "a", "Opts": map[string]string{"from": "gone"}}, "no volume gone")
	b.refuses("VolumeDriver.Create", asked{"Name": "a", "Opts": map[string]string{"encryption": "luks2"}}, "encryption")
	b.refuses("VolumeDriver.Create", asked{"Name": "a", "Opts": map[string]string{"colour": "red"}}, "colour")
	b.refuses("VolumeDriver.Create", asked{"Name": "a", "Opts": map[string]string{"pool": "gold"}}, "gold")
	b.refuses("VolumeDriver.Create", asked{"Name": "a", "Opts": map[string]string{"size": "100Ti", "provisioning": "thick"}}, "")
	b.refuses("VolumeDriver.Create", asked{"Name": "copy", "Opts": map[string]string{"size": "128Mi"}}, "exists")
	b.refuses("VolumeDriver.Get", asked{"Name": 7}, "Name is missing")
	if _, err := b.ask("VolumeDriver.Unknown", asked{}); err == nil {
		t.Error("a request that does not exist succeeds")
	}
	// What kubelet has staged is not removed under its hands.
	v := b.volume("docker-csi", "ext4")
	v.Size = 64 * mib
	b.must(v.Create())
	b.must(v.Stage())
	b.refuses("VolumeDriver.Remove", asked{"Name": "csi"}, "")
	b.must(v.Unstage())
	for _, name := range []string{long, "Plain-1.x_y", "copy", "csi"} {
		b.remove(name)
	}
	list, err := b.c.ListVolumes(short(t), &csi.ListVolumesRequest{})
	b.must(err)
	for _, entry := range list.GetEntries() {
		_, err := b.c.DeleteVolume(short(t), &csi.DeleteVolumeRequest{VolumeId: entry.GetVolume().GetVolumeId()})
		b.must(err)
	}
	b.nothingMounted()
}

// Options that contradict each other are said at the start.
func TestDockerOptions(t *testing.T) {
	refusedAtStart(t, []badOptions{
		{[]string{"--docker-plugin", "relative.sock"}, "absolute"},
		{[]string{"--docker-plugin", "/run/x.sock", "--services", "node"}, "needs the services controller and node"},
		{[]string{"--docker-plugin", "/run/x.sock", "--docker-mounts", "here"}, "absolute"},
	})
}

// podman itself, from Debian: volumes made by name, in a container, by a container, and gone.
func TestDockerPodman(t *testing.T) {
	podman, err := exec.LookPath("podman")
	if err != nil {
		t.Skip("podman is not installed")
	}
	// Debian's crun takes no machine with both versions of cgroups.
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("runc is not installed")
	}
	b := newDockerBed(t, "xfs")
	root := b.Path("rootfs")
	busybox := staticBusybox(t)
	for _, dir := range []string{"bin", "proc", "sys", "dev", "tmp", "etc", "data"} {
		b.must(os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	_, err = rig.Run("cp", busybox, filepath.Join(root, "bin/busybox"))
	b.must(err)
	b.must(os.Symlink("busybox", filepath.Join(root, "bin/sh")))
	config := b.Path("containers.conf")
	b.must(os.WriteFile(config, fmt.Appendf(nil, `[containers]
netns = "none"
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
[engine.volume_plugins]
ringvol = %q
`, b.socket), 0o644))
	storage := b.Path("storage.conf")
	b.must(os.WriteFile(storage, fmt.Appendf(nil, "[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", b.Path("graph"),
		b.Path("run")), 0o644))
	run := func(args ...string) (string, error) {
		cmd := exec.Command(podman, append([]string{"--tmpdir", b.Path("libpod"), "--runtime", runc}, args...)...)
		cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+config, "CONTAINERS_STORAGE_CONF="+storage, "XDG_RUNTIME_DIR=", "HOME="+b.Path("home"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("podman %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return string(out), err
	}
	podmanDo := func(args ...string) string {
		t.Helper()
		out, err := run(args...)
		b.must(err)
		return out
	}
	// An image, though podman can run a directory: of such a container it lets no volume go.
	_, err = rig.Run("tar", "-C", root, "-cf", b.Path("image.tar"), ".")
	b.must(err)
	podmanDo("import", b.Path("image.tar"), "localhost/plain:1")
	podmanDo("volume", "create", "--driver", "ringvol", "--opt", "size=64Mi", "--opt", "fsType=ext4", "data")
	if out := podmanDo("volume", "ls", "--format", "{{.Driver}} {{.Name}}"); !strings.Contains(out, "ringvol data") {
		t.Errorf("podman lists %q", out)
	}
	if names := b.names(); len(names) != 1 || names[0] != "data" {
		t.Errorf("the plugin lists %q", names)
	}
	container := []string{"run", "--rm", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--security-opt=seccomp=unconfined", "--volume", "data:/data", "localhost/plain:1", "/bin/sh", "-c"}
	podmanDo(append(container, "echo forks >/data/word")...)
	if out := podmanDo(append(container, "/bin/busybox cat /data/word && /bin/busybox grep ' /data ' /proc/mounts")...); !strings.Contains(out, "forks") ||
		!strings.Contains(out, "ext4") {
		t.Errorf("the second container sees %q", out)
	}
	// podman tidies up behind the container.
	b.eventually(func() error {
		if mounts := rig.MountsBelow(b.mounts); len(mounts) > 0 {
			return fmt.Errorf("mounted: %q", mounts)
		}
		return nil
	})
	podmanDo("volume", "rm", "data")
	if names := b.names(); len(names) != 0 {
		t.Errorf("left: %q", names)
	}
}

// staticBusybox is a program that a root file system without libraries can have.
func staticBusybox(t *testing.T) string {
	t.Helper()
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox"} {
		if out, err := exec.Command("ldd", path).CombinedOutput(); err != nil && strings.Contains(string(out), "not a dynamic") {
			return path
		}
	}
	t.Skip("there is no static busybox (busybox-static)")
	return ""
}
