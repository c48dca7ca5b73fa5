"""Python's peer of bench_weights: RANK RANKS STORE WARM_UP DURATION FILE cold|warm MATRICES ROWS COLUMNS"""
import os
import pathlib

import torch
from measuring import check
from torch_ranks import arguments, measure, report

path, cold = pathlib.Path(arguments[0]), arguments[1] == "cold"
matrices, rows, columns = map(int, arguments[2:])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(matrices):
            self.register_parameter(f"matrix{i}", torch.nn.Parameter(torch.empty(rows, columns)))


def write():
    state = {f"matrix{i}": torch.full((rows, columns), float(i)) for i in range(matrices)}
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".pt":
        torch.save(state, path)
    else:
        safetensors.torch.save_file(state, path)


def load():
    if path.suffix == ".pt":
        model.load_state_dict(torch.load(path, mmap=True))
    else:
        model.load_state_dict(safetensors.torch.load_file(path))


def step():
    if cold:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    load()


if path.suffix != ".pt":
    import safetensors.torch
if not path.exists():
    write()
model = Model()
figures = measure(step)
last = getattr(model, f"matrix{matrices - 1}").flatten()
check(last[0] == last[-1] == matrices - 1)
report(figures | {"GBps": matrices * rows * columns * 4 / 1e3 / figures["p50_us"]})
