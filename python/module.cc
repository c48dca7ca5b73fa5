// weft._C: the adapters of PyTorch's torch.distributed and torch.distributed.rpc.
#include "gil.h"
#include "process_group.h"

#include <weft/python/torch_rpc/rpc_agent.h>

#include <torch/csrc/distributed/rpc/request_callback_impl.h>
#include <torch/csrc/utils/pybind.h>

namespace {

namespace py = pybind11;
using weft::python::ProcessGroup;
using weft::torch_rpc::RpcAgent;
namespace pytorch = weft::torch_rpc::pytorch;

// Called without the GIL.
std::shared_ptr<RpcAgent> make_agent(const c10::intrusive_ptr<c10d::Store>& store, std::string name,
                                     pytorch::worker_id_t rank, int world_size,
                                     const pytorch::RpcBackendOptions& options, int worker_threads) {
  return {new RpcAgent(std::make_unique<pytorch::RequestCallbackImpl>(), store, std::move(name), rank,
                       world_size, options, worker_threads),
          [](const RpcAgent* agent) { weft::python::without_gil([agent] { delete agent; }); }};
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  // These register the base classes.
  py::module_::import("torch.distributed");
  py::module_::import("torch.distributed.rpc");
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<ProcessGroup, c10d::Backend, c10::intrusive_ptr<ProcessGroup>>(module, "ProcessGroup")
      .def(py::init(&ProcessGroup::create), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("options"), without_gil);
  py::class_<RpcAgent, pytorch::RpcAgent, std::shared_ptr<RpcAgent>>(module, "RpcAgent")
      .def(py::init(&make_agent), py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("world_size"),
           py::arg("options"), py::arg("num_worker_threads"), without_gil)
      // The base class has no overload for a rank.
      .def("get_worker_info", [](const RpcAgent& agent) { return agent.pytorch::RpcAgent::getWorkerInfo(); })
      .def("get_worker_info", py::overload_cast<const std::string&>(&RpcAgent::getWorkerInfo, py::const_))
      .def("get_worker_info", py::overload_cast<pytorch::worker_id_t>(&RpcAgent::getWorkerInfo, py::const_));
}
