#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the criterion programs of one suite and appends a line per test to the results.

run-criterion.py BUILD_DIR SUITE LANE LOG_DIR RESULTS

A program that dies, hangs or fails without naming a test counts as one failure.
"""
import json
import os
import re
import subprocess
import sys

LINE = re.compile(r"^(not ok|ok)\s+(?:\d+\s+)?-?\s*(\S+)\s*(.*)$")


def tests_of(build, suite):
    out = subprocess.run(["meson", "introspect", "--tests", build], check=True,
                         capture_output=True, text=True).stdout
    for test in json.loads(out):
        if any(s.split(":")[-1] == suite for s in test["suite"]):
            yield test


def run(test, lane, logs):
    name = test["name"]
    base = os.path.join(logs, f"{lane}-{name.replace('/', '_')}")
    tap = base + ".tap"
    env = dict(os.environ, **test["env"])
    env.setdefault("ASAN_OPTIONS", "detect_leaks=1")
    env.setdefault("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1")
    code = None
    with open(base + ".log", "wb") as log:
        try:
            code = subprocess.run(test["cmd"] + ["-j1", f"--tap={tap}"], stdout=log, stderr=log,
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
    if code != 0 and not any(r[0] == "fail" for r in results):
        why = "timed out" if code is None else f"exit status {code}"
        results.append(("fail", name, why, base + ".log"))
    if code == 0 and not results:
        results.append(("fail", name, "ran no test", base + ".log"))
    return results


def main():
    build, suite, lane, logs, out = sys.argv[1:]
    tests = list(tests_of(build, suite))
    with open(out, "a", encoding="utf-8") as f:
        if not tests:
            f.write(f"{lane}\tfail\t{suite}\tno test program was built; is criterion there?\n")
        for test in tests:
            for result, name, reason, detail in run(test, lane, logs):
                f.write(f"{lane}\t{result}\t{test['name']}/{name}\t{reason}\t{detail}\n")


main()
