// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// limits: what a volume that is limited to 1,000 operations a second gets, with four writers, and what its neighbour on
// the same disk notices of it with the limit and without.
func limits(b *bench) error {
	const uid = "aaaaaaaa-0000-4000-8000-000000000001"
	root, pod, err := b.podCgroup(uid)
	if err != nil {
		fmt.Fprintln(os.Stderr, "limits: loop volumes are skipped,", err)
	}
	d, _, err := b.open(2<<30, "--cgroup-root", root)
	if err != nil {
		return err
	}
	for _, device := range []string{"loop", "ublk"} {
		if device == "ublk" && rig.HaveUblk() != nil {
			fmt.Fprintln(os.Stderr, "limits: ublk is skipped,", rig.HaveUblk())
			continue
		}
		if device == "loop" && pod == "" {
			continue
		}
		if err := b.limitsOf(d, device, uid, pod); err != nil {
			return fmt.Errorf("%s: %w", device, err)
		}
	}
	return nil
}

// podCgroup makes a pod's cgroup in a hierarchy mounted for this.
func (b *bench) podCgroup(uid string) (root, pod string, err error) {
	root = b.Path("cgroup2")
	if err = os.MkdirAll(root, 0o755); err != nil {
		return root, "", err
	}
	if err = unix.Mount("cgroup2", root, "cgroup2", 0, ""); err != nil {
		return root, "", err
	}
	b.Defer(func() error { return unix.Unmount(root, unix.MNT_DETACH) })
	dir := root
	for _, name := range []string{"kubepods", "burstable", "pod" + uid} {
		if err = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+io"), 0o644); err != nil {
			return root, "", fmt.Errorf("cgroup v2 has no io controller here: %w", err)
		}
		dir = filepath.Join(dir, name)
		if err = os.MkdirAll(dir, 0o755); err != nil {
			return root, "", err
		}
		made := dir
		b.Defer(func() error { _ = unix.Rmdir(made); return nil })
	}
	return root, dir, nil
}

// withFile is a mount volume with a file whose blocks are there.
func withFile(d *rig.Driver, name, device, uid string) (v *rig.Volume, file string, err error) {
	v = d.Volume(name, rig.MountCap("ext4"), 256*rig.MiB)
	v.Params = map[string]string{"device": device}
	if err = v.Create(); err != nil {
		return nil, "", err
	}
	if err = v.Stage(); err != nil {
		return nil, "", err
	}
	v.Target = filepath.Join(d.Kubelet, "pods", uid, "volumes/kubernetes.io~csi", name, "mount")
	if err = os.MkdirAll(filepath.Dir(v.Target), 0o750); err != nil {
		return nil, "", err
	}
	if err = v.Publish(); err != nil {
		return nil, "", err
	}
	file = filepath.Join(v.Target, "file")
	out, err := exec.Command("dd", "if=/dev/zero", "of="+file, "bs=1M", "count=128", "conv=fsync").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return v, file, err
}

// writes counts what a volume's device has completed.
func writes(path string) (float64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return 0, err
	}
	var reads, merged, sectors, ms, count float64
	_, err = fmt.Sscan(string(text), &reads, &merged, &sectors, &ms, &count)
	return count, err
}

// writers run in a pod's cgroup until the end, each over blocks of its own.
func writers(pod, file string, count int) (end func(), err error) {
	var all []*exec.Cmd
	end = func() {
		for _, cmd := range all {
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			_ = cmd.Wait()
		}
	}
	for i := range count {
		enter := ""
		if pod != "" {
			enter = "echo $$ > " + filepath.Join(pod, "cgroup.procs") + " && "
		}
		cmd := exec.Command("sh", "-c", fmt.Sprintf(
			"%swhile dd if=/dev/zero of=%s bs=4k count=4096 seek=%d oflag=direct conv=notrunc 2>/dev/null; do :; done",
			enter, file, i*8192))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err = cmd.Start(); err != nil {
			end()
			return nil, err
		}
		all = append(all, cmd)
	}
	return end, nil
}

// readsOf tells how long direct reads of a neighbour take, at random and one after the other.
func readsOf(file string, during time.Duration) ([]float64, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	block, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(block)
	var times []float64
	for began := time.Now(); time.Since(began) < during; time.Sleep(2 * time.Millisecond) {
		begin := time.Now()
		if _, err := unix.Pread(fd, block, int64(rand.IntN(32768))*4096); err != nil {
			return nil, err
		}
		times = append(times, float64(time.Since(begin).Nanoseconds())/1e3)
	}
	return times, nil
}

func (b *bench) limitsOf(d *rig.Driver, device, uid, pod string) error {
	const iops, during = 1000, 10 * time.Second
	noisy, noise, err := withFile(d, "noisy-"+device, device, uid)
	if err != nil {
		return err
	}
	other := strings.Replace(uid, "a", "b", 1)
	quiet, file, err := withFile(d, "quiet-"+device, device, other)
	if err != nil {
		return err
	}
	alone, err := readsOf(file, during)
	if err != nil {
		return err
	}
	// In turns: with the limit, and without.
	var rates, with, without []float64
	for range b.rounds {
		for _, limit := range []string{fmt.Sprint(iops), "none"} {
			if err := noisy.Modify(map[string]string{"iops": limit}); err != nil {
				return err
			}
			end, err := writers(pod, noise, 4)
			if err != nil {
				return err
			}
			time.Sleep(time.Second)
			before, err := writes(noisy.Target)
			began := time.Now()
			times, err2 := readsOf(file, during)
			after, err3 := writes(noisy.Target)
			took := time.Since(began).Seconds()
			end()
			if err := errors.Join(err, err2, err3); err != nil {
				return err
			}
			if limit == "none" {
				without = append(without, quantile(times, 0.99))
				fmt.Fprintf(os.Stderr, "%s without a limit: %.0f writes a second\n", device, (after-before)/took)
			} else {
				with = append(with, quantile(times, 0.99))
				rates = append(rates, (after-before)/took)
			}
		}
	}
	b.add(row{What: "writes a second of a volume limited to 1,000, 4 writers, 10 s, " + device, Unit: "1/s",
		Ours: median(rates), Other: iops, Beside: "the limit", Ratio: median(rates) / iops,
		Low: quantile(rates, 0) / iops, High: quantile(rates, 1) / iops, Rounds: b.rounds})
	off := max(quantile(rates, 1)/iops-1, 1-quantile(rates, 0)/iops)
	b.add(row{What: "how far off the limit that is at most, " + device, Unit: "of it", Ours: off, Rounds: b.rounds, Bar: "<= 0.05"})
	b.add(row{What: "reads of its neighbour meanwhile, p99, " + device, Unit: "us", Ours: median(with), Other: median(without),
		Ratio: median(with) / median(without), Beside: "the same without a limit", Rounds: b.rounds,
		Note: fmt.Sprintf("alone: %.0f us", quantile(alone, 0.99))})
	for _, v := range []*rig.Volume{noisy, quiet} {
		if err := v.Gone(); err != nil {
			return err
		}
	}
	return nil
}
