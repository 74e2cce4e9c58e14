# SPDX-License-Identifier: Apache-2.0
"""./dev image: that all in it runs, from a root that cannot be written to; that it has what the driver starts, and no more;
that another checkout makes the same bytes."""
import gzip
import io
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

TOP = pathlib.Path(__file__).parents[2]
ARCHES = {'x86_64': 'amd64', 'aarch64': 'arm64'}
EPOCH = '1700000000'
SOURCES = ('src', 'bpf', 'proto', 'scripts', 'tests', 'bench', 'meson.build', 'LICENSE')
VERSIONS = {  # how each program is made to say something and end well
    'ringvol': '--version', 'mke2fs': '-V', 'mkfs.ext4': '-V', 'e2fsck': '-V', 'resize2fs': None, 'mkfs.xfs': '-V',
    'xfs_repair': '-V', 'mkfs.btrfs': '--version', 'btrfs': '--version', 'btrfstune': '--help', 'tar': '--version',
    'pdata_tools': None, 'thin_check': '-V', 'thin_repair': '-V', 'thin_dump': '-V'}
# In a mount namespace: the image as a root that cannot be written to, with what the chart gives the driver.
CONTAINER = '''
set -e
root=$1
shift
mount --make-rprivate /
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/var/lib"
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
'''


