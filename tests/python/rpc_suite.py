"""Runs PyTorch's own tests of torch.distributed.rpc, as they come in its wheel, with the backend WEFT.

    python rpc_suite.py [--backend TENSORPIPE] [--list] [CLASS[.TEST]...]

The names may have wildcards. Prints each failed test, and the counts of each class. The status is 1 if a test has
failed.
"""

import argparse
import collections
import fnmatch
import multiprocessing
import os
import sys
import time
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch.distributed.rpc as rpc  # noqa: E402
import weft.rpc  # noqa: E402, F401: registers the backend
from torch.testing._internal.common_distributed import MultiProcessTestCase  # noqa: E402
from torch.testing._internal.distributed import rpc_utils  # noqa: E402
from torch.testing._internal.distributed.rpc import tensorpipe_rpc_agent_test_fixture as tensorpipe  # noqa: E402
from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import RpcAgentTestFixture  # noqa: E402

# The tests that do not count, and why.
EXCLUDED = {
}


class WeftFixture(RpcAgentTestFixture):
    @property
    def rpc_backend(self):
        return rpc.backend_registry.BackendType["WEFT"]

    @property
    def rpc_backend_options(self):
        return rpc.backend_registry.construct_rpc_backend_options(self.rpc_backend, init_method=self.init_method)

    def get_shutdown_error_regex(self):
        return ".*"  # as TensorPipe's fixture

    def get_timeout_error_regex(self):
        return "RPC ran for more than"


FIXTURES = {"WEFT": WeftFixture, "TENSORPIPE": tensorpipe.TensorPipeRpcAgentTestFixture}
# Each process imports the classes by name.
for _name, _fixture in FIXTURES.items():
    globals().update(rpc_utils.generate_tests(f"{_name}_", _fixture, rpc_utils.GENERIC_TESTS, __name__))

# The processes of a test are forked from a server that has imported torch and this file: a test takes seconds.
CONTEXT = multiprocessing.get_context("forkserver")


def _spawn(test):
    test._start_processes(CONTEXT.Process)
    test.started = test.processes  # tearDown() forgets them


MultiProcessTestCase._spawn_processes = _spawn


def tests_of(backend, patterns):
    """The tests by class, without the backend's name."""
    found = collections.defaultdict(list)
    for suite in rpc_utils.GENERIC_TESTS:
        cls = globals()[f"{backend}_{suite.__name__}"]
        for name in unittest.defaultTestLoader.getTestCaseNames(cls):
            full = f"{suite.__name__}.{name}"
            if not patterns or any(fnmatch.fnmatch(full, p) or fnmatch.fnmatch(suite.__name__, p) for p in patterns):
                found[suite.__name__].append(cls(name))
    return found


def run(test):
    """Returns passed, skipped or failed, and the reason."""
    result = unittest.TestResult()
    test.run(result)
    if result.errors or result.failures:
        return "failed", (result.errors + result.failures)[0][1]
    # PyTorch checks the status of rank 0 only.
    killed = [rank for rank, process in enumerate(getattr(test, "started", [])) if (process.exitcode or 0) < 0]
    if killed:
        return "failed", f"ranks {killed} were killed by a signal"
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=FIXTURES, default="WEFT")
    parser.add_argument("--list", action="store_true", help="print the names of the tests only")
    parser.add_argument("patterns", nargs="*", metavar="CLASS[.TEST]")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    CONTEXT.set_forkserver_preload(["rpc_suite"])
    total = collections.Counter()
    for suite, tests in tests_of(options.backend, options.patterns).items():
        counts = collections.Counter()
        for test in tests:
            name = f"{suite}.{test._testMethodName}"
            if options.list:
                print(name)
                continue
            if name in EXCLUDED:
                outcome, text = "excluded", EXCLUDED[name]
            else:
                began = time.monotonic()
                outcome, text = run(test)
                text = f"{time.monotonic() - began:.1f} s {text}"
            print(f"{outcome} {name}: {text}", flush=True)
            counts[outcome] += 1
        print(f"{suite}: {dict(counts)}", flush=True)
        total += counts
    print(f"{options.backend}: {dict(total)}")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    # The forked processes find the classes in the module of this name.
    import rpc_suite

    sys.exit(rpc_suite.main())
