// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
)

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
