// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a program under test with its log; it can be ended and started again.
type Process struct {
	Name string // for messages
	Log  string
	Wrap []string // a program and arguments that run it in its place, such as nsenter

	cmd  *exec.Cmd
	done chan struct{}
	exit error
}

func (p *Process) launch(binary string, args, env []string) error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	words := append(append(slices.Clone(p.Wrap), binary), args...)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1:abort_on_error=0",
		"UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.done = cmd, make(chan struct{})
	go func(done chan struct{}) {
		p.exit = cmd.Wait()
		close(done)
	}(p.done)
	return nil
}

// Pid of the running process.
func (p *Process) Pid() int {
	return p.cmd.Process.Pid
}

// Running tells whether the process still is there.
func (p *Process) Running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Term asks it to end and waits; the error is a bad exit status or that it did not end.
func (p *Process) Term() error {
	return p.end(syscall.SIGTERM, 30*time.Second)
}

// Wait waits for an end that was caused elsewhere and returns the exit status.
func (p *Process) Wait(limit time.Duration) (int, error) {
	select {
	case <-p.done:
		p.cmd = nil
		return exitStatus(p.exit), nil
	case <-time.After(limit):
		return 0, fmt.Errorf("the %s has not ended", p.Name)
	}
}

// Kill ends it at once. Its warm helper processes end by themselves.
func (p *Process) Kill() error {
	if p.cmd == nil {
		return nil
	}
	_ = p.end(syscall.SIGKILL, 30*time.Second)
	return nil
}

func (p *Process) end(sig syscall.Signal, limit time.Duration) error {
	if p.cmd == nil {
		return errors.New("not running")
	}
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(limit):
		where := threadsOf(p.cmd.Process.Pid)
		_ = p.cmd.Process.Kill()
		<-p.done
		p.cmd = nil
		return fmt.Errorf("the %s did not end on %v in %v\n%s", p.Name, sig, limit, where)
	}
	p.cmd = nil
	if p.exit != nil && sig == syscall.SIGTERM {
		return fmt.Errorf("the %s ended on SIGTERM with %v\n%s", p.Name, p.exit, p.LogTail(30))
	}
	return nil
}

// threadsOf tells what the threads of a process and of its children wait for in the kernel.
func threadsOf(pid int) string {
	var all strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		for _, name := range []string{"comm", "syscall", "stack"} {
			text, _ := os.ReadFile(filepath.Join(task, name))
			all.Write(text)
		}
		children, _ := os.ReadFile(filepath.Join(task, "children"))
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				fmt.Fprintf(&all, "child %d\n%s", n, threadsOf(n))
			}
		}
	}
	return all.String()
}

func exitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// LogTail returns the last lines of the log.
func (p *Process) LogTail(lines int) string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
