// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ringvol.dev/tests/rig"
)

// Reboot does to the node what a power switch does, as far as that goes without a machine: kubelet, containerd and every
// container die where they are, all mounts and devices of volumes vanish, /run is empty. The control
// plane, which could be anywhere, notices nothing. Then the node starts again.
func (c *Cluster) Reboot() error {
	if err := errors.Join(c.Kubelet.Kill(), c.containerd.Kill()); err != nil {
		return err
	}
	if err := killContainers(cgroupName(c.Dir)); err != nil {
		return err
	}
	for _, dir := range []string{"/var/lib/kubelet", "/run", c.Dir} {
		mounts := rig.MountsBelow(dir)
		for i := len(mounts) - 1; i >= 0; i-- {
			_ = unix.Unmount(mounts[i], unix.MNT_DETACH)
		}
	}
	if err := rig.Eventually(time.Minute, func() error {
		left := loopsOf(c.Dir)
		for _, loop := range left {
			_ = rig.Detach(loop)
		}
		if len(left) > 0 {
			return fmt.Errorf("devices are left: %s", strings.Join(left, ", "))
		}
		return nil
	}); err != nil {
		return err
	}
	entries, err := os.ReadDir("/run")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join("/run", entry.Name())); err != nil {
			return err
		}
	}
	return c.boot()
}

func (c *Cluster) boot() error {
	if err := c.Pool.Mount(); err != nil {
		return err
	}
	if err := c.containerd.Start(); err != nil {
		return err
	}
	if err := c.waitContainerd(); err != nil {
		return err
	}
	if err := c.Kubelet.Start(); err != nil {
		return err
	}
	return c.WaitNode()
}

// killContainers kills the processes of all containers, and what watches over them.
func killContainers(group string) error {
	return rig.Eventually(time.Minute, func() error {
		var alive []string
		for _, pid := range processes() {
			groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			if err != nil || !isContainer(pid, string(groups), group) {
				continue
			}
			_ = unix.Kill(pid, unix.SIGKILL)
			alive = append(alive, strconv.Itoa(pid))
		}
		if len(alive) > 0 {
			return fmt.Errorf("alive: %s", strings.Join(alive, " "))
		}
		return nil
	})
}

func isContainer(pid int, groups, group string) bool {
	if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(state), ") Z ") {
		return false
	}
	if strings.Contains(groups, "/"+group+"/") {
		return true
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.HasPrefix(string(name), "containerd-shim")
}

// processes are those of the node: its process namespace has no others.
func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// DriverProcess is the process of the node's driver.
func (c *Cluster) DriverProcess() (int, error) {
	for _, pid := range processes() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		words := strings.Split(string(text), "\x00")
		if err == nil && len(words) > 2 && filepath.Base(words[0]) == "ringvol" && words[1] == "serve" &&
			strings.Contains(string(text), "--kubelet-registration") {
			// A helper has the driver's command line as well; the driver is the first process of its namespace.
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err == nil && strings.Contains(string(status), fmt.Sprintf("NSpid:\t%d\t1\n", pid)) {
				return pid, nil
			}
		}
	}
	return 0, errors.New("no driver runs")
}
