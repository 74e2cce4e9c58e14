# SPDX-License-Identifier: Apache-2.0
"""The pages: what they name is there, and what they list is all there is."""
import pathlib
import re
import subprocess
import unittest

TOP = pathlib.Path(__file__).parents[2]
PAGES = sorted((TOP / 'docs').glob('*.md')) + [TOP / n for n in ('README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'CHANGELOG.md')]
# Flags of helm, kubelet and the sidecars.
OTHERS = {'--forget', '--reset-then-reuse-values', '--reuse-values', '--enable-distributed-snapshotting', '--extra-create-metadata',
          '--root-dir', '--help', '--version', '--leader-election', '--node-deployment', '--strict-topology', '--immediate-topology', '--enable-capacity',
          '--kube-api-qps', '--kube-api-burst', '--list-volumes-interval', '--set', '--type'}
ENDS = 'c|h|go|py|sh|md|proto|yaml|service|hcl|json'


def sources(*folders, ends=('.c', '.h')):
    return '\n'.join(p.read_text() for f in folders for p in sorted((TOP / f).rglob('*')) if p.suffix in ends and p.is_file())


def page(name):
    return (TOP / name).read_text()


def first_cells(text):
    """The names in backquotes that the first cells of a table's rows hold."""
    return {name for row in re.findall(r'^\| (`[^|]*)\|', text, re.M) for name in re.findall(r'`([^`]+)`', row)}


class Docs(unittest.TestCase):
    def test_links(self):
        for p in PAGES:
            for to in re.findall(r'\]\(([^)#:]+)(?:#[^)]*)?\)', p.read_text()):
                self.assertTrue((p.parent / to).exists(), f'{p.name} leads to {to}, which is not there')

    def test_files(self):
        run = subprocess.run(['git', '-C', TOP, 'ls-files', '-co', '--exclude-standard'], capture_output=True, text=True)
        if run.returncode != 0:
            self.skipTest('no git tree: ' + run.stderr)
        files = ['/' + f for f in run.stdout.split('\n')]
        for p in PAGES:
            for name in re.findall(rf'`([\w.-][\w./-]*\.(?:{ENDS}))`', p.read_text()):
                self.assertTrue(any(f.endswith('/' + name) for f in files), f'{p.name} names {name}, which is not there')
            for name in re.findall(r'`((?:bench|bpf|deploy|proto|scripts|src|tests)/[a-z0-9./_-]*)`', p.read_text()):
                self.assertTrue((TOP / name).exists(), f'{p.name} names {name}, which is not there')

    def test_counts(self):
        sections = re.findall(r'^### ([^\n]*): (\d+) files\n(.*?)(?=^##)', page('docs/architecture.md'), re.M | re.S)
        self.assertEqual(len(sections), 5)
        for title, count, text in sections:
            files = set(re.findall(r'`(\w[\w/]*\.c)`', text))
            self.assertEqual(len(files), int(count), f'{title}: {sorted(files)}')
            for name in files:
                self.assertTrue((TOP / 'src' / name).exists(), f'{title} tells of src/{name}, which is not there')

    def test_tests(self):
        known = set(re.findall(r'^func (Test\w+)', sources('tests', ends=('.go',)), re.M))
        for p in PAGES:
            for name in set(re.findall(r'\bTest[A-Z]\w+', p.read_text())) - {'TestName'}:
                self.assertIn(name, known, f'{p.name} names a test that is not there')

    def test_flags(self):
        known = set(re.findall(r'"(--[a-z][a-z-]+)"', sources('src', 'scripts', ends=('.c', '.h', '.py'))))
        for p in PAGES:
            for flag in re.findall(r'`ringvol [^`]*?(--[a-z-]+)', p.read_text()) + re.findall(r'`(--[a-z-]+)', p.read_text()):
                self.assertIn(flag, known | OTHERS, f'{p.name} names a flag that nobody has')

    def test_parameters(self):
        table = page('docs/kubernetes.md').split('### Storage classes')[1].split('###')[0]
        code = re.findall(r'^\t\{(?:OTHERS_PREFIX )?"(\w+)"', (TOP / 'src/csi/params.c').read_text(), re.M)
        self.assertEqual({n.removeprefix('csi.storage.k8s.io/') for n in first_cells(table)}, set(code))

    def test_conditions(self):
        told = first_cells(page('docs/health.md'))
        self.assertEqual(told - {'/metrics'}, set(re.findall(r'^\t\[NODE_\w+\] = "([A-Z]\w+)"', sources('src/node'), re.M)))

    def test_findings(self):
        table = page('docs/tools.md').split('## ringvol check')[1].split('| kind |')[1]
        self.assertEqual(first_cells(table), set(re.findall(r'(?<![\w])"([A-Z][a-z]+(?:[A-Z][a-z]+)*)"', '\n'.join(
            p.read_text() for p in (TOP / 'src/tools').glob('check*.c')))))

    def test_record_keys(self):
        table = page('docs/stability.md').split('### Versions and keys')[1].split('\n##')[0]
        code = re.findall(r'^\t\{"(\w+)", FIELD_', sources('src/pool'), re.M)
        self.assertEqual(first_cells(table), set(code))


if __name__ == '__main__':
    unittest.main()
