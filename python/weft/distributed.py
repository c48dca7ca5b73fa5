"""The backend "weft" of torch.distributed (docs/pytorch.md). PyTorch calls register() through the entry point."""

import torch
import torch.distributed as dist

from weft import _C


def _default_group():
    """The process group of weft that other groups of this process share their agent with, or None."""
    if not dist.is_initialized():
        return None
    try:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    except RuntimeError:  # the default group has no backend for the CPU
        return None
    return backend if isinstance(backend, _C.ProcessGroup) else None


def create(options, _backend_options, backend="weft"):
    return _C.ProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, options.group_id,
        options.global_ranks_in_group, _default_group(), backend, options.enable_reconfigure,
    )


def register():
    dist.Backend.register_backend("weft", create, extended_api=True, devices=["cpu"])
