# SPDX-License-Identifier: Apache-2.0
"""What ./dev test does with its time. It runs in a tree of its own that has nothing but the scripts."""
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TOP = pathlib.Path(__file__).parents[2]


class Lanes(unittest.TestCase):
    def run_it(self, *args):
        with tempfile.TemporaryDirectory() as top:
            shutil.copytree(TOP / 'scripts', pathlib.Path(top) / 'scripts')
            return subprocess.run(['bash', 'scripts/test.sh', *args], cwd=top, capture_output=True, text=True, check=False)

    def test_lanes_that_would_begin_too_late_are_skipped(self):
        run = self.run_it('--within', '0', 'unit', 'proto')
        self.assertEqual(run.stdout.splitlines()[-1], '0 passed, 0 failed, 2 skipped')
        self.assertIn('no time was left', run.stdout)
        self.assertIn('./dev test proto', run.stdout)

    def test_a_limit_is_a_number(self):
        run = self.run_it('--within', 'soon', 'unit')
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("'soon' is no number of seconds", run.stderr)

    def test_lanes_that_are_not_known_are_refused(self):
        run = self.run_it('wires')
        self.assertEqual(run.returncode, 2)
        self.assertIn("no lane 'wires'", run.stderr)


if __name__ == '__main__':
    unittest.main()
