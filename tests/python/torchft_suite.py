"""Runs torchft's own tests of process groups, of their reconfiguration, and of its manager.

  python torchft_suite.py [--backend gloo] [--json FILE] [TEST...]

weft takes Gloo's place under Gloo's name (torchft_site/). Prints each test that is not skipped, and the counts.
"""

import os
import sys
import unittest

import pytorch_suite

MODULES = ["process_group_test", "reconfigure_test", "manager_test", "manager_integ_test", "ddp_test", "fsdp_test",
           "local_sgd_test", "local_sgd_integ_test", "parameter_server_test"]
# The tests that do not count, and why.
EXCLUDED = {
    "process_group_test.ProcessGroupTest.test_gloo_timeout": "compares the text of a timeout of Gloo's store",
}


def all_tests(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from all_tests(test)
        else:
            yield test


def main():
    options = pytorch_suite.parser(__doc__, ["weft", "gloo"]).parse_args()
    site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torchft_site")
    if site not in sys.path:
        os.environ.update(SUITE_OF=options.backend, PYTHONPATH=os.pathsep.join([site, *sys.path]))
        os.execv(sys.executable, [sys.executable, *sys.argv])
    loaded = unittest.defaultTestLoader.loadTestsFromNames(f"torchft.{module}" for module in MODULES)
    tests = {test.id().removeprefix("torchft."): test for test in all_tests(loaded)}
    return pytorch_suite.run(tests, options, EXCLUDED if options.backend == "weft" else {}, [])


if __name__ == "__main__":
    sys.exit(main())
