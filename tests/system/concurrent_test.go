// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// at once runs n calls together and returns what they said.
func atOnce(n int, call func(i int) error) []error {
	errs := make([]error, n)
	var wait sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wait.Go(func() {
			<-begin
			errs[i] = call(i)
		})
	}
	close(begin)
	wait.Wait()
	return errs
}

func TestSameRequestFiftyTimes(t *testing.T) {
	for _, kind := range []string{"ext4", "block"} {
		t.Run(kind, func(t *testing.T) {
			b := open(t, "xfs", 2<<30)
			var clients []*rig.Client
			for range 5 {
				c, err := rig.Dial(b.d.Socket)
				b.must(err)
				defer c.Conn.Close()
				clients = append(clients, c)
			}
			v := b.volume("once", kind)
			b.must(v.Paths())
			copies := make([]*rig.Volume, 50)
			for i := range copies {
				copies[i] = v.On(clients[i%len(clients)])
			}
			all := func(what string, call func(v *rig.Volume) error) {
				t.Helper()
				for _, err := range atOnce(len(copies), func(i int) error { return call(copies[i]) }) {
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
				}
			}
			all("create", (*rig.Volume).Create)
			for _, c := range copies {
				if c.ID != copies[0].ID || c.Got != copies[0].Got {
					t.Fatalf("two answers: %s %d, %s %d", c.ID, c.Got, copies[0].ID, copies[0].Got)
				}
			}
			if names := b.pool.Names("volumes"); len(names) != 1 {
				t.Errorf("volumes: %v", names)
			}
			all("stage", (*rig.Volume).Stage)
			if loops := rig.LoopsBelow(b.pool.Path); len(loops) != 1 {
				t.Errorf("bound: %v", loops)
			}
			all("publish", (*rig.Volume).Publish)
			ids := make([]string, len(copies))
			for _, err := range atOnce(len(copies), func(i int) error {
				s, err := copies[i].Snapshot("once")
				ids[i] = s.GetSnapshotId()
				return err
			}) {
				b.must(err)
			}
			for _, id := range ids {
				if id != ids[0] {
					t.Fatalf("two snapshots: %s %s", id, ids[0])
				}
			}
			b.must(b.d.DeleteSnapshot(ids[0]))
			all("unpublish", (*rig.Volume).Unpublish)
			all("unstage", (*rig.Volume).Unstage)
			all("delete", (*rig.Volume).Delete)
		})
	}
}

func TestSameNameOtherArguments(t *testing.T) {
	b := open(t, "xfs", 4<<30)
	for round := range 10 {
		copies := make([]*rig.Volume, 50)
		for i := range copies {
			copies[i] = b.d.Volume(fmt.Sprintf("other-%d", round), rig.BlockCap(), int64(16+i%5)*mib)
			copies[i].Limit = copies[i].Size
		}
		made := map[string]int64{}
		for i, err := range atOnce(len(copies), func(i int) error { return copies[i].Create() }) {
			if err != nil {
				b.refused("creating with other arguments", err, codes.Aborted, codes.AlreadyExists)
				continue
			}
			made[copies[i].ID] = copies[i].Got
		}
		if len(made) != 1 {
			t.Fatalf("made: %v", made)
		}
		for id := range made {
			v := *copies[0]
			v.ID = id
			b.must(v.Delete())
		}
	}
}

