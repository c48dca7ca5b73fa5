// FlatParameters: moves parameters into flat buckets, which are split over the ranks of a group.
//
// The parameters of one dtype and device are consecutive in a bucket, in the given order. A bucket is closed
// when it has reached its cap. Buckets are in memory of the group, so that a collective over the parts of a
// bucket copies nothing. A parameter stays the same tensor with the same storage: only the address of the
// storage's memory changes, so that all tensors that share the storage see it. The version counters of
// autograd do not change. The memory lives as long as a parameter, or this object, uses it. Not thread-safe.
#pragma once

#include <weft/dist_optim/local/gradients.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/sharded/internal/shard_layout.h>

#include <cstddef>
#include <vector>

namespace weft::sharded {

class WEFT_EXPORT FlatParameters {
 public:
  struct Bucket {
    std::vector<std::size_t> parameters;  // indices in the list given to the constructor
    ShardLayout layout;                   // of these parameters
    at::Tensor buffer;                    // layout.elements(), the same on all ranks
    at::Tensor part;                      // layout.part elements of the buffer: those of this rank
  };

  FlatParameters() = default;
  // Call it while no forward or backward runs. All ranks must give equal parameters.
  FlatParameters(const collectives::Group& group, std::vector<dist_optim::Parameter> parameters,
                 std::size_t bucket_bytes);

  // invalid_argument, which names the parameter, unless each parameter is contiguous and shares its storage
  // with no other tensor.
  static void check(const std::vector<dist_optim::Parameter>& parameters);

  // A parameter without elements is in a bucket too.
  const std::vector<Bucket>& buckets() const { return buckets_; }

  // Moves the parameters out of the memory of the group. There are no buckets afterwards.
  void leave();

 private:
  std::vector<dist_optim::Parameter> parameters_;
  std::vector<Bucket> buckets_;
};

}  // namespace weft::sharded
