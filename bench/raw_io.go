// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"ringvol.dev/tests/rig"
)

var (
	ioSeconds = flag.Int("io-seconds", 0, "how long each job of the raw groups runs; 0: a fixed number of requests, for guests")
	ioSize    = flag.Int("io-mib", 64, "how much of each device they use")
	tablePath = flag.String("table", "", "the raw groups write a table in Markdown to this file, too")
)

// workload is one job of fio. count is how many requests it makes where time is not the measure.
type workload struct {
	what, rw, block string
	depth, count    int
}

var workloads = []workload{
	{"4 KiB random read, 1 in flight", "randread", "4k", 1, 8000},
	{"4 KiB random read, 32 in flight", "randread", "4k", 32, 16000},
	{"4 KiB random write, 1 in flight", "randwrite", "4k", 1, 8000},
	{"4 KiB random write, 32 in flight", "randwrite", "4k", 32, 16000},
	{"1 MiB sequential read, 1 in flight", "read", "1m", 1, 128},
	{"1 MiB sequential read, 32 in flight", "read", "1m", 32, 128},
	{"1 MiB sequential write, 1 in flight", "write", "1m", 1, 128},
	{"1 MiB sequential write, 32 in flight", "write", "1m", 32, 128},
}

// variant is a device under test.
type variant struct {
	name, node string
	// by round and workload: requests a second
	rates [][]float64
}

func (b *bench) fill(v *variant) error {
	_, err := rig.Run("dd", "if=/dev/urandom", "of="+v.node, "bs=1M", fmt.Sprintf("count=%d", *ioSize), "oflag=direct",
		"conv=fsync,notrunc", "status=none")
	return err
}

// measure runs all workloads, one after the other.
func (b *bench) measure(v *variant) error {
	args := []string{"--output-format=json", "--direct=1", "--ioengine=io_uring", "--group_reporting=0", "--allow_file_create=0",
		"--norandommap", "--randrepeat=1", "--filename=" + v.node, fmt.Sprintf("--size=%dm", *ioSize)}
	for i, w := range workloads {
		args = append(args, fmt.Sprintf("--name=w%d", i), "--stonewall", "--rw="+w.rw, "--bs="+w.block, fmt.Sprintf("--iodepth=%d", w.depth))
		if *ioSeconds > 0 {
			args = append(args, "--time_based", fmt.Sprintf("--runtime=%d", *ioSeconds))
		} else {
			// io_size is what goes round the device more than once.
			block := map[string]int{"4k": 4, "1m": 1024}[w.block]
			args = append(args, fmt.Sprintf("--io_size=%dk", w.count*block))
		}
	}
	fio := exec.Command("fio", args...)
	var out, errs bytes.Buffer
	fio.Dir, fio.Stdout, fio.Stderr = b.Dir, &out, &errs
	if err := fio.Run(); err != nil {
		return fmt.Errorf("fio on the %s: %w %s", v.name, err, errs.String())
	}
	type side struct {
		Ios     float64 `json:"total_ios"`
		Runtime float64 `json:"runtime"` // ms
		Iops    float64 `json:"iops"`
	}
	var report struct{ Jobs []struct{ Read, Write side } }
	text := out.Bytes()
	if err := json.Unmarshal(text[max(0, bytes.IndexByte(text, '{')):], &report); err != nil {
		return fmt.Errorf("fio on the %s: %w: %s", v.name, err, text)
	}
	if len(report.Jobs) != len(workloads) {
		return fmt.Errorf("fio on the %s has done %d of %d jobs", v.name, len(report.Jobs), len(workloads))
	}
	rates := make([]float64, len(workloads))
	for i, job := range report.Jobs {
		rates[i] = job.Read.Iops + job.Write.Iops
	}
	v.rates = append(v.rates, rates)
	return nil
}

