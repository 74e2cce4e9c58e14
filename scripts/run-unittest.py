#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the Python tests of a directory and says a line for each: ok NAME, FAILED NAME: why, skipped NAME: why.
What a failed test says comes after its line, indented."""
import sys
import unittest


class Lines(unittest.TestResult):
    def name(self, test):
        return test.id().replace(':', '.').replace(' ', '_')

    def failed(self, test, error):
        text = self._exc_info_to_string(error, test).rstrip()
        print(f'FAILED {self.name(test)}: ' + text.splitlines()[-1])
        print('\t' + text.replace('\n', '\n\t'))

    def addSuccess(self, test):
        print(f'ok {self.name(test)}')

    def addSkip(self, test, reason):
        print(f'skipped {self.name(test)}: {reason}')

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.failed(test, err)

    def addError(self, test, err):
        super().addError(test, err)
        self.failed(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.failed(test, err)

    def addExpectedFailure(self, test, err):
        self.addSuccess(test)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        print(f'FAILED {self.name(test)}: it passes, though it is marked as failing')


def main():
    result = Lines()
    unittest.defaultTestLoader.discover(sys.argv[1]).run(result)
    return 0 if result.wasSuccessful() else 1


if __name__ == '__main__':
    sys.exit(main())
