"""What PyTorch's suites do not try of the backend `weft`: its ends, and arguments that one rank refuses.

Each program is the body of a rank. The other ranks run it too.
"""

import datetime
import os
import sys
import tempfile
import threading
import time
import unittest

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MASTER_ADDR"] = "127.0.0.1"
os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *sys.path])

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import weft.rpc
from torch._C import _distributed_c10d

TIMEOUT = 60  # s


def expect_error(body, *parts):
    try:
        body()
    except RuntimeError as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"without {missing}: {error}"
    else:
        raise AssertionError("no error")


def end_without_a_barrier(rank, size):
    dist.all_reduce(torch.ones(4))


def send_to_a_rank_that_ends(rank, size):
    large = torch.full((5_000_000,), float(rank))
    if rank == 0:
        dist.send(large, size - 1)
    elif rank == size - 1:
        dist.recv(large, 0)
        assert large[-1] == 0


def end_in_a_callback(rank, size):
    ended = threading.Event()

    def end(future):
        dist.destroy_process_group()
        ended.set()
        return future.value()

    dist.all_reduce(torch.ones(4), async_op=True).get_future().then(end)
    assert ended.wait(TIMEOUT)


def future_after_the_end(rank, size):
    value = torch.ones(4)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    dist.destroy_process_group()
    assert work.get_future().wait()[0][0] == size


def recv_from_a_rank_that_ends(rank, size):
    if rank == 1:
        expect_error(lambda: dist.recv(torch.ones(4), size - 1), "Connection closed by peer", f"rank {size - 1}")


def send_to_a_rank_that_does_not_receive(rank, size):
    if rank == 0:
        expect_error(lambda: dist.send(torch.ones(4), size - 1), "Connection closed by peer", f"rank {size - 1}")


def sizes_that_one_rank_refuses(rank, size):
    wrong = [1] * (size - 1) if rank == 0 else [1] * size
    expect_error(lambda: dist.all_to_all_single(torch.empty(size), torch.ones(size), [1] * size, wrong), "splits")
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones[0] == size, ones  # the ranks are at the same collective


def scatter_that_the_root_refuses(rank, size):
    parts = [torch.ones(4)] * (size + 1) if rank == 0 else None
    expect_error(lambda: dist.scatter(torch.empty(4), parts, src=0), "scatter")
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones[0] == size, ones


def lists_that_one_rank_refuses(rank, size):
    inputs = [torch.ones(4), torch.ones(2)]
    outputs = [[torch.empty(4), torch.empty(2)] for _ in range(size)]
    if rank == 0:
        outputs[0].pop()
    expect_error(lambda: dist.all_gather_coalesced(outputs, inputs), "all_gather")
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones[0] == size, ones


def death(rank, size):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait([f"ready{other}" for other in range(1, size)])
        os._exit(0)
    store.set(f"ready{rank}", "")
    expect_error(lambda: dist.all_reduce(torch.ones(4)), "Connection closed by peer", "rank 0")


def subgroup_that_one_rank_destroys(rank, size):
    group = dist.new_group(list(range(size)))
    for _ in range(20):
        dist.all_reduce(torch.ones(4), group=group)
    if rank == size - 1:
        dist.destroy_process_group(group)
    else:
        expect_error(lambda: dist.all_reduce(torch.ones(4), group=group), "Connection closed by peer",
                     f"rank {size - 1}")
    ones = torch.ones(4)
    dist.all_reduce(ones)  # the default group continues
    assert ones[0] == size, ones


def subgroups_that_end_first(rank, size):
    for _ in range(10):
        group = dist.new_group(list(range(size)))
        ones = torch.ones(100_000)
        dist.all_reduce(ones, group=group)
        dist.destroy_process_group(group)
        assert ones[-1] == size, ones


