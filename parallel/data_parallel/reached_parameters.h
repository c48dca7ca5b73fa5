// ReachedParameters: the parameters that the backward of some rank reaches.
//
// Each rank sets the parameters that its own backward reaches. The ranks then combine these flags in one
// collective, with one byte for each parameter. Owned by a reduction. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/ops/zeros.h>

#include <cstdint>

namespace weft::data_parallel {

class ReachedParameters {
 public:
  explicit ReachedParameters(std::size_t parameters)
      : reached_(at::zeros({static_cast<std::int64_t>(parameters)}, at::kByte)) {}

  // Sets whether this rank's backward reaches the parameter with that index.
  void set(std::size_t parameter, bool reached) {
    reached_.mutable_data_ptr<std::uint8_t>()[parameter] = reached;
  }
  // Combines the flags of all ranks, which all call it. Do not call set() or anywhere() until the future
  // completes.
  rpc::Future<void> exchange(const collectives::Group& group) const {
    return group.all_reduce(reached_, collectives::ReduceOp::max);
  }
  // Whether this rank reaches the parameter or, after an exchange, whether any rank does.
  bool anywhere(std::size_t parameter) const {
    return reached_.const_data_ptr<std::uint8_t>()[parameter] != 0;
  }

 private:
  at::Tensor reached_;  // uint8, by parameter
};

}  // namespace weft::data_parallel
