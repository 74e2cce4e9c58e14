// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// Volumes of another node, used on this one. The other node is the kernel's own NVMe target, set up by hand
// on the loopback.

const borrowedSize = 320 * mib

// borrowBed is a driver, an export, and the volume as its node sees it.
type borrowBed struct {
	*bed
	e *rig.Export
	v *rig.Volume
}

func openBorrow(t *testing.T, kind string, args ...string) *borrowBed {
	t.Helper()
	if why := rig.HasNVMe(); why != "" {
		t.Skip(why)
	}
	needDeviceMapper(t)
	b := &borrowBed{bed: newBed(t, "ext4", 256*mib)}
	b.d.Args = append(b.d.Args, args...)
	b.must(b.d.ServeHTTP())
	b.start()
	b.e, b.v = b.export(1, kind)
	return b
}

func (b *borrowBed) export(number int, kind string) (*rig.Export, *rig.Volume) {
	b.t.Helper()
	size := int64(borrowedSize)
	e, err := b.NewExport(number, kind, size)
	b.must(err)
	v := b.d.Volume(fmt.Sprintf("far-%d", number), rig.CapFor(kind), size)
	v.ID = fmt.Sprintf("fedcba98.far-%d.%08d", number, number)
	v.PublishContext = e.Context(kind)
	return e, v
}

// covers are the device-mapper devices over what is borrowed.
func covers() (names []string) {
	all, _ := filepath.Glob("/sys/block/dm-*/dm/name")
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(text), "ringvol-cover-") {
			names = append(names, strings.TrimSpace(string(text)))
		}
	}
	return names
}

// nothing: no connection and no cover is left, at once.
func (b *borrowBed) nothing() {
	b.t.Helper()
	if names := b.e.Connections(); len(names) > 0 {
		b.t.Errorf("still connected: %v", names)
	}
	if names := covers(); len(names) > 0 {
		b.t.Errorf("left behind: %v", names)
	}
}

func (b *borrowBed) condition() (bool, string) {
	b.t.Helper()
	stats, err := b.v.Stats()
	if err != nil {
		return true, err.Error()
	}
	return stats.GetVolumeCondition().GetAbnormal(), stats.GetVolumeCondition().GetMessage()
}

func (b *borrowBed) awaitCondition(abnormal bool, words string) {
	b.t.Helper()
	b.eventually(func() error {
		if got, text := b.condition(); got != abnormal || !strings.Contains(text, words) {
			return fmt.Errorf("condition: %v %q", got, text)
		}
		return nil
	})
}

func (b *borrowBed) nodeExpand(size int64) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), rig.CallTimeout)
	defer cancel()
	reply, err := b.c.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: b.v.ID, VolumePath: b.v.Target, StagingTargetPath: b.v.Staging,
		CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: b.v.Cap,
	})
	return reply.GetCapacityBytes(), err
}

// noSecret: the key is in no log and in no argument of a process.
func (b *borrowBed) noSecret() {
	b.t.Helper()
	if b.e.Key == "" {
		return
	}
	secret := strings.Split(b.e.Key, ":")[2]
	if log, err := os.ReadFile(b.d.Log); err != nil || strings.Contains(string(log), secret) {
		b.t.Errorf("the key is in the log (%v)", err)
	}
	for _, name := range b.e.Connections() {
		info, err := os.Stat("/sys/class/nvme/" + name + "/dhchap_secret")
		if err == nil && info.Mode().Perm() != 0o600 {
			b.t.Errorf("the kernel shows the key of %s to others: %v", name, info.Mode())
		}
	}
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), secret) {
			b.t.Errorf("the key is in %s", path)
		}
	}
}

// told: `ringvol ls` and /metrics have it, with what was written.
func (b *borrowBed) told(name, id, owner string, written int64) {
	b.t.Helper()
	table := tool(b.t, nil, "ls", "--endpoint", b.endpoint())
	if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` +` + regexp.QuoteMeta(owner) + ` `).MatchString(table.out) {
		b.t.Errorf("ls:\n%s", table.out)
	}
	metrics, err := b.d.Scrape()
	b.must(err)
	if got := metrics.Value("ringvol_borrowed_io_bytes_total", "volume", id, "op", "write"); int64(got) < written {
		b.t.Errorf("%s has written %v bytes, %v at least were to be", id, got, written)
	}
	if got := metrics.Value("ringvol_borrowed_capacity_bytes", "volume", id); int64(got) < borrowedSize {
		b.t.Errorf("%s has %v bytes", id, got)
	}
}

