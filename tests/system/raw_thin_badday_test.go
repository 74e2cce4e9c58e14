// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"google.golang.org/grpc/codes"
)

// agrees checks, with nothing in the trash, that the kernel's thin pool knows what images say.
func (b *rawBed) agrees() {
	b.t.Helper()
	b.clean()
	b.must(rig.Eventually(20*time.Second, b.pool.ThinAgrees))
}

// finding is one of that kind; the test fails without.
func (b *rawBed) finding(p *checkedPool, kind string) {
	b.t.Helper()
	for _, f := range p.Findings {
		if f.Kind == kind {
			return
		}
	}
	b.t.Errorf("no %s: %+v", kind, p.Findings)
}

// filled is a published thin volume with bytes in it.
func (b *rawBed) filled(name, kind string, seed uint64) (*rig.Volume, string) {
	b.t.Helper()
	v := b.thinVolume(name, kind)
	b.insist(v.Create) // a new pool has to overwrite its disk first
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, seed)
	b.must(err)
	return v, sum
}

// The disk fails everything, and works again. dm-thin gives a pool up whose metadata it cannot write; once its volumes are let go,
// it is made anew.
func TestRawPoolThinDiskFails(t *testing.T) {
	needThin(t)
	b := bareBed(t)
	d := b.swapped(2 << 30)
	b.start()
	b.clean()
	v, sum := b.filled("there", "ext4", 81)
	snapshot, err := v.Snapshot("snap")
	b.must(err)
	b.must(v.Down())
	block, blockSum := b.filled("block", "block", 82)
	thick := b.volume("thick", "block")
	b.must(thick.Up())
	thickSum, err := rig.Fill(thick.Target, dataBytes, 83)
	b.must(err)
	b.must(d.become("error"))
	if err := read(block.Target); err == nil {
		t.Error("a disk that fails is read")
	}
	b.refused("creating", b.thinVolume("new", "block").Create(), codes.Unavailable, codes.Internal, codes.DeadlineExceeded)
	b.notReady()
	b.must(block.Down())
	b.must(d.become("linear", "0"))
	b.must(b.d.AwaitReady())
	b.must(rig.Check(thick.Target, dataBytes, thickSum))
	b.insist(v.Create)
	b.insist(v.Stage)
	b.must(v.Publish())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.insist(block.Stage)
	b.must(block.Publish())
	b.must(rig.Check(block.Target, dataBytes, blockSum))
	restored := b.copyOf("restored", "ext4", rig.FromSnapshot(snapshot.GetSnapshotId()), thin)
	restored.Size = v.Got
	b.must(restored.Up())
	b.must(rig.Check(restored.Target, dataBytes, sum))
	b.agrees()
	b.must(errors.Join(restored.Gone(), block.Gone(), v.Gone(), thick.Gone(), b.d.DeleteSnapshot(snapshot.GetSnapshotId())))
	b.agrees()
	b.accounts()
	b.check(0)
}

