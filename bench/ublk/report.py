#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of scripts/vm/bench.sh ublk: report.py DIRECTORY KERNEL...

Ratios to the kernel's loop are taken within one boot (emulated guests differ by a third between boots)
and then their median over boots, with the least and the greatest."""
import pathlib
import statistics
import sys


def read(path):
    iops, counts = {}, {}
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if len(words) == 5 and words[0] == "iops" and words[4].isdigit():
            iops.setdefault((words[2], words[3], words[1]), []).append(int(words[4]))
        elif len(words) == 7 and words[0] == "count" and int(words[6]) > 0:
            requests = int(words[6])
            counts[words[2], words[3], words[1]] = (int(words[4]) / requests,
                                                    int(words[5]) / requests)
    return {key: statistics.median(values) for key, values in iops.items()}, counts


def spread(values, digits):
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    directory = pathlib.Path(sys.argv[1])
    for kernel in sys.argv[2:]:
        boots = [read(path) for path in sorted(directory.glob(kernel + "-*"))]
        print(f"\nLinux {kernel}, {len(boots)} boots: IOPS as a share of the kernel's loop with direct "
              "I/O, same boot: median (least to greatest)\n")
        print("| 4k | ublk | peer |\n|---|---|---|")
        for rw in ("randread", "randwrite"):
            for depth in ("1", "32"):
                row = []
                for kind in ("ublk", "peer"):
                    ratios = [iops[rw, depth, kind] / iops[rw, depth, "loop"] for iops, _ in boots
                              if (rw, depth, kind) in iops and (rw, depth, "loop") in iops]
                    row.append(spread(ratios, 2) if ratios else "-")
                print(f"| {rw} QD{depth} | {' | '.join(row)} |")
        print("\nUser instructions and system calls a request, counted one by one\n")
        print("| 4k | ublk | peer |\n|---|---|---|")
        for rw in ("randread", "randwrite"):
            for depth in ("1", "32"):
                row = []
                for kind in ("ublk", "peer"):
                    found = [counts[rw, depth, kind] for _, counts in boots
                             if (rw, depth, kind) in counts]
                    row.append(f"{spread([f[0] for f in found], 0)}; "
                               f"{spread([f[1] for f in found], 2)}" if found else "-")
                print(f"| {rw} QD{depth} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
