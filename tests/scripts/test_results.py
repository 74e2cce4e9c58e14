# SPDX-License-Identifier: Apache-2.0
"""What ./dev test makes of the output of Go tests: what counts as passed, and what has a second attempt."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).parents[2] / 'scripts'


def event(action, test=None, output=None):
    return {'Action': action} | ({'Test': test} if test else {}) | ({'Output': output} if output else {})


def ran(name, how, said=''):
    return [event('run', name), event('output', name, f'    x_test.go:1: {said}\n'), event(how, name)]


def ended(how):
    return [event('output', output=how.upper() + '\n'), event(how)]


class Results(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = pathlib.Path(directory.name)

    def script(self, *args):
        return subprocess.run([sys.executable, SCRIPTS / 'go-tests.py', *args], check=True, capture_output=True, text=True).stdout

    def count(self, name, *events, programs='1'):
        stream, results = self.dir / f'{name}.json', self.dir / f'{name}.tsv'
        stream.write_text(''.join(json.dumps(e) + '\n' for part in events for e in part))
        self.script('count', 'system', stream, results, programs)
        return results

    def rows(self, results):
        return {row[2]: row[1] for row in (line.split('\t') for line in results.read_text().splitlines())}

    def names(self, results):
        return self.script('names', 'system', results).split()

    def twice(self, first, second):
        first, second = self.count('first', *first), self.count('second', *second)
        self.script('merge', 'system', first, second)
        return self.rows(first)

    def test_failed_then_passed(self):
        first = ran('TestA', 'pass'), ran('TestB', 'fail', 'why'), ended('fail')
        results = self.count('x', *first)
        self.assertEqual(self.rows(results), {'TestA': 'pass', 'TestB': 'fail'})
        self.assertEqual(self.names(results), ['TestB'])
        self.assertEqual(self.twice(first, (ran('TestB', 'pass'), ended('pass'))), {'TestA': 'pass', 'TestB': 'pass'})

    def test_stopped_half_way(self):
        # The program panics at its time limit: test2json says "fail" of its own at the end of what there is.
        results = self.count('x', ran('TestA', 'pass'), [event('run', 'TestB'), event('output', 'TestB', 'panic: time\n')],
                             [event('fail')])
        self.assertEqual(self.rows(results), {'TestA': 'pass', 'TestB': 'fail', 'system': 'fail'})
        self.assertEqual(self.names(results), [])

    def test_died_between_tests(self):
        results = self.count('x', ran('TestA', 'pass'), ran('TestB', 'fail'), [event('fail')])
        self.assertEqual(self.rows(results)['system'], 'fail')
        self.assertEqual(self.names(results), [])

    def test_one_of_several_programs_died(self):
        both = ran('TestA', 'pass'), ended('pass'), [event('run', 'TestB'), event('fail', 'TestB')], [event('fail')]
        self.assertEqual(self.rows(self.count('x', *both, programs='2'))['system'], 'fail')
        self.assertNotIn('system', self.rows(self.count('y', *both[:2], ran('TestB', 'pass'), ended('pass'), programs='2')))

    def test_panic_that_test2json_lays_to_the_test(self):
        results = self.count('x', ran('TestA', 'pass'), [event('run', 'TestB'), event('fail', 'TestB')], [event('fail')])
        self.assertEqual(self.names(results), [])

    def test_failed_then_skipped(self):
        first = ran('TestA', 'pass'), ran('TestB', 'fail'), ended('fail')
        self.assertEqual(self.twice(first, (ran('TestB', 'skip'), ended('pass')))['TestB'], 'fail')

    def test_failed_then_not_run(self):
        first = ran('TestA', 'fail'), ran('TestB', 'fail'), ended('fail')
        rows = self.twice(first, (ran('TestA', 'pass'), ended('pass')))
        self.assertEqual((rows['TestA'], rows['TestB']), ('pass', 'fail'))

    def test_second_attempt_stopped(self):
        first = ran('TestA', 'fail'), ran('TestB', 'fail'), ended('fail')
        rows = self.twice(first, (ran('TestA', 'pass'), [event('run', 'TestB')], [event('fail')]))
        self.assertEqual((rows['TestA'], rows['TestB']), ('fail', 'fail'))

    def test_subtests(self):
        first = [event('run', 'TestA')], ran('TestA/x', 'fail'), ran('TestA/y', 'pass'), [event('fail', 'TestA')], ended('fail')
        second = [event('run', 'TestA')], ran('TestA/x', 'pass'), ran('TestA/y', 'skip'), [event('pass', 'TestA')], ended('pass')
        self.assertEqual(self.twice(first, second), {'TestA/x': 'pass', 'TestA/y': 'pass'})
        by_itself = [event('run', 'TestA')], ran('TestA/x', 'pass'), [event('fail', 'TestA')], ended('fail')
        self.assertEqual(self.twice(by_itself, second)['TestA'], 'pass')

    @unittest.skipUnless(os.geteuid() == 0, 'mount namespaces need root')
    def test_side_by_side(self):
        program = self.dir / 'program'
        program.write_text('''#!/bin/sh
[ "$1" != -test.list ] || { echo "TestA\nTestB\nExampleC\nok  x"; exit; }
echo "ran $*"; echo PASS
''')
        program.chmod(0o755)
        log, seconds = self.dir / 'log', self.dir / 'seconds'
        self.assertEqual(self.script('run', log, seconds, program, '-x', '-test.run=./y'), '2\n')
        self.assertEqual(sorted(log.read_text().split('PASS\n')),
                         ['', 'ran -x -test.run=./y -test.run=^TestA$/y\n', 'ran -x -test.run=./y -test.run=^TestB$/y\n'])
        self.assertEqual(set(json.loads(seconds.read_text())), {'TestA', 'TestB'})

    def test_too_many(self):
        results = self.count('x', *(ran(f'Test{i}', 'fail') for i in range(4)), ended('fail'))
        self.assertEqual(self.names(results), [])


VALGRIND = SCRIPTS / 'valgrind.sh'
FINDING = '==1== Invalid read of size 8\n==1==    at 0x1234: f (x.c:1)\n'


class Valgrind(unittest.TestCase):
    """./dev valgrind: what is in valgrind's logs is seen, however much it is."""

    def check(self, **logs):
        """The script's check() of a test that passed under a valgrind that has left these logs."""
        functions = re.findall(r'^\w+\(\) \{.*?^\}$', VALGRIND.read_text(), re.M | re.S)
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