// What a context may not say, and a node without the kernel's client. Nothing of it needs one.
func TestBorrowContexts(t *testing.T) {
	b := &borrowBed{bed: open(t, "ext4", 256*mib)}
	const key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	b.e = &rig.Export{Subsystem: rig.SubsystemPrefix + "a", Host: rig.HostPrefix + "b", Key: key, Port: "4420",
		HostID: "11111111-2222-4333-8444-555555555555", UUID: "01234567-89ab-4cde-8f01-23456789abcd"}
	b.v = b.d.Volume("far", rig.CapFor("ext4"), borrowedSize)
	b.v.ID = "fedcba98.far.0badcafe"
	b.v.PublishContext = b.e.Context("ext4")
	with := func(key, value string, want ...codes.Code) {
		t.Helper()
		was := b.v.PublishContext[key]
		b.v.PublishContext[key] = value
		err := b.v.Stage()
		b.refused(fmt.Sprintf("%s=%q", key, value), err, want...)
		if value != "" && strings.Contains(err.Error(), value) {
			t.Errorf("it says what it was given: %v", err)
		}
		b.v.PublishContext[key] = was
	}
	for _, address := range []string{"", "127.0.0.1", "127.0.0.1:0", "127.0.0.1,nqn=x:1", "127.0.0.1\n:1", "[::1:1", strings.Repeat("a", 300) + ":1"} {
		with("ringvol.dev/address", address, codes.InvalidArgument)
	}
	for _, name := range []string{"", "nqn.2014-08.org.nvmexpress:uuid:1", rig.SubsystemPrefix + "a,b", rig.SubsystemPrefix + "a b", rig.SubsystemPrefix + strings.Repeat("a", 300)} {
		with("ringvol.dev/subsystem", name, codes.InvalidArgument)
		with("ringvol.dev/host", name, codes.InvalidArgument)
	}
	with("ringvol.dev/key", "DHHC-1:00:secret,hostnqn=x:", codes.InvalidArgument)
	with("ringvol.dev/namespace", "../../x", codes.InvalidArgument)
	with("ringvol.dev/volume-mode", "file", codes.InvalidArgument)
	with("ringvol.dev/transport", "rdma", codes.FailedPrecondition)
	with("ringvol.dev/encryption", "luks3", codes.FailedPrecondition)
	with("ringvol.dev/encryption", "luks2", codes.InvalidArgument) // no key
	delete(b.v.PublishContext, "ringvol.dev/encryption")
	b.v.Cap = rig.BlockCap()
	b.refused("another mode", b.v.Stage(), codes.FailedPrecondition)
	b.v.Cap = rig.CapFor("ext4")
	if _, err := os.Stat("/dev/nvme-fabrics"); err != nil {
		err := b.v.Stage()
		b.refused("without the module", err, codes.FailedPrecondition)
		if !strings.Contains(err.Error(), "modprobe nvme-tcp") {
			t.Errorf("no word of the module: %v", err)
		}
	}
	b.noSecret()
	b.must(b.v.Unstage())
}

// Its life on the node that uses it, with a restart in between that the volume does not notice.
func TestBorrowedLife(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
		t.Run(kind, func(t *testing.T) {
			b := openBorrow(t, kind)
			b.probesSettled() // or what was written before is not counted
			b.must(b.v.Up())
			b.must(b.v.Stage()) // a repeat
			b.must(b.v.Publish())
			b.noSecret()
			sum, err := rig.Fill(b.v.Target, dataBytes, 1)
			b.must(err)
			b.must(rig.Check(b.v.Target, dataBytes, sum))
			if abnormal, text := b.condition(); abnormal {
				t.Errorf("condition: %s", text)
			}
			b.told("far-1", b.v.ID, b.e.Context(kind)["ringvol.dev/node"], dataBytes)
			stats, err := b.v.Stats()
			b.must(err)
			if total := stats.GetUsage()[0].GetTotal(); total < borrowedSize/2 || total > borrowedSize {
				t.Errorf("stats say %d bytes", total)
			}
			b.refused("unstage of what is published", b.v.Unstage(), codes.FailedPrecondition)

			// The owner has not grown it yet; then it has.
			const grown = borrowedSize + 64*mib
			_, err = b.nodeExpand(grown)
			b.refused("growth before the owner's", err, codes.Unavailable)
			b.must(b.e.Grow(grown))
			got, err := b.nodeExpand(grown)
			b.must(err)
			if got != grown {
				t.Errorf("grown to %d", got)
			}
			if space, err := rig.Space(b.v.Target); err != nil || space < borrowedSize*9/10+32*mib {
				t.Errorf("%d bytes after the growth (%v)", space, err)
			}

			b.must(b.d.Kill())
			b.must(b.d.Start())
			b.must(b.d.AwaitReady())
			b.must(rig.Check(b.v.Target, dataBytes, sum))
			if abnormal, text := b.condition(); abnormal {
				t.Errorf("condition after a restart: %s", text)
			}
			b.must(b.v.Stage())
			b.must(b.v.Publish())
			b.refused("unstage of what is published, after a restart", b.v.Unstage(), codes.FailedPrecondition)
			b.must(b.v.Down())
			b.nothing()
			b.must(b.v.Unstage()) // a repeat
			b.must(b.v.Up())
			b.must(rig.Check(b.v.Target, dataBytes, sum))
			b.must(b.v.Down())
			b.nothing()
			b.noSecret()
		})
	}
}