// All that can be done to one volume, at once and in any order: no answer but the honest ones, and
// afterwards it can be taken down.
func TestEverythingAtOnce(t *testing.T) {
	b := open(t, "xfs", 4<<30)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	v := b.volume("storm", "ext4")
	b.must(v.Create())
	b.must(v.Paths())
	calls := []func(v *rig.Volume) error{
		(*rig.Volume).Create, (*rig.Volume).Stage, (*rig.Volume).Publish, (*rig.Volume).Unpublish,
		(*rig.Volume).Unstage, func(v *rig.Volume) error { return second(v.Stats()) },
		func(v *rig.Volume) error {
			s, err := v.Snapshot("storm")
			if err != nil {
				return err
			}
			return b.d.DeleteSnapshot(s.GetSnapshotId())
		},
	}
	for worker, err := range atOnce(12, func(worker int) error {
		random := rand.New(rand.NewPCG(seed, uint64(worker)))
		w := *v
		for range 60 {
			err := calls[random.IntN(len(calls))](&w)
			switch code := rig.Code(err); code {
			case codes.OK, codes.Aborted, codes.FailedPrecondition, codes.NotFound:
			case codes.Unknown: // our own checks of what was left
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					continue
				}
			default:
				return fmt.Errorf("%v: %w", code, err)
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("worker %d: %v", worker, err)
		}
	}
	b.must(v.Unpublish())
	b.must(v.Unstage())
	b.must(v.Delete())
	reply, err := b.c.ListSnapshots(short(t), &csi.ListSnapshotsRequest{})
	b.must(err)
	for _, entry := range reply.GetEntries() {
		b.must(b.d.DeleteSnapshot(entry.GetSnapshot().GetSnapshotId()))
	}
}

func TestManyVolumesAtOnce(t *testing.T) {
	b := open(t, "xfs", 4<<30)
	for i, err := range atOnce(24, func(i int) error {
		kind := []string{"ext4", "block", "ext4"}[i%3]
		v := b.d.Volume(fmt.Sprintf("many-%d", i), rig.CapFor(kind), 16*mib)
		for range 3 {
			v.ID = ""
			if err := v.Up(); err != nil {
				return err
			}
			sum, err := rig.Fill(v.Target, mib, uint64(i))
			if err != nil {
				return err
			}
			if err := rig.Check(v.Target, mib, sum); err != nil {
				return err
			}
			if err := v.Gone(); err != nil {
				return err
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("volume %d: %v", i, err)
		}
	}
}

// copyUnderWay asks for a copy and returns once it is seen under way, with a way to end the call and
// the call's answer to come. A copy that was over before anybody saw it is deleted and made anew.
func (b *bed) copyUnderWay(v *rig.Volume, size int64) (cancel func(), answer <-chan error) {
	b.t.Helper()
	labels := []string{"operation", "CreateVolume", "name", v.Name}
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), rig.CallTimeout)
		made := make(chan error, 1)
		go func() {
			_, err := b.c.CreateVolume(ctx, v.Request())
			made <- err
		}()
		for running := true; running; {
			m, err := b.d.Scrape()
			b.must(err)
			done := m.Value("ringvol_copy_done_bytes", labels...)
			if m.Find("ringvol_copy_size_bytes", labels...) != nil && done > 0 && done < float64(size)/2 {
				return cancel, made
			}
			select {
			case err := <-made:
				b.must(err)
				running = false
			default:
			}
		}
		cancel()
		b.must(v.Create())
		b.must(v.Delete())
	}
	b.t.Fatal("no scrape saw a copy under way")
	return nil, nil
}

// A copy whose client goes away in the middle, and which is asked for again and again as
// external-provisioner does, is made once: the work goes on when the call ends, a retry joins it or
// finds it done.
func TestCloneOutlivesItsDeadline(t *testing.T) {
	b := newBed(t, "ext4", 4<<30)
	b.must(b.d.ServeHTTP())
	b.start()
	source := b.d.Volume("source", rig.BlockCap(), 640*mib)
	b.must(source.Up())
	sum, err := rig.Fill(source.Target, 512*mib, 60)
	b.must(err)
	b.must(source.Down())

	v := b.d.Volume("patient", rig.BlockCap(), 640*mib)
	v.Source = rig.FromVolume(source.ID)
	cancel, answer := b.copyUnderWay(v, 640*mib)
	cancel()
	if err := <-answer; rig.Code(err) != codes.Canceled {
		t.Fatalf("a call that was cancelled while its copy was under way said %v", err)
	}
	b.must(rig.Eventually(5*time.Minute, func() error {
		err := v.Create()
		if err != nil && rig.Code(err) != codes.Aborted { // "still working on it" is honest too
			return rig.Stop(err)
		}
		return err
	}))
	if names := b.pool.Names("volumes"); len(names) != 2 {
		t.Errorf("volumes: %v", names)
	}
	b.must(v.Up())
	b.must(rig.Check(v.Target, 512*mib, sum))
	b.must(v.Gone())

	// The same with the driver told to end in the middle: it parks the copy, leaves nothing half
	// made, and the retry makes it.
	w := b.d.Volume("parked", rig.BlockCap(), 640*mib)
	w.Source = rig.FromVolume(source.ID)
	cancel, answer = b.copyUnderWay(w, 640*mib)
	b.must(b.d.Term())
	err = <-answer
	cancel()
	if rig.Code(err) != codes.Unavailable {
		t.Errorf("a copy under way when the driver was told to end: %v", err)
	}
	if log := b.d.LogTail(20); strings.Contains(log, "before all was idle") {
		t.Errorf("the drain did not park the copy:\n%s", log)
	}
	if names := b.pool.Names("volumes"); len(names) != 1 {
		t.Errorf("volumes after the end: %v", names)
	}
	b.start()
	b.must(w.Create())
	b.must(w.Up())
	b.must(rig.Check(w.Target, 512*mib, sum))
	b.must(w.Gone())
	b.must(source.Delete())
}
