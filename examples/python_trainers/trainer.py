# A trainer of the parameter server in python_trainers.cc, which is rank 0. The environment states WEFT_STORE, RANK and
# WORLD_SIZE.
import os

import torch
import torch.distributed as dist
from torch import nn

STEPS = 50  # as in python_trainers.cc

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# A HashStore reaches no other process, so weft's own store introduces the ranks to each other.
dist.init_process_group("weft", store=dist.HashStore(), rank=rank, world_size=world_size)
model = nn.Linear(10, 1)
generator = torch.Generator().manual_seed(rank)
for step in range(STEPS):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    x = torch.randn(64, 10, generator=generator)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    model.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.reduce(parameter.grad, dst=0)
print(f"trainer {rank}: loss {loss.item():.5f}", flush=True)
assert loss.item() < 0.01
dist.destroy_process_group()
