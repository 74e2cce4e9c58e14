# SPDX-License-Identifier: Apache-2.0
"""./dev mutate: what of a file it may change, and what it says of a change that a test notices, misses, or hangs on."""
import contextlib
import importlib.util
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location('mutate', TOP / 'scripts' / 'mutate.py')
mutate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutate)

SOURCE = '''\
/* if (a == b) */
#define ONE(x) \\
	x == 1
static int table[] = {1, 2};
struct s {
	int a : 3;
};
int f(int a)
{
	int b = 3; // not this: a == 3
	/* nor
	 * a = 4; */
#if A == 2
#endif
	puts("a == 5");
	if (a == 6)
		return -EIO;
	while (a < b && b > a) {
		a++;
		b = g(a,
			b);
	}
	b = -1;
	return 0;
}
int g(int a, int b);
'''
SAID = {
    15: {';'},
    16: {'if (a != 6)', 'if (a == 7)', 'if (!(a == 6))'},
    17: {'return 0;'},
    18: {'while (a >= b && b > a) {', 'while (a < b && b <= a) {', 'while (a <= b && b > a) {', 'while (a < b && b >= a) {',
         'while (a < b || b > a) {'},
    19: {';'},
    23: {';'},
    24: {'return -5;', 'return 1;'},
}

# One function for each way in which a change of it may end.
WORLD = {
    'meson.build': '''project('world', 'c')
l = static_library('l', 'src/noticed.c', 'src/missed.c', 'src/hangs.c', 'src/wrong.c', 'src/same.c', 'src/nobody.c', c_args: '-O2')
test('world', executable('test_world', 'test.c', link_with: l), suite: 'unit', timeout: 2)
''',
    'test.c': '''#include <unistd.h>
int noticed(void), missed(void), hangs(void), wrong(void), nobody(void);
int main(int argc, char **argv) { if (!argv[0] && argc) return nobody(); missed(); wrong(); if (hangs()) { if (fork() == 0) setsid(); pause(); } return noticed(); }
''',
    'src/noticed.c': 'int noticed(void)\n{\n\treturn 0;\n}\n',
    'src/missed.c': 'int missed(void)\n{\n\treturn 0;\n}\n',
    'src/nobody.c': 'int nobody(void)\n{\n\treturn 0;\n}\n',
    'src/hangs.c': 'int hangs(void)\n{\n\treturn 0;\n}\n',
    'src/same.c': 'int same(int a, int b)\n{\n\tb = a;\n\treturn a;\n}\n',
    'src/wrong.c': '#define ONE 1\nint wrong(void)\n{\n\treturn sizeof(char[sizeof(char) == ONE ? ONE : -ONE]);\n}\n',
}


class Mutate(unittest.TestCase):
    def test_what_may_change(self):
        said = {}
        for line in mutate.mutants(SOURCE):
            for mutant in line:
                after = mutate.changed(SOURCE, mutant).split('\n')
                said.setdefault(mutant[0] + 1, set()).add(after[mutant[0]].strip())
                self.assertEqual([a == b for a, b in zip(after, SOURCE.split('\n'))].count(False), 1)
        self.assertEqual(said, SAID)

    def test_every_line_that_may_change_is_in_a_function(self):
        for path in (TOP / 'src').rglob('*.c'):
            for line in mutate.mutants(path.read_text()):
                self.assertTrue(path.read_text().split('\n')[line[0][0]].startswith('\t'), f'{path}:{line[0][0] + 1}')

    def test_what_is_said(self):
        with tempfile.TemporaryDirectory() as top:
            for name, text in WORLD.items():
                path = pathlib.Path(top, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            subprocess.run(['git', 'init', '-q', top], check=True)
            # A process of its own: it kills what is left of its tests.
            out = subprocess.run([sys.executable, '-c', f'import sys; sys.path.insert(0, {str(TOP / "scripts")!r}); import mutate, pathlib;'
                                  f'mutate.main(["--seed", "1"], pathlib.Path({top!r}))'],
                                 check=True, capture_output=True, text=True, timeout=120).stdout
            for name, text in WORLD.items():
                self.assertEqual(pathlib.Path(top, name).read_text(), text)
        self.assertIn('seed 1:', out)
        for name, verdict in {'noticed': 'noticed by world\n', 'missed': 'NOT NOTICED\n', 'hangs': 'noticed by world, which hangs\n',
                              'nobody': 'NOT NOTICED: no test runs the line\n'}.items():
            self.assertRegex(out, rf'src/{name}\.c:3: .*return 0;  ->  return (-5|1);\n\t{verdict}')
        self.assertEqual(subprocess.run(['pgrep', '-x', 'test_world'], check=False, capture_output=True).stdout, b'')
        self.assertTrue(out.endswith('4 mutants: 2 noticed, 2 not noticed; 1 more did not compile, 1 made the same machine code\n'), out)

    def test_the_body_of_a_line(self):
        lines = SOURCE.split('\n')
        self.assertEqual(mutate.function_of(lines, 16), range(10, 25))

    def test_a_file_that_is_not_there(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            mutate.arguments(['src/nothing.c'], TOP)


if __name__ == '__main__':
    unittest.main()
