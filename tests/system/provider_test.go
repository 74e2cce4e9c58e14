// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// providerBed is a driver with a provider of storage, and systemd's end of it.
type providerBed struct {
	*bed
	socket, mounts string
}

func newProviderBed(t *testing.T, fs string, args ...string) *providerBed {
	t.Helper()
	b := &providerBed{bed: newBed(t, fs, 2<<30)}
	b.socket, b.mounts = b.Path("provider", "ringvol"), b.Path("provider-mounts")
	b.d.Args = append([]string{"--storage-provider", b.socket, "--storage-provider-mounts", b.mounts, "--storage-provider-idle", "1",
		"--block-on-loop"}, args...)
	for i := range b.d.Args {
		b.d.Args[i] = strings.ReplaceAll(b.d.Args[i], "KUBELET", b.d.Kubelet)
	}
	b.start()
	return b
}

const storageProvider = "io.systemd.StorageProvider."

// varlinkError is an error as the peer tells it.
type varlinkError struct {
	Name       string
	Parameters map[string]any
}

func (e *varlinkError) Error() string { return fmt.Sprint(e.Name, " ", e.Parameters) }

// varlink is a connection. What came with a descriptor brings it along.
type varlink struct {
	conn  *net.UnixConn
	in    []byte
	files []*os.File
}

func dialVarlink(socket string) (*varlink, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	return &varlink{conn: conn}, err
}

func (v *varlink) close() {
	v.conn.Close()
	for _, f := range v.files {
		f.Close()
	}
}

func (v *varlink) send(method string, parameters any, flags string) error {
	text, err := json.Marshal(parameters)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(v.conn, "{\"method\":%q,\"parameters\":%s%s}\x00", method, text, flags)
	return err
}

// receive reads one answer.
func (v *varlink) receive() (parameters map[string]any, continues bool, err error) {
	for {
		if end := bytes.IndexByte(v.in, 0); end >= 0 {
			var answer struct {
				Error      string
				Continues  bool
				Parameters map[string]any
			}
			err = json.Unmarshal(v.in[:end], &answer)
			v.in = v.in[end+1:]
			if err == nil && answer.Error != "" {
				err = &varlinkError{answer.Error, answer.Parameters}
			}
			return answer.Parameters, answer.Continues, err
		}
		data, control := make([]byte, 4096), make([]byte, 256)
		n, controls, _, _, err := v.conn.ReadMsgUnix(data, control)
		if err != nil {
			return nil, false, err
		}
		if n == 0 {
			return nil, false, errors.New("the connection is over")
		}
		v.in = append(v.in, data[:n]...)
		messages, err := unix.ParseSocketControlMessage(control[:controls])
		if err != nil {
			return nil, false, err
		}
		for _, message := range messages {
			fds, err := unix.ParseUnixRights(&message)
			if err != nil {
				return nil, false, err
			}
			for _, fd := range fds {
				v.files = append(v.files, os.NewFile(uintptr(fd), "volume"))
			}
		}
	}
}

// varlinkCall is one call on a connection of its own, as systemd's tools make them.
func (b *providerBed) call(method string, parameters any) (map[string]any, []*os.File, error) {
	v, err := dialVarlink(b.socket)
	if err != nil {
		return nil, nil, err
	}
	defer v.conn.Close()
	if err := v.send(method, parameters, ""); err != nil {
		return nil, nil, err
	}
	answer, _, err := v.receive()
	return answer, v.files, err
}

func (b *providerBed) acquire(parameters asked) (map[string]any, *os.File, error) {
	answer, files, err := b.call(storageProvider+"Acquire", parameters)
	if err != nil {
		return nil, nil, err
	}
	if len(files) != 1 || answer["fileDescriptorIndex"] != float64(0) {
		return nil, nil, fmt.Errorf("%d descriptors with %v", len(files), answer)
	}
	return answer, files[0], nil
}

func (b *providerBed) acquires(parameters asked) (map[string]any, *os.File) {
	b.t.Helper()
	answer, file, err := b.acquire(parameters)
	b.must(err)
	return answer, file
}

// refuses asks for an error of that name, with those words or parameters in it.
func (b *providerBed) refuses(method string, parameters any, name, words string) {
	b.t.Helper()
	_, files, err := b.call(method, parameters)
	var told *varlinkError
	if !errors.As(err, &told) || told.Name != name || !strings.Contains(err.Error(), words) || len(files) != 0 {
		b.t.Errorf("%s %v: %v, and not %s with %q", method, parameters, err, name, words)
	}
}

