// without_gil(): runs C++ that blocks. python_site(): the line of the Python program that calls.
#pragma once

#include <weft/rpc/core/site.h>

#include <pybind11/gil.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <torch/csrc/distributed/c10d/debug.h>

#include <optional>
#include <string>

namespace weft::python {

// Runs f without the GIL, whether or not the calling thread holds it.
template <class F>
void without_gil(F f) {
  std::optional<pybind11::gil_scoped_release> released;
  if (PyGILState_Check()) released.emplace();
  f();
}

// The innermost line outside of the package torch. Unknown unless TORCH_DISTRIBUTED_DEBUG is set, because the
// calling thread must wait for the GIL.
inline rpc::Site python_site() {
  if (c10d::debug_level() == c10d::DebugLevel::Off || !Py_IsInitialized()) return {};
  const pybind11::gil_scoped_acquire gil;
  const auto line = pybind11::module_::import("weft.distributed").attr("calling_line")();
  if (line.is_none()) return {};
  const auto [file, number] = line.cast<std::pair<std::string, std::uint32_t>>();
  return rpc::Site::in_file(file, number);
}

}  // namespace weft::python
