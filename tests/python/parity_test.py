"""Trains small models with the parts of PyTorch that use torch.distributed, on gloo and then on weft.

Each program runs with 2 and with 4 ranks. A program returns what each rank has at its end. The two backends add in
different orders, so values are equal to the rounding of float32 unless the program states another tolerance.
"""

import functools
import os
import sys
import tempfile
import unittest

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MASTER_ADDR"] = "127.0.0.1"
os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *sys.path])

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import pipelining
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, distribute_tensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module, RowwiseParallel
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


def make_model(layers=2):
    torch.manual_seed(1)
    middle = [part for _ in range(layers - 1) for part in (nn.Tanh(), nn.Linear(32, 32))]
    return nn.Sequential(nn.Linear(16, 32), *middle, nn.Tanh(), nn.Linear(32, 8))


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(12, 16, generator=generator), torch.randn(12, 8, generator=generator)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model, optimizer, same_data=False, steps=STEPS):
    """Returns the losses and the parameters. same_data: the ranks get the same batches."""
    losses = []
    for step in range(steps):
        inputs, targets = batch(step, 0 if same_data else dist.get_rank())
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *(whole(parameter) for parameter in model.parameters())]


def whole(tensor):
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


def train_ddp(hook=None, state=None, **options):
    model = DistributedDataParallel(make_model(), **options)
    if hook is not None:
        model.register_comm_hook(state, hook)
    return train(model, sgd(model))


def ddp_allocated_buckets():
    os.environ["DDP_DISABLE_COMM_MEM"] = "0"
    return train_ddp(gradient_as_bucket_view=True)


def ddp_power_sgd():
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=4)
    return train_ddp(powerSGD_hook.powerSGD_hook, state)


def ddp_local_sgd():
    pair, _ = dist.new_subgroups(group_size=2)
    model = DistributedDataParallel(make_model())
    state = post_localSGD_hook.PostLocalSGDState(None, pair, start_localSGD_iter=4)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=4, warmup_steps=4)
    return train(model, PostLocalSGDOptimizer(sgd(model), averager))


def ddp_join():
    """Each rank has more batches than the one before it."""
    model = DistributedDataParallel(make_model())
    with Join([model]):
        return train(model, sgd(model), steps=STEPS - 3 * (dist.get_world_size() - 1 - dist.get_rank()))


def zero():
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    trained = train(model, optimizer)
    optimizer.consolidate_state_dict(to=1)
    moments = optimizer.state_dict()["state"] if dist.get_rank() == 1 else {}
    return trained + [moments[parameter]["exp_avg"] for parameter in sorted(moments)]


def shard(mesh):
    model = make_model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp():
    model = shard(init_device_mesh("cpu", (dist.get_world_size(),)))
    return train(model, torch.optim.Adam(model.parameters(), lr=0.01))


def hsdp():
    model = shard(init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard")))
    return train(model, sgd(model))


def tensor_parallel():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(make_model(1), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, sgd(model), same_data=True)


def redistribute():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensor = distribute_tensor(batch(0, 0)[0], mesh, [Shard(0)])  # 12 rows
    results = []
    for step in range(STEPS):
        columns = tensor.redistribute(mesh, [Shard(1)])
        product = (columns @ columns.t()).tanh() @ tensor.redistribute(mesh, [Replicate()])
        tensor = (product / whole(product).norm()).redistribute(mesh, [Shard(step % 2)])
        results.append(whole(tensor))
    return results


def pipeline():
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = list(make_model(4))
    per_stage = len(layers) // size
    last = rank == size - 1
    module = nn.Sequential(*layers[rank * per_stage : None if last else (rank + 1) * per_stage])
    stage = pipelining.PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer, losses = sgd(module), []
    for step in range(STEPS):
        inputs, targets = batch(step, 0)
        optimizer.zero_grad()
        schedule.step(*([inputs] if rank == 0 else []), **({"target": targets, "losses": losses} if last else {}))
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()] + [loss.detach() for loss in losses[-4:]]


def saved_and_loaded():
    """Saves the sharded model, trains on, and loads it."""
    model = shard(init_device_mesh("cpu", (dist.get_world_size(),)))
    saved = train(model, sgd(model))[1:]
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)  # rank 0's
        checkpoint.save(model.state_dict(), checkpoint_id=folder[0])
        train(model, sgd(model), steps=2)
        state = model.state_dict()
        checkpoint.load(state, checkpoint_id=folder[0])
        dist.barrier()  # before rank 0 removes the folder
    model.load_state_dict(state)
    loaded = [whole(parameter) for parameter in model.parameters()]
    torch.testing.assert_close(loaded, saved, rtol=0, atol=0)
    return loaded


def objects():
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for step in range(STEPS):
        mine = {"rank": rank, "text": "é" * rank * step, "tensor": batch(step, rank)[0]}
        gathered, at_root = [None] * size, [None] * size if rank == 1 else None
        dist.all_gather_object(gathered, mine)
        dist.gather_object(mine, at_root, dst=1)
        listed, scattered = [mine, step], [None]
        dist.broadcast_object_list(listed, src=1)
        dist.scatter_object_list(scattered, gathered if rank == 0 else None, src=0)
        received = [None]
        if rank % 2 == 0:
            dist.send_object_list([mine], dst=rank + 1)
        else:
            dist.recv_object_list(received, src=rank - 1)
        found.append((gathered, at_root, listed, scattered, received))
    return torch.tensor(list(repr(found).encode()))


PROGRAMS = {
    "ddp": functools.partial(train_ddp, bucket_cap_mb=0.002),
    "ddp_bucket_view": functools.partial(train_ddp, bucket_cap_mb=0.002, gradient_as_bucket_view=True),
    "ddp_fp16": functools.partial(train_ddp, default_hooks.fp16_compress_hook),
    **{program.__name__: program for program in (
        ddp_allocated_buckets, ddp_power_sgd, ddp_local_sgd, ddp_join, zero, fsdp, hsdp, tensor_parallel, redistribute,
        pipeline, saved_and_loaded, objects)},
}
TOLERANCES = {"ddp_fp16": {"rtol": 0, "atol": 1e-4}}  # the sum of four gradients is rounded to float16


def compare(rank, size, program, folder):
    results = []
    for backend in ("gloo", "weft"):
        dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=size)
        results.append(PROGRAMS[program]())
        dist.barrier()
        dist.destroy_process_group()
    on_gloo, on_weft = results
    torch.testing.assert_close(on_weft, on_gloo, **TOLERANCES.get(program, {}))


class Parity(unittest.TestCase):
    pass


for _program in PROGRAMS:
    for _size in (2, 4):
        def _test(self, program=_program, size=_size):
            with tempfile.TemporaryDirectory() as folder:
                mp.start_processes(compare, (size, program, folder), nprocs=size, start_method="forkserver")
        setattr(Parity, f"test_{_program}_{_size}_ranks", _test)

if __name__ == "__main__":
    import parity_test  # the processes find its functions by this name

    mp.set_forkserver_preload(["parity_test"])
    unittest.main(parity_test)
