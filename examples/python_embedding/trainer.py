# A trainer of the table in python_embedding.cc, which is worker 0. The environment states MASTER_ADDR, MASTER_PORT,
# RANK and WORLD_SIZE.
import os

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import weft.rpc  # adds the backend WEFT
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS, WIDTH = 100, 8  # as in python_embedding.cc

lookup = weft.rpc.operator("aten::table_lookup(Tensor ids) -> Tensor")
update = weft.rpc.operator("aten::table_update(Tensor ids, Tensor gradients) -> int")
finish = weft.rpc.operator("aten::table_finish() -> int")

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"trainer{rank}", rank=rank, world_size=world_size, backend=rpc.BackendType.WEFT)
store = dist.PrefixStore("trainers", dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
dist.init_process_group("weft", store=store, rank=rank - 1, world_size=world_size - 1)

torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(WIDTH, 1))
wanted = torch.randn(ROWS, 1)  # the value of each id
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(rank)
for step in range(400):
    ids = torch.randint(ROWS, (32,), generator=generator)
    embedded = rpc.rpc_sync("table", lookup, args=(ids,)).requires_grad_()
    loss = nn.functional.mse_loss(model(embedded), wanted[ids])
    optimizer.zero_grad()
    loss.backward()
    rpc.rpc_sync("table", update, args=(ids, embedded.grad))
    optimizer.step()
print(f"trainer {rank}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
rpc.rpc_sync("table", finish)
rpc.shutdown(graceful=False)  # the graceful one calls Python functions on all workers
