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
    std::vector<std::size_t> parameters;  // indices in the order of add()
    ShardLayout layout;                   // of these parameters
    at::Tensor buffer;                    // layout.elements(), the same on all ranks
    at::Tensor part;                      // layout.part elements of the buffer: those of this rank
    at::Tensor place_of(std::size_t i) const {
      return buffer.slice(0, layout.offsets[i]);
    }  // of parameters[i]
  };

  FlatParameters() = default;
  FlatParameters(const collectives::Group& group, const std::vector<dist_optim::Parameter>& parameters,
                 std::size_t bucket_bytes) {
    add(group, parameters, bucket_bytes);
  }
  // Moves further parameters into further buckets, which follow the present ones. Call it while no forward or
  // backward of these parameters runs. All ranks must give equal parameters.
  void add(const collectives::Group& group, const std::vector<dist_optim::Parameter>& parameters,
           std::size_t bucket_bytes);

  // invalid_argument, which names the parameter, unless each parameter is contiguous and shares its storage
  // with no other tensor.
  static void check(const std::vector<dist_optim::Parameter>& parameters);

  // A parameter without elements is in a bucket too.
  const std::vector<Bucket>& buckets() const { return buckets_; }

  // The program may have given parameters other memory (torch::load does): copies the values into the
  // buckets, whose memory the parameters get back. failed_precondition, which names the parameter: it has
  // another type, device or other sizes now.
  void take_replaced();

  // Moves the parameters out of the memory of the group. There are no buckets afterwards.
  void leave();

 private:
  std::vector<dist_optim::Parameter> parameters_;
  std::vector<std::vector<std::int64_t>> sizes_;  // by parameter
  std::vector<Bucket> buckets_;
};

}  // namespace weft::sharded
