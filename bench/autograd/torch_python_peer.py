"""PyTorch's distributed autograd in Python, as one of the peers of bench_autograd, which starts this twice: as the workers
and as the client.

  torch_python_peer.py serve   KIND WORKERS SIZE SKEW STORE
  torch_python_peer.py measure KIND WORKERS SIZE SKEW STORE WARM_UP DURATION     (seconds)

KIND is chain, fan_out, passes, to_here, churn, lookup or update (bench/autograd/work.h); SIZE of the last two is how many
rows there are, which worker i has where the id modulo the number of workers is i; each worker is a process, which the server forks
before PyTorch is loaded; STORE is a file by which all find each other. What both say, on descriptor 3, a packet a
message, is in bench/harness/pair.h; every answer is checked.
"""
import json
import os
import signal
import socket
import sys
import threading
import time

from measuring import Meter, check, threads

PASSES_AT_A_TIME = 64
OBJECTS_AT_A_TIME = 1000
WORKER_THREADS = 16  # PyTorch's default
TIMEOUT = 60
BATCH_ROWS, ROW_SIZE = 4096, 16


WEIGHT = None  # this worker's matrix


def chain(x, rest):
    import torch
    import torch.distributed.rpc as rpc
    here = torch.mm(x, weight(x.size(0)))
    return rpc.rpc_sync(rest[0], chain, args=(here, rest[1:])) if rest else here


def weight(size):
    global WEIGHT
    if WEIGHT is None:
        import torch
        WEIGHT = torch.full((size, size), 1 / size, requires_grad=True)
    return WEIGHT


class Thing:
    def get(self):
        return 0


TABLE = None  # this worker's rows


def table(rows):
    global TABLE
    if TABLE is None:
        import torch
        TABLE = torch.nn.Embedding(rows, ROW_SIZE, sparse=True)
    return TABLE


def look_up(ids, rows):
    return table(rows)(ids)


def parameter(rows):
    import torch.distributed.rpc as rpc
    return rpc.RRef(table(rows).weight)


def start(name, rank, world, store):
    os.environ["TP_SOCKET_IFNAME"] = "lo"  # else it listens at what the host's name resolves to
    import torch.distributed.rpc as rpc
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=WORKER_THREADS, rpc_timeout=TIMEOUT,
                                              init_method=f"file://{store}", _transports=["uv"],
                                              _channels=["mpt_uv", "basic"])
    rpc.init_rpc(name, rank=rank, world_size=world, rpc_backend_options=options)
    return rpc


def step(rpc, autograd, torch, workers, size, kind):
    with autograd.context() as context:
        x = torch.ones(size, size, requires_grad=True)
        if kind == "fan_out":
            parts = [rpc.rpc_async(worker, chain, args=(x, [])) for worker in workers]
            loss = sum(part.wait().sum() for part in parts)
        else:
            loss = rpc.rpc_sync(workers[0], chain, args=(x, workers[1:])).sum()
        autograd.backward(context, [loss])
        check(autograd.get_gradients(context)[x] is not None)


def rows_of_a_table(rpc, autograd, torch, workers, size, skew, update, meter):
    from torch.distributed.optim import DistributedOptimizer
    each = size // len(workers) + 1
    weights = [rpc.rpc_sync(worker, parameter, args=(each,)) for worker in workers]
    optimizer = DistributedOptimizer(torch.optim.SGD, weights, lr=0.01)
    torch.manual_seed(7)
    batches = [(torch.rand(BATCH_ROWS, dtype=torch.float64).pow(skew) * size).long() for _ in range(64)]
    turn, more = 0, True
    while more:
        ids = batches[turn % len(batches)]
        turn += 1
        with autograd.context() as context:
            parts = []
            for i, worker in enumerate(workers):
                where = (ids % len(workers) == i).nonzero().squeeze(1)
                parts.append((where, rpc.rpc_async(worker, look_up, args=(ids[where] // len(workers), each))))
            rows = torch.cat([part.wait() for _, part in parts])
            rows = rows[torch.argsort(torch.cat([where for where, _ in parts]))]
            check(rows.shape == (BATCH_ROWS, ROW_SIZE))
            if update:
                autograd.backward(context, [rows.sum()])
                optimizer.step(context)
        more = meter.count(BATCH_ROWS)
    return meter.rate()


def measure(rpc, torch, kind, workers, size, skew, meter):
    import torch.distributed.autograd as autograd
    if kind in ("lookup", "update"):
        return rows_of_a_table(rpc, autograd, torch, workers, size, skew, kind == "update", meter)
    if kind in ("chain", "fan_out"):
        more = True
        while more:
            began = time.perf_counter()
            step(rpc, autograd, torch, workers, size, kind)
            more = meter.count(latency=time.perf_counter() - began)
        return meter.latency()
    if kind == "to_here":
        x, more = torch.ones(size, size), True
        while more:
            began = time.perf_counter()
            check(rpc.remote(workers[0], chain, args=(x, [])).to_here().numel() == size * size)
            more = meter.count(latency=time.perf_counter() - began)
        return meter.latency()
    if kind == "churn":
        more = True
        while more:
            things = [rpc.remote(workers[0], Thing) for _ in range(OBJECTS_AT_A_TIME)]
            check(things[-1].rpc_sync().get() == 0)
            del things
            more = meter.count(OBJECTS_AT_A_TIME)
        return meter.rate()
    lock, state = threading.Lock(), {"more": True}

    def steps():
        while state["more"]:
            step(rpc, autograd, torch, workers, size, kind)
            with lock:
                state["more"] = state["more"] and meter.count()

    threads = [threading.Thread(target=steps) for _ in range(PASSES_AT_A_TIME)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return meter.rate()


def main():
    role, kind, workers, size, skew, store = sys.argv[1:7]
    workers, size, skew = int(workers), int(size), float(skew)
    names = [f"worker{i}" for i in range(workers)]
    channel = socket.socket(fileno=3)
    rank = 0
    children = []
    if role == "serve":
        if os.path.exists(store):
            os.remove(store)
        channel.send(store.encode())  # at once: the client loads PyTorch meanwhile
        for i in range(1, workers):
            child = os.fork()
            if child == 0:
                rank, children = i, None
                break
            children.append(child)
    try:
        import torch
        import torch.distributed.rpc  # noqa: F401
    except ImportError as error:
        sys.exit(f"{sys.executable} has no PyTorch to import: {error}")

    if role == "serve":
        start(names[rank], rank, workers + 1, store)
        if children is None:  # killed by the first
            signal.pause()
        channel.recv(64)
        channel.send(str(threads()).encode())
        for child in children:
            os.kill(child, signal.SIGKILL)
        os.remove(store)
    else:
        rpc = start("client", workers, workers + 1, store)
        meter = Meter(float(sys.argv[7]), float(sys.argv[8]))
        figures = measure(rpc, torch, kind, names, size, skew, meter)
        channel.send(json.dumps({"figures": figures, "threads": threads()}).encode())
    os._exit(0)  # a graceful shutdown needs the other side, and is not measured


if __name__ == "__main__":
    main()
