#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills a directory with programs of Debian packages and what they need to run, and nothing else.

Each --program PACKAGE:NAME is taken out of its package, --binary FILE=PATH is a program of our own. For
all of them the loader and the shared libraries follow, found by the names in the programs themselves, and those
that a program opens when it needs them, which --library names; which package has a library is asked of dpkg on this machine, where the same packages are installed, so the image
has the libraries of the release that it was built on. Packages are downloaded for the wanted architecture
by apt, which verifies them, with lists and a cache of its own: this machine's apt is not touched.
Licences of every package come along, and usr/share/doc/packages says which versions they were.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

MERGED = ('bin', 'sbin', 'lib', 'lib64')  # links into usr/, as in Debian
PROGRAMS = ('usr/bin', 'usr/sbin', 'bin', 'sbin')
LISTS_KEPT = 24 * 3600  # seconds until the package lists are fetched again
SUITES = {
    'debian': [('http://deb.debian.org/debian', '{codename} {codename}-updates', 'main'),
               ('http://deb.debian.org/debian-security', '{codename}-security', 'main')],
    'ubuntu': [('http://{ports}.ubuntu.com/{path}', '{codename} {codename}-updates {codename}-security', 'main universe')],
}


NO_PACKAGES = 77  # the exit status where packages cannot be had; tests are skipped then


class Failed(Exception):
    """Something is missing; the message says what to do."""


class Unreachable(Failed):
    """Packages cannot be downloaded."""


def run(*argv, error=Failed, **keys):
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **keys)
    if done.returncode != 0:
        raise error(f'{" ".join(map(str, argv))}:\n{done.stderr.strip() or done.stdout.strip()}')
    return done.stdout


def release():
    """ID and VERSION_CODENAME of this machine."""
    found = {}
    for line in pathlib.Path('/etc/os-release').read_text(encoding='utf-8').splitlines():
        key, _, value = line.partition('=')
        found[key] = value.strip('"')
    if found.get('ID') not in SUITES or 'VERSION_CODENAME' not in found:
        raise Failed('the image is made of Debian or Ubuntu packages, on a machine of that release')
    return found['ID'], found['VERSION_CODENAME']


class Apt:
    """Packages of one architecture, beside this machine's own."""

    def __init__(self, cache, arch):
        self.dir = cache.absolute()
        self.arch = arch
        self.known = {}
        for path in ('etc/apt/preferences.d', 'state/lists/partial', 'cache/archives/partial', 'debs', 'unpacked'):
            (self.dir / path).mkdir(parents=True, exist_ok=True)
        (self.dir / 'state/status').touch()
        (self.dir / 'etc/apt/sources.list').write_text(self.sources(), encoding='utf-8')
        self.options = [f'-o=Dir={self.dir}', f'-o=Dir::State={self.dir}/state', f'-o=Dir::Cache={self.dir}/cache',
                        f'-o=Dir::State::status={self.dir}/state/status', f'-o=Dir::Etc={self.dir}/etc/apt',
                        '-o=Dir::Etc::Trusted=/etc/apt/trusted.gpg', '-o=Dir::Etc::TrustedParts=/etc/apt/trusted.gpg.d',
                        f'-o=APT::Architecture={arch}', f'-o=APT::Architectures={arch}', '-o=Acquire::Languages=none',
                        '-o=Acquire::Retries=3']
        if os.geteuid() == 0:
            self.options.append('-o=APT::Sandbox::User=root')

    def sources(self):
        mine = os.environ.get('RINGVOL_IMAGE_SOURCES')
        if mine:
            return pathlib.Path(mine).read_text(encoding='utf-8')
        system, codename = release()
        ports = self.arch not in ('amd64', 'i386')
        words = {'codename': codename, 'ports': 'ports' if ports else 'archive',
                 'path': 'ubuntu-ports' if ports else 'ubuntu'}
        lines = []
        for uri, suites, components in SUITES[system]:
            for suite in suites.format(**words).split():
                lines.append(f'deb {uri.format(**words)} {suite} {components}\n')
        return ''.join(lines)

    def update(self):
        """Fetches the lists of packages, unless that was done lately. What was asked of them is kept with them."""
        known, wanted = self.dir / 'state/known.json', self.sources()
        if known.exists() and time.time() - known.stat().st_mtime < LISTS_KEPT:
            self.known = json.loads(known.read_text(encoding='utf-8'))
        if self.known.get('sources') != wanted:
            run('apt-get', *self.options, '-o=APT::Update::Error-Mode=any', 'update', error=Unreachable)
            self.known = {'sources': wanted}
            known.unlink(missing_ok=True)

    def remember(self):
        path = self.dir / 'state/known.json'
        since = path.stat().st_mtime if path.exists() else time.time()
        path.write_text(json.dumps(self.known), encoding='utf-8')
        os.utime(path, (since, since))

    def has(self, package):
        return package in self.known or bool(run('apt-cache', *self.options, 'search', '--names-only', f'^{re.escape(package)}$'))

    def newest(self, package):
        """Its version and the name of its file."""
        if package not in self.known:
            shown = run('apt-cache', *self.options, 'show', '--no-all-versions', package)
            fields = dict(line.split(': ', 1) for line in shown.splitlines() if ': ' in line and line[0] != ' ')
            version = fields['Version']
            self.known[package] = [version, f'{package}_{version.replace(":", "%3a")}_{fields["Architecture"]}']
        return self.known[package]

    def unpack(self, package):
        """The package's files, and its version."""
        version, name = self.newest(package)
        target = self.dir / 'unpacked' / name
        if not target.exists():
            run('apt-get', *self.options, 'download', package, cwd=self.dir / 'debs', error=Unreachable)
            partial = target.with_name(name + '.partial')
            shutil.rmtree(partial, ignore_errors=True)
            run('dpkg-deb', '--extract', self.dir / 'debs' / (name + '.deb'), partial)
            partial.rename(target)
        return target, version


