#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""./dev mutate [FILE...] [--seed N] [--count N]: breaks one line of src at a time, and tells whether a test notices.

Each mutant is one change inside a function's body, chosen at random, in a copy of the tree that is removed at the end. Those
unit, wire and sim tests run that run the changed line, which a first run of all of them shows (mutate_coverage.py), until one
fails twice or hangs: first those that are named like the file or have noticed changes of it before. A mutant that does not
compile, or whose machine code is the same as before, is replaced by another; lines that only log are left alone. What a killed
test leaves (processes, loop devices, files) is removed before the next one.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import ctypes
import fcntl
import functools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import mutate_coverage  # pylint: disable=wrong-import-position

TOP = pathlib.Path(__file__).resolve().parents[1]
SAME = "its machine code is the same"
NOBODY = "no test runs the line"
SUITES = ("unit", "wire", "sim")
NOT_OK = re.compile(r"^not ok\s+(?:\d+\s+)?-?\s*(\S+)", re.M)

# ---- what is changed ----

SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|' r"'(?:\\.|[^'\\\n])+'", re.S)
TYPE_FIRST = re.compile(r"(?:static|const|typedef|struct|enum|union|unsigned|signed|long|short|int|char|bool|void|float|double|va_list)\b"
                        r"|log_\w+\(|\w+_(?:t|fn)\b|(?!return\b|goto\b|else\b|case\b)\w+ \**\w+( =|;|\[|,)|__attribute__|_cleanup")
STATEMENT = re.compile(r"(?:[\w.>\[\]*-]+\(.*\)|[\w.>\[\]*()-]+ [-+|&^]?= .*|(?:\+\+|--)?[\w.>\[\]-]+(?:\+\+|--)?|goto \w+|continue|break);$")
JUMP = re.compile(r"\s*(?:goto|break|continue)\b")
# A name, what is looked for in the code, what it becomes.
SWAPS = (
    ("a comparison turned round", r" (==|!=|<=|>=|<|>) ", {"==": "!=", "!=": "==", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}),
    ("a bound off by one", r" (<=|>=|<|>) ", {"<": "<=", ">": ">=", "<=": "<", ">=": ">"}),
    ("and for or", r" (&&|\|\|)(?= |$)", {"&&": "||", "||": "&&"}),
    ("plus for minus", r" ([-+]) ", {"+": "-", "-": "+"}),
    ("a truth turned round", r"\b(true|false)\b", {"true": "false", "false": "true"}),
)


@functools.lru_cache(maxsize=None)
def masked(text):
    """The text with blanks for what is in comments, strings and lines of the preprocessor; as long as the text."""
    def blank(found):
        return re.sub(r"[^\n]", " ", found[0])
    text = SKIPPED.sub(blank, text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def bodies(lines):
    """The numbers of the lines inside functions: the format puts a function's braces alone into the first column."""
    inside = False
    for number, line in enumerate(lines):
        if line.rstrip() == "{":
            inside = True
        elif line.startswith("}"):
            inside = False
        elif inside:
            yield number


def function_of(lines, number):
    """The range of line numbers (from 1, as compilers count) of the body that has the line."""
    first = next(at for at in range(number, -1, -1) if lines[at].rstrip() == "{")
    last = next(at for at in range(number, len(lines)) if lines[at].startswith("}"))
    return range(first + 2, last + 1)


def condition(line):
    """The span of the condition in "if (...)", if it ends on the line."""
    start = re.match(r"\s*(?:\} else )?if \(", line)
    depth = 1
    for at in range(start.end() if start else len(line), len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if depth == 0:
            return start.end(), at
    return None


def changes(line, before):
    """What may be changed in a line of code: (what kind, from, to, by what). before: the code above it."""
    code = line.strip()
    if not code or TYPE_FIRST.match(code) or code.startswith("assert(") or code.startswith("case "):
        return
    begin, end = line.index(code), len(line.rstrip())
    if STATEMENT.match(code) and (before[-1:] in ";{}:)" or before.endswith("else")) and code.count("(") == code.count(")"):
        yield "a statement left out", begin, end, ";"
    returned = re.match(r"return (.*);$", code)
    if returned and returned[1] not in ("true", "false", "NULL"):
        if returned[1] == "0":
            yield "success made an error", begin, end, "return -5;"
        elif re.fullmatch(r"-E[A-Z0-9]+|r|res", returned[1]):
            yield "an error made success", begin, end, "return 0;"
    for kind, pattern, becomes in SWAPS:
        for found in re.finditer(pattern, line):
            yield kind, found.start(1), found.end(1), becomes[found[1]]
    for found in re.finditer(r"(?<![\w.-])\d+(?![\w.])", line):  # not of -1, for none: -2 is none, too
        yield "a constant off by one", found.start(), found.end(), str(int(found[0]) + 1)
    span = condition(line)
    if span:
        yield "a condition negated", *span, f"!({line[slice(*span)]})"


def mutants(text):
    """A list for each line that can be changed: (line number, kind, from, to, by what)."""
    lines = masked(text).split("\n")
    for number in bodies(lines):
        before = next((line.rstrip() for line in reversed(lines[:number]) if line.strip()), "")
        found = [(number, *change) for change in changes(lines[number], before)]
        if found:
            yield found


def changed(text, mutant):
    number, _, start, end, new = mutant
    lines = text.split("\n")
    lines[number] = lines[number][:start] + (new if not new.startswith("!(") else f"!({lines[number][start:end]})") + lines[number][end:]
    return "\n".join(lines)


# ---- what a test leaves ----

def be_reaper():
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans of tests become our children


def thaw(pid):
    """A test that is killed while it has a file system frozen leaves threads that wait for it and keep it mounted."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the leader has ended
            paths = [line.split()[4] for line in (task / "mountinfo").read_text().splitlines()]
            for path in filter(lambda path: path.startswith("/tmp/"), paths):
                fd = os.open(f"{task}/root{path}", os.O_RDONLY)
                with contextlib.suppress(OSError):  # it is not frozen
                    fcntl.ioctl(fd, 0xC0045878, 0)  # FITHAW
                os.close(fd)


def kill_children():
    """All of them; no test is run meanwhile."""
    begin = time.monotonic()
    while True:
        children = []
        for task in pathlib.Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended: its children are another's
                children += [int(pid) for pid in (task / "children").read_text().split()]
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() > begin + 1:
                thaw(pid)
        time.sleep(0.02)


def clear(directory):
    """Empties the directory and detaches the loop devices over its files."""
    inodes = {entry.stat().st_ino for entry in directory.rglob("*") if entry.is_file() and not entry.is_symlink()}
    for loop in pathlib.Path("/sys/block").glob("loop*/loop"):
        try:
            with open(f"/dev/{loop.parent.name}", "rb") as device:
                status = fcntl.ioctl(device, 0x4C05, bytes(232))  # LOOP_GET_STATUS64
                number, inode = struct.unpack_from("QQ", status)
                if inode in inodes and number & 0xffff == os.stat(directory).st_dev & 0xffff:
                    fcntl.ioctl(device, 0x4C01)  # LOOP_CLR_FD
        except OSError:
            pass
    for entry in directory.iterdir():
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


# ---- the copy and its tests ----

class Tree:
    """A copy of the source tree, built, and its test programs."""

    def __init__(self, top, at, jobs):
        self.jobs = jobs
        self.at = pathlib.Path(at)
        self.tmp = self.at / "tmp"
        self.top = self.at / "tree"
        self.tmp.mkdir(mode=0o1777)
        names = subprocess.run(["git", "-C", top, "ls-files", "-zco", "--exclude-standard"], check=True, capture_output=True).stdout
        for name in filter(None, os.fsdecode(names).split("\0")):
            if (top / name).is_file():
                (self.top / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(top / name, self.top / name)
        self.seconds = {}
        self.passed = set()
        self.caught = collections.Counter()  # (source or its folder, test): changes noticed
        self.learn()
        self.build = self.top / "build"
        subprocess.run(["meson", "setup", "-Ddebug=false", self.build, self.top], check=True, capture_output=True)
        self.tests = self.tests_of(self.build)

    def tests_of(self, build):
        """The test programs of a build directory, by name."""
        said = subprocess.run(["meson", "introspect", "--tests", build], check=True, capture_output=True, text=True).stdout
        tests = {test["name"]: test for test in json.loads(said) if test["suite"][0].split(":")[-1] in SUITES}
        if not self.compile(build, [test["cmd"][0] for test in tests.values()]):
            raise SystemExit("mutate: the tree does not build")
        return tests

    def learn(self):
        """Runs each test program to see which lines it runs. One that fails twice is taken for one that runs every line."""
        build, ran = self.top / "build-coverage", self.at / "ran"
        ran.mkdir()
        mutate_coverage.setup(build, self.top)
        self.tests = self.tests_of(build)
        for name, test in self.tests.items():
            test["env"][mutate_coverage.RAN] = str(ran / name)
        self.everything = set()
        for name, failed in self.run_all(list(self.tests)):
            if self.run([name], self.patience):
                print(f"runs for every change, it fails in the build that shows what runs: {failed}", flush=True)
                self.everything.add(name)
        self.coverage = mutate_coverage.Coverage(build, ran, {name: test["cmd"][0] for name, test in self.tests.items()})

    @staticmethod
    def compile(build, files):
        targets = [os.path.relpath(file, build) for file in files]
        return subprocess.run(["ninja", "-C", build, *targets], capture_output=True, check=False).returncode == 0

    def objects_of(self, source):
        return sorted(self.build.glob(f"*.p/{source.replace('/', '_')}.o"))

    @staticmethod
    def code(objects):
        """What the machine gets of each object: all but what debuggers read."""
        said = []
        for path in objects:
            with tempfile.NamedTemporaryFile(dir=path.parent) as bare:
                subprocess.run(["objcopy", "--strip-debug", path, bare.name], check=True)
                said.append(pathlib.Path(bare.name).read_bytes())
        return said

    def programs_of(self, source, number):
        """Names of the tests that run the line: what noticed changes of the file and of its folder before, what is named like
        it, then the fastest."""
        path = pathlib.Path(source)
        lines = masked((self.top / source).read_text()).split("\n")
        # A jump is part of the block before it, or of the one that it goes to.
        line = None if JUMP.match(lines[number]) else number + 1
        named = self.coverage.who(source, line, function_of(lines, number)) | self.everything
        return sorted(named & self.tests.keys(),
                      key=lambda name: (-self.caught[source, name], name not in path.stem and path.stem not in name,
                                        -self.caught[str(path.parent), name], self.seconds.get(name, 0)))

    def run(self, names, limit, only=""):
        """Runs the tests, as many at once as there are jobs, until one fails. Returns what failed, "" if nothing did.
        limit(name): its seconds. only: the one test of the program."""
        stop, lock, live, failed = threading.Event(), threading.Lock(), set(), []

        def one(name):
            with lock:
                if stop.is_set():
                    return
                test, begin = self.tests[name], time.monotonic()
                tap = self.at / f"{name}.tap"
                tap.unlink(missing_ok=True)
                command = [*test["cmd"], "--fail-fast", f"--tap={tap}", *([f"--filter={only.replace('::', '/')}"] if only else [])]
                if os.geteuid() == 0:  # what it leaves in /tmp is in our directory
                    command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c",
                               'mount --bind "$0" /tmp && exec "$@"', self.tmp, *command]
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                           env=os.environ | test["env"], start_new_session=True)
                live.add(process)
            try:
                code, why = process.wait(limit(name)), ""
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code, why = process.wait(), ", which hangs"
            with lock:
                live.discard(process)
                if code == 0:
                    self.passed.add(name)
                    if not only:
                        self.seconds[name] = time.monotonic() - begin
                if code != 0 and not stop.is_set():
                    stop.set()
                    of_it = NOT_OK.search(tap.read_text(errors="replace")) if tap.exists() else None
                    failed.append(f"{name}{'/' + of_it[1] if of_it else ''}{why}")
                    kill_live()

        def kill_live():
            for process in live:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

        try:
            with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
                try:
                    list(pool.map(one, names))
                except BaseException:  # ^C, or we are told to end
                    stop.set()
                    kill_live()
                    raise
        finally:
            kill_children()
            clear(self.tmp)
        return failed[0] if failed else ""

    def patience(self, name):
        """Seconds."""
        return self.tests[name]["timeout"] or 300

    def run_all(self, names):
        """Runs the tests as they are. Yields those that fail, what and how."""
        self.passed.clear()
        while failed := self.run(names, self.patience):
            name = failed.split("/")[0].split(",")[0]
            yield name, failed
            names = [other for other in names if other not in self.passed | {name}]

    def baseline(self, names):
        """Those tests that fail as they are say nothing of a mutant and are left out."""
        for name, failed in list(self.run_all(names)):
            print(f"left out, it fails without a change: {failed}", flush=True)
            del self.tests[name]

    def notice(self, names):
        """The test that fails twice, or hangs; "" for none. What fails once is a test that needs a calmer machine."""
        def limit(name):
            return min(self.patience(name), 30 + 6 * self.seconds[name])

        while failed := self.run(names, limit):
            name, _, test = failed.partition("/")
            if "," in failed or self.run([name], limit, test):
                return failed
            names = names[names.index(name) + 1:]
        return ""

    def try_one(self, source, mutant):
        """Returns the test that notices the mutant, "" for none, None where it does not compile, SAME where nothing changed,
        NOBODY where no test runs the line."""
        path = self.top / source
        text = path.read_text()
        programs, objects = self.programs_of(source, mutant[0]), self.objects_of(source)
        before = self.code(objects)
        path.write_text(changed(text, mutant))
        try:
            if not self.compile(self.build, objects):
                return None
            if self.code(objects) == before:
                return SAME
            if not programs:
                return NOBODY
            for first, last in ((0, 3), (3, 12), (12, None)):
                names = programs[first:last]
                if not self.compile(self.build, [self.tests[name]["cmd"][0] for name in names]):
                    return None
                if failed := self.notice(names):
                    self.caught.update((where, failed.split("/")[0].split(",")[0]) for where in (source, str(pathlib.Path(source).parent)))
                    return failed
            return ""
        finally:
            path.write_text(text)
            self.compile(self.build, objects)


def arguments(words, top):
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", nargs="*", help="of src, or folders there; all of src if none is named")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="the same seed, the same mutants")
    parser.add_argument("--count", type=int, default=20, help="how many (20)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="so many tests at once (as many as there are processors)")
    chosen = parser.parse_args(words)
    paths = [top / name for name in chosen.file or ["src"]]
    for path in paths:
        if not path.exists():
            parser.error(f"there is no {path}")
    found = {path for base in paths for path in (base.rglob("*.c") if base.is_dir() else [base])}
    chosen.file = sorted(os.path.relpath(path, top) for path in found)
    return chosen


def main(words, top=TOP):
    chosen = arguments(words, top)
    print(f"seed {chosen.seed}: ./dev mutate --seed {chosen.seed} makes the same mutants of the same source", flush=True)
    be_reaper()
    noticed, unnoticed, broken, same = 0, 0, 0, 0
    # Not in /tmp: the tests have one of their own.
    with tempfile.TemporaryDirectory(prefix="ringvol-mutate-", dir="/var/tmp") as at:
        tree = Tree(top, at, chosen.jobs)
        lines = [(name, line) for name in chosen.file for line in mutants((tree.top / name).read_text())]
        draw = random.Random(chosen.seed)
        draw.shuffle(lines)
        tree.baseline(sorted(set().union(*(tree.programs_of(source, line[0][0]) for source, line in lines))))
        for source, line in lines:
            if noticed + unnoticed == chosen.count:
                break
            mutant = draw.choice(line)
            number, kind = mutant[:2]
            text = (tree.top / source).read_text()
            was, now = (t.split("\n")[number].strip() for t in (text, changed(text, mutant)))
            by = tree.try_one(source, mutant)
            if by is None or by is SAME:
                broken, same = broken + (by is None), same + (by is SAME)
                continue
            by, why = ("", f": {NOBODY}") if by is NOBODY else (by, "")
            noticed, unnoticed = (noticed + 1, unnoticed) if by else (noticed, unnoticed + 1)
            print(f"{source}:{number + 1}: {kind}: {was}  ->  {now}\n\t{'noticed by ' + by if by else 'NOT NOTICED' + why}", flush=True)
    print(f"{noticed + unnoticed} mutants: {noticed} noticed, {unnoticed} not noticed; {broken} more did not compile, {same} made the same machine code")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
