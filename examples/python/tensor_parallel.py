# Inference with a tensor-parallel model: torchrun --nproc-per-node 2 tensor_parallel.py
# The one line that differs from a script for Gloo is marked.
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


@torch.no_grad()
def main():
    dist.init_process_group("weft")  # instead of "gloo"
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(64) for _ in range(4)))
    x = torch.randn(1, 64)
    expected = model(x)
    plan = {}
    for i in range(4):
        plan[f"{i}.up"] = ColwiseParallel()
        plan[f"{i}.down"] = RowwiseParallel()
    parallelize_module(model, mesh, plan)
    result = model(x)
    torch.testing.assert_close(result, expected)
    print(f"rank {dist.get_rank()}: differs by at most {(result - expected).abs().max().item():.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
