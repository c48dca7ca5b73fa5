// Copies between an accelerator and the host memory of frames, through pinned memory.
//
// Copies run on the current streams of the calling thread and block it only if stated. If the accelerator has
// no pinned memory, they block until they have completed. Implemented with LibTorch's device-independent
// interface, so this file compiles everywhere and supports any accelerator. Thread-safety: each value is used
// by one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace weft::tensor {

c10::Stream current_stream(c10::Device device);  // of the calling thread

// A dense copy of a dense CPU tensor; complete for later work on the current stream of `device`. When it
// returns, `host` has been read.
at::Tensor to_device(const at::Tensor& host, c10::Device device);

// Uninitialized host memory for a copy of `like`; pinned if its accelerator has pinned memory.
at::Tensor host_tensor(const at::Tensor& like);

// Copies to the host in flight.
class HostCopies {
 public:
  // Copies a dense tensor on an accelerator after the work on its device's current stream; complete after
  // finish().
  at::Tensor start(const at::Tensor& tensor);
  void start(const at::Tensor& tensor, const at::Tensor& host);  // `host`: from host_tensor()
  // Blocks until all copies are complete, but not for work that was added to the streams later.
  void finish();

 private:
  std::vector<c10::Event> done_;
};

}  // namespace weft::tensor
