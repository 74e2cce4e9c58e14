// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// bound tells whether a loop device is bound to this image and nobody has asked for its end.
func bound(image string) error {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		name, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(name)) != image {
			continue
		}
		ends, err := os.ReadFile(filepath.Join(filepath.Dir(file), "autoclear"))
		if err == nil && strings.TrimSpace(string(ends)) != "0" {
			err = fmt.Errorf("%s ends with its last user", file)
		}
		return err
	}
	return fmt.Errorf("%s is on no loop device any more", image)
}

// Records that cannot be read when the driver starts, of volumes that pods have: device, mount and data
// stay as they are, and are known again once the records are.
func TestDamagedRecordsInUse(t *testing.T) {
	if rig.Device() != "" {
		t.Skip("looks at loop devices")
	}
	b := open(t, "xfs", 2<<30)
	var volumes []*rig.Volume
	var sums []string
	for i, kind := range []string{"block", "ext4"} {
		v := b.volume("in-use-"+kind, kind)
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, uint64(60+i))
		b.must(err)
		volumes, sums = append(volumes, v), append(sums, sum)
	}
	staged := b.volume("staged-only", "block") // nothing but its record tells whose its device is
	b.must(staged.Create())
	b.must(staged.Stage())
	volumes, sums = append(volumes, staged), append(sums, "")
	b.must(b.d.Term())

	records := make([][]byte, len(volumes))
	for i, v := range volumes {
		record := make([]byte, 8192)
		n, err := unix.Getxattr(b.pool.Image(v.ID), recordXattr, record)
		b.must(err)
		records[i] = record[:n]
		bad := slices.Clone(records[i])
		bad[n/2] ^= 1
		b.must(unix.Setxattr(b.pool.Image(v.ID), recordXattr, bad, 0))
	}
	b.start()
	for i, v := range volumes {
		b.must(bound(b.pool.Image(v.ID)))
		b.refused("deleting "+v.Name, v.Delete(), codes.DataLoss)
		if sums[i] != "" {
			b.must(rig.Check(v.Target, dataBytes, sums[i]))
			sum, err := rig.Fill(v.Target, dataBytes, uint64(70+i)) // and it can still be written
			b.must(err)
			sums[i] = sum
		}
	}
	log, err := os.ReadFile(b.d.Log)
	b.must(err)
	for _, word := range []string{"device of a deleted volume cleared"} {
		if bytes.Contains(log, []byte(word)) {
			t.Errorf("the log says %q:\n%s", word, b.d.LogTail(20))
		}
	}
	if n := bytes.Count(log, []byte("a device of no known volume is left alone")); n != len(volumes) {
		t.Errorf("%d devices are named in the log, not %d:\n%s", n, len(volumes), b.d.LogTail(20))
	}

	b.must(b.d.Term())
	for i, v := range volumes {
		b.must(unix.Setxattr(b.pool.Image(v.ID), recordXattr, records[i], 0))
	}
	b.start()
	for i, v := range volumes {
		if sums[i] != "" {
			b.must(rig.Check(v.Target, dataBytes, sums[i]))
			b.must(v.Unpublish())
		}
		b.must(v.Unstage())
		b.must(v.Delete())
	}
}

// A data process that accepts and says nothing: loop volumes are known all the same, and the rest once it
// is gone.
func TestMuteDataProcess(t *testing.T) {
	needUblk(t) // or nobody is asked
	b := newBed(t, "xfs", 1<<30)
	b.must(b.d.ServeHTTP())
	b.d.Args = append(b.d.Args, "--ublkd", "external")
	b.start()
	v := b.volume("loop", "ext4")
	v.Params = map[string]string{"device": "loop"}
	b.must(v.Up())
	b.must(b.d.Term())
	b.must(os.MkdirAll(filepath.Dir(b.d.Ublkd.Socket), 0o755))
	mute, err := net.Listen("unixpacket", b.d.Ublkd.Socket)
	b.must(err)
	accepted := make(chan net.Conn, 16)
	go func() {
		for {
			conn, err := mute.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- conn
		}
	}()
	b.must(b.d.Start())
	b.connect()
	conn := <-accepted // the look is under way, and stays so
	_, err = v.Stats()
	b.must(err)
	b.readyz(503, "device: ublk", "still looked for")
	s, err := v.Snapshot("beside")
	b.must(err)
	b.must(b.d.AwaitReady()) // sidecars go on for the loop volumes
	b.must(mute.Close())
	conn.Close()
	for conn := range accepted {
		conn.Close()
	}
	b.readyz(200, "ready")
	b.must(b.d.DeleteSnapshot(s.GetSnapshotId()))
	b.must(v.Gone())
}
