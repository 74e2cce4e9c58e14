// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

const statsEnabled = "/proc/sys/kernel/bpf_stats_enabled"

// probes: what counting costs a volume's I/O, the CPU and the memory, and how its times compare with fio's.
func probes(b *bench) error {
	d, p, err := b.open(8 << 30)
	if err != nil {
		return err
	}
	v := d.Volume("probed", rig.BlockCap(), 256*rig.MiB)
	if err := v.Up(); err != nil {
		return err
	}
	// Every block written, so that reads go to the disk or its cache and not to a hole.
	if _, err := runFio(v.Target, "--rw=write", "--bs=1m"); err != nil {
		return err
	}
	if err := awaitProbes(d); err != nil {
		return err
	}
	if err := probesTimes(b, d, v); err != nil {
		return err
	}
	if err := probesCost(b, d, p, v); err != nil {
		return err
	}
	if err := v.Gone(); err != nil {
		return err
	}
	return probesMemory(b, d)
}

type fioSide struct {
	IOPS float64 `json:"iops"`
	Ops  float64 `json:"total_ios"`
	Clat struct {
		Percentile map[string]float64 `json:"percentile"`
	} `json:"clat_ns"`
}

func runFio(path string, args ...string) (fioSide, error) {
	return fioBy([]string{"fio"}, path, args...)
}

// prompt runs fio with a real-time priority: its completion latency ends when it has been woken, and on a busy
// machine that may be long after the device was done.
func prompt(path string, args ...string) (fioSide, error) {
	return fioBy([]string{"chrt", "--fifo", "50", "fio"}, path, args...)
}

func fioBy(words []string, path string, args ...string) (fioSide, error) {
	args = append(append(words[1:], "--name=bench", "--filename="+path, "--direct=1", "--ioengine=io_uring", "--size=256m",
		"--allow_file_create=0", "--group_reporting", "--output-format=json"), args...)
	cmd := exec.Command(words[0], args...)
	cmd.Dir = os.TempDir()
	out, err := cmd.Output()
	if err != nil {
		return fioSide{}, fmt.Errorf("fio: %w: %s", err, out)
	}
	var report struct{ Jobs []struct{ Read fioSide } }
	if err := json.Unmarshal(out[max(0, bytes.IndexByte(out, '{')):], &report); err != nil {
		return fioSide{}, err
	}
	return report.Jobs[0].Read, nil
}

func randomReads(depth, seconds int, more ...string) []string {
	return append([]string{"--rw=randread", "--bs=4k", fmt.Sprintf("--iodepth=%d", depth), "--time_based",
		fmt.Sprintf("--runtime=%d", seconds)}, more...)
}

// awaitProbes waits until the driver has its programs in the kernel.
func awaitProbes(d *rig.Driver) error {
	return rig.Eventually(10*time.Second, func() error {
		if n := len(programs(d.Pid())); n == 0 {
			return errors.New("no BPF programs: " + d.LogTail(3))
		}
		return nil
	})
}

// descriptors of a process that are BPF objects of a kind, as the kernel describes them.
func descriptors(pid int, key string) []map[string]float64 {
	var all []map[string]float64
	seen := map[float64]bool{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, file := range files {
		fields := fdinfo(file)
		if id, ok := fields[key]; ok && !seen[id] {
			seen[id] = true
			all = append(all, fields)
		}
	}
	return all
}

func fdinfo(file string) map[string]float64 {
	text, _ := os.ReadFile(file)
	fields := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
			fields[name] = n
		}
	}
	return fields
}

// programs that a process has attached. It holds their links, which name them; the kernel opens them for us.
func programs(pid int) []map[string]float64 {
	var all []map[string]float64
	for _, link := range descriptors(pid, "link_id") {
		request := [3]uint32{uint32(link["prog_id"])}
		fd, err := bpf(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&request), unsafe.Sizeof(request))
		if err == nil {
			all = append(all, fdinfo(fmt.Sprintf("/proc/self/fdinfo/%d", fd)))
			unix.Close(int(fd))
		}
	}
	return all
}

func total(objects []map[string]float64, field string) float64 {
	sum := 0.0
	for _, o := range objects {
		sum += o[field]
	}
	return sum
}