// list asks for many answers.
func (b *providerBed) list(method, pattern string) (answers []map[string]any, err error) {
	v, err := dialVarlink(b.socket)
	if err != nil {
		return nil, err
	}
	defer v.close()
	parameters := asked{}
	if pattern != "" {
		parameters["matchName"] = pattern
	}
	if err := v.send(storageProvider+method, parameters, `,"more":true`); err != nil {
		return nil, err
	}
	for continues := true; continues; {
		var answer map[string]any
		answer, continues, err = v.receive()
		if err != nil {
			return answers, err
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

func (b *providerBed) names(method, pattern string) (names []string) {
	b.t.Helper()
	answers, err := b.list(method, pattern)
	b.must(err)
	for _, answer := range answers {
		names = append(names, answer["name"].(string))
	}
	return names
}

// put mounts what was handed over, as mount(8) with storagectl does.
func (b *providerBed) put(file *os.File, name string) string {
	b.t.Helper()
	target := b.Path(name)
	b.must(os.MkdirAll(target, 0o700))
	b.must(unix.MoveMount(int(file.Fd()), "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH))
	b.t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	b.must(file.Close())
	return target
}

// away unmounts what put() has mounted. The driver closes its own descriptor a moment after it was sent.
func (b *providerBed) away(target string) {
	b.t.Helper()
	b.eventually(func() error { return unix.Unmount(target, 0) })
}

// unused waits until nothing is handed over any more.
func (b *providerBed) unused() {
	b.t.Helper()
	b.eventually(func() error {
		if mounts := rig.MountsBelow(b.mounts); len(mounts) > 0 {
			return fmt.Errorf("mounted: %q", mounts)
		}
		if n := len(rig.LoopsBelow(b.pool.Path)); n != 0 {
			return fmt.Errorf("%d devices are left", n)
		}
		entries, err := os.ReadDir(b.mounts)
		if err == nil && len(entries) > 0 {
			err = fmt.Errorf("left: %v", entries)
		}
		return err
	})
}

// delete removes one of the provider's volumes, whose interface cannot.
func (b *providerBed) delete(name string) {
	b.t.Helper()
	list, err := b.c.ListVolumes(short(b.t), &csi.ListVolumesRequest{})
	b.must(err)
	for _, entry := range list.GetEntries() {
		if id := entry.GetVolume().GetVolumeId(); strings.Contains(id, "storage-"+name) {
			_, err := b.c.DeleteVolume(short(b.t), &csi.DeleteVolumeRequest{VolumeId: id})
			b.must(err)
			return
		}
	}
	b.t.Fatalf("there is no volume storage-%s", name)
}

// A directory's whole life: made, mounted by two, let go, taken again, with its data, and read-only.
func TestProviderDirectory(t *testing.T) {
	for _, staging := range []string{"on", "off"} {
		t.Run("staging "+staging, func(t *testing.T) {
			b := newProviderBed(t, "xfs", "--staging", staging)
			request := asked{"name": "data", "createMode": "new", "template": "xfs", "createSizeBytes": 320 * mib, "requestAs": "dir",
				"allowInteractiveAuthentication": true}
			answer, file := b.acquires(request)
			if answer["type"] != "dir" || answer["readOnly"] != false || answer["baseUID"] != float64(0) || answer["baseGID"] != float64(0) {
				t.Errorf("Acquire tells %v", answer)
			}
			one := b.put(file, "one")
			var st unix.Statfs_t
			b.must(unix.Statfs(one, &st))
			if st.Type != unix.XFS_SUPER_MAGIC {
				t.Errorf("file system %#x", st.Type)
			}
			sum, err := rig.Fill(one, dataBytes, 3)
			b.must(err)
			b.refuses(storageProvider+"Acquire", request, storageProvider+"VolumeExists", "")
			_, file = b.acquires(asked{"name": "data"})
			two := b.put(file, "two")
			b.must(rig.Check(two, dataBytes, sum))
			// It is used: it stays, however often somebody looks.
			b.away(two)
			answer, file = b.acquires(asked{"name": "data", "readOnly": true})
			if answer["readOnly"] != true {
				t.Errorf("Acquire tells %v", answer)
			}
			two = b.put(file, "two")
			if err := os.WriteFile(filepath.Join(two, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("writing to what is read-only: %v", err)
			}
			b.must(os.WriteFile(filepath.Join(one, "x"), nil, 0o600))
			answers, err := b.list("ListVolumes", "")
			b.must(err)
			if len(answers) != 1 || answers[0]["name"] != "data" || answers[0]["type"] != "dir" ||
				answers[0]["sizeBytes"] != float64(320*mib) || answers[0]["usedBytes"].(float64) <= 0 {
				t.Errorf("it lists %v", answers)
			}
			b.away(two)
			b.away(one)
			b.unused()
			_, file = b.acquires(asked{"name": "data", "createMode": "open"})
			one = b.put(file, "one")
			b.must(rig.Check(one, dataBytes, sum))
			b.away(one)
			b.unused()
			b.delete("data")
		})
	}
}

// A block device: as long as its descriptor is open it stays.
func TestProviderBlock(t *testing.T) {
	b := newProviderBed(t, "xfs")
	b.refuses(storageProvider+"Acquire", asked{"name": "disk", "requestAs": "reg", "createSizeBytes": 64 * mib}, storageProvider+"TypeNotSupported", "")
	answer, file := b.acquires(asked{"name": "disk", "requestAs": "blk", "createSizeBytes": 64 * mib})
	if answer["type"] != "blk" || answer["readOnly"] != false || answer["baseUID"] != nil {
		t.Errorf("Acquire tells %v", answer)
	}
	_, err := file.WriteAt([]byte("forks"), 4096)
	b.must(err)
	b.must(file.Sync())
	answer, again := b.acquires(asked{"name": "disk", "readOnly": true})
	if answer["readOnly"] != true {
		t.Errorf("Acquire tells %v", answer)
	}
	if _, err := again.WriteAt([]byte("x"), 0); err == nil {
		t.Error("what is read-only is written to")
	}
	word := make([]byte, 5)
	_, err = again.ReadAt(word, 4096)
	b.must(err)
	if string(word) != "forks" {
		t.Errorf("it reads %q", word)
	}
	again.Close()
	b.refuses(storageProvider+"Acquire", asked{"name": "disk", "requestAs": "dir"}, storageProvider+"WrongType", "")
	// Its device is this one for as long as the descriptor lives, whatever the driver does.
	b.must(b.d.Kill())
	b.start()
	for range 3 {
		_, err = file.WriteAt([]byte("still"), 4096)
		b.must(err)
		_, more := b.acquires(asked{"name": "disk", "createMode": "open"})
		_, err = more.ReadAt(word, 4096)
		b.must(err)
		if string(word) != "still" {
			t.Errorf("it reads %q", word)
		}
		more.Close()
	}
	file.Close()
	b.unused()
	b.delete("disk")
}

// A killed driver: what is mounted goes on, is found again, and is let go by the next one.
func TestProviderOutlivesTheDriver(t *testing.T) {
	b := newProviderBed(t, "xfs")
	_, file := b.acquires(asked{"name": "data", "createSizeBytes": 64 * mib})
	at := b.put(file, "data")
	w := startWriter(at)
	w.moves(b.bed)
	b.must(b.d.Kill())
	if _, err := os.Stat(b.socket); err != nil {
		t.Errorf("a killed driver's socket: %v", err)
	}
	b.start()
	w.moves(b.bed)
	_, file = b.acquires(asked{"name": "data", "createMode": "open"})
	two := b.put(file, "two")
	b.away(two)
	w.moves(b.bed)
	b.must(w.finish())
	b.must(b.d.Kill())
	b.away(at)
	b.start()
	b.unused()
	b.delete("data")

	// Killed in the middle of Acquire: what it has made is found, or made again.
	for range 6 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, file, err := b.acquire(asked{"name": "cut", "createSizeBytes": 64 * mib}); err == nil {
				file.Close()
			}
		}()
		b.must(b.d.Kill())
		<-done
		b.start()
	}
	_, file = b.acquires(asked{"name": "cut", "createSizeBytes": 64 * mib})
	file.Close()
	b.unused()
	b.delete("cut")
}

// Somebody's own mount namespace counts as well; a mount that is nowhere keeps the device, and nobody else gets it.
func TestProviderElsewhere(t *testing.T) {
	b := newProviderBed(t, "xfs")
	_, file := b.acquires(asked{"name": "data", "createSizeBytes": 64 * mib})
	at := b.put(file, "data")
	sleeper := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec cat")
	in, err := sleeper.StdinPipe()
	b.must(err)
	out, err := sleeper.StdoutPipe()
	b.must(err)
	b.must(sleeper.Start())
	_, err = out.Read(make([]byte, 6))
	b.must(err)
	b.away(at)
	time.Sleep(2500 * time.Millisecond) // it was looked for users since
	_, file = b.acquires(asked{"name": "data", "createMode": "open"})
	file.Close()
	in.Close()
	b.must(sleeper.Wait())
	b.unused()

	_, file = b.acquires(asked{"name": "data", "createMode": "open"})
	b.eventually(func() error {
		if mounts := rig.MountsBelow(b.mounts); len(mounts) > 0 {
			return fmt.Errorf("mounted: %q", mounts)
		}
		return nil
	})
	at = b.put(file, "data") // it is as good as ever
	sum, err := rig.Fill(at, dataBytes, 3)
	b.must(err)
	b.refuses(storageProvider+"Acquire", asked{"name": "data"}, "io.systemd.System", "which a mount or process elsewhere keeps")
	b.away(at)
	b.unused()
	_, file = b.acquires(asked{"name": "data", "createMode": "open"})
	at = b.put(file, "data")
	b.must(rig.Check(at, dataBytes, sum))
	b.away(at)
	b.unused()
	b.delete("data")
}

// Many at once, of one name and of several.
func TestProviderManyAtOnce(t *testing.T) {
	b := newProviderBed(t, "xfs")
	const callers = 12
	var wait sync.WaitGroup
	failures := make(chan error, callers)
	for i := range callers {
		wait.Go(func() {
			_, file, err := b.acquire(asked{"name": fmt.Sprint("v", i%3), "createSizeBytes": 64 * mib})
			if err == nil {
				err = file.Close()
			}
			failures <- err
		})
	}
	wait.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			t.Error(err)
		}
	}
	if names := b.names("ListVolumes", "v[01]"); len(names) != 2 {
		t.Errorf("it lists %q", names)
	}
	b.unused()
	for i := range 3 {
		b.delete(fmt.Sprint("v", i))
	}
}

// The protocol's own methods, calls sent ahead, and what is refused with which error.
func TestProviderEdge(t *testing.T) {
	b := newProviderBed(t, "xfs", "--target-root", "KUBELET")
	info, err := os.Stat(b.socket)
	b.must(err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v", info.Mode())
	}
	answer, _, err := b.call("org.varlink.service.GetInfo", asked{})
	b.must(err)
	if fmt.Sprint(answer["interfaces"]) != "[org.varlink.service io.systemd.StorageProvider]" {
		t.Errorf("GetInfo tells %v", answer)
	}
	answer, _, err = b.call("org.varlink.service.GetInterfaceDescription", asked{"interface": "io.systemd.StorageProvider"})
	b.must(err)
	if text, _ := answer["description"].(string); !strings.Contains(text, "method Acquire(") {
		t.Errorf("the description is %v", answer)
	}
	const service = "org.varlink.service."
	b.refuses(service+"GetInterfaceDescription", asked{"interface": "x.y"}, service+"InterfaceNotFound", "x.y")
	b.refuses(service+"GetInterfaceDescription", asked{}, service+"InvalidParameter", "interface")
	b.refuses(service+"Nothing", asked{}, service+"MethodNotFound", "Nothing")
	b.refuses("io.systemd.Nothing.Do", asked{}, service+"InterfaceNotFound", "io.systemd.Nothing")
	b.refuses("nothing", asked{}, service+"InterfaceNotFound", "")

	// No volume yet.
	if _, err := b.list("ListVolumes", ""); err == nil || !strings.Contains(err.Error(), "NoSuchVolume") {
		t.Errorf("a list of nothing: %v", err)
	}
	b.refuses(storageProvider+"ListVolumes", asked{}, service+"ExpectedMore", "")
	acquire := storageProvider + "Acquire"
	for _, c := range []struct {
		parameters  asked
		name, words string
	}{
		{asked{}, service + "InvalidParameter", "name"},
		{asked{"name": 7}, service + "InvalidParameter", "name"},
		{asked{"name": "../x"}, service + "InvalidParameter", "name"},
		{asked{"name": "a/b"}, service + "InvalidParameter", "name"},
		{asked{"name": ".a"}, service + "InvalidParameter", "name"},
		{asked{"name": strings.Repeat("x", 120)}, service + "InvalidParameter", "name"},
		{asked{"name": "a", "createSize": 5}, service + "InvalidParameter", "createSize"},
		{asked{"name": "a", "createSizeBytes": -1}, service + "InvalidParameter", "createSizeBytes"},
		{asked{"name": "a", "createMode": "maybe"}, service + "InvalidParameter", "createMode"},
		{asked{"name": "a", "requestAs": "tape"}, service + "InvalidParameter", "requestAs"},
		{asked{"name": "a", "readOnly": "yes"}, service + "InvalidParameter", "readOnly"},
		{asked{"name": "a", "readOnly": true, "createMode": "new"}, service + "InvalidParameter", "readOnly"},
		{asked{"name": "a", "createMode": "open"}, storageProvider + "NoSuchVolume", ""},
		{asked{"name": "a", "readOnly": true}, storageProvider + "NoSuchVolume", ""},
		{asked{"name": "a"}, storageProvider + "CreateSizeRequired", "createSizeBytes"},
		{asked{"name": "a", "template": "zfs", "createSizeBytes": 64 * mib}, storageProvider + "NoSuchTemplate", ""},
		{asked{"name": "a", "template": "ext4", "requestAs": "blk", "createSizeBytes": 64 * mib}, storageProvider + "BadTemplate", ""},
		{asked{"name": "a", "template": "block", "requestAs": "dir", "createSizeBytes": 64 * mib}, storageProvider + "BadTemplate", ""},
		{asked{"name": "a", "createSizeBytes": int64(1) << 60}, "io.systemd.System", "errno"},
	} {
		b.refuses(acquire, c.parameters, c.name, c.words)
	}

	// A golden image is a template.
	tree := b.Path("tree")
	b.must(os.MkdirAll(tree, 0o755))
	b.must(os.WriteFile(filepath.Join(tree, "word"), []byte("forks"), 0o644))
	image := b.imported("--size", "64Mi", tree, "golden")
	if names := fmt.Sprint(b.names("ListTemplates", "")); names != "[ext4 xfs btrfs block golden]" {
		t.Errorf("templates %s", names)
	}
	_, file := b.acquires(asked{"name": "fork", "template": "golden", "createSizeBytes": 64 * mib})
	at := b.put(file, "fork")
	if word, err := os.ReadFile(filepath.Join(at, "word")); err != nil || string(word) != "forks" {
		t.Errorf("the fork has %q, %v", word, err)
	}
	b.away(at)

	// Three calls in one write: answers in turn, and the descriptor with the one it belongs to.
	v, err := dialVarlink(b.socket)
	b.must(err)
	defer v.close()
	one := `{"method":"org.varlink.service.GetInfo"}` + "\x00"
	_, err = v.conn.Write([]byte(one + `{"method":"` + acquire + `","parameters":{"name":"fork"},"oneway":true}` + "\x00" +
		`{"method":"` + acquire + `","parameters":{"name":"fork","createMode":null}}` + "\x00" + one))
	b.must(err)
	for i, want := range []string{"vendor", "fileDescriptorIndex", "vendor"} {
		answer, _, err := v.receive()
		b.must(err)
		if answer[want] == nil {
			t.Errorf("answer %d is %v", i, answer)
		}
	}
	if len(v.files) != 1 {
		t.Errorf("%d descriptors", len(v.files))
	}
	// What is no call ends the connection.
	for _, text := range []string{"{}\x00", "[]\x00", "x\x00", "{\"method\":7}\x00", "{\"method\":\"a.b\",\"parameters\":[]}\x00", strings.Repeat(" ", 80<<10)} {
		v, err := dialVarlink(b.socket)
		b.must(err)
		_, _ = v.conn.Write([]byte(text))
		if answer, _, err := v.receive(); err == nil {
			t.Errorf("%.20q is answered: %v", text, answer)
		}
		v.close()
	}
	v.close()
	b.unused()
	b.delete("fork")
	_, err = b.c.DeleteSnapshot(short(t), &csi.DeleteSnapshotRequest{SnapshotId: image})
	b.must(err)
}

// Options that contradict each other are said at the start.
func TestProviderOptions(t *testing.T) {
	refusedAtStart(t, []badOptions{
		{[]string{"--storage-provider", "relative.sock"}, "absolute"},
		{[]string{"--storage-provider", "/run/x.sock", "--services", "node"}, "needs the services controller and node"},
		{[]string{"--storage-provider", "/run/x.sock", "--storage-provider-idle", "0"}, "1"},
	})
}
