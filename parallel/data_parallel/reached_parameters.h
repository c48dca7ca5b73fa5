// ReachedParameters: the parameters that the backward of some rank reaches.
//
// Each rank sets what it reaches itself. One collective of one byte for each parameter then makes it a fact
// of all ranks. Owned by a reduction. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/ops/zeros.h>

#include <cstdint>

namespace weft::data_parallel {

class ReachedParameters {
 public:
  explicit ReachedParameters(std::size_t parameters)
      : reached_(at::zeros({static_cast<std::int64_t>(parameters)}, at::kByte)) {}

  // Of this rank, by the parameter's index.
  void set(std::size_t parameter, bool reached) {
    reached_.mutable_data_ptr<std::uint8_t>()[parameter] = reached;
  }
  // On all ranks. Nothing is set or read until the future is complete.
  rpc::Future<void> exchange(const collectives::Group& group) const {
    return group.all_reduce(reached_, collectives::ReduceOp::max);
  }
  // Before an exchange: by this rank. After it: by some rank.
  bool anywhere(std::size_t parameter) const {
    return reached_.const_data_ptr<std::uint8_t>()[parameter] != 0;
  }

 private:
  at::Tensor reached_;  // uint8, by parameter
};

}  // namespace weft::data_parallel
