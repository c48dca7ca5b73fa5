"""The backend WEFT of torch.distributed.rpc (docs/pytorch.md). The import of this module registers it.

    import torch.distributed.rpc as rpc
    import weft.rpc
    rpc.init_rpc("worker0", rank=0, world_size=2, backend=rpc.BackendType.WEFT)

The environment states the addresses and the credentials of an agent, as for every member of a job of weft:
WEFT_HOST, WEFT_LISTEN, WEFT_SECRET, WEFT_CERTIFICATE, WEFT_INSECURE (docs/launching.md).

Groups are static: world_size is required. torch 2.15 closes dynamic groups to other agents than
TensorPipeAgent: its shutdown() treats the group of every other agent as static.

A C++ program may be a worker (python/torch_rpc/worker.h), which serves operators; operator() declares them.
"""

import atexit
import threading

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.rpc import api, backend_registry, constants

from weft import _C


class WeftRpcBackendOptions(rpc.RpcBackendOptions):
    """The options of the backend WEFT.

    num_worker_threads: the number of requests that the agent serves at the same time. rpc_timeout: of calls that
    set none, in seconds; 0: none. init_method: the URL of the store. device_maps, devices: as TensorPipe has them, of
    the CPU only.
    """

    def __init__(
        self,
        *,
        num_worker_threads=constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout=constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method=constants.DEFAULT_INIT_METHOD,
        device_maps=None,
        devices=None,
    ):
        super().__init__(rpc_timeout, init_method)
        self.num_worker_threads = num_worker_threads
        self.device_maps = {}
        for to, device_map in (device_maps or {}).items():
            self.set_device_map(to, device_map)
        self.set_devices(devices or [])

    def set_device_map(self, to, device_map):
        """Adds to the map for calls of the worker `to`. ValueError: a device is not the CPU."""
        pairs = {torch.device(here): torch.device(there) for here, there in device_map.items()}
        _expect_cpu([*pairs, *pairs.values()], f"the device map for {to}")
        self.device_maps.setdefault(to, {}).update(pairs)

    def set_devices(self, devices):
        """ValueError: a device is not the CPU."""
        self.devices = [torch.device(device) for device in devices]
        _expect_cpu(self.devices, "devices")


def _expect_cpu(devices, where):
    for device in devices:
        if device.type != "cpu":
            raise ValueError(
                f"{where} names {device}, but the RPC backend WEFT sends tensors in host memory only, because it has no "
                "copies between devices: move tensors to the CPU, or use the backend TENSORPIPE"
            )


def operator(schema):
    """Declares an operator that C++ workers define, and returns it for rpc_sync(), rpc_async() and remote().

    schema: as in C++, for example "aten::table_lookup(Tensor ids) -> Tensor". PyTorch's RPC calls only operators of
    the namespace aten by their names, and each returns one value.
    """
    name = schema.partition("(")[0]
    torch.library.define(name, schema[len(name):])
    namespace, _, own_name = name.partition("::")
    declared = getattr(getattr(torch.ops, namespace), own_name)
    torch.jit._builtins._register_builtin(declared, name)  # PyTorch's RPC calls such functions by their names
    return declared


def _construct_options(rpc_timeout, init_method, **options):
    return WeftRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **options)


def _init_backend(store, name, rank, world_size, rpc_backend_options):
    if not isinstance(store, dist.Store):
        raise TypeError(f"`store` must be a c10d::Store. {store}")
    if not isinstance(rpc_backend_options, WeftRpcBackendOptions):
        raise TypeError(f"`rpc_backend_options` must be a `WeftRpcBackendOptions`. {rpc_backend_options}")
    if not world_size:
        raise ValueError("the RPC backend WEFT needs a world_size: it has no dynamic groups")
    agent = _C.RpcAgent(
        store, name, rank, world_size, rpc_backend_options, rpc_backend_options.num_worker_threads
    )
    api._init_rpc_states(agent)
    return agent


@atexit.register
def _end():
    """Ends an agent that the program has not shut down, so that its peers know at once.

    Requests that the agent still serves have 5 s to return. A request that does not return does not keep the process.
    """
    if api._is_current_rpc_agent_set() and isinstance(api._get_current_rpc_agent(), _C.RpcAgent):
        end = threading.Thread(target=api.shutdown, kwargs={"graceful": False}, daemon=True)
        end.start()
        end.join(5)


backend_registry.register_backend("WEFT", _construct_options, _init_backend)
rpc.BackendType = backend_registry.BackendType
