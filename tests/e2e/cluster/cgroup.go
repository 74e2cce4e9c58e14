// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupTop = "/sys/fs/cgroup"

// cgroupParents lists the hierarchies: one a controller (version 1), or the one there is (version 2).
func cgroupParents() []string {
	if _, err := os.Stat(cgroupTop + "/cgroup.controllers"); err == nil {
		return writable([]string{cgroupTop})
	}
	found, _ := filepath.Glob(cgroupTop + "/*/cgroup.procs")
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	return writable(found)
}

func writable(dirs []string) []string {
	var found []string
	for _, dir := range dirs {
		if unix.Access(dir, unix.W_OK) == nil {
			found = append(found, dir)
		}
	}
	return found
}

// cgroupName is the group that everything kubelet makes lies in, named after the cluster's directory.
func cgroupName(dir string) string {
	return filepath.Base(dir)
}

func makeCgroups(dir string) error {
	for _, parent := range cgroupParents() {
		group := filepath.Join(parent, cgroupName(dir))
		if err := os.MkdirAll(group, 0o755); err != nil {
			return err
		}
		if filepath.Base(parent) != "cpuset" {
			continue
		}
		// A group of version 1's cpuset takes no process before it has processors and memory.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(parent, file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(group, file), value, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func cgroupsOf(dir string) []string {
	found, _ := filepath.Glob(cgroupTop + "/*/" + cgroupName(dir))
	if _, err := os.Stat(filepath.Join(cgroupTop, cgroupName(dir))); err == nil {
		found = append(found, filepath.Join(cgroupTop, cgroupName(dir)))
	}
	return found
}

// removeCgroup removes a group and those below it; one with a process in it stays.
func removeCgroup(group string) {
	var dirs []string
	_ = filepath.WalkDir(group, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		_ = unix.Rmdir(dirs[i])
	}
}

// cgroupValue reads a memory figure of a process's group: version 1's file or version 2's.
func cgroupValue(pid int, version1, version2 string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return 0, err
	}
	var file string
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) == 3 && fields[1] == "memory":
			file = filepath.Join(cgroupTop, "memory", fields[2], version1)
		case len(fields) == 3 && fields[0] == "0" && file == "":
			file = filepath.Join(cgroupTop, fields[2], version2)
		}
	}
	value, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(value)), 10, 64)
}
