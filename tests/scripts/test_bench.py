# SPDX-License-Identifier: Apache-2.0
"""What writes docs/benchmarks.md: whatever a group of benchmarks is called, its rows get onto the page."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).parents[2] / 'bench'


def groups():
    table = (BENCH / 'main.go').read_text().split('var groups = []group{')[1].split('\n}')[0]
    return re.findall(r'^\t\{"([\w-]+)", \w+\},$', table, re.M)


class Report(unittest.TestCase):
    def report(self, names):
        with tempfile.TemporaryDirectory() as name:
            results = pathlib.Path(name) / 'results.json'
            rows = [{'group': n, 'what': f'measured by {n}', 'unit': 'us', 'ours': 1.5, 'bar': '<= 2', 'met': True} for n in names]
            results.write_text(json.dumps({'machine': {}, 'load': {n: '0 to 1' for n in names}, 'rows': rows}))
            subprocess.run([sys.executable, BENCH / 'report.py', results, name], check=True, capture_output=True, text=True)
            return (pathlib.Path(name) / 'benchmarks.md').read_text()

    def test_every_group_has_a_title(self):
        titles = re.findall(r'^    "([\w-]+)": "', (BENCH / 'report.py').read_text(), re.M)
        self.assertCountEqual(titles, groups())

    def test_every_group_is_on_the_page(self):
        names = groups()
        self.assertGreater(len(names), 20)
        page = self.report(names)
        for n in names:
            self.assertIn(f'| measured by {n} |', page)
            self.assertIn(f'| load average, {n} | 0 to 1 |', page)

    def test_a_group_that_is_no_more(self):
        self.assertIn('| load average, gone | 0 to 1 |', self.report(['memory', 'gone']))


if __name__ == '__main__':
    unittest.main()
