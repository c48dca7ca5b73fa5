// weft._C: the adapters of PyTorch's torch.distributed and torch.distributed.rpc.
#include "process_group.h"
#include "rpc_agent.h"

PYBIND11_MODULE(_C, module) {
  weft::python::bind_process_group(module);
  weft::python::bind_rpc(module);
}
