# SPDX-License-Identifier: Apache-2.0
"""Gets Debian's tlshd with the libraries that it needs, for guests: tlshd.py TAR makes the archive, and exits with 77 where it
cannot be had. It is of a newer Debian than the guest may be, so it comes with its own ld.so, C library and all; nothing is installed
on this machine. It is fetched as kernels are (kernel.py)."""
import glob
import os
import re
import shutil
import subprocess
import sys

import kernel

SOURCES = (f"{kernel.MIRROR}/debian trixie", f"{kernel.MIRROR}/debian-security trixie-security")


def make(target):
    target = os.path.abspath(target)
    work = target + ".new"
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(os.path.join(work, "root"))
    try:
        env = kernel.open_archive(os.path.join(work, "apt"), SOURCES)
        text = kernel.run("apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
                          "--no-replaces", "--no-enhances", "ktls-utils", env=env)
        names = sorted(set(re.findall(r"^([a-z0-9][^\s:]*)$", text, re.MULTILINE)))
        kernel.run("apt-get", "-q", "download", *names, cwd=work, env=env)
        for package in glob.glob(work + "/*.deb"):
            kernel.run("dpkg-deb", "-x", package, os.path.join(work, "root"))
        root = os.path.join(work, "root")
        kernel.run("tar", "-cf", target + ".tar", "-C", root, *[
            name for name in ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/sbin/tlshd") if os.path.exists(f"{root}/{name}")])
        os.rename(target + ".tar", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    if not os.path.exists(sys.argv[1]):
        try:
            make(sys.argv[1])
        except (kernel.Unavailable, subprocess.SubprocessError, OSError) as error:
            print(f"vm: no tlshd for the guest: {error}", file=sys.stderr)
            sys.exit(77)
