# SPDX-License-Identifier: Apache-2.0
"""The archives of the fuzzers' inputs: nothing is lost, the same inputs make the same bytes, each target has some."""
import importlib.util
import io
import os
import pathlib
import tarfile
import tempfile
import unittest

TOP = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location('corpus', TOP / 'scripts' / 'fuzz-corpus.py')
corpus = importlib.util.module_from_spec(spec)
spec.loader.exec_module(corpus)


def seeds():
    found = importlib.util.spec_from_file_location('seeds', TOP / 'tests' / 'fuzz' / 'seeds.py')
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Seeds(unittest.TestCase):
    def test_every_option_has_a_good_value(self):
        made = seeds()
        self.assertEqual(made.serve_flags(), list(made.SERVE_VALUES),
                         'tests/fuzz/seeds.py: SERVE_VALUES lacks an option of ringvol serve, or has another order')


class Corpus(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = pathlib.Path(directory.name)

    def put(self, **files):
        (self.dir / 'target').mkdir(exist_ok=True)
        for name, data in files.items():
            (self.dir / 'target' / name).write_bytes(data)

    def test_packed_and_unpacked(self):
        self.put(a=b'', b=bytes(range(256)))
        corpus.pack(self.dir, 'target')
        self.assertFalse((self.dir / 'target').exists())
        corpus.unpack(self.dir, 'target', self.dir / 'out')
        self.assertEqual({p.name: p.read_bytes() for p in (self.dir / 'out').iterdir()}, {'a': b'', 'b': bytes(range(256))})

    def test_same_bytes_whatever_the_files_look_like(self):
        self.put(b=b'2', a=b'1')
        corpus.pack(self.dir, 'target')
        first = (self.dir / 'target.tar.gz').read_bytes()
        (self.dir / 'target.tar.gz').unlink()
        self.put(a=b'1', b=b'2')
        os.utime(self.dir / 'target' / 'a', (1, 1))
        os.chmod(self.dir / 'target' / 'b', 0o600)
        corpus.pack(self.dir, 'target')
        self.assertEqual((self.dir / 'target.tar.gz').read_bytes(), first)

    def test_a_file_beside_the_archive_joins_it(self):
        self.put(a=b'old', b=b'2')
        corpus.pack(self.dir, 'target')
        self.put(a=b'new', c=b'3')
        self.assertEqual(corpus.inputs(self.dir, 'target'), {'a': b'new', 'b': b'2', 'c': b'3'})
        corpus.pack(self.dir, 'target')
        self.assertEqual(corpus.inputs(self.dir, 'target'), {'a': b'new', 'b': b'2', 'c': b'3'})

    def test_an_archive_names_plain_files_alone(self):
        for name, kind in (('../a', tarfile.REGTYPE), ('d', tarfile.DIRTYPE), ('l', tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            with tarfile.open(self.dir / 'target.tar.gz', 'w:gz') as tar:
                tar.addfile(member, io.BytesIO())
            with self.assertRaises(ValueError):
                corpus.inputs(self.dir, 'target')

    def test_too_large(self):
        self.put(noise=os.urandom(corpus.ARCHIVE_BYTES_MAX + 1))
        with self.assertRaises(ValueError):
            corpus.pack(self.dir, 'target')
        self.assertTrue((self.dir / 'target' / 'noise').exists())

    def test_no_target_of_that_name(self):
        with self.assertRaises(ValueError):
            corpus.unpack(self.dir, 'target', self.dir / 'out')

    def test_each_fuzz_target_has_inputs(self):
        targets = [path.stem.removeprefix('fuzz_') for path in (TOP / 'tests' / 'fuzz').glob('fuzz_*.c')]
        self.assertGreater(len(targets), 0)
        for target in targets:
            self.assertGreater(len(corpus.inputs(corpus.CORPUS, target)), 0, target)


if __name__ == '__main__':
    unittest.main()
