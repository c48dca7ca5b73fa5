"""torch.distributed.pipelining on Gloo, one of the peers of bench_pipeline, which starts this once for each rank.

  torch_peer.py SCHEDULE RANK RANKS STORE WARM_UP DURATION WIDTH BLOCKS MICROBATCHES ROWS TOKENS     (seconds)

Rank 0 reports on descriptor 3 as bench/harness/ranks.h says. The model is that of bench/pipeline/model.h.
"""
import json
import math
import socket
import sys
import threading
import time

FEWEST_STEPS = 3


def stage_of(width, blocks, torch):
    nn, functional = torch.nn, torch.nn.functional

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
    name, store = sys.argv[1], sys.argv[4]
    rank, ranks = int(sys.argv[2]), int(sys.argv[3])
    warm_up, duration = float(sys.argv[5]), float(sys.argv[6])
    width, blocks, microbatches, rows, tokens = map(int, sys.argv[7:12])
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(1 + rank)
    model = stage_of(width, blocks * (rank + 1) // ranks - blocks * rank // ranks, torch)
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[name](stage, microbatches, loss_fn=torch.nn.functional.mse_loss)
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

    times, count, following = [], 1, 1
    word = torch.zeros(1, dtype=torch.int64)
    created, elapsed, ignored, more = time.perf_counter(), 0.0, 0, True
    while count:
        block = time.perf_counter()
        for _ in range(count):
            began = time.perf_counter()
            step()
            now = time.perf_counter()
            if ignored < FEWEST_STEPS or now - created < warm_up:
                ignored += 1
            else:
                times.append((now - began) * 1e6)
                elapsed += now - began
                more = more and (elapsed < duration or len(times) < FEWEST_STEPS)
        following = 0 if not more else 2 * count if time.perf_counter() - block < 0.005 else count
        word.fill_(following)
        dist.broadcast(word, 0)
        count = int(word.item())
    if rank == 0:
        times.sort()
        figures = {f"p{int(100 * q)}_us": times[math.ceil(q * len(times)) - 1] for q in (0.5, 0.99)}
        figures["steps_per_s"] = 1e6 / figures["p50_us"]
        report = json.dumps({"figures": figures, "threads": threading.active_count()})
        socket.socket(fileno=3).send(report.encode())
    dist.barrier()
    dist.destroy_process_group()


main()