def reconfiguration_that_ends(rank, size, end):
    """Rank 0 waits for the others, which do not come; another thread ends its wait. Then all reconfigure."""
    store = dist.distributed_c10d._get_default_store()
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    handles = [str(other) for other in range(size)]

    def reconfigure(uuid):
        options = _distributed_c10d.ReconfigureOptions()
        options.uuid, options.handles, options.timeout = uuid, handles, datetime.timedelta(seconds=TIMEOUT)
        group.reconfigure(options).wait()

    if rank == 0:
        for delay in (0, 0.05, 1):
            ended = threading.Event()

            def keep_ending():
                time.sleep(delay)
                while not ended.wait(0.01):  # the first may come before reconfigure() has begun
                    end(group)

            ending = threading.Thread(target=keep_ending)
            ending.start()
            try:
                expect_error(lambda: reconfigure(1), "reconfigure(): abort() or shutdown() has ended it")
            finally:
                ended.set()
                ending.join()
            expect_error(lambda: group.barrier(_distributed_c10d.BarrierOptions()), "call reconfigure()")
        store.set("ended", "")
    store.wait(["ended"])
    reconfigure(2)
    ones = torch.ones(4)
    group.allreduce([ones], _distributed_c10d.AllreduceOptions()).wait()
    assert ones[0] == size, ones


def abort_next_to_reconfigure(rank, size):
    reconfiguration_that_ends(rank, size, lambda group: group.abort())


def shutdown_next_to_reconfigure(rank, size):
    reconfiguration_that_ends(rank, size, lambda group: group.shutdown())


PROGRAMS = [end_without_a_barrier, send_to_a_rank_that_ends, end_in_a_callback, future_after_the_end,
            recv_from_a_rank_that_ends, send_to_a_rank_that_does_not_receive, sizes_that_one_rank_refuses,
            scatter_that_the_root_refuses, lists_that_one_rank_refuses, death,
            subgroup_that_one_rank_destroys, subgroups_that_end_first, abort_next_to_reconfigure,
            shutdown_next_to_reconfigure]
RECONFIGURE = [abort_next_to_reconfigure, shutdown_next_to_reconfigure]


def run(rank, program, size, folder):
    warnings = os.open(os.path.join(folder, f"warnings{rank}"), os.O_RDWR | os.O_CREAT)
    os.dup2(warnings, sys.stderr.fileno())  # LibTorch writes them there
    store = dist.FileStore(os.path.join(folder, "store"), size)
    dist.init_process_group("weft", store=store, rank=rank, world_size=size,
                            enable_reconfigure=PROGRAMS[program] in RECONFIGURE)
    PROGRAMS[program](rank, size)
    if dist.is_initialized():
        dist.destroy_process_group()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(TIMEOUT)
    text = os.pread(warnings, 10_000, 0).decode()
    if PROGRAMS[program] is not death:
        assert "leaving the job" not in text, text  # the end was not in order


class Adapter(unittest.TestCase):
    def test_device_maps_are_of_the_cpu(self):
        options = weft.rpc.WeftRpcBackendOptions(device_maps={"worker1": {"cpu": "cpu"}}, devices=["cpu"])
        self.assertEqual(options.device_maps, {"worker1": {torch.device("cpu"): torch.device("cpu")}})
        with self.assertRaisesRegex(ValueError, "device map for worker1 names cuda:0.*host memory"):
            options.set_device_map("worker1", {"cpu": "cuda:0"})
        with self.assertRaisesRegex(ValueError, "devices names cuda:1"):
            options.set_devices(["cuda:1"])


for _number, _program in enumerate(PROGRAMS):
    for _size in (3, 4) if _program is recv_from_a_rank_that_ends else (2, 3, 4):
        def _test(self, number=_number, size=_size):
            with tempfile.TemporaryDirectory() as folder:
                ranks = mp.start_processes(run, (number, size, folder), size, join=False, start_method="forkserver")
                deadline = time.monotonic() + TIMEOUT
                while not ranks.join(1):
                    if time.monotonic() > deadline:
                        for process in ranks.processes:
                            process.kill()
                        self.fail(f"some ranks have not ended within {TIMEOUT} s")
        setattr(Adapter, f"test_{_program.__name__}_{_size}_ranks", _test)

if __name__ == "__main__":
    import adapter_test  # the processes find its functions by this name

    mp.set_forkserver_preload(["adapter_test"])
    unittest.main(adapter_test)