// The disk is pulled out under thin volumes in use, and plugged in again.
func TestRawPoolThinDiskPulled(t *testing.T) {
	device := os.Getenv("RINGVOL_RAW_DISK")
	if device == "" {
		t.Skip("needs a disk that can be pulled (RINGVOL_RAW_DISK): scripts/vm/tests.sh raw")
	}
	needThin(t)
	b := bareBed(t)
	device = onPCI(device)
	_, err := rig.Run("wipefs", "-a", device)
	b.must(err)
	b.must(zeroHead(device))
	b.on(device)
	b.start()
	b.clean()
	v, sum := b.filled("there", "ext4", 84)
	snapshot, err := v.Snapshot("snap")
	b.must(err)
	block, blockSum := b.filled("block", "block", 85)
	where := pci(device)
	b.must(os.WriteFile(where+"/remove", []byte("1"), 0))
	b.eventually(func() error {
		if _, err := os.Stat("/sys/block/" + filepath.Base(device)); err == nil {
			return errors.New("the disk is still there")
		}
		return nil
	})
	if err := read(block.Target); err == nil {
		t.Error("a disk that is gone is read")
	}
	b.refused("creating", b.thinVolume("new", "block").Create(), codes.Unavailable, codes.Internal, codes.DeadlineExceeded)
	b.notReady()
	b.must(v.Down())
	b.must(block.Down())
	b.noDevices()
	b.must(os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
	b.must(b.d.AwaitReady())
	b.pool.Disks[0] = onPCI(device)
	b.insist(v.Create)
	b.insist(v.Stage)
	b.must(v.Publish())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.insist(block.Stage)
	b.must(block.Publish())
	b.must(rig.Check(block.Target, dataBytes, blockSum))
	b.agrees()
	b.must(errors.Join(v.Gone(), block.Gone(), b.d.DeleteSnapshot(snapshot.GetSnapshotId())))
	b.noDevices()
	b.accounts()
	b.check(0)
}

// onPCI is the disk that was RINGVOL_RAW_DISK, under the name that it has now: the only one with a PCI device that is not in use.
func onPCI(device string) string {
	if _, err := os.Stat("/sys/block/" + filepath.Base(device)); err == nil {
		return device
	}
	names, _ := filepath.Glob("/sys/block/vd*")
	mounts, _ := os.ReadFile("/proc/mounts")
	for _, name := range names {
		node := "/dev/" + filepath.Base(name)
		size, _ := deviceSize(node)
		if size == 2<<30 && !strings.Contains(string(mounts), node) {
			return node
		}
	}
	return device
}

// zeroHead lets the next pool init take the disk of an earlier test.
func zeroHead(device string) error {
	size, err := deviceSize(device)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteAt(make([]byte, mib), 0)
	_, err2 := file.WriteAt(make([]byte, mib), size-size%mib-mib)
	return errors.Join(err, err2, file.Sync())
}

// down stops the driver with nothing in use, so that the thin pool's devices are gone.
func (b *rawBed) rests() {
	b.t.Helper()
	b.must(b.d.Term())
	b.must(b.pool.RemoveDevices())
}

const needsCheck = 1

// Metadata that a commit could not be written to once: nothing is done with them before they were checked, thick volumes go on,
// and a repair brings everything back.
func TestRawPoolThinNeedsCheck(t *testing.T) {
	b := openThin(t, 2<<30)
	v, sum := b.filled("there", "ext4", 86)
	thick := b.volume("thick", "block")
	b.must(thick.Create())
	b.must(v.Down())
	b.rests()
	b.must(b.pool.ThinSuper(func(block []byte) { block[4] |= needsCheck }, false))
	b.finding(b.check(1), "ThinNeedsCheck")
	// thin_check finds them sound, so the driver takes the mark away by itself.
	b.start()
	b.must(thick.Up())
	b.insist(v.Stage)
	b.must(v.Publish())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.agrees()
	b.check(0)
	b.must(v.Down())
	b.must(thick.Gone())
	b.clean()
	b.rests()
	// So does a repair without a driver.
	b.must(b.pool.ThinSuper(func(block []byte) { block[4] |= needsCheck }, false))
	b.finding(b.check(4, "--repair"), "ThinNeedsCheck")
	b.check(1) // what was replaced is in the trash
	b.start()
	b.insist(v.Stage)
	b.must(v.Publish())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.agrees()
	b.must(v.Gone())
	b.accounts()
	b.check(0)
}

// Damaged metadata: the driver says so and touches nothing; a repair writes them anew. thin_repair 0.9.0 crashes over a lost
// first block where there is more than a volume and a snapshot that are equal.
func TestRawPoolThinMetadataDamaged(t *testing.T) {
	b := openThin(t, 2<<30)
	v, sum := b.filled("there", "block", 87)
	snapshot, err := v.Snapshot("snap")
	b.must(err)
	thick := b.volume("thick", "block")
	b.must(thick.Create())
	b.must(v.Down())
	b.ringvolRefusesRepair()
	b.rests()
	b.must(b.pool.ThinSuper(func(block []byte) { copy(block, "this is no checksum") }, true))
	b.finding(b.check(1), "ThinMetadataDamaged")
	b.start()
	b.must(thick.Up())
	b.must(thick.Gone())
	var refused error
	b.eventually(func() error {
		refused = v.Stage()
		if code := rig.Code(refused); code != codes.DataLoss && code != codes.FailedPrecondition {
			return fmt.Errorf("staging what is damaged: %v", refused)
		}
		return nil
	})
	b.says("staging what is damaged", refused, "check --repair")
	b.rests()
	b.finding(b.check(4, "--repair"), "ThinMetadataDamaged")
	b.start()
	b.insist(v.Stage)
	b.must(v.Publish())
	b.must(rig.Check(v.Target, dataBytes, sum))
	restored := b.copyOf("restored", "block", rig.FromSnapshot(snapshot.GetSnapshotId()), thin)
	restored.Size = v.Got
	b.must(restored.Up())
	b.must(rig.Check(restored.Target, dataBytes, sum))
	b.agrees()
	b.must(errors.Join(restored.Gone(), v.Gone(), b.d.DeleteSnapshot(snapshot.GetSnapshotId())))
	b.accounts()
	b.check(0)
}

// ringvolRefusesRepair: beside a driver nothing is repaired.
func (b *rawBed) ringvolRefusesRepair() {
	b.t.Helper()
	r := b.ringvol(1, "check", "--repair", "--pool", b.poolArg())
	if !strings.Contains(r.err, "a driver serves pool") {
		b.t.Errorf("repair beside a driver: %s%s", r.err, r.out)
	}
}

// A repair that would lose an image changes nothing.
func TestRawPoolThinRepairLoses(t *testing.T) {
	b := openThin(t, 2<<30)
	v, _ := b.filled("there", "block", 88)
	b.must(v.Down())
	b.must(b.d.Term())
	b.start()
	b.insist(v.Stage) // the thin pool is active, and stays so
	b.must(v.Unstage())
	number, err := b.pool.ThinFiles()
	b.must(err)
	b.must(b.d.Kill())
	// The metadata do not know it any more, as if they were of an earlier time.
	_, err = rig.Run("dmsetup", "message", b.pool.ThinDevice("pool"), "0", fmt.Sprintf("delete %d", number["volumes/there"]))
	b.must(err)
	b.must(b.pool.RemoveDevices())
	b.finding(b.check(1), "ThinIdUnknown")
	b.must(b.pool.ThinSuper(func(block []byte) { block[4] |= needsCheck }, false))
	p := b.check(1, "--repair")
	b.finding(p, "ThinNeedsCheck")
	for _, f := range p.Findings {
		if f.Kind == "ThinNeedsCheck" && (f.Repaired || !strings.Contains(f.Remedy, "volumes/there")) {
			t.Errorf("%+v", f)
		}
	}
	b.start()
	b.must(v.Delete())
	b.accounts()
}

// More and more is put into the metadata until they are full, in an area without room: who writes to what has blocks goes on,
// what needs new ones is refused, and with room again all is well.
func TestRawPoolThinMetadataFull(t *testing.T) {
	b := openThin(t, 1200*mib)
	v, sum := b.filled("there", "block", 89)
	ballast := b.d.Volume("ballast", rig.BlockCap(), b.capacity(nil)/mib*mib-8*mib)
	b.must(ballast.Create())
	// Numbers that no image has, as nothing else is as quick.
	pool := b.pool.ThinDevice("pool")
	first, made := 1<<23, 0
	var last error
	for made < 20000 && last == nil {
		last = rig.ThinMessage(pool, fmt.Sprintf("create_thin %d", first+made))
		if last == nil {
			made++
		}
	}
	t.Logf("full after %d: %v", made, last)
	if last == nil {
		t.Fatal("the metadata take more than 20,000")
	}
	b.must(rig.Check(v.Target, dataBytes, sum))
	err := b.thinVolume("new", "block").Create()
	b.refused("creating with full metadata", err, codes.Unavailable, codes.ResourceExhausted, codes.Internal, codes.FailedPrecondition)
	b.finding(b.check(1), "ThinMetadataFull")
	b.must(v.Down())
	b.must(ballast.Delete())
	b.rests()
	// Whatever state dm-thin has left them in.
	p := b.check(1, "--repair")
	for _, f := range p.Findings {
		if f.Repaired && f.Kind != "ThinNeedsCheck" {
			t.Errorf("%+v", f)
		}
	}
	b.start()
	b.insist(v.Stage)
	b.must(v.Publish())
	b.must(rig.Check(v.Target, dataBytes, sum))
	for i := range made {
		b.must(rig.ThinMessage(pool, fmt.Sprintf("delete %d", first+i)))
	}
	w := b.thinVolume("after", "block")
	b.insist(w.Create)
	b.must(w.Delete())
	b.must(v.Gone())
	b.agrees()
	b.accounts()
}

// Names of the thin pool's devices that are another's are left alone, and said; thick volumes go on.
func TestRawPoolThinNameTaken(t *testing.T) {
	b := openThin(t, 2<<30)
	v, sum := b.filled("there", "ext4", 90)
	b.must(v.Down())
	thick := b.volume("thick", "block")
	b.must(thick.Create())
	b.rests()
	for _, which := range []string{"pool", "meta", "data"} {
		name := b.pool.ThinDevice(which)
		_, err := rig.Run("dmsetup", "--noudevsync", "create", name, "--table", "0 65536 error")
		b.must(err)
		b.start()
		b.must(thick.Up())
		b.must(thick.Down())
		var refused error
		b.eventually(func() error {
			refused = v.Stage()
			if code := rig.Code(refused); code != codes.FailedPrecondition {
				return fmt.Errorf("staging beside another's %s: %v", name, refused)
			}
			return nil
		})
		b.says("staging beside another's device", refused, name, "dmsetup")
		if table, err := rig.Run("dmsetup", "table", name); err != nil || !strings.Contains(table, "error") {
			t.Errorf("%s was touched: %v %s", name, err, table)
		}
		_, err = rig.Run("dmsetup", "--noudevsync", "remove", name)
		b.must(err)
		b.insist(v.Stage)
		b.must(v.Publish())
		b.must(rig.Check(v.Target, dataBytes, sum))
		b.must(v.Down())
		b.rests()
	}
	b.start()
	b.must(errors.Join(v.Delete(), thick.Delete()))
	b.accounts()
}

// Who opens each device as it appears, as udev does, those of the thin pool and of builds too, is in nobody's way.
func TestRawPoolThinOpeners(t *testing.T) {
	b := openThin(t, 2<<30)
	var stop atomic.Bool
	var wait sync.WaitGroup
	opened := 0
	wait.Go(func() {
		for !stop.Load() {
			for _, device := range rig.MappedDevices("ringvol-") {
				if file, err := os.Open(device.Node); err == nil {
					opened++
					time.Sleep(10 * time.Millisecond)
					file.Close()
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
	for i := range 4 {
		kind := []string{"block", "ext4"}[i%2]
		v := b.thinVolume(fmt.Sprintf("looked-at-%d", i), kind)
		b.insist(v.Create)
		for range 2 {
			b.eventually(v.Stage)
			b.must(v.Publish())
			s, err := v.Snapshot(fmt.Sprintf("snap-%d", i))
			b.must(err)
			b.must(v.Expand(v.Got+8*mib, true))
			b.must(v.Down())
			b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
		}
		b.must(v.Delete())
	}
	b.clean()
	stop.Store(true)
	wait.Wait()
	t.Logf("opened %d times", opened)
	b.noDevices()
	b.agrees()
	b.accounts()
}

// A kernel without dm-thin: what is thin is refused with the remedy, what is thick goes on. Only where a module of this kernel may be
// taken away: in a guest.
func TestRawPoolThinMissing(t *testing.T) {
	if os.Getenv("RINGVOL_RAW_DISK") == "" {
		t.Skip("takes a module from the kernel (RINGVOL_RAW_DISK): scripts/vm/tests.sh raw")
	}
	b := openThin(t, 2<<30)
	v, sum := b.filled("there", "ext4", 91)
	b.must(v.Down())
	b.rests()
	const loader = "/proc/sys/kernel/modprobe"
	was, err := os.ReadFile(loader)
	b.must(err)
	b.must(os.WriteFile(loader, []byte("/bin/false"), 0))
	back := func() error {
		return errors.Join(os.WriteFile(loader, bytes.TrimSpace(was), 0), loadThin())
	}
	b.Defer(back)
	if err := rig.Eventually(20*time.Second, func() error { _, err := rig.Run("rmmod", "dm_thin_pool"); return err }); err != nil {
		t.Skip("dm-thin cannot be taken away: ", err)
	}
	b.start()
	thick := b.volume("thick", "ext4")
	b.must(thick.Up())
	b.must(thick.Gone())
	var refused error
	for what, call := range map[string]func() error{"staging": v.Stage, "creating": b.thinVolume("new", "block").Create} {
		b.eventually(func() error {
			refused = call()
			if code := rig.Code(refused); code != codes.FailedPrecondition {
				return fmt.Errorf("%s without dm-thin: %v", what, refused)
			}
			return nil
		})
		b.says(what+" without dm-thin", refused, "modprobe dm_thin_pool")
	}
	d := b.doctor(nil)
	if f := d.check("dm-thin"); f.Verdict == "ok" || !strings.Contains(f.Remedy, "dm_thin_pool") {
		t.Errorf("%+v", f)
	}
	b.must(back())
	b.insist(v.Stage)
	b.must(v.Publish())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Gone())
	b.accounts()
}

func loadThin() error {
	_, err := rig.Run("modprobe", "dm_thin_pool")
	return err
}

// A tenant's bytes are never read by the next one who has the place, thick, thin or encrypted, wherever the driver was killed
// between.
func TestRawPoolStaleKinds(t *testing.T) {
	b := openThin(t, 1600*mib)
	b.accounts()
	const size = 96 * mib
	// All but a little is somebody else's, so that the little is used again and again.
	ballast := b.d.Volume("ballast", rig.BlockCap(), b.capacity(nil)-600*mib)
	b.must(ballast.Create())
	seed := uint64(time.Now().UnixNano())
	count := rounds(12)
	t.Logf("seed %d, %d rounds", seed, count)
	random := rand.New(rand.NewPCG(seed, 0))
	moment := func(within int) time.Duration { return time.Duration(random.IntN(within*1000)) * time.Microsecond }
	kinds := []struct {
		name      string
		params    map[string]string
		encrypted bool
	}{
		{"thick", map[string]string{"provisioning": "thick"}, false},
		{"thin", thin, false},
		{"thin", thin, false},
		{"thick and encrypted", map[string]string{"provisioning": "thick", "encryption": "luks2"}, true},
		{"thin and encrypted", map[string]string{"provisioning": "thin", "encryption": "luks2"}, true},
	}
	var marks [][]byte // what tenants before wrote
	for round := range count {
		kind := kinds[random.IntN(len(kinds))]
		// Thin ones with a file system begin as snapshots of a template.
		mounted := !kind.encrypted && random.IntN(2) == 0
		as := rig.BlockCap()
		if mounted {
			as = rig.CapFor("ext4")
		}
		v := b.d.Volume(fmt.Sprintf("tenant-%d", round%7), as, size)
		v.Params = kind.params
		if kind.encrypted {
			v.Secrets = map[string]string{"key": "a key of this test, and of no other"}
		}
		where := random.IntN(6)
		if where == 0 {
			b.killed(moment(60), v.Create)
		} else {
			b.insist(v.Create)
		}
		if where == 1 {
			b.killed(moment(100), v.Stage)
		}
		b.insist(v.Stage)
		nodes := []string{}
		for _, device := range rig.MappedDevices("ringvol-") {
			if strings.HasPrefix(device.Name, rig.DeviceName(v.ID)) {
				nodes = append(nodes, device.Node)
			}
		}
		if len(nodes) == 0 {
			t.Fatalf("round %d: %s %s has no device", round, kind.name, v.Name)
		}
		for _, node := range nodes {
			for _, mark := range marks[max(0, len(marks)-3):] {
				if err := withoutMark(node, mark); err != nil {
					t.Fatalf("round %d, %s, killed at %d: %v", round, kind.name, where, err)
				}
			}
		}
		if !kind.encrypted && !mounted {
			if err := onlyZeros(nodes[0]); err != nil {
				t.Fatalf("round %d, %s, killed at %d: %v", round, kind.name, where, err)
			}
		}
		b.must(v.Publish())
		mark := fmt.Appendf(nil, "the bytes of tenant %06d, ", round)
		var err error
		if mounted {
			err = os.WriteFile(filepath.Join(v.Target, "data"), bytes.Repeat(mark, 1<<18), 0o600)
		} else {
			err = marked(v.Target, mark, random.IntN(3) == 0)
		}
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		if kind.encrypted && err == nil {
			for _, node := range nodes {
				if table, _ := rig.Run("dmsetup", "table", filepath.Base(nameOf(node))); strings.Contains(table, "crypt") {
					continue
				}
				b.must(withoutMark(node, mark))
			}
		}
		marks = append(marks, mark)
		b.must(v.Unpublish())
		b.must(v.Unstage())
		switch where {
		case 2, 3:
			b.killed(moment(40), v.Delete)
		case 4:
			b.must(v.Delete())
			time.Sleep(moment(40))
			b.must(b.d.Kill())
			b.start()
		default:
			b.insist(v.Delete)
		}
	}
	b.must(ballast.Delete())
	b.agrees()
	b.accounts()
	b.check(0)
	t.Logf("%d rounds, no tenant's bytes in another's volume", count)
}

// nameOf is the device mapper's name of a node.
func nameOf(node string) string {
	text, _ := os.ReadFile("/sys/block/" + filepath.Base(node) + "/dm/name")
	return strings.TrimSpace(string(text))
}
