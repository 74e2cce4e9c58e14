// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

var remoteClass = map[string]string{"attach": "remote"}

func openExporter(t *testing.T, args ...string) *bed {
	t.Helper()
	if why := rig.HasNVMe(); why != "" {
		t.Skip(why)
	}
	address, err := rig.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	before := rig.NvmetSubsystems()
	b := newBed(t, "xfs", 1<<30)
	b.d.Args = append([]string{"--attach", "--export-address", address}, args...)
	b.start()
	t.Cleanup(func() {
		left := slices.DeleteFunc(rig.NvmetSubsystems(), func(s string) bool { return slices.Contains(before, s) })
		if len(left) > 0 {
			t.Errorf("subsystems are left: %v", left)
		}
	})
	return b
}

func (b *bed) remote(name, kind string) *rig.Volume {
	b.t.Helper()
	v := b.volume(name, kind)
	v.Params = remoteClass
	b.must(v.Create())
	return v
}

func subsystemOf(context map[string]string) string {
	return rig.NvmetRoot + "/subsystems/" + context["ringvol.dev/subsystem"]
}

func (b *bed) fileSays(path, want string) {
	b.t.Helper()
	text, err := os.ReadFile(path)
	b.must(err)
	if got := strings.TrimSpace(string(text)); got != want {
		b.t.Errorf("%s is %q instead of %q", path, got, want)
	}
}

func (b *bed) connectTo(context map[string]string, more ...string) *rig.NvmeClient {
	b.t.Helper()
	c, err := rig.NvmeConnect(context, more...)
	b.must(err)
	b.Defer(c.Disconnect)
	return c
}

const blockBytes = 4096

func writeBlock(f *os.File, block int64, fill byte) error {
	data, err := unix.Mmap(-1, 0, blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(data) }()
	copy(data, bytes.Repeat([]byte{fill}, blockBytes))
	_, err = f.WriteAt(data, block*blockBytes)
	return err
}

func (b *bed) openDirect(device string) *os.File {
	b.t.Helper()
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_DIRECT, 0)
	b.must(err)
	return f
}

// imageHas says whether a block of the volume's image is filled with a byte.
func (b *bed) imageHas(v *rig.Volume, block int64, fill byte) bool {
	b.t.Helper()
	f, err := os.Open(filepath.Join(b.pool.Path, "volumes", v.Name))
	b.must(err)
	defer f.Close()
	data := make([]byte, blockBytes)
	_, err = f.ReadAt(data, block*blockBytes)
	b.must(err)
	return bytes.Equal(data, bytes.Repeat([]byte{fill}, blockBytes))
}

// A volume is given to another node: exported for it alone, through a killed driver, and gone without a trace.
func TestExportLife(t *testing.T) {
	b := openExporter(t)
	v := b.remote("exported", "block")
	context, err := giveTo(t, b.c, v, "elsewhere", false)
	b.must(err)
	for _, key := range []string{"transport", "address", "subsystem", "host", "host-id", "key", "namespace", "node"} {
		if context["ringvol.dev/"+key] == "" {
			t.Errorf("no %s in %v", key, context)
		}
	}
	dir := subsystemOf(context)
	b.fileSays(dir+"/attr_allow_any_host", "0")
	b.fileSays(dir+"/namespaces/1/enable", "1")
	b.fileSays(dir+"/namespaces/1/device_uuid", context["ringvol.dev/namespace"])
	hosts, err := os.ReadDir(dir + "/allowed_hosts")
	b.must(err)
	if len(hosts) != 1 || hosts[0].Name() != context["ringvol.dev/host"] {
		t.Errorf("it lets in %v", hosts)
	}
	key := rig.NvmetRoot + "/hosts/" + context["ringvol.dev/host"] + "/dhchap_key"
	b.fileSays(key, context["ringvol.dev/key"])
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others can read the key: %v %v", info, err)
	}

	c := b.connectTo(context)
	f := b.openDirect(c.Device)
	b.must(writeBlock(f, 7, 'a'))
	if !b.imageHas(v, 7, 'a') {
		t.Error("what the other node wrote is not in the image")
	}
	b.must(b.d.Kill())
	b.must(writeBlock(f, 8, 'b'))
	b.start()
	b.must(writeBlock(f, 9, 'c'))
	var again map[string]string
	b.eventually(func() error { // ABORTED while its exports are looked at, as the attacher takes it
		again, err = giveTo(t, b.c, v, "elsewhere", false)
		return err
	})
	if fmt.Sprint(again) != fmt.Sprint(context) {
		t.Errorf("after a restart the context is %v, it was %v", again, context)
	}
	b.refused("DeleteVolume of what is exported", v.Delete(), codes.FailedPrecondition)
	b.refused("NodeStageVolume beside another node", v.Stage(), codes.FailedPrecondition)
	_, err = giveTo(t, b.c, v, "third", false)
	b.refused("a third node", err, codes.FailedPrecondition)
	_, err = giveTo(t, b.c, v, b.d.Node, false)
	b.refused("its own node", err, codes.FailedPrecondition)
	// Its snapshot is taken and its device grows while it is written to.
	snapshot, err := v.Snapshot("of-exported")
	b.must(err)
	b.must(v.Expand(64*mib, false))
	b.eventually(func() error {
		size, err := f.Seek(0, 2)
		if err == nil && size != 64*mib {
			err = fmt.Errorf("the other node sees %d bytes", size)
		}
		return err
	})
	b.must(writeBlock(f, 64*mib/blockBytes-1, 'd'))
	b.must(takeFrom(t, b.c, v, "elsewhere"))
	if err := writeBlock(f, 10, 'e'); err == nil {
		t.Error("a node that was unpublished still writes")
	}
	f.Close()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the subsystem is still there: %v", err)
	}
	if b.imageHas(v, 10, 'e') {
		t.Error("what a fenced node wrote is in the image")
	}
	b.must(takeFrom(t, b.c, v, "elsewhere"))
	log, err := os.ReadFile(b.d.Log)
	b.must(err)
	if bytes.Contains(log, []byte(context["ringvol.dev/key"])) {
		t.Error("the key is in the log")
	}
	_, err = b.c.DeleteSnapshot(short(t), &csi.DeleteSnapshotRequest{SnapshotId: snapshot.GetSnapshotId()})
	b.must(err)
	b.must(v.Delete())
}

