#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the results of ./dev test and its last line, the count: summary.py RESULTS LOG_DIR.

Tests that were skipped are told by their reasons, RESULTS has each by name. What fails comes last, with the end of
its log: often these lines are all that is seen of a run.
"""
import sys

LOGS_SHOWN = 5  # failures whose log is shown
LOG_LINES = 25
LINE_LENGTH = 300


def read(results):
    with open(results, encoding="utf-8", errors="replace") as f:
        return [(line.rstrip("\n").split("\t") + [""] * 4)[:5] for line in f]


def counts(rows):
    return [sum(1 for r in rows if r[1] == kind) for kind in ("pass", "fail", "skip")]


def table(rows):
    lanes = list(dict.fromkeys(row[0] for row in rows))
    width = max([len(lane) for lane in lanes] + [4])
    print(f"\n{'lane':{width}}  passed  failed  skipped")
    for lane in lanes:
        passed, failed, skipped = counts([r for r in rows if r[0] == lane])
        print(f"{lane:{width}}  {passed:6}  {failed:6}  {skipped:7}")


def skipped(rows):
    reasons = {}
    for lane, kind, name, reason, _ in rows:
        if kind == "skip":
            reasons.setdefault(reason, []).append(f"{lane} {name}")
    if reasons:
        print("\nskipped:")
    for reason, names in reasons.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(f"  {reason or 'no reason given'}: {names[0]}{others}"[:LINE_LENGTH])


def listed(title, rows):
    if rows:
        print(f"\n{title}:")
    for lane, _, name, reason, _ in rows:
        print(f"  {lane} {name}" + (f": {reason}" if reason else ""))


def ends(rows):
    for path in list(dict.fromkeys(row[4] for row in rows if row[4]))[:LOGS_SHOWN]:
        try:
            with open(path, encoding="utf-8", errors="replace") as f:
                lines = f.read().splitlines()
        except OSError as e:
            lines = [str(e)]
        print(f"\nthe end of {path}:")
        for line in lines[-LOG_LINES:]:
            print("  " + line[:LINE_LENGTH])


def main():
    results, logs = sys.argv[1:]
    rows = read(results)
    failures = [r for r in rows if r[1] == "fail"]
    table(rows)
    skipped(rows)
    listed("passed at the second attempt only", [r for r in rows if r[1] == "pass" and r[3]])
    ends(failures)
    listed("failed", failures)
    print(f"\nlogs: {logs}")
    passed, failed, left_out = counts(rows)
    if passed + failed + left_out == 0:
        print("nothing was run")
        failed = 1
    print(f"{passed} passed, {failed} failed, {left_out} skipped")
    return 1 if failed else 0


sys.exit(main())
