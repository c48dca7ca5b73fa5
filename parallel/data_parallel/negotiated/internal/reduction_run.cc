#include <weft/parallel/data_parallel/negotiated/internal/reduction_run.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>

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

void ReductionRun::fuse(FusionMemory& memory, std::uint64_t expected) {
  const at::NoGradGuard no_grad;
  std::uint64_t bytes = 0;
  for (const PendingReduction& each : reductions) {
    tensors_.insert(tensors_.end(), each.tensors.begin(), each.tensors.end());
    bytes += each.bytes;
  }
  if (tensors_.size() == 1) return;
  memory_ = memory.take(bytes, expected);
  flat_ = memory_.narrow(0, 0, static_cast<std::int64_t>(bytes)).view(tensors_.front().scalar_type());
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors_) {
    parts_.push_back(flat_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    parts_.back().copy_(tensor);
    begin += tensor.numel();
  }
}

rpc::Future<void> ReductionRun::start(const collectives::Group& group) const {
  return group.all_reduce(flat_.defined() ? flat_ : tensors_.front(), reductions.front().call.op);
}

void ReductionRun::take_results(FusionMemory& memory) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parts_.size(); ++i) tensors_[i].copy_(parts_[i]);
  for (PendingReduction& each : reductions) scale(each.tensors, each.call.postscale);
  if (memory_.defined()) memory.give_back(std::move(memory_));
}

}  // namespace weft::data_parallel
