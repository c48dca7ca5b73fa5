#!/usr/bin/env python3
"""The folder order of includes: a folder includes only itself and the folders that its line below names.

This table is the architecture. What else is checked:
  - LibTorch stays out of rpc/ (but rpc/tensor), rref/, parallel/collectives/flight/ and plan/, parallel/schedule/,
    parallel/partition/, parallel/planner/, parallel/elastic/plan/;
  - a folder `internal` holds the implementation of the folder that it is in, and counts as a part of it. It is not installed, so no header
    outside such folders includes its headers;
  - spdlog, prometheus-cpp and civetweb stay inside rpc/observe, and libcurl and nlohmann-json out of the folders of weft::rpc;
  - generated Cap'n Proto headers are included by sources and by headers in an `internal` folder only, because they refuse
    every other version of the library;
  - OpenSSL's headers likewise, so that a program that includes weft need not compile them;
  - headers of weft are included as <weft/FOLDER/FILE.h>, and a source includes its own header first;
  - a header in rpc/ declares no class that a higher folder defines.
"""
import re
import sys

from sources import ROOT, cxx_files

# rpc/ is one library, and its folders also have an order: each may include those before it. Headers directly
# in rpc/ (rpc/rpc.h) represent all of them.
RPC = ["rpc/core", "rpc/wire", "rpc/codec", "rpc/security", "rpc/transport", "rpc/call", "rpc/endpoint", "rpc/stream", "rpc/agent", "rpc/balance",
       "rpc/trace", "rpc"]
# Job control, a component above rpc/.
JOB = ["rpc/job/store", "rpc/job/membership", "rpc/job"]
# dist_optim/ likewise. Headers directly in dist_optim/ are what programs include.
DIST_OPTIM = ["dist_optim/local", "dist_optim/service", "dist_optim/lbfgs", "dist_optim", "dist_optim/checkpoint"]
# The inner folders of parallel/collectives/ are also one library: plans (no LibTorch), the definition of operations, NCCL, the state of a group,
# and the backends: messages and shared memory are independent of each other.
COLLECTIVES = [f"parallel/collectives/{folder}" for folder in ("plan", "operation", "nccl", "internal/group", "internal/messages", "internal/shm", "internal/hosts")]
OPERATION = [*RPC, "rpc/tensor", "parallel/collectives/plan", "parallel/collectives/operation"]
UP_TO_BACKENDS = [*OPERATION, "parallel/collectives/flight", "parallel/collectives/nccl", "parallel/collectives/internal/group"]
UP_TO_GROUPS = [*RPC, *JOB, "rpc/tensor", "parallel/collectives/flight", *COLLECTIVES, "parallel/collectives"]
UP_TO_RREF = [*RPC, "rref/protocol", "rref"]
WEIGHTS = ["parallel/weights"]
UP_TO_AUTOGRAD = [*UP_TO_RREF, "rpc/tensor", "dist_autograd/engine", "dist_autograd"]
PIPELINE = [*UP_TO_AUTOGRAD, *WEIGHTS, *DIST_OPTIM, *UP_TO_GROUPS, "parallel/training", "parallel/data_parallel", "parallel/tensor_parallel", "parallel/sharded/checkpoint",
            "parallel/sharded", "parallel/schedule", "parallel/partition"]

