// SPDX-License-Identifier: Apache-2.0

package system

import (
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
