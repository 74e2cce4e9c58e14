// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// Every name that the documentation lists is there, and nothing else.
func documentedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(line, "| `"); found && !strings.HasPrefix(name, "/") {
			names[name[:strings.IndexAny(name, "`{")]] = true
		}
	}
	return names
}

func labelsOf(m rig.Metrics, name string) string {
	var all []string
	for _, l := range m.Find(name).GetLabel() {
		all = append(all, l.GetValue())
	}
	return strings.Join(all, " ")
}

func TestMetrics(t *testing.T) {
	b := openProbed(t) // what is written before the probes are loaded is not counted
	file := b.d.Volume("file", rig.MountCap("ext4"), 64*mib)
	b.must(file.Up())
	block := b.d.Volume(`odd "name" \`, rig.BlockCap(), 32*mib)
	b.must(block.Create())
	b.must(block.Stage())
	idle := b.d.Volume("idle", rig.BlockCap(), 16*mib)
	b.must(idle.Create())
	b.must(os.WriteFile(filepath.Join(file.Target, "data"), bytes.Repeat([]byte("data"), int(2*mib)), 0o600))
	unix.Sync()

	m, err := b.d.Scrape()
	b.must(err)
	documented := documentedMetrics(t)
	for name := range m {
		if !documented[name] {
			t.Errorf("%s is not in docs/metrics.md", name)
		}
	}
	for name := range documented {
		if strings.HasPrefix(name, "ringvol_copy_") {
			continue // there is no copy: TestMetricsOfCopies
		}
		family := m[name]
		if family == nil {
			t.Errorf("%s of docs/metrics.md is not there", name)
		} else if family.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
	}

	for _, v := range []*rig.Volume{file, block} {
		if n := m.Series("volume", v.Name); n == 0 || n > 60 {
			t.Errorf("volume %s has %d series", v.Name, n)
		}
		if got := m.Value("ringvol_volume_capacity_bytes", "volume", v.Name); got != float64(v.Got) {
			t.Errorf("volume %s: a capacity of %v instead of %v", v.Name, got, v.Got)
		}
		if m.Value("ringvol_volume_abnormal", "volume", v.Name) != 0 || m.Value("ringvol_volume_allocated_bytes", "volume", v.Name) < 0 {
			t.Errorf("volume %s reads as abnormal, or not at all", v.Name)
		}
	}
	if n := m.Series("volume", idle.Name); n != 0 {
		t.Errorf("a volume that is not attached has %d series", n)
	}
	if got := m.Value("ringvol_volume_io_bytes_total", "volume", file.Name, "op", "write"); got < float64(8*mib) {
		t.Errorf("8 MiB were written, %v bytes are told", got)
	}
	if got := m.Value("ringvol_volume_io_seconds", "volume", file.Name, "op", "write"); got < 1 {
		t.Errorf("no write has a latency: %v", got)
	}
	if got := m.Value("ringvol_pool_provisioned_bytes", "pool", "default"); got != float64(file.Got+block.Got+idle.Got) {
		t.Errorf("%v bytes provisioned", got)
	}
	if got := m.Value("ringvol_pool_volumes", "pool", "default"); got != 3 {
		t.Errorf("%v volumes", got)
	}
	var fs unix.Statfs_t
	b.must(unix.Statfs(b.pool.Path, &fs))
	if got := m.Value("ringvol_pool_capacity_bytes", "pool", "default"); got != float64(fs.Blocks)*float64(fs.Bsize) {
		t.Errorf("a capacity of %v", got)
	}
	if got := m.Value("ringvol_rpc_duration_seconds", "method", "/csi.v1.Controller/CreateVolume", "code", "OK"); got != 3 {
		t.Errorf("%v calls of CreateVolume are told of", got)
	}
	if m.Value("ringvol_operation_step_seconds", "operation", "NodeStageVolume") < 1 {
		t.Error("no step of NodeStageVolume is told of")
	}
	if m.Value("ringvol_rpc_in_flight") != 0 || m.Value("ringvol_helpers_hung") != 0 {
		t.Error("something is in flight or hangs")
	}

	// A refused call has its code, and an unstaged volume goes.
	_ = b.d.Volume("", rig.BlockCap(), 16*mib).Create()
	b.must(block.Unstage())
	m, err = b.d.Scrape()
	b.must(err)
	if got := m.Value("ringvol_rpc_duration_seconds", "method", "/csi.v1.Controller/CreateVolume", "code", "INVALID_ARGUMENT"); got != 1 {
		t.Errorf("%v refused calls are told of", got)
	}
	if n := m.Series("volume", block.Name); n != 0 {
		t.Errorf("an unstaged volume has %d series", n)
	}
	b.must(block.Delete())
	b.must(idle.Delete())
	b.must(file.Gone())
}

// What the driver says is what Prometheus' own tool calls well-formed and well-named.
func TestMetricsLint(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not here (Debian: prometheus)")
	}
	b := openHTTP(t)
	v := b.d.Volume("lint", rig.MountCap("ext4"), 64*mib)
	b.must(v.Up())
	_, text, err := b.d.Get("/metrics")
	b.must(err)
	lint := exec.Command(promtool, "check", "metrics")
	lint.Stdin = strings.NewReader(text)
	if out, err := lint.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	b.must(v.Gone())
}

// How far a copy is, while it runs and no longer.
func TestMetricsOfCopies(t *testing.T) {
	b := newBed(t, "ext4", 4<<30)
	b.must(b.d.ServeHTTP())
	b.start()
	source := b.d.Volume("source", rig.BlockCap(), 512*mib)
	b.must(source.Up())
	_, err := rig.Fill(source.Target, 256*mib, 61)
	b.must(err)
	b.must(source.Down())
	seen := 0.0
	for round := 0; seen == 0 && round < 20; round++ {
		clone := b.d.Volume(fmt.Sprintf("clone-%d", round), rig.BlockCap(), 512*mib)
		clone.Source = rig.FromVolume(source.ID)
		made := make(chan error, 1)
		go func() { made <- clone.Create() }()
		for running := true; running; {
			select {
			case err := <-made:
				b.must(err)
				running = false
			default:
			}
			m, err := b.d.Scrape()
			b.must(err)
			labels := []string{"operation", "CreateVolume", "name", clone.Name}
			size, done := m.Find("ringvol_copy_size_bytes", labels...), m.Value("ringvol_copy_done_bytes", labels...)
			if size != nil && (size.GetGauge().GetValue() != float64(512*mib) || done > float64(512*mib)) {
				t.Errorf("%v of %v bytes are copied", done, size)
			}
			if size != nil && done < float64(512*mib) {
				seen = max(seen, done)
			}
		}
		b.must(clone.Delete())
	}
	if seen == 0 {
		t.Error("no scrape saw a copy under way")
	}
	m, err := b.d.Scrape()
	b.must(err)
	if m["ringvol_copy_size_bytes"] != nil || m["ringvol_copy_done_bytes"] != nil {
		t.Error("a copy that is over has series")
	}
	b.must(source.Delete())
}

// The measure of a pool a scrape asks for: new data is seen without any call between.
func TestMetricsFollowThePool(t *testing.T) {
	b := openHTTP(t)
	v := b.d.Volume("grows", rig.MountCap("ext4"), 256*mib)
	b.must(v.Up())
	_, err := b.d.Scrape()
	b.must(err)
	b.must(os.WriteFile(filepath.Join(v.Target, "data"), bytes.Repeat([]byte("data"), int(16*mib)), 0o600))
	unix.Sync()
	b.must(rig.Eventually(60*time.Second, func() error {
		m, err := b.d.Scrape()
		if err == nil && m.Value("ringvol_volume_allocated_bytes", "volume", v.Name) < float64(64*mib) {
			err = fmt.Errorf("64 MiB were written, %v are told", m.Value("ringvol_volume_allocated_bytes", "volume", v.Name))
		}
		return err
	}))
	b.must(v.Gone())
}
