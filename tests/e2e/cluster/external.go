// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ringvol.dev/tests/rig"
)

// The names that Kubernetes' tests ask for (test/utils/image of its module). One image goes under all of them: agnhost, which the
// module has the sources of, busybox from Debian, and this machine's dd and shell.
var externalImages = []struct {
	name            string
	entrypoint, cmd []string
}{
	{name: "registry.k8s.io/e2e-test-images/agnhost:2.59", entrypoint: []string{"/agnhost"}, cmd: []string{"pause"}},
	{name: "registry.k8s.io/e2e-test-images/busybox:1.37.0-1", cmd: []string{"sh"}},
	{name: "registry.k8s.io/e2e-test-images/nginx:1.14-4", cmd: []string{"sh"}},
	{name: "registry.k8s.io/e2e-test-images/jessie-dnsutils:1.7", cmd: []string{"sh"}},
}

// ExternalImages gives containerd what the pods of Kubernetes' tests are made of.
func (c *Cluster) ExternalImages() error {
	root := c.path("images", "external")
	defer os.RemoveAll(root)
	for dir, mode := range map[string]os.FileMode{"bin": 0o755, "etc": 0o755, "tmp": 0o1777, "root": 0o700, "usr/bin": 0o755, "sbin": 0o755,
		"uploads": 0o755} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(root, dir), mode.Perm()|mode&os.ModeSticky); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{filepath.Join(c.Top, ".cache/e2e/busybox/bin/busybox"): "bin/busybox", c.bin("agnhost"): "agnhost"} {
		if _, err := rig.Run("cp", from, filepath.Join(root, to)); err != nil {
			return err
		}
	}
	if err := applets(root); err != nil {
		return err
	}
	if err := wholePrograms(root); err != nil {
		return err
	}
	// Nobody else has a name: tests read ids from what ls prints.
	for name, text := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, image := range externalImages {
		if err := c.packRootWith(root, image.name, image.entrypoint, image.cmd); err != nil {
			return fmt.Errorf("image %s: %w", image.name, err)
		}
	}
	return nil
}

// applets names all that busybox can do.
func applets(root string) error {
	list, err := rig.Run(filepath.Join(root, "bin/busybox"), "--list")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(list) {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return nil
}

// wholePrograms puts two programs of this machine in the place of busybox's: its dd does not know oflag=nocache, and its shell runs that
// dd whatever /bin has. The tests want a shell that has "let", which dash has not.
func wholePrograms(root string) error {
	for program, from := range map[string]string{"bin/dd": "/bin/dd", "bin/sh": "/bin/bash"} {
		needs, err := rig.Run("ldd", from)
		if err != nil {
			return err
		}
		files := map[string]string{program: from}
		for _, word := range strings.Fields(needs) {
			if filepath.IsAbs(word) {
				files[word] = word
			}
		}
		for to, file := range files {
			to = filepath.Join(root, to)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			if _, err := rig.Run("cp", "-L", "--remove-destination", file, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// ExternalProgram is a program of the tests' own, or what they start: external.test, ginkgo, kubectl.
func (c *Cluster) ExternalProgram(name string) string { return c.bin(name) }
