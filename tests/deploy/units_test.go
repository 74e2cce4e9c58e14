// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
		if err != nil || len(units) != 3 {
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
		dropIn := filepath.Join(dir, "ringvol.service.d")
		if err := os.Mkdir(dropIn, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"raw-pools.conf", "attach.conf"} {
			text := read(t, top+"/deploy/ringvol-"+name)
			if err := os.WriteFile(filepath.Join(dropIn, name), []byte(change(text)), 0o644); err != nil {
				t.Fatal(err)
			}
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
	for _, setting := range []string{"TasksMax=", "DeviceAllow=block-md"} {
		if verify(func(text string) string { return strings.Replace(text, setting, "No"+setting, 1) }) == "" {
			t.Errorf("a setting that does not exist was taken for %s", setting)
		}
	}
}

// settings of a unit; what is set more than once adds up.
func settings(t *testing.T, unit string) map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(read(t, top+"/deploy/"+unit)) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(key, "#") {
			if key == "DeviceAllow" {
				all[key] = append(all[key], value)
			} else {
				all[key] = append(all[key], strings.Fields(value)...)
			}
		}
	}
	return all
}

// The driver starts a data process by itself where none runs as a unit of its own, and it lives with what
// the driver's unit allows: no less than its own unit does.
func TestDriversUnitHoldsADataProcess(t *testing.T) {
	driver, ublkd := settings(t, "ringvol.service"), settings(t, "ringvol-ublkd.service")
	for _, key := range []string{"DeviceAllow", "RestrictAddressFamilies", "SystemCallFilter", "CapabilityBoundingSet", "LimitMEMLOCK"} {
		if len(ublkd[key]) == 0 {
			t.Errorf("ringvol-ublkd.service has no %s", key)
		}
		for _, value := range ublkd[key] {
			if value == "char-misc rw" { // of all of them it needs this one
				value = "/dev/ublk-control rw"
			}
			if !slices.Contains(driver[key], value) {
				t.Errorf("ringvol.service: %s has %q, but not %s", key, driver[key], value)
			}
		}
	}
	for _, value := range []string{"/dev/mapper/control rw", "block-device-mapper rw"} {
		if !slices.Contains(driver["DeviceAllow"], value) {
			t.Errorf("ringvol.service does not allow %s", value)
		}
	}
	// Disks are allowed to those alone who have pools on them.
	for _, value := range settings(t, "ringvol-raw-pools.conf")["DeviceAllow"] {
		if slices.Contains(driver["DeviceAllow"], value) {
			t.Errorf("ringvol.service allows %s to everybody", value)
		}
	}
	// What takes from it what it needs (the comments in the units say why).
	for unit, set := range map[string]map[string][]string{"ringvol.service": driver, "ringvol-ublkd.service": ublkd} {
		for _, key := range []string{"ProtectKernelTunables", "ProtectHome"} {
			if value, found := set[key]; found {
				t.Errorf("%s: %s=%s", unit, key, value)
			}
		}
	}
	for key := range driver {
		switch key {
		// Each gives the service a mount namespace, in which its mounts would stay; RestrictSUIDSGID takes openat2.
		case "RestrictSUIDSGID", "PrivateTmp", "PrivateDevices", "PrivateMounts", "ProtectSystem", "ProtectProc", "ProtectKernelModules",
			"ProtectKernelLogs", "ProtectControlGroups", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths":
			t.Errorf("ringvol.service: %s=%s", key, driver[key])
		}
	}
}

// The controller may do nothing on its machine: what the others leave out on purpose, it has.
func TestControllersUnitIsClosed(t *testing.T) {
	controller := settings(t, "ringvol-controller.service")
	for key, wanted := range map[string][]string{
		"CapabilityBoundingSet": nil, "AmbientCapabilities": nil, "DynamicUser": {"yes"}, "NoNewPrivileges": {"yes"},
		"ProtectSystem": {"strict"}, "ProtectHome": {"yes"}, "PrivateDevices": {"yes"}, "PrivateTmp": {"yes"}, "DevicePolicy": {"closed"},
		"RestrictNamespaces": {"yes"}, "ProtectKernelTunables": {"yes"}, "ProtectKernelModules": {"yes"}, "MemoryDenyWriteExecute": {"yes"},
		"RestrictAddressFamilies": {"AF_UNIX", "AF_INET", "AF_INET6"},
	} {
		if got, found := controller[key]; !found || !slices.Equal(got, wanted) {
			t.Errorf("%s is %q", key, got)
		}
	}
	if len(controller["DeviceAllow"]) != 0 {
		t.Errorf("it has the devices %q", controller["DeviceAllow"])
	}
	ringvol := os.Getenv("RINGVOL_BIN")
	if ringvol == "" {
		t.Skip("RINGVOL_BIN names no ringvol")
	}
	var args []string
	for _, arg := range controller["ExecStart"][1:] {
		args = append(args, strings.ReplaceAll(arg, "%d", "/run/credentials/ringvol-controller.service"))
	}
	if out, err := exec.Command(ringvol, append(args, "--help")...).CombinedOutput(); err != nil {
		t.Errorf("%q: %s", args, out)
	}
}
