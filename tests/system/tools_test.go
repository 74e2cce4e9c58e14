// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// run is what a tool printed and how it ended.
type run struct {
	out, err string
	code     int
}

// tool runs a command of the binary, with nothing of the caller's environment that it reads.
func tool(t *testing.T, env []string, args ...string) run {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return finish(t, toolCommand(ctx, env, args...))
}

func toolCommand(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, rig.Binary(), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8",
		"ASAN_OPTIONS=detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS=halt_on_error=1"}, env...)
	return cmd
}

func finish(t *testing.T, cmd *exec.Cmd) run {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	r := run{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	if strings.Contains(r.err, "Sanitizer") || strings.Contains(r.err, "runtime error") {
		t.Fatalf("%v:\n%s", cmd.Args, r.err)
	}
	return r
}

func (b *bed) endpoint() string { return "unix://" + b.d.Socket }

func (b *bed) poolArg() string { return b.pool.Name + "=" + b.pool.Path }

type listedVolume struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Pool         string `json:"pool"`
	AccessType   string `json:"access_type"`
	FS           string `json:"fs"`
	Provisioning string `json:"provisioning"`
	Size         int64  `json:"size_bytes"`
	Allocated    int64  `json:"allocated_bytes"`
	BlockSize    int    `json:"block_size"`
	Created      string `json:"created"`
	Source       *struct{ Kind, ID string }
	Device       *struct {
		Type, Path   string
		Major, Minor uint32
		DirectIO     bool `json:"direct_io"`
	}
	Mounts []struct {
		Path     string
		ReadOnly bool `json:"read_only"`
	}
	Attachments []struct {
		NodeID   string `json:"node_id"`
		ReadOnly bool   `json:"read_only"`
		Exported bool
	}
	Conditions []struct{ Message, Since string }
	IO         *struct {
		Exact bool
		Ops   []struct {
			Op         string
			Ops, Bytes uint64
		}
	}
}

type listed struct {
	Driver *struct {
		Version, Probes string
		Pid             int
		Uptime          float64 `json:"uptime_seconds"`
		Adopted         bool
	}
	Pools []struct {
		Name, Path, State, Why string
		Volumes, Snapshots     int
		Room                   struct {
			Capacity    int64 `json:"capacity_bytes"`
			Provisioned int64 `json:"provisioned_bytes"`
		}
		Features struct {
			FS      string
			Reflink bool
		}
	}
	Operations []struct {
		Number                uint64
		Method, Subject, Step string
	}
	Volumes   []listedVolume
	Snapshots []struct {
		ID, Name, Pool string
		Source         string `json:"source_volume_id"`
		Size           int64  `json:"size_bytes"`
		Allocated      int64  `json:"allocated_bytes"`
	}
	Quarantined []struct{ Pool, Kind, Key, Why string }
}

func (l *listed) volume(name string) *listedVolume {
	for i := range l.Volumes {
		if l.Volumes[i].Name == name {
			return &l.Volumes[i]
		}
	}
	return nil
}

func parseList(t *testing.T, r run) *listed {
	t.Helper()
	var l listed
	if err := json.Unmarshal([]byte(r.out), &l); err != nil || r.code != 0 {
		t.Fatalf("ls: status %d, %v: %s%s", r.code, err, r.err, r.out)
	}
	return &l
}

func (b *bed) ls(args ...string) *listed {
	b.t.Helper()
	return parseList(b.t, tool(b.t, nil, append([]string{"ls", "--json", "--endpoint", b.endpoint()}, args...)...))
}

