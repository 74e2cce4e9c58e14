// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NvmetRoot is where the kernel's NVMe target is configured.
const NvmetRoot = "/sys/kernel/config/nvmet"

// What begins otherwise is none of ringvol's.
const (
	SubsystemPrefix = "nqn.2026-11.dev.ringvol:volume."
	HostPrefix      = "nqn.2026-11.dev.ringvol:host."
)

// HasNVMe tells why this kernel has no NVMe over TCP, at both ends; "": it has.
func HasNVMe() string {
	for _, module := range []string{"nvme-tcp", "nvmet-tcp"} {
		if _, err := os.Stat("/sys/module/" + strings.ReplaceAll(module, "-", "_")); err == nil {
			continue
		}
		if _, err := Run("modprobe", module); err != nil {
			return "no module " + module
		}
	}
	if _, err := os.Stat("/dev/nvme-fabrics"); err != nil {
		return "no /dev/nvme-fabrics"
	}
	_ = os.MkdirAll("/sys/kernel/config", 0o755)
	if _, err := os.Stat(NvmetRoot); err != nil {
		if err := unix.Mount("none", "/sys/kernel/config", "configfs", 0, ""); err != nil {
			return "no configfs: " + err.Error()
		}
	}
	if _, err := os.Stat(NvmetRoot); err != nil {
		return "no nvmet"
	}
	return ""
}

// HasNVMeAuth tells whether the kernel's target takes DH-HMAC-CHAP keys.
func HasNVMeAuth() bool {
	dir := NvmetRoot + "/hosts/nqn.2026-11.dev.ringvol:test"
	if os.Mkdir(dir, 0o755) != nil {
		return false
	}
	defer os.Remove(dir)
	_, err := os.Stat(dir + "/dhchap_key")
	return err == nil
}

// Export is an image that the kernel's NVMe target gives to one host, made by hand as an owner makes it.
type Export struct {
	Image, Device         string // the loop device over it
	Subsystem, Host       string
	HostID, UUID, Key     string
	Port, portDir, subDir string
	others                []string
}

const exportKey = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

func put(dir string, values ...string) error {
	for i := 0; i+1 < len(values); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, values[i]), []byte(values[i+1]), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func namesOf(number int) *Export {
	return &Export{
		Subsystem: fmt.Sprintf("%stest.%d", SubsystemPrefix, number),
		Host:      fmt.Sprintf("%stest.%d", HostPrefix, number),
		HostID:    fmt.Sprintf("11111111-2222-4333-8444-%012d", number),
		UUID:      fmt.Sprintf("01234567-89ab-4cde-8f01-%012d", number),
		Port:      strconv.Itoa(14420 + number),
	}
}

// GiveDevice gives a device out that is there, with names that no driver takes for its own.
func (r *Rig) GiveDevice(number int, device string) (*Export, error) {
	e := namesOf(number)
	e.Device = device
	e.Subsystem, e.Host = fmt.Sprintf("nqn.2026-11.test:%d", number), fmt.Sprintf("nqn.2026-11.test:host.%d", number)
	r.Defer(e.Withdraw)
	return e, e.give()
}