// probesTimes compares the quantiles with fio's while it runs.
func probesTimes(b *bench, d *rig.Driver, v *rig.Volume) error {
	end, err := keepAwake()
	if err != nil {
		return err
	}
	defer end()
	for _, load := range []struct {
		what string
		cold bool
		args []string
	}{
		{"one at a time, from the disk", true, randomReads(1, 6)},
		{"32 in flight, from the disk", true, randomReads(32, 6)},
		{"one at a time, from memory", false, randomReads(1, 6)},
	} {
		var mine, theirs [2][]float64
		for range max(3, b.rounds/2) {
			if err := forget(load.cold, b.Path("pool-default.img")); err != nil {
				return err
			}
			// The interval holds all that fio does.
			var out []byte
			var failed error
			var wait sync.WaitGroup
			wait.Go(func() {
				out, failed = exec.Command(rig.Binary(), "top", "--json", "--once", "--interval", "9",
					"--endpoint", "unix://"+d.Socket).Output()
			})
			time.Sleep(time.Second)
			fio, err := prompt(v.Target, load.args...)
			wait.Wait()
			if err = errors.Join(err, failed); err != nil {
				return err
			}
			times, err := topTimes(out, v.Name)
			if err != nil {
				return err
			}
			for i, percentile := range []string{"50.000000", "99.000000"} {
				mine[i] = append(mine[i], times[i]/1000)
				theirs[i] = append(theirs[i], fio.Clat.Percentile[percentile]/1000)
			}
		}
		for i, name := range []string{"p50", "p99"} {
			off := make([]float64, len(mine[i]))
			for k := range off {
				off[k] = 100 * math.Abs(mine[i][k]/theirs[i][k]-1)
			}
			b.add(row{What: fmt.Sprintf("%s of 4k random reads, %s: off fio's completion latency, fio with a real-time priority", name, load.what), Unit: "%",
				Ours: median(off), Bar: "<= 15", Rounds: len(off),
				Note: fmt.Sprintf("%.0f and %.0f us; from %.1f to %.1f%%", median(mine[i]), median(theirs[i]),
					slices.Min(off), slices.Max(off))})
		}
	}
	return nil
}

