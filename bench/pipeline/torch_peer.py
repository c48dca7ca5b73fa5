"""torch.distributed.pipelining on Gloo, one of the peers of bench_pipeline, which starts this once for each rank.

  torch_peer.py RANK RANKS STORE WARM_UP DURATION SCHEDULE WIDTH BLOCKS MICROBATCHES ROWS TOKENS     (bench/harness/torch_ranks.py)

The model is that of bench/pipeline/model.h.
"""
import torch
import torch_ranks
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional


def stage_of(width, blocks):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, 4, width // 4)).permute(2, 0, 3, 1, 4)
            y = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return y + self.down(functional.gelu(self.up(self.norm2(y))))
    return nn.Sequential(*(Block() for _ in range(blocks)))


def main():
    name, (width, blocks, microbatches, rows, tokens) = torch_ranks.arguments[0], map(int, torch_ranks.arguments[1:])
    rank, ranks = torch_ranks.rank, torch_ranks.ranks
    torch_ranks.join()
    model = stage_of(width, blocks * (rank + 1) // ranks - blocks * rank // ranks)
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[name](stage, microbatches, loss_fn=functional.mse_loss)
    inputs = torch.randn(rows * microbatches, tokens, width)
    target = torch.randn_like(inputs)

    def step():
        model.zero_grad()
        if rank == 0:
            schedule.step(inputs, **({"target": target} if ranks == 1 else {}))
        elif rank + 1 == ranks:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()

    torch_ranks.run(step, ("steps_per_s", 1e6))


main()
