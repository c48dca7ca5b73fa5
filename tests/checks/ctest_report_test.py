#!/usr/bin/env python3
"""ctest_report_test.py CTEST: of what ctest itself reports, ctest_report.py says who was skipped, and the tests in Python tell ctest."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

from ctest_report import lines

TESTS = pathlib.Path(__file__).resolve().parents[1]
PYTHON = """
import sys, unittest
sys.path.insert(0, {examples!r})
from processes import main
class Case(unittest.TestCase):
    def test_one(self): self.skipTest("no: one")
    def test_two(self): {two}
class Other(unittest.TestCase):
    @classmethod
    def setUpClass(cls): {other}
    def test_three(self): pass
main()
"""


class Report(unittest.TestCase):
    def report(self, **tests):
        """Of tests by name: a command, or Python."""
        with tempfile.TemporaryDirectory() as folder:
            text = []
            for name, command in tests.items():
                if isinstance(command, str):
                    script = pathlib.Path(folder) / f"{name}.py"
                    script.write_text(command)
                    command = [sys.executable, script]
                text.append(f"add_test({name} " + " ".join(f'"{word}"' for word in command) + ")")
                text.append(f'set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77 '
                            'SKIP_REGULAR_EXPRESSION "\\\\[  SKIPPED \\\\]")')
            (pathlib.Path(folder) / "CTestTestfile.cmake").write_text("\n".join(text))
            subprocess.run([CTEST, "--test-dir", folder, "--output-junit", f"{folder}/report.xml",
                            "--test-output-size-passed", "65536"], capture_output=True)
            return lines(f"{folder}/report.xml")

    def python(self, two="pass", other="pass"):
        return PYTHON.format(examples=str(TESTS / "examples"), two=two, other=other)

    def test_lists_passed_and_failed_tests(self):
        self.assertEqual(self.report(one=["true"], two=["false"], three=["/no/such/program"]),
                         ["passed 1", "failed two", "failed three"])

    def gtest(self, *lines, status=0):
        return f"import sys; print({chr(10).join(lines)!r}); sys.exit({status})"

    def test_a_skipped_gtest(self):
        skip = "a_test.cc:7: Skipped\nno etcd\n[  SKIPPED ] A.b (0 ms)"
        self.assertEqual(self.report(one=self.gtest("[ RUN      ] A.b", skip), two=["sh", "-c", "exit 77"]),
                         ["passed 0", "skipped one.A.b: no etcd", "skipped two"])

    def test_the_cases_of_a_suite(self):
        passed = ["[ RUN      ] A.a", "[       OK ] A.a (3 ms)", "[ RUN      ] A.b/x", "[       OK ] A.b/x (3 ms)"]
        failed = ["[ RUN      ] B/A.c/y", "[  FAILED  ] B/A.c/y, where GetParam() = 8-byte object <01> (12 ms)",
                  "[  FAILED  ] B/A.c/y, where GetParam() = 8-byte object <01>"]
        self.assertEqual(self.report(one=self.gtest(*passed)), ["passed 2"])
        self.assertEqual(self.report(one=self.gtest(*passed, *failed, status=1)), ["passed 2", "failed one.B/A.c/y"])
        self.assertEqual(self.report(one=self.gtest(*passed, "[ RUN      ] A.d", status=1)),
                         ["passed 2", "failed one.A.d: did not end"])
        self.assertEqual(self.report(one=self.gtest(*passed, status=1)), ["passed 2", "failed one"])

    def test_a_case_of_a_test_in_python(self):
        self.assertEqual(self.report(one=self.python("print('x' * 5000)")), ["passed 1", "skipped one: Case.test_one: no: one"])

    def test_all_cases_of_a_test_in_python(self):
        self.assertEqual(self.report(one=self.python("self.skipTest('two')", "raise unittest.SkipTest('three')")),
                         ["passed 0", "skipped one: Case.test_one: no: one", "skipped one: Case.test_two: two",
                          "skipped one: setUpClass (Other): three"])

    def test_a_failing_test_in_python(self):
        self.assertEqual(self.report(one=self.python("self.fail()")), ["passed 0", "failed one"])


if __name__ == "__main__":
    CTEST = sys.argv.pop(1)
    unittest.main()
