# SPDX-License-Identifier: Apache-2.0
"""./dev valgrind: what is in valgrind's logs is seen, however much it is."""
import pathlib
import re
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / 'scripts' / 'valgrind.sh'
FINDING = '==1== Invalid read of size 8\n==1==    at 0x1234: f (x.c:1)\n'


class Valgrind(unittest.TestCase):
    def check(self, **logs):
        """The script's check() of a test that passed under a valgrind that has left these logs."""
        functions = re.findall(r'^\w+\(\) \{.*?^\}$', SCRIPT.read_text(), re.M | re.S)
        with tempfile.TemporaryDirectory() as directory:
            for name, text in logs.items():
                pathlib.Path(directory, f't.{name}.log').write_text(text)
            run = subprocess.run(
                ['bash', '-c', '\n'.join(['set -euo pipefail', *functions, 'as_root() { :; }', f'logs={directory}', 'check t'])],
                capture_output=True, text=True)
        return run.stdout.split()[0], run.returncode

    def test_nothing_found(self):
        self.assertEqual(self.check(p1='', p2=''), ('ok', 0))

    def test_found(self):
        self.assertEqual(self.check(p1='', p2=FINDING), ('FAILED', 1))

    def test_much_found(self):
        # More than a pipe holds: a reader that leaves at the first is not to end the writer.
        self.assertEqual(self.check(p1=FINDING * 20000), ('FAILED', 1))

    def test_no_log(self):
        self.assertEqual(self.check(), ('FAILED', 1))
