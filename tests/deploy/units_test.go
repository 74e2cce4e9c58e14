// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// systemd takes every line of the units.
func TestUnits(t *testing.T) {
	ringvol := os.Getenv("RINGVOL_BIN")
	if _, err := exec.LookPath("systemd-analyze"); err != nil || ringvol == "" {
		t.Skipf("no systemd-analyze (%v), or RINGVOL_BIN names no ringvol", err)
	}
	verify := func(change func(string) string) string {
		dir := t.TempDir()
		args := []string{"verify"}
		units, err := filepath.Glob(top + "/deploy/*.service")
		if err != nil || len(units) != 2 {
			t.Fatalf("units: %v %v", units, err)
		}
		for _, unit := range units {
			// What is not installed here is not what is asked.
			text := strings.ReplaceAll(read(t, unit), "ExecStart=/usr/bin/ringvol", "ExecStart="+ringvol)
			path := filepath.Join(dir, filepath.Base(unit))
			if err := os.WriteFile(path, []byte(change(text)), 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(args, path)
		}
		out, _ := exec.Command("systemd-analyze", args...).CombinedOutput()
		var about []string // other units of this machine may have faults of their own
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "ringvol") {
				about = append(about, line)
			}
		}
		return strings.Join(about, "")
	}
	if out := verify(func(text string) string { return text }); out != "" {
		t.Error(out)
	}
	if verify(func(text string) string { return strings.Replace(text, "TasksMax=", "TasksMost=", 1) }) == "" {
		t.Error("a setting that does not exist was taken")
	}
}
