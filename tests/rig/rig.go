// SPDX-License-Identifier: Apache-2.0

// Package rig builds what the tests and the tour stand on: pools on file systems of their own, a
// driver process, a client, volumes that are taken through their life. Nothing in it needs the
// testing package; errors are returned.
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
	"time"

	"golang.org/x/sys/unix"
)

// MiB is the unit of sizes here.
const MiB = int64(1) << 20

// Rig is one private directory and everything that was made below it.
type Rig struct {
	Dir     string
	cleanup []func() error
}

// New makes the directory.
func New() (*Rig, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("loop devices and mounts need root")
	}
	dir, err := os.MkdirTemp("", "ringvol-")
	if err != nil {
		return nil, err
	}
	return &Rig{Dir: dir}, nil
}

// Defer adds something to undo; the last is undone first.
func (r *Rig) Defer(undo func() error) {
	r.cleanup = append(r.cleanup, undo)
}

// Path joins a path below the directory.
func (r *Rig) Path(elem ...string) string {
	return filepath.Join(append([]string{r.Dir}, elem...)...)
}

// Close undoes everything, then sweeps what a test or a driver that failed has left: mounts below
// the directory, loop devices whose image lies there, the files. A non-nil error names what could
// not be removed; sweeping by itself is no error, Leaks tells of that.
func (r *Rig) Close() error {
	var errs []error
	for i := len(r.cleanup) - 1; i >= 0; i-- {
		if err := r.cleanup[i](); err != nil {
			errs = append(errs, err)
		}
	}
	r.cleanup = nil
	for range 200 { // another test's mount namespace may hold a device for a moment
		mounts := MountsBelow(r.Dir)
		loops := LoopsBelow(r.Dir)
		if len(mounts) == 0 && len(loops) == 0 {
			break
		}
		for i := len(mounts) - 1; i >= 0; i-- {
			_ = unix.Unmount(mounts[i], unix.MNT_DETACH)
		}
		for _, loop := range loops {
			for _, guard := range HoldersOf(loop) {
				_, _ = Run("dmsetup", "remove", "--deferred", "/dev/"+guard)
			}
			_ = Detach(loop)
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, loop := range LoopsBelow(r.Dir) {
		errs = append(errs, fmt.Errorf("%s is still bound", loop))
	}
	if err := os.RemoveAll(r.Dir); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// MountsBelow lists mount points below dir, in mount order.
func MountsBelow(dir string) []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		path := unescape(fields[4])
		if strings.HasPrefix(path, dir+"/") {
			found = append(found, path)
		}
	}
	return found
}

func unescape(s string) string {
	for _, pair := range [][2]string{{`\040`, " "}, {`\011`, "\t"}, {`\012`, "\n"}, {`\134`, `\`}} {
		s = strings.ReplaceAll(s, pair[0], pair[1])
	}
	return s
}

// LoopsBelow lists loop devices (/dev/loopN) bound to a file below dir, deleted ones included.
func LoopsBelow(dir string) []string {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(text), dir+"/") {
			found = append(found, "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(file))))
		}
	}
	return found
}

// HoldersOf lists the device-mapper devices (dm-N) that stand over a block device.
func HoldersOf(device string) []string {
	links, _ := filepath.Glob("/sys/block/" + filepath.Base(device) + "/holders/dm-*")
	for i, link := range links {
		links[i] = filepath.Base(link)
	}
	return links
}

// Attach binds a file to a free loop device.
func Attach(file string, flags ...string) (string, error) {
	args := append([]string{"--find", "--show"}, flags...)
	out, err := Run("losetup", append(args, file)...)
	return strings.TrimSpace(out), err
}

// Detach unbinds a loop device; one that is not bound is success.
func Detach(device string) error {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0); err != nil && err != unix.ENXIO {
		return fmt.Errorf("detaching %s: %w", device, err)
	}
	return nil
}

// Remove takes a loop device away that is not bound, and what its number remembers.
func Remove(device string) error {
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(control)
	minor, err := strconv.Atoi(strings.TrimPrefix(device, "/dev/loop"))
	if err != nil {
		return err
	}
	if err := unix.IoctlSetInt(control, unix.LOOP_CTL_REMOVE, minor); err != nil {
		return fmt.Errorf("removing %s: %w", device, err)
	}
	return nil
}

// Run runs a tool and returns what it printed; the error holds it too.
func Run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err,
			strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// Final is an error that will not go away by waiting.
type Final struct{ error }

// Stop makes an error final.
func Stop(err error) error { return Final{err} }

// Unwrap returns the error inside.
func (f Final) Unwrap() error { return f.error }

// Eventually polls until check returns nil or a Final error, or the time is up; then it returns the
// last error. The time only bounds a failure.
func Eventually(limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		var final Final
		if err == nil || errors.As(err, &final) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
