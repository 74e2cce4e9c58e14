// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ringvol.dev/tests/rig"
)

// NoRights is the exit status of a test program that may not make a node here; the reason was said.
const NoRights = 77

const (
	stageVar = "RINGVOL_E2E_STAGE"
	dirVar   = "RINGVOL_E2E_DIR"
	nameVar  = "RINGVOL_E2E_NODE"
)

// A node's own directories: bind mounts of directories below the cluster's directory, seen in the node's
// mount namespace only. With them every part runs with the paths that it has on any node.
var nodeDirs = []string{"/var/lib", "/var/log", "/run"}

// Isolate runs a node's life in namespaces of its own (mounts, processes, network, host name), so that nothing
// of it can stay: the calling program starts itself again as process 1 of them, and once more as its child,
// where run is called. When that ends, whatever way, the kernel kills what was started and takes the
// mounts apart; what it cannot know of (loop devices that are bound, control groups, files) is swept by
// the first program, which calls it a failure if there was any after a run that went well.
func Isolate(run func(dir string) int) int {
	switch os.Getenv(stageVar) {
	case "init":
		return initStage()
	case "node":
		return run(os.Getenv(dirVar))
	case "holder":
		return holderStage()
	}
	if reason := noRights(); reason != "" {
		fmt.Fprintln(os.Stderr, "e2e: skipped: "+reason)
		return NoRights
	}
	sweepAbandoned()
	dir, err := os.MkdirTemp("", dirPattern)
	if err == nil {
		err = claim(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := outerStage(dir)
	left := leftovers(dir)
	if err := sweep(dir); err != nil {
		left = append(left, err.Error())
	}
	if code == 0 && len(left) > 0 {
		fmt.Printf("left behind: %s\nFAIL\n", strings.Join(left, ", "))
		return 1
	}
	return code
}

func noRights() string {
	if os.Geteuid() != 0 {
		return "namespaces, mounts and loop devices need root"
	}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if err := cmd.Run(); err != nil {
		return fmt.Sprintf("no namespaces to be had: %v", err)
	}
	if len(cgroupParents()) == 0 {
		return "no control groups that could be written to"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "no loop devices"
	}
	return ""
}

const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

func again(stage, dir string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), stageVar+"="+stage, dirVar+"="+dir)
	return cmd
}

func outerStage(dir string) int {
	cmd := again("init", dir)
	// Process 1 goes when this thread does, so that not even kill -9 leaves a node behind.
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if to := os.Getenv(kubeconfigVar); to != "" {
		defer os.Remove(to)
		go func() {
			if err := offer(dir, to); err != nil {
				fmt.Fprintln(os.Stderr, "e2e: the cluster cannot be offered:", err)
				_ = cmd.Process.Kill()
			}
		}()
	}
	// ^C ends the node, and then there is still something to be done here.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for range signals {
			_ = cmd.Process.Kill()
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode()
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "the node's first process:", err)
		return 1
	}
	return 0
}

// initStage is process 1: it makes the node's view of the machine, starts the child and reaps whatever is left
// to it, as the processes that watch over containers are.
func initStage() int {
	dir := os.Getenv(dirVar)
	if err := enter(dir, NodeName, true); err != nil {
		fmt.Fprintln(os.Stderr, "making the node's namespaces:", err)
		return 1
	}
	cmd := again("node", dir)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR {
			continue
		} else if err != nil {
			return 1
		}
		if pid == cmd.Process.Pid {
			if status.Signaled() {
				return 128 + int(status.Signal())
			}
			return status.ExitStatus()
		}
	}
}

