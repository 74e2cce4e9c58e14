#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Appends a line per test of a `go test -json` stream to the results: count-go.py LANE JSON RESULTS.

A test with subtests counts as its subtests, unless it failed by itself. What a failed test printed is kept
beside the stream, and the line names that file. A program that did not come to its own end has a failure of the
lane's name besides: what it did not begin is in no line.
"""
import json
import os
import sys


def keep(stream, test, output):
    """Keeps what a failed test printed; returns the file's name."""
    path = f"{stream[:-5]}.{test.replace('/', '_')[:100]}.failed.log"
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(output)
    return os.path.abspath(path)


def main():
    lane, stream, out = sys.argv[1:]
    status, output, parents, ended, whole = {}, {}, set(), None, False
    with open(stream, encoding="utf-8", errors="replace") as f:
        for line in f:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            test, action = event.get("Test"), event["Action"]
            if not test:
                if action in ("pass", "fail", "skip"):
                    ended = action  # test2json says "fail" of a stream that breaks off, too
                elif action == "output" and event["Output"].strip() in ("PASS", "FAIL"):
                    whole = True
                continue
            if "/" in test:
                parents.add(test.rsplit("/", 1)[0])
            if action == "output":
                output.setdefault(test, []).append(event["Output"])
            elif action == "run":
                status[test] = "run"
            elif action in ("pass", "fail", "skip"):
                status[test] = action
    lines = []
    for test, result in status.items():
        if test in parents and result in ("pass", "skip"):
            continue
        if test in parents and any(s in ("fail", "run") for t, s in status.items()
                                   if t.startswith(test + "/")):
            continue
        reason = ""
        if result == "run":
            result, reason = "fail", "did not end: a crash or the time limit"
        elif result != "pass":
            said = [s.strip() for s in output.get(test, [])]
            said = [s for s in said if s and not s.startswith(("===", "---"))]
            reason = said[-1] if result == "skip" and said else (said[0] if said else "")
            reason = reason.split(": ", 1)[-1] if ".go:" in reason.split(": ", 1)[0] else reason
        detail = keep(stream, test, output.get(test, [])) if result == "fail" else ""
        lines.append((result, test, reason.replace("\t", " "), detail))
    if lines and (not whole or "run" in status.values()):
        lines.append(("fail", lane, "it broke off: tests after that did not run", f"{stream[:-5]}.log"))
    elif ended != "pass" and not any(line[0] == "fail" for line in lines):
        lines.append(("fail", lane, "the test program failed", f"{stream[:-5]}.log"))
    if not lines:
        lines.append(("fail", lane, "ran no test", f"{stream[:-5]}.log"))
    with open(out, "a", encoding="utf-8") as f:
        for result, test, reason, detail in lines:
            f.write(f"{lane}\t{result}\t{test}\t{reason}\t{detail}\n")


main()