// NewExport makes an image of that size, with a file system ("block": none), and gives it out. number makes
// names, UUIDs and the port its own.
func (r *Rig) NewExport(number int, kind string, size int64) (*Export, error) {
	e := namesOf(number)
	e.Image = r.Path(fmt.Sprintf("export-%d", number))
	if err := os.WriteFile(e.Image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(e.Image, size); err != nil {
		return nil, err
	}
	var err error
	switch kind {
	case "block":
	case "ext4":
		_, err = Run("mkfs.ext4", "-q", "-O", "metadata_csum_seed", e.Image)
	case "xfs":
		_, err = Run("mkfs.xfs", "-q", e.Image)
	default:
		_, err = Run("mkfs."+kind, "-q", e.Image)
	}
	if err != nil {
		return nil, err
	}
	device, err := Run("losetup", "-f", "--show", e.Image)
	if err != nil {
		return nil, err
	}
	e.Device = strings.TrimSpace(device)
	r.Defer(func() error { return errors.Join(e.Withdraw(), e.detach()) })
	return e, e.give()
}

func (e *Export) detach() error {
	_, err := Run("losetup", "-d", e.Device)
	return err
}

func (e *Export) give() error {
	e.subDir = filepath.Join(NvmetRoot, "subsystems", e.Subsystem)
	e.portDir = filepath.Join(NvmetRoot, "ports", e.Port)
	hostDir := filepath.Join(NvmetRoot, "hosts", e.Host)
	ns := e.subDir + "/namespaces/1"
	for _, dir := range []string{e.subDir, ns, hostDir, e.portDir} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if HasNVMeAuth() {
		e.Key = exportKey
		if err := put(hostDir, "dhchap_key", e.Key); err != nil {
			return err
		}
	}
	err := errors.Join(
		put(e.subDir, "attr_allow_any_host", "0"),
		put(ns, "device_path", e.Device, "device_uuid", e.UUID, "enable", "1"),
		os.Symlink(hostDir, filepath.Join(e.subDir, "allowed_hosts", e.Host)),
		put(e.portDir, "addr_trtype", "tcp", "addr_adrfam", "ipv4", "addr_traddr", "127.0.0.1", "addr_trsvcid", e.Port))
	if err != nil {
		return err
	}
	return e.Plug()
}

// Plug opens the port, Pull closes it: as when its node comes and goes.
func (e *Export) Plug() error {
	return os.Symlink(e.subDir, filepath.Join(e.portDir, "subsystems", e.Subsystem))
}

// Pull is the opposite of Plug.
func (e *Export) Pull() error {
	return os.Remove(filepath.Join(e.portDir, "subsystems", e.Subsystem))
}

// Disable takes the namespace away; the connection stays.
func (e *Export) Disable() error { return put(e.subDir+"/namespaces/1", "enable", "0") }

// Grow makes it larger, for the host too.
func (e *Export) Grow(size int64) error {
	if err := os.Truncate(e.Image, size); err != nil {
		return err
	}
	if _, err := Run("losetup", "-c", e.Device); err != nil {
		return err
	}
	return put(e.subDir+"/namespaces/1", "revalidate_size", "1")
}

// Withdraw ends all of it, as far as it is there.
func (e *Export) Withdraw() error {
	hostDir := filepath.Join(NvmetRoot, "hosts", e.Host)
	if _, err := os.Stat(e.subDir); err != nil {
		return nil
	}
	_ = e.Pull()
	_ = os.Remove(filepath.Join(e.subDir, "allowed_hosts", e.Host))
	for _, host := range e.others {
		_ = os.Remove(filepath.Join(e.subDir, "allowed_hosts", host))
		_ = os.Remove(filepath.Join(NvmetRoot, "hosts", host))
	}
	_ = put(e.subDir+"/namespaces/1", "enable", "0")
	return errors.Join(os.Remove(e.subDir+"/namespaces/1"), os.Remove(e.subDir), os.Remove(hostDir), os.Remove(e.portDir))
}

// Context is the publish_context of such an export.
func (e *Export) Context(kind string) map[string]string {
	c := map[string]string{
		"ringvol.dev/transport": "tcp", "ringvol.dev/address": "127.0.0.1:" + e.Port,
		"ringvol.dev/subsystem": e.Subsystem, "ringvol.dev/host": e.Host, "ringvol.dev/host-id": e.HostID,
		"ringvol.dev/namespace": e.UUID, "ringvol.dev/node": "node-far",
		"ringvol.dev/volume-mode": "block",
	}
	if kind != "block" {
		c["ringvol.dev/volume-mode"], c["ringvol.dev/fs-type"] = "mount", kind
	}
	if e.Key != "" {
		c["ringvol.dev/key"] = e.Key
	}
	return c
}

// Options are what a host writes to connect by hand.
func (e *Export) Options(host string) string {
	o := fmt.Sprintf("transport=tcp,traddr=127.0.0.1,trsvcid=%s,nqn=%s,hostnqn=%s,hostid=%s", e.Port, e.Subsystem, host, e.HostID)
	if e.Key != "" {
		o += ",dhchap_secret=" + e.Key
	}
	return o
}

// Connections are the names of the controllers that are connected to it.
func (e *Export) Connections() (names []string) {
	all, _ := filepath.Glob("/sys/class/nvme/nvme*/subsysnqn")
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(text)) == e.Subsystem {
			names = append(names, filepath.Base(filepath.Dir(path)))
		}
	}
	return names
}

// Allow lets another host in, with the same key.
func (e *Export) Allow(host string) error {
	dir := filepath.Join(NvmetRoot, "hosts", host)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if e.Key != "" {
		if err := put(dir, "dhchap_key", e.Key); err != nil {
			return err
		}
	}
	e.others = append(e.others, host)
	return os.Symlink(dir, filepath.Join(e.subDir, "allowed_hosts", host))
}

// Disconnect ends every connection to it.
func (e *Export) Disconnect() error {
	var errs []error
	for _, name := range e.Connections() {
		errs = append(errs, os.WriteFile("/sys/class/nvme/"+name+"/delete_controller", []byte("1"), 0o200))
	}
	return errors.Join(errs...)
}
