"""Prepares every process of torchft_suite.py, which have this folder in PYTHONPATH."""

import datetime
import functools
import os
import socket

import torch.distributed as dist
import torchft.process_group

socket.gethostname = lambda: "localhost"  # the stores of torchft are at this name, which may not resolve

_reconfigure = torchft.process_group.ProcessGroupBaby.reconfigure


def _reconfigure_patiently(self, options):
    """A subprocess imports torch before it answers. On a busy machine, this takes longer than the 10 s of the tests."""
    timeout = self._timeout
    self._timeout = max(timeout, 120) if timeout >= 10 else timeout
    try:
        return _reconfigure(self, options)
    finally:
        self._timeout = timeout


torchft.process_group.ProcessGroupBaby.reconfigure = _reconfigure_patiently

if os.environ["SUITE_OF"] == "weft":  # in Gloo's place, under Gloo's name
    from torch._C._distributed_c10d import Backend
    from weft import _C
    from weft.distributed import create

    dist.Backend.register_backend("gloo", functools.partial(create, backend="gloo"), extended_api=True,
                                  devices=["cpu"], _backend_type=dist.ProcessGroup.BackendType.GLOO)

    def gloo(store, rank, size, timeout=datetime.timedelta(minutes=30)):
        return _C.ProcessGroup(store, rank, size, Backend.Options("gloo", timeout))

    torchft.process_group.BaseProcessGroupGloo = gloo
