// without_gil(): runs C++ that blocks. python_site(): the line of the Python program that calls.
#pragma once

#include <weft/rpc/core/site.h>

#include <pybind11/gil.h>
#include <pybind11/pybind11.h>

#include <torch/csrc/distributed/c10d/debug.h>

#include <optional>

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
  const auto torch =
      pybind11::module_::import("torch").attr("__path__")[pybind11::int_(0)].cast<std::string>();
  pybind11::object frame = pybind11::reinterpret_steal<pybind11::object>(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame && !frame.is_none()) {
    const auto file = frame.attr("f_code").attr("co_filename").cast<std::string>();
    if (!file.starts_with(torch + '/'))
      return rpc::Site::in_file(file, frame.attr("f_lineno").cast<std::uint32_t>());
    frame = frame.attr("f_back");
  }
  return {};
}

}  // namespace weft::python
