"""The program of PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC", one of the peers of bench_pipeline.

  torch_rpc_peer.py RANK RANKS STORE WARM_UP DURATION SPLITS ROWS IMAGE WIDTH CLASSES     (bench/harness/torch_ranks.py)

Rank 0 is the master, the ranks 1 and 2 hold the stages. As there, a micro-batch is a call to the first stage, whose result
stays with it, and one to the second; one context has the backward of the whole batch. The optimizer is left out, as in
the other peers. The model is torchvision's, which is bench/pipeline/model.h's.
"""
import os
import threading

import torch
import torch_ranks
from torch import nn
from torch.distributed import autograd, rpc


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        same = stride == 1 and inside == out
        self.shortcut = nn.Identity() if same else nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def group(inside, width, blocks, stride):
    return nn.Sequential(Bottleneck(inside, width, stride), *(Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)))


class Stage(nn.Module):
    def __init__(self, number, width, classes):
        super().__init__()
        torch.set_num_threads(1)
        self.lock = threading.Lock()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
            group(width, width, 3, 1), group(4 * width, 2 * width, 4, 2)) if number == 0 else nn.Sequential(
            group(8 * width, 4 * width, 6, 2), group(16 * width, 8 * width, 3, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32 * width, classes))

    def forward(self, x):
        x = x.to_here()
        with self.lock:
            return self.layers(x)


def main():
    splits, rows, image, width, classes = map(int, torch_ranks.arguments)
    os.environ["TP_SOCKET_IFNAME"] = "lo"  # else it listens at what the host's name resolves to
    torch.set_num_threads(1)
    rpc.init_rpc(f"rank{torch_ranks.rank}", rank=torch_ranks.rank, world_size=torch_ranks.ranks,
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                     num_worker_threads=128, rpc_timeout=300, init_method=f"file://{torch_ranks.store}"))
    if torch_ranks.rank == 0:
        front, back = (rpc.remote(f"rank{1 + number}", Stage, args=(number, width, classes)) for number in range(2))
        inputs, target = torch.randn(splits * rows, 3, image, image), torch.randn(splits * rows, classes)

        def step():
            with autograd.context() as context:
                outputs = [back.rpc_async().forward(front.remote().forward(rpc.RRef(x))) for x in inputs.split(rows)]
                outputs = torch.cat(torch.futures.wait_all(outputs))
                autograd.backward(context, [nn.functional.mse_loss(outputs, target)])

        figures = torch_ranks.measure(step)
        torch_ranks.report(figures | {"steps_per_s": 1e6 / figures["p50_us"]})
    rpc.shutdown()


main()
