// Compares backwards that use only some of the messages with single-process LibTorch: unused outputs, roots
// on several workers, random programs, and gradients of gradients.
#include <weft/rpc/testing/wait.h>

#include "tests/dist_autograd/pass_support.h"

#include <random>

namespace weft::dist_autograd::test::smart_test {
namespace {

class SmartTest : public ::testing::Test, protected ThreeWorkers {
 protected:
  SmartTest() : ThreeWorkers(11) {}
};

TEST_F(SmartTest, AnUnusedMessageIsLeftOut) {
  const at::Tensor used = run_multiply(a, pass, x);
  run_multiply(b, pass, x);
  pass.backward(used.sum()).get();
  xo.mm(ao).tanh().sum().backward();
  expect_gradients();
  EXPECT_FALSE(gradient_of(b, pass).defined());
}

// Both calls use the weights of `a` and x. The nodes of these therefore wait for two gradients, and one of
// them never arrives.
TEST_F(SmartTest, AnUnusedMessageMayShareALeafWithAUsedOne) {
  const at::Tensor used = run_multiply(a, pass, x);
  run_multiply(a, pass, x * 2);
  run_multiply(b, pass, run_multiply(a, pass, x * 3));
  pass.backward(used.sum()).get();
  xo.mm(ao).tanh().sum().backward();
  expect_gradients();
}

// Worker1 reports first that it waits. Its gradients then start worker2, which reports later that it does not
// wait.
TEST_F(SmartTest, AWaitingWorkerIsCountedWhileAnotherDoesNotWait) {
  const at::Tensor used = run_multiply(a, pass, run_multiply(b, pass, x));
  run_multiply(a, pass, x0);  // unused; the weights of `a` wait for its gradient, and nothing waits elsewhere
  pass.backward(used.sum()).get();
  xo.mm(bo).tanh().mm(ao).tanh().sum().backward();
  expect_equal(gradient_of(a, pass), ao.grad(), "a");
  expect_equal(gradient_of(b, pass), bo.grad(), "b");
}

// The backward waits for a live node at worker1, which waits for a node at worker2 that waits for an unused
// result.
TEST_F(SmartTest, NodesMayWaitForWaitingNodes) {
  const at::Tensor first = run_multiply(a, pass, x);       // worker1
  const at::Tensor second = run_multiply(b, pass, first);  // worker2
  run_multiply(a, pass, second);                           // dead: worker0's `second` is sent once more
  const at::Tensor third = run_multiply(b, pass, second);
  run_multiply(b, pass, first);  // dead
  pass.backward((first * second).sum() + third.sum()).get();
  const at::Tensor fo = xo.mm(ao).tanh(), so = fo.mm(bo).tanh(), to = so.mm(bo).tanh();
  ((fo * so).sum() + to.sum()).backward();
  expect_gradients();
}

TEST_F(SmartTest, RootsOnSeveralWorkers) {
  const rref::RRef<at::Tensor> hidden = a.remote<&Weights::multiply>(pass, x);
  const rref::RRef<at::Tensor> out = b.remote<&Weights::multiply>(pass, hidden);
  const at::Tensor here = x.square().sum(), g0 = matrix(), g1 = matrix();
  pass.backward({here, Root(hidden, g0), Root(out, g1)}).get();
  const at::Tensor ho = xo.mm(ao).tanh();
  torch::autograd::backward({xo.square().sum(), ho, ho.mm(bo).tanh()}, {at::Tensor(), g0, g1});
  expect_gradients();
}

// A pass completes although the program has discarded the results of calls, once or several times.
TEST_F(SmartTest, TwoBackwardsOverPartsOfOneGraph) {
  const at::Tensor one = run_multiply(a, pass, x).sum(), two = run_multiply(b, pass, x).sum();
  pass.backward(one, {.retain_graph = true}).get();
  pass.backward(two, {.retain_graph = true}).get();
  pass.backward(one + two).get();
  const at::Tensor first = xo.mm(ao).tanh().sum(), second = xo.mm(bo).tanh().sum();
  first.backward({}, true);
  second.backward({}, true);
  (first + second).backward();
  expect_gradients();
  EXPECT_EQ(pass.state()->backwards(), 3U);
}

TEST_F(SmartTest, CallsMayFollowABackwardThatKeepsTheGraph) {
  const at::Tensor one = run_multiply(a, pass, x);
  for (int i = 0; i < 20; ++i) {
    pass.backward(one.sum(), {.retain_graph = true}).get();
    pass.backward(run_multiply(a, pass, one).sum(), {.retain_graph = true}).get();
  }
  const at::Tensor oo = xo.mm(ao).tanh();
  (20 * (oo.sum() + oo.mm(ao).tanh().sum())).backward();
  ASSERT_TRUE(pass.gradient(x).defined());
  EXPECT_TRUE(at::allclose(pass.gradient(x), xo.grad(), 1e-9, 1e-12));
  EXPECT_TRUE(at::allclose(gradient_of(a, pass), ao.grad(), 1e-9, 1e-12));
}

TEST_F(SmartTest, AConcurrentBackwardIsRefusedAndChangesNothing) {
  const at::Tensor one = run_multiply(a, pass, x).sum(), two = run_multiply(b, pass, x).sum();
  weft::test::Event entered, left;
  one.register_hook([&](at::Tensor gradient) {
    entered.set();
    left.wait();
    return gradient;
  });
  auto first = pass.backward(one, {.retain_graph = true});
  entered.wait();
  EXPECT_EQ(kind_of([&] { pass.backward(two).get(); }, "another backward"),
            rpc::ErrorKind::failed_precondition);
  left.set();
  std::move(first).get();
  pass.backward(two).get();
  (xo.mm(ao).tanh().sum() + xo.mm(bo).tanh().sum()).backward();
  expect_equal(pass.gradient(x), xo.grad(), "x");
}

TEST_F(SmartTest, GradientsOfGradients) {
  const at::Tensor loss = run_multiply(b, pass, run_multiply(a, pass, x)).sum();
  pass.backward(loss, {.create_graph = true}).get();
  const at::Tensor g = pass.gradient(x);
  ASSERT_TRUE(g.requires_grad());
  const at::Tensor penalty = g.square().sum();
  pass.backward(penalty).get();

  const at::Tensor lo = xo.mm(ao).tanh().mm(bo).tanh().sum();
  const auto first = torch::autograd::grad({lo}, {xo, ao, bo}, {}, true, true);
  const auto second = torch::autograd::grad({first[0].square().sum()}, {xo, ao, bo});
  expect_equal(pass.gradient(x), first[0] + second[0], "x");
  expect_equal(gradient_of(a, pass), first[1] + second[1], "a");
  expect_equal(gradient_of(b, pass), first[2] + second[2], "b");
}

TEST_F(SmartTest, FastRefusesToRecordABackward) {
  EXPECT_EQ(kind_of([&] {
              pass.backward(run_multiply(a, pass, x).sum(),
                            {.create_graph = true, .mode = BackwardMode::fast})
                  .get();
            }),
            rpc::ErrorKind::invalid_argument);
}

TEST_F(SmartTest, TheGraphIsDrawnWithAllItsWorkers) {
  const at::Tensor loss = a.call<&Weights::through>(pass, b, x).get().sum();
  const std::string dot = pass.dot({loss}).get();
  const auto count = [&](const std::string& text) {
    std::size_t found = 0;
    for (std::size_t at = dot.find(text); at != std::string::npos; at = dot.find(text, at + 1)) ++found;
    return found;
  };
  for (const std::string worker : {"worker0", "worker1", "worker2"})
    EXPECT_EQ(count("label=\"" + worker + "\""), 1U) << dot;
  EXPECT_EQ(count("label=\"SumBackward0\""), 1U) << dot;
  EXPECT_EQ(count("label=\"MmBackward0\""), 2U) << dot;
  EXPECT_EQ(count("label=\"SendBackward("), 4U) << dot;
  EXPECT_EQ(count("label=\"RecvBackward("), 4U) << dot;
  EXPECT_EQ(count("[style=dashed]"), 4U) << "each message joins two nodes\n" << dot;
  pass.backward(loss).get();
}

// Calls objects of three workers with results of earlier calls. The loss depends on some or on all results.
class RandomProgram : public ::testing::TestWithParam<int> {};

TEST_P(RandomProgram, HasTheGradientsOfOneProcess) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto pick = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  torch::manual_seed(GetParam());
  Cluster cluster(4);
  std::vector<at::Tensor> weights, local;
  std::vector<Object> objects;
  for (std::size_t i = 0; i < 4; ++i) {
    weights.push_back(matrix());
    local.push_back(weights.back().clone().requires_grad_());
    objects.push_back(rref::create<Weights>(cluster.peer(0, i % 3 + 1), weights.back()));
  }
  for (const BackwardMode mode : {BackwardMode::smart, BackwardMode::fast}) {
    const bool all_used = mode == BackwardMode::fast;
    Pass pass{cluster[0]};
    at::Tensor x = matrix().requires_grad_(), xo = x.detach().clone().requires_grad_();
    std::vector<at::Tensor> values{x}, want{xo};
    for (std::size_t step = 2 + pick(8); step > 0; --step) {
      const std::size_t from = pick(values.size()), on = pick(objects.size()), to = pick(objects.size());
      switch (pick(3)) {
        case 0:
          values.push_back(run_multiply(objects[on], pass, values[from]));
          want.push_back(want[from].mm(local[on]).tanh());
          break;
        case 1: {
          values.push_back(objects[on].call<&Weights::through>(pass, objects[to], values[from]).get());
          const at::Tensor here = want[from].mm(local[on]).sin();
          want.push_back(here.mm(local[to]).tanh() + here);
          break;
        }
        default: {
          const std::size_t other = pick(values.size());
          values.push_back(values[from] * values[other]);
          want.push_back(want[from] * want[other]);
        }
      }
    }
    at::Tensor loss = x.sum(), expected = xo.sum();
    for (std::size_t i = 1; i < values.size(); ++i) {
      if (!all_used && pick(2) == 0) continue;
      loss = loss + values[i].sum();
      expected = expected + want[i].sum();
    }
    for (auto& weight : local) weight.mutable_grad() = at::Tensor();
    expected.backward();
    pass.backward(loss, {.mode = mode}).get();
    expect_equal(pass.gradient(x), xo.grad(), "x");
    for (std::size_t i = 0; i < objects.size(); ++i) {
      if (!local[i].grad().defined()) continue;
      expect_equal(gradient_of(objects[i], pass), local[i].grad(), "weights " + std::to_string(i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomProgram, ::testing::Range(0, 24));

}  // namespace
}  // namespace weft::dist_autograd::test::smart_test
