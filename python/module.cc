// weft._C: the adapters of PyTorch's torch.distributed and torch.distributed.rpc.
#include "process_group.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

namespace {

namespace py = pybind11;
using weft::python::ProcessGroup;

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::module_::import("torch.distributed");  // registers c10d::Backend and c10d::Store
  py::class_<ProcessGroup, c10d::Backend, c10::intrusive_ptr<ProcessGroup>>(module, "ProcessGroup")
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       std::chrono::milliseconds timeout, const std::string& name,
                       const std::vector<std::uint64_t>& global_ranks, const ProcessGroup* parent) {
             auto options = c10::make_intrusive<ProcessGroup::Options>(timeout);
             options->group_name = name;
             options->global_ranks_in_group = global_ranks;
             return ProcessGroup::create(store, rank, size, std::move(options), parent);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
           py::arg("global_ranks"), py::arg("parent") = nullptr, py::call_guard<py::gil_scoped_release>());
}
