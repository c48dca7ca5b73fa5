// ReductionRun: one launch as this rank executes it. It copies several tensors into one, reduces that tensor
// by one collective, and copies the results back. For a sparse tensor, it gathers the rows of all ranks and
// adds them.
//
// ReductionLane: where the launches for host memory, or for one device, run. On a device, one stream runs the
// collectives. Another stream copies the results, so that the copies do not wait for later collectives.
//
// FusionMemory: memory of the group (Group::empty()), into which launches copy tensors. Collectives use it
// without a further copy. It is kept for later launches. Thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/collectives/internal/sparse_gather.h>
#include <weft/parallel/data_parallel/negotiated/internal/pending_reduction.h>
#include <weft/parallel/training/communication_stream.h>
#include <weft/rpc/core/mutex.h>

#include <memory>
#include <optional>
#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT FusionMemory {
 public:
  FusionMemory(collectives::Group group, c10::Device device) : group_(std::move(group)), device_(device) {}

  // Returns memory of at least that number of bytes. expected: the bytes of a large launch, which new memory
  // exceeds only if `bytes` does.
  at::Tensor take(std::uint64_t bytes, std::uint64_t expected);
  void give_back(at::Tensor memory);

 private:
  const collectives::Group group_;
  const c10::Device device_;
  rpc::Mutex mutex_;
  std::vector<at::Tensor> free_ WEFT_GUARDED_BY(mutex_);  // tensors of bytes
};

struct ReductionLane {
  ReductionLane(collectives::Group of, c10::Device device)
      : group(std::move(of)), memory(group, device), launches(device), results(device) {}

  const collectives::Group group;
  FusionMemory memory;
  const training::CommunicationStream launches, results;
};

// Owned by its own collective while the collective is in flight.
class ReductionRun {
 public:
  explicit ReductionRun(std::vector<PendingReduction> reductions) : reductions(std::move(reductions)) {}

  // Prepares the launch: copies several tensors into one. Throws if there is no memory.
  void fuse(ReductionLane& lane, std::uint64_t expected);
  // Starts the collective. rows: for a sparse tensor, the number of rows of each rank, by rank.
  rpc::Future<void> start(const ReductionLane& lane, const std::vector<std::int64_t>& rows);
  // Call it after the collective. Writes the results to the tensors and gives the memory back. On a device,
  // waits until the results are copied.
  void take_results(ReductionLane& lane);

  std::uint64_t bytes() const;

  std::vector<PendingReduction> reductions;

 private:
  // For each tensor, calls copy_bytes if the tensor is contiguous and in host memory, otherwise copy. The
  // arguments are the tensor's part of flat_ and the tensor.
  template <class Copy, class CopyBytes>
  void for_each_part(Copy copy, CopyBytes copy_bytes) const;

  void copy_together(FusionMemory& memory, std::uint64_t expected);
  void copy_back();
  void take_sum(int ranks);
  bool averages_integers() const;  // for a sparse tensor

  std::vector<at::Tensor> tensors_;  // the tensors of all reductions
  at::Tensor memory_;                // bytes; undefined: one tensor, reduced in its own memory
  at::Tensor flat_;                  // the elements; undefined: a sparse tensor
  std::optional<collectives::SparseGather> gather_;
};

}  // namespace weft::data_parallel
