"""Gloo by way of torch.distributed, as one of the peers of bench_collectives, which starts this once a rank.

  gloo_peer.py OPERATION ELEMENTS RANK RANKS STORE WARM_UP DURATION     (seconds)

What rank 0 says, on descriptor 3, is in bench/harness/ranks.h; the blocks of rounds are those of Rounds in work.h. The
first answer is checked. torch.distributed has no reduce_scatter or all_to_all of one tensor over Gloo in all its versions:
there lists of views stand in.
"""
import json
import math
import socket
import sys
import threading
import time

FEWEST_CALLS = 3


def main():
    operation, store = sys.argv[1], sys.argv[5]
    elements, rank, ranks = (int(word) for word in sys.argv[2:5])
    warm_up, duration = (float(word) for word in sys.argv[6:8])
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    whole, other = torch.zeros(elements), torch.zeros(elements)
    part = torch.zeros(elements // ranks)
    parts, others = list(whole.chunk(ranks)), list(other.chunk(ranks))
    collectives = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather": lambda: dist.all_gather(parts, part),
        "reduce_scatter": lambda: dist.reduce_scatter(part, parts),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }
    collective = collectives[operation]
    whole.fill_(rank + 1)
    part.fill_(rank + 1)
    collective()
    answer = {"reduce_scatter": part, "all_to_all": other}.get(operation, whole)[0].item()
    expected = ranks * (ranks + 1) / 2 if operation in ("all_reduce", "reduce_scatter") else 1
    if answer != expected:
        sys.exit("the answer is wrong")
    whole.zero_()
    part.zero_()

    times, count, following = [], 1, 1
    word = torch.zeros(1, dtype=torch.int64)
    created, elapsed, ignored, more = time.perf_counter(), 0.0, 0, True
    while count:
        block = time.perf_counter()
        for _ in range(count):
            began = time.perf_counter()
            collective()
            now = time.perf_counter()
            if ignored < FEWEST_CALLS or now - created < warm_up:
                ignored += 1
            else:
                times.append((now - began) * 1e6)
                elapsed += now - began
                more = more and (elapsed < duration or len(times) < FEWEST_CALLS)
        following = 0 if not more else 2 * count if time.perf_counter() - block < 0.005 else count
        word.fill_(following)
        dist.broadcast(word, 0)
        count = int(word.item())
    if rank == 0:
        times.sort()
        figures = {f"p{int(100 * q)}_us": times[math.ceil(q * len(times)) - 1] for q in (0.5, 0.99)}
        figures["GBps"] = elements * 4 / figures["p50_us"] / 1e3
        report = json.dumps({"figures": figures, "threads": threading.active_count()})
        socket.socket(fileno=3).send(report.encode())
    dist.barrier()
    dist.destroy_process_group()


main()
