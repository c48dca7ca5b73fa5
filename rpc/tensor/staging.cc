#include <weft/rpc/tensor/staging.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

namespace weft::tensor {
namespace {

// LibTorch pins memory only for one type of accelerator in a process.
bool has_pinned_memory(c10::Device device) { return at::getAccelerator() == device.type(); }

at::Tensor host_tensor(const at::Tensor& like, bool pinned) {
  return at::empty(like.sizes(), like.options().device(at::kCPU).pinned_memory(pinned));
}

}  // namespace

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

at::Tensor to_device(const at::Tensor& host, c10::Device device) {
  at::Tensor placed = at::empty(host.sizes(), host.options().device(device));
  if (!has_pinned_memory(device)) return placed.copy_(host);
  // The host tensor is in pooled memory, which is not pinned.
  const at::Tensor staged = host_tensor(host, true);
  if (host.nbytes() != 0) std::memcpy(staged.mutable_data_ptr(), host.const_data_ptr(), host.nbytes());
  return placed.copy_(staged, /*non_blocking=*/true);
}

at::Tensor host_tensor(const at::Tensor& like) { return host_tensor(like, has_pinned_memory(like.device())); }

at::Tensor HostCopies::start(const at::Tensor& tensor) {
  at::Tensor host = host_tensor(tensor);
  start(tensor, host);
  return host;
}

void HostCopies::start(const at::Tensor& tensor, const at::Tensor& host) {
  const bool pinned = has_pinned_memory(tensor.device());
  host.copy_(tensor, /*non_blocking=*/pinned);
  if (pinned) {
    done_.emplace_back(tensor.device().type());
    done_.back().record(current_stream(tensor.device()));
  }
}

void HostCopies::finish() {
  for (const c10::Event& done : done_) done.synchronize();
  done_.clear();
}

}  // namespace weft::tensor
