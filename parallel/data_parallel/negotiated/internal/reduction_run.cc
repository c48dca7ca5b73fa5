#include <weft/parallel/data_parallel/negotiated/internal/reduction_run.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>

namespace weft::data_parallel {

at::Tensor FusionMemory::take(std::uint64_t bytes, std::uint64_t expected) {
  {
    std::lock_guard lock(mutex_);
    const auto fits = std::find_if(free_.begin(), free_.end(),
                                   [&](const at::Tensor& memory) { return memory.nbytes() >= bytes; });
    if (fits != free_.end()) {
      at::Tensor memory = std::move(*fits);
      free_.erase(fits);
      return memory;
    }
  }
  const auto size = std::max(bytes, expected);
  return group_.empty({static_cast<std::int64_t>(size)}, at::TensorOptions(at::kByte));
}

void FusionMemory::give_back(at::Tensor memory) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(memory));
}

std::uint64_t ReductionRun::bytes() const {
  std::uint64_t bytes = 0;
  for (const PendingReduction& each : reductions) bytes += each.bytes;
  return bytes;
}

void ReductionRun::fuse(FusionMemory& memory, std::uint64_t expected) {
  const at::NoGradGuard no_grad;
  for (const PendingReduction& each : reductions)
    tensors_.insert(tensors_.end(), each.tensors.begin(), each.tensors.end());
  if (tensors_.size() == 1) return;
  const std::uint64_t bytes = this->bytes();
  memory_ = memory.take(bytes, expected);
  flat_ = memory_.narrow(0, 0, static_cast<std::int64_t>(bytes)).view(tensors_.front().scalar_type());
  for_each_part(
      [](const at::Tensor& part, const at::Tensor& tensor) { part.copy_(tensor); },
      [](std::byte* part, std::byte* tensor, std::size_t size) { std::memcpy(part, tensor, size); });
}

// A copy by LibTorch takes some microseconds, however small the tensor is.
template <class Copy, class CopyBytes>
void ReductionRun::for_each_part(Copy copy, CopyBytes copy_bytes) const {
  auto* const memory = static_cast<std::byte*>(memory_.data_ptr());
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.is_contiguous())
      copy_bytes(memory + static_cast<std::size_t>(begin) * tensor.itemsize(),
                 static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes());
    else
      copy(flat_.narrow(0, begin, tensor.numel()).view(tensor.sizes()), tensor);
    begin += tensor.numel();
  }
}

rpc::Future<void> ReductionRun::start(const collectives::Group& group) const {
  return group.all_reduce(flat_.defined() ? flat_ : tensors_.front(), reductions.front().call.op);
}

void ReductionRun::take_results(FusionMemory& memory) {
  const at::NoGradGuard no_grad;
  if (memory_.defined()) {
    for_each_part(
        [](const at::Tensor& part, const at::Tensor& tensor) { tensor.copy_(part); },
        [](std::byte* part, std::byte* tensor, std::size_t size) { std::memcpy(tensor, part, size); });
    memory.give_back(std::move(memory_));
  }
  for (PendingReduction& each : reductions) scale(each.tensors, each.call.postscale);
}

}  // namespace weft::data_parallel
