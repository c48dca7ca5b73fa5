"""./dev bench python: weft's adapters next to PyTorch's backends, in the same processes and in alternating order.

Each round measures each peer of a case once; a figure is the median of the rounds' ratios of weft's time to the peer's.
Rows (docs/benchmarks.md): peer "weft", "gloo", "tensorpipe", and the floors "no_sync" (a DDP step without
communication), "self" (a call of a worker to itself), "wire" (the time of the bytes at the rate of the network) and
"idle" (a Python thread that counts while nothing arrives). Two hosts are network namespaces, which need root.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
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


RATE = 1e9  # bits a second, of the network between two hosts


@contextlib.contextmanager
def two_hosts():
    """Yields the names of two network namespaces, at 10.98.8.1 and 10.98.8.2."""
    names = [f"weft_python{os.getpid()}_{host}" for host in (0, 1)]

    def ip(words):
        subprocess.run(words, shell=True, check=True)

    try:
        for name in names:
            ip(f"ip netns add {name}")
        ip(f"ip -n {names[0]} link add eth0 type veth peer name eth0 netns {names[1]}")
        for host, name in enumerate(names):
            ip(f"ip -n {name} address add 10.98.8.{host + 1}/24 dev eth0")
            ip(f"ip -n {name} link set eth0 up && ip -n {name} link set lo up")
            ip(f"tc -n {name} qdisc add dev eth0 root tbf rate {RATE / 1e6:.0f}mbit burst 128kb latency 50ms")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name])


def run_on_host(index, host, options):
    """A rank of four, two on each host."""
    rank = 2 * host + index
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="4", MASTER_ADDR="10.98.8.1", MASTER_PORT="29500", WEFT_INSECURE="1",
                      WEFT_HOST=f"10.98.8.{host + 1}", GLOO_SOCKET_IFNAME="eth0")
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "weft": dist.new_group(backend="weft")}
    size = 1 << 22
    tensor = torch.ones(size)
    cases = {peer: lambda g=group: median_time(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX, group=g), 3)
             for peer, group in groups.items()}
    rounds = measure(cases, options.rounds)
    # Each host sends what it has once, and receives what the other has.
    rounds["wire"] = [4 * size * 8 / RATE] * options.rounds
    rows = []
    show(rank, rows, "two_hosts/all_reduce/16MiB", rounds)
    write(rank, rows, options)
    dist.destroy_process_group()


def count(seconds):
    """How far a Python thread counts in that time."""
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        number += 1
    return number


def counting(rank, port):
    """The time of one count on rank 1 while rank 0 calls operators of it, and while nothing arrives."""
    os.environ["MASTER_PORT"] = str(port)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, backend=rpc.BackendType.WEFT)
    small, times = torch.ones(8), {}
    if rank == 0:
        for case in ("idle", "weft"):
            counted = rpc.rpc_async("worker1", count, args=(1.0,))
            while not counted.done():
                rpc.rpc_sync("worker1", torch.neg, args=(small,)) if case == "weft" else time.sleep(0.01)
            times[case] = 1 / counted.wait()
    rpc.shutdown()
    return times


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


def measure(cases, rounds):
    """The times of each peer, one for each round; all ranks call it."""
    times = {peer: [] for peer in cases}
    for number in range(rounds):
        for peer in list(cases) if number % 2 == 0 else list(cases)[::-1]:
            dist.barrier()
            times[peer].append(cases[peer]())
    return times


def write(rank, rows, options):
    if rank == 0 and options.json:
        with open(options.json, "a") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")


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
            show(rank, rows, case, measure(peers, options.rounds))
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
        for peer, seconds in counting(rank, options.port + 500 + number).items():
            collected.setdefault("rpc/counting_thread", {}).setdefault(peer, []).append(seconds)
    for case, rounds in collected.items():
        show(rank, rows, case, rounds)
    write(rank, rows, options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="the cases whose names contain this text")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--host", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host is not None:
        return mp.spawn(run_on_host, args=(options.host, options), nprocs=2)
    options.port = 20000 + os.getpid() % 20000
    if options.json:
        open(options.json, "w").close()
    mp.spawn(run, args=(options,), nprocs=2)
    if options.only in "two_hosts/all_reduce/16MiB":
        with two_hosts() as names:
            # With process ids of their own: the processes of two hosts share no memory.
            hosts = [subprocess.Popen(["ip", "netns", "exec", name, "unshare", "--pid", "--fork", "--mount-proc",
                                       sys.executable, *sys.argv, "--host", str(host)])
                     for host, name in enumerate(names)]
            if any([host.wait() for host in hosts]):
                sys.exit("two_hosts: a rank has failed")


if __name__ == "__main__":
    sys.exit(main())
