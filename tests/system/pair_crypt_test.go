// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// Encrypted volumes on another node than their own: their owner gives out ciphertext.

func (p *pair) createEncrypted(name, kind string) {
	p.owner.t.Helper()
	v := p.owner.encrypted(name, kind, randomKey)
	v.Params["attach"] = "remote"
	p.owner.must(v.Create())
	p.has(v, kind)
}

// opened: what is used is the dm-crypt device over the cover, and has the volume's size. The owner has none.
func (p *pair) opened(size int64) {
	t := p.owner.t
	t.Helper()
	var st unix.Stat_t
	p.user.must(unix.Stat(p.w.Target, &st))
	number := st.Dev
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		number = st.Rdev
	}
	dir := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(number), unix.Minor(number))
	if uuid := sysfs(t, dir+"/dm/uuid"); !strings.HasPrefix(uuid, "RINGVOL-crypt-") {
		t.Errorf("it is used by a device with the uuid %s", uuid)
	}
	below, _ := filepath.Glob(dir + "/slaves/*/dm/name")
	if len(below) != 1 || !strings.HasPrefix(sysfs(t, below[0]), "ringvol-cover-") {
		t.Errorf("it stands over %v", below)
	}
	if text := sysfs(t, dir+"/size"); text != fmt.Sprint(size/512) {
		t.Errorf("the device has %s sectors, the volume %d bytes", text, size)
	}
	names, _ := filepath.Glob("/sys/block/dm-*/dm/name")
	count := 0
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(text), "ringvol-crypt-") {
			count++
		}
	}
	if count != 1 {
		t.Errorf("%d devices of dm-crypt", count)
	}
}

// hidden: the exported device and the image have nothing of it in clear.
func (p *pair) hidden(words []byte) {
	t := p.owner.t
	t.Helper()
	unix.Sync()
	device := sysfs(t, subsystemOf(p.w.PublishContext)+"/namespaces/1/device_path")
	for _, path := range []string{device, p.owner.pool.Image(p.v.ID)} {
		found, err := contains(path, words)
		p.owner.must(err)
		if found {
			t.Errorf("%s has what was written, in clear", path)
		}
	}
	begin := make([]byte, 4)
	file, err := os.Open(device)
	p.owner.must(err)
	defer file.Close()
	_, err = file.Read(begin)
	p.owner.must(err)
	if string(begin) != "LUKS" {
		t.Errorf("%s begins with %q", device, begin)
	}
}

func TestPairEncrypted(t *testing.T) {
	needCrypt(t)
	p := openPair(t)
	owner, user := p.owner, p.user
	words := bytes.Repeat([]byte("nobody shall read this without the key; "), 1000)
	p.createEncrypted("pair-secret", "ext4")

	// Its first use is on another node: the owner needs the key once.
	err := p.attach(false)
	owner.refused("a first use without the key", err, codes.InvalidArgument)
	owner.says("a first use without the key", err, "controller-publish-secret-name")
	p.nothing()
	p.v.AttachSecrets = p.v.Secrets
	owner.twice(func() error { return p.attach(false) })
	p.v.AttachSecrets = nil
	owner.twice(p.detach)
	owner.must(p.attach(false))
	owner.noCrypt()

	for _, refusal := range []struct {
		secrets map[string]string
		code    codes.Code
	}{{nil, codes.InvalidArgument}, {map[string]string{"key": strings.ToUpper(randomKey)}, codes.Unauthenticated}} {
		p.w.Secrets = refusal.secrets
		user.refused("a stage with another key", p.w.Stage(), refusal.code)
		user.nothing()
		owner.noCrypt()
	}
	p.w.Secrets = p.v.Secrets
	user.twice(p.w.Up)
	p.opened(p.v.Got)
	user.must(os.WriteFile(filepath.Join(p.w.Target, "text"), words, 0o600))
	sum, err := rig.Fill(p.w.Target, dataBytes, 1)
	user.must(err)
	p.hidden(words[:40])
	snapshot, err := p.v.Snapshot("of-" + p.v.Name)
	owner.must(err)

	// Neither driver is in the way of I/O; what is open needs no key to grow, nor does a driver that starts.
	writer := startWriter(p.w.Target)
	for _, b := range []*bed{owner, user.bed} {
		b.must(b.d.Kill())
		writer.moves(owner)
		b.start()
		writer.moves(owner)
	}
	size := p.v.Got + 32*mib
	owner.must(p.v.Expand(size, false))
	got, err := user.nodeExpand(size)
	user.must(err)
	if got != p.v.Got {
		t.Errorf("grown to %d, and on its own node to %d", got, p.v.Got)
	}
	p.opened(p.v.Got)
	owner.must(writer.finish())
	user.twice(p.w.Stage)
	user.must(rig.Check(p.w.Target, dataBytes, sum))
	if abnormal, text := user.condition(); abnormal {
		t.Errorf("condition: %s", text)
	}
	user.must(p.w.Down())
	user.nothing()
	owner.noCrypt()
	owner.twice(p.detach)
	p.nothing()

	// Both nodes read it, each by a device of its own.
	const readers = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	alone, aloneThere := p.v.Cap, p.w.Cap
	p.v.Cap, p.w.Cap = rig.WithMode(p.v.Cap, readers), rig.WithMode(p.w.Cap, readers)
	owner.must(p.attach(true))
	_, err = giveTo(t, owner.c, p.v, owner.d.Node, true)
	owner.must(err)
	for _, one := range []*rig.Volume{p.w, p.v} {
		owner.must(one.Paths())
		owner.must(one.Up())
		owner.must(rig.Check(one.Target, dataBytes, sum))
		if writable(one.Target) == nil {
			t.Errorf("%s can be written to", one.Target)
		}
	}
	p.hidden(words[:40])
	user.must(p.w.Down())
	user.nothing()
	owner.must(p.v.Down())
	owner.must(takeFrom(t, owner.c, p.v, ""))
	owner.noCrypt()
	p.nothing()
	p.v.Cap, p.w.Cap = alone, aloneThere
	owner.must(p.v.Paths())

	// With the same key it is used here, and so is the snapshot.
	p.comesBack(sum, size)
	restored := owner.encrypted("restored", "ext4", randomKey)
	restored.Source, restored.Size = rig.FromSnapshot(snapshot.GetSnapshotId()), snapshot.GetSizeBytes()
	owner.must(restored.Up())
	owner.must(rig.Check(restored.Target, dataBytes, sum))
	owner.must(restored.Gone())
	owner.must(owner.d.DeleteSnapshot(snapshot.GetSnapshotId()))
	owner.must(p.v.Gone())
	owner.noCrypt()
	for _, b := range []*bed{owner, user.bed} {
		if log, err := os.ReadFile(b.d.Log); err != nil || bytes.Contains(log, []byte(randomKey)) {
			t.Errorf("the key is in the log (%v)", err)
		}
	}
}