// holdNamespaces makes the namespaces of another node (mounts, network, host name, IPC; processes are in those of the first),
// and returns the process that they belong to.
func holdNamespaces(dir, name string) (int, error) {
	cmd := again("holder", dir)
	cmd.Env = append(cmd.Env, nameVar+"="+name)
	cmd.Stdin, cmd.Stdout = nil, nil
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces &^ unix.CLONE_NEWPID}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	word := make([]byte, 5)
	if _, err := io.ReadFull(out, word); err != nil {
		_ = cmd.Wait()
		return 0, fmt.Errorf("the namespaces of %s: %w", name, err)
	}
	return cmd.Process.Pid, nil
}

// holderStage is a process that does nothing but be there, for as long as the cluster's process namespace is.
func holderStage() int {
	if err := enter(os.Getenv(dirVar), os.Getenv(nameVar), false); err != nil {
		fmt.Fprintln(os.Stderr, "making a node's namespaces:", err)
		return 1
	}
	fmt.Println("made")
	for {
		time.Sleep(time.Hour)
	}
}

func enter(dir, name string, processes bool) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if processes {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mounting /proc: %w", err)
		}
	}
	for _, target := range nodeDirs {
		source := filepath.Join(dir, "node", name, target)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("binding %s: %w", target, err)
		}
	}
	// Mounts that a driver makes in its container have to reach kubelet and the pods.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("shared mounts: %w", err)
	}
	return unix.Sethostname([]byte(name))
}

const dirPattern = "ringvol-e2e-*"

// claim locks the directory for as long as this program lives. The lock is there before its name is.
func claim(dir string) error {
	fd, err := unix.Open(filepath.Join(dir, "lock.new"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, "lock.new"), filepath.Join(dir, "lock"))
}

// sweepAbandoned removes what programs have left that were killed themselves: nobody holds their lock.
func sweepAbandoned() {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPattern, "lock"))
	for _, lock := range locks {
		fd, err := unix.Open(lock, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			if err := sweep(filepath.Dir(lock)); err != nil {
				fmt.Fprintln(os.Stderr, "e2e: what an earlier run has left:", err)
			}
		}
		unix.Close(fd)
	}
}

// leftovers names what outlives the namespaces though nothing should: devices, and control groups that are in use
// still. The kernel takes things apart a moment after the last process.
func leftovers(dir string) []string {
	var left []string
	_ = rig.Eventually(5*time.Second, func() error {
		for _, group := range cgroupsOf(dir) {
			removeCgroup(group)
		}
		if left = append(loopsOf(dir), cgroupsOf(dir)...); len(left) > 0 {
			return errors.New("still there")
		}
		return nil
	})
	return left
}

func sweep(dir string) error {
	err := rig.Eventually(20*time.Second, func() error {
		for _, loop := range loopsOf(dir) {
			_ = rig.Detach(loop)
		}
		if left := leftovers(dir); len(left) > 0 {
			return fmt.Errorf("cannot be removed: %s", strings.Join(left, ", "))
		}
		return nil
	})
	return errors.Join(err, os.RemoveAll(dir))
}

// loopsOf lists the cluster's loop devices, what stands on another one first: those of pools, whose images lie below
// dir, those of volumes, whose images lie on those, and those with which kubelet holds block volumes.
func loopsOf(dir string) []string {
	found := rig.LoopsBelow(dir)
	for i := 0; i < len(found); i++ {
		for _, device := range loopsOn(found[i]) {
			if !slices.Contains(found, device) {
				found = append(found, device)
			}
		}
	}
	slices.Reverse(found)
	return found
}

// loopsOn lists loop devices whose file lies on a device, or is it.
func loopsOn(below string) []string {
	var st unix.Stat_t
	if unix.Stat(below, &st) != nil {
		return nil
	}
	var found []string
	loops, _ := filepath.Glob("/sys/block/loop*/loop")
	for _, loop := range loops {
		device := "/dev/" + filepath.Base(filepath.Dir(loop))
		fd, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(fd)
		unix.Close(fd)
		if err == nil && (info.Device == st.Rdev || info.Rdevice == st.Rdev) {
			found = append(found, device)
		}
	}
	return found
}
