// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

const turnBound = 0.002097152 // seconds: the bucket of ringvol_reactor_loop_seconds next above 2 ms

func scrape(client *http.Client, url string) (string, float64, error) {
	begin := time.Now()
	reply, err := client.Get(url)
	if err != nil {
		return "", 0, err
	}
	defer reply.Body.Close()
	var text bytes.Buffer
	if _, err := io.Copy(&text, reply.Body); err != nil {
		return "", 0, err
	}
	if reply.StatusCode != http.StatusOK {
		return "", 0, fmt.Errorf("%s: %s", url, reply.Status)
	}
	return text.String(), float64(time.Since(begin).Microseconds()) / 1000, nil
}

var cpuSeconds = regexp.MustCompile(`(?m)^process_cpu_seconds_total (\S+)$`)

// cpu is the driver's processor time so far, in ms.
func cpu(text string) float64 {
	m := cpuSeconds.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	seconds, _ := strconv.ParseFloat(m[1], 64)
	return 1000 * seconds
}

var loopBucket = regexp.MustCompile(`(?m)^ringvol_reactor_loop_seconds_bucket\{le="([^"]+)"\} (\d+)$`)

// turns are the turns of the loop so far, by the upper bound of their bucket.
func turns(text string) map[string]int {
	found := map[string]int{}
	for _, m := range loopBucket.FindAllStringSubmatch(text, -1) {
		found[m[1]], _ = strconv.Atoi(m[2])
	}
	return found
}

// longTurns are those between two scrapes that were longer than turnBound, and all of them.
func longTurns(before, after map[string]int) (long, all int) {
	bound := strconv.FormatFloat(turnBound, 'f', -1, 64)
	all = after["+Inf"] - before["+Inf"]
	return all - (after[bound] - before[bound]), all
}

// scrapes are what came of some: their times in ms, turns of the loop meanwhile, and processor time for each.
type scrapes struct {
	times       []float64
	long, turns int
	cpu         float64
	took        time.Duration
}

func (b *bench) scrapes(url string, count, together int) (s scrapes, err error) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: together}}
	defer client.CloseIdleConnections()
	before, _, err := scrape(client, url)
	if err != nil {
		return s, err
	}
	s.times = make([]float64, count)
	begin := time.Now()
	if err := each(count, together, func(i int) (err error) {
		_, s.times[i], err = scrape(client, url)
		return err
	}); err != nil {
		return s, err
	}
	s.took = time.Since(begin)
	after, _, err := scrape(client, url)
	s.long, s.turns = longTurns(turns(before), turns(after))
	s.cpu = (cpu(after) - cpu(before)) / float64(count+1)
	return s, err
}

// promptly scrapes while the driver's loop has a real-time priority: a turn that the scheduler interrupts for
// something else is longer, and not because of what the loop did.
func promptly(d *rig.Driver, work func() (scrapes, error)) (scrapes, error) {
	ordinary, err := unix.SchedGetAttr(d.Pid(), 0)
	if err == nil {
		err = unix.SchedSetAttr(d.Pid(), &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 10}, 0)
	}
	if err != nil {
		return scrapes{}, fmt.Errorf("a real-time priority: %w", err)
	}
	s, err := work()
	return s, errors.Join(err, unix.SchedSetAttr(d.Pid(), ordinary, 0))
}

// metrics: a scrape with 1,000 staged volumes, alone and with 100 others, and what the loop is kept from.
func metrics(b *bench) error {
	const address = "127.0.0.1:19809"
	count := min(1000, b.known)
	d, _, err := b.open(16<<30, "--http", address)
	if err != nil {
		return err
	}
	all, err := stagedVolumes(d, "metrics0", count, rig.MountCap("ext4"), volumeSize)
	if err != nil {
		return err
	}
	unscraped := statusKiB(d.Pid(), "VmRSS") / 1024
	url := "http://" + address + "/metrics"
	client := &http.Client{Timeout: 30 * time.Second}
	text, _, err := scrape(client, url)
	if err != nil {
		return err
	}
	// What the loop has to do anyway, in as long a time.
	before := turns(text)
	begin := time.Now()
	time.Sleep(time.Duration(20*b.rounds) * 20 * time.Millisecond)
	quiet := time.Since(begin)
	if text, _, err = scrape(client, url); err != nil {
		return err
	}
	own, _ := longTurns(before, turns(text))
	one := strings.Count(text, `volume="`+all[0].Name+`"`)
	oneByOne := func() (scrapes, error) { return b.scrapes(url, 20*b.rounds, 1) }
	hundred := func() (scrapes, error) { return b.scrapes(url, 100, 100) }
	s, err := oneByOne()
	if err != nil {
		return err
	}
	b.add(row{What: fmt.Sprintf("/metrics with %d staged volumes, %.1f MB", count, float64(len(text))/1e6), Unit: "ms",
		Ours: median(s.times), Low: quantile(s.times, 0), High: quantile(s.times, 1), Rounds: len(s.times), Bar: "<= 30",
		Note: fmt.Sprintf("%.1f ms of the driver's processor time", s.cpu)})
	plain := s
	if s, err = promptly(d, oneByOne); err != nil {
		return err
	}
	b.add(row{What: "turns of the loop over 2.1 ms meanwhile, the loop with a real-time priority", Unit: "turns", Ours: float64(s.long), Bar: "<= 0",
		Note: fmt.Sprintf("of %d in %.1f s; with an ordinary priority %d of %d; without scrapes %d in %.1f s", s.turns, s.took.Seconds(),
			plain.long, plain.turns, own, quiet.Seconds())})
	b.add(row{What: "series of one volume", Unit: "series", Ours: float64(one), Bar: "<= 60"})
	if plain, err = hundred(); err != nil {
		return err
	}
	if s, err = promptly(d, hundred); err != nil {
		return err
	}
	b.add(row{What: fmt.Sprintf("100 scrapers at once, %d volumes, until the last is served", count), Unit: "ms",
		Ours: float64(plain.took.Milliseconds())})
	b.add(row{What: "turns of the loop over 2.1 ms meanwhile, 100 scrapers, the loop with a real-time priority", Unit: "turns",
		Ours: float64(s.long), Bar: "<= 0",
		Note: fmt.Sprintf("of %d; with an ordinary priority %d of %d", s.turns, plain.long, plain.turns)})
	b.add(row{What: fmt.Sprintf("VmRSS after it, %d volumes staged", count), Unit: "MiB", Ours: statusKiB(d.Pid(), "VmRSS") / 1024,
		Bar: "<= 8", Note: fmt.Sprintf("before the first scrape %.1f MiB, at its highest %.1f MiB", unscraped, statusKiB(d.Pid(), "VmHWM")/1024)})
	return each(count, 16, func(i int) error { return down(all[i], all[i].Unstage) })
}
