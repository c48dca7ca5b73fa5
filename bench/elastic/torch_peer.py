"""A worker of the jobs of bench_elastic, started by torchrun: torch_peer.py REPORTS

The model is that of worker/main.cc. It saves nothing, so a restart makes all steps again.
"""
import ctypes
import itertools
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

PR_SET_PDEATHSIG = 1


def main():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the bench kills torchrun
    reports = os.open(sys.argv[1], os.O_WRONLY)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    generation, rank, ranks = (os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = torch.randn(32, 512)
    for step in itertools.count(1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        os.write(reports, f"{generation} {rank} {ranks} {os.getpid()} {step} {time.monotonic_ns()}\n".encode())


main()
