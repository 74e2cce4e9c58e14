// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// audit compares what is with what was acknowledged. The workers stand: between two operations, or
// in the middle of one that was cut short; what that one may have done is allowed either way.
func (t *torture) audit() error {
	listed := t.auditListed
	if t.slow() { // its pool may be sick for a moment, and then devices of the earlier run are found later
		listed = func() error { return rig.Eventually(60*time.Second, t.auditListed) }
	}
	if err := listed(); err != nil {
		return err
	}
	// The dead driver's helpers end, and devices and trash go, in their time.
	if err := rig.Eventually(60*time.Second, t.auditLeft); err != nil {
		return err
	}
	if err := t.auditLimits(); err != nil {
		return err
	}
	return t.auditData()
}

// ---- what the driver says ----

func (t *torture) auditListed() error {
	ctx, cancel := callContext()
	defer cancel()
	volumes, err := t.client.ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return fmt.Errorf("ListVolumes: %w", err)
	}
	snapshots, err := t.client.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
	if err != nil {
		return fmt.Errorf("ListSnapshots: %w", err)
	}
	t.model.mu.Lock()
	defer t.model.mu.Unlock()
	return errors.Join(t.compareVolumes(volumes), t.compareSnapshots(snapshots))
}

func (t *torture) compareVolumes(reply *csi.ListVolumesResponse) error {
	var errs []error
	listed := map[string]bool{}
	for _, entry := range reply.GetEntries() {
		id := entry.GetVolume().GetVolumeId()
		v := t.model.volumes[rig.KeyOf(id)]
		switch {
		case t.model.gone[id]:
			errs = append(errs, fmt.Errorf("volume %s is back after its deletion", id))
		case v == nil && t.model.importing(rig.KeyOf(id)):
		case v == nil || listed[v.Name]:
			errs = append(errs, fmt.Errorf("volume %s was never acknowledged and nobody asks for it", id))
		case v.ID == "":
			v.seen = id
			listed[v.Name] = true
		default:
			errs = append(errs, v.matches(entry.GetVolume(), entry.GetStatus().GetPublishedNodeIds()))
			listed[v.Name] = true
		}
	}
	for _, v := range t.model.volumes {
		if v.certain() && !listed[v.Name] {
			errs = append(errs, fmt.Errorf("volume %s (%s) is lost", v.Name, v.ID))
		}
	}
	return errors.Join(errs...)
}

func (t *torture) compareSnapshots(reply *csi.ListSnapshotsResponse) error {
	var errs []error
	listed := map[string]bool{}
	var members []*csi.Snapshot
	for _, entry := range reply.GetEntries() {
		id := entry.GetSnapshot().GetSnapshotId()
		s := t.model.snapshots[rig.KeyOf(id)]
		if entry.GetSnapshot().GetGroupSnapshotId() != "" {
			members = append(members, entry.GetSnapshot())
		}
		switch {
		case t.model.gone[id]:
			errs = append(errs, fmt.Errorf("snapshot %s is back after its deletion", id))
		case t.model.groupOf(entry.GetSnapshot()) != nil:
		case t.model.images[rig.KeyOf(id)] != nil && !listed[rig.KeyOf(id)]:
			errs = append(errs, t.model.compareImage(rig.KeyOf(id), id))
			listed[rig.KeyOf(id)] = true
		case s == nil || listed[s.name]:
			errs = append(errs, fmt.Errorf("snapshot %s was never acknowledged and nobody asks for it", id))
		case s.id == "":
			s.seen = id
			listed[s.name] = true
		default:
			errs = append(errs, s.matches(entry.GetSnapshot()))
			listed[s.name] = true
		}
	}
	for _, s := range t.model.snapshots {
		if s.id != "" && s.busy != "delete" && !listed[s.name] {
			errs = append(errs, fmt.Errorf("snapshot %s (%s) is lost", s.name, s.id))
		}
	}
	errs = append(errs, t.model.lostImages(listed), t.model.compareGroups(members))
	return errors.Join(errs...)
}

