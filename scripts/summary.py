#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the results of ./dev test and its last line, the count: summary.py RESULTS LOG_DIR."""
import sys


def main():
    results, logs = sys.argv[1:]
    rows = []
    with open(results, encoding="utf-8", errors="replace") as f:
        for line in f:
            rows.append((line.rstrip("\n").split("\t") + ["", "", ""])[:4])
    lanes = list(dict.fromkeys(row[0] for row in rows))
    width = max([len(lane) for lane in lanes] + [4])
    print(f"\n{'lane':{width}}  passed  failed  skipped")
    for lane in lanes:
        counts = [sum(1 for r in rows if r[0] == lane and r[1] == kind)
                  for kind in ("pass", "fail", "skip")]
        print(f"{lane:{width}}  {counts[0]:6}  {counts[1]:6}  {counts[2]:7}")
    for kind, title in (("skip", "skipped"), ("pass", "passed at the second attempt only"), ("fail", "failed")):
        chosen = [r for r in rows if r[1] == kind and (kind != "pass" or r[3])]
        if chosen:
            print(f"\n{title}:")
        for lane, _, name, reason in chosen:
            print(f"  {lane} {name}" + (f": {reason}" if reason else ""))
    print(f"\nlogs: {logs}")
    passed, failed, skipped = (sum(1 for r in rows if r[1] == kind)
                               for kind in ("pass", "fail", "skip"))
    if passed + failed + skipped == 0:
        print("nothing was run")
        failed = 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
