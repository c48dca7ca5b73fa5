// Memory after many passes: when a pass ends in any way, its memory is freed. WEFT_PASSES sets the number
// (./dev test --full: 100,000).
#include "tests/dist_autograd/pass_support.h"
#include "tests/support/cluster.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>

namespace weft::dist_autograd::test::pass_leak_test {
namespace {

class PassLeak : public ::testing::Test {
 protected:
  PassLeak() { torch::manual_seed(5); }

  static long passes() {
    const char* const asked = std::getenv("WEFT_PASSES");
    return asked != nullptr ? std::atol(asked) : 600;
  }

  // A pass that ends as `i` says.
  void run(long i) {
    Pass pass{cluster[0]};
    at::Tensor x = start.clone().requires_grad_();
    at::Tensor out = b.call<&Weights::through>(pass, a, a.call<&Weights::multiply>(pass, x).get()).get();
    switch (i % 8) {
      case 0:
        return pass.backward(out.sum()).get();
      case 1:  // something is left out
        b.call<&Weights::multiply>(pass, out).get();
        return pass.backward(out.sum()).get();
      case 2:  // a node fails
        out = a.call<&Weights::fail_backward>(pass, out).get();
        EXPECT_EQ(kind_of([&] { pass.backward(out.sum()).get(); }), rpc::ErrorKind::handler_failed);
        return;
      case 3:  // no backward
        return;
      case 4:
        return pass.backward(out.sum(), {.mode = BackwardMode::fast}).get();
      case 5:  // twice through the same graph
        pass.backward(out.sum(), {.retain_graph = true}).get();
        return pass.backward(out.sum()).get();
      case 6:  // gradients of gradients
        pass.backward(out.sum(), {.create_graph = true}).get();
        return pass.backward(pass.gradient(x).square().sum()).get();
      default: {  // results that stay on their worker
        const auto hidden = a.remote<&Weights::multiply>(pass, x);
        const auto result = b.remote<&Weights::multiply>(pass, hidden);
        return pass.backward(result, at::ones_like(x)).get();
      }
    }
  }
  void run_many(long n) {
    for (long i = 0; i < n; ++i) run(i);
    weft::test::eventually("no pass is left", [&] { return cluster.live_passes() == 0; });
  }
  static std::size_t allocated() { return mallinfo2().uordblks; }

  Cluster cluster{3};
  const at::Tensor start = matrix();
  Object a = rref::create<Weights>(cluster.peer(0, 1), matrix());
  Object b = rref::create<Weights>(cluster.peer(0, 2), matrix());
};

TEST_F(PassLeak, ManyPassesLeaveNothingBehind) {
  run_many(200);  // pools fill, buffers grow
  const std::size_t before = allocated();
  run_many(passes());
  const std::size_t after = allocated();
  // A leaked tensor per pass takes over 500 bytes: 600 passes are enough to detect it. A leaked table entry
  // per pass takes over 32 bytes: detecting it needs 100,000 passes. Buffers and the threads' caches keep
  // growing slightly.
  const std::size_t grown = after - std::min(before, after);
  RecordProperty("grown_bytes", static_cast<int>(grown));
  EXPECT_LT(grown, 8 * static_cast<std::size_t>(passes()) + (std::size_t{1} << 18));
}

// The record that prevents the revival of ended passes does not grow with every pass that a worker has not
// seen.
TEST_F(PassLeak, WorkersThatSeeSomePassesRecordThemAsOneRange) {
  for (int i = 0; i < 40; ++i) {
    Pass pass{cluster[0]};
    (i % 2 == 0 ? a : b).call<&Weights::multiply>(pass, start).get();
  }
  weft::test::eventually("no pass is left", [&] { return cluster.live_passes() == 0; });
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(AutogradLayer::of(*cluster[i].core())->remembered(), 2U) << i;
}

}  // namespace
}  // namespace weft::dist_autograd::test::pass_leak_test