// auditLimits: a record has the limits that were acknowledged last, or those of the modify that was cut short.
func (t *torture) auditLimits() error {
	t.model.mu.Lock()
	defer t.model.mu.Unlock()
	var errs []error
	for _, v := range t.model.volumes {
		if v.pool.IsRaw() || !v.certain() || v.iops == 0 {
			continue
		}
		text, err := rig.RecordOf(v.pool.Image(v.ID))
		says := func(iops int) bool {
			return strings.Contains(text, fmt.Sprintf("\nread_iops=%d\nwrite_iops=%d\n", iops, iops))
		}
		if err == nil && !says(v.iops) && !(v.busy == "modify" && says(v.asked)) {
			err = fmt.Errorf("volume %s was limited to %d, and its record says\n%s", v.Name, v.iops, text)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ---- what is left on the node ----

func (t *torture) auditLeft() error {
	t.model.mu.Lock()
	defer t.model.mu.Unlock()
	return errors.Join(t.auditMounts(), t.auditDevices(), t.auditFiles(), t.auditArea(), t.auditProcesses())
}

// auditArea: each part of a raw pool's disk is one image's, or is free; the kernel's thin pool knows what images say, and no more.
// With nothing in the trash.
func (t *torture) auditArea() error {
	if !t.pools[0].IsRaw() {
		return nil
	}
	maps, err := t.pools[0].Maps()
	if err != nil {
		return err
	}
	if maps["thin/data"] != nil {
		return t.pools[0].ThinAgrees() // what is promised to thin volumes is not free, and occupies nothing
	}
	area, err := t.pools[0].AreaBytes()
	if err != nil {
		return err
	}
	room, err := t.room()
	if err == nil && rig.MappedBytes(maps)+room != area {
		err = fmt.Errorf("%d MiB of images and %d MiB of room in an area of %d MiB: %v", rig.MappedBytes(maps)/mib, room/mib,
			area/mib, maps)
	}
	return err
}

func (t *torture) auditMounts() error {
	var errs []error
	must, may := map[string]bool{}, map[string]bool{}
	for _, v := range t.model.volumes {
		is, maybe := v.mounts()
		for _, path := range is {
			must[path] = true
		}
		for _, path := range maybe {
			may[path] = true
		}
	}
	t.inlineMounts(must, may)
	seen := map[string]bool{}
	for _, path := range rig.MountsBelow(t.rig.Dir) {
		if seen[path] {
			errs = append(errs, fmt.Errorf("mounted twice: %s", path))
		}
		seen[path] = true
		if !must[path] && !may[path] && path != t.pools[0].Path && !t.importedAt(path) {
			errs = append(errs, fmt.Errorf("mounted, but nobody has asked for it: %s", path))
		}
	}
	for path := range must {
		if !seen[path] {
			errs = append(errs, fmt.Errorf("not mounted any more: %s", path))
		}
	}
	return errors.Join(errs...)
}

// devices maps images of the pools to the devices bound to them; those of a raw pool by their names.
func (t *torture) devices() map[string][]string {
	found := map[string][]string{}
	if t.pools[0].IsRaw() {
		devices, _ := t.pools[0].VolumeDevices()
		for _, device := range devices {
			found[device.Name] = append(found[device.Name], filepath.Base(device.Node))
		}
		return found
	}
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		image := strings.TrimSuffix(string(text), "\n")
		if strings.HasPrefix(image, t.pools[0].Path+"/") || strings.HasPrefix(image, t.pools[1].Path+"/") {
			found[image] = append(found[image], filepath.Base(filepath.Dir(filepath.Dir(file))))
		}
	}
	return found
}

func (t *torture) auditDevices() error {
	var errs []error
	all := t.devices()
	for _, v := range t.model.volumes {
		devices := all[v.deviceKey()]
		delete(all, v.deviceKey())
		must, may := v.device()
		switch {
		case len(devices) > 1:
			errs = append(errs, fmt.Errorf("%s is attached %d times: %v", v.Name, len(devices), devices))
		case must && len(devices) == 0:
			errs = append(errs, fmt.Errorf("%s is staged and not attached", v.Name))
		case !may && len(devices) == 1 && t.keptElsewhere(devices[0]):
		case !may && len(devices) == 1:
			errs = append(errs, fmt.Errorf("%s is not staged, but attached: %v", v.Name, devices))
		case must && v.thick && !v.pool.IsRaw() && discards(devices[0]):
			errs = append(errs, fmt.Errorf("%s is thick, and %s discards", v.Name, devices[0]))
		}
	}
	errs = append(errs, t.auditInlineDevices(all))
	for image, devices := range all {
		if len(devices) == 1 && (t.keptElsewhere(devices[0]) || t.model.importing(filepath.Base(image))) {
			continue
		}
		errs = append(errs, fmt.Errorf("%v bound to %s, which is no volume", devices, image))
	}
	return errors.Join(errs...)
}

// keptElsewhere: the driver has let the device go, but a mount namespace that somebody on this
// machine made meanwhile has a copy of its mount. The kernel clears it with the last of them.
func (t *torture) keptElsewhere(device string) bool {
	flag, err := os.ReadFile("/sys/block/" + device + "/loop/autoclear")
	if err != nil || strings.TrimSpace(string(flag)) != "1" || len(keepers(device)) == 0 {
		return false
	}
	t.kept.Add(1)
	return true
}

// keepers lists processes of other mount namespaces that see a mount of the device.
func keepers(device string) []string {
	var found []string
	number, err := os.ReadFile("/sys/block/" + device + "/dev")
	if err != nil {
		return nil
	}
	ours, _ := os.Readlink("/proc/self/ns/mnt")
	links, _ := filepath.Glob("/proc/[0-9]*/ns/mnt")
	for _, link := range links {
		namespace, err := os.Readlink(link)
		if err != nil || namespace == ours {
			continue
		}
		dir := filepath.Dir(filepath.Dir(link))
		mounts, _ := os.ReadFile(filepath.Join(dir, "mountinfo"))
		if strings.Contains(string(mounts), " "+strings.TrimSpace(string(number))+" ") {
			line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			found = append(found, fmt.Sprintf("%s (%.60s)", dir, strings.ReplaceAll(string(line), "\x00", " ")))
		}
	}
	return found
}

// openers lists who has the device open.
func openers(device string) []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		if path, err := os.Readlink(link); err == nil && path == "/dev/"+device {
			dir := filepath.Dir(filepath.Dir(link))
			line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			found = append(found, fmt.Sprintf("%s (%.60s)", dir, strings.ReplaceAll(string(line), "\x00", " ")))
		}
	}
	return found
}

