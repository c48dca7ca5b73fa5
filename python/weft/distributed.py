"""The backend "weft" of torch.distributed (docs/pytorch.md). PyTorch calls register() through the entry point."""

import os
import sys

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from weft import _C

_TORCH = os.path.dirname(torch.__file__) + os.sep


def calling_line():
    """Returns the file and the number of the innermost line outside of the package torch, or None, for errors."""
    frame = sys._getframe().f_back
    while frame and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return frame and (frame.f_code.co_filename, frame.f_lineno)


def _default_group():
    """The process group of weft that other groups of this process share their agent with, or None."""
    if not dist.is_initialized():
        return None
    try:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    except RuntimeError:  # the default group has no backend for the CPU
        return None
    return backend if isinstance(backend, _C.ProcessGroup) else None


def _meeting_store(options):
    """The store by which the ranks meet. None: they meet as the environment states, also with C++ programs.

    A HashStore reaches no other process.
    """
    store = options.store
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    by_environment = isinstance(store, dist.HashStore) and "WEFT_STORE" in os.environ
    return None if by_environment and not options.enable_reconfigure else options.store


def create(options, _backend_options, backend="weft"):
    own = Backend.Options(backend, options.timeout)
    own.group_name = options.group_id
    own.global_ranks_in_group = options.global_ranks_in_group
    own.enable_reconfigure = options.enable_reconfigure
    default = _default_group()
    if default is not None:
        return default.split(options.store, options.global_ranks_in_group, own)
    return _C.ProcessGroup(_meeting_store(options), options.group_rank, options.group_size, own)


def register():
    dist.Backend.register_backend("weft", create, extended_api=True, devices=["cpu"])
