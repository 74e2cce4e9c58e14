// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

const (
	infoPath     = "/csi.v1.Identity/GetPluginInfo"
	infoRequests = 200000
)

var (
	finishedIn = regexp.MustCompile(`finished in [^,]+, ([0-9.]+) req/s`)
	succeeded  = regexp.MustCompile(`(\d+) succeeded, 0 failed, 0 errored`)
	status2xx  = regexp.MustCompile(`status codes: (\d+) 2xx`)
)

// h2load returns requests a second; every answer has to be a 200.
func h2load(body string, args ...string) (float64, error) {
	return h2loadSome(infoRequests, body, args...)
}

// h2loadSome is h2load with another number of requests.
func h2loadSome(count int, body string, args ...string) (float64, error) {
	args = append([]string{"-n", strconv.Itoa(count), "-c", "1", "-m", "50", "-d", body,
		"-H", "content-type: application/grpc", "-H", "te: trailers"}, args...)
	out, err := exec.Command("h2load", args...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("h2load: %w: %s", err, out)
	}
	rate, good, ok := finishedIn.FindSubmatch(out), succeeded.FindSubmatch(out), status2xx.FindSubmatch(out)
	all := strconv.Itoa(count)
	if rate == nil || good == nil || ok == nil || string(good[1]) != all || string(ok[1]) != all {
		return 0, fmt.Errorf("h2load: not every request was answered: %s", out)
	}
	return strconv.ParseFloat(string(rate[1]), 64)
}

// answer is the driver's message as it is on the wire, for nghttpd to send.
func answer(socket string) ([]byte, error) {
	c, err := rig.Dial(socket, grpc.WithBlock()) //nolint:staticcheck // the socket is there
	if err != nil {
		return nil, err
	}
	defer c.Conn.Close()
	reply, err := c.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{})
	if err != nil {
		return nil, err
	}
	message, err := proto.Marshal(reply)
	if err != nil || len(message) > 255 {
		return nil, errors.Join(err, errors.New("the answer is longer than expected"))
	}
	return append([]byte{0, 0, 0, 0, byte(len(message))}, message...), nil
}

// info: GetPluginInfo as fast as one connection with 50 streams can ask.
func info(b *bench) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	d, _, err := b.open(2<<30, "--insecure-tcp", "--endpoint", fmt.Sprintf("tcp://127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	body := b.Path("request")
	if err := os.WriteFile(body, make([]byte, 5), 0o644); err != nil {
		return err
	}
	overUnix := func(socket string) (float64, error) {
		return h2load(body, "--base-uri=unix:"+socket, "http://localhost"+infoPath)
	}
	overTCP := func(port int) (float64, error) {
		return h2load(body, fmt.Sprintf("http://127.0.0.1:%d%s", port, infoPath))
	}

	reply, err := answer(d.Socket)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.Path("htdocs", "csi.v1.Identity"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(b.Path("htdocs", infoPath), reply, 0o644); err != nil {
		return err
	}
	otherPort, err := freePort()
	if err != nil {
		return err
	}
	if _, err := b.spawn("nghttpd.log", "nghttpd", "--no-tls", "--address=127.0.0.1", "--htdocs="+b.Path("htdocs"),
		"--trailer=grpc-status: 0", strconv.Itoa(otherPort)); err != nil {
		return err
	}
	if err := awaitSocket("tcp", fmt.Sprintf("127.0.0.1:%d", otherPort)); err != nil {
		return err
	}
	err = b.paired(row{What: "GetPluginInfo, loopback TCP, 1 connection, 50 streams", Unit: "req/s", Beside: "nghttpd",
		Bar: "ratio >= 0.9"},
		func() (float64, error) { return overTCP(port) }, func() (float64, error) { return overTCP(otherPort) })
	if err != nil || !b.havePeer() {
		return err
	}
	_, socket, err := b.peer()
	if err != nil {
		return err
	}
	if err := awaitSocket("unix", socket); err != nil {
		return err
	}
	return b.paired(row{What: "GetPluginInfo, unix socket, 1 connection, 50 streams", Unit: "req/s",
		Beside: "csi-driver-host-path", Bar: "ratio >= 2.5"},
		func() (float64, error) { return overUnix(d.Socket) }, func() (float64, error) { return overUnix(socket) })
}
