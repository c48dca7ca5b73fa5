#include <weft/dist_optim/embedding/row_initializer.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/split_mix.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::dist_optim {
namespace {

// In [0, 1), with the 53 bits of a double.
double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace

void RowInitializer::check() const {
  if (kind > Kind::normal)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "row initializer: unknown kind " + std::to_string(static_cast<int>(kind)));
  if (!std::isfinite(scale) || scale < 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "row initializer: the scale is " +
                                                           std::to_string(scale) +
                                                           ", expected a finite number of at least 0");
}

void RowInitializer::fill(std::int64_t id, float* row, std::size_t dimension) const {
  if (kind == Kind::zeros) {
    std::fill_n(row, dimension, 0.0f);
    return;
  }
  // A counter-based generator (Salmon and others 2011): column i is a hash of the key and i.
  constexpr std::uint64_t step = rpc::split_mix_step;
  const std::uint64_t key = rpc::split_mix(rpc::split_mix(seed + step) ^ static_cast<std::uint64_t>(id));
  for (std::size_t i = 0; i < dimension; ++i) {
    const std::uint64_t first = rpc::split_mix(key + (2 * i + 1) * step);
    if (kind == Kind::uniform) {
      row[i] = static_cast<float>(scale * (2 * unit(first) - 1));
    } else {  // Box and Muller 1958
      const double radius = std::sqrt(-2 * std::log1p(-unit(first)));
      const double angle = 2 * std::numbers::pi * unit(rpc::split_mix(key + (2 * i + 2) * step));
      row[i] = static_cast<float>(scale * radius * std::cos(angle));
    }
  }
}

}  // namespace weft::dist_optim
