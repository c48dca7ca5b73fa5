"""A job of torchft for bench_elastic: torchft_peer.py REPORTS WORKERS HEARTBEAT [HOST ADDRESS]...

Starts a lighthouse, and a process for each replica group, which has one rank. HEARTBEAT: the lighthouse's timeout of
heartbeats in seconds; the timeout of the managers is then 12 times as long, as is weft's RunOptions::hang. If it is
empty, torchft has its defaults. HOST ADDRESS: the network namespaces of this process and of each replica group. The
model is that of worker/main.cc.
"""
import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper
from torchft.process_group import ProcessGroupGloo

PR_SET_PDEATHSIG = 1
MIN_REPLICAS = 2  # with 3, two survivors wait for the third, which waits in Gloo for their connections to close
POLL = 0.1  # seconds: torchrun's --monitor-interval


def launch(workers, heartbeat, timeout, hosts):
    options = {"heartbeat_timeout_ms": int(1000 * heartbeat)} if heartbeat else {}
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=MIN_REPLICAS, **options)
    memory = os.memfd_create("steps")
    os.ftruncate(memory, 8 * workers)
    steps = memoryview(mmap.mmap(memory, 8 * workers)).cast("d")  # the time of each replica group's last step

    def start(replica):
        steps[replica] = 0
        address, command = lighthouse.address(), []
        if hosts:
            address = f"http://{hosts[1]}:{address.rsplit(':', 1)[1]}"
            command = ["ip", "netns", "exec", hosts[2 + 2 * replica]]
        own = hosts[3 + 2 * replica] if hosts else "localhost"
        command += [sys.executable, *sys.argv[:4], address, str(replica), str(memory), own]
        return subprocess.Popen(command, pass_fds=[memory])

    processes = [start(replica) for replica in range(workers)]
    while True:
        time.sleep(POLL)
        for replica, process in enumerate(processes):
            # Nothing in torchft ends a replica group that hangs, and that the others have excluded.
            if steps[replica] and max(steps) - steps[replica] > timeout:
                process.kill()
                process.wait()
            if process.poll() is not None:
                processes[replica] = start(replica)


def train(reports, timeout, lighthouse, replica, memory, workers, host):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the bench kills the launcher
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(1e6))  # the failure "hang": torchft's own threads continue
    reports = os.open(reports, os.O_WRONLY)
    steps = memoryview(mmap.mmap(memory, 8 * workers)).cast("d")
    torch.set_num_threads(1)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def load(state):
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    if host != "localhost":
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        socket.gethostname = lambda: host  # torchft's transport of states states it as the address
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(ProcessGroupGloo(timeout=timeout), load,
                      lambda: {"model": model.state_dict(), "optimizer": sgd.state_dict()},
                      min_replica_size=MIN_REPLICAS, timeout=timeout, rank=0, world_size=1, store_addr=host,
                      store_port=store.port, lighthouse_addr=lighthouse, replica_id=f"replica{replica}",
                      hostname=host)
    replicas, optimizer = DistributedDataParallel(manager, model), OptimizerWrapper(manager, sgd)
    batch = torch.randn(32, 512)
    while True:
        optimizer.zero_grad()
        replicas(batch).square().mean().backward()
        before = manager.current_step()  # after the quorum
        optimizer.step()
        rank, step = manager.participating_rank(), manager.current_step()
        if step == before or rank is None:  # the step is not applied, or this replica group has only received the state
            continue
        steps[replica] = time.monotonic()
        os.write(reports, f"{manager._quorum_id} {rank} {manager.num_participants()} {os.getpid()} {step} "
                          f"{time.monotonic_ns()}\n".encode())


def main():
    reports, workers, heartbeat, *rest = sys.argv[1:]
    heartbeat = float(heartbeat or 0)
    timeout = 12 * heartbeat or 60  # seconds; the Manager's default is 60
    if not rest or not rest[0].startswith("http"):
        return launch(int(workers), heartbeat, timeout, rest)
    lighthouse, replica, memory, host = rest
    train(reports, timedelta(seconds=timeout), lighthouse, int(replica), int(memory), int(workers), host)


main()
