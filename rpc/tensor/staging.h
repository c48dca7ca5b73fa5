// Copies between an accelerator and the host memory that frames are made of, by way of pinned memory.
//
// They run on the current streams of the calling thread and block it only where said; where the accelerator
// has no pinned memory, they block until they are done. Written against LibTorch's own interface of devices,
// so that it is compiled everywhere and runs on whatever accelerator the process has. Thread-safety: values
// of one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace weft::tensor {

c10::Stream current_stream(c10::Device device);  // of the calling thread

// A dense copy of a dense CPU tensor, complete once the current stream of `device` has come so far. The
// elements have been read when it returns.
at::Tensor to_device(const at::Tensor& host, c10::Device device);

// Uninitialized host memory for a copy of this tensor: pinned where its accelerator has pinned memory.
at::Tensor host_tensor(const at::Tensor& like);

// Copies to the host that are under way.
class HostCopies {
 public:
  // Of a dense tensor on an accelerator, as far as its device's current stream has come; complete after
  // finish().
  at::Tensor start(const at::Tensor& tensor);
  void start(const at::Tensor& tensor, const at::Tensor& host);  // into a host_tensor() of its form
  // Blocks until all are complete, and for nothing that was put on the streams later.
  void finish();

 private:
  std::vector<c10::Event> done_;
};

}  // namespace weft::tensor
