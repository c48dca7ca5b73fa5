# A parameter server and its trainers over torch.distributed.rpc: torchrun --nproc-per-node 3 parameter_server.py
# The two lines that differ from a script for TensorPipe are marked.
import os

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import weft.rpc  # the first line: adds the backend  # noqa: F401
from torch import nn, optim
from torch.distributed.optim import DistributedOptimizer


class Server(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Linear(10, 1)

    def forward(self, x):
        return self.table(x)

    def parameter_rrefs(self):
        return [rpc.RRef(p) for p in self.parameters()]


def train(rank):
    server = rpc.remote("server", Server)
    optimizer = DistributedOptimizer(optim.SGD, server.rpc_sync().parameter_rrefs(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(50):
        with dist_autograd.context() as context:
            x = torch.randn(20, 10, generator=generator)
            loss = nn.functional.mse_loss(server.rpc_sync().forward(x), x.sum(1, keepdim=True))
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
    print(f"trainer {rank}: loss {loss.item():.3f}", flush=True)
    assert loss.item() < 0.1


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(
        "server" if rank == 0 else f"trainer{rank}", rank=rank, world_size=world_size,
        backend=rpc.BackendType.WEFT,  # the second line
    )
    if rank > 0:
        train(rank)
    rpc.shutdown()


if __name__ == "__main__":
    main()
