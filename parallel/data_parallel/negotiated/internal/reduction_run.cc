#include <weft/parallel/data_parallel/negotiated/internal/reduction_run.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace weft::data_parallel {

at::Tensor FusionMemory::take(std::uint64_t bytes, std::uint64_t expected) {
  {
    rpc::MutexLock lock(mutex_);
    const auto fits = std::find_if(free_.begin(), free_.end(),
                                   [&](const at::Tensor& memory) { return memory.nbytes() >= bytes; });
    if (fits != free_.end()) {
      at::Tensor memory = std::move(*fits);
      free_.erase(fits);
      return memory;
    }
    free_.clear();  // the new memory replaces it
  }
  // Powers of two, so that launches of different sizes soon use the same memory.
  const auto size = std::max(bytes, std::min(std::bit_ceil(bytes), expected));
  return group_.empty({static_cast<std::int64_t>(size)}, at::TensorOptions(at::kByte).device(device_));
}

void FusionMemory::give_back(at::Tensor memory) {
  rpc::MutexLock lock(mutex_);
  free_.push_back(std::move(memory));
}

namespace {

at::Tensor with_values(const at::Tensor& coalesced, const at::Tensor& values) {
  return at::sparse_coo_tensor(coalesced._indices(), values, coalesced.sizes())._coalesced_(true);
}

}  // namespace

// As in the collectives of a group, they are added in 64 bits.
bool ReductionRun::averages_integers() const {
  return reductions.front().call.op.kind == collectives::ReduceOp::Kind::avg &&
         at::isIntegralType(reductions.front().sparse_result.scalar_type(), false);
}

std::uint64_t ReductionRun::bytes() const {
  std::uint64_t bytes = 0;
  for (const PendingReduction& each : reductions) bytes += each.bytes;
  return bytes;
}

void ReductionRun::fuse(ReductionLane& lane, std::uint64_t expected) {
  const at::NoGradGuard no_grad;
  lane.launches.run([&] {
    for (const PendingReduction& each : reductions) {
      if (each.written) lane.launches.follow(*each.written);
      tensors_.insert(tensors_.end(), each.tensors.begin(), each.tensors.end());
    }
    if (reductions.front().is_sparse()) return;
    if (tensors_.size() == 1 && tensors_.front().is_contiguous())
      flat_ = tensors_.front().view({-1});
    else
      copy_together(lane.memory, expected);
  });
}

void ReductionRun::copy_together(FusionMemory& memory, std::uint64_t expected) {
  const std::uint64_t bytes = this->bytes();
  memory_ = memory.take(bytes, expected);
  flat_ = memory_.narrow(0, 0, static_cast<std::int64_t>(bytes)).view(tensors_.front().scalar_type());
  for_each_part(
      [](const at::Tensor& part, const at::Tensor& tensor) { part.copy_(tensor, true); },
      [](std::byte* part, std::byte* tensor, std::size_t size) { std::memcpy(part, tensor, size); });
}

// A copy by LibTorch takes some microseconds, however small the tensor is.
template <class Copy, class CopyBytes>
void ReductionRun::for_each_part(Copy copy, CopyBytes copy_bytes) const {
  auto* const memory = static_cast<std::byte*>(memory_.data_ptr());
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.numel() == 0) continue;  // it has no memory, and memcpy() takes no null
    if (tensor.is_cpu() && tensor.is_contiguous())
      copy_bytes(memory + static_cast<std::size_t>(begin) * tensor.itemsize(),
                 static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes());
    else
      copy(flat_.narrow(0, begin, tensor.numel()).view(tensor.sizes()), tensor);
    begin += tensor.numel();
  }
}

rpc::Future<void> ReductionRun::start(const ReductionLane& lane, const std::vector<std::int64_t>& rows) {
  return lane.launches.run([&] {
    if (flat_.defined()) return lane.group.all_reduce(flat_, reductions.front().call.op);
    at::Tensor own = tensors_.front();
    if (averages_integers()) own = with_values(own, own._values().to(at::kLong));
    const at::Tensor counts = at::empty({lane.group.size(), 2}, at::kLong);
    counts.select(1, 0).copy_(at::tensor(rows));
    counts.select(1, 1).fill_(own.sparse_dim());
    gather_.emplace(lane.group, own.sizes(), own._values().options(), own);
    return gather_->exchange_rows(counts);
  });
}

void ReductionRun::take_results(ReductionLane& lane) {
  const at::NoGradGuard no_grad;
  lane.results.run([&] {
    if (memory_.defined()) copy_back();
    if (gather_) take_sum(lane.group.size());
    for (const PendingReduction& each : reductions)
      for (const at::Tensor& tensor : each.tensors) scale(tensor, each.call.postscale);
    lane.results.synchronize_current();
  });
  if (memory_.defined()) lane.memory.give_back(std::move(memory_));
}

void ReductionRun::copy_back() {
  for_each_part(
      [](const at::Tensor& part, const at::Tensor& tensor) { tensor.copy_(part, true); },
      [](std::byte* part, std::byte* tensor, std::size_t size) { std::memcpy(tensor, part, size); });
}

void ReductionRun::take_sum(int ranks) {
  PendingReduction& reduction = reductions.front();
  at::Tensor sum = gather_->sum();
  const at::Tensor values = sum._values();
  if (averages_integers())
    sum = with_values(sum, values.div_(ranks, "trunc").to(reduction.sparse_result.scalar_type()));
  else if (reduction.call.op.kind == collectives::ReduceOp::Kind::avg)
    values.div_(ranks);
  reduction.sparse_result.copy_(sum);
  reduction.tensors.front() = reduction.sparse_result;
}

}  // namespace weft::data_parallel
