// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
)

// FreeAddress is a loopback address and port that nobody has just now. The kernel gives none of these ports to those who do not
// care which they have, other tests' connections among them.
func FreeAddress() (string, error) {
	for {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12000+rand.IntN(20000)))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", err
		}
		defer l.Close()
		return l.Addr().String(), nil
	}
}

// ServeHTTP gives the driver an HTTP address; to be called before Start.
func (d *Driver) ServeHTTP() error {
	address, err := FreeAddress()
	if err == nil {
		d.HTTP = address
		d.Args = append(d.Args, "--http", address)
	}
	return err
}

// Get asks the driver's HTTP address; every call has a connection of its own.
func (d *Driver) Get(path string) (status int, body string, err error) {
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Get("http://" + d.HTTP + path)
	if err != nil {
		return 0, "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	return reply.StatusCode, string(text), err
}

// Metrics is a scrape, parsed: families by name.
type Metrics map[string]*dto.MetricFamily

// Scrape takes /metrics apart.
func (d *Driver) Scrape() (Metrics, error) {
	status, text, err := d.Get("/metrics")
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("/metrics: %d", status)
	}
	return ParseMetrics(text)
}

// ParseMetrics is Prometheus' own parser, and what it lets pass: a family in two places, a sample twice,
// a histogram whose buckets do not add up.
func ParseMetrics(text string) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	seen, last := map[string]bool{}, ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "# ") {
			continue
		}
		name := strings.TrimSuffix(line[:strings.IndexAny(line, "{ ")], "\n")
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, found := strings.CutSuffix(name, suffix); found && families[base] != nil {
				name = base
			}
		}
		if name != last && seen[name] {
			return nil, fmt.Errorf("%s comes in two places", name)
		}
		series := line[:strings.LastIndex(line, " ")]
		if seen["series "+series] {
			return nil, fmt.Errorf("%s comes twice", series)
		}
		seen[name], seen["series "+series], last = true, true, name
	}
	for name, family := range families {
		for _, m := range family.Metric {
			h := m.GetHistogram()
			if h == nil {
				continue
			}
			below := uint64(0)
			for _, bucket := range h.Bucket {
				if bucket.GetCumulativeCount() < below {
					return nil, fmt.Errorf("%s: buckets do not add up", name)
				}
				below = bucket.GetCumulativeCount()
			}
			if below != h.GetSampleCount() {
				return nil, fmt.Errorf("%s: +Inf has %d of %d", name, below, h.GetSampleCount())
			}
		}
	}
	return families, nil
}

// Find returns the sample of a family with these labels (name, value, ...), nil when there is none.
func (m Metrics) Find(name string, labels ...string) *dto.Metric {
	family := m[name]
	if family == nil {
		return nil
	}
sample:
	for _, sample := range family.Metric {
		for i := 0; i < len(labels); i += 2 {
			if labelOf(sample, labels[i]) != labels[i+1] {
				continue sample
			}
		}
		return sample
	}
	return nil
}

// Value of a counter or gauge, count of a histogram; -1 when it is not there.
func (m Metrics) Value(name string, labels ...string) float64 {
	sample := m.Find(name, labels...)
	switch {
	case sample == nil:
		return -1
	case sample.Gauge != nil:
		return sample.Gauge.GetValue()
	case sample.Counter != nil:
		return sample.Counter.GetValue()
	case sample.Histogram != nil:
		return float64(sample.Histogram.GetSampleCount())
	}
	return -1
}

// Series counts those with a label of this value.
func (m Metrics) Series(label, value string) int {
	count := 0
	for _, family := range m {
		for _, sample := range family.Metric {
			if labelOf(sample, label) != value {
				continue
			}
			count++
			if h := sample.GetHistogram(); h != nil {
				count += len(h.Bucket) + 1 // buckets, sum, count
			}
		}
	}
	return count
}

func labelOf(sample *dto.Metric, name string) string {
	for _, l := range sample.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
