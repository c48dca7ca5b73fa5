"""Runs PyTorch's own suite of torch.distributed (torch.testing._internal.distributed.distributed_test) on a backend.

  python distributed_suite.py [--backend weft|gloo] [--world 3] [--json FILE] [TEST...]

weft takes Gloo's place under Gloo's name, so that the tests that the suite has for Gloo alone run too. Prints a line for each test that fails, and the counts. Exit status 1 if a test fails.
"""

import argparse
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import unittest

# The tests that are not run, each with its reason.
EXCLUDED = {}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="weft")
    parser.add_argument("--world", default="3")
    parser.add_argument("--json", help="write the outcome of each test to this file")
    parser.add_argument("tests", nargs="*", help="names of tests (default: all)")
    return parser.parse_args()


def environment(backend, world):
    os.environ.update(BACKEND="gloo", SUITE_OF=backend, WORLD_SIZE=world, OMP_NUM_THREADS="1")
    folder = tempfile.mkdtemp(prefix="distributed_suite")
    for part in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(folder, part))
    os.environ["TEMP_DIR"] = folder
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")


def suite_class():
    import torch.distributed as dist
    import torch.testing._internal.common_distributed as common

    if os.environ["SUITE_OF"] == "weft":
        from weft.distributed import create

        dist.Backend.register_backend("gloo", functools.partial(create, backend="gloo"), extended_api=True, devices=["cpu"],
                                      _backend_type=dist.ProcessGroup.BackendType.GLOO)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.testing._internal.distributed.distributed_test"])
    common.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(context.Process)

    from torch.testing._internal.distributed import distributed_test

    # One folder for all tests: the processes of a test have the environment of the fork server.
    distributed_test.initialize_temp_directories = lambda: None
    distributed_test.cleanup_temp_dir = lambda: None

    class TestDistributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._spawn_processes()

    return TestDistributed


# The processes of a test import this module by its name and look for the class there.
if "SUITE_OF" in os.environ:
    TestDistributed = suite_class()
    TestDistributed.__module__ = __name__
    TestDistributed.__qualname__ = "TestDistributed"


class Outcomes(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.of = {}

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        self.of[test._testMethodName] = "passed"

    def stopTest(self, test):
        name = test._testMethodName
        print(f"{self.of[name]:8} {name} {time.monotonic() - self.began:.1f} s", flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.of[test._testMethodName] = "skipped"

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.of[test._testMethodName] = "failed"
        print(self._exc_info_to_string(error, test), flush=True)

    addError = addFailure


def main():
    options = arguments()
    environment(options.backend, options.world)
    import distributed_suite as module  # by its name, so that the processes of a test find the class

    names = options.tests or unittest.TestLoader().getTestCaseNames(module.TestDistributed)
    outcomes = Outcomes()
    for name in names:
        if name in EXCLUDED:
            outcomes.of[name] = "excluded"
            continue
        module.TestDistributed(name).run(outcomes)
    counts = {kind: sum(1 for of in outcomes.of.values() if of == kind) for kind in ("passed", "failed", "skipped", "excluded")}
    print(options.backend, "at world", options.world, counts)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(outcomes.of, file, indent=1)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
