#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Go tests of a lane: runs them, counts them, and says which have a second attempt.

    go-tests.py run LOG SECONDS PROGRAM [ARGUMENT...]   runs each test in a process and a mount namespace of its own, several
        side by side, the longest first as far as an earlier run tells (the file SECONDS), some alone at the end. LOG has what they said, one test
        after the other. Says how many processes there were
    go-tests.py count LANE JSON RESULTS [PROGRAMS]      appends a line per test of a `go test -json` stream to the results
    go-tests.py names LANE RESULTS                      says which failed tests have a second attempt, a line each
    go-tests.py merge LANE RESULTS AGAIN                what passed in AGAIN has passed in RESULTS, with why it failed at first

A test with subtests counts as its subtests, unless it failed by itself. What a failed test printed is kept
beside the stream, and the line names that file. A program that did not come to its own end has a failure of the
lane's name besides: what it did not begin is in no line. Then there is no second attempt.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import threading
import time

AT_ONCE = 2 * os.cpu_count()  # they wait more than they work
# Tests of what is done to loop devices by their numbers, and of what the whole machine has of them: they run after the others.
ALONE = re.compile("TestTenant|TestDoctor$|TestProbesNumberReused$|TestNoFreeLoopDevice$")
MOST = 3  # failures that have a second attempt


def run(log, seconds_path, program, *args):
    select = [a.split("=", 1)[1] for a in args if a.startswith("-test.run=")] or ["."]
    # Only tests by their names: the part after a slash is for their subtests.
    listed = subprocess.run([program, "-test.list", select[0].split("/")[0]], check=True, capture_output=True, text=True).stdout
    tests = [line for line in listed.splitlines() if line.startswith("Test")]
    try:
        with open(seconds_path, encoding="utf-8") as f:
            seconds = json.load(f)
    except (OSError, ValueError):
        seconds = {}
    tests.sort(key=lambda test: -seconds.get(test, 0))
    lock = threading.Lock()
    with open(log, "wb") as into:
        def one(test):
            begin = time.monotonic()
            name = [test, *select[0].split("/")[1:]]
            said = subprocess.run(["unshare", "--mount", "--propagation", "private", "--", program, *args,
                                   "-test.run=" + "/".join([f"^{name[0]}$", *name[1:]])],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout
            with lock:
                seconds[test] = round(time.monotonic() - begin, 1)
                into.write(said if said.endswith(b"\n") else said + b"\n")
                into.flush()

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(one, [test for test in tests if not ALONE.match(test)]))
        for test in filter(ALONE.match, tests):
            one(test)
    with open(seconds_path, "w", encoding="utf-8") as f:
        json.dump(seconds, f, indent=1, sort_keys=True)
    print(len(tests))


def keep(stream, test, output):
    """Keeps what a failed test printed; returns the file's name."""
    path = f"{stream[:-5]}.{test.replace('/', '_')[:100]}.failed.log"
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(output)
    return os.path.abspath(path)


def count(lane, stream, out, programs="1"):
    status, output, parents, ended, ends = {}, {}, set(), None, 0
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
                    ends += 1
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
    if lines and (ends < int(programs) or "run" in status.values()):
        lines.append(("fail", lane, "it broke off: tests after that did not run", f"{stream[:-5]}.log"))
    elif ended != "pass" and not any(line[0] == "fail" for line in lines):
        lines.append(("fail", lane, "the test program failed", f"{stream[:-5]}.log"))
    if not lines:
        lines.append(("fail", lane, "ran no test", f"{stream[:-5]}.log"))
    with open(out, "a", encoding="utf-8") as f:
        for result, test, reason, detail in lines:
            f.write(f"{lane}\t{result}\t{test}\t{reason}\t{detail}\n")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return [(line.rstrip("\n").split("\t") + [""] * 4)[:5] for line in f]


def failed(rows, lane):
    return [row for row in rows if row[0] == lane and row[1] == "fail"]


def again(lane, results):
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
        print("\n".join(again(*args)))
    else:
        {"run": run, "count": count, "merge": merge}[what](*args)


main()
