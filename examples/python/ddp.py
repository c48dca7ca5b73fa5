# Data parallel training, as in PyTorch's tutorial: torchrun --nproc-per-node 2 ddp.py
# The one line that differs is marked.
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def main():
    dist.init_process_group("weft")  # instead of "gloo"
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    teacher = torch.randn(10, 5)
    for step in range(100):
        x = torch.randn(20, 10, generator=generator)
        optimizer.zero_grad()
        loss = loss_fn(model(x), x @ teacher)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    # Every rank has the same parameters.
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    of_rank_0 = parameters.clone()
    dist.broadcast(of_rank_0, 0)
    assert torch.equal(parameters, of_rank_0)
    print(f"rank {rank}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
