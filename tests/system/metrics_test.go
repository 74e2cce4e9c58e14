// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

func deployFile(t *testing.T, elem ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(append([]string{"..", "..", "deploy"}, elem...)...))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func promTool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not here (Debian: prometheus)", name)
	}
	return path
}

// dashboard is as much of Grafana's model as has to be right for a dashboard to load and show something.
type dashboard struct {
	Title         string
	UID           string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []struct {
		ID         int
		Type       string
		Title      string
		GridPos    struct{ X, Y, W, H int }
		Datasource struct{ Type, UID string }
		Targets    []struct {
			RefID, Expr string
			Datasource  struct{ Type, UID string }
		}
	}
}

var (
	metricName = regexp.MustCompile(`\b(ringvol|process)_[a-z_]+`)
	variable   = regexp.MustCompile(`\$\{?([a-z_]+)\}?`)
)

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(deployFile(t, "helm/ringvol/files/ringvol.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// expressions of the dashboard and the rules, by where they are.
func (d dashboard) expressions() map[string]string {
	found := map[string]string{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			found[fmt.Sprintf("panel %q %s", p.Title, target.RefID)] = target.Expr
		}
	}
	return found
}

func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 36 {
		t.Errorf("no title, uid or schema version: %q %q %d", d.Title, d.UID, d.SchemaVersion)
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	kinds := map[string]bool{"row": true, "stat": true, "timeseries": true, "table": true, "heatmap": true}
	for _, p := range d.Panels {
		if p.Title == "" || !kinds[p.Type] || ids[p.ID] {
			t.Errorf("panel %d %q: no title, an unknown type %q, or an id that is taken", p.ID, p.Title, p.Type)
		}
		ids[p.ID] = true
		if p.GridPos.W < 1 || p.GridPos.H < 1 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q lies outside", p.Title)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" {
					t.Fatalf("panels %q and %q overlap", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
		if (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("panel %q has %d queries", p.Title, len(p.Targets))
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" || target.Datasource.Type != "prometheus" {
				t.Errorf("panel %q asks one data source only: %+v", p.Title, target.Datasource)
			}
			for _, m := range variable.FindAllStringSubmatch(target.Expr, -1) {
				if !variables[m[1]] {
					t.Errorf("panel %q uses $%s, which is not there", p.Title, m[1])
				}
			}
		}
	}
}

// Every expression parses, as Prometheus has it.
func TestRules(t *testing.T) {
	promtool := promTool(t, "promtool")
	dir := t.TempDir()
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	i := 0
	for where, expr := range readDashboard(t).expressions() {
		expr = strings.ReplaceAll(expr, "$__rate_interval", "5m")
		i++
		fmt.Fprintf(&rules, "  # %s\n  - record: 'dashboard:expression%d'\n    expr: '%s'\n", where, i, strings.ReplaceAll(expr, "'", "''"))
	}
	file := filepath.Join(dir, "dashboard.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", file},
		{"check", "rules", deployFile(t, "helm/ringvol/files/rules.yml")},
		{"test", "rules", "rules_test.yml"},
	} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// The names in expressions are names of this driver, whatever its volumes did so far.
func TestExpressionsNameMetrics(t *testing.T) {
	b := openHTTP(t)
	v := b.d.Volume("named", rig.MountCap("ext4"), 64*mib)
	b.must(v.Up())
	_, text, err := b.d.Get("/metrics")
	b.must(err)
	rules, err := os.ReadFile(deployFile(t, "helm/ringvol/files/rules.yml"))
	b.must(err)
	documented := documentedMetrics(t)
	expressions := readDashboard(t).expressions()
	for i, line := range strings.Split(string(rules), "\n") {
		if strings.Contains(line, "expr:") || strings.Contains(line, "/ sum") || strings.Contains(line, "1 - sum") {
			expressions[fmt.Sprintf("rules.yml:%d", i+1)] = line
		}
	}
	for where, expr := range expressions {
		names := metricName.FindAllString(expr, -1)
		if len(names) == 0 && !strings.Contains(expr, "up{") && !strings.HasSuffix(expr, ">") {
			t.Errorf("%s names no metric: %s", where, expr)
		}
		for _, name := range names {
			if name == "ringvol_volume_io_errors_total" && !strings.Contains(text, `bpf"`) {
				continue
			}
			if strings.HasPrefix(name, "ringvol_tls_") {
				continue // it is in no cluster: TestTLSReload
			}
			if strings.HasPrefix(name, "ringvol_cluster_") || name == "ringvol_pool_zeroing_bytes" {
				name, _ = strings.CutSuffix(name, "_count") // a controller's, or a raw pool's
				if !documented[name] {
					t.Errorf("%s: docs/metrics.md has no %s", where, name)
				}
				continue
			}
			if !strings.Contains(text, "\n"+name+"{") && !strings.Contains(text, "\n"+name+" ") {
				t.Errorf("%s: there is no %s", where, name)
			}
		}
	}
	b.must(v.Gone())
}

// Prometheus itself scrapes a driver and evaluates the rules: what it then knows of a pool that goes away.
func TestPrometheus(t *testing.T) {
	prometheus := promTool(t, "prometheus")
	b := openHTTP(t)
	v := b.d.Volume("scraped", rig.MountCap("ext4"), 64*mib)
	b.must(v.Up())
	address, err := rig.FreeAddress()
	b.must(err)
	config := b.Path("prometheus.yml")
	b.must(os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}
rule_files: [%s]
scrape_configs:
  - job_name: ringvol
    static_configs: [{targets: ["%s"]}]
`, deployFile(t, "helm/ringvol/files/rules.yml"), b.d.HTTP), 0o600))
	b.beside(prometheus, "--config.file="+config, "--web.listen-address="+address,
		"--storage.tsdb.path="+b.Path("tsdb"), "--log.level=warn")

	query := func(expr string) (values []string, err error) {
		client := &http.Client{Timeout: 10 * time.Second}
		reply, err := client.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(expr))
		if err != nil {
			return nil, err
		}
		defer reply.Body.Close()
		var answer struct {
			Data struct {
				Result []struct{ Value [2]any }
			}
			Error string
		}
		if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil {
			return nil, err
		}
		if answer.Error != "" {
			return nil, rig.Stop(fmt.Errorf("%s: %s", expr, answer.Error))
		}
		for _, r := range answer.Data.Result {
			values = append(values, fmt.Sprint(r.Value[1]))
		}
		return values, nil
	}
	expect := func(expr, want string) {
		t.Helper()
		b.must(rig.Eventually(60*time.Second, func() error {
			values, err := query(expr)
			if err == nil && (len(values) != 1 || values[0] != want) {
				err = fmt.Errorf("%s: %v instead of %s", expr, values, want)
			}
			return err
		}))
	}
	expect(`up{job="ringvol"}`, "1")
	expect(`ringvol_volume_capacity_bytes{volume="scraped"}`, fmt.Sprint(64*mib))
	expect(`ringvol_pool_ready`, "1")
	// All of the dashboard is answered.
	for where, expr := range readDashboard(t).expressions() {
		expr = strings.ReplaceAll(expr, "$__rate_interval", "5s")
		expr = variable.ReplaceAllString(expr, ".*")
		if _, err := query(expr); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
	// What these two watch is the machine's load as much as the driver.
	const quiet = `count(ALERTS{alertname!~"RingvolLoopSlow|RingvolVolumeSlow"}) or vector(0)`
	expect(quiet, "0")
	b.must(v.Gone())
	// Busy while the deleted image is reclaimed.
	b.must(rig.Eventually(30*time.Second, func() error { return b.pool.Remount(true) }))
	expect(`ALERTS{alertname="RingvolPoolNotReady", alertstate="pending"}`, "1")
	b.must(b.pool.Remount(false))
	expect(`ringvol_pool_ready`, "1")
	expect(quiet, "0")
}

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
		if strings.HasPrefix(name, "ringvol_copy_") || name == "ringvol_pool_zeroing_bytes" {
			continue // there is no copy, and no raw pool: TestMetricsOfCopies, TestRawPoolTools
		}
		if strings.HasPrefix(name, "ringvol_pool_thin_") {
			continue // there is no thin pool: TestRawPoolThinMetrics
		}
		if strings.HasPrefix(name, "ringvol_volume_limit_") || strings.HasPrefix(name, "ringvol_volume_throttled_") {
			continue // no volume has a limit: TestModifyVolume, limits_real_test.go
		}
		if strings.HasPrefix(name, "ringvol_borrowed_") {
			continue // no volume of another node is used here: TestBorrowedLife
		}
		if strings.HasPrefix(name, "ringvol_controller_") || strings.HasPrefix(name, "ringvol_names_") ||
			strings.HasPrefix(name, "ringvol_tls_") || strings.HasPrefix(name, "ringvol_cluster_") {
			continue // it is in no cluster, and no controller: TestNodeJoins, TestClusterHTTP
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
