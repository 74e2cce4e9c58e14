// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

const (
	randomKey  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	passphrase = "correct horse battery"
	luksRoom   = 16 * mib
)

// needCrypt skips where encrypted volumes cannot be opened.
func needCrypt(t *testing.T) {
	t.Helper()
	needDeviceMapper(t)
	if _, err := os.Stat("/sys/module/dm_crypt"); err == nil {
		return
	}
	if _, err := rig.Run("modprobe", "dm-crypt"); err != nil {
		t.Skipf("dm-crypt cannot be loaded: %v", err)
	}
}

// encrypted prepares an encrypted volume.
func (b *bed) encrypted(name, kind, key string) *rig.Volume {
	v := b.volume(name, kind)
	v.Params = map[string]string{"encryption": "luks2"}
	v.Secrets = map[string]string{"key": key}
	return v
}

// onCrypt checks that the volume is one dm-crypt device over the device of its image, and returns the
// upper one's directory in /sys/dev/block.
func (b *bed) onCrypt(v *rig.Volume) string {
	b.t.Helper()
	tool := b.ls().volume(v.Name)
	if tool.Device == nil || !strings.HasPrefix(tool.Device.Path, "/dev/dm-") {
		b.t.Fatalf("ls: %s is at %+v", v.Name, tool.Device)
	}
	rdev := nodeNumber(b.t, tool.Device.Path)
	dir := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(rdev), unix.Minor(rdev))
	if uuid := sysfs(b.t, dir+"/dm/uuid"); !strings.HasPrefix(uuid, "RINGVOL-crypt-") {
		b.t.Errorf("%s has the uuid %s", tool.Device.Path, uuid)
	}
	below, _ := filepath.Glob(dir + "/slaves/*")
	if len(below) != 1 {
		b.t.Fatalf("%s stands over %v", tool.Device.Path, below)
	}
	if size, err := deviceSize(tool.Device.Path); err != nil || size != v.Got {
		b.t.Errorf("the device has %d bytes (%v), the volume %d", size, err, v.Got)
	}
	return dir
}

// noCrypt: no device of an encrypted volume is left.
func (b *bed) noCrypt() {
	b.t.Helper()
	b.eventually(func() error {
		names, _ := filepath.Glob("/sys/block/dm-*/dm/name")
		for _, name := range names {
			if text, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(text), "ringvol-crypt-") {
				return fmt.Errorf("left behind: %s", text)
			}
		}
		return nil
	})
}

// contains says whether the file has these bytes anywhere.
func contains(path string, what []byte) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	window := make([]byte, 0, 2*mib)
	buffer := make([]byte, mib)
	for {
		n, err := file.Read(buffer)
		window = append(window, buffer[:n]...)
		if bytes.Contains(window, what) {
			return true, nil
		}
		if len(window) > len(what) {
			window = append(window[:0], window[len(window)-len(what):]...)
		}
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}

func TestCryptLife(t *testing.T) {
	needCrypt(t)
	for _, kind := range []string{"ext4", "xfs", "block"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 3<<30)
			v := b.encrypted("life", kind, randomKey)
			b.must(v.Create())
			withKey := v.Secrets
			v.Secrets = nil
			b.refused("a stage without a key", v.Stage(), codes.InvalidArgument, codes.FailedPrecondition)
			v.Secrets = withKey
			b.twice(v.Stage)
			b.twice(v.Publish)
			b.onCrypt(v)
			sum, err := rig.Fill(v.Target, dataBytes, 1)
			b.must(err)
			if kind == "block" {
				secret := bytes.Repeat([]byte("what a tenant writes "), 400)
				file, err := os.OpenFile(v.Target, os.O_WRONLY|unix.O_DSYNC, 0)
				b.must(err)
				_, err = file.WriteAt(secret, 16*mib)
				b.must(err)
				b.must(file.Close())
				if found, err := contains(b.pool.Image(v.ID), secret[:210]); err != nil || found {
					t.Errorf("what was written is in the image: %v, %v", found, err)
				}
			}
			info, err := os.Stat(b.pool.Image(v.ID))
			b.must(err)
			if info.Size() != v.Got+luksRoom {
				t.Errorf("the image has %d bytes, the volume %d", info.Size(), v.Got)
			}
			snapshot, err := v.Snapshot("of-life")
			b.must(err)
			b.must(v.Expand(v.Got+64*mib, true))
			b.onCrypt(v)
			b.must(rig.Check(v.Target, dataBytes, sum))

			b.must(v.Down())
			b.noCrypt()
			v.Secrets = map[string]string{"key": strings.ToUpper(randomKey)}
			err = v.Stage()
			b.refused("a wrong key", err, codes.Unauthenticated)
			b.says("a wrong key", err, "node-stage secret")
			b.noCrypt()
			v.Secrets = withKey
			b.must(v.Up())
			b.must(rig.Check(v.Target, dataBytes, sum))

			restored := b.encrypted("restored", kind, randomKey)
			restored.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
			b.must(restored.Up())
			b.must(rig.Check(restored.Target, dataBytes, sum))
			b.must(restored.Gone())
			b.must(b.d.DeleteSnapshot(snapshot.GetSnapshotId()))
			b.must(v.Gone())
			b.noCrypt()
		})
	}
}

