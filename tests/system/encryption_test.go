// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"google.golang.org/grpc/codes"
)

// attribute is the record of a volume's image.
func (b *bed) attribute(v *rig.Volume) string {
	b.t.Helper()
	text, err := rig.Run("getfattr", "--absolute-names", "--only-values", "-n", "trusted.ringvol", b.pool.Image(v.ID))
	b.must(err)
	return text
}

func encryptedKinds(t *testing.T, run func(t *testing.T, kind string)) {
	needCrypt(t)
	for _, kind := range []string{"ext4", "xfs", "btrfs", "block"} {
		t.Run(kind, func(t *testing.T) { run(t, kind) })
	}
}

// What is written in clear is nowhere in the image.
func TestEncryptedCiphertext(t *testing.T) {
	needCrypt(t)
	b := open(t, "xfs", 2<<30)
	words := bytes.Repeat([]byte("nobody shall read this without the key; "), 1000)
	for _, encryption := range []string{"none", "luks2"} {
		v := b.encrypted("text-"+encryption, "ext4", randomKey)
		v.Params["encryption"] = encryption
		b.must(v.Up())
		b.must(os.WriteFile(filepath.Join(v.Target, "text"), words, 0o600))
		b.must(v.Down())
		found, err := contains(b.pool.Image(v.ID), words[:40])
		b.must(err)
		if found != (encryption == "none") {
			t.Errorf("encryption %s: the text is in the image: %v", encryption, found)
		}
		b.must(v.Delete())
	}
}

func TestEncryptedCopies(t *testing.T) {
	encryptedKinds(t, func(t *testing.T, kind string) {
		b := open(t, "xfs", 4<<30)
		v := b.encrypted("source", kind, randomKey)
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, 1)
		b.must(err)
		snapshot, err := v.Snapshot("of-source")
		b.must(err)
		plain := b.volume("plain", kind)
		plain.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
		b.refused("a plain restore", plain.Create(), codes.InvalidArgument)
		for _, source := range []string{"restored", "cloned"} {
			w := b.encrypted(source, kind, randomKey)
			w.Size = v.Got + 32*mib
			w.Source = rig.FromSnapshot(snapshot.GetSnapshotId())
			if source == "cloned" {
				w.Source = rig.FromVolume(v.ID)
			}
			b.must(w.Create())
			w.Secrets = map[string]string{"key": "another"}
			b.refused("a wrong key", w.Stage(), codes.Unauthenticated)
			w.Secrets = v.Secrets
			b.must(w.Up())
			b.must(rig.Check(w.Target, dataBytes, sum))
			before, err := rig.Space(v.Target)
			b.must(err)
			if after, err := rig.Space(w.Target); err != nil || after <= before {
				t.Errorf("%s is no larger: %d, was %d (%v)", source, after, before, err)
			}
			b.must(w.Gone())
		}
		b.must(b.d.DeleteSnapshot(snapshot.GetSnapshotId()))
		b.must(v.Gone())
		b.noCrypt()
	})
}

// In use, and with whatever secret: what is open needs no key to grow.
func TestEncryptedExpand(t *testing.T) {
	encryptedKinds(t, func(t *testing.T, kind string) {
		b := open(t, "xfs", 4<<30)
		v := b.encrypted("grows", kind, randomKey)
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, 1)
		b.must(err)
		for _, key := range []string{"", "changed meanwhile"} {
			before, err := rig.Space(v.Target)
			b.must(err)
			v.Secrets = map[string]string{"key": key}
			err = v.Expand(v.Got+64*mib, true)
			if kind == "ext4" && rig.Code(err) == codes.FailedPrecondition {
				v.Secrets = map[string]string{"key": randomKey}
				b.must(v.Gone())
				t.Skip("ext4 grows online only with CAP_SYS_RESOURCE, which is missing here; a guest has it")
			}
			b.must(err)
			if after, err := rig.Space(v.Target); err != nil || after <= before {
				t.Errorf("it has not grown: %d, was %d (%v)", after, before, err)
			}
		}
		b.must(rig.Check(v.Target, dataBytes, sum))
		v.Secrets = map[string]string{"key": randomKey}
		b.must(v.Down())
		b.must(v.Up())
		b.must(rig.Check(v.Target, dataBytes, sum))
		b.must(v.Gone())
	})
}

