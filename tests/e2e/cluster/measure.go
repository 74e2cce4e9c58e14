// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// KubeletMetrics is what kubelet says to Prometheus, asked for through the API server.
func (c *Cluster) KubeletMetrics() (string, error) {
	text, err := c.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + c.Name + "/proxy/metrics").
		DoRaw(context.Background())
	return string(text), err
}

// DriverMetrics is what the node's driver says.
func (c *Cluster) DriverMetrics() (string, error) {
	pods, err := c.DriverPods()
	if err != nil {
		return "", err
	}
	if len(pods) != 1 {
		return "", fmt.Errorf("%d driver pods", len(pods))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+pods[0].Status.PodIP+":9808/metrics", nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(text), err
}

// Served is how often and how long the driver has worked on calls of a method that went well.
type Served struct {
	Calls   uint64
	Seconds float64
}

var rpcMetric = regexp.MustCompile(`^ringvol_rpc_duration_seconds_(sum|count)\{.*method="([^"]*)".*\} (.*)$`)

// DriverServed sums up the driver's calls by method.
func (c *Cluster) DriverServed() (map[string]Served, error) {
	text, err := c.DriverMetrics()
	if err != nil {
		return nil, err
	}
	served := map[string]Served{}
	for line := range strings.Lines(text) {
		m := rpcMetric.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		value, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return nil, err
		}
		method := m[2][strings.LastIndex(m[2], "/")+1:]
		s := served[method]
		if m[1] == "sum" {
			s.Seconds += value
		} else {
			s.Calls += uint64(value)
		}
		served[method] = s
	}
	return served, nil
}

// Memory is what a process and its container take.
type Memory struct {
	ResidentKiB int64
	GroupKiB    int64 // of its control group: the page cache and the kernel's own included
	PodKiB      int64 // all processes of its pod, each page divided by those that share it
}

// DriverMemory is the memory of the node's driver.
func (c *Cluster) DriverMemory() (*Memory, error) {
	pid, err := c.DriverProcess()
	if err != nil {
		return nil, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	m := &Memory{}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			m.ResidentKiB, err = strconv.ParseInt(strings.Fields(value)[0], 10, 64)
		}
	}
	if err != nil {
		return nil, err
	}
	usage, err := cgroupValue(pid, "memory.usage_in_bytes", "memory.current")
	if err != nil {
		return nil, err
	}
	m.GroupKiB = usage / 1024
	m.PodKiB, err = c.podMemory()
	return m, err
}

func (c *Cluster) podMemory() (int64, error) {
	pods, err := c.DriverPods()
	if err != nil {
		return 0, err
	}
	if len(pods) != 1 {
		return 0, fmt.Errorf("%d driver pods", len(pods))
	}
	sum := int64(0)
	for _, pid := range processes() {
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.Contains(string(groups), "pod"+string(pods[0].UID)) {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(text)) {
			if value, is := strings.CutPrefix(line, "Pss:"); is {
				kib, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
				if err != nil {
					return 0, err
				}
				sum += kib
			}
		}
	}
	if sum == 0 {
		return 0, errors.New("the driver's pod has no processes")
	}
	return sum, nil
}
