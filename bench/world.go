// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// open starts a driver on an XFS pool of its own; thin volumes may be promised many times over.
func (b *bench) open(size int64, args ...string) (*rig.Driver, *rig.Pool, error) {
	p, err := b.NewPool("default", "xfs", size)
	if err != nil {
		return nil, nil, err
	}
	if err := os.Mkdir(b.Path("csi"), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, nil, err
	}
	d := b.NewDriver(p)
	d.PoolOptions = ",init,overcommit=1000"
	d.Args = append([]string{"--log-level", "warn"}, args...)
	return d, p, startReady(d)
}

func startReady(d *rig.Driver) error {
	if err := d.Start(); err != nil {
		return err
	}
	return d.AwaitReady()
}

// each runs work(0..count-1), so many at a time.
func each(count, inFlight int, work func(i int) error) error {
	var next atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, inFlight)
	for w := range inFlight {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < count && errs[w] == nil; i = int(next.Add(1)) - 1 {
				errs[w] = work(i)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

func volumes(d *rig.Driver, prefix string, count int, c *csi.VolumeCapability, size int64) []*rig.Volume {
	all := make([]*rig.Volume, count)
	for i := range all {
		// As long as a name from external-provisioner.
		all[i] = d.Volume(fmt.Sprintf("pvc-%s-0000-4000-8000-%012d", prefix, i), c, size)
	}
	return all
}

// down takes a volume from its staging path and deletes it. Who looks into a device, as udev or another
// driver's scan, keeps it for a moment, and the delete is refused until then: the caller retries.
func down(v *rig.Volume, take func() error) error {
	if err := take(); err != nil {
		return err
	}
	return rig.Eventually(30*time.Second, v.Delete)
}

// makePaths does what kubelet does before it calls.
func makePaths(all []*rig.Volume) error {
	for _, v := range all {
		if err := v.Paths(); err != nil {
			return err
		}
	}
	return nil
}

// stagedVolumes are new ones, created and staged, none published.
func stagedVolumes(d *rig.Driver, prefix string, count int, c *csi.VolumeCapability, size int64) ([]*rig.Volume, error) {
	all := volumes(d, prefix, count, c, size)
	if err := makePaths(all); err != nil {
		return nil, err
	}
	return all, each(count, 16, func(i int) error {
		if err := all[i].Create(); err != nil {
			return err
		}
		return all[i].Stage()
	})
}

// floorRun runs the program of the bare calls and returns its microseconds.
func floorRun(args ...any) ([]float64, error) {
	return timesOf(*floorPath, args...)
}

// timesOf runs a C program that prints nanoseconds, and returns microseconds.
func timesOf(program string, args ...any) ([]float64, error) {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = fmt.Sprint(a)
	}
	out, err := exec.Command(program, words...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%s %s: %s", filepath.Base(program), words[0], exit.Stderr)
		}
		return nil, err
	}
	var times []float64
	for _, word := range strings.Fields(string(out)) {
		n, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, err
		}
		times = append(times, n/1000)
	}
	return times, nil
}

func floorMedian(args ...any) (float64, error) {
	times, err := floorRun(args...)
	return median(times), err
}

// floorDir is a directory of the pool's file system that the driver does not look at.
func floorDir(p *rig.Pool) (string, error) {
	dir := filepath.Join(p.Path, "bench-floor")
	return dir, os.MkdirAll(dir, 0o755)
}

// statusKiB reads one line of /proc/PID/status.
func statusKiB(pid int, field string) float64 {
	n, _ := strconv.ParseFloat(strings.TrimSuffix(firstLine(fmt.Sprintf("/proc/%d/status", pid), field+":"), " kB"), 64)
	return n
}

// familyPss is the proportional memory of a process and its children, in KiB.
func familyPss(pid int) float64 {
	total := 0.0
	pids := []string{strconv.Itoa(pid)}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range threads {
		text, _ := os.ReadFile(file)
		pids = append(pids, strings.Fields(string(text))...)
	}
	for _, p := range pids {
		n, _ := strconv.ParseFloat(strings.TrimSuffix(firstLine("/proc/"+p+"/smaps_rollup", "Pss:"), " kB"), 64)
		total += n
	}
	return total
}

// diskCounts are the device flushes and writes of a file system's disk so far.
type diskCounts struct{ flushes, writes float64 }

func diskStat(path string) (diskCounts, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return diskCounts{}, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return diskCounts{}, err
	}
	f := strings.Fields(string(text))
	if len(f) < 17 {
		return diskCounts{}, errors.New("this kernel does not count flushes")
	}
	writes, _ := strconv.ParseFloat(f[4], 64)
	flushes, _ := strconv.ParseFloat(f[15], 64)
	return diskCounts{flushes, writes}, nil
}

// sectorOf is the logical block size of the device below a mounted path.
func sectorOf(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", err
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/queue/logical_block_size", unix.Major(st.Dev), unix.Minor(st.Dev)))
	return strings.TrimSpace(string(text)), err
}

// devices remembers which loop devices there were, for density makes thousands of them.
type devices map[string]bool

func newDevices() devices {
	known := devices{}
	names, _ := filepath.Glob("/sys/block/loop*")
	for _, name := range names {
		known[filepath.Base(name)] = true
	}
	return known
}

// removeAdded removes those that came since and are free; the kernel refuses any in use. Each removal
// waits for a grace period, hence many at a time.
func (known devices) removeAdded() {
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(control)
	var added []int
	for name := range newDevices() {
		minor, err := strconv.Atoi(strings.TrimPrefix(name, "loop"))
		if err == nil && !known[name] && minor >= 64 {
			added = append(added, minor)
		}
	}
	_ = each(len(added), 32, func(i int) error {
		_ = unix.IoctlSetInt(control, unix.LOOP_CTL_REMOVE, added[i])
		return nil
	})
}

// process is a peer; it is ended with the rig.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (b *bench) spawn(log string, name string, args ...string) (*process, error) {
	out, err := os.OpenFile(b.Path(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }()
	b.Defer(func() error { p.end(); return nil })
	return p, nil
}

func (p *process) end() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

const noPeer = "no peer: give a built csi-driver-host-path with RINGVOL_BENCH_PEER"

func (b *bench) havePeer() bool {
	if *peerPath == "" {
		fmt.Fprintf(os.Stderr, "%s: rows skipped, %s\n", b.group, noPeer)
	}
	return *peerPath != ""
}

// peer starts csi-driver-host-path on a unix socket and a state directory of its own.
func (b *bench) peer() (*process, string, error) {
	socket := b.Path("peer.sock")
	_ = os.Remove(socket)
	p, err := b.spawn("peer.log", *peerPath, "-endpoint", "unix://"+socket, "-nodeid", "node-a",
		"-statedir", b.Path("peer-state"), "-drivername", "peer.example.com")
	return p, socket, err
}

// awaitSocket polls finely, for starts are measured with it.
func awaitSocket(network, address string) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		conn, err := net.Dial(network, address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// freePort is a TCP port of the loopback that was free a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
