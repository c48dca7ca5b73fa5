"""What distributed_suite.py and rpc_suite.py share: running tests of PyTorch's suites, and counting their outcomes."""

import argparse
import collections
import fnmatch
import json
import multiprocessing
import os
import sys
import time
import unittest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The processes of a test are forked from a server that has imported torch and the suite: a test takes seconds.
CONTEXT = multiprocessing.get_context("forkserver")


def use_fork_server(suite):
    """suite: the module that defines the tests."""
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    def spawn(test):
        test._start_processes(CONTEXT.Process)
        test.started = test.processes  # tearDown() forgets them

    MultiProcessTestCase._spawn_processes = spawn
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    CONTEXT.set_forkserver_preload([suite])


def parser(doc, backends):
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--backend", choices=backends, default=backends[0])
    made.add_argument("--sample", action="store_true", help="a fixed choice of tests, for each change")
    made.add_argument("--json", help="write the outcome of each test to this file")
    made.add_argument("patterns", nargs="*", help="names of tests, with wildcards (default: all)")
    return made


def _run(test):
    """Returns passed, skipped or failed, and the reason."""
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)  # with the fixtures of its class
    if result.errors or result.failures:
        return "failed", (result.errors + result.failures)[0][1]
    # PyTorch checks the status of rank 0 only.
    killed = [rank for rank, process in enumerate(getattr(test, "started", [])) if (process.exitcode or 0) < 0]
    if killed:
        return "failed", f"ranks {killed} were killed by a signal"
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def run(tests, options, excluded, sample):
    """tests: by name. excluded: the reasons by name. Returns the exit status: 1 if a test has failed."""
    patterns = options.patterns or (sample if options.sample else ["*"])
    outcomes = {}
    for name, test in tests.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            continue
        began = time.monotonic()
        outcomes[name], reason = ("excluded", excluded[name]) if name in excluded else _run(test)
        if outcomes[name] != "skipped":
            print(f"{outcomes[name]} {name} ({time.monotonic() - began:.1f} s) {reason}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(outcomes, file, indent=1)
    missing = [name for name in sample if name not in tests] if options.sample else []
    counts = collections.Counter(outcomes.values())
    print(f"{options.backend}: {dict(counts)}" + (f", without {missing}" if missing else ""), flush=True)
    return 1 if counts["failed"] or missing or not counts["passed"] else 0
