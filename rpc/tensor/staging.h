// Copies between an accelerator and the host memory of frames, through pinned memory.
//
// Copies run on the current streams of the calling thread. A function blocks this thread only if its comment
// states this, or if the accelerator has no pinned memory: then it blocks until the copy has completed.
// Implemented with LibTorch's device-independent interface, so this file compiles everywhere and supports any
// accelerator. Thread-safety: each value is used by one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace weft::tensor {

c10::Stream current_stream(c10::Device device);  // the calling thread's

// Returns a dense copy of a dense CPU tensor on `device`. Later work on the current stream of `device` may
// use the copy. When to_device() returns, `host` has been read.
at::Tensor to_device(const at::Tensor& host, c10::Device device);

// Returns uninitialized host memory for a copy of `like`. It is pinned if the accelerator has pinned memory.
at::Tensor host_tensor(const at::Tensor& like);

// The copies to the host that are in flight.
class HostCopies {
 public:
  // Starts to copy a dense tensor on an accelerator, after the work on its device's current stream. The
  // returned copy is complete after finish().
  at::Tensor start(const at::Tensor& tensor);
  void start(const at::Tensor& tensor, const at::Tensor& host);  // `host`: from host_tensor()
  // Blocks until all copies are complete, but not for work that was added to the streams later.
  void finish();

 private:
  std::vector<c10::Event> done_;
};

}  // namespace weft::tensor
