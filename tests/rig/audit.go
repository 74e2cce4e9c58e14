// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// KeyOf is the name of the file behind an id ("<pool>.<key>.<random>"), "" for what is no id.
func KeyOf(id string) string {
	first, last := strings.Index(id, "."), strings.LastIndex(id, ".")
	if first < 0 || last <= first {
		return ""
	}
	return id[first+1 : last]
}

// SourceOf says in a word what a volume was made from, "" for an empty one.
func SourceOf(source *csi.VolumeContentSource) string {
	switch {
	case source.GetSnapshot() != nil:
		return "snapshot " + source.GetSnapshot().GetSnapshotId()
	case source.GetVolume() != nil:
		return "volume " + source.GetVolume().GetVolumeId()
	}
	return ""
}

// frozenNow: a mark of an earlier boot means nothing, as no freeze outlives the kernel.
func frozenNow(path string) bool {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var mark [64]byte
	n, none := unix.Lgetxattr(path, "trusted.ringvol.frozen", mark[:])
	return none == nil && (err != nil || string(mark[:n]) == strings.TrimSpace(string(boot)))
}

var templateName = regexp.MustCompile(`^((ext4|xfs|btrfs)-[0-9a-f]{40}|thin-(ext4|xfs)-[0-9a-f]{40}-[0-9a-f]{8})$`)

// Strays looks for what a pool at rest must not hold besides its volumes and snapshots: trash, copies
// to and from other nodes, marks of a freeze, files that are nobody's.
func (p *Pool) Strays() error {
	return p.Look(p.strays)
}

func (p *Pool) strays(root string) error {
	var errs []error
	for _, dir := range []string{"volumes", "snapshots"} {
		for _, name := range p.Names(dir) {
			path := filepath.Join(root, dir, name)
			if frozenNow(path) {
				errs = append(errs, fmt.Errorf("pool %s: %s/%s is marked as frozen", p.Name, dir, name))
			}
		}
	}
	for _, dir := range []string{"trash", "copies"} {
		if names := p.Names(dir); len(names) > 0 {
			errs = append(errs, fmt.Errorf("pool %s: %s: %v", p.Name, dir, names))
		}
	}
	if names := p.Names("departed"); len(names) > 0 {
		errs = append(errs, fmt.Errorf("pool %s: departed: %v, and those volumes are gone", p.Name, names))
	}
	for _, name := range p.Names("templates") {
		if !templateName.MatchString(name) {
			errs = append(errs, fmt.Errorf("pool %s: templates/%s", p.Name, name))
		}
	}
	want := []string{"copies", "groups", "ringvol.pool", "snapshots", "templates", "trash", "volumes"}
	names := slices.DeleteFunc(p.Names("."), func(name string) bool { return name == "lost+found" || name == "departed" })
	if p.IsRaw() {
		want = slices.Insert(want, 5, "thin")
	}
	if !slices.Equal(names, want) {
		errs = append(errs, fmt.Errorf("pool %s holds %v", p.Name, names))
	}
	return errors.Join(errs...)
}
