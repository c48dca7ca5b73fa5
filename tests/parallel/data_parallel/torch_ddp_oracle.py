"""Trains the models of torch_ddp_process_test.cc with PyTorch's DistributedDataParallel on Gloo.

  torch_ddp_oracle.py FOLDER

Reads FOLDER/models.json, and for each model the file of bytes that it names: parameters, inputs and targets, one after the
other. Writes FOLDER/MODEL.RANK: all parameters, then the running statistics, as float64, in the order that models.json
gives. Exit status 77, with a line that states the reason, if this Python has no torch.distributed with Gloo.
"""
import json
import os
import sys

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host
try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing
    if not dist.is_available() or not dist.is_gloo_available():
        raise ImportError("its torch.distributed is without Gloo")
except Exception as error:  # a wheel without its libraries raises OSError or ValueError, too
    print(f"{sys.executable} has no torch.distributed with Gloo: {error}")
    sys.exit(77)
nn = torch.nn


class Block(nn.Module):
    def __init__(self, inside, out, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        same = stride == 1 and inside == out
        self.shortcut = None if same else nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nn.Module):
    def __init__(self, width=4, classes=10):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        stages, inside = [], width
        for stage in range(4):
            out = width << stage
            stages += [Block(inside, out, 1 if stage == 0 else 2), Block(out, out, 1)]
            inside = out
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(inside, classes)

    def forward(self, images):
        return self.head(self.stages(torch.relu(self.norm(self.stem(images)))).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.layers = nn.Sequential(*[nn.TransformerEncoderLayer(16, 4, 32, dropout=0) for _ in range(2)])
        self.head = nn.Linear(16, 5)

    def forward(self, words):
        return self.head(self.layers(self.words(words)))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 12, 2), nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


MODELS = {"resnet18": ResNet18, "transformer": Transformer, "lstm": Lstm}


def train(name, description, folder, rank, ranks):
    data = open(f"{folder}/{name}.data", "rb")

    def tensor(shape, dtype=torch.float64):
        count = 1
        for size in shape:
            count *= size
        return torch.frombuffer(bytearray(data.read(count * 8)), dtype=dtype).reshape(shape)

    model = MODELS[name]().double()
    state = {each["name"]: tensor(each["shape"]) for each in description["parameters"]}
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing
    assert set(state) == {name for name, _ in model.named_parameters()}
    inputs = tensor(description["inputs"], torch.int64 if description["words"] else torch.float64)
    targets = tensor(description["targets"])
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=description["rate"], momentum=0.9)
    for step in range(inputs.shape[0]):
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(inputs[step, rank]), targets[step, rank]).backward()
        optimizer.step()
    state = model.state_dict()
    with open(f"{folder}/{name}.{rank}", "wb") as out:
        for each in [each["name"] for each in description["parameters"]] + description["buffers"]:
            out.write(state[each].contiguous().numpy().tobytes())


def run(rank, ranks, folder, models):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    for name, description in models["models"].items():
        train(name, description, folder, rank, ranks)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = sys.argv[1]
    models = json.load(open(f"{folder}/models.json"))
    torch.multiprocessing.start_processes(run, (models["ranks"], folder, models), models["ranks"], start_method="fork")
