"""PyTorch's RPC in Python, as one of the peers of bench_rpc, which starts this twice: as server and as client.

  torch_python_peer.py serve   KIND TRANSPORT BYTES STORE
  torch_python_peer.py measure KIND TRANSPORT BYTES STORE WARM_UP DURATION     (seconds)

KIND is tiny, small_tensor, throughput, bulk or echo; TRANSPORT is `default` (what the agent chooses: shared memory
between processes of one host) or `uv` (TCP); STORE is a file by which the two find each other. What both say, on
descriptor 3, a packet a message, is in bench/harness/pair.h; every answer is checked.

A tiny call is an operator of PyTorch on one integer, which it serves without running Python: the fastest call there is.
"""
import collections
import json
import os
import socket
import sys
import time

from measuring import Meter, check, threads

IN_FLIGHT = 64
WORKER_THREADS = 16  # PyTorch's default
TIMEOUT = 60


def take(tensor):  # what bulk calls
    return tensor.numel()


def echo(tensor):
    return tensor


def start(rpc, torch, name, rank, transport, store):
    os.environ["TP_SOCKET_IFNAME"] = "lo"  # else it listens at what the host's name resolves to
    options = {"num_worker_threads": WORKER_THREADS, "rpc_timeout": TIMEOUT, "init_method": f"file://{store}"}
    if transport == "uv":
        options |= {"_transports": ["uv"], "_channels": ["mpt_uv", "basic"]}
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(**options))


def one_by_one(call, meter):
    more = True
    while more:
        began = time.perf_counter()
        call()
        more = meter.count(latency=time.perf_counter() - began)


def measure(rpc, torch, kind, size, meter):
    if kind == "throughput":
        one = torch.ones(1, dtype=torch.int64)
        waiting = collections.deque(rpc.rpc_async("server", torch.neg, args=(one,)) for _ in range(IN_FLIGHT))
        more = True
        while more:
            check(waiting.popleft().wait().item() == -1)
            more = meter.count()
            if more:
                waiting.append(rpc.rpc_async("server", torch.neg, args=(one,)))
        for future in waiting:
            future.wait()
        return meter.rate("calls_per_s", 1)
    if kind == "tiny":
        one = torch.ones(1, dtype=torch.int64)
        one_by_one(lambda: check(rpc.rpc_sync("server", torch.neg, args=(one,)).item() == -1), meter)
        return meter.latency()
    tensor = torch.ones(4 if kind == "small_tensor" else size // 4)
    if kind == "bulk":
        one_by_one(lambda: check(rpc.rpc_sync("server", take, args=(tensor,)) == tensor.numel()), meter)
        return meter.rate("GBps", size / 1e9)

    def there_and_back():
        answer = rpc.rpc_sync("server", torch.neg if kind == "small_tensor" else echo, args=(tensor,))
        check(answer.numel() == tensor.numel() and answer[-1].item() == (-1 if kind == "small_tensor" else 1))

    one_by_one(there_and_back, meter)
    return meter.latency()


def main():
    role, kind, transport, size, store = sys.argv[1:6]
    channel = socket.socket(fileno=3)
    if role == "serve":
        if os.path.exists(store):
            os.remove(store)
        channel.send(store.encode())  # at once: the client loads PyTorch meanwhile
    try:
        import torch
        import torch.distributed.rpc as rpc
    except ImportError as error:
        sys.exit(f"{sys.executable} has no PyTorch to import: {error}")

    if role == "serve":
        start(rpc, torch, "server", 0, transport, store)
        channel.recv(64)
        channel.send(str(threads()).encode())
        os.remove(store)
    else:
        start(rpc, torch, "client", 1, transport, store)
        meter = Meter(float(sys.argv[6]), float(sys.argv[7]))
        figures = measure(rpc, torch, kind, int(size), meter)
        channel.send(json.dumps({"figures": figures, "threads": threads()}).encode())
    os._exit(0)  # an orderly end needs the other side too, and is not what is measured


if __name__ == "__main__":
    main()
