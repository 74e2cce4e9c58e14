// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forkWatch counts the processes (not threads) that one process starts, by the kernel's process
// events (CONFIG_PROC_EVENTS), so that what else the machine does is not counted.
type forkWatch struct {
	fd, pid, count int
}

const (
	connProc     = 1 // CN_IDX_PROC and CN_VAL_PROC
	mcastListen  = 1 // PROC_CN_MCAST_LISTEN
	eventFork    = 1 // PROC_EVENT_FORK
	headerLen    = 16 + 20
	forkEventLen = headerLen + 16 + 16
)

func watchForks(pid int) (*forkWatch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_CONNECTOR)
	if err != nil {
		return nil, fmt.Errorf("process events: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300000})
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connProc}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("process events: %w", err)
	}
	message := make([]byte, headerLen+4)
	binary.NativeEndian.PutUint32(message[0:], uint32(len(message)))
	binary.NativeEndian.PutUint16(message[4:], unix.NLMSG_DONE)
	binary.NativeEndian.PutUint32(message[16:], connProc)
	binary.NativeEndian.PutUint32(message[20:], connProc)
	binary.NativeEndian.PutUint16(message[32:], 4)
	binary.NativeEndian.PutUint32(message[headerLen:], mcastListen)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("process events: %w", err)
	}
	return &forkWatch{fd: fd, pid: pid}, nil
}

// result reads all that came meanwhile; a lost event is an error, not a zero.
func (w *forkWatch) result() (int, error) {
	defer unix.Close(w.fd)
	buffer := make([]byte, 4096)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		n, _, err := unix.Recvfrom(w.fd, buffer, 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("process events: %w", err)
		}
		if n < forkEventLen || binary.NativeEndian.Uint32(buffer[headerLen:]) != eventFork {
			continue
		}
		event := buffer[headerLen+16:]
		parent, child := binary.NativeEndian.Uint32(event[4:]), event[8:16]
		if int(parent) == w.pid && binary.NativeEndian.Uint32(child) == binary.NativeEndian.Uint32(child[4:]) {
			w.count++
		}
	}
	return w.count, nil
}

// keepAwake occupies every processor at the lowest priority there is (SCHED_IDLE) until the function it returns is called.
// A virtual processor with nothing to do goes back to the hypervisor, and to get it again when a request completes takes
// longer, here 20 us and more, than what is to be measured. Only for what runs at a real-time priority: where the kernel
// preempts lazily, others wait for these processes until the next tick, and so does each RCU grace period.
func keepAwake() (end func(), err error) {
	var spinners []*exec.Cmd
	end = func() {
		for _, cmd := range spinners {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	for cpu := range runtime.NumCPU() {
		cmd := exec.Command("taskset", "-c", strconv.Itoa(cpu), "chrt", "--idle", "0", "sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			end()
			return nil, fmt.Errorf("keeping the processors awake: %w", err)
		}
		spinners = append(spinners, cmd)
	}
	return end, nil
}
