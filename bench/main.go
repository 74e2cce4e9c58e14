// SPDX-License-Identifier: Apache-2.0

// The benchmarks. Each group measures a few rows: ours beside a peer or the bare floor, taken in
// turns in the same run. What comes out is merged into a JSON file, from which report.py writes
// docs/benchmarks.md. Groups are named on the command line; without names all run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

type group struct {
	name string
	run  func(*bench) error
}

var groups = []group{
	{"memory", memory},
	{"start", start},
	{"info", info},
	{"hostile", hostile},
	{"node", node},
	{"create", create},
	{"stage", stage},
	{"many", many},
	{"snapshot", snapshot},
	{"forks", forks},
	{"inline", inline},
	{"groups", groupsOf20},
	{"delta", delta},
	{"copy", copying},
	{"hang", hang},
	{"hang-all", hangAll},
	{"density", density},
	{"metrics", metrics},
	{"stats", stats},
	{"probes", probes},
	{"guard", guard},
	{"limits", limits},
	{"raw-io", rawIO},
	{"raw-crypt", rawCrypt},
	{"raw-calls", rawCalls},
	{"raw-thin", rawThin},
	{"attach", attach},
	{"move", moving},
	{"cluster", cluster},
	{"cluster-many", clusterMany},
	{"cluster-copy", clusterCopy},
	{"cluster-beside", clusterBeside},
}

// bench is one group's run: a private directory and where to put results.
type bench struct {
	*rig.Rig
	group  string
	rounds int
	dense  int
	known  int
	rows   []row
}

var (
	floorPath  = flag.String("floor", "", "the program of floor.c")
	clientPath = flag.String("client", "", "the program of bench/client")
	peerPath   = flag.String("peer", os.Getenv("RINGVOL_BENCH_PEER"), "a built csi-driver-host-path; rows against it are skipped without")
	outPath    = flag.String("out", "results.json", "results are merged into this file")
	rounds     = flag.Int("rounds", 7, "paired repetitions")
	dense      = flag.Int("dense", 4000, "mounted volumes of the density group")
	known      = flag.Int("known", 10000, "volumes of the memory and start groups")
	rawMany    = flag.Int("raw-volumes", 1000, "volumes of the raw-calls group, 16 MiB each")
)

func main() {
	flag.Parse()
	chosen := groups
	if flag.NArg() > 0 {
		chosen = nil
		for _, name := range flag.Args() {
			i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
			if i < 0 {
				names := make([]string, len(groups))
				for i, g := range groups {
					names[i] = g.name
				}
				fmt.Fprintf(os.Stderr, "no benchmark %q: %s\n", name, strings.Join(names, " "))
				os.Exit(2)
			}
			chosen = append(chosen, groups[i])
		}
	}
	// A machine that pages out what is idle is not to be measured in this program.
	_ = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	status := 0
	for _, g := range chosen {
		if err := runGroup(g, stop); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", g.name, err)
			status = 1
			if errors.Is(err, errInterrupted) {
				break
			}
		}
	}
	os.Exit(status)
}

var errInterrupted = errors.New("interrupted")

// runGroup always cleans up: pools, mounts, devices, the devices that were added.
func runGroup(g group, stop chan os.Signal) error {
	r, err := rig.New()
	if err != nil {
		return err
	}
	devices := newDevices()
	b := &bench{Rig: r, group: g.name, rounds: *rounds, dense: *dense, known: *known}
	fmt.Fprintf(os.Stderr, "== %s\n", g.name)
	ended := make(chan error, 1)
	go func() { ended <- g.run(b) }()
	select {
	case err = <-ended:
	case <-stop:
		err = errInterrupted
	}
	closed := r.Close()
	devices.removeAdded()
	if err == nil {
		err = save(*outPath, g.name, b.rows)
	}
	if closed != nil {
		err = errors.Join(err, fmt.Errorf("cleaning up: %w", closed))
	}
	return err
}
