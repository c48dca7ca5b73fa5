// The streams over shared memory, both ends in this process, on two loops.
#include <weft/rpc/transport/shm/shm_stream.h>

#include "tests/support/byte_stream_suite.h"
#include "tests/support/shm.h"
#include "tests/support/spinning_loop.h"

namespace weft::test {
namespace {

enum class Wait { sleep, spin, doze };  // doze: spins so briefly that it falls asleep all the time

template <Wait left, Wait right, std::size_t ring_bytes = 1U << 20>
class ShmKind {
 public:
  static const char* missing() { return ""; }
  const std::shared_ptr<rpc::Loop>& loop(int side) { return loops_[static_cast<std::size_t>(side)]; }
  StreamPair connect() {
    const rpc::ShmOptions options{.ring_bytes = ring_bytes};
    const auto sockets = socket_pair();
    const auto first = greet(sockets[0], loop(0), options), second = greet(sockets[1], loop(1), options);
    return {first->take().get(), second->take().get()};
  }

 private:
  static std::shared_ptr<rpc::Loop> make(Wait wait) {
    if (wait == Wait::sleep) return std::make_shared<rpc::AsioLoop>();
    return std::make_shared<SpinningLoop>(wait == Wait::spin ? 1000 : 1);
  }
  std::array<std::shared_ptr<rpc::Loop>, 2> loops_{make(left), make(right)};
};

using Asleep = ShmKind<Wait::sleep, Wait::sleep>;
using Spinning = ShmKind<Wait::spin, Wait::spin>;
using Mixed = ShmKind<Wait::spin, Wait::sleep>;
using Dozing = ShmKind<Wait::doze, Wait::doze, (64U << 10)>;
using SmallRing = ShmKind<Wait::sleep, Wait::sleep, (64U << 10)>;

INSTANTIATE_TYPED_TEST_SUITE_P(ShmAsleep, ByteStreamTest, Asleep);
INSTANTIATE_TYPED_TEST_SUITE_P(ShmSpinning, ByteStreamTest, Spinning);
INSTANTIATE_TYPED_TEST_SUITE_P(ShmMixed, ByteStreamTest, Mixed);
INSTANTIATE_TYPED_TEST_SUITE_P(ShmDozing, ByteStreamTest, Dozing);
INSTANTIATE_TYPED_TEST_SUITE_P(ShmSmallRing, ByteStreamTest, SmallRing);

}  // namespace
}  // namespace weft::test
