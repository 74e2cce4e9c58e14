# SPDX-License-Identifier: Apache-2.0
"""Whether the runner that ./dev valgrind preloads (tests/forked.c) tells what becomes of criterion's tests."""
import os
import pathlib
import subprocess
import tempfile
import unittest

TOP = pathlib.Path(__file__).parents[2]
RUNNER = TOP / 'build/tests/libforked.so'
PROGRAM = r'''
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
static int ready;
static void setup(void) { ready = 1; }
static void teardown(void) { puts("taken down"); }
TestSuite(kinds, .init = setup, .fini = teardown);
Test(kinds, passes) { cr_assert(ready); }
Test(kinds, is_apart) { cr_assert(ready == 1); ready = 2; }
Test(kinds, fails) { cr_assert_eq(ready, 7, "seven"); puts("never said"); }
Test(kinds, goes_on) { cr_expect_eq(ready, 8, "eight"); puts("said"); }
Test(kinds, skips) { cr_skip_test("no %s", "disk"); }
Test(kinds, aborts, .signal = SIGABRT) { abort(); }
Test(kinds, crashes) { abort(); }
Test(kinds, leaves) { exit(3); }
'''
GOOD = {'passes', 'is_apart', 'skips', 'aborts'}


@unittest.skipUnless(RUNNER.exists(), 'build/tests/libforked.so is not built')
class Forked(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.program = os.path.join(cls.dir.name, 'program')
        source = cls.program + '.c'
        pathlib.Path(source).write_text('#include <stdio.h>' + PROGRAM, encoding='utf-8')
        subprocess.run(['cc', '-o', cls.program, source, '-lcriterion'], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def run_it(self, *args):
        return subprocess.run([self.program, *args], capture_output=True, text=True, check=False,
                              env=dict(os.environ, LD_PRELOAD=str(RUNNER)))

    def test_each_end_is_told(self):
        run = self.run_it()
        self.assertEqual(run.returncode, 1)
        ends = {line.split('kinds::')[1].split(':')[0].split(' ')[0]: line.startswith('ok ')
                for line in run.stdout.splitlines() if 'kinds::' in line}
        self.assertEqual({name for name, good in ends.items() if good}, GOOD)
        self.assertEqual(set(ends) - GOOD, {'fails', 'goes_on', 'crashes', 'leaves'})
        self.assertIn('ok - kinds::skips # SKIP', run.stdout)
        self.assertIn('8 run, 4 failed', run.stdout)

    def test_an_assertion_ends_its_test_and_an_expectation_does_not(self):
        run = self.run_it('--filter', 'kinds/fails')
        self.assertIn('seven', run.stdout)
        self.assertNotIn('never said', run.stdout)
        self.assertIn('taken down', run.stdout)
        run = self.run_it('--filter', 'kinds/goes_on')
        self.assertIn('eight', run.stdout)
        self.assertIn('said', run.stdout)

    def test_patterns(self):
        run = self.run_it('--filter', 'kinds/!(fails|goes_on|crashes|leaves)')
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (0, '4 run, 0 failed'))
        run = self.run_it('--filter', 'others/*')
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (1, '0 run, 0 failed'))


if __name__ == '__main__':
    unittest.main()
