// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// stats: what a node pays for asking after its volumes. A thousand mounted volumes and nobody asking, then
// as kubelet asks: NodeGetVolumeStats of each once a minute, ten at a time. The log is that of a real node.
func stats(b *bench) error {
	const count, together = 1000, 10
	const period = time.Minute * together / count
	d, p, err := b.open(32<<30, "--log-level", "info")
	if err != nil {
		return err
	}
	if err := b.noticing(d, p); err != nil {
		return err
	}
	all := volumes(d, "stats000", count, rig.MountCap("ext4"), volumeSize)
	if err := makePaths(all); err != nil {
		return err
	}
	if err := each(count, 8, func(i int) error { return all[i].Up() }); err != nil {
		return err
	}
	time.Sleep(15 * time.Second) // helpers that were too many have gone

	idle := busyMeanwhile(d.Pid(), func() { time.Sleep(time.Minute) })
	// As kubelet does; the share of calls/count of a minute.
	ask := func(calls int, one func(i int) error) (times []float64, err error) {
		var lock sync.Mutex
		tick := time.NewTicker(period)
		defer tick.Stop()
		for from := 0; from < calls; from += together {
			<-tick.C
			var wait sync.WaitGroup
			for i := from; i < from+together; i++ {
				wait.Go(func() {
					start := time.Now()
					failed := one(i)
					took := float64(time.Since(start).Nanoseconds()) / 1000
					lock.Lock()
					defer lock.Unlock()
					times, err = append(times, took), errors.Join(err, failed)
				})
			}
			wait.Wait()
		}
		return times, err
	}
	var times []float64
	asking := busyMeanwhile(d.Pid(), func() {
		times, err = ask(count, func(i int) error { _, err := all[i].Stats(); return err })
	})
	if err != nil {
		return err
	}
	c, err := d.Client()
	if err != nil {
		return err
	}
	nothing, err := ask(count/2, func(int) error {
		_, err := c.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{})
		return err
	})
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d mounted volumes, each asked once a minute, %d at a time", count, together)
	b.add(row{What: "NodeGetVolumeStats p99, " + what, Unit: "us", Ours: quantile(times, 0.99), Bar: "<= 1000"})
	b.add(row{What: "NodeGetVolumeStats p50, " + what, Unit: "us", Ours: median(times)})
	for _, q := range []float64{0.99, 0.5} {
		b.add(row{What: fmt.Sprintf("GetPluginInfo p%.0f, the same way: what client, socket and a machine at rest take of it", 100*q), Unit: "us",
			Ours: quantile(nothing, q)})
	}
	b.add(row{What: "CPU of driver and helpers meanwhile, percent of one core", Unit: "%", Ours: asking, Bar: "<= 0.1"})
	b.add(row{What: "of it the same with nobody asking: the watch", Unit: "%", Ours: idle})
	return each(count, 8, func(i int) error { return down(all[i], all[i].Down) })
}

// noticing measures how long an I/O error takes to be known: a read behind the end of an image that was
// cut short, until the volume is abnormal.
func (b *bench) noticing(d *rig.Driver, p *rig.Pool) error {
	c, err := d.Client()
	if err != nil {
		return err
	}
	v := d.Volume("pvc-noticed", rig.BlockCap(), volumeSize)
	if err := v.Up(); err != nil {
		return err
	}
	fd, err := unix.Open(v.Target, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	block, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(block)
	become := func(abnormal bool) error {
		return rig.Eventually(time.Minute, func() error {
			h, err := c.ControllerGetVolumeHealth(context.Background(), v.ID)
			if err == nil && h.Has("IOErrors") != abnormal {
				err = fmt.Errorf("%v", h)
			}
			return err
		})
	}
	time.Sleep(time.Second) // the probes are loaded after the driver serves
	var known, over []float64
	for range 2 {
		if err := os.Truncate(p.Image(v.ID), v.Got/2); err != nil {
			return err
		}
		start := time.Now()
		if _, err := unix.Pread(fd, block, v.Got-4096); err != unix.EIO {
			return fmt.Errorf("reading behind the end of the image: %v", err)
		}
		if err := become(true); err != nil {
			return err
		}
		known = append(known, float64(time.Since(start).Milliseconds()))
		if err := os.Truncate(p.Image(v.ID), v.Got); err != nil {
			return err
		}
		start = time.Now()
		if err := become(false); err != nil {
			return err
		}
		over = append(over, float64(time.Since(start).Milliseconds()))
	}
	b.add(row{What: "an I/O error until the volume is abnormal, the slower of two", Unit: "ms", Ours: max(known[0], known[1]),
		Bar: "<= 1000"})
	b.add(row{What: "its end until the volume is well again, nobody using it", Unit: "ms", Ours: over[0],
		Note: fmt.Sprintf("after a relapse %.0f", over[1])})
	unix.Close(fd)
	return down(v, v.Down)
}

// busyMeanwhile is the CPU time a driver and its helpers use while work runs, in percent of one core. All
// threads are counted, those that come and go only as far as they still are there.
func busyMeanwhile(pid int, work func()) float64 {
	start, before := time.Now(), runTime(pid)
	work()
	return 100 * float64(runTime(pid)-before) / float64(time.Since(start).Nanoseconds())
}

// runTime is the nanoseconds that a process's threads and its children have been running.
func runTime(pid int) (ns int64) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task + "/schedstat")
		if fields := strings.Fields(string(text)); len(fields) > 0 {
			n, _ := strconv.ParseInt(fields[0], 10, 64)
			ns += n
		}
		children, _ := os.ReadFile(task + "/children")
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				ns += runTime(n)
			}
		}
	}
	return ns
}

