"""Prepares every process of torchft_suite.py, which have this folder in PYTHONPATH."""

import datetime
import functools
import os
import socket

import torch.distributed as dist
import torchft.process_group

socket.gethostname = lambda: "localhost"  # the stores of torchft are at this name, which may not resolve

if os.environ["SUITE_OF"] == "weft":  # in Gloo's place, under Gloo's name
    from torch._C._distributed_c10d import Backend
    from weft import _C
    from weft.distributed import create

    dist.Backend.register_backend("gloo", functools.partial(create, backend="gloo"), extended_api=True,
                                  devices=["cpu"], _backend_type=dist.ProcessGroup.BackendType.GLOO)

    def gloo(store, rank, size, timeout=datetime.timedelta(minutes=30)):
        return _C.ProcessGroup(store, rank, size, Backend.Options("gloo", timeout))

    torchft.process_group.BaseProcessGroupGloo = gloo