// sameAsCSI compares volumes with what ListVolumes says, order included.
func (b *bed) sameAsCSI(l *listed) {
	b.t.Helper()
	reply, err := b.c.ListVolumes(short(b.t), &csi.ListVolumesRequest{})
	b.must(err)
	if len(reply.Entries) != len(l.Volumes) {
		b.t.Fatalf("ls has %d volumes, ListVolumes %d", len(l.Volumes), len(reply.Entries))
	}
	for i, e := range reply.Entries {
		v, w := &l.Volumes[i], e.GetVolume()
		if v.ID != w.GetVolumeId() || v.Size != w.GetCapacityBytes() {
			b.t.Errorf("ls: %s of %d bytes, ListVolumes: %s of %d", v.ID, v.Size, w.GetVolumeId(), w.GetCapacityBytes())
		}
		if inUse := len(e.GetStatus().GetPublishedNodeIds()) > 0; inUse != (v.Device != nil) {
			b.t.Errorf("%s: in use %v, device %v", v.Name, inUse, v.Device)
		}
		if bad := e.GetStatus().GetVolumeCondition().GetAbnormal(); bad != (len(v.Conditions) > 0) {
			b.t.Errorf("%s: abnormal %v, conditions %v", v.Name, bad, v.Conditions)
		}
	}
}

func TestLs(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	mounted, raw := b.volume("mounted", "ext4"), b.volume("raw", "block")
	b.must(mounted.Up())
	b.must(raw.Up())
	snapshot, err := mounted.Snapshot("frozen-in-time")
	b.must(err)
	restored := b.volume("restored", "ext4")
	restored.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
	b.must(restored.Create())
	thick := b.volume("thick one \x1b[31m\u202etext", "block")
	thick.Params = map[string]string{"provisioning": "thick"}
	b.must(thick.Create())

	l := b.ls()
	b.sameAsCSI(l)
	if l.Driver == nil || l.Driver.Pid != b.d.Pid() || !l.Driver.Adopted || l.Driver.Uptime <= 0 {
		t.Errorf("driver: %+v", l.Driver)
	}
	if len(l.Pools) != 1 || l.Pools[0].State != "ready" || l.Pools[0].Volumes != 4 || l.Pools[0].Snapshots != 1 ||
		l.Pools[0].Features.FS != "xfs" || !l.Pools[0].Features.Reflink || l.Pools[0].Path != b.pool.Path ||
		l.Pools[0].Room.Provisioned != mounted.Got+raw.Got+restored.Got+thick.Got {
		t.Errorf("pools: %+v", l.Pools)
	}
	if len(l.Snapshots) != 1 || l.Snapshots[0].ID != snapshot.GetSnapshotId() || l.Snapshots[0].Source != mounted.ID {
		t.Errorf("snapshots: %+v", l.Snapshots)
	}
	v := l.volume("mounted")
	paths := []string{}
	for _, m := range v.Mounts {
		paths = append(paths, m.Path)
	}
	if !slices.Contains(paths, mounted.Staging) || !slices.Contains(paths, mounted.Target) || len(paths) != 2 {
		t.Errorf("mounts of mounted: %q", paths)
	}
	if v.AccessType != "mount" || v.FS != "ext4" || v.Provisioning != "thin" || v.Source != nil || v.Device.Type != "loop" ||
		!slices.Contains(rig.LoopsBelow(b.pool.Path), v.Device.Path) {
		t.Errorf("mounted: %+v %+v", v, v.Device)
	}
	if created, err := time.Parse(time.RFC3339Nano, v.Created); err != nil || time.Since(created) > time.Hour {
		t.Errorf("created %q: %v", v.Created, err)
	}
	if v = l.volume("raw"); v.AccessType != "block" || v.FS != "" || v.Device == nil || len(v.Mounts) == 0 {
		t.Errorf("raw: %+v", v)
	}
	if v = l.volume("restored"); v.Source == nil || v.Source.Kind != "snapshot" || v.Source.ID != snapshot.GetSnapshotId() ||
		v.Device != nil || v.Mounts == nil || v.IO != nil {
		t.Errorf("restored: %+v", v)
	}
	if v = l.volume(thick.Name); v == nil || v.Provisioning != "thick" || v.Allocated < thick.Got {
		t.Errorf("thick: %+v", v)
	}

	// What is written shows: the pools are measured for who asks.
	was := l.volume("mounted").Allocated
	_, err = rig.Fill(mounted.Target, 8*mib, 3)
	b.must(err)
	b.eventually(func() error {
		if is := b.ls().volume("mounted").Allocated; is < was+8*mib {
			return fmt.Errorf("%d bytes allocated, were %d", is, was)
		}
		return nil
	})

	// For people: all of it when piped, and nothing that a terminal would obey.
	text := tool(t, nil, "ls", "--endpoint", b.endpoint())
	if text.code != 0 || text.err != "" {
		t.Errorf("status %d, %q", text.code, text.err)
	}
	for _, want := range []string{"frozen-in-time", mounted.Staging + " (and 1 more)", `thick one \x1b[31m\u202etext`,
		l.volume("raw").Device.Path, "POOL", "CONDITION"} {
		if !strings.Contains(text.out, want) {
			t.Errorf("no %q in\n%s", want, text.out)
		}
	}
	if strings.ContainsAny(text.out, "\x1b\u202e") {
		t.Errorf("controls in %q", text.out)
	}

	// A driver that only knows the node has the same to say.
	b.must(raw.Down())
	b.must(mounted.Gone())
	b.must(restored.Delete())
	b.must(raw.Delete())
	b.must(thick.Delete())
	b.must(b.d.DeleteSnapshot(snapshot.GetSnapshotId()))
}