// The driver dies while mkfs runs: the volume is what it was, and nothing of the attempt stays.
func TestEncryptedKilledInFirstStage(t *testing.T) {
	needCrypt(t)
	b := newBed(t, "xfs", 2<<30)
	begun := b.Path("begun")
	dir := b.tools(map[string]string{
		"mkfs.ext4": "touch " + begun + "\nsleep 2\nPATH=/usr/sbin:/sbin:/usr/bin:/bin exec mkfs.ext4 \"$@\""})
	b.d.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	b.start()
	v := b.encrypted("killed", "ext4", randomKey)
	b.must(v.Create())
	for range 3 {
		_ = os.Remove(begun)
		staged := make(chan error, 1)
		go func() { staged <- v.Stage() }()
		b.eventually(func() error { _, err := os.Stat(begun); return err })
		b.must(b.d.Kill())
		if err := <-staged; err == nil {
			t.Error("a stage that was killed succeeded")
		}
		b.d.Disconnect()
		b.must(b.d.Start())
		b.must(b.d.AwaitReady())
		b.connect()
		if !strings.Contains(b.attribute(v), "unformatted=true\n") {
			t.Error("it is formatted")
		}
		b.noCrypt()
		b.eventually(func() error {
			if names := b.pool.Names("trash"); len(names) > 0 {
				return fmt.Errorf("left in the trash: %v", names)
			}
			return nil
		})
	}
	b.must(v.Up())
	b.must(v.Gone())
	b.noCrypt()
}

// The client goes, or the driver is told to, while mkfs runs: what was begun ends, or leaves nothing.
func TestEncryptedFirstStageInterrupted(t *testing.T) {
	needCrypt(t)
	b := newBed(t, "xfs", 2<<30)
	begun, seconds := b.Path("begun"), b.Path("seconds")
	dir := b.tools(map[string]string{"mkfs.ext4": "touch " + begun + "\nsleep $(cat " + seconds +
		")\nPATH=/usr/sbin:/sbin:/usr/bin:/bin exec mkfs.ext4 \"$@\""})
	b.d.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	b.start()
	slow := func(n string) {
		b.must(os.WriteFile(seconds, []byte(n), 0o600))
		_ = os.Remove(begun)
	}
	b.t.Log("the client has no more time")
	v := b.encrypted("left", "ext4", randomKey)
	b.must(v.Create())
	b.must(v.Paths())
	slow("3")
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_, err := b.c.NodeStageVolume(ctx, v.StageRequest())
	b.refused("a stage without time", err, codes.DeadlineExceeded)
	unstage := v.Unstage()
	b.refused("an unstage meanwhile", unstage, codes.Aborted)
	b.must(v.Stage()) // joins it
	b.must(v.Gone())
	b.noCrypt()

	for _, n := range []string{"1", "30"} {
		b.t.Logf("the driver has to end, and mkfs takes %s s", n)
		v := b.encrypted("ended-"+n, "ext4", randomKey)
		b.must(v.Create())
		slow(n)
		staged := make(chan error, 1)
		go func() { staged <- v.Stage() }()
		b.eventually(func() error { _, err := os.Stat(begun); return err })
		b.must(b.d.Term())
		err := <-staged
		if whole := n == "1"; whole != (err == nil) {
			t.Errorf("the stage: %v", err)
		}
		b.d.Disconnect()
		b.must(b.d.Start())
		b.must(b.d.AwaitReady())
		b.connect()
		if strings.Contains(b.attribute(v), "unformatted=true\n") != (err != nil) {
			t.Errorf("unformatted, after %v:\n%s", err, b.attribute(v))
		}
		slow("0")
		b.must(v.Up())
		b.must(v.Gone())
		b.noCrypt()
	}
	b.eventually(func() error {
		if names := b.pool.Names("trash"); len(names) > 0 {
			return fmt.Errorf("left in the trash: %v", names)
		}
		return nil
	})
}

