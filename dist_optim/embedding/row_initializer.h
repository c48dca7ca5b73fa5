// RowInitializer: computes the initial values of a row, as a function of (seed, id, column) only. They do not
// depend on the owner that creates the row or on the time, and a row that is created again gets the same
// values. A plain value; its functions are pure.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>

namespace weft::dist_optim {

struct WEFT_EXPORT RowInitializer {
  // The distribution of the values.
  enum class Kind : std::uint8_t { zeros, uniform, normal };

  Kind kind = Kind::uniform;  // how the values are distributed
  double scale = 0.05;        // uniform: in [-scale, scale); normal: the standard deviation
  std::uint64_t seed = 0;

  void check() const;  // invalid_argument
  // Writes `dimension` values.
  void fill(std::int64_t id, float* row, std::size_t dimension) const;

  friend bool operator==(const RowInitializer&, const RowInitializer&) = default;
};
WEFT_CODEC(RowInitializer, kind, scale, seed)

}  // namespace weft::dist_optim