// measureAll takes the variants in turns, a round forwards and a round backwards.
func (b *bench) measureAll(variants []*variant) error {
	for _, v := range variants {
		if err := b.fill(v); err != nil {
			return fmt.Errorf("filling the %s: %w", v.name, err)
		}
	}
	for round := range b.rounds {
		for i := range variants {
			if round%2 == 1 {
				i = len(variants) - 1 - i
			}
			if err := b.measure(variants[i]); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "%s: round %d of %d\n", b.group, round+1, b.rounds)
	}
	return nil
}

// against adds a row for each workload.
func (b *bench) against(v, other *variant, bar string) {
	for i, w := range workloads {
		var mine, others, ratios []float64
		for round := range v.rates {
			x, y := v.rates[round][i], other.rates[round][i]
			mine, others, ratios = append(mine, x), append(others, y), append(ratios, x/y)
		}
		b.addPairs(row{What: w.what + ": " + v.name, Unit: "IOPS", Beside: other.name, Bar: bar}, mine, others, ratios)
	}
}

// table prints the shares of the first variant's rates: the medians of the rounds.
func (b *bench) table(variants []*variant) error {
	var out strings.Builder
	out.WriteString("\n| share of the " + variants[0].name + " |")
	for _, v := range variants {
		out.WriteString(" " + v.name + " |")
	}
	out.WriteString("\n|---" + strings.Repeat("|---", len(variants)) + "|\n")
	for i, w := range workloads {
		out.WriteString("| " + w.what + " |")
		for k, v := range variants {
			var rates, ratios []float64
			for round := range v.rates {
				rates, ratios = append(rates, v.rates[round][i]), append(ratios, v.rates[round][i]/variants[0].rates[round][i])
			}
			if k == 0 {
				fmt.Fprintf(&out, " 1 (%.0f IOPS) |", median(rates))
			} else {
				fmt.Fprintf(&out, " %.2f |", median(ratios))
			}
		}
		out.WriteString("\n")
	}
	fmt.Fprint(os.Stderr, out.String())
	if *tablePath == "" {
		return nil
	}
	file, err := os.OpenFile(*tablePath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(out.String())
	return err
}

// published is a raw block volume as a pod has it, taken away with the rig.
func (b *bench) published(v *rig.Volume) (*variant, error) {
	if err := v.Up(); err != nil {
		return nil, err
	}
	b.Defer(v.Gone)
	return &variant{node: v.Target}, nil
}

// rawIO: every kind of device beside the disk: dm-linear by hand, volumes of a raw pool, loop and ublk volumes on XFS, LVM by
// hand. All of them lie on the one disk.
func rawIO(b *bench) error {
	size := int64(*ioSize) * rig.MiB
	r, err := b.scratch(3<<30 + 8*size)
	if r == nil || err != nil {
		return err
	}
	m, err := b.mapper()
	if err != nil {
		return err
	}
	raw := &variant{name: "disk"}
	if raw.node, err = r.cut(size); err != nil {
		return err
	}
	below, err := r.cut(size)
	if err != nil {
		return err
	}
	byHand := &variant{name: "dm-linear by hand"}
	if byHand.node, err = m.linear("bench-linear", below, 0, size); err != nil {
		return err
	}
	b.Defer(func() error { return m.remove("bench-linear") })
	peers, err := b.lvmVariants(r, size)
	if err != nil {
		return err
	}
	directory, err := b.directoryPool(r, 512*rig.MiB+2*size)
	if err != nil {
		return err
	}
	disk, err := r.rest()
	if err != nil {
		return err
	}
	d, _, err := b.openRaw(disk, directory)
	if err != nil {
		return err
	}
	in := func(pool string, params ...string) map[string]string {
		asked := map[string]string{"pool": pool}
		for i := 0; i < len(params); i += 2 {
			asked[params[i]] = params[i+1]
		}
		return asked
	}
	kinds := []struct {
		name   string
		params map[string]string
	}{
		{"thick volume", in("raw", "provisioning", "thick")},
		{"thin volume", in("raw", "provisioning", "thin")},
		{"encrypted thick volume", in("raw", "provisioning", "thick", "encryption", "luks2")},
		{"loop volume", in(directory.Name, "provisioning", "thick")},
		{"ublk volume", in(directory.Name, "provisioning", "thick", "device", "ublk")},
	}
	ours := map[string]*variant{}
	all := []*variant{raw, byHand}
	for i, kind := range kinds {
		if missing := rig.HaveUblk(); kind.params["device"] == "ublk" && missing != nil {
			fmt.Fprintf(os.Stderr, "%s: the %s is left out: %v\n", b.group, kind.name, missing)
			continue
		}
		v := d.Volume(fmt.Sprintf("kind-%d", i), rig.BlockCap(), size)
		v.Params = kind.params
		if kind.params["encryption"] != "" {
			v.Secrets = map[string]string{"key": benchKey}
		}
		made, err := b.published(v)
		if err != nil {
			return fmt.Errorf("the %s: %w", kind.name, err)
		}
		made.name = kind.name
		ours[kind.name] = made
		all = append(all, made)
	}
	all = append(all, peers...)
	if err := b.measureAll(all); err != nil {
		return err
	}
	b.against(ours["thick volume"], byHand, "ratio >= 0.97")
	for _, other := range append([]*variant{raw, ours["loop volume"]}, peers...) {
		b.against(ours["thick volume"], other, "")
	}
	b.against(ours["thin volume"], raw, "")
	for _, peer := range peers {
		if peer.name == lvmThin {
			b.against(ours["thin volume"], peer, "ratio >= 0.9")
		}
	}
	return b.table(all)
}

const lvmThick, lvmThin = "LVM thick by hand", "LVM thin by hand"

// lvmVariants are a thick and a thin volume of LVM; none where it is not installed.
func (b *bench) lvmVariants(r *rawDevice, size int64) ([]*variant, error) {
	device, err := r.cut(3*size + 64*rig.MiB)
	if err != nil {
		return nil, err
	}
	l, err := b.lvm(device)
	if l == nil || err != nil {
		fmt.Fprintf(os.Stderr, "%s: no LVM is installed, its columns are left out\n", b.group)
		return nil, err
	}
	thick, thin := &variant{name: lvmThick}, &variant{name: lvmThin}
	if thick.node, err = l.create("thick", size); err != nil {
		return nil, err
	}
	if err = l.thinPool(size+16*rig.MiB, thinBlock); err != nil {
		return nil, err
	}
	thin.node, err = l.createThin("thin", size)
	return []*variant{thick, thin}, err
}

// directoryPool is one on XFS on the disk itself.
func (b *bench) directoryPool(r *rawDevice, size int64) (*rig.Pool, error) {
	device, err := r.cut(size)
	if err != nil {
		return nil, err
	}
	p, err := b.PoolOn("directory", device)
	if err != nil {
		return nil, err
	}
	_, err = rig.Run(rig.Binary(), "pool", "init", p.Path)
	return p, err
}

// rawCrypt: an encrypted volume of a raw pool beside dm-crypt by hand with the same parameters, and beside a plain one.
func rawCrypt(b *bench) error {
	size := int64(*ioSize) * rig.MiB
	r, err := b.scratch(1<<30 + 3*size + 128*rig.MiB)
	if r == nil || err != nil {
		return err
	}
	below, err := r.cut(size + 16*rig.MiB)
	if err != nil {
		return err
	}
	disk, err := r.rest()
	if err != nil {
		return err
	}
	d, _, err := b.openRaw(disk)
	if err != nil {
		return err
	}
	plain, err := b.published(thick(d.Volume("plain", rig.BlockCap(), size)))
	if err != nil {
		return err
	}
	v := encrypted(d.Volume("encrypted", rig.BlockCap(), size))
	ours, err := b.published(v)
	if err != nil {
		return err
	}
	byHand := &variant{name: "dm-crypt by hand"}
	if byHand.node, err = b.cryptByHand(below, ours.node); err != nil {
		return err
	}
	plain.name, ours.name = "thick volume", "encrypted thick volume"
	all := []*variant{plain, ours, byHand}
	if err := b.measureAll(all); err != nil {
		return err
	}
	b.against(ours, byHand, "ratio >= 0.97")
	b.against(ours, plain, "")
	return b.table(all)
}
