// ReductionRun: one launch as this rank executes it. Several tensors are copied into one, reduced by one
// collective, and copied back. The rows of a sparse tensor are gathered and added up.
//
// ReductionLane: where the launches for host memory, or for one device, run. On a device the collectives are
// put on one stream. Results are copied on another one, which nothing blocks for longer.
//
// FusionMemory: memory of the group for such tensors, which collectives do not copy. It is kept for later
// launches. Thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/communication_stream.h>
#include <weft/parallel/data_parallel/negotiated/internal/pending_reduction.h>
#include <weft/parallel/data_parallel/sparse_gradients.h>
#include <weft/rpc/core/mutex.h>

#include <memory>
#include <optional>
#include <vector>

namespace weft::data_parallel {

class FusionMemory {
 public:
  FusionMemory(collectives::Group group, c10::Device device) : group_(std::move(group)), device_(device) {}

  // expected: the bytes of a large launch. New memory is at least of that size, so that it serves again.
  at::Tensor take(std::uint64_t bytes, std::uint64_t expected);
  void give_back(at::Tensor memory);

 private:
  const collectives::Group group_;
  const c10::Device device_;
  rpc::Mutex mutex_;
  std::vector<at::Tensor> free_ WEFT_GUARDED_BY(mutex_);  // bytes
};

struct ReductionLane {
  ReductionLane(collectives::Group of, c10::Device device)
      : group(std::move(of)), memory(group, device), launches(device), results(device) {}

  const collectives::Group group;
  FusionMemory memory;
  const CommunicationStream launches, results;
};

// Owned by its own collective while that is in flight.
class ReductionRun {
 public:
  explicit ReductionRun(std::vector<PendingReduction> reductions) : reductions(std::move(reductions)) {}

  // Copies several tensors together. Throws if there is no memory.
  void fuse(ReductionLane& lane, std::uint64_t expected);
  // rows: by rank, of a sparse tensor.
  rpc::Future<void> start(const ReductionLane& lane, const std::vector<std::int64_t>& rows);
  // After the collective: the results are in the tensors, and the memory is free. On a device, waits until it
  // has copied them.
  void take_results(ReductionLane& lane);

  std::uint64_t bytes() const;

  std::vector<PendingReduction> reductions;

 private:
  // Each tensor with its place in flat_; bytes if the tensor is contiguous.
  template <class Copy, class CopyBytes>
  void for_each_part(Copy copy, CopyBytes copy_bytes) const;

  void copy_together(FusionMemory& memory, std::uint64_t expected);
  void copy_back();
  void take_sum(int ranks);

  std::vector<at::Tensor> tensors_;  // of all reductions
  at::Tensor memory_;                // bytes. Undefined: one tensor, in its own memory
  at::Tensor flat_;                  // the elements; undefined: a sparse tensor
  std::optional<SparseGather> gather_;
};

}  // namespace weft::data_parallel
