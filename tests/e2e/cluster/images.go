// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"

	"ringvol.dev/tests/rig"
)

// The names that pods ask for. Nothing is pulled: images are made here and imported under these names.
const (
	pauseImage    = "registry.k8s.io/pause:3.10"
	WorkloadImage = "ringvol.dev/e2e-workload:1"
	sidecars      = "registry.k8s.io/sig-storage/"
)

// MonitorProgram names a file: csi-external-health-monitor-controller, built by somebody else. Its module is not on the proxy.
const MonitorProgram = "RINGVOL_E2E_HEALTH_MONITOR"

// program is an image with one static program in it.
type program struct {
	name, path string
	arguments  []string
	usesNode   bool // it starts programs of the node (nodesPrograms)
}

// images gives containerd what pods are made of anyway: the workload, which also does what the pause image does.
func (c *Cluster) images() error {
	workload := filepath.Join(c.Top, "build/e2e/workload")
	return c.packPrograms(program{name: pauseImage, path: workload, arguments: []string{"pause"}},
		program{name: WorkloadImage, path: workload})
}

// sidecarImages gives containerd the sidecars.
func (c *Cluster) sidecarImages() error {
	if monitor := os.Getenv(MonitorProgram); monitor != "" {
		if err := c.packPrograms(program{name: sidecars + "csi-external-health-monitor-controller:v0.18.0", path: monitor}); err != nil {
			return err
		}
	}
	return c.packPrograms(program{name: ProvisionerImage, path: c.bin("csi-provisioner")},
		program{name: sidecars + "csi-attacher:v4.12.0", path: c.bin("csi-attacher")},
		program{name: sidecars + "csi-resizer:v2.2.0", path: c.bin("csi-resizer")},
		program{name: sidecars + "csi-snapshotter:v8.6.0", path: c.bin("csi-snapshotter")},
		program{name: sidecars + "csi-snapshot-metadata:v0.2.0", path: c.bin("csi-snapshot-metadata")},
		program{name: sidecars + "snapshot-controller:v8.6.0", path: c.bin("snapshot-controller")})
}

func (c *Cluster) packPrograms(programs ...program) error {
	for _, p := range programs {
		if err := c.packProgram(p); err != nil {
			return fmt.Errorf("image %s: %w", p.name, err)
		}
	}
	return nil
}

func (c *Cluster) packProgram(p program) error {
	root := c.path("images", "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(root)
	entrypoint := "/" + filepath.Base(p.path)
	if _, err := rig.Run("cp", p.path, root+entrypoint); err != nil {
		return err
	}
	if p.usesNode {
		if err := nodesPrograms(root); err != nil {
			return err
		}
	}
	return c.packRoot(root, p.name, append([]string{entrypoint}, p.arguments...)...)
}

// ImageWithout is the driver's image without one of its files, under a name of its own.
func (c *Cluster) ImageWithout(path string) (string, error) {
	name, err := c.DriverImage()
	if err != nil {
		return "", err
	}
	name += "-without-" + filepath.Base(path)
	root := c.path("images", "without")
	defer os.RemoveAll(root)
	whole := filepath.Join(c.Top, "build/image", runtime.GOARCH, "root")
	if _, err := rig.Run("cp", "-a", whole, root); err != nil {
		return "", err
	}
	if err := os.Remove(filepath.Join(root, path)); err != nil {
		return "", err
	}
	return name, c.packRoot(root, name, "/usr/bin/ringvol")
}

// packRoot makes an image of a directory and gives it to containerd.
func (c *Cluster) packRoot(root, name string, entrypoint ...string) error {
	return c.packRootWith(root, name, entrypoint, nil)
}

// packRootWith is packRoot with arguments that a pod may replace.
func (c *Cluster) packRootWith(root, name string, entrypoint, cmd []string) error {
	archive := c.path("images", "image.tar")
	defer os.Remove(archive)
	args := []string{filepath.Join(c.Top, "scripts/image/oci.py"), "--root", root, "--name", name,
		"--output", archive, "--compress", "none", "--env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, argument := range entrypoint {
		args = append(args, "--entrypoint="+argument)
	}
	for _, argument := range cmd {
		args = append(args, "--cmd="+argument)
	}
	if _, err := rig.Run("python3", args...); err != nil {
		return err
	}
	return c.ImportImage(archive)
}

// ImportImage gives containerd an image archive; an image of the same name is replaced.
func (c *Cluster) ImportImage(archive string) error {
	for _, n := range c.nodes() {
		if _, err := n.ctr("images", "import", archive); err != nil {
			return err
		}
	}
	return nil
}

// TagImage gives an image one more name.
func (c *Cluster) TagImage(name, also string) error {
	for _, n := range c.nodes() {
		if _, err := n.ctr("images", "tag", "--force", name, also); err != nil {
			return err
		}
	}
	return nil
}

// DriverImage is the name of the image that ./dev image makes.
func (c *Cluster) DriverImage() (string, error) {
	text, err := os.ReadFile(filepath.Join(c.Top, "meson.build"))
	if err != nil {
		return "", err
	}
	version := regexp.MustCompile(`(?s)project\(.*?version: '([^']+)'`).FindSubmatch(text)
	if version == nil {
		return "", fmt.Errorf("meson.build names no version")
	}
	return "ringvol.dev/ringvol:" + string(version[1]), nil
}

// The peer: csi-driver-host-path and node-driver-registrar, built by somebody else.
const (
	PeerDriver         = "hostpath.csi.k8s.io"
	PeerImage          = "ringvol.dev/e2e-peer:1"
	PeerRegistrarImage = "ringvol.dev/e2e-peer-registrar:1"
	ProvisionerImage   = sidecars + "csi-provisioner:v6.3.0"
)

// PeerPrograms are what a directory of the peer's has to hold.
var PeerPrograms = []string{"hostpathplugin", "csi-node-driver-registrar"}

// PeerImages gives containerd the peer, whose programs lie in dir. It starts programs of the node, whose /usr its
// pod has to mount.
func (c *Cluster) PeerImages(dir string) error {
	return c.packPrograms(program{name: PeerImage, path: filepath.Join(dir, PeerPrograms[0]), usesNode: true},
		program{name: PeerRegistrarImage, path: filepath.Join(dir, PeerPrograms[1])})
}

// nodesPrograms makes a root from which the node's programs run once its /usr is mounted there.
func nodesPrograms(root string) error {
	if err := os.Mkdir(filepath.Join(root, "usr"), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	return nil
}