// Many writers, first used on the own node; a driver that is killed while it opens; and a reader's cover.
func TestPairEncryptedBlock(t *testing.T) {
	needCrypt(t)
	const writers = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	p := openPair(t)
	owner, user := p.owner, p.user
	p.createEncrypted("pair-secret-block", "block")
	owner.must(p.v.Up())
	f := owner.openDirect(p.v.Target)
	owner.must(writeBlock(f, 1, 'a'))
	f.Close()
	owner.must(p.v.Down())
	owner.noCrypt()

	p.v.Cap, p.w.Cap = rig.WithMode(p.v.Cap, writers), rig.WithMode(p.w.Cap, writers)
	owner.must(p.attach(false))
	for round := range 4 {
		staged := make(chan error, 1)
		go func() { staged <- p.w.Stage() }()
		time.Sleep(time.Duration(round) * 100 * time.Millisecond)
		user.must(user.d.Kill())
		<-staged
		user.start()
		if round%2 == 0 {
			user.eventually(p.w.Unstage)
			// What the killed driver's helper was doing may end after that, and is swept.
			user.eventually(func() error {
				if names, left := user.e.Connections(), covers(); len(names)+len(left) > 0 {
					return fmt.Errorf("left behind: %v %v", names, left)
				}
				return nil
			})
			owner.noCrypt()
		}
	}
	user.eventually(p.w.Stage)
	user.must(p.w.Publish())
	p.opened(p.v.Got)
	p.hidden([]byte(strings.Repeat("a", 512)))
	sum, err := rig.Fill(p.w.Target, dataBytes, 3)
	user.must(err)
	size := p.v.Got + 16*mib
	owner.must(p.v.Expand(size, false))
	_, err = user.nodeExpand(size)
	user.must(err)
	p.opened(p.v.Got)
	user.must(p.w.Down())
	user.nothing()

	user.must(p.w.Paths())
	user.must(p.w.Stage())
	user.must(p.w.PublishAt(p.w.Target, true))
	if writable(p.w.Target) == nil {
		t.Error("a reader writes")
	}
	user.must(rig.Check(p.w.Target, dataBytes, sum))
	user.must(p.w.Down())
	owner.must(p.detach())
	owner.noCrypt()
	p.nothing()
	owner.must(p.v.Paths())
	owner.must(p.v.Up())
	owner.must(rig.Check(p.v.Target, dataBytes, sum))
	owner.must(p.v.Gone())
	owner.noCrypt()
}
