"""Gloo by way of torch.distributed, as one of the peers of bench_collectives, which starts this once a rank.

  gloo_peer.py RANK RANKS STORE WARM_UP DURATION OPERATION ELEMENTS     (bench/harness/torch_ranks.py)

The first answer is checked. torch.distributed has no reduce_scatter or all_to_all of one tensor over Gloo in all its versions:
there lists of views stand in.
"""
import sys

import torch
import torch.distributed as dist
import torch_ranks


def main():
    operation, elements = torch_ranks.arguments[0], int(torch_ranks.arguments[1])
    rank, ranks = torch_ranks.rank, torch_ranks.ranks
    torch_ranks.join()
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

    torch_ranks.run(collective, ("GBps", elements * 4 / 1e3))


main()
