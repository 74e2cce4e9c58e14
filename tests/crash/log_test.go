// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

const (
	logSlots = 128
	logBlock = 4096
	logAt    = 8 * mib // past what is filled
)

// writer is a pod: it writes numbered blocks into a published volume, one after the other in a ring
// of slots, syncs each and reads it back. Whatever becomes of the driver, it must not see an error.
type writer struct {
	stop   atomic.Bool
	synced atomic.Int64 // blocks
	done   chan struct{}
	err    error
}

func startWriter(path string) *writer {
	w := &writer{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = w.run(path)
	}()
	return w
}

func openLog(path string, flags int) (*os.File, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.IsDir() {
		path = filepath.Join(path, "log")
	}
	return os.OpenFile(path, flags, 0o644)
}

func (w *writer) run(path string) error {
	flags := os.O_RDWR
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		flags |= os.O_CREATE
	}
	file, err := openLog(path, flags)
	if err != nil {
		return err
	}
	defer file.Close()
	block, back := make([]byte, logBlock), make([]byte, 8)
	for n := int64(1); !w.stop.Load(); n++ {
		at := logAt + n%logSlots*logBlock
		binary.LittleEndian.PutUint64(block, uint64(n))
		if _, err := file.WriteAt(block, at); err != nil {
			return fmt.Errorf("writing block %d: %w", n, err)
		}
		if err := file.Sync(); err != nil {
			return fmt.Errorf("syncing block %d: %w", n, err)
		}
		if _, err := file.ReadAt(back, at); err != nil {
			return fmt.Errorf("reading block %d: %w", n, err)
		}
		if got := binary.LittleEndian.Uint64(back); got != uint64(n) {
			return fmt.Errorf("block %d reads %d", n, got)
		}
		w.synced.Store(n)
	}
	return nil
}

// failure is what the writer saw, nil while it lives.
func (w *writer) failure() error {
	select {
	case <-w.done:
		return w.err
	default:
		return nil
	}
}

func (w *writer) finish() error {
	w.stop.Store(true)
	<-w.done
	return w.err
}

// checkLog reads a copy of a writer's log: every block that was synced before the copy was asked
// for is there, or a later one in its slot, and no block is there without those before it.
func checkLog(path string, synced int64) error {
	file, err := openLog(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	slots := make([]byte, logSlots*logBlock)
	if n, err := file.ReadAt(slots, logAt); n < len(slots) && synced >= logSlots {
		return fmt.Errorf("%s: %d bytes of the log: %w", path, n, err)
	}
	last := int64(0)
	for slot := range int64(logSlots) {
		last = max(last, int64(binary.LittleEndian.Uint64(slots[slot*logBlock:])))
	}
	if last < synced {
		return fmt.Errorf("%s: the log ends at block %d, synced were %d", path, last, synced)
	}
	for n := max(1, last-logSlots+1); n <= last; n++ {
		got := int64(binary.LittleEndian.Uint64(slots[n%logSlots*logBlock:]))
		// The block after the last synced one may be on its way while an older one fills its slot.
		if got != n {
			return fmt.Errorf("%s: slot %d holds block %d instead of %d (last %d, synced %d)", path,
				n%logSlots, got, n, last, synced)
		}
	}
	return nil
}

// slow: an emulated machine on a busy host may take seconds for what takes a millisecond elsewhere.
func (t *torture) slow() bool {
	text, _ := os.ReadFile("/sys/class/dmi/id/sys_vendor")
	return strings.Contains(string(text), "QEMU")
}

// readLog looks at what the driver said since the last time.
func (t *torture) readLog() bool {
	text, err := os.ReadFile(t.d.Log)
	t.must(err)
	said := string(text[t.logRead:])
	t.logRead = int64(len(text))
	for _, bad := range []string{"runtime error", "Sanitizer", "Assertion", "served by another driver",
		"state=sick", "level=error"} {
		if at := strings.Index(said, bad); at >= 0 {
			line := said[strings.LastIndex(said[:at], "\n")+1:]
			line, _, _ = strings.Cut(line, "\n")
			if t.slow() && strings.Contains(line, "does not answer") {
				continue // for more than 2 s; then it is sick until it does
			}
			t.violation("the driver said: %s", line)
			return false
		}
	}
	return true
}

func (t *torture) report() {
	slices.Sort(t.starts)
	if n := len(t.starts); n > 0 {
		t.t.Logf("seed %d: %d kills in %.1f s; ready again after p50 %v, max %v", t.seed, t.killed,
			time.Since(t.began).Seconds(), t.starts[n/2].Round(time.Millisecond/10),
			t.starts[n-1].Round(time.Millisecond/10))
	}
	var calls []string
	for _, op := range slices.Sorted(maps.Keys(t.inFlight)) {
		calls = append(calls, fmt.Sprintf("%s %d", op, t.inFlight[op]))
	}
	t.t.Logf("under way when killed: %s", strings.Join(calls, ", "))
	if n := t.kept.Load(); n > 0 {
		t.t.Logf("devices let go were kept by mount namespaces of others: seen %d times", n)
	}
	var file *os.File
	if *traceOut != "" {
		var err error
		file, err = os.Create(*traceOut)
		t.must(err)
		defer file.Close()
	}
	for _, w := range t.all() {
		tail := w.writeTrace(file, 25)
		if len(t.found) > 0 {
			t.t.Logf("== the last of %s:\n%s", w.name, tail)
		}
	}
	if file != nil {
		log, _ := os.ReadFile(t.d.Log)
		fmt.Fprintf(file, "== driver\n%s", log)
	}
	if len(t.found) > 0 {
		t.t.Logf("== mounts: %v\n== devices: %v\n== the driver:\n%s",
			rig.MountsBelow(t.rig.Dir), t.devices(), t.d.LogTail(25))
	}
	for _, line := range t.found {
		t.t.Error(line)
	}
}