func TestLsWithoutADriver(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v, other := b.volume("kept", "ext4"), b.volume("other", "block")
	b.must(v.Up())
	b.must(other.Create())
	snapshot, err := v.Snapshot("snap")
	b.must(err)
	online := b.ls()
	b.must(b.d.Term())
	b.d.Disconnect()

	r := tool(t, nil, "ls", "--json", "--endpoint", b.endpoint(), "--pool", b.poolArg())
	l := parseList(t, r)
	if !strings.Contains(r.err, "no driver listens") || strings.Count(r.err, "\n") != 1 {
		t.Errorf("standard error: %q", r.err)
	}
	if l.Driver != nil || len(l.Pools) != 1 || l.Pools[0].State != "ready" || l.Pools[0].Volumes != 2 {
		t.Errorf("offline: %+v", l)
	}
	for _, name := range []string{"kept", "other"} {
		was, is := online.volume(name), l.volume(name)
		if is == nil || is.ID != was.ID || is.Size != was.Size || is.FS != was.FS || is.Created != was.Created ||
			(is.Device == nil) != (was.Device == nil) || len(is.Mounts) != len(was.Mounts) {
			t.Errorf("%s was %+v, is %+v", name, was, is)
		}
		if is != nil && is.Device != nil && is.Device.Path != was.Device.Path {
			t.Errorf("device was %v, is %v", was.Device, is.Device)
		}
	}
	if len(l.Snapshots) != 1 || l.Snapshots[0].ID != snapshot.GetSnapshotId() {
		t.Errorf("snapshots: %+v", l.Snapshots)
	}
	// The environment names the pools as it does for the driver.
	r = tool(t, []string{"RINGVOL_POOLS=x=" + b.pool.Path + ",overcommit=2", "CSI_ENDPOINT=" + b.endpoint()}, "ls", "--json")
	if l = parseList(t, r); len(l.Volumes) != 2 || l.Pools[0].Name != "x" {
		t.Errorf("by the environment: %+v", l)
	}
	// No driver and no pool is a failure, said twice over.
	r = tool(t, nil, "ls", "--endpoint", b.endpoint(), "--pool", b.Path("nothing"))
	if r.code != 1 || !strings.Contains(r.err, "nothing") || !strings.Contains(r.out, "missing") {
		t.Errorf("without a pool: %+v", r)
	}
	// A driver finds the pool as it was: reading took no lock and left nothing.
	b.d.PoolOptions = ""
	b.start()
	b.must(v.Gone())
	b.must(other.Delete())
	b.must(b.d.DeleteSnapshot(snapshot.GetSnapshotId()))
}

