#include <weft/rpc/core/split_mix.h>

#include <random>

namespace weft::rpc {

std::uint64_t draw_random() {
  std::random_device device;
  const std::uint64_t high = device();
  return high << 32 | device();
}

}  // namespace weft::rpc