# Folder -> the folders that it may include, in addition to itself.
LAYERS = {
    **{folder: RPC[:place] for place, folder in enumerate(RPC)},
    **{folder: [*RPC, *JOB[:place]] for place, folder in enumerate(JOB)},
    "rpc/testing": RPC,
    "rpc/observe": RPC,
    "rpc/tensor": RPC,
    "rref/protocol": RPC,
    "rref": [*RPC, "rref/protocol"],
    "dist_autograd/engine": [*RPC, "rpc/tensor"],
    "dist_autograd": [*UP_TO_RREF, "rpc/tensor", "dist_autograd/engine"],
    "parallel/weights": ["rpc/core", "rpc/wire", "rpc/tensor"],
    **{folder: [*UP_TO_AUTOGRAD, *WEIGHTS, *DIST_OPTIM[:place]] for place, folder in enumerate(DIST_OPTIM)},
    "dist_optim/serve": RPC,
    "dist_optim/embedding": [*UP_TO_AUTOGRAD, *WEIGHTS, *DIST_OPTIM],
    "parallel/collectives/flight": RPC,
    "parallel/collectives/plan": ["rpc/core"],
    "parallel/collectives/operation": OPERATION[:-1],
    "parallel/collectives/nccl": OPERATION,
    "parallel/collectives/internal/group": UP_TO_BACKENDS[:-1],
    "parallel/collectives/internal/messages": UP_TO_BACKENDS,
    "parallel/collectives/internal/shm": UP_TO_BACKENDS,
    "parallel/collectives/internal/hosts": [*UP_TO_BACKENDS, "parallel/collectives/internal/messages", "parallel/collectives/internal/shm"],
    "parallel/collectives": UP_TO_GROUPS[:-1],
    "parallel/schedule": ["rpc/core"],
    "parallel/partition": ["rpc/core", "parallel/schedule"],
    "parallel/planner": ["rpc/core", "parallel/schedule", "parallel/partition"],
    "parallel/data_parallel/hooks": UP_TO_GROUPS,
    "parallel/training": UP_TO_GROUPS,
    "parallel/data_parallel": [*UP_TO_AUTOGRAD, *UP_TO_GROUPS, "parallel/training", "parallel/data_parallel/hooks"],
    "parallel/data_parallel/negotiated": [*UP_TO_GROUPS, "parallel/training", "parallel/data_parallel/hooks", "parallel/data_parallel"],
    "parallel/sharded/checkpoint": [*UP_TO_AUTOGRAD, *WEIGHTS, *DIST_OPTIM, *UP_TO_GROUPS, "parallel/training"],
    "parallel/tensor_parallel": [*UP_TO_GROUPS, "parallel/training"],
    "parallel/sharded": [*UP_TO_AUTOGRAD, *WEIGHTS, *DIST_OPTIM, *UP_TO_GROUPS, "parallel/training", "parallel/data_parallel", "parallel/tensor_parallel", "parallel/sharded/checkpoint"],
    "parallel/pipeline": PIPELINE,
    "parallel/pipeline/remote": [*PIPELINE, "parallel/pipeline"],
    "parallel/elastic/plan": ["rpc/core"],
    "parallel/elastic": [*UP_TO_GROUPS, "parallel/training", "parallel/data_parallel", "parallel/elastic/plan"],
    "parallel/elastic/sharded": [*UP_TO_AUTOGRAD, *WEIGHTS, *DIST_OPTIM, *UP_TO_GROUPS, "parallel/training", "parallel/data_parallel", "parallel/tensor_parallel",
                                 "parallel/sharded/checkpoint", "parallel/sharded", "parallel/elastic/plan", "parallel/elastic"],
    "parallel/elastic/pipeline": [*PIPELINE, "parallel/pipeline", "parallel/elastic/plan", "parallel/elastic", "parallel/elastic/sharded"],
}
WITHOUT_TORCH = [*RPC, *JOB, "rpc/testing", "rpc/observe", "rref", "rref/protocol", "parallel/collectives/flight", "parallel/collectives/plan", "parallel/schedule",
                 "parallel/partition", "parallel/planner", "parallel/elastic/plan", "dist_optim/serve"]
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
OPENSSL = re.compile(r"openssl/")
JOB_ALONE = re.compile(r"(curl|nlohmann)/")
OBSERVE = re.compile(r"(spdlog/|prometheus/|civetweb\.h|CivetServer\.h)")
DEFINITION = re.compile(r"^(?:class|struct) (?:WEFT_EXPORT )?(?:\[\[nodiscard\]\] )?(\w+)(?: final)?\b[^;{]*\{", re.MULTILINE)
DECLARATION = re.compile(r"^(?:class|struct) (\w+);", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def layer_of(path):
    """The folder of LAYERS that holds this path, or None for programs, tests and folders that the table lacks."""
    for folder in sorted(LAYERS, key=len, reverse=True):
        if path.startswith(folder + "/") and (folder not in ("rpc", "dist_optim") or path.count("/") == 1):
            return folder
    return None


def problems_of(path, text):
    layer = layer_of(path)
    if layer is None and path.split("/")[0] in LAYERS:
        yield f"{path}: its folder is missing in tests/checks/include_order.py, which says what it may include"
        return
    includes = [(n, *m.groups()) for n, line in enumerate(text.splitlines(), 1) if (m := INCLUDE.match(line))]
    own = path[:-3] + ".h" if path.endswith(".cc") else None

    for number, quote, name in includes:
        where = f"{path}:{number}: "
        if name.endswith(".capnp.h") and name.startswith("weft/"):
            if path.endswith(".h") and "internal" not in path.split("/") and layer is not None:
                yield where + f"{name} is generated: only sources and headers in `internal` folders may include it"
        if layer is None:
            continue
        if TORCH.match(name) and layer in WITHOUT_TORCH:
            yield where + f"{layer}/ builds without LibTorch and cannot include {name}"
        if JOB_ALONE.match(name) and layer in RPC:
            yield where + f"weft::rpc needs Asio, Cap'n Proto and OpenSSL alone, and cannot include {name}"
        if OBSERVE.match(name) and layer != "rpc/observe":
            yield where + f"{name} belongs into rpc/observe/"
        if OPENSSL.match(name) and path.endswith(".h") and "internal" not in path.split("/"):
            yield where + f"{name}: only sources and headers in `internal` folders may include it"
        if name == "torch/torch.h":
            yield where + "torch/torch.h takes 12 s to compile: include the least that is needed"
        if "/internal/" in name and path.endswith(".h") and "internal" not in path.split("/"):
            yield where + f"{name} is not installed: only sources and headers in `internal` folders may include it"
        if quote == '"':
            yield where + f'"{name}": headers of weft are included as <weft/FOLDER/FILE.h>'
        if name.startswith("weft/"):
            target = layer_of(name[len("weft/"):])
            if target is None:
                yield where + f"{name} is in no layer"
            elif target != layer and target not in LAYERS[layer]:
                yield where + f"{layer}/ comes before {target}/ and cannot include {name}"

    if layer is not None and own is not None and (ROOT / own).is_file() and includes:
        if includes[0][2] != "weft/" + own:
            yield f"{path}:{includes[0][0]}: its own header <weft/{own}> comes first, in a separate block"


def upward_declarations(texts):
    """Headers of rpc/ that declare a class which a folder above theirs defines. texts: by path."""
    headers = {path: text for path, text in texts.items() if path.endswith(".h") and layer_of(path) in RPC}
    folders = {}
    for path, text in headers.items():
        for name in DEFINITION.findall(text):
            folders.setdefault(name, set()).add(layer_of(path))
    for path, text in headers.items():
        layer = layer_of(path)
        for name in DECLARATION.findall(text):
            if name in folders and not folders[name] & {layer, *LAYERS[layer]}:
                yield f"{path}: declares {name}, which {'/ and '.join(sorted(folders[name]))}/ defines: {layer}/ comes before it"


def main():
    texts = {str(f): (ROOT / f).read_text() for f in cxx_files()}
    problems = [p for f, text in texts.items() for p in problems_of(f, text)]
    problems += upward_declarations(texts)
    print("\n".join(problems) if problems else f"include order: {len(cxx_files())} files in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
