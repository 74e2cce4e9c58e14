#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills a directory with headers and libraries of another architecture, to build against. They come out of the
packages given and the libraries that those depend on; the C library is the cross compiler's own."""
import argparse
import os
import pathlib
import re
import shutil
import sys

import root

LIBRARY = re.compile(r'^(lib|zlib)')
COMPILERS = re.compile(r'^(libc6|libgcc|linux-libc)')


def closure(apt, packages):
    """The packages and, of what they depend on, the libraries. Of alternatives the first."""
    found, todo = set(), list(packages)
    while todo:
        package = todo.pop()
        if package in found:
            continue
        found.add(package)
        for line in root.run('apt-cache', *apt.options, 'show', '--no-all-versions', package).splitlines():
            if line.startswith(('Depends: ', 'Pre-Depends: ')):
                names = [part.split('|')[0].split()[0].split(':')[0] for part in line.split(': ', 1)[1].split(',')]
                todo += [name for name in names if LIBRARY.match(name) and not COMPILERS.match(name)]
    return sorted(found)


def place(unpacked, directory):
    """Copies a package's files; links that begin at the root are made to stay below the directory."""
    for source in sorted(unpacked.rglob('*')):
        path = root.merged(str(source.relative_to(unpacked)))
        target = directory / path
        if source.is_symlink():
            aim = os.readlink(source)
            if aim.startswith('/'):
                aim = os.path.relpath('/' + root.merged(aim), '/' + os.path.dirname(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(aim)
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0], allow_abbrev=False)
    parser.add_argument('directory', type=pathlib.Path, help='replaced')
    parser.add_argument('--cache', type=pathlib.Path, required=True)
    parser.add_argument('--arch', required=True)
    parser.add_argument('packages', nargs='+')
    options = parser.parse_args()
    try:
        apt = root.Apt(options.cache, options.arch)
        apt.update()
        shutil.rmtree(options.directory, ignore_errors=True)
        for package in closure(apt, options.packages):
            place(apt.unpack(package)[0], options.directory)
        apt.remember()
    except (root.Failed, OSError) as error:
        print(f'sysroot.py: {error}', file=sys.stderr)
        return root.NO_PACKAGES if isinstance(error, root.Unreachable) else 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
