// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"ringvol.dev/tests/rig"
)

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
	for _, w := range append([]*worker{t.keeper}, t.workers...) {
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
			rig.MountsBelow(t.rig.Dir), t.loops(), t.d.LogTail(25))
	}
	for _, line := range t.found {
		t.t.Error(line)
	}
}