func TestBorrowedWholePublish(t *testing.T) {
	b := openBorrow(t, "ext4", "--staging", "off")
	b.v.Unstaged = true
	b.must(b.v.Up())
	sum, err := rig.Fill(b.v.Target, dataBytes, 2)
	b.must(err)
	second := b.otherTarget(b.v)
	b.must(b.v.PublishAt(second, true))
	b.must(rig.Check(second, dataBytes, sum))
	b.must(b.v.Unpublish())
	if len(b.e.Connections()) != 1 {
		t.Error("it is published still, and not connected")
	}
	b.must(b.v.UnpublishAt(second))
	b.nothing()
}

// Nodes that only read.
func TestBorrowedReaders(t *testing.T) {
	b := openBorrow(t, "ext4")
	b.must(b.v.Up())
	sum, err := rig.Fill(b.v.Target, dataBytes, 3)
	b.must(err)
	b.must(b.v.Down())
	before := sha256Of(t, b.e.Image)
	rig.WithMode(b.v.Cap, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	b.v.PublishContext["ringvol.dev/read-only"] = "true"
	b.must(b.v.Stage())
	b.must(b.v.PublishAt(b.v.Target, true))
	b.must(rig.Check(b.v.Target, dataBytes, sum))
	if err := os.WriteFile(filepath.Join(b.v.Target, "x"), nil, 0o600); err == nil {
		t.Error("it can be written to")
	}
	b.must(b.v.Down())
	b.nothing()
	if sha256Of(t, b.e.Image) != before {
		t.Error("reading it has changed it")
	}
	rig.WithMode(b.v.Cap, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	b.refused("a file system of many writers", b.v.Stage(), codes.InvalidArgument)
}

func sha256Of(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

func TestBorrowedRefusals(t *testing.T) {
	b := openBorrow(t, "ext4")
	b.must(b.v.Paths())
	with := func(key, value string, want ...codes.Code) {
		t.Helper()
		was := b.v.PublishContext[key]
		b.v.PublishContext[key] = value
		b.refused(key, b.v.Stage(), want...)
		b.v.PublishContext[key] = was
		b.nothing()
	}
	with("ringvol.dev/namespace", "00000000-0000-4000-8000-000000000000", codes.FailedPrecondition)
	with("ringvol.dev/host", rig.HostPrefix+"another", codes.FailedPrecondition)
	with("ringvol.dev/address", "127.0.0.1:9", codes.Unavailable)
	with("ringvol.dev/address", "no-such-host.invalid:4420", codes.Unavailable)
	with("ringvol.dev/address", "127.0.0.1,hostnqn=x:4420", codes.InvalidArgument)
	with("ringvol.dev/fs-type", "xfs", codes.FailedPrecondition)
	if b.e.Key != "" {
		with("ringvol.dev/key", "DHHC-1:00:c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2Vj:", codes.FailedPrecondition)
	}
	b.v.Cap = rig.CapFor("xfs")
	b.v.PublishContext["ringvol.dev/fs-type"] = "xfs"
	b.refused("a device that holds ext4", b.v.Stage(), codes.DataLoss)
	b.nothing()
	b.noSecret()
	delete(b.v.PublishContext, "ringvol.dev/transport")
	b.refused("no context", b.v.Stage(), codes.Unavailable)
}

// The owner goes for a while: I/O waits, the volume reads as abnormal, and all goes on when it is back.
func TestBorrowedOwnerReturns(t *testing.T) {
	b := openBorrow(t, "block")
	b.must(b.v.Up())
	sum, err := rig.Fill(b.v.Target, dataBytes, 4)
	b.must(err)
	b.must(b.e.Pull())
	b.awaitCondition(true, "node-far")
	written := make(chan error, 1)
	go func() {
		_, err := rig.Fill(b.v.Target, mib, 5)
		written <- err
	}()
	select {
	case err := <-written:
		t.Errorf("written while the owner is away: %v", err)
	case <-time.After(2 * time.Second):
	}
	b.must(b.e.Plug())
	b.must(<-written)
	b.awaitCondition(false, "well")
	again, err := rig.Fill(b.v.Target, dataBytes, 4)
	b.must(err)
	if again != sum {
		t.Error("another sum")
	}
	b.must(rig.Check(b.v.Target, dataBytes, sum))
	b.must(b.v.Down())
	b.nothing()
}

// It stays away for longer than --owner-timeout: errors, a condition that says so, and a way out.
func TestBorrowedOwnerIsLost(t *testing.T) {
	for _, kind := range []string{"ext4", "block"} {
		t.Run(kind, func(t *testing.T) {
			b := openBorrow(t, kind, "--owner-timeout", "6s")
			b.must(b.v.Up())
			_, err := rig.Fill(b.v.Target, dataBytes, 6)
			b.must(err)
			b.must(b.e.Pull())
			b.awaitCondition(true, "gone")
			// The kernel is at it when the condition comes.
			b.eventually(func() error {
				if left := b.e.Connections(); len(left) != 0 {
					return fmt.Errorf("still connected: %v", left)
				}
				return nil
			})
			if _, err := rig.Fill(b.v.Target, mib, 7); err == nil {
				t.Error("written to a volume that is lost")
			}
			b.refused("stage while it is published", b.v.Stage(), codes.FailedPrecondition)
			b.must(b.v.Down())
			b.nothing()
			b.refused("stage while its node is away", b.v.Stage(), codes.Unavailable)
			b.must(b.e.Plug())
			b.must(b.v.Up())
			_, err = rig.Fill(b.v.Target, dataBytes, 8)
			b.must(err)
			b.must(b.v.Down())
			b.nothing()
		})
	}
}

// The owner takes the namespace away, as it does to fence this node.
func TestBorrowedFenced(t *testing.T) {
	b := openBorrow(t, "block")
	b.must(b.v.Up())
	_, err := rig.Fill(b.v.Target, dataBytes, 9)
	b.must(err)
	b.must(b.e.Disable())
	b.awaitCondition(true, "gone")
	if file, err := os.OpenFile(b.v.Target, os.O_WRONLY|unix.O_DIRECT, 0); err == nil {
		if _, err = file.Write(make([]byte, 4096)); err == nil {
			t.Error("written after it was taken away")
		}
		file.Close()
	}
	b.must(b.v.Down())
	b.eventually(func() error {
		if len(covers()) > 0 {
			return fmt.Errorf("left: %v", covers())
		}
		return nil
	})
}

// What a crash leaves ends by itself, and nobody else's connection does.
func TestBorrowedLeftovers(t *testing.T) {
	b := openBorrow(t, "block")
	foreign, err := b.NewExport(2, "block", 64*mib)
	b.must(err)
	connect := func(e *rig.Export, host string) {
		t.Helper()
		file, err := os.OpenFile("/dev/nvme-fabrics", os.O_RDWR, 0)
		b.must(err)
		_, err = file.WriteString(e.Options(host))
		file.Close()
		b.must(err)
	}
	b.must(b.d.Kill())
	connect(b.e, b.e.Host)
	// A host that is not ringvol's: somebody's own.
	hand := "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
	b.must(foreign.Allow(hand))
	connect(foreign, hand)
	b.Defer(foreign.Disconnect)
	b.must(b.d.Start())
	b.must(b.d.AwaitReady())
	b.eventually(func() error {
		if names := b.e.Connections(); len(names) > 0 {
			return fmt.Errorf("still connected: %v", names)
		}
		return nil
	})
	if len(foreign.Connections()) != 1 {
		t.Error("somebody else's connection was ended")
	}
	// One that is in use does not end, whatever becomes of the driver.
	b.must(b.v.Up())
	b.must(b.d.Kill())
	b.must(b.d.Start())
	b.must(b.d.AwaitReady())
	time.Sleep(20 * time.Second)
	if len(b.e.Connections()) != 1 {
		t.Error("a connection in use was ended")
	}
	b.must(b.v.Down())
	b.nothing()
}