// A wrong key, and another host, are let into nothing.
func TestExportLetsNobodyElseIn(t *testing.T) {
	b := openExporter(t)
	v := b.remote("guarded", "block")
	context, err := giveTo(t, b.c, v, "elsewhere", false)
	b.must(err)
	for _, change := range []struct{ key, value string }{
		{"ringvol.dev/key", ""},
		{"ringvol.dev/key", "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"},
		{"ringvol.dev/host", "nqn.2014-08.org.nvmexpress:uuid:0f2e4d6c-8b0a-4192-a3b4-c5d6e7f80910"},
	} {
		other := map[string]string{}
		for key, value := range context {
			other[key] = value
		}
		other[change.key] = change.value
		c, err := rig.NvmeConnect(other)
		if err == nil || errors.Is(err, rig.ErrNoDevice) {
			t.Errorf("%v was let in: %v", change, err)
		}
		if err == nil {
			b.must(c.Disconnect())
		}
	}
	b.must(takeFrom(t, b.c, v, ""))
	b.must(v.Delete())
}

// Nothing that is acknowledged to a node is from after the answer that it was taken away.
func TestExportFences(t *testing.T) {
	b := openExporter(t)
	v := b.remote("fenced", "block")
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		context, err := giveTo(t, b.c, v, "elsewhere", false)
		b.must(err)
		c := b.connectTo(context, "fast_io_fail_tmo=0")
		f := b.openDirect(c.Device)
		var answered atomic.Bool
		var late, written atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ; i++ {
				after := answered.Load()
				if writeBlock(f, int64(i%256), byte(round+1)) != nil {
					return
				}
				written.Add(1)
				if after {
					late.Add(1)
				}
			}
		}()
		b.eventually(func() error {
			if written.Load() < 20 {
				return fmt.Errorf("%d writes", written.Load())
			}
			return nil
		})
		b.must(takeFrom(t, b.c, v, "elsewhere"))
		answered.Store(true)
		before := b.imageSum(v)
		<-done
		f.Close()
		b.must(c.Disconnect())
		if late.Load() != 0 {
			t.Errorf("round %d: %d writes were acknowledged after the answer", round, late.Load())
		}
		if after := b.imageSum(v); after != before {
			t.Errorf("round %d: the image has changed after the answer", round)
		}
	}
	b.must(v.Delete())
}

func (b *bed) imageSum(v *rig.Volume) string {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.pool.Path, "volumes", v.Name))
	b.must(err)
	var sum uint64
	for i, c := range data[:256*blockBytes] {
		sum = sum*31 + uint64(c) + uint64(i&1)
	}
	return fmt.Sprint(sum)
}

// After a reboot what is attached to other nodes is exported again, and the clients go on.
func TestExportAfterReboot(t *testing.T) {
	b := openExporter(t)
	v := b.remote("rebooted", "ext4") // without a guard over its device
	context, err := giveTo(t, b.c, v, "elsewhere", false)
	b.must(err)
	c := b.connectTo(context)
	f := b.openDirect(c.Device)
	defer f.Close()
	b.must(writeBlock(f, 1, 'a'))
	b.must(b.d.Kill())
	b.endExport(context)
	reboot(b)
	b.start()
	b.must(writeBlock(f, 2, 'b'))
	if !b.imageHas(v, 2, 'b') {
		t.Error("what the client wrote after the reboot is not in the image")
	}
	f.Close()
	b.must(c.Disconnect())
	b.must(takeFrom(t, b.c, v, ""))
	b.must(v.Delete())
}

