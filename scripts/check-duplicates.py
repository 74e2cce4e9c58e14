#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds runs of 12 or more equal lines in two places of src. Lines that say nothing (blank, comments,
braces, includes) are left out before comparing, and so do not hide or make a duplicate."""
import pathlib
import re
import sys

LINES = 12
SILENT = re.compile(r"^(|[{}();]+|else|\} else \{|#include.*|/\*.*|\*.*|//.*|break;|return 0;)$")


def lines_of(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = " ".join(line.split())
        if not SILENT.match(text):
            yield number, text


def main():
    seen, bad, covered = {}, 0, set()
    for path in sorted(pathlib.Path("src").glob("**/*.[ch]")):
        lines = list(lines_of(path))
        for i in range(len(lines) - LINES + 1):
            window = tuple(text for _, text in lines[i : i + LINES])
            here = (path, lines[i][0])
            first = seen.setdefault(window, here)
            if first == here:
                continue
            if (path, i - 1) not in covered:
                print(f"{path}:{here[1]}: {LINES} lines or more as at {first[0]}:{first[1]}")
                bad += 1
            covered.add((path, i))
    return 1 if bad else 0


sys.exit(main())
