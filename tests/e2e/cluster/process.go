// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one part of the cluster that runs, its output in a log of its own.
type Process struct {
	Name string
	Log  string
	path string
	args []string
	env  []string
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// process describes a part; Start starts it.
func (c *Cluster) process(name, path string, args ...string) *Process {
	p := &Process{Name: name, Log: c.path("logs", name+".log"), path: path, args: args, env: c.environment()}
	c.processes = append(c.processes, p)
	return p
}

// Start starts the part, for the first time or again.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Env = p.env
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	p.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(p.cmd, p.done)
	return nil
}

// Ended is an error with the end of the log once the part does not run any more.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%v): %s", p.Name, p.cmd.ProcessState, p.Tail(15))
	default:
		return nil
	}
}

// Tail is the end of the log.
func (p *Process) Tail(lines int) string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Stop asks the part to end and kills it when it does not.
func (p *Process) Stop() error {
	return p.end(syscall.SIGTERM)
}

// Kill ends the part without asking.
func (p *Process) Kill() error {
	return p.end(syscall.SIGKILL)
}

func (p *Process) end(signal syscall.Signal) error {
	if p.done == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.done:
		return nil
	case <-time.After(20 * time.Second):
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	return errors.New(p.Name + " did not end in 20 s and was killed")
}

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

// cgroupName is the group that those of all nodes lie in, named after the cluster's directory.
func cgroupName(dir string) string {
	return filepath.Base(dir)
}

// makeCgroups makes a group and those above it.
func makeCgroups(name string) error {
	if above := filepath.Dir(name); above != "." {
		if err := makeCgroups(above); err != nil {
			return err
		}
	}
	for _, parent := range cgroupParents() {
		group := filepath.Join(parent, name)
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
