# SPDX-License-Identifier: Apache-2.0
"""scripts/image/oci.py: what is in the archive, that it is reproducible, and what it refuses."""
import gzip
import hashlib
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

OCI = pathlib.Path(__file__).parents[2] / 'scripts/image/oci.py'
NAME = 'example.org/some/thing:1.2'


class Archive:
    """An archive read back, every digest and size compared."""

    def __init__(self, path):
        with tarfile.open(path) as tar:
            self.files = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
            self.members = tar.getmembers()
        self.index = json.loads(self.files['index.json'])
        self.descriptor = self.index['manifests'][0]
        self.manifest = json.loads(self.blob(self.descriptor))
        self.config = json.loads(self.blob(self.manifest['config']))
        self.layer = self.manifest['layers'][0]

    def blob(self, descriptor):
        algorithm, digest = descriptor['digest'].split(':')
        data = self.files[f'blobs/{algorithm}/{digest}']
        assert hashlib.new(algorithm, data).hexdigest() == digest
        assert len(data) == descriptor['size']
        return data

    def unpacked(self):
        data = self.blob(self.layer)
        if self.layer['mediaType'].endswith('+gzip'):
            data = gzip.decompress(data)
        assert self.config['rootfs']['diff_ids'] == ['sha256:' + hashlib.sha256(data).hexdigest()]
        return tarfile.open(fileobj=io.BytesIO(data))


class Pack(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        self.root = self.scratch / 'root'
        self.fill(self.root)

    def fill(self, root):
        (root / 'bin').mkdir(parents=True)
        (root / 'bin/tool').write_bytes(b'#!tool\n')
        (root / 'bin/tool').chmod(0o755)
        (root / 'bin/other-name').hardlink_to(root / 'bin/tool')
        (root / 'bin/link').symlink_to('tool')
        (root / 'bin-').mkdir()
        (root / 'etc').mkdir(mode=0o750)
        (root / 'etc/ümlaut').write_text('x')

    def pack(self, *more, root=None, output='image.tar', name=NAME):
        output = self.scratch / output
        done = subprocess.run([sys.executable, OCI, '--root', root or self.root, '--name', name, '-o', output, *more],
                              capture_output=True, text=True, check=False)
        return done, output

    def packed(self, *more, **keys):
        done, output = self.pack(*more, **keys)
        self.assertEqual(done.returncode, 0, done.stderr)
        return Archive(output)

    def test_layer_holds_the_directory(self):
        with self.packed().unpacked() as tar:
            members = {member.name: member for member in tar.getmembers()}
            self.assertEqual(list(members), ['bin', 'bin/link', 'bin/other-name', 'bin/tool', 'bin-', 'etc', 'etc/ümlaut'])
            self.assertEqual(tar.extractfile('bin/tool').read(), b'#!tool\n')
        self.assertTrue(members['bin'].isdir())
        self.assertEqual(members['bin/other-name'].mode, 0o755)
        self.assertTrue(members['bin/tool'].islnk())
        self.assertEqual(members['bin/tool'].linkname, 'bin/other-name')
        self.assertEqual((members['bin/link'].issym(), members['bin/link'].linkname), (True, 'tool'))
        self.assertEqual(members['etc'].mode, 0o750)
        for member in members.values():
            self.assertEqual((member.uid, member.gid, member.uname, member.mtime), (0, 0, '', 0))

    def test_plain_layer(self):
        archive = self.packed('--compress', 'none')
        self.assertEqual(archive.layer['mediaType'], 'application/vnd.oci.image.layer.v1.tar')
        with archive.unpacked() as tar:
            self.assertIn('bin/tool', tar.getnames())

    def test_config(self):
        archive = self.packed('--entrypoint', '/bin/tool', '--entrypoint=--verbose', '--cmd', 'serve', '--env', 'A=b=c',
                              '--label', 'org.opencontainers.image.version=1.2', '--user', '65532', '--workdir', '/etc',
                              '--epoch', '86400')
        self.assertEqual(archive.config['config'], {
            'Entrypoint': ['/bin/tool', '--verbose'], 'Cmd': ['serve'], 'Env': ['A=b=c'], 'User': '65532',
            'Labels': {'org.opencontainers.image.version': '1.2'}, 'WorkingDir': '/etc'})
        self.assertEqual(archive.config['created'], '1970-01-02T00:00:00Z')
        self.assertEqual((archive.config['architecture'], archive.config['os']), ('amd64', 'linux'))

    def test_names_for_every_importer(self):
        archive = self.packed('--arch', 'arm64')
        self.assertEqual(archive.descriptor['annotations']['io.containerd.image.name'], NAME)
        self.assertEqual(archive.descriptor['annotations']['org.opencontainers.image.ref.name'], NAME)
        self.assertEqual(archive.descriptor['platform'], {'architecture': 'arm64', 'os': 'linux', 'variant': 'v8'})
        docker = json.loads(archive.files['manifest.json'])[0]
        self.assertEqual(docker['RepoTags'], [NAME])
        self.assertEqual(archive.files[docker['Config']], archive.blob(archive.manifest['config']))
        self.assertEqual([archive.files[path] for path in docker['Layers']], [archive.blob(archive.layer)])

    def test_reproducible(self):
        twin = self.scratch / 'twin'
        self.fill(twin)
        os.utime(twin / 'bin/tool', (time.time() + 7, time.time() + 7))
        _, first = self.pack('--epoch', '1700000000')
        _, second = self.pack('--epoch', '1700000000', root=twin, output='second.tar')
        self.assertEqual(first.read_bytes(), second.read_bytes())
        (twin / 'etc').chmod(0o755)
        _, third = self.pack('--epoch', '1700000000', root=twin, output='third.tar')
        self.assertNotEqual(first.read_bytes(), third.read_bytes())

    def test_refusals(self):
        with socket.socket(socket.AF_UNIX) as listener:
            (self.scratch / 'sockets').mkdir()
            listener.bind(str(self.scratch / 'sockets/s'))
            (self.scratch / 'whiteouts').mkdir()
            (self.scratch / 'whiteouts/.wh.gone').touch()
            for why, done in {
                    'neither file, directory nor link': self.pack(root=self.scratch / 'sockets')[0],
                    'means a deletion': self.pack(root=self.scratch / 'whiteouts')[0],
                    'no directory': self.pack(root=self.scratch / 'none')[0],
                    'HOST/PATH:TAG': self.pack(name='thing:1')[0],
                    '--env X: KEY=VALUE': self.pack('--env', 'X')[0],
                    '--label =v: KEY=VALUE': self.pack('--label', '=v')[0],
            }.items():
                self.assertEqual(done.returncode, 1, why)
                self.assertIn(why, done.stderr)
        for name in ('thing', 'a/b/c:1', 'example.org/UPPER:1', 'example.org/x', 'example.org:1'):
            self.assertEqual(self.pack(name=name)[0].returncode, 1, name)
        for name in ('registry.k8s.io/sig-storage/csi-provisioner:v6.4.0', 'localhost:5000/a:b'):
            self.assertEqual(self.pack(name=name)[0].returncode, 0, name)

    def test_failure_keeps_the_older_archive(self):
        self.packed()
        before = (self.scratch / 'image.tar').read_bytes()
        (self.root / '.wh.x').touch()
        self.assertEqual(self.pack()[0].returncode, 1)
        self.assertEqual((self.scratch / 'image.tar').read_bytes(), before)
        self.assertEqual([path.name for path in self.scratch.glob('image.tar*')], ['image.tar'])


if __name__ == '__main__':
    unittest.main()
