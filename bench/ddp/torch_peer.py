"""PyTorch's DistributedDataParallel, fully_shard or ZeroRedundancyOptimizer on Gloo or NCCL, one of the peers of bench_ddp, which starts this once for each rank.

  torch_peer.py RANK RANKS STORE WARM_UP DURATION MODEL view|copy|fsdp|zero1 keep|fresh DEVICE BATCH     (bench/harness/torch_ranks.py)

The models are those of bench/ddp/models.h.
"""
import torch
import torch_ranks
from torch_transformer import TransformerBlock


def model_and_input(name, batch):
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

    if name == "transformer":
        return nn.Sequential(*[TransformerBlock(256, 4, causal=True) for _ in range(12)]), torch.randn(4, 64, 256)

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
    name, form, keep, device, batch = torch_ranks.arguments
    torch_ranks.join(device)
    model, batch = model_and_input(name, int(batch))
    model, batch = model.to(device), batch.to(device)
    optimizer = None
    if form == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh(device, (torch_ranks.ranks,))
        for block in model:
            fully_shard(block, mesh=mesh)
        parallel = fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=form != "copy")
    if form == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)

    def step():
        model.zero_grad(set_to_none=keep == "fresh")
        parallel(batch).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()

    torch_ranks.run(step, ("steps_per_s", 1e6), device)


main()
