// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
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
