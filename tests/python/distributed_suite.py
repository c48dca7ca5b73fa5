"""Runs PyTorch's own suite of torch.distributed, torch.testing._internal.distributed.distributed_test.

  python distributed_suite.py [--backend gloo] [--world 4] [--sample] [--json FILE] [TEST...]

weft takes Gloo's place under Gloo's name, so that the tests that the suite has for Gloo alone run too. Prints each test
that is not skipped, and the counts.
"""

import functools
import os
import sys
import tempfile
import unittest

import pytorch_suite

# The tests that do not count, and why.
EXCLUDED = {
    "test_ddp_logging_data_cpu": "compares the number of Gloo's threads",
}
SAMPLE = [
    "test_all_gather_coalesced_simple", "test_all_reduce_coalesced_sum", "test_all_reduce_sum_async",
    "test_barrier_timeout_full_group", "test_broadcast_full_group", "test_DistributedDataParallelCPU", "test_gather",
    "test_monitored_barrier_wait_all_ranks", "test_reduce_sum", "test_scatter_object_list",
    "test_send_recv_any_source", "test_send_recv_with_tag_torch_profiler", "test_sparse_all_reduce_sum",
]


def suite_class():
    import torch.distributed as dist
    from torch.testing._internal.distributed import distributed_test

    if os.environ["SUITE_OF"] == "weft":
        from weft.distributed import create

        dist.Backend.register_backend("gloo", functools.partial(create, backend="gloo"), extended_api=True,
                                      devices=["cpu"], _backend_type=dist.ProcessGroup.BackendType.GLOO)
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
    TestDistributed.__qualname__ = "TestDistributed"


def main():
    parser = pytorch_suite.parser(__doc__, ["weft", "gloo"])
    parser.add_argument("--world", default="3")
    options = parser.parse_args()
    folder = tempfile.TemporaryDirectory(prefix="distributed_suite")
    for part in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(folder.name, part))
    os.environ.update(BACKEND="gloo", SUITE_OF=options.backend, WORLD_SIZE=options.world, TEMP_DIR=folder.name,
                      MASTER_ADDR="127.0.0.1")
    pytorch_suite.use_fork_server("distributed_suite")
    import distributed_suite

    names = unittest.defaultTestLoader.getTestCaseNames(distributed_suite.TestDistributed)
    tests = {name: distributed_suite.TestDistributed(name) for name in names}
    return pytorch_suite.run(tests, options, EXCLUDED if options.backend == "weft" else {}, SAMPLE)


if __name__ == "__main__":
    sys.exit(main())
