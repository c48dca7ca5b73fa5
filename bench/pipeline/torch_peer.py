"""torch.distributed.pipelining on Gloo, one of the peers of bench_pipeline, which starts this once for each rank.

  torch_peer.py RANK RANKS STORE WARM_UP DURATION SCHEDULE WIDTH BLOCKS MICROBATCHES ROWS TOKENS     (bench/harness/torch_ranks.py)

The model is that of bench/pipeline/model.h.
"""
import torch
import torch_ranks
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional
from torch_transformer import TransformerBlock


def main():
    name, (width, blocks, microbatches, rows, tokens) = torch_ranks.arguments[0], map(int, torch_ranks.arguments[1:])
    rank, ranks = torch_ranks.rank, torch_ranks.ranks
    torch_ranks.join()
    own = range(blocks * rank // ranks, blocks * (rank + 1) // ranks)
    model = nn.Sequential(*(TransformerBlock(width, 4, causal=False) for _ in own))
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
