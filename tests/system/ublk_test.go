// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"google.golang.org/grpc/codes"
)

// What only ublk volumes have: a data process beside the driver. That they can do everything else is
// told by the other tests, run with RINGVOL_TEST_DEVICE=ublk.

func needUblk(t *testing.T) {
	t.Helper()
	if err := rig.HaveUblk(); err != nil {
		t.Skip(err)
	}
}

func (b *bed) ublk(name, kind string) *rig.Volume {
	v := b.volume(name, kind)
	v.Params = map[string]string{"device": "ublk"}
	return v
}

// writers makes a volume of each kind, with something known in it and somebody writing to it.
func (b *bed) writers(kinds ...string) (volumes []*rig.Volume, writers []*writer, check func()) {
	b.t.Helper()
	var sums []string
	for i, kind := range kinds {
		v := b.ublk("ublk-"+kind, kind)
		b.must(v.Up())
		sum, err := rig.Fill(v.Target, dataBytes, uint64(30+i))
		b.must(err)
		volumes, sums = append(volumes, v), append(sums, sum)
		writers = append(writers, startWriter(v.Target))
	}
	return volumes, writers, func() {
		b.t.Helper()
		for i, v := range volumes {
			b.must(rig.Check(v.Target, dataBytes, sums[i]))
		}
	}
}

func (b *bed) end(volumes []*rig.Volume, writers []*writer) {
	b.t.Helper()
	for _, w := range writers {
		b.must(w.finish())
	}
	for _, v := range volumes {
		b.must(v.Gone())
	}
}

// The driver starts a data process when the first volume needs it; neither's death, nor that of both,
// is seen by who writes.
func TestUblkProcessesDie(t *testing.T) {
	needUblk(t)
	b := open(t, "xfs", 4<<30)
	volumes, writers, check := b.writers("ext4", "xfs", "block")
	if b.d.Ublkd.Pid() == 0 {
		t.Fatal("there is no data process")
	}
	for round := range 3 {
		pid := b.d.Ublkd.Pid()
		b.must(b.d.Kill())
		for _, w := range writers {
			w.moves(b)
		}
		b.start()
		if now := b.d.Ublkd.Pid(); now != pid {
			t.Errorf("round %d: the data process was %d and is %d after the driver's restart", round, pid, now)
		}
		b.d.Ublkd.Kill() // the driver starts another
		for _, w := range writers {
			w.moves(b)
		}
		b.must(b.d.Kill())
		b.d.Ublkd.Kill()
		b.start()
		for _, w := range writers {
			w.moves(b)
		}
		check()
	}
	b.end(volumes, writers)
}

// A data process that somebody else runs: without it the calls say so, and go through when it is there.
func TestUblkExternal(t *testing.T) {
	needUblk(t)
	b := newBed(t, "xfs", 2<<30)
	b.d.Args = append(b.d.Args, "--ublkd", "external")
	b.start()
	v := b.ublk("external", "ext4")
	b.must(v.Create())
	b.says("NodeStageVolume without a data process", v.Stage(), "ringvol ublkd")
	b.refused("NodeStageVolume without a data process", v.Stage(), codes.Unavailable)
	b.must(b.d.Ublkd.Start())
	b.eventually(v.Stage)
	b.must(v.Publish())
	w := startWriter(v.Target)
	w.moves(b)
	b.d.Ublkd.Kill()
	time.Sleep(700 * time.Millisecond) // the driver looks, and may not start one
	if b.d.Ublkd.Pid() != 0 {
		t.Error("the driver started a data process of its own")
	}
	b.must(b.d.Ublkd.Start())
	w.moves(b)
	b.end([]*rig.Volume{v}, []*writer{w})
}

// A volume whose data process is dead is in use all the same, and so for a driver that knows nothing of
// it yet.
func TestUblkDeleteWhileDown(t *testing.T) {
	needUblk(t)
	b := newBed(t, "xfs", 2<<30)
	b.d.Args = append(b.d.Args, "--ublkd", "external")
	b.start()
	b.must(b.d.Ublkd.Start())
	v := b.ublk("down", "block")
	b.must(v.Create())
	b.eventually(v.Stage)
	b.d.Ublkd.Kill()
	b.refused("DeleteVolume", v.Delete(), codes.FailedPrecondition)
	b.must(b.d.Kill())
	b.start()
	b.refused("DeleteVolume after a restart", v.Delete(), codes.FailedPrecondition)
	b.must(b.d.Ublkd.Start())
	b.eventually(v.Unstage)
	b.must(v.Delete())
}

func TestUblkManyDevices(t *testing.T) {
	needUblk(t)
	const count = 70 // more than ublks_max, which some kernels enforce for all
	b := open(t, "xfs", 4<<30)
	var all []*rig.Volume
	for i := range count {
		v := b.ublk(fmt.Sprintf("many-%d", i), "block")
		b.must(v.Create())
		b.must(v.Stage())
		all = append(all, v)
	}
	for _, v := range all {
		b.must(v.Unstage())
		b.must(v.Delete())
	}
	if left := b.d.Ublkd.Devices(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestUblkOff(t *testing.T) {
	b := newBed(t, "xfs", 1<<30)
	b.d.Args = append(b.d.Args, "--ublkd", "off")
	b.start()
	v := b.ublk("off", "ext4")
	b.refused("CreateVolume", v.Create(), codes.FailedPrecondition)
	b.says("CreateVolume", v.Create(), "--ublkd")
}

// A kernel without ublk: said when the volume is asked for, with the module's name, and no sooner.
func TestUblkMissing(t *testing.T) {
	if rig.HaveUblk() == nil {
		t.Skip("this kernel has ublk")
	}
	b := open(t, "xfs", 1<<30)
	v := b.ublk("missing", "ext4")
	err := v.Create()
	b.refused("CreateVolume", err, codes.FailedPrecondition)
	b.says("CreateVolume", err, "ublk_drv")
	if b.d.Ublkd.Pid() != 0 {
		b.must(errors.New("a data process was started all the same"))
	}
}
