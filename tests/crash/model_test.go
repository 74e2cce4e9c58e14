// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const mib = rig.MiB

var errStopped = errors.New("stopped")

// content is what has to be readable: the first bytes, which were synced, and the log of a writer
// (log_test.go) as far as it was synced when the copy was asked for.
type content struct {
	size int64
	sum  string
	log  int64 // blocks; 0: no writer wrote there
}

// volume is what the test knows of one: everything acknowledged, and in `busy` what is under way
// and may have happened or not.
type volume struct {
	rig.Volume
	kind      string
	pool      *rig.Pool
	thick     bool
	thin      bool // in the thin pool of a raw pool
	copyable  bool // no eraseOnDelete: its bytes may be shared
	frozen    bool // a copy of it in use freezes it
	staged    bool
	published bool
	extra     string // a second, read-only target
	has       content
	overhead  int64 // capacity less what a fresh file system of its kind offers

	iops  int // the limit that was acknowledged; 0: none was ever set
	asked int // the one that a modify under way asks for
	busy  string
	want  int64  // the size an expansion under way asks for
	maybe string // the second target under way
	seen  string // the id an audit saw while its creation was under way
}

type snapshot struct {
	name   string
	id     string
	source *volume // its state when the snapshot was asked for; a copy
	pool   *rig.Pool
	size   int64
	has    content
	group  *group // nil: of none
	busy   string
	seen   string
}

// model is all of it. Each object has one owner, who changes it under the lock; a pod is changed by
// its keeper.
type model struct {
	mu        sync.Mutex
	volumes   map[string]*volume
	snapshots map[string]*snapshot
	groups    map[string]*group
	inlines   map[string]*inline
	images    map[string]*golden
	gone      map[string]bool // ids whose deletion was acknowledged
}

func newModel() *model {
	return &model{volumes: map[string]*volume{}, snapshots: map[string]*snapshot{}, groups: map[string]*group{},
		inlines: map[string]*inline{}, images: map[string]*golden{}, gone: map[string]bool{}}
}

func (m *model) with(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// key is also that of a volume that may be there already; names here are short and safe.
func (v *volume) key() string {
	return v.Name
}

func (v *volume) image() string {
	return filepath.Join(v.pool.Path, "volumes", v.key())
}

// deviceKey is what torture.devices has its device under.
func (v *volume) deviceKey() string {
	if v.pool.IsRaw() && v.ID != "" {
		return rig.DeviceName(v.ID)
	}
	return v.image()
}

// shares tells whether a copy of it shares its bytes.
func (v *volume) shares() bool { return v.pool.Reflink() || v.thin }

func (v *volume) makeThin() {
	v.thin = true
	v.Params["provisioning"] = "thin"
}

// certain tells whether the volume has to be there, possible whether it may.
func (v *volume) certain() bool {
	return v.ID != "" && v.busy != "delete"
}

// mounts lists what has to be mounted and what may be, between which an audit finds the truth.
func (v *volume) mounts() (must, may []string) {
	add := func(path string, is bool, changing ...string) {
		for _, op := range changing {
			if v.busy == op {
				may = append(may, path)
				return
			}
		}
		if is {
			must = append(must, path)
		}
	}
	if v.Staging == "" {
		return nil, nil
	}
	if v.kind != "block" {
		add(v.Staging, v.staged, "stage", "unstage", "unstage instead")
	}
	add(v.Target, v.published, "publish", "unpublish", "unpublish instead")
	if v.extra != "" {
		add(v.extra, true, "unpublish extra")
	} else if v.maybe != "" {
		add(v.maybe, false, "publish extra")
	}
	return must, may
}

// device tells whether a device has to be bound to its image, and whether it may be.
func (v *volume) device() (must, may bool) {
	switch v.busy {
	case "stage", "unstage", "unstage instead":
		return false, true
	}
	return v.staged, v.staged
}

// matches compares what the driver lists with what is known.
func (v *volume) matches(got *csi.Volume, nodes []string) error {
	var errs []error
	if got.GetVolumeId() != v.ID {
		errs = append(errs, fmt.Errorf("id %s, acknowledged was %s", got.GetVolumeId(), v.ID))
	}
	size := got.GetCapacityBytes()
	if size != v.Got && !(v.busy == "expand" && size == v.want) {
		errs = append(errs, fmt.Errorf("%d bytes, acknowledged were %d (under way: %q %d)", size, v.Got,
			v.busy, v.want))
	}
	if rig.SourceOf(got.GetContentSource()) != rig.SourceOf(v.Source) {
		errs = append(errs, fmt.Errorf("source %q, acknowledged was %q", rig.SourceOf(got.GetContentSource()),
			rig.SourceOf(v.Source)))
	}
	must, may := v.device()
	if must && len(nodes) != 1 {
		errs = append(errs, fmt.Errorf("staged, but published on %v", nodes))
	}
	if !may && len(nodes) != 0 {
		errs = append(errs, fmt.Errorf("not staged, but published on %v", nodes))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return nil
}

func (s *snapshot) matches(got *csi.Snapshot) error {
	var errs []error
	if got.GetSnapshotId() != s.id {
		errs = append(errs, fmt.Errorf("id %s, acknowledged was %s", got.GetSnapshotId(), s.id))
	}
	if got.GetSizeBytes() != s.size {
		errs = append(errs, fmt.Errorf("%d bytes, acknowledged were %d", got.GetSizeBytes(), s.size))
	}
	if got.GetSourceVolumeId() != s.source.ID {
		errs = append(errs, fmt.Errorf("of %s, acknowledged was %s", got.GetSourceVolumeId(), s.source.ID))
	}
	if !got.GetReadyToUse() {
		errs = append(errs, errors.New("not ready"))
	}
	if s.group != nil && got.GetGroupSnapshotId() != s.group.id || s.group == nil && got.GetGroupSnapshotId() != "" {
		errs = append(errs, fmt.Errorf("of the group %q", got.GetGroupSnapshotId()))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("snapshot %s: %w", s.name, err)
	}
	return nil
}
