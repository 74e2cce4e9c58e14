// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"os/exec"
)

// FioVerifies writes to a block device of 32 MiB or more with four jobs of fio, each in a part of its own,
// and reads all of it back, again and again with other data until done is closed: then what the last run
// wrote has been verified, too.
func FioVerifies(node string, done <-chan struct{}) error {
	for seed := 1; ; seed++ {
		fio := exec.Command("fio", "--name=verify", "--filename="+node, "--direct=1",
			"--ioengine=libaio", "--rw=randwrite", "--bs=4k", "--iodepth=16", "--numjobs=4",
			"--size=4m", "--offset_increment=8m", "--verify=crc32c", "--verify_fatal=1",
			"--do_verify=1", fmt.Sprintf("--randseed=%d", seed), "--fsync=64", "--thread")
		if out, err := fio.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		select {
		case <-done:
			return nil
		default:
		}
	}
}
