#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the criterion programs of one suite and appends a line per test to the results.

run-criterion.py BUILD_DIR SUITE LANE LOG_DIR RESULTS

As many programs run at once as there are processors, the longest first as far as an earlier run tells (BUILD_DIR/
test-seconds.json), or else tests/meson.build. Each has a mount namespace of its own, so that no program's mounts are
copied into another's namespace and hold its devices there. A program that dies, hangs or fails without naming a test
counts as one failure.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import threading
import time

LINE = re.compile(r"^(not ok|ok)\s+(?:\d+\s+)?-?\s*(\S+)\s*(.*)$")
OWN_MOUNTS = ["unshare", "--mount", "--propagation", "private", "--"]


def tests_of(build, suite):
    out = subprocess.run(["meson", "introspect", "--tests", build], check=True,
                         capture_output=True, text=True).stdout
    for test in json.loads(out):
        if any(s.split(":")[-1] == suite for s in test["suite"]):
            yield test


def leaks_of_criterion_alone(log):
    """Whether all that the sanitizer found is memory that criterion itself has lost: on a busy machine its runner now and
    then does not free what it knows of a worker. Every frame below the allocator has to be in criterion's library."""
    if "runtime error:" in log or len(re.findall(r"ERROR: ", log)) != log.count("ERROR: LeakSanitizer: detected memory leaks"):
        return False
    stacks = re.findall(r"^(?:Direct|Indirect) leak of .*\n((?:\s+#\d+ .*\n)+)", log, re.M)
    frames = [stack.strip().split("\n") for stack in stacks]
    return bool(frames) and all(len(stack) > 1 and all("/libcriterion.so" in frame for frame in stack[1:]) for stack in frames)


def run(test, lane, logs):
    name = test["name"]
    base = os.path.join(logs, f"{lane}-{name.replace('/', '_')}")
    tap = base + ".tap"
    env = dict(os.environ, **test["env"])
    env.setdefault("ASAN_OPTIONS", "detect_leaks=1")
    env.setdefault("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1")
    apart = OWN_MOUNTS if os.geteuid() == 0 else []
    code = None
    with open(base + ".log", "wb") as log:
        try:
            code = subprocess.run(apart + test["cmd"] + [f"--tap={tap}"], stdout=log, stderr=log,
                                  stdin=subprocess.DEVNULL, env=env,
                                  timeout=test["timeout"] or 300).returncode
        except subprocess.TimeoutExpired:
            pass
    results = []
    if os.path.exists(tap):
        with open(tap, encoding="utf-8", errors="replace") as f:
            for line in f:
                m = LINE.match(line)
                if not m:
                    continue
                rest = m[3].strip()
                if re.search(r"#\s*SKIP", rest, re.I):
                    reason = re.sub(r".*#\s*SKIP\S*\s*", "", rest, flags=re.I) or "no reason given"
                    results.append(("skip", m[2], reason, ""))
                elif m[1] == "ok":
                    results.append(("pass", m[2], "", ""))
                else:
                    results.append(("fail", m[2], "", base + ".log"))
    if code not in (0, None) and results:
        with open(base + ".log", encoding="utf-8", errors="replace") as log:
            code = 0 if leaks_of_criterion_alone(log.read()) else code
    if code != 0 and not any(r[0] == "fail" for r in results):
        why = "timed out" if code is None else f"exit status {code}"
        results.append(("fail", name, why, base + ".log"))
    if code == 0 and not results:
        results.append(("fail", name, "ran no test", base + ".log"))
    return results


def read_seconds(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return {}


def main():
    build, suite, lane, logs, out = sys.argv[1:]
    tests = list(tests_of(build, suite))
    seconds_path = os.path.join(build, "test-seconds.json")
    seconds = read_seconds(seconds_path)
    tests.sort(key=lambda test: -seconds.get(test["name"], test["priority"]))
    lock = threading.Lock()
    with open(out, "a", encoding="utf-8") as f:
        if not tests:
            f.write(f"{lane}\tfail\t{suite}\tno test program was built; is criterion there?\n")

        def one(test):
            start = time.monotonic()
            rows = run(test, lane, logs)
            with lock:
                seconds[test["name"]] = round(time.monotonic() - start, 1)
                for result, name, reason, detail in rows:
                    f.write(f"{lane}\t{result}\t{test['name']}/{name}\t{reason}\t{detail}\n")
                f.flush()

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in [pool.submit(one, test) for test in tests]:
                done.result()
    with open(seconds_path, "w", encoding="utf-8") as f:
        json.dump(seconds, f, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
