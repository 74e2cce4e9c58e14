// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What is told of a driver to Kubernetes' tests, one file for each file system. %[1]s is the class, %[2]s the capabilities that only
// one of the chart's modes has.
const externalDriver = `ShortName: %[1]s
StorageClass: {FromExistingClassName: %[1]s}
SnapshotClass: {FromName: true}
%[2]s
InlineVolumes:
- Attributes: {size: 320Mi, csi.storage.k8s.io/fstype: %[3]s}
DriverInfo:
  Name: csi.ringvol.dev
  SupportedSizeRange: {Min: 320Mi, Max: 5Gi, Step: 320Mi}
  SupportedMountOption: {noatime: {}}
  TopologyKeys: [topology.ringvol.dev/node]
  NumAllowedTopologies: 2
  Capabilities:
    persistence: true
    block: true
    fsGroup: true
    exec: true
    snapshotDataSource: true
    pvcDataSource: true
    multipods: true
    controllerExpansion: true
    nodeExpansion: true
    offlineExpansion: true
    onlineExpansion: true
    topology: true
    capacity: true
    readWriteOncePod: true
    multiplePVsSameID: true
    groupSnapshot: %[4]t
  StressTestOptions: {NumPods: 5, NumRestarts: 3}
  VolumeSnapshotStressTestOptions: {NumPods: 3, NumSnapshots: 3}
  VolumeModifyStressTestOptions: {NumPods: 5}
`

// In mode node nothing listens to groups and to classes of attributes (docs/limits.md).
const externalControllerClasses = `GroupSnapshotClass: {FromName: true}
VolumeAttributesClass: {FromExistingClassName: ringvol-silver}`

// What of theirs cannot pass here whatever ringvol does, and why. docs/e2e.md has the list.
var externalKnown = []struct {
	test, why string
	here      func(fs string) bool // nil: everywhere
}{
	{test: "multiple pods should modify volumes with a different volumeAttributesClass",
		why: "it changes the class of claims that wait for their first consumer, and the API server refuses that"},
	{test: "support expansion of pvcs created for ephemeral pvcs|resize volume when PVC is edited while (the )?pod is using it|" +
		"should resize volume when PVC is edited and the pod is re-created on the same node after controller resize is finished",
		why:  "a mounted ext4 grows with CAP_SYS_RESOURCE alone, and this machine's root has it not",
		here: func(fs string) bool { return fs == "ext4" && !hasCapSysResource() }},
	{test: "Pre-provisioned Snapshot",
		why:  "a hand-written VolumeSnapshotContent needs the label of its node there, which the suite does not give",
		here: func(string) bool { return mode() == "node" }},
}

// hasCapSysResource says whether this process may what growing a mounted ext4 takes.
func hasCapSysResource() bool {
	text, err := os.ReadFile("/proc/self/status")
	found := regexp.MustCompile(`(?m)^CapEff:\t([0-9a-f]+)$`).FindSubmatch(text)
	if err != nil || found == nil {
		return false
	}
	bits, err := strconv.ParseUint(string(found[1]), 16, 64)
	return err == nil && bits&(1<<24) != 0
}

// What is left out: of other systems, without end, or with images that a registry alone has. docs/e2e.md says more.
const externalSkip = `\[Feature:Windows\]|ntfs|\[Disruptive\]|\[Feature:SELinux|should support volume limits|any volume data source|` +
	`volumegroupsnapshottable`

// Those that say most in ten minutes.
const externalQuick = `Dynamic PV \(default fs\)\] (provisioning should provision|volumes|subPath should support existing|volume-modify )|` +
	`\(allowExpansion\)\] volume-expand|Dynamic Snapshot \(delete policy\)\] snapshottable |` +
	`CSI Ephemeral-volume \(default fs\)|block volmode\)\] (volumes|provisioning should provision)|read-write-once-pod`

