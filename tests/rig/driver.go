// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Binary is the driver under test: RINGVOL_BIN, else the release build.
func Binary() string {
	if path := os.Getenv("RINGVOL_BIN"); path != "" {
		return path
	}
	for dir, _ := os.Getwd(); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if path := filepath.Join(dir, "build", "ringvol"); isFile(path) {
			return path
		}
	}
	return "ringvol"
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// Driver is one `ringvol serve` with its arguments; it can be ended and started again.
type Driver struct {
	Socket  string
	HTTP    string // address and port; "": none is served
	Kubelet string // a kubelet root: what staging and target paths lie below
	Node    string
	Env     []string // added to our own
	Args    []string // added to those of the pools
	Pools   []*Pool
	Log     string

	Binary      string // "": the binary under test; or a copy of it
	PoolOptions string // after the path, ",init" at first
	Guarded     bool   // loop nodes are not accepted, also where there is no device mapper

	rig   *Rig
	Ublkd *Ublkd // the data process of ublk volumes, at paths of this driver's own
	cmd   *exec.Cmd
	done  chan struct{}
	exit  error
	conn  *grpc.ClientConn
}

// HasDeviceMapper tells whether the kernel can guard raw block volumes.
func HasDeviceMapper() bool {
	_, err := os.Stat("/sys/class/misc/device-mapper")
	return err == nil
}

// NewDriver prepares a driver on these pools; Start starts it.
func (r *Rig) NewDriver(pools ...*Pool) *Driver {
	d := &Driver{
		Socket:  r.Path("csi", "csi.sock"),
		Kubelet: r.Path("kubelet"),
		Node:    "node-a",
		Pools:   pools,
		Log:     r.Path("ringvol.log"),
		rig:     r,

		PoolOptions: ",init",
	}
	d.Ublkd = r.newUblkd()
	r.Defer(func() error {
		d.Disconnect()
		return d.Kill()
	})
	return d
}

// Start runs the driver and waits until it answers.
func (d *Driver) Start() error {
	if err := d.Launch(); err != nil {
		return err
	}
	return d.AwaitServing()
}

// AwaitReady waits until Probe says that a pool is there.
func (d *Driver) AwaitReady() error {
	return Eventually(30*time.Second, func() error {
		ready, err := d.Probe()
		if err == nil && !ready {
			err = errors.New("serving, but not ready")
		}
		return err
	})
}

// Launch runs the driver and does not wait.
func (d *Driver) Launch() error {
	args := []string{"serve", "--endpoint", "unix://" + d.Socket, "--node-id", d.Node, "--http", "off",
		"--ublkd-socket", d.Ublkd.Socket, "--ublkd-state-dir", d.Ublkd.State}
	if !d.Guarded && !HasDeviceMapper() {
		args = append(args, "--block-on-loop")
	}
	for _, p := range d.Pools {
		args = append(args, "--pool", fmt.Sprintf("%s=%s%s", p.Name, p.Path, d.PoolOptions))
	}
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	binary := d.Binary
	if binary == "" {
		binary = Binary()
	}
	cmd := exec.Command(binary, append(args, d.Args...)...)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1:abort_on_error=0",
		"UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
	cmd.Env = append(cmd.Env, d.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.cmd, d.done = cmd, make(chan struct{})
	go func(done chan struct{}) {
		d.exit = cmd.Wait()
		close(done)
	}(d.done)
	return nil
}

// AwaitServing waits until the driver answers anything at all.
func (d *Driver) AwaitServing() error {
	return Eventually(30*time.Second, func() error {
		if !d.Running() {
			return Stop(fmt.Errorf("the driver ended: %v\n%s", d.exit, d.LogTail(20)))
		}
		c, err := d.Client()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = c.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		return err
	})
}

// Pid of the running driver.
func (d *Driver) Pid() int {
	return d.cmd.Process.Pid
}

// Running tells whether the process still is there.
func (d *Driver) Running() bool {
	if d.cmd == nil {
		return false
	}
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// Term asks the driver to end and waits; the error is a bad exit status or that it did not end.
func (d *Driver) Term() error {
	return d.end(syscall.SIGTERM, 30*time.Second)
}

// Wait waits for an end that was caused elsewhere and returns the exit status.
func (d *Driver) Wait(limit time.Duration) (int, error) {
	select {
	case <-d.done:
		d.cmd = nil
		return exitStatus(d.exit), nil
	case <-time.After(limit):
		return 0, errors.New("the driver has not ended")
	}
}

// Kill ends it at once. Its warm helper processes end by themselves.
func (d *Driver) Kill() error {
	if d.cmd == nil {
		return nil
	}
	_ = d.end(syscall.SIGKILL, 30*time.Second)
	return nil
}

func (d *Driver) end(sig syscall.Signal, limit time.Duration) error {
	if d.cmd == nil {
		return errors.New("not running")
	}
	_ = d.cmd.Process.Signal(sig)
	select {
	case <-d.done:
	case <-time.After(limit):
		where := threadsOf(d.cmd.Process.Pid)
		_ = d.cmd.Process.Kill()
		<-d.done
		d.cmd = nil
		return fmt.Errorf("the driver did not end on %v in %v\n%s", sig, limit, where)
	}
	d.cmd = nil
	if d.exit != nil && sig == syscall.SIGTERM {
		return fmt.Errorf("the driver ended on SIGTERM with %v\n%s", d.exit, d.LogTail(30))
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
func (d *Driver) LogTail(lines int) string {
	text, err := os.ReadFile(d.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