// closePort ends a port that has nothing but its keeper any more.
func (b *bed) closePort(subsystems string) {
	b.t.Helper()
	left, err := filepath.Glob(subsystems + "/*")
	b.must(err)
	if len(left) == 1 && strings.Contains(left[0], ":keeper.") {
		b.must(os.Remove(left[0]))
		b.must(os.Remove(filepath.Dir(subsystems)))
		b.must(os.Remove(rig.NvmetRoot + "/subsystems/" + filepath.Base(left[0])))
	}
}

// endExport takes it away by hand, as a reboot does.
func (b *bed) endExport(context map[string]string) {
	b.t.Helper()
	dir := subsystemOf(context)
	links, err := filepath.Glob(rig.NvmetRoot + "/ports/*/subsystems/" + context["ringvol.dev/subsystem"])
	b.must(err)
	for _, link := range links {
		b.must(os.Remove(link))
		b.closePort(filepath.Dir(link))
	}
	b.must(os.Remove(dir + "/allowed_hosts/" + context["ringvol.dev/host"]))
	b.must(os.WriteFile(dir+"/namespaces/1/enable", []byte("0"), 0))
	b.must(os.Remove(dir + "/namespaces/1"))
	b.must(os.Remove(dir))
	b.must(os.Remove(rig.NvmetRoot + "/hosts/" + context["ringvol.dev/host"]))
}

// An export that no attachment tells of is ended. Subsystems of others, and of pools that are served elsewhere, are not
// touched.
func TestExportWithoutAttachment(t *testing.T) {
	b := openExporter(t)
	v := b.remote("orphan", "block")
	context, err := giveTo(t, b.c, v, "elsewhere", false)
	b.must(err)
	foreign := []string{"nqn.2014-08.org.example:disk",
		"nqn.2026-11.dev.ringvol:volume.01234567.0f2e4d6c-8b0a-4192-a3b4-c5d6e7f80910"}
	for _, name := range foreign {
		dir := rig.NvmetRoot + "/subsystems/" + name
		b.must(os.Mkdir(dir, 0o755))
		defer os.Remove(dir)
	}
	b.must(b.d.Kill())
	b.must(unix.Removexattr(filepath.Join(b.pool.Path, "volumes", v.Name), "trusted.ringvol.attachments"))
	b.start()
	b.eventually(func() error {
		if _, err := os.Stat(subsystemOf(context)); !errors.Is(err, os.ErrNotExist) {
			return errors.New("the export without attachment is there")
		}
		return nil
	})
	for _, name := range foreign {
		if _, err := os.Stat(rig.NvmetRoot + "/subsystems/" + name); err != nil {
			t.Errorf("%s was touched: %v", name, err)
		}
		b.must(os.Remove(rig.NvmetRoot + "/subsystems/" + name))
	}
	// Its device is left: the volume's own node takes it over.
	b.must(v.Stage())
	b.must(v.Unstage())
	b.must(v.Delete())
}

// Both have a volume for many writers: the own node's unstage leaves the other one's device alone.
func TestExportBesideOwnNode(t *testing.T) {
	b := openExporter(t)
	v := b.volume("shared", "block")
	v.Params = remoteClass
	v.Cap = rig.WithMode(rig.BlockCap(), csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	b.must(v.Create())
	context, err := giveTo(t, b.c, v, "elsewhere", false)
	b.must(err)
	_, err = giveTo(t, b.c, v, b.d.Node, false)
	b.must(err)
	c := b.connectTo(context)
	f := b.openDirect(c.Device)
	b.must(v.Stage())
	b.must(v.Publish())
	b.must(writeBlock(f, 3, 'x'))
	own := b.openDirect(v.Target)
	b.must(writeBlock(own, 4, 'y'))
	own.Close()
	b.must(v.Unpublish())
	b.must(v.Unstage())
	b.must(writeBlock(f, 5, 'z'))
	for i, fill := range []byte("xyz") {
		if !b.imageHas(v, int64(i+3), fill) {
			t.Errorf("block %d has not %c", i+3, fill)
		}
	}
	b.must(takeFrom(t, b.c, v, b.d.Node))
	b.must(writeBlock(f, 6, 'w'))
	f.Close()
	b.must(c.Disconnect())
	b.must(takeFrom(t, b.c, v, ""))
	b.must(v.Delete())
}

// Two drivers of one machine, each with its pool, address and exports: neither ends the other's.
func TestExportTwoDrivers(t *testing.T) {
	b := openExporter(t)
	other := openExporter(t)
	v, w := b.remote("first", "block"), other.remote("second", "block")
	one, err := giveTo(t, b.c, v, "elsewhere", false)
	b.must(err)
	two, err := giveTo(t, other.c, w, "elsewhere", false)
	b.must(err)
	b.must(b.d.Kill())
	b.start()
	time.Sleep(time.Second)
	for _, context := range []map[string]string{one, two} {
		b.fileSays(subsystemOf(context)+"/namespaces/1/enable", "1")
	}
	b.must(takeFrom(t, b.c, v, ""))
	b.fileSays(subsystemOf(two)+"/namespaces/1/enable", "1")
	b.must(takeFrom(t, other.c, w, ""))
	b.must(v.Delete())
	b.must(w.Delete())
}
