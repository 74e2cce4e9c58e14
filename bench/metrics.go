// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"ringvol.dev/tests/rig"
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
	one := strings.Count(text, `volume="`+all[0].Name+`"`)
	// What the loop has to do anyway, in as long a time.
	before := turns(text)
	begin := time.Now()
	time.Sleep(time.Duration(20*b.rounds) * 20 * time.Millisecond)
	quiet := time.Since(begin)
	if text, _, err = scrape(client, url); err != nil {
		return err
	}
	own, _ := longTurns(before, turns(text))
	before, worked := turns(text), cpu(text)
	begin = time.Now()
	var times []float64
	for range 20 * b.rounds {
		_, took, err := scrape(client, url)
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	text, _, err = scrape(client, url)
	if err != nil {
		return err
	}
	scraping := time.Since(begin)
	long, turned := longTurns(before, turns(text))
	worked = (cpu(text) - worked) / float64(len(times)+1)
	b.add(row{What: fmt.Sprintf("/metrics with %d staged volumes, %.1f MB", count, float64(len(text))/1e6), Unit: "ms",
		Ours: median(times), Low: quantile(times, 0), High: quantile(times, 1), Rounds: len(times), Bar: "<= 30",
		Note: fmt.Sprintf("%.1f ms of the driver's processor time", worked)})
	b.add(row{What: "turns of the loop over 2.1 ms meanwhile", Unit: "turns", Ours: float64(long), Bar: "<= 0",
		Note: fmt.Sprintf("of %d in %.1f s; without scrapes %d in %.1f s", turned, scraping.Seconds(), own, quiet.Seconds())})
	b.add(row{What: "series of one volume", Unit: "series", Ours: float64(one), Bar: "<= 60"})

	before = turns(text)
	begin = time.Now()
	if err := each(100, 100, func(int) error {
		_, _, err := scrape(&http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{}}, url)
		return err
	}); err != nil {
		return err
	}
	took := float64(time.Since(begin).Milliseconds())
	if text, _, err = scrape(client, url); err != nil {
		return err
	}
	long, turned = longTurns(before, turns(text))
	b.add(row{What: fmt.Sprintf("100 scrapers at once, %d volumes, until the last is served", count), Unit: "ms", Ours: took})
	b.add(row{What: "turns of the loop over 2.1 ms meanwhile, 100 scrapers", Unit: "turns", Ours: float64(long), Bar: "<= 0",
		Note: fmt.Sprintf("of %d", turned)})
	b.add(row{What: fmt.Sprintf("VmRSS after it, %d volumes staged", count), Unit: "MiB", Ours: statusKiB(d.Pid(), "VmRSS") / 1024,
		Bar: "<= 8", Note: fmt.Sprintf("before the first scrape %.1f MiB, at its highest %.1f MiB", unscraped, statusKiB(d.Pid(), "VmHWM")/1024)})
	return each(count, 16, func(i int) error { return down(all[i], all[i].Unstage) })
}