type junit struct {
	Suites []struct {
		Cases []struct {
			Name    string  `xml:"name,attr"`
			Status  string  `xml:"status,attr"`
			Time    float64 `xml:"time,attr"`
			Failure *struct {
				Message string `xml:"message,attr"`
				Text    string `xml:",chardata"`
			} `xml:"failure"`
			Skipped *struct {
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// TestExternal is Kubernetes' own suite, "External Storage", with what this driver claims (./dev e2e external). Each of its tests
// that was run is one here.
func TestExternal(t *testing.T) {
	if !externalAsked() {
		t.Skip("a run of its own: ./dev e2e external")
	}
	if err := node.ExternalImages(); err != nil {
		t.Fatal(err)
	}
	for _, fs := range strings.Split(environmentOr("RINGVOL_E2E_FS", "ext4,xfs,btrfs"), ",") {
		t.Run(fs, func(t *testing.T) { external(t, fs) })
	}
}

func externalAsked() bool { return os.Getenv("RINGVOL_E2E_EXTERNAL") != "" }

func environmentOr(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func external(t *testing.T, fs string) {
	class, ok := map[string]string{"ext4": "ringvol", "xfs": "ringvol-xfs", "btrfs": "ringvol-btrfs"}[fs]
	if !ok {
		t.Fatalf("no class has the file system %q", fs)
	}
	classes := ""
	if mode() == "controller" {
		classes = externalControllerClasses
	}
	dir := filepath.Join(node.Dir, "external", fs)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	definition := filepath.Join(dir, "driver.yaml")
	if err := os.WriteFile(definition, fmt.Appendf(nil, externalDriver, class, classes, fs, mode() == "controller"), 0o644); err != nil {
		t.Fatal(err)
	}
	focus := os.Getenv("RINGVOL_E2E_FOCUS")
	if focus == "" && os.Getenv("RINGVOL_E2E_QUICK") != "" {
		focus = externalQuick
	}
	begin := time.Now()
	file := filepath.Join(dir, "junit.xml")
	args := []string{"--procs=" + environmentOr("RINGVOL_E2E_PROCS", "4"), "--no-color", "--timeout=4h", "--poll-progress-after=300s",
		"--focus=External.Storage.*(" + focus + ")", "--skip=" + externalSkip, "--junit-report=" + file,
		node.ExternalProgram("external.test"), "--", "--kubeconfig=" + node.Kubeconfig, "--kubectl-path=" + node.ExternalProgram("kubectl"),
		"--provider=skeleton", "--storage.testdriver=" + definition, "--report-dir=" + dir, "--e2e-output-dir=" + dir,
		"--allowed-not-ready-nodes=-1", "--repo-root=" + dir}
	log, err := os.Create(filepath.Join(node.Dir, "logs", "external-"+fs+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(node.ExternalProgram("ginkgo"), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(os.Environ(), "HOME="+node.Dir, "TMPDIR="+dir)
	report(t, fs, file, cmd.Run())
	t.Logf("%s: %.0f s; the suite's own log: external-%s.log", fs, time.Since(begin).Seconds(), fs)
}

var labels = regexp.MustCompile(`^\[It\] (\[sig-storage\] )?External Storage \[Driver: [^]]*\] `)

// report makes a test here of each of the suite's that was run, or that said why not.
func report(t *testing.T, fs, file string, runErr error) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("the suite tells nothing: %v (%v)", err, runErr)
	}
	var all junit
	if err := xml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	skipped, ran := map[string]int{}, 0
	for _, suite := range all.Suites {
		for _, c := range suite.Cases {
			name := labels.ReplaceAllString(c.Name, "")
			switch {
			case c.Failure != nil:
				ran++
				t.Run(name, func(t *testing.T) {
					if why := known(fs, name); why != "" {
						t.Skipf("known: %s", why)
					}
					t.Errorf("%s\n%s", c.Failure.Message, c.Failure.Text)
				})
			case c.Status == "passed" && strings.HasPrefix(c.Name, "[It]"):
				ran++
				t.Run(name, func(*testing.T) {})
			case c.Status == "skipped" && c.Skipped != nil && c.Skipped.Message != "" && c.Skipped.Message != "skipped":
				skipped[c.Skipped.Message]++
			case c.Status != "passed" && c.Status != "skipped":
				t.Errorf("%s: %s", name, c.Status)
			}
		}
	}
	if ran == 0 {
		t.Errorf("no test was run (%v)", runErr)
	}
	var reasons []string
	for reason := range skipped {
		reasons = append(reasons, reason)
	}
	slices.Sort(reasons)
	for _, reason := range reasons {
		t.Logf("%d skipped: %s", skipped[reason], reason)
	}
}

// known says why a test of theirs fails here, or nothing.
func known(fs, name string) string {
	for _, k := range externalKnown {
		if regexp.MustCompile(k.test).MatchString(name) && (k.here == nil || k.here(fs)) {
			return k.why
		}
	}
	return ""
}
