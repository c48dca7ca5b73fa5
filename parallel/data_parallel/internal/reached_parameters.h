// ReachedParameters: the parameters that the backward of some rank reaches.
//
// Each rank sets the parameters that its own backward reaches. The ranks then combine these flags in one
// collective, with one byte for each parameter. The same collective compares a digest: if one rank has, for
// example, unfrozen a parameter, all ranks learn that their plans differ. Owned by a reduction. Not
// thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::data_parallel {

class ReachedParameters {
 public:
  // digest: of the plan (GradientBuckets::digest()).
  ReachedParameters(std::size_t parameters, std::uint64_t digest)
      : parameters_(parameters),
        reached_(at::zeros({static_cast<std::int64_t>(parameters + 2 * sizeof digest)}, at::kByte)) {
    set_digest(digest);
  }

  // Replaces the digest. The flags do not change.
  void set_digest(std::uint64_t digest) {
    auto* bytes = reached_.mutable_data_ptr<std::uint8_t>() + parameters_;
    for (std::size_t i = 0; i < sizeof digest; ++i) {
      bytes[i] = static_cast<std::uint8_t>(digest >> (8 * i));
      bytes[sizeof digest + i] = static_cast<std::uint8_t>(~bytes[i]);
    }
  }

  // Sets whether this rank's backward reaches the parameter with that index.
  void set(std::size_t parameter, bool reached) {
    reached_.mutable_data_ptr<std::uint8_t>()[parameter] = reached;
  }
  // Combines the flags of all ranks, which all call it. Call no other function until the future completes.
  rpc::Future<void> exchange(const collectives::Group& group) const {
    return group.all_reduce(reached_, collectives::ReduceOp::max);
  }
  // After an exchange: whether all ranks have the same digest. If they have not, do not use this object
  // again.
  bool agreed() const {
    // The maxima of all bytes and of their complements.
    const auto* bytes = reached_.const_data_ptr<std::uint8_t>() + parameters_;
    for (std::size_t i = 0; i < sizeof(std::uint64_t); ++i)
      if (bytes[i] + bytes[sizeof(std::uint64_t) + i] != 0xff) return false;
    return true;
  }
  // Whether this rank reaches the parameter or, after an exchange, whether any rank does.
  bool anywhere(std::size_t parameter) const {
    return reached_.const_data_ptr<std::uint8_t>()[parameter] != 0;
  }
  // Whether anywhere() holds for one of the parameters.
  bool any_of(const std::vector<std::size_t>& parameters) const {
    return std::any_of(parameters.begin(), parameters.end(),
                       [&](std::size_t index) { return anywhere(index); });
  }

 private:
  std::size_t parameters_;
  at::Tensor reached_;  // uint8, by parameter; then the digest and its complement
};

}  // namespace weft::data_parallel
