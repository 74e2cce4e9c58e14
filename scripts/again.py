#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which failed tests of a lane have a second attempt, and what comes of it:

    again.py names LANE RESULTS         says them, a line each; none: there is no second attempt
    again.py merge LANE RESULTS AGAIN   what passed in AGAIN has passed in RESULTS, with why it failed at first

There is none unless the lane came to its own end: a row of the lane's own name says that tests did not run.
"""
import os
import sys

MOST = 3


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return [(line.rstrip("\n").split("\t") + [""] * 4)[:5] for line in f]


def failed(rows, lane):
    return [row for row in rows if row[0] == lane and row[1] == "fail"]


def names(lane, results):
    rows = failed(read(results), lane)
    tests = sorted({row[2].split("/")[0] for row in rows})
    return [] if lane in tests or len(tests) > MOST else tests


def merge(lane, results, again):
    rows, second = read(results), read(again)
    if failed(second, lane):
        return
    passed = {row[2] for row in second if row[1] == "pass"}
    for row in failed(rows, lane):
        # One that failed by itself counts as its subtests when it passes.
        if row[2] in passed or any(name.startswith(row[2] + "/") for name in passed):
            row[1], row[3] = "pass", "the first time: " + row[3]
    with open(results + ".new", "w", encoding="utf-8") as f:
        f.writelines("\t".join(row) + "\n" for row in rows)
    os.replace(results + ".new", results)


def main():
    what, *args = sys.argv[1:]
    if what == "names":
        print("\n".join(names(*args)))
    else:
        merge(*args)


main()