// row is one line of the report. Ours and Other are medians over the rounds; Ratio is the median of
// the rounds' own ratios, Low and High the smallest and largest of them.
type row struct {
	Group  string  `json:"group"`
	What   string  `json:"what"`
	Unit   string  `json:"unit"`
	Ours   float64 `json:"ours"`
	Other  float64 `json:"other,omitempty"`
	Beside string  `json:"beside,omitempty"` // what Other is
	Ratio  float64 `json:"ratio,omitempty"`
	Low    float64 `json:"low,omitempty"`
	High   float64 `json:"high,omitempty"`
	Rounds int     `json:"rounds,omitempty"`
	Bar    string  `json:"bar,omitempty"` // "ratio <= 2", "<= 4"; empty: for information
	Met    *bool   `json:"met,omitempty"`
	Note   string  `json:"note,omitempty"`
}

type report struct {
	Machine map[string]string `json:"machine"`
	Load    map[string]string `json:"load"` // of the machine before and after each group, and where its pools were
	Rows    []row             `json:"rows"`
}

func (b *bench) add(r row) {
	r.Group = b.group
	if r.Bar != "" {
		value := r.Ours
		bar, onRatio := strings.CutPrefix(r.Bar, "ratio ")
		if onRatio {
			value = r.Ratio
		}
		var limit float64
		fmt.Sscan(bar[3:], &limit)
		met := value <= limit
		if bar[:2] == ">=" {
			met = value >= limit
		}
		r.Met = &met
	}
	b.rows = append(b.rows, r)
	verdict := ""
	if r.Met != nil {
		verdict = map[bool]string{true: "met", false: "NOT MET"}[*r.Met]
	}
	fmt.Fprintf(os.Stderr, "%-62s %12.1f %12.1f %-9s ratio %7.3f (%.3f..%.3f) %s %s %s\n",
		r.What, r.Ours, r.Other, r.Unit, r.Ratio, r.Low, r.High, r.Bar, verdict, r.Note)
}

// paired measures in turns, the order changing every round, and adds the row.
func (b *bench) paired(r row, ours, other func() (float64, error)) error {
	var mine, others, ratios []float64
	for i := range b.rounds {
		var x, y float64
		var err error
		first := func() { x, err = ours() }
		second := func() { y, err = other() }
		if i%2 == 1 {
			first, second = second, first
		}
		if first(); err != nil {
			return fmt.Errorf("%s: %w", r.What, err)
		}
		if second(); err != nil {
			return fmt.Errorf("%s: %w", r.What, err)
		}
		mine, others, ratios = append(mine, x), append(others, y), append(ratios, x/y)
	}
	b.addPairs(r, mine, others, ratios)
	return nil
}

func (b *bench) addPairs(r row, mine, others, ratios []float64) {
	r.Ours, r.Other, r.Ratio = median(mine), median(others), median(ratios)
	r.Low, r.High, r.Rounds = slices.Min(ratios), slices.Max(ratios), len(ratios)
	b.add(r)
}

func median(values []float64) float64 { return quantile(values, 0.5) }

func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// micros measures count calls one after the other.
func micros(count int, call func(i int) error) ([]float64, error) {
	times := make([]float64, 0, count)
	for i := range count {
		start := time.Now()
		if err := call(i); err != nil {
			return nil, err
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/1000)
	}
	return times, nil
}

// p50 is the median of that.
func p50(count int, call func(i int) error) (float64, error) {
	times, err := micros(count, call)
	return median(times), err
}

func firstLine(path, prefix string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, prefix) {
			_, value, _ := strings.Cut(line, ":")
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}

func machine() map[string]string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return map[string]string{
		"kernel":    unix.ByteSliceToString(u.Release[:]),
		"processor": firstLine("/proc/cpuinfo", "model name"),
		"cpus":      fmt.Sprint(onlineCPUs()),
		"memory":    firstLine("/proc/meminfo", "MemTotal"),
		"date":      time.Now().UTC().Format(time.DateOnly),
	}
}

func onlineCPUs() int {
	var set unix.CPUSet
	_ = unix.SchedGetaffinity(0, &set)
	return set.Count()
}

var loadBefore = load()

// save replaces the group's rows in the file.
func save(path, group string, rows []row) error {
	var all report
	if text, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(text, &all); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if all.Load == nil {
		all.Load = map[string]string{}
	}
	all.Machine = machine()
	after := load()
	all.Load[group] = fmt.Sprintf("%s to %s, pools below %s", loadBefore, after, os.TempDir())
	loadBefore = after
	var kept []row
	for _, g := range groups {
		if g.name == group {
			kept = append(kept, rows...)
			continue
		}
		for _, r := range all.Rows {
			if r.Group == g.name {
				kept = append(kept, r)
			}
		}
	}
	all.Rows = kept
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
