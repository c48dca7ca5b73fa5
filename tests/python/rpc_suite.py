"""Runs PyTorch's own generic tests of torch.distributed.rpc, as they come in its wheel.

  python rpc_suite.py [--backend TENSORPIPE] [--sample] [--json FILE] [CLASS.TEST...]

Prints each test that is not skipped, and the counts.
"""

import sys
import unittest

import pytorch_suite
import torch.distributed.rpc as rpc
import weft.rpc  # noqa: F401: registers the backend
from torch.testing._internal.distributed import rpc_utils
from torch.testing._internal.distributed.rpc import tensorpipe_rpc_agent_test_fixture as tensorpipe
from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import RpcAgentTestFixture

SAMPLE = [
    "DistAutogradTest.test_backward_simple", "DistAutogradTest.test_backward_rref_nested",
    "DistOptimizerTest.test_dist_optim", "JitRpcTest.test_rpc_async_jit_profiled",
    "ParameterServerTest.test_batch_updating_parameter_server", "RemoteModuleTest.test_forward_async",
    "RpcTest.test_async_function_chained", "RpcTest.test_callback_chain", "RpcTest.test_multi_rpc",
    "RpcTest.test_nonzero", "RpcTest.test_rref_timeout", "ThreeWorkersRemoteModuleTest.test_send_remote_module_over_the_wire",
]


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


def main():
    options = pytorch_suite.parser(__doc__, list(FIXTURES)).parse_args()
    pytorch_suite.use_fork_server("rpc_suite")
    tests = {}
    for suite in rpc_utils.GENERIC_TESTS:
        cls = globals()[f"{options.backend}_{suite.__name__}"]
        for name in unittest.defaultTestLoader.getTestCaseNames(cls):
            tests[f"{suite.__name__}.{name}"] = cls(name)
    return pytorch_suite.run(tests, options, {}, SAMPLE)


if __name__ == "__main__":
    # The processes of a test find the classes in the module of this name.
    import rpc_suite

    sys.exit(rpc_suite.main())
