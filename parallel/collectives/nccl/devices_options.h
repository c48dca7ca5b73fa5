// DevicesOptions: how NCCL and CUDA's runtime are found. Programs use the defaults; tests replace them.
#pragma once

#include <functional>
#include <memory>

namespace weft::collectives::nccl {

struct Api;
struct StreamCapture;

// load: called when a group first uses a device; if load throws, the next use calls it again. Empty:
// Api::load(). capture: called for each communicator. Empty: StreamCapture::of_cuda().
struct DevicesOptions {
  std::function<std::shared_ptr<const Api>()> load = {};
  std::function<StreamCapture()> capture = {};
};

}  // namespace weft::collectives::nccl
