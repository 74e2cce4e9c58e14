// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// NvmeClient is a connection to an export, made as any client of the kernel's makes it.
type NvmeClient struct {
	Name   string // nvme3
	Device string // /dev/nvme3n1
}

// ErrNoDevice: the target has let the client in, and shows it no device.
var ErrNoDevice = errors.New("connected, and there is no device")

// NvmeConnect connects with a publish_context of the driver's, and finds the device by its UUID.
func NvmeConnect(context map[string]string, more ...string) (*NvmeClient, error) {
	get := func(key string) string { return context["ringvol.dev/"+key] }
	address, port, _ := strings.Cut(get("address"), ":")
	options := []string{"transport=" + get("transport"), "traddr=" + address, "trsvcid=" + port, "nqn=" + get("subsystem"),
		"hostnqn=" + get("host"), "hostid=" + get("host-id"), "ctrl_loss_tmo=60", "reconnect_delay=1", "nr_io_queues=1"}
	if get("key") != "" {
		options = append(options, "dhchap_secret="+get("key"))
	}
	f, err := os.OpenFile("/dev/nvme-fabrics", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.WriteString(strings.Join(append(options, more...), ",")); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", get("subsystem"), err)
	}
	answer := make([]byte, 256)
	n, err := f.Read(answer)
	if err != nil {
		return nil, err
	}
	var instance, cntlid int
	if _, err := fmt.Sscanf(string(answer[:n]), "instance=%d,cntlid=%d", &instance, &cntlid); err != nil {
		return nil, fmt.Errorf("nvme-fabrics answers %q", answer[:n])
	}
	c := &NvmeClient{Name: fmt.Sprintf("nvme%d", instance)}
	for deadline := time.Now().Add(CallTimeout); ; time.Sleep(time.Millisecond) {
		found, _ := filepath.Glob("/sys/block/nvme*n*/uuid")
		for _, path := range found {
			text, err := os.ReadFile(path)
			device := "/dev/" + filepath.Base(filepath.Dir(path))
			if err != nil || strings.TrimSpace(string(text)) != get("namespace") {
				continue
			}
			// Each path of a device that may have several has a uuid, too, and no node. A node is there a moment before it
			// can be opened.
			if f, err := os.Open(device); err == nil {
				f.Close()
				c.Device = device
				return c, nil
			}
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%w with the UUID %s", ErrNoDevice, get("namespace")), c.Disconnect())
		}
	}
}

// Disconnect ends it, also if its target is gone.
func (c *NvmeClient) Disconnect() error {
	err := os.WriteFile("/sys/class/nvme/"+c.Name+"/delete_controller", []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// NvmetSubsystems are those with our names.
func NvmetSubsystems() []string {
	found, _ := filepath.Glob(NvmetRoot + "/subsystems/nqn.2026-11.dev.ringvol:volume.*")
	return found
}
