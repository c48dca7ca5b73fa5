"""A rank of torch.distributed that bench/harness/torch_python.h starts: SCRIPT RANK RANKS STORE WARM_UP DURATION ARGUMENTS

The times are seconds. Rank 0 reports on descriptor 3 as bench/harness/ranks.h says.
"""
import json
import socket
import sys
import time

import torch
import torch.distributed as dist
from measuring import Meter, threads

rank, ranks, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
warm_up, duration = float(sys.argv[4]), float(sys.argv[5])
arguments = sys.argv[6:]


def measure(step, tell=lambda following: following):
    """The latencies of a step, in blocks as those of Rounds in ranks.h. tell: gives rank 0's number of the next steps to
    all ranks."""
    meter, count = Meter(warm_up, duration), 1
    while count:
        block, more = time.perf_counter(), True
        for _ in range(count):
            began = time.perf_counter()
            step()
            more = meter.count(latency=time.perf_counter() - began) and more
        count = tell(0 if not more else 2 * count if time.perf_counter() - block < 0.005 else count)
    return meter.latency()


def report(figures):
    socket.socket(fileno=3).send(json.dumps({"figures": figures, "threads": threads()}).encode())


def join(device="cpu"):
    """A process group of all ranks, each with one thread for operators."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo" if device == "cpu" else "nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(1 + rank)


def run(step, rate, device="cpu"):
    """Measures a step of all ranks of the group. rate: a further figure, (name, its value times the median in µs)."""
    word = torch.zeros(1, dtype=torch.int64, device=device)

    def tell(following):
        word.fill_(following)
        dist.broadcast(word, 0)
        return int(word.item())

    figures = measure(step, tell)
    if rank == 0:
        report(figures | {rate[0]: rate[1] / figures["p50_us"]})
    dist.barrier()
    dist.destroy_process_group()