def build(tree, output, *more):
    done = subprocess.run(['bash', tree / 'scripts/image.sh', '-o', output, *more], capture_output=True, text=True, check=False,
                          env=os.environ | {'SOURCE_DATE_EPOCH': EPOCH})
    if done.returncode == 77:
        raise unittest.SkipTest('packages cannot be downloaded: ' + done.stderr.strip().splitlines()[-1])
    if done.returncode != 0:
        raise AssertionError(done.stderr)


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if platform.machine() not in ARCHES:
            raise unittest.SkipTest(f'no image for {platform.machine()}')
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        cls.archive = cls.scratch / 'ringvol.tar'
        build(TOP, cls.archive)
        cls.root = cls.scratch / 'root'
        with tarfile.open(cls.archive) as outer:
            def blob(digest):
                return outer.extractfile('blobs/' + digest.replace(':', '/')).read()
            index = json.load(outer.extractfile('index.json'))
            manifest = json.loads(blob(index['manifests'][0]['digest']))
            cls.config = json.loads(blob(manifest['config']['digest']))
            with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(manifest['layers'][0]['digest'])))) as layer:
                cls.members = {member.name: member for member in layer.getmembers()}
                layer.extractall(cls.root)
        cls.name = index['manifests'][0]['annotations']['io.containerd.image.name']

    def programs(self):
        return {os.path.basename(name) for name in self.members if re.match(r'usr/s?bin/', name)}

    def contained(self, *argv):
        if os.geteuid() != 0:
            self.skipTest('only root can change the root directory')
        return subprocess.run(['unshare', '--mount', 'bash', '-c', CONTAINER, 'bash', self.root, *argv],
                              capture_output=True, text=True, check=False, env={'PATH': '/usr/sbin:/usr/bin'})

    def test_every_program_runs(self):
        self.assertEqual(self.programs(), set(VERSIONS))
        for program, argument in VERSIONS.items():
            done = self.contained(program, *([argument] if argument else []))
            self.assertEqual(done.returncode, 0 if argument else 1, f'{program}: {done.stderr}')
            self.assertRegex(done.stdout + done.stderr, r'\d+\.\d+|[Uu]sage', program)

    def test_tools_make_file_systems(self):
        """Not just their versions: mkfs needs its configuration, and btrfs a library that nothing names."""
        for program, more in {'mkfs.ext4': ['-q', '-F'], 'mkfs.xfs': ['-q'], 'mkfs.btrfs': ['-q']}.items():
            image = self.root / 'dev/shm' / f'ringvol-{os.getpid()}'
            path = '/dev/shm/' + image.name  # the host's
            with open(path, 'wb') as file:
                self.addCleanup(os.unlink, path)
                file.truncate(320 << 20)
            done = self.contained(program, *more, path)
            self.assertEqual(done.returncode, 0, f'{program}: {done.stderr}')
            kind = subprocess.run(['blkid', '-p', '-o', 'value', '-s', 'TYPE', path], capture_output=True, text=True, check=True)
            self.assertEqual('mkfs.' + kind.stdout.strip(), program)
            os.truncate(path, 0)
            self.doCleanups()

    def test_doctor_finds_its_tools(self):
        done = self.contained('ringvol', 'doctor', '--json')
        found = {item['check']: item for item in json.loads(done.stdout)['checks']}
        for tools in ('ext4 tools', 'xfs tools', 'btrfs tools', 'thin tools'):
            self.assertEqual(found[tools]['verdict'], 'ok', found[tools])

    def test_has_what_the_driver_starts(self):
        started = set()
        for path in (TOP / 'src').rglob('*.c'):
            text = path.read_text(encoding='utf-8')
            started |= set(re.findall(r'\bargs_add\(\w+, "([a-z][\w.]*)"\)|\bargv(?:\[0\] = |\s*= \{)"([\w.]+)"', text))
        started = {one or other for one, other in started}
        self.assertIn('mkfs.ext4', started)
        self.assertIn('btrfstune', started)
        self.assertLessEqual(started, self.programs())

    def test_has_what_the_driver_opens(self):
        opened = set()
        for path in (TOP / 'src').rglob('*.c'):
            opened |= set(re.findall(r'"(lib\w+\.so\.\d+)"', path.read_text(encoding='utf-8')))
        self.assertIn('libssl.so.3', opened)
        self.assertLessEqual(opened | {'libcrypto.so.3'}, {os.path.basename(name) for name in self.members})

    def test_nothing_else(self):
        allowed = re.compile(r'usr/(s?bin|lib|lib64|share/doc|share/common-licenses)(/|$)|usr$|usr/share$|etc(/mke2fs\.conf)?$|'
                             r'(bin|sbin|lib|lib64|dev|proc|sys|run|tmp|var|var/lib)$')
        self.assertEqual([name for name in self.members if not allowed.match(name)], [])
        for member in self.members.values():
            self.assertFalse(member.isreg() and member.mode & 0o6022, f'{member.name}: {member.mode:o}')
        self.assertLess(self.archive.stat().st_size, 10 << 20)

    def test_licences(self):
        packages = (self.root / 'usr/share/doc/packages').read_text(encoding='utf-8').splitlines()
        self.assertGreater(len(packages), 15)
        for line in packages:
            self.assertIn(f'usr/share/doc/{line.split()[0]}/copyright', self.members)
        self.assertIn('usr/share/doc/ringvol/copyright', self.members)

    def test_config(self):
        version = re.search(r"version: '(.+)'", (TOP / 'meson.build').read_text(encoding='utf-8')).group(1)
        self.assertEqual(self.name, f'ringvol.dev/ringvol:{version}')
        self.assertEqual(self.config['config']['Entrypoint'], ['/usr/bin/ringvol'])
        self.assertEqual(self.config['architecture'], ARCHES[platform.machine()])
        self.assertEqual(self.config['config']['Labels']['org.opencontainers.image.version'], version)

    def test_another_checkout_makes_the_same(self):
        """Without git, in another directory, built from nothing; the packages are those that were fetched."""
        twin = self.scratch / 'somewhere-else/twin'
        twin.mkdir(parents=True)
        for name in SOURCES:
            if (TOP / name).is_dir():
                shutil.copytree(TOP / name, twin / name, symlinks=True, ignore=shutil.ignore_patterns('e2e', '__pycache__'))
            else:
                shutil.copy(TOP / name, twin / name)
        (twin / '.cache').symlink_to(TOP / '.cache')
        build(twin, self.scratch / 'twin.tar')
        for one, other in zip(self.digests(self.archive), self.digests(self.scratch / 'twin.tar')):
            self.assertEqual(one, other)

    @staticmethod
    def digests(archive):
        """The layer's. The configuration has the commit's name, which a copy without git does not know."""
        with tarfile.open(archive) as tar:
            return json.load(tar.extractfile('manifest.json'))[0]['Layers']

    def test_another_architecture(self):
        """Where the cross compiler is: all programs are of that machine, and start where qemu can run them."""
        if platform.machine() != 'x86_64' or not shutil.which('aarch64-linux-gnu-gcc'):
            self.skipTest('no aarch64-linux-gnu-gcc; ./dev image --arch arm64 installs it')
        archive = self.scratch / 'arm64.tar'
        build(TOP, archive, '--arch', 'arm64')
        with tarfile.open(archive) as tar:
            platforms = [image['platform'] for image in json.load(tar.extractfile('index.json'))['manifests']]
        self.assertEqual(platforms, [{'architecture': 'arm64', 'os': 'linux', 'variant': 'v8'}])
        root = TOP / 'build/image/arm64/root'
        programs = [path for path in root.rglob('*') if path.is_file() and path.read_bytes()[:4] == b'\x7fELF']
        self.assertGreater(len(programs), len(VERSIONS))
        for path in programs:
            self.assertEqual(path.read_bytes()[18:20], b'\xb7\x00', path)  # EM_AARCH64
        qemu = shutil.which('qemu-aarch64-static')
        if not qemu:
            return
        for program, argument in VERSIONS.items():
            path = next(path for path in (root / 'usr/bin' / program, root / 'usr/sbin' / program) if path.exists())
            done = subprocess.run([qemu, '-L', root, path, *([argument] if argument else [])], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 0 if argument else 1, f'{program}: {done.stderr}')

    def test_options(self):
        for wrong in (['--arch', 'vax'], ['--arch'], ['--no-such-option', 'x']):
            done = subprocess.run(['bash', TOP / 'scripts/image.sh', *wrong], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, wrong)
            self.assertIn('usage', done.stderr)


if __name__ == '__main__':
    unittest.main()
