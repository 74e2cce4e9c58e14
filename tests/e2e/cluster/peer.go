// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
)

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