// forget takes the pool's image out of memory, or into it.
func forget(cold bool, image string) error {
	file, err := os.Open(image)
	if err != nil {
		return err
	}
	defer file.Close()
	if cold {
		unix.Sync()
		return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	_, err = io.Copy(io.Discard, file)
	return err
}

func topTimes(out []byte, volume string) ([2]float64, error) {
	var report struct {
		Volumes []struct {
			Name string
			Read struct {
				P50 float64 `json:"p50_ns"`
				P99 float64 `json:"p99_ns"`
			}
		} `json:"volumes"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return [2]float64{}, err
	}
	for _, v := range report.Volumes {
		if v.Name == volume {
			return [2]float64{v.Read.P50, v.Read.P99}, nil
		}
	}
	return [2]float64{}, fmt.Errorf("ringvol top does not know %s", volume)
}

func stopped(d *rig.Driver) error {
	d.Disconnect()
	if !d.Running() {
		return nil
	}
	return d.Term()
}

// probesCost reads as fast as it goes with the driver there and, as the device stays, without it.
func probesCost(b *bench, d *rig.Driver, p *rig.Pool, v *rig.Volume) error {
	for _, depth := range []int{1, 32} {
		iops := func() (float64, error) {
			side, err := runFio(v.Target, randomReads(depth, 3)...)
			return side.IOPS, err
		}
		with := func() (float64, error) {
			if !d.Running() {
				if err := startReady(d); err != nil {
					return 0, err
				}
			}
			if err := awaitProbes(d); err != nil {
				return 0, err
			}
			return iops()
		}
		without := func() (float64, error) {
			if err := stopped(d); err != nil {
				return 0, err
			}
			return iops()
		}
		idle := func() (float64, error) {
			end, err := idlePrograms()
			if err != nil {
				return 0, err
			}
			defer end()
			return iops()
		}
		what := fmt.Sprintf("4k random reads at full rate, %d in flight", depth)
		r := row{What: what, Unit: "IOPS", Beside: "without the driver", Bar: "ratio >= 0.98"}
		if err := b.paired(r, with, without); err != nil {
			return err
		}
		if err := stopped(d); err != nil {
			return err
		}
		r = row{What: what + ", without the driver and with four programs in its place that do nothing", Unit: "IOPS",
			Beside: "without any"}
		if err := b.paired(r, idle, iops); err != nil {
			return err
		}
	}
	if !d.Running() {
		if err := startReady(d); err != nil {
			return err
		}
	}
	if err := awaitProbes(d); err != nil {
		return err
	}
	if err := os.WriteFile(statsEnabled, []byte("1"), 0o644); err != nil {
		return err
	}
	defer os.WriteFile(statsEnabled, []byte("0"), 0o644)
	bare, err := floorDir(p)
	if err != nil {
		return err
	}
	image := filepath.Join(bare, "untracked")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, v.Got); err != nil {
		return err
	}
	device, err := rig.Attach(image, "--direct-io=on")
	if err != nil {
		return err
	}
	defer rig.Detach(device)
	if _, err := runFio(device, "--rw=write", "--bs=1m"); err != nil {
		return err
	}
	perRead := func(path string) (float64, error) {
		before := total(programs(d.Pid()), "run_time_ns")
		side, err := runFio(path, randomReads(32, 2)...)
		return (total(programs(d.Pid()), "run_time_ns") - before) / side.Ops, err
	}
	return b.paired(row{What: "in the programs, for each read: of a volume, of another loop device", Unit: "ns",
		Beside: "a device that is not tracked",
		Note:   "with the clock that measures each run (most of it), and with the runs for the pool's own device"},
		func() (float64, error) { return perRead(v.Target) }, func() (float64, error) { return perRead(device) })
}

// probesMemory is what the kernel counts for 1,000 volumes.
func probesMemory(b *bench, d *rig.Driver) error {
	count := min(1000, b.known)
	all, err := stagedVolumes(d, "probed00", count, rig.BlockCap(), volumeSize)
	if err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // for the last chunk of slots
	kernel := total(descriptors(d.Pid(), "map_id"), "memlock") + total(programs(d.Pid()), "memlock")
	b.add(row{What: fmt.Sprintf("memory of the probes, a volume, with %d of them", count), Unit: "B", Ours: kernel / float64(count),
		Bar: "<= 8192", Note: "all maps and programs of the driver, as the kernel counts them"})
	b.add(row{What: fmt.Sprintf("VmRSS, %d volumes staged", count), Unit: "MiB", Ours: statusKiB(d.Pid(), "VmRSS") / 1024, Bar: "<= 8"})
	return each(count, 16, func(i int) error { return down(all[i], all[i].Unstage) })
}

// idlePrograms attaches BPF programs that return at once where the driver has its own: what is then lost is
// the kernel's price of calling programs at all, which none of ours can go below. The probes are one program
// at block_rq_issue and three at block_rq_complete (bpf/probes.bpf.c says why); block_rq_error does not come.
func idlePrograms() (end func(), err error) {
	var fds []int
	end = func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	for _, tracepoint := range []string{"block_rq_issue", "block_rq_complete", "block_rq_complete", "block_rq_complete"} {
		program, err := idleProgram()
		if err == nil {
			fds = append(fds, program)
			var link int
			link, err = openTracepoint(tracepoint, program)
			fds = append(fds, link)
		}
		if err != nil {
			end()
			return nil, fmt.Errorf("a program at %s: %w", tracepoint, err)
		}
	}
	return end, nil
}

func bpf(command uintptr, attr unsafe.Pointer, size uintptr) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// idleProgram is "r0 = 0; exit" for a raw tracepoint.
func idleProgram() (int, error) {
	code := [2]uint64{unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, unix.BPF_JMP | unix.BPF_EXIT}
	license := [4]byte{'G', 'P', 'L'}
	attr := struct {
		kind, instructions uint32
		code, license      uintptr
		logLevel, logSize  uint32
		log                uintptr
	}{kind: unix.BPF_PROG_TYPE_RAW_TRACEPOINT, instructions: 2,
		code: uintptr(unsafe.Pointer(&code)), license: uintptr(unsafe.Pointer(&license))}
	fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(&code)
	runtime.KeepAlive(&license)
	return fd, err
}

func openTracepoint(name string, program int) (int, error) {
	text := append([]byte(name), 0)
	attr := struct {
		name    uintptr
		program uint32
		_       uint32
	}{name: uintptr(unsafe.Pointer(&text[0])), program: uint32(program)}
	fd, err := bpf(unix.BPF_RAW_TRACEPOINT_OPEN, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(text)
	return fd, err
}