func TestLsOfAThousand(t *testing.T) {
	b := newBed(t, "xfs", 4<<30)
	b.d.PoolOptions = ",init,overcommit=100"
	b.start()
	const count = 1000
	volumes := make([]*rig.Volume, count)
	for i := range volumes {
		volumes[i] = b.d.Volume(fmt.Sprintf("v-%04d", i), rig.BlockCap(), 16*mib)
	}
	each := func(call func(v *rig.Volume) error) {
		t.Helper()
		for from := 0; from < count; from += 50 {
			b.must(errors.Join(atOnce(50, func(i int) error { return call(volumes[from+i]) })...))
		}
	}
	each((*rig.Volume).Create)
	l := b.ls()
	if len(l.Volumes) != count {
		t.Fatalf("%d volumes", len(l.Volumes))
	}
	b.sameAsCSI(l)
	if text := tool(t, nil, "ls", "--endpoint", b.endpoint()); strings.Count(text.out, "\n") != count+4 {
		t.Errorf("%d lines for %d volumes", strings.Count(text.out, "\n"), count)
	}

	// Deleted while they are listed: what is listed is whole, and those that stay are there.
	var wait sync.WaitGroup
	wait.Go(func() { each((*rig.Volume).Delete) })
	for left := count; left > 0; {
		l = b.ls()
		if left < len(l.Volumes) {
			t.Errorf("%d volumes after %d", len(l.Volumes), left)
		}
		left = len(l.Volumes)
		seen := map[string]bool{}
		for _, v := range l.Volumes {
			if seen[v.ID] || v.Size != 16*mib || v.Name == "" {
				t.Fatalf("twice, or not whole: %+v", v)
			}
			seen[v.ID] = true
		}
		if t.Failed() {
			break
		}
	}
	wait.Wait()
}

// As grpcurl would: the service is found by reflection, asked for some kinds, and each answer is
// one thing.
func TestInspectByReflection(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v, idle := b.volume("busy", "ext4"), b.volume("idle", "block")
	b.must(v.Up())
	b.must(idle.Create())
	service := b.reflected("ringvol.v1.Inspect").(protoreflect.ServiceDescriptor)
	list := service.Methods().ByName("List")
	if list == nil || !list.IsStreamingServer() {
		t.Fatal("no streaming List")
	}
	ask := func(request string) []map[string]any {
		t.Helper()
		in := dynamicpb.NewMessage(list.Input())
		b.must(protojson.Unmarshal([]byte(request), in))
		stream, err := b.c.Conn.NewStream(short(t), &grpc.StreamDesc{ServerStreams: true}, "/ringvol.v1.Inspect/List")
		b.must(err)
		b.must(stream.SendMsg(in))
		b.must(stream.CloseSend())
		var all []map[string]any
		for {
			out := dynamicpb.NewMessage(list.Output())
			if err := stream.RecvMsg(out); err != nil {
				if err.Error() != "EOF" {
					b.refused("listing", err, codes.OK)
				}
				return all
			}
			text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(out)
			b.must(err)
			var one map[string]any
			b.must(json.Unmarshal(text, &one))
			if len(one) != 1 {
				t.Errorf("not one thing: %s", text)
			}
			all = append(all, one)
		}
	}
	if all := ask(`{}`); len(all) != 4 || all[0]["driver"] == nil || all[1]["pool"] == nil || all[2]["volume"] == nil {
		t.Errorf("all: %v", all)
	}
	only := ask(`{"kinds": ["VOLUMES"], "attached_only": true, "histograms": true}`)
	if len(only) != 1 || only[0]["volume"].(map[string]any)["name"] != "busy" {
		t.Errorf("attached volumes: %v", only)
	}
	if ops := only[0]["volume"].(map[string]any)["io"]; ops != nil && len(ops.(map[string]any)["ops"].([]any)) != 4 {
		t.Errorf("io: %v", ops)
	}
	in := dynamicpb.NewMessage(list.Input())
	kinds := in.Mutable(list.Input().Fields().ByName("kinds")).List()
	kinds.Append(protoreflect.ValueOfEnum(77))
	err := b.c.Conn.Invoke(short(t), "/ringvol.v1.Inspect/List", in, dynamicpb.NewMessage(list.Output()))
	b.refused("an unknown kind", err, codes.InvalidArgument)
	b.must(v.Gone())
	b.must(idle.Delete())
}