// A driver that is killed knows its devices again, and needs no key for that.
func TestCryptRestart(t *testing.T) {
	needCrypt(t)
	b := open(t, "xfs", 2<<30)
	v := b.encrypted("kept", "ext4", passphrase)
	b.must(v.Up())
	before := b.onCrypt(v)
	w := startWriter(v.Target)
	b.must(b.d.Kill())
	b.start()
	if after := b.onCrypt(v); after != before {
		t.Errorf("%s has become %s", before, after)
	}
	b.must(w.finish())
	b.must(v.Publish())
	b.must(v.Expand(v.Got+32*mib, true))
	b.onCrypt(v)
	b.must(v.Gone())
	b.noCrypt()
}

// Killed at any moment of a stage, the driver leaves nothing that the next stage cannot go on with.
func TestCryptKilledInStage(t *testing.T) {
	needCrypt(t)
	b := open(t, "xfs", 2<<30)
	v := b.encrypted("killed", "ext4", randomKey)
	b.must(v.Create())
	b.must(v.Paths())
	for i := 0; i < 12; i++ {
		done := make(chan error, 1)
		go func() { done <- v.Stage() }()
		time.Sleep(time.Duration(i*60) * time.Millisecond)
		b.must(b.d.Kill())
		<-done
		b.start()
		if i%3 == 2 {
			b.must(v.Stage())
			b.onCrypt(v)
			b.must(v.Unstage())
			b.noCrypt()
		}
	}
	b.must(v.Up())
	b.must(v.Gone())
	b.noCrypt()
}

func (b *bed) keyTool(code int, input string, args ...string) run {
	b.t.Helper()
	cmd := toolCommand(short(b.t), nil, append([]string{"key"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	r := finish(b.t, cmd)
	if r.code != code {
		b.t.Errorf("key %v: exit %d, want %d: %s%s", args, r.code, code, r.out, r.err)
	}
	return r
}

// Keys come and go while the volume is in use, and while it is not.
func TestCryptKeys(t *testing.T) {
	needCrypt(t)
	b := open(t, "xfs", 2<<30)
	v := b.encrypted("keys", "ext4", randomKey)
	pool := "default=" + b.pool.Path
	old, other := b.Path("old"), b.Path("other")
	b.must(os.WriteFile(old, []byte(randomKey), 0o600))
	b.must(os.WriteFile(other, []byte(passphrase), 0o600))
	b.must(v.Create())
	b.keyTool(1, "", "add", "--pool", pool, "--key-file", old, "--new-key-file", other, v.ID)
	b.must(v.Up())
	sum, err := rig.Fill(v.Target, dataBytes, 1)
	b.must(err)
	clone := b.encrypted("copy", "ext4", randomKey)
	clone.Source = rig.FromVolume(v.ID)
	b.must(clone.Create())

	b.keyTool(1, "", "remove", "--pool", pool, "--key-file", old, v.ID)
	b.keyTool(1, "", "remove", "--pool", pool, "--key-file", other, v.ID)
	b.keyTool(0, passphrase, "add", "--pool", pool, "--key-file", old, "--new-key-file", "-", v.ID)
	b.keyTool(0, randomKey, "remove", "--pool", pool, "--key-file", "-", v.Name)
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Down())
	b.refused("the key that was removed", v.Stage(), codes.Unauthenticated)
	v.Secrets = map[string]string{"key": passphrase}
	b.must(v.Up())
	b.must(rig.Check(v.Target, dataBytes, sum))
	b.must(v.Down())
	// Not in use: in the image.
	b.keyTool(0, "", "add", "--pool", pool, "--key-file", other, "--new-key-file", old, v.ID)
	v.Secrets = map[string]string{"key": randomKey}
	b.must(v.Up())
	b.must(clone.Up()) // it has kept the key that its source had
	b.must(clone.Gone())
	b.must(v.Gone())
	b.noCrypt()
}

// What says of a key is nobody's but the secret's: not the log, not the record, not the header.
func TestCryptKeyIsNowhere(t *testing.T) {
	needCrypt(t)
	b := newBed(t, "xfs", 2<<30)
	b.start()
	v := b.encrypted("quiet", "ext4", randomKey)
	b.must(v.Up())
	for _, path := range []string{b.pool.Image(v.ID), b.d.Log} {
		if found, err := contains(path, []byte(randomKey)); err != nil || found {
			t.Errorf("the key is in %s: %v, %v", path, found, err)
		}
	}
	b.notInMemory(randomKey)
	b.must(v.Gone())
}

// notInMemory looks at the driver's, after a call that brought it.
func (b *bed) notInMemory(secret string) {
	b.t.Helper()
	if found, err := inMemory(b.d.Pid(), []byte(secret)); err != nil || found {
		b.t.Errorf("%s... is in the driver's memory after the call: %v, %v", secret[:8], found, err)
	}
}

// inMemory looks through what a process has mapped and may write.
func inMemory(pid int, what []byte) (bool, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false, err
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return false, err
	}
	defer memory.Close()
	for _, line := range strings.Split(string(maps), "\n") {
		var from, to int64
		var access string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &access); n != 3 || !strings.HasPrefix(access, "rw") || to-from > 256*mib {
			continue
		}
		data := make([]byte, to-from)
		n, _ := memory.ReadAt(data, from)
		if bytes.Contains(data[:n], what) {
			return true, nil
		}
	}
	return false, nil
}

