"""PyTorch's DistributedDataParallel on Gloo or NCCL, one of the peers of bench_ddp, which starts this once for each rank.

  torch_peer.py MODEL RANK RANKS STORE WARM_UP DURATION view|copy keep|fresh DEVICE BATCH     (seconds)

Rank 0 reports on descriptor 3 as bench/harness/ranks.h says. The models are those of bench/ddp/models.h.
"""
import json
import math
import socket
import sys
import threading
import time

FEWEST_STEPS = 3


def model_and_input(name, batch, torch):
    nn = torch.nn
    if name == "mlp25m":
        layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
        return nn.Sequential(*layers), torch.randn(8, 2048)
    if name == "embedding":
        class Table(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows = nn.Embedding(1_000_000, 16, sparse=True)
                self.head = nn.Linear(16 * 32, 64)

            def forward(self, indices):
                return self.head(self.rows(indices).flatten(1))
        return Table(), torch.randint(1_000_000, (256, 32))

    class Block(nn.Module):
        def __init__(self, inside, out, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(out)
            self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(out)
            same = stride == 1 and inside == out
            self.shortcut = None if same else nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x):
            y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
            return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))

    class ResNet18(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
            stages, inside = [], 64
            for stage in range(4):
                out = 64 << stage
                stages += [Block(inside, out, 1 if stage == 0 else 2), Block(out, out, 1)]
                inside = out
            self.stages, self.head = nn.Sequential(*stages), nn.Linear(inside, 10)

        def forward(self, images):
            return self.head(self.stages(torch.relu(self.norm(self.stem(images)))).mean((2, 3)))
    return ResNet18(), torch.randn(batch, 3, 32, 32)


def main():
    name, store = sys.argv[1], sys.argv[4]
    rank, ranks = int(sys.argv[2]), int(sys.argv[3])
    warm_up, duration = float(sys.argv[5]), float(sys.argv[6])
    view, keep = sys.argv[7] == "view", sys.argv[8] == "keep"
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    device = torch.device(sys.argv[9])
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(1 + rank)
    model, batch = model_and_input(name, int(sys.argv[10]), torch)
    model, batch = model.to(device), batch.to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)

    def step():
        model.zero_grad(set_to_none=not keep)
        ddp(batch).square().mean().backward()
        if device.type != "cpu":
            torch.cuda.synchronize()

    times, count, following = [], 1, 1
    word = torch.zeros(1, dtype=torch.int64, device=device)
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
