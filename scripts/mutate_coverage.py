# SPDX-License-Identifier: Apache-2.0
"""Which test programs run which lines, for scripts/mutate.py: from a second build that is not optimised, so that nothing is
inlined, and whose programs write down the basic blocks that they run (tests/mutate/coverage.c)."""
import bisect
import functools
import mmap
import os
import pathlib
import platform
import re
import shlex
import subprocess

RUNTIME = pathlib.Path(__file__).resolve().parents[1] / "tests" / "mutate" / "coverage.c"
RAN = "MUTATE_RAN"
CALLED = "__sanitizer_cov_trace_pc"
CALL = 4 if platform.machine() == "aarch64" else 5  # bytes of a call
ROW = re.compile(r"^(\S+)\s+(\d+|-)\s+(?:0x)?([0-9a-f]+)\b", re.M)


def said_by(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def setup(build, top):
    """Makes the build directory."""
    build.mkdir()
    runtime = build / "coverage.o"
    subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-O2", "-fPIE", "-c", RUNTIME, "-o", runtime], check=True)
    subprocess.run(["meson", "setup", "-Doptimization=0", "-Dc_args=-fsanitize-coverage=trace-pc", f"-Dc_link_args={runtime}", build, top],
                   check=True, capture_output=True)


def functions(path):
    """Where each function is. Static ones of equal names are in more than one place."""
    found = {}
    for row in map(str.split, said_by("nm", "--defined-only", path).splitlines()):
        if row[1:2] in (["T"], ["t"]):
            found.setdefault(row[2], set()).add(int(row[0], 16))
    return found


def blocks_of_lines(table, starts, name):
    """For each line of the file: its basic blocks. table: what objdump says of lines. starts: where each block's call returns to,
    in order."""
    rows = [(path, line, int(at, 16)) for path, line, at in ROW.findall(table)]
    found = {}
    for (path, line, at), (_, _, end) in zip(rows, rows[1:]):
        if line != "-" and name.endswith(path):
            first, last = bisect.bisect_right(starts, at + CALL) - 1, bisect.bisect_left(starts, end + CALL)
            found.setdefault(int(line), set()).update(starts[max(first, 0):last])
    return found


class Coverage:
    """What the programs of a build directory have run. ran: the folder of their files. programs: their paths by name."""

    def __init__(self, build, ran, programs):
        self.build = build
        self.functions = {name: functions(path) for name, path in programs.items()}
        self.ran = {}
        for name in programs:
            if (ran / name).exists():
                with open(ran / name, "rb") as file:
                    self.ran[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def bases(self, program, own):
        """Where the program has the object with these functions: nowhere, or in one place."""
        at = self.functions[program]
        return set.intersection(*({there - here for there in at.get(name, ()) for here in places} for name, places in own.items()))

    @functools.lru_cache(maxsize=None)
    def lines(self, source):
        """For each line of the source that has code: the names of the programs that run it."""
        found = {}
        for path in self.build.glob(f"*.p/{source.replace('/', '_')}.o"):
            calls = (line.split() for line in said_by("objdump", "-r", "-j", ".text", path).splitlines() if CALLED in line)
            starts = sorted(int(call[0], 16) + 4 for call in calls)  # from where the linker writes the distance
            blocks = blocks_of_lines(said_by("objdump", "--dwarf=decodedline", path), starts, pathlib.Path(source).name)
            own = functions(path)
            bases = {name: self.bases(name, own) for name in self.ran} if own else {}
            for line, of_it in blocks.items():
                found.setdefault(line, set()).update(
                    name for name, places in bases.items() if any(self.ran[name][base + at] for base in places for at in of_it))
        return found

    def who(self, source, line, function):
        """The programs that run the line, or the function (a range of lines) where the compiler says nothing of the line alone."""
        lines = self.lines(source)
        return set().union(*(lines.get(number, ()) for number in ([line] if line in lines else function)))