// Without a device mapper nobody is sent here: neither a volume nor the scheduler.
func TestEncryptedRefused(t *testing.T) {
	if rig.HasDeviceMapper() {
		t.Skip("this node has a device mapper")
	}
	b := open(t, "xfs", 1<<30)
	for _, kind := range []string{"ext4", "block"} {
		v := b.encrypted("nowhere-"+kind, kind, randomKey)
		err := v.Create()
		b.refused(kind, err, codes.FailedPrecondition)
		b.says(kind, err, "device mapper", "modprobe")
	}
	if room := b.capacity(map[string]string{"encryption": "luks2"}); room != 0 {
		t.Errorf("it has %d bytes for volumes that it refuses", room)
	}
	if b.capacity(nil) == 0 {
		t.Error("it has nothing for others")
	}
}

// What has no keys, and what is no command line.
func TestKeyRefusals(t *testing.T) {
	b := open(t, "xfs", 2<<30)
	plain, early := b.volume("plain", "ext4"), b.encrypted("early", "ext4", randomKey)
	b.must(plain.Create())
	pool, key := "default="+b.pool.Path, b.Path("key")
	b.must(os.WriteFile(key, []byte(randomKey), 0o600))
	b.must(os.WriteFile(b.Path("empty"), nil, 0o600))
	b.must(os.WriteFile(b.Path("long"), make([]byte, 5000), 0o600))
	if err := early.Create(); err != nil && rig.Code(err) != codes.FailedPrecondition {
		t.Error(err) // without a device mapper there are none
	}
	remove := []string{"remove", "--pool", pool, "--key-file"}
	for _, c := range []struct {
		code  int
		words string
		args  []string
	}{
		{1, "is not encrypted", append(remove, key, plain.ID)},
		{1, "is not encrypted", append(remove, key, "plain")},
		{1, "there is no volume other", append(remove, key, "other")},
		{1, "no-such-file: No such file", append(remove, b.Path("no-such-file"), plain.ID)},
		{1, "is empty", append(remove, b.Path("empty"), plain.ID)},
		{1, "more than 4096 bytes", append(remove, b.Path("long"), plain.ID)},
		{1, "the pool at /nowhere", []string{"remove", "--pool", "a=/nowhere", "--key-file", key, "plain"}},
		{2, "--key-file is needed", []string{"remove", "--pool", pool, "plain"}},
		{2, "--new-key-file are needed", []string{"add", "--pool", pool, "--key-file", key, "plain"}},
		{2, "one of the keys, not both", []string{"add", "--pool", pool, "--key-file", "-", "--new-key-file", "-", "plain"}},
		{2, "no command", nil},
		{2, "unknown command 'change'", []string{"change"}},
		{0, "usage: ringvol key", []string{"--help"}},
	} {
		r := b.keyTool(c.code, "", c.args...)
		if !strings.Contains(r.out+r.err, c.words) {
			t.Errorf("key %v says %q, and not %q", c.args, r.out+r.err, c.words)
		}
	}
	if early.ID != "" {
		if r := b.keyTool(1, "", append(remove, key, early.ID)...); !strings.Contains(r.err, "has no key yet") {
			t.Errorf("an unformatted volume: %s", r.err)
		}
		b.must(early.Delete())
	}
	b.must(plain.Delete())
}