// No key is where somebody could find it: arguments, environment, records, logs, images, or the driver's memory once
// the calls are answered.
func TestEncryptedSecretIsNowhere(t *testing.T) {
	needCrypt(t)
	b := newBed(t, "xfs", 2<<30)
	b.d.Env = append(b.d.Env, "RINGVOL_LOG_LEVEL=debug")
	b.start()
	v := b.encrypted("quiet", "ext4", randomKey)
	// A request of more than one frame is collected.
	v.Secrets["other"] = strings.Repeat("x", 3000)
	b.must(v.Up())
	b.refused("a wrong key", func() error {
		w := b.encrypted("wrong", "ext4", randomKey)
		b.must(w.Up())
		b.must(w.Down())
		w.Secrets["key"] = randomKey[1:]
		err := w.Stage()
		b.must(w.Delete())
		return err
	}(), codes.Unauthenticated)
	secret := []byte(randomKey[8:40])
	for _, name := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", b.d.Pid(), name))
		b.must(err)
		if bytes.Contains(text, secret) {
			t.Errorf("the key is in %s", name)
		}
	}
	for _, name := range []string{b.d.Log, b.pool.Image(v.ID)} {
		if found, err := contains(name, secret); err != nil || found {
			t.Errorf("%s: the key is there: %v (%v)", name, found, err)
		}
	}
	if strings.Contains(b.attribute(v), string(secret)) {
		t.Error("the key is in the record")
	}
	b.eventually(func() error {
		found, err := inMemory(b.d.Pid(), secret)
		if err == nil && found {
			err = fmt.Errorf("the key is in the driver's memory")
		}
		return err
	})
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", b.d.Pid()))
	b.must(err)
	if !strings.Contains(string(limits), "Max core file size        0 ") {
		t.Errorf("it may leave a core file:\n%s", limits)
	}
	b.must(v.Gone())
}

// On raw disks: nothing is taken before the first stage, its room is kept all the same, and all of it comes back.
func TestRawPoolEncrypted(t *testing.T) {
	needCrypt(t)
	b := openRaw(t, 4<<30)
	for _, kind := range []string{"ext4", "xfs", "block"} {
		room := b.capacity(nil)
		v := b.encrypted("secret-"+kind, kind, randomKey)
		b.must(v.Create())
		if left := b.capacity(nil); left > room-v.Got-luksRoom || left < room-v.Got-luksRoom-2*mib {
			t.Errorf("%d MiB of room, were %d before a volume of %d", left/mib, room/mib, v.Got/mib)
		}
		copied := b.encrypted("of-nothing-"+kind, kind, randomKey)
		copied.Source = rig.FromVolume(v.ID)
		b.must(copied.Create())
		b.must(copied.Up())
		b.must(copied.Gone())
		b.must(v.Expand(v.Got+16*mib, false))
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, 1)
		b.must(err)
		if kind != "ext4" {
			b.must(v.Expand(v.Got+32*mib, true))
		}
		b.must(v.Down())
		b.noCrypt()
		clone := b.encrypted("clone-"+kind, kind, randomKey)
		clone.Source = rig.FromVolume(v.ID)
		clone.Size = v.Got + 16*mib
		b.must(clone.Create())
		b.must(clone.Up())
		b.must(rig.Check(clone.Target, dataBytes, sum))
		b.must(clone.Gone())
		b.must(b.d.Kill())
		b.start()
		b.must(v.Up())
		b.must(rig.Check(v.Target, dataBytes, sum))
		b.must(v.Gone())
		b.noCrypt()
		b.eventually(func() error {
			if now := b.capacity(nil); now != room {
				return fmt.Errorf("%d bytes of room, were %d", now, room)
			}
			return nil
		})
	}
	b.accounts()
}
