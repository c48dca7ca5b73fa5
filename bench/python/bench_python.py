"""./dev bench python: weft's adapters next to PyTorch's backends, in the same processes and in alternating order.

Each round measures each peer of a case once; a figure is the median of the rounds' ratios of weft's time to the peer's.
Rows (docs/benchmarks.md): peer "weft", "gloo", "tensorpipe", and the floors "no_sync" (a DDP step without
communication) and "self" (a call of a worker to itself).
"""

import argparse
import json
import os
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")  # DDP asks the backend for the memory of its buckets

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.rpc as rpc  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402

CPU = torch.device("cpu")


def median_time(call, calls):
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def reductions(groups):
    """Cases of all_reduce: any tensor, and memory of the backend."""
    for name, size, calls in (("4KiB", 1 << 10, 500), ("1MiB", 1 << 18, 100), ("16MiB", 1 << 22, 15)):
        tensors = {peer: torch.ones(size) for peer in groups}
        own = groups["weft"]._get_backend(CPU).allocate_tensor(size, dtype=torch.float32, device=CPU)
        own.fill_(1)

        def reduce(peer, tensor, calls=calls):
            return median_time(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX, group=groups[peer]), calls)

        yield f"all_reduce/{name}", {peer: lambda p=peer, t=tensor: reduce(p, t) for peer, tensor in tensors.items()}
        yield f"all_reduce/{name}/allocate_tensor", {
            "gloo": lambda t=tensors["gloo"]: reduce("gloo", t), "weft": lambda t=own: reduce("weft", t)}


def ddp(groups):
    """A step of 25 million parameters."""

    def step_of(model, synchronizes):
        x = torch.randn(8, 1250)

        def step():
            model.zero_grad(set_to_none=False)
            if synchronizes:
                model(x).sum().backward()
            else:
                with model.no_sync():
                    model(x).sum().backward()

        return lambda: median_time(step, 4)

    models = {}
    for peer, group in groups.items():
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Linear(1250, 1250) for _ in range(16)))
        models[peer] = nn.parallel.DistributedDataParallel(layers, process_group=group, gradient_as_bucket_view=True)
        step_of(models[peer], True)()  # rebuilds the buckets
    cases = {peer: step_of(model, True) for peer, model in models.items()}
    cases["no_sync"] = step_of(models["gloo"], False)
    yield "ddp/25M", cases


def decode(groups):
    """Tensor-parallel decoding of a small transformer, batch 1: two all_reduces for each of 8 blocks a token."""
    width, ranks = 512, dist.get_world_size()
    up = [torch.randn(width, 4 * width // ranks) for _ in range(16)]
    down = [torch.randn(4 * width // ranks, width) for _ in range(16)]

    def token(group):
        x = torch.ones(1, width)
        for a, b in zip(up, down):
            y = torch.relu(x @ a) @ b
            dist.all_reduce(y, group=group)
            x = torch.nn.functional.layer_norm(x + y, (width,))

    yield "decode/batch1", {p: lambda g=g: median_time(lambda: token(g), 40) for p, g in groups.items()}


def echo(value):
    return value


def of_rpc(backend, rank, port):
    """The times of calls from rank 0 to rank 1, and to itself, by case."""
    os.environ["MASTER_PORT"] = str(port)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, backend=getattr(rpc.BackendType, backend))
    times = {}
    if rank == 0:
        small, large = torch.ones(8), torch.ones(1 << 20)
        cases = {"operator": (torch.neg, (small,), 300), "function": (echo, (1,), 300), "4MB": (echo, (large,), 30)}
        for case, (function, args, calls) in cases.items():
            for to in ("worker1", "worker0"):
                rpc.rpc_sync(to, function, args=args)
                times[case, to == "worker0"] = median_time(lambda: rpc.rpc_sync(to, function, args=args), calls)
    rpc.shutdown()
    return times


def show(rank, out, case, rounds):
    """Prints the medians of a case, and the ratios of weft's times to the others'."""
    if rank != 0:
        return
    for peer, times in rounds.items():
        for number, seconds in enumerate(times):
            out.append({"bench": "python", "case": case, "peer": peer, "round": number, "threads": 1,
                        "p50_us": seconds * 1e6})
    text = "".join(f"  {peer} {statistics.median(times) * 1e6:.1f} us" for peer, times in rounds.items())
    for peer, times in rounds.items():
        if peer != "weft":
            ratio = statistics.median(ours / theirs for ours, theirs in zip(rounds["weft"], times))
            text += f"  weft/{peer} {ratio:.2f}"
    print(f"{case:32}{text}", flush=True)


def run(rank, options):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
    rows = []
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "weft": dist.new_group(backend="weft")}
    for cases in (reductions, ddp, decode):
        for case, peers in cases(groups):
            if options.only not in case:
                continue
            rounds = {peer: [] for peer in peers}
            for number in range(options.rounds):
                order = list(peers) if number % 2 == 0 else list(peers)[::-1]
                for peer in order:
                    dist.barrier()
                    rounds[peer].append(peers[peer]())
            show(rank, rows, case, rounds)
    dist.destroy_process_group()

    import weft.rpc  # noqa: F401

    collected = {}
    for number in range(options.rounds if options.only in "rpc" or options.only.startswith("rpc") else 0):
        order = ("TENSORPIPE", "WEFT") if number % 2 == 0 else ("WEFT", "TENSORPIPE")
        for position, backend in enumerate(order):
            for (case, itself), seconds in of_rpc(backend, rank, options.port + 1 + 2 * number + position).items():
                peer = "self" if itself else ("weft" if backend == "WEFT" else "tensorpipe")
                if not itself or backend == "WEFT":
                    collected.setdefault(f"rpc_sync/{case}", {}).setdefault(peer, []).append(seconds)
    for case, rounds in collected.items():
        show(rank, rows, case, rounds)
    if rank == 0 and options.json:
        with open(options.json, "w") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="the cases whose names contain this text")
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    options.port = 20000 + os.getpid() % 20000
    mp.spawn(run, args=(options,), nprocs=2)


if __name__ == "__main__":
    sys.exit(main())
