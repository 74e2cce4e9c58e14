// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"google.golang.org/grpc/codes"
)

// rounds of tests that repeat: RINGVOL_RAW_LONG=1 asks for a thousand, RINGVOL_RAW_ROUNDS=N for so many.
func rounds(few int) int {
	many, _ := strconv.Atoi(os.Getenv("RINGVOL_RAW_ROUNDS"))
	switch {
	case many > 0:
		return many
	case os.Getenv("RINGVOL_RAW_LONG") != "":
		return 1000
	case testing.Short():
		return (few + 2) / 3
	}
	return few
}

// insist repeats a call as kubelet does, as long as the answer is "later".
func (b *rawBed) insist(call func() error) {
	b.t.Helper()
	b.must(rig.Eventually(2*time.Minute, func() error {
		err := call()
		switch rig.Code(err) {
		case codes.OK, codes.Unavailable, codes.Aborted, codes.DeadlineExceeded:
			return err
		}
		return rig.Stop(err)
	}))
}

// killed runs a call, and kills the driver somewhere in it or after it. The call is repeated until it succeeds.
func (b *rawBed) killed(after time.Duration, call func() error) {
	b.t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	time.Sleep(after)
	b.must(b.d.Kill())
	<-done
	b.start()
	b.insist(call)
}

// A tenant's bytes are never read by the next one who has the place, wherever the driver was killed between: it deletes, it
// overwrites, it makes the next one, it hands it out.
func TestRawPoolStale(t *testing.T) {
	b := openRaw(t, 1200*mib)
	b.accounts()
	// All but a little is somebody else's, so that the little is used again and again.
	const size, room = 96 * mib, 160 * mib
	ballast := b.d.Volume("ballast", rig.BlockCap(), b.capacity(nil)-room)
	b.must(ballast.Create())
	seed := uint64(time.Now().UnixNano())
	count := rounds(20)
	t.Logf("seed %d, %d rounds", seed, count)
	random := rand.New(rand.NewPCG(seed, 0))
	moment := func(within int) time.Duration { return time.Duration(random.IntN(within*1000)) * time.Microsecond }
	var last []byte // what the one before wrote
	for round := range count {
		kind := []string{"block", "block", "ext4"}[random.IntN(3)]
		v := b.d.Volume(fmt.Sprintf("tenant-%d", round%7), rig.CapFor(kind), size)
		where := random.IntN(6)
		create := func() error { return v.Create() }
		if where == 0 {
			b.killed(moment(60), create)
		} else {
			b.insist(create)
		}
		if where == 1 {
			b.killed(moment(60), v.Stage)
		}
		b.must(v.Stage())
		node := b.mapped(v)
		if kind == "block" {
			if err := onlyZeros(node); err != nil {
				t.Fatalf("round %d (killed at %d): %v", round, where, err)
			}
		} else if last != nil {
			if err := withoutMark(node, last); err != nil {
				t.Fatalf("round %d (killed at %d): %v", round, where, err)
			}
		}
		mark := fmt.Appendf(nil, "the bytes of tenant %06d, ", round)
		if kind == "block" {
			b.must(marked(node, mark, random.IntN(4) == 0))
		} else {
			b.must(v.Publish())
			b.must(os.WriteFile(filepath.Join(v.Target, "data"), bytes.Repeat(mark, 1<<18), 0o600))
			b.must(v.Unpublish())
		}
		last = mark
		b.must(v.Unstage())
		switch where {
		case 2, 3:
			b.killed(moment(40), v.Delete)
		case 4: // while it is overwritten
			b.must(v.Delete())
			time.Sleep(moment(40))
			b.must(b.d.Kill())
			b.start()
		case 5: // and once more
			b.must(v.Delete())
			for range 3 {
				b.must(b.d.Kill())
				b.must(b.d.Launch())
				time.Sleep(moment(200))
			}
			b.must(b.d.Kill())
			b.start()
		default:
			b.must(v.Delete())
		}
	}
	b.must(ballast.Delete())
	b.accounts()
}
