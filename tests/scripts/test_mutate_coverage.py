# SPDX-License-Identifier: Apache-2.0
"""scripts/mutate_coverage.py: which lines a program has run, in children that were killed and in those that it executed, too."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(TOP / 'scripts'))
import mutate_coverage

# Two files with a static function of the same name, the second without any that is not static.
A = '''\
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static int same(int a)
{
	if (a == 1 &&
		getenv("NEVER"))
		goto out;
	a += 2;
	if (a > 1000)
		a = 4;
	return a;
out:
	return 5;
}
int killed(int a)
{
	if (fork() == 0) {
		a = same(a);
		kill(getpid(), SIGKILL);
	}
	wait(NULL);
	return a;
}
int executed(void)
{
	return 6;
}
'''
B = '''\
static int same(int a)
{
	return a + 1;
}
static int other(int a)
{
	return same(a);
}
int (*const table)(int a) = other;
'''
MAIN = '''\
#include <unistd.h>
int killed(int a), executed(void);
extern int (*const table)(int a);
__attribute__((constructor(101))) static void early(void) { executed(); }
int main(int argc, char **argv)
{
	if (argc == 1) {
		killed(1);
		execl("/proc/self/exe", argv[0], "again", NULL);
	}
	if (argc == 2)
		executed();
	return argc > 2 ? table(1) : 0;
}
'''


class Coverage(unittest.TestCase):
    def setUp(self):
        top = tempfile.TemporaryDirectory()
        self.addCleanup(top.cleanup)
        self.build = pathlib.Path(top.name, 'build')
        (self.build / 'test.p').mkdir(parents=True)
        (self.build / 'ran').mkdir()
        for name, text in {'a': A, 'b': B, 'main': MAIN}.items():
            path = self.build.parent / 'src' / f'{name}.c'
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            self.cc('-g', '-O0', '-fPIE', '-fsanitize-coverage=trace-pc', '-c', path, '-o', self.build / 'test.p' / f'src_{name}.c.o')
        self.program = self.build / 'program'
        self.cc('-O2', '-fPIE', '-c', mutate_coverage.RUNTIME, '-o', self.build / 'coverage.o')
        self.cc('-pie', self.build / 'coverage.o', *(self.build / 'test.p').iterdir(), '-o', self.program)

    @staticmethod
    def cc(*words):
        subprocess.run(['gcc', *words], check=True)

    def run_as(self, name, *words):
        subprocess.run([self.program, *words], check=False, env=os.environ | {mutate_coverage.RAN: str(self.build / 'ran' / name)})

    def test_who_runs_a_line(self):
        self.run_as('first')
        self.run_as('second', 'a', 'b')
        coverage = mutate_coverage.Coverage(self.build, self.build / 'ran', {'first': self.program, 'second': self.program, 'none': self.program})
        def who(source, line, function=()):
            return coverage.who(f'src/{source}.c', line, function)
        for line in (7, 8, 10, 11, 13, 19, 20, 21, 23):
            self.assertEqual(who('a', line), {'first'}, line)
        for line in (9, 12, 15):
            self.assertEqual(who('a', line), set(), line)
        self.assertLessEqual({'first'}, who('a', 27))
        for line in (3, 7):
            self.assertEqual(who('b', line), {'second'}, line)
        self.assertEqual(who('a', None, range(7, 16)), {'first'})
        self.assertEqual(who('a', 14, range(7, 16)), {'first'})

    def test_without_a_file_to_write_to(self):
        self.assertEqual(subprocess.run([self.program], check=False).returncode, 0)
        self.assertEqual(list((self.build / 'ran').iterdir()), [])


if __name__ == '__main__':
    unittest.main()