func discards(device string) bool {
	text, err := os.ReadFile("/sys/block/" + device + "/queue/discard_max_bytes")
	return err != nil || strings.TrimSpace(string(text)) != "0"
}

func (t *torture) auditFiles() error {
	var errs []error
	for _, pool := range t.pools {
		certain, possible := map[string]bool{}, map[string]bool{}
		for _, v := range t.model.volumes {
			if v.pool == pool {
				certain["volumes/"+v.Name] = v.certain()
				possible["volumes/"+v.Name] = true
			}
		}
		for _, s := range t.model.snapshots {
			if s.pool == pool {
				certain["snapshots/"+s.name] = s.id != "" && s.busy != "delete"
				possible["snapshots/"+s.name] = true
			}
		}
		t.inlineFiles(pool, certain, possible)
		for _, dir := range []string{"volumes", "snapshots"} {
			names := pool.Names(dir)
			for _, name := range names {
				if dir == "volumes" && t.model.importing(name) || dir == "snapshots" && t.model.images[name] != nil {
					continue
				}
				if !possible[dir+"/"+name] && t.model.groups[groupInName(name)] == nil {
					errs = append(errs, fmt.Errorf("pool %s: %s/%s is nobody's", pool.Name, dir, name))
				}
				delete(certain, dir+"/"+name)
			}
		}
		for path, is := range certain {
			if is {
				errs = append(errs, fmt.Errorf("pool %s: %s is not there", pool.Name, path))
			}
		}
		errs = append(errs, t.model.auditGroups(pool), pool.Strays())
	}
	return errors.Join(errs...)
}

// auditProcesses: helpers carry our environment's mark, and are the living driver's children. (Tools
// have an environment of their own; what they hold open is found by the devices and the free space.)
func (t *torture) auditProcesses() error {
	var errs []error
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), t.mark) {
			continue
		}
		dir := filepath.Dir(file)
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if parent := parentOf(dir); pid != t.d.Pid() && parent != t.d.Pid() && parent != 0 {
			line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			errs = append(errs, fmt.Errorf("process %d (%s) is left, its parent is %d", pid,
				strings.ReplaceAll(string(line), "\x00", " "), parent))
		}
	}
	return errors.Join(errs...)
}

// parentOf is 0 for a process that is gone.
func parentOf(dir string) int {
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndex(string(text), ")")+1:]))
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// ---- data ----

// auditData reads what is published, and the snapshots of devices.
func (t *torture) auditData() error {
	t.model.mu.Lock()
	defer t.model.mu.Unlock()
	var errs []error
	for _, v := range t.model.volumes {
		if v.published && v.busy == "" && !t.isPod(v) {
			if err := v.check(); err != nil {
				errs = append(errs, fmt.Errorf("volume %s: %w", v.Name, err))
			}
		}
	}
	errs = append(errs, t.auditInlineData())
	for _, s := range t.model.snapshots {
		if s.source.kind == "block" && !s.pool.IsRaw() && s.id != "" && s.busy == "" && s.has.sum != "" {
			image := filepath.Join(s.pool.Path, "snapshots", s.name)
			if err := rig.Check(image, s.has.size, s.has.sum); err != nil {
				errs = append(errs, fmt.Errorf("snapshot %s: %w", s.name, err))
			}
		}
	}
	return errors.Join(errs...)
}
