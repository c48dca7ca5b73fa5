// ReductionRun: one launch as this rank executes it. Several tensors are copied into one, reduced by one
// collective, and copied back.
//
// FusionMemory: memory of the group for such tensors, which collectives do not copy. It is kept for later
// launches. Thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/negotiated/internal/pending_reduction.h>

#include <memory>
#include <mutex>
#include <vector>

namespace weft::data_parallel {

class FusionMemory {
 public:
  explicit FusionMemory(collectives::Group group) : group_(std::move(group)) {}

  // expected: the bytes of a large launch. New memory is at least of that size, so that it serves again.
  at::Tensor take(std::uint64_t bytes, std::uint64_t expected);
  void give_back(at::Tensor memory);

 private:
  const collectives::Group group_;
  std::mutex mutex_;              // guards what follows
  std::vector<at::Tensor> free_;  // bytes
};

// Owned by its own collective while that is in flight.
class ReductionRun {
 public:
  explicit ReductionRun(std::vector<PendingReduction> reductions) : reductions(std::move(reductions)) {}

  // Copies several tensors together. Throws if there is no memory.
  void fuse(FusionMemory& memory, std::uint64_t expected);
  rpc::Future<void> start(const collectives::Group& group) const;
  // After the collective: the results are in the tensors, and the memory is free.
  void take_results(FusionMemory& memory);

  std::uint64_t bytes() const;

  std::vector<PendingReduction> reductions;

 private:
  // Each tensor with its place in flat_; bytes if the tensor is contiguous.
  template <class Copy, class CopyBytes>
  void for_each_part(Copy copy, CopyBytes copy_bytes) const;

  std::vector<at::Tensor> tensors_;  // of all reductions
  at::Tensor memory_, flat_;         // bytes; the elements. Undefined: one tensor, in its own memory
};

}  // namespace weft::data_parallel