def dynamic(path):
    """The loader that a program asks for, or None, and the libraries it needs."""
    loader, needed = None, []
    if machine(path) is None:
        return loader, needed
    environment = os.environ | {'LC_ALL': 'C'}
    for line in run('readelf', '--wide', '--dynamic', '--dyn-syms', '--program-headers', path, env=environment).splitlines():
        if '(NEEDED)' in line:
            needed.append(line.split('[')[1].rstrip(']'))
        elif 'Requesting program interpreter' in line:
            loader = line.split(': ')[1].rstrip(']')
        elif ' UND pthread_cancel@' in line or ' UND pthread_exit@' in line:
            needed.append('libgcc_s.so.1')  # which the C library opens when a thread is ended by these
    return loader, needed


def machine(path):
    """The part of an ELF file's head that says which machine it is for; None for other files."""
    if not path.is_file():
        return None
    head = path.read_bytes()[:20]
    return (head[4:6], head[18:20]) if head[:4] == b'\x7fELF' else None


def merged(path):
    """Where a package's file lies in the image: bin, sbin and lib are below usr."""
    path = path.lstrip('/')
    return 'usr/' + path if path.split('/')[0] in MERGED else path


class Root:
    def __init__(self, directory, apt):
        self.dir = directory
        self.apt = apt
        self.machine = None
        self.owned = {}
        self.packages = {}  # name -> (directory, version)
        shutil.rmtree(directory, ignore_errors=True)
        for name in MERGED:
            (directory / 'usr' / name).mkdir(parents=True)
            (directory / name).symlink_to('usr/' + name)
        # Where the kernel's and the driver's own file systems are mounted.
        for name in ('dev', 'proc', 'sys', 'run', 'tmp', 'var/lib', 'etc'):
            (directory / name).mkdir(parents=True)
        (directory / 'tmp').chmod(0o1777)

    def package(self, name):
        if name not in self.packages:
            self.packages[name] = self.apt.unpack(name)
        return self.packages[name][0]

    def place(self, source, path):
        target = self.dir / merged(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
        return target

    def add_from(self, package, wanted):
        """A program of a package by its name, or any file by its path. A link brings what it points to."""
        unpacked = self.package(package)
        path = wanted.lstrip('/')
        if '/' not in wanted:
            found = [directory + '/' + wanted for directory in PROGRAMS if os.path.lexists(unpacked / directory / wanted)]
            path = found[0] if found else path
        source = unpacked / path
        if not os.path.lexists(source):
            raise Failed(f'package {package} has no {wanted}')
        if not source.is_symlink():
            self.place(source, path)
            return
        aim = os.path.normpath(os.path.join('/', os.path.dirname(path), os.readlink(source)))
        self.add_from(package, aim)
        link = self.dir / merged(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath('/' + merged(aim), '/' + os.path.dirname(merged(path))))

    def owners(self):
        """Which packages of this machine have a library of which name."""
        if not self.owned:
            for line in run('dpkg-query', '--search', '*/lib*.so.*').splitlines():
                packages, _, path = line.partition(': ')
                self.owned.setdefault(os.path.basename(path), set()).update(
                    package.split(':')[0] for package in packages.split(', ') if '-cross' not in package)
        return self.owned

    def library(self, soname, beside=None):
        """Adds the library, from the package that has it for the machine of the programs, or has the one it is beside."""
        for name in sorted(self.owners().get(beside or soname, ())):
            if not self.apt.has(name):
                continue  # lib32gcc-s1 and the like
            unpacked, version = self.apt.unpack(name)
            for found in sorted(unpacked.rglob(soname)):
                real = found.parent / os.readlink(found) if found.is_symlink() else found
                if machine(real) == self.machine:
                    self.packages[name] = (unpacked, version)
                    # One file, under the name that it is looked for by.
                    return self.place(real, str(found.relative_to(unpacked)))
        raise Failed(f'no package of this machine has {soname} for {self.apt.arch}')

    def add_loader(self, path):
        """The loader has to be found under the very path that is in the programs."""
        placed = self.library(os.path.basename(path), beside='libc.so.6')  # its name is another on each architecture
        name = self.dir / merged(path)
        if not name.exists():
            name.symlink_to(os.path.relpath(placed, name.parent))
        return placed

    def close(self, opened):
        """Adds libraries until nothing is missing, and those that are opened."""
        have, todo = set(), [path for path in self.dir.rglob('*') if path.is_file() and not path.is_symlink()]
        self.machine = next(found for found in map(machine, todo) if found)
        todo += [self.library(soname) for soname in opened]
        have |= set(opened)
        while todo:
            loader, needed = dynamic(todo.pop())
            if loader and loader not in have:
                have |= {loader, os.path.basename(loader)}
                todo.append(self.add_loader(loader))
            for soname in needed:
                if soname not in have:
                    have.add(soname)
                    todo.append(self.library(soname))

    def add_licences(self):
        for name, (unpacked, _) in self.packages.items():
            directory = unpacked / 'usr/share/doc' / name
            if directory.is_symlink():  # to that of another package of the same source
                other = os.path.basename(os.readlink(directory))
                directory = self.apt.unpack(other)[0] / 'usr/share/doc' / other
            if not (directory / 'copyright').is_file():
                raise Failed(f'package {name} has no copyright file')
            self.place(directory / 'copyright', f'usr/share/doc/{name}/copyright')
        # What those refer to.
        base = self.apt.unpack('base-files')[0] / 'usr/share/common-licenses'
        for name in ('Apache-2.0', 'Artistic', 'BSD', 'GPL-1', 'GPL-2', 'GPL-3', 'LGPL-2', 'LGPL-2.1', 'LGPL-3'):
            self.place(base / name, f'usr/share/common-licenses/{name}')
        for name, aim in (('GPL', 'GPL-3'), ('LGPL', 'LGPL-3')):
            (self.dir / 'usr/share/common-licenses' / name).symlink_to(aim)

    def add_list(self):
        lines = [f'{name} {version}\n' for name, (_, version) in sorted(self.packages.items())]
        (self.dir / 'usr/share/doc/packages').write_text(''.join(lines), encoding='utf-8')


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0], allow_abbrev=False)
    parser.add_argument('directory', type=pathlib.Path, help='replaced')
    parser.add_argument('--cache', type=pathlib.Path, required=True)
    parser.add_argument('--arch', required=True, help="Debian's name of the architecture")
    parser.add_argument('--program', action='append', default=[], metavar='PACKAGE:NAME', help='or PACKAGE:/PATH, for a file that is no program')
    parser.add_argument('--binary', action='append', default=[], metavar='FILE=PATH', help='a file of ours')
    parser.add_argument('--library', action='append', default=[], metavar='SONAME', help='opened by a program of ours')
    return parser.parse_args(argv)


def main():
    options = parse(sys.argv[1:])
    os.umask(0o022)
    apt = None
    try:
        apt = Apt(options.cache, options.arch)
        apt.update()
        root = Root(options.directory, apt)
        for item in options.binary:
            source, _, path = item.rpartition('=')
            root.place(pathlib.Path(source), path)
        for item in options.program:
            root.add_from(*item.split(':', 1))
        root.close(options.library)
        root.add_licences()
        root.add_list()
    except (Failed, OSError) as error:
        print(f'root.py: {error}', file=sys.stderr)
        return NO_PACKAGES if isinstance(error, Unreachable) else 1
    finally:
        if apt:
            apt.remember()
    return 0


if __name__ == '__main__':
    sys.exit(main())
