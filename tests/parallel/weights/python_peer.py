#!/usr/bin/env python3
"""python_peer.py FOLDER: checks the files that weft wrote into a folder, and writes them again with PyTorch and safetensors. Also writes checkpoints
with torch.distributed.checkpoint.

Exit status 77: a package is missing, so nothing was checked.
"""
import json
import pathlib
import sys
import zipfile

try:
    import numpy  # noqa: F401, which torch.frombuffer and safetensors use
    import safetensors.torch
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
except ImportError as error:
    print(error)
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "data"))
from make_dcp import save_with_ranks  # noqa: E402
from make_files import TYPES, every_type, tensor  # noqa: E402


def check_same(found, expected, where):
    assert set(found) == set(expected), (where, set(found) ^ set(expected))
    for name, right in expected.items():
        given = found[name]
        assert (given.dtype, given.shape) == (right.dtype, right.shape), (where, name, given.dtype, given.shape)
        as_bytes = [one.contiguous().flatten().view(torch.uint8) for one in (given, right)]
        assert torch.equal(*as_bytes), (where, name)


def main(folder):
    whole = tensor("float32", 4, 6)
    of_torch = every_type(TYPES) | {"whole": whole, "tied": whole, "rows": whole[1:3], "transposed": whole.t()}
    of_safetensors = every_type(name for name in TYPES if name not in ("complex128", "complex32"))
    for options in ({}, {"mmap": True}):
        found = torch.load(folder / "weft.pt", weights_only=True, **options)
        check_same(found, of_torch, "weft.pt")
        assert len({found[name].untyped_storage().data_ptr() for name in ("whole", "tied", "rows", "transposed")}) == 1
        assert found["transposed"].stride() == whole.t().stride()
    assert zipfile.ZipFile(folder / "weft.pt").testzip() is None
    check_same(safetensors.torch.load_file(folder / "weft.safetensors"), of_safetensors, "weft.safetensors")
    index = json.loads((folder / "weft" / "model.safetensors.index.json").read_text())
    shards = {}
    for name in set(index["weight_map"].values()):
        shards |= safetensors.torch.load_file(folder / "weft" / name)
    check_same(shards, of_safetensors, "weft/")

    # A checkpoint of three ranks, and the same as one file, as PyTorch joins it.
    save_with_ranks(3, str(folder / "dcp"), TYPES, after_step=True)
    dcp_to_torch_save(folder / "dcp", folder / "dcp.pt")

    torch.save(of_torch, folder / "python.pt")
    safetensors.torch.save_file(of_safetensors, folder / "python.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