// reflected looks a symbol up as grpcurl does.
func (b *bed) reflected(symbol string) protoreflect.Descriptor {
	b.t.Helper()
	stream, err := reflectpb.NewServerReflectionClient(b.c.Conn).ServerReflectionInfo(short(b.t))
	b.must(err)
	b.must(stream.Send(&reflectpb.ServerReflectionRequest{
		MessageRequest: &reflectpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol},
	}))
	reply, err := stream.Recv()
	b.must(err)
	set := &descriptorpb.FileDescriptorSet{}
	for _, data := range reply.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := &descriptorpb.FileDescriptorProto{}
		b.must(proto.Unmarshal(data, file))
		set.File = append(set.File, file)
	}
	files, err := protodesc.NewFiles(set)
	b.must(err)
	found, err := files.FindDescriptorByName(protoreflect.FullName(symbol))
	b.must(err)
	return found
}

func TestToolsOptions(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"ls", "--help"}, 0, "usage: ringvol ls"},
		{[]string{"ls", "--jsn"}, 2, "did you mean '--json'?"},
		{[]string{"ls", "extra"}, 2, "extra"},
		{[]string{"ls", "--pool", "relative/path"}, 2, "absolute"},
		{[]string{"ls", "--endpoint"}, 2, "--endpoint"},
		{[]string{"ls", "--endpoint", "http://x"}, 1, "no endpoint"},
		{[]string{"top", "--help"}, 0, "usage: ringvol top"},
		{[]string{"top", "--sort", "iopss"}, 2, "did you mean 'iops'?"},
		{[]string{"top", "--sort", "size"}, 2, "not one of"},
		{[]string{"top", "--interval", "0.01"}, 2, "0.1 to 3600"},
		{[]string{"top", "--interval", "inf"}, 2, "0.1 to 3600"},
		{[]string{"top", "--interval", " 1"}, 2, "0.1 to 3600"},
		{[]string{"top", "--onc"}, 2, "did you mean '--once'?"},
		{[]string{"doctor", "--help"}, 0, "usage: ringvol doctor"},
		{[]string{"doctor", "--kubelet-root", "x"}, 2, "absolute"},
		{[]string{"doctor", "--jso"}, 2, "did you mean '--json'?"},
		{[]string{"check", "--help"}, 0, "4 something was and all of it is repaired"},
		{[]string{"check", "--repiar"}, 2, "did you mean '--repair'?"},
		{[]string{"key", "ad"}, 2, "unknown command 'ad'"},
		{[]string{"key"}, 2, "no command"},
		{[]string{"lss"}, 2, "did you mean 'ls'?"},
	} {
		r := tool(t, nil, c.args...)
		if r.code != c.code || !strings.Contains(r.out+r.err, c.says) {
			t.Errorf("%q: status %d, %q, want %d and %q", c.args, r.code, r.out+r.err, c.code, c.says)
		}
	}
}

// A place that cannot be read is a raw pool's trouble: no tool speaks of ringvol.pool or a mount.
func TestToolsRawPlace(t *testing.T) {
	for name, place := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"a link":  func(path string) error { return os.Symlink("/etc/hostname", path) },
		"no disk": func(path string) error {
			return os.WriteFile(path, []byte("ringvol-disk 1\npool=e3d8350f-2844-4f9d-8c6a-129eeabadc0e\n"+
				"disk=8147ed4b-dc32-49b0-a481-edac4a68a622\ndevice=/dev/none\n"), 0o600)
		},
	} {
		dir := t.TempDir()
		if err := place(filepath.Join(dir, "ringvol.disk")); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"doctor", "check"} {
			r := tool(t, nil, command, "--pool", dir)
			if r.code != 1 || strings.Contains(r.out, "ringvol.pool") || strings.Contains(r.out, "the pool's file system") {
				t.Errorf("%s, %s: status %d: %s", name, command, r.code, r.out)
			}
		}
	}
}
