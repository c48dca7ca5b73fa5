#!/usr/bin/env python3
"""Writes the folders dcp_one and dcp_three, once, with torch.distributed.checkpoint of PyTorch 2.15: from one rank, and from three ranks.

The bytes of the tensors are those of make_files.py.
"""
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from make_files import FOLDER, tensor

SPLIT_TYPES = ["float32", "bfloat16", "float8_e4m3fn", "bool"]


def state_of_rank(mesh, types):
    """What all ranks of a mesh save: tensors that are split by rows, by columns and not at all, and values that are no tensors."""
    def split(whole, *placements):  # each rank takes its part of the tensor, and sends nothing
        return distribute_tensor(whole, mesh, placements or [Replicate()], src_data_rank=None)
    whole = {name: tensor(name, 5, 6) for name in types}
    return {
        "rows": {name: split(each, Shard(0)) for name, each in whole.items()},
        "columns": {name: split(each, Shard(1)) for name, each in whole.items()},
        "copied": {name: split(each) for name, each in whole.items() if name in ("float32", "bool")},
        "middle": split(tensor("float32", 2, 7, 3), Shard(1)),
        "short": split(tensor("int16", 2, 2), Shard(0)),  # some ranks have no rows
        "scalar": split(tensor("float32", 1)[0].clone()),
        "plain": tensor("float64", 3), "plain_scalar": tensor("bfloat16", 1)[0].clone(),
        "transposed": tensor("float32", 4, 6).t(), "part": tensor("int32", 4, 6)[1:3, 2:4], "empty": tensor("int64", 0, 3),
        "values": {"step": 7, "rate": 0.25, "done": True, "text": "caf\u00e9", "none": None, "betas": (0.5, 0.75), "list": [1, 2], "bytes": b"\0"},
        "list": [3, tensor("uint8", 2)], "pair": (tensor("float32", 2), 4),
    }


def sharded_model(mesh):
    """A model of FSDP2 and its optimizer."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    for parameter in model.parameters():
        parameter.data = tensor("float32", *parameter.shape)
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters())


def save(rank, ranks, folder, store, types, after_step):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    state = state_of_rank(mesh, types)
    model, optimizer = sharded_model(mesh)
    if after_step:
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        state["model"], state["optimizer"] = get_state_dict(model, optimizer)
    else:
        state["model"] = model.state_dict()
    dcp.save(state, checkpoint_id=folder)
    dist.destroy_process_group()


def save_with_ranks(ranks, folder, types, after_step=False):
    with tempfile.TemporaryDirectory() as store:
        torch.multiprocessing.spawn(save, (ranks, folder, f"{store}/store", types, after_step), nprocs=ranks)


def main():
    os.chdir(FOLDER)  # the folder's path is in .metadata
    for ranks, folder in ((1, "dcp_one"), (3, "dcp_three")):
        shutil.rmtree(folder, ignore_errors=True)
        save_with_ranks(ranks, folder, SPLIT_TYPES)


if __name__ == "__main__":
    main()
