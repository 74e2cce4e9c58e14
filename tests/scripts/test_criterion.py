# SPDX-License-Identifier: Apache-2.0
"""What ./dev test makes of a criterion program that ends with a report of the sanitizer."""
import importlib.util
import pathlib
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / 'scripts/run-criterion.py'
SPEC = importlib.util.spec_from_file_location('run_criterion', SCRIPT)
RUN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RUN)

HEAD = '[====] Synthesis: Tested: 96 | Passing: 96 | Failing: 0 | Crashing: 0 \n\n==1==ERROR: LeakSanitizer: detected memory leaks\n\n'
CRITERION = '''Direct leak of 48 byte(s) in 1 object(s) allocated from:
    #0 0x7fcda64b83b7 in __interceptor_calloc ../../libsanitizer/asan/asan_malloc_linux.cpp:77
    #1 0x7fcda6332332  (/lib/x86_64-linux-gnu/libcriterion.so.3+0x1a332)

'''
OURS = '''Direct leak of 8 byte(s) in 1 object(s) allocated from:
    #0 0x7fcda64b83b7 in __interceptor_calloc ../../libsanitizer/asan/asan_malloc_linux.cpp:77
    #1 0x55d1 in arena_new ../src/base/arena.c:20
    #2 0x7fcda6332332  (/lib/x86_64-linux-gnu/libcriterion.so.3+0x1a332)

'''


class Leaks(unittest.TestCase):
    def test_criterion_alone(self):
        self.assertTrue(RUN.leaks_of_criterion_alone(HEAD + CRITERION))

    def test_ours(self):
        self.assertFalse(RUN.leaks_of_criterion_alone(HEAD + OURS))
        self.assertFalse(RUN.leaks_of_criterion_alone(HEAD + CRITERION + OURS))

    def test_something_else_as_well(self):
        self.assertFalse(RUN.leaks_of_criterion_alone('==1==ERROR: AddressSanitizer: heap-use-after-free\n' + HEAD + CRITERION))
        self.assertFalse(RUN.leaks_of_criterion_alone('x.c:1:2: runtime error: null pointer\n' + HEAD + CRITERION))

    def test_nothing(self):
        self.assertFalse(RUN.leaks_of_criterion_alone('killed\n'))
        self.assertFalse(RUN.leaks_of_criterion_alone(HEAD))


if __name__ == '__main__':
    unittest.main()
