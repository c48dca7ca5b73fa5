#!/usr/bin/env python3
"""Writes the files of this folder, once, with PyTorch 2.15 and safetensors 0.8.

The bytes of a tensor are 3, 10, 17, ... modulo 128 (of a bool: 0 and 1 in turn), in C order, so that the tests know them.
"""
import collections
import pathlib

import safetensors.torch
import torch

FOLDER = pathlib.Path(__file__).parent
TYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
         "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool", "complex64", "complex128", "complex32", "float4_e2m1fn_x2"]


def tensor(dtype, *shape):
    item = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    count = item
    for size in shape:
        count *= size
    of_bool = [i % 2 for i in range(count)]
    data = torch.tensor(of_bool if dtype == "bool" else [(3 + 7 * i) % 128 for i in range(count)], dtype=torch.uint8)
    return data.view(getattr(torch, dtype)).view(shape)


def every_type(names):
    return {name: tensor(name, 2, 3) for name in names} | {"scalar": tensor("float32", 1)[0].clone(), "empty": tensor("int64", 0, 3)}


def main():
    of_format = [name for name in TYPES if name not in ("complex128", "complex32")]
    safetensors.torch.save_file(every_type(of_format), FOLDER / "types.safetensors", {"format": "pt", "epoch": "3"})
    shards = FOLDER / "shards"
    shards.mkdir(exist_ok=True)
    parts = {"model-00001-of-00002.safetensors": {"a": tensor("float32", 4, 2)}, "model-00002-of-00002.safetensors": {"b.c": tensor("uint8", 3)}}
    for name, tensors in parts.items():
        safetensors.torch.save_file(tensors, shards / name, {"format": "pt"})
    import json
    (shards / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": 35}, "weight_map": {tensor: name for name, tensors in parts.items() for tensor in tensors}}))

    torch.save(every_type(TYPES), FOLDER / "types.pt")
    whole = tensor("float32", 4, 6)
    linear = torch.nn.Linear(2, 3)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(6.).view(3, 2))
        linear.bias.copy_(torch.arange(3.))
    values = {
        "model": linear.state_dict(),
        "parameter": linear.weight,
        "rows": whole[1:3], "columns": whole[:, 2:4], "transposed": whole.t(), "expanded": torch.tensor([5.]).expand(3), "whole": whole,
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(), "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "list": [tensor("int32", 2), (tensor("int16", 1), {7: tensor("int8", 2)})],
        "epoch": 12, "large": 2**70, "below": -5, "rate": 0.25, "text": "caf\u00e9", "done": True, "none": None, "bytes": b"\0\xff", "no_bytes": b"",
        "complex": 1 + 2j, "set": {1, 2}, "frozen": frozenset({3}), "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda:1"),
        "ordered": collections.OrderedDict(a=1), "long_text": "x" * 300, "array": bytearray(b"12"),
    }
    torch.save(values, FOLDER / "values.pt")
    torch.save(values, FOLDER / "values_protocol_5.pt", pickle_protocol=5)
    torch.save(tensor("float32", 2), FOLDER / "one.pt")


if __name__ == "__main__":
    main()
