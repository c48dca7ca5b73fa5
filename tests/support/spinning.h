// Loops with every way to wait, for tests of behaviour that depends on it.
#pragma once

#include <weft/rpc/core/asio_loop.h>

namespace weft::test {

enum class Wait { sleep, spin, doze };  // doze: spins so briefly that it always falls asleep

inline std::shared_ptr<rpc::Loop> make_loop(Wait wait) {
  switch (wait) {
    case Wait::sleep:
      return std::make_shared<rpc::AsioLoop>();
    case Wait::spin:
      return std::make_shared<rpc::AsioLoop>(std::chrono::milliseconds{1});
    case Wait::doze:
      break;
  }
  return std::make_shared<rpc::AsioLoop>(std::chrono::nanoseconds{1});
}

}  // namespace weft::test
