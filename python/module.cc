// weft._C: the adapters of PyTorch's torch.distributed and torch.distributed.rpc.
#include "gil.h"
#include "process_group.h"

#include <weft/python/torch_rpc/rpc_agent.h>

#include <torch/csrc/distributed/rpc/request_callback_impl.h>
#include <torch/csrc/utils/pybind.h>

namespace {

namespace py = pybind11;
using weft::torch_rpc::RpcAgent;
using weft::torch_rpc::RpcBackendOptions;
namespace pytorch = weft::torch_rpc::pytorch;

// Called without the GIL.
std::shared_ptr<RpcAgent> make_agent(const c10::intrusive_ptr<c10d::Store>& store, std::string name,
                                     pytorch::worker_id_t rank, int world_size,
                                     const RpcBackendOptions& options) {
  return {new RpcAgent(std::make_unique<pytorch::RequestCallbackImpl>(), store, std::move(name), rank,
                       world_size, options),
          [](const RpcAgent* agent) { weft::python::without_gil([agent] { delete agent; }); }};
}

void bind_rpc(py::module_& module) {
  py::module_::import("torch.distributed.rpc");  // registers the base classes
  py::class_<RpcBackendOptions, pytorch::RpcBackendOptions, std::shared_ptr<RpcBackendOptions>>(
      module, "RpcBackendOptions")
      .def(py::init<int, float, std::string>(), py::arg("num_worker_threads"), py::arg("rpc_timeout"),
           py::arg("init_method"))
      .def_readwrite("num_worker_threads", &RpcBackendOptions::worker_threads);
  py::class_<RpcAgent, pytorch::RpcAgent, std::shared_ptr<RpcAgent>>(module, "RpcAgent")
      .def(py::init(&make_agent), py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("world_size"),
           py::arg("options"), py::call_guard<py::gil_scoped_release>())
      // The base class has no overload for a rank.
      .def("get_worker_info", [](const RpcAgent& agent) { return agent.pytorch::RpcAgent::getWorkerInfo(); })
      .def("get_worker_info",
           [](const RpcAgent& agent, const std::string& name) { return agent.getWorkerInfo(name); })
      .def("get_worker_info",
           [](const RpcAgent& agent, pytorch::worker_id_t rank) { return agent.getWorkerInfo(rank); });
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  weft::python::bind_process_group(module);
  bind_rpc(module);
}
