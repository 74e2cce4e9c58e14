#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""./dev vm [OPTION...] -- CMD ARG...: runs CMD as root in a QEMU guest. See docs/vm.md.

Exit status: CMD's own; 77 no such guest on this machine, 124 timeout, 125 the guest failed.
"""
import argparse
import contextlib
import fcntl
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import guest
import image
import kernel

BEGIN = time.monotonic()
SKIPPED, TIMED_OUT, FAILED = 77, 124, 125


def options():
    parser = argparse.ArgumentParser(
        prog="./dev vm", usage="./dev vm [OPTION...] -- CMD ARG...",
        description="Runs CMD as root in a QEMU guest, in the source tree's copy at /ringvol.")
    parser.add_argument("--kernel", choices=sorted(kernel.SOURCES), default="6.1",
                        help="which of Debian's (6.1)")
    parser.add_argument("--timeout", type=float, default=600, metavar="SEC",
                        help="how long CMD may run (600)")
    parser.add_argument("--file", action="append", default=[], metavar="SRC[:DST]",
                        help="another file for the guest, with the libraries it needs")
    parser.add_argument("--disk", action="append", default=[], metavar="SIZE",
                        help="an empty disk, /dev/vdb and so on (512M, 2G)")
    parser.add_argument("--out", metavar="DIR",
                        help="receives what CMD leaves in the directory $RINGVOL_OUT")
    parser.add_argument("--parallel", action="store_true",
                        help="the guest's CPUs run at once, for measurements (see docs/vm.md)")
    parser.add_argument("--counted", action="store_true",
                        help="the guest's clock counts its instructions, for ratios that repeat")
    parser.add_argument("--selinux", action="store_true",
                        help="the kernel has SELinux, which is without a policy at first")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="how much it has (2048)")
    parser.add_argument("command", nargs="+", metavar="CMD")
    chosen = parser.parse_args()
    chosen.disk = [size_of(parser, text) for text in chosen.disk]
    chosen.file = [file_of(parser, text) for text in chosen.file]
    return chosen


def size_of(parser, text):
    match = re.fullmatch(r"(\d+)([KMGT]?)", text)
    if not match:
        parser.error(f"--disk {text}: a number and K, M, G or T")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]


def file_of(parser, text):
    """A file of the source tree keeps its place in it, another one its path."""
    source, _, target = text.partition(":")
    source = os.path.abspath(source)
    if not os.path.isfile(source):
        parser.error(f"--file {text}: no such file")
    if not target:
        inside = os.path.relpath(source, image.TOP)
        target = source if inside.startswith("..") else f"{image.TREE}/{inside}"
    if not target.startswith("/"):
        target = f"{image.TREE}/{target}"
    return source, os.path.normpath(target)


def images(cache, chosen):
    """Makes or finds what the guest is booted from, one process at a time."""
    with open(os.path.join(cache, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        system = os.path.join(cache, "kernel-" + chosen.kernel)
        if not os.path.exists(os.path.join(system, "release")):
            guest.say(f"fetching Debian's kernel {chosen.kernel}")
        system = kernel.prepare(cache, chosen.kernel)
        libraries = image.Libraries(cache)
        made = (os.path.join(system, "vmlinux"), image.initramfs(cache, system),
                image.base(cache, system, libraries),
                image.project(cache, libraries, chosen.file))
        libraries.save()
        return made


def run(chosen):
    cache = os.path.join(image.TOP, ".cache", "vm")
    os.makedirs(cache, exist_ok=True)
    try:
        vmlinux, initramfs, base, project = images(cache, chosen)
    except (kernel.Unavailable, FileNotFoundError) as error:
        guest.say(f"skipped, there is no guest with Linux {chosen.kernel} here: {error}")
        return SKIPPED
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(tempfile.TemporaryDirectory(dir=cache, prefix="run-"))
        token = secrets.token_hex(16).encode()
        command = shlex.join(os.fsencode(a).decode("latin-1") for a in chosen.command)
        initrd = os.path.join(work, "initrd")
        shutil.copyfile(initramfs, initrd)
        with open(initrd, "ab") as f:
            f.write(image.job(("exec " + command + "\n").encode("latin-1"), token, chosen.out))
        disks = [(base, "base", True)]
        for i, size in enumerate(chosen.disk):
            disks.append((os.path.join(work, f"disk{i}"), None, False))
            with open(disks[-1][0], "wb") as f:
                f.truncate(size)
        disks.append((project, "project", True))
        archive = stack.enter_context(open(os.path.join(work, "archive"), "w+b"))
        console = os.path.join(work, "console")
        box = guest.Guest(vmlinux, initrd, disks, token, console, archive.write,
                          chosen.parallel, chosen.counted, chosen.selinux,
                          chosen.memory)
        try:
            code = box.run(chosen.timeout)
        except guest.Failed as error:
            show_end(console)
            guest.say(str(error))
            code = TIMED_OUT if isinstance(error, guest.TimedOut) else FAILED
        else:
            if chosen.out:
                unpack(archive, chosen.out)
        report(chosen, box)
        return code


def unpack(archive, target):
    os.makedirs(target, exist_ok=True)
    archive.flush()
    archive.seek(0)
    subprocess.run(["tar", "-xf", "-", "-C", target, "--no-same-owner"], stdin=archive, check=True)


def show_end(console):
    with open(console, "rb") as f:
        lines = f.read().decode(errors="replace").splitlines()
    for line in lines[-30:]:
        print(f"vm: console: {line}", file=sys.stderr)


def report(chosen, box):
    parts = [f"Linux {chosen.kernel}"]
    if box.up_s is not None:
        parts.append(f"up after {box.up_s:.1f} s")
    if box.first_output is not None:
        parts.append(f"first output after {box.first_output - BEGIN:.1f} s")
    parts += [f"all of it {time.monotonic() - BEGIN:.1f} s", f"{box.retries} retries"]
    guest.say(", ".join(parts))


def main():
    def stop(number, _):
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    return run(options())


if __name__ == "__main__":
    sys.exit(main())
