// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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
