"""torch.distributed.tensor.parallel on Gloo, one of the peers of bench_tensor_parallel, which starts this once for each rank.

  torch_peer.py RANK RANKS STORE WARM_UP DURATION WIDTH ROWS TOKENS HEAD_WIDTH     (bench/harness/torch_ranks.py)

The block is that of bench/tensor_parallel/model.h, except that the features of `qkv` are ordered by heads: ColwiseParallel
gives each rank consecutive ones.
"""
import torch
import torch_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, head_width):
        super().__init__()
        self.head_width = head_width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, self.head_width)).permute(3, 0, 2, 1, 4)
        y = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return y + self.down(functional.gelu(self.up(self.norm2(y))))


def main():
    width, rows, tokens, head_width = map(int, torch_ranks.arguments)
    torch_ranks.join()
    torch.manual_seed(1)
    block = parallelize_module(Block(width, head_width), init_device_mesh("cpu", (torch_ranks.ranks,)), {
        "qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()})
    x = torch.randn(rows, tokens, width, requires_grad=True)

    def step():
        block.zero_grad()
        x.grad = None
        block(x).square().mean().backward()

    torch_ranks.run(step, ("steps_per_s", 1e6))


main()
