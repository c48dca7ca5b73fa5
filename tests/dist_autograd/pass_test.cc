// Compares gradients of passes over several workers with single-process LibTorch. Also tests the end of
// passes.
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/job/job.h>

#include "tests/dist_autograd/pass_support.h"
#include "tests/support/cluster.h"
#include "tests/support/errors.h"
#include "tests/support/job.h"

namespace weft::dist_autograd::test::pass_test {
namespace {

class PassTest : public ::testing::TestWithParam<at::ScalarType>, protected ThreeWorkers {
 protected:
  PassTest() : ThreeWorkers(7, GetParam()) {}
};

// Within one call, two workers call each other `hops` times, an odd number.
TEST_P(PassTest, HundredsOfNestedCalls) {
  constexpr int hops = 301;
  pass.backward(a.call<&Weights::bounce>(pass, a, b, x, hops).get().sum()).get();
  const std::function<at::Tensor(at::Tensor, int)> bounce = [&](at::Tensor in, int left) {
    const at::Tensor here = in.mm(left % 2 == 1 ? ao : bo).tanh();
    return left == 0 ? here : bounce(here, left - 1) * 0.5 + here;
  };
  bounce(xo, hops).sum().backward();
  expect_gradients();
}

TEST_P(PassTest, SeveralTensorsInAMessageAndNonScalarRootsWithGradients) {
  const at::Tensor g0 = matrix(6, type), g1 = matrix(6, type);
  const auto both = a.call<&Weights::two>(pass, x).get();
  pass.backward({both[0].sin(), both[1]}, {g0, g1}).get();
  torch::autograd::backward({xo.mm(ao).sin(), (xo * 2).mm(ao)}, {g0, g1});
  expect_gradients();
}

TEST_P(PassTest, OneTensorOfAMessageMayBeUnused) {
  pass.backward(a.call<&Weights::two>(pass, x).get()[1].sum()).get();
  (xo * 2).mm(ao).sum().backward();
  expect_gradients();
}

TEST_P(PassTest, ScalarRootBehindAnRRefNeedsNoGradient) {
  const rref::RRef<at::Tensor> loss = a.remote<&Weights::total>(pass, x);
  pass.backward(loss).get();
  xo.mm(ao).tanh().sum().backward();
  expect_gradients();
}

// LibTorch accepts a tensor of one element, of any shape, as a root without a gradient. The root may also be
// a leaf.
TEST_P(PassTest, LeafOfOneElementIsARoot) {
  at::Tensor leaf = at::full({1, 1}, 3, type).requires_grad_();
  at::Tensor oracle = leaf.detach().clone().requires_grad_();
  oracle.backward();
  pass.backward(leaf).get();
  expect_equal(pass.gradient(leaf), oracle.grad(), "the leaf");
  EXPECT_EQ(pass.gradient(leaf).sizes(), oracle.grad().sizes());
}

TEST_P(PassTest, HooksOnBoundaryTensorsRunOnceOnTheFullGradient) {
  int sent = 0, received = 0;
  at::Tensor boundary = x * 3;
  boundary.register_hook([&](at::Tensor g) { return ++sent, g * 2; });
  at::Tensor back = run_multiply(a, pass, boundary);
  back.register_hook([&](at::Tensor g) { return ++received, g.clamp(-0.5, 0.5); });
  pass.backward((back * back).sum() + boundary.sum()).get();

  at::Tensor boundary_here = xo * 3;
  boundary_here.register_hook([](at::Tensor g) { return g * 2; });
  at::Tensor back_here = boundary_here.mm(ao).tanh();
  back_here.register_hook([](at::Tensor g) { return g.clamp(-0.5, 0.5); });
  ((back_here * back_here).sum() + boundary_here.sum()).backward();
  EXPECT_EQ(sent, 1);
  EXPECT_EQ(received, 1);
  expect_gradients();
}

INSTANTIATE_TEST_SUITE_P(Types, PassTest, ::testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

struct PassEnds : ::testing::Test {
  PassEnds() { torch::manual_seed(3); }
  Cluster cluster{3};
  Object a = rref::create<Weights>(cluster.peer(0, 1), matrix());
  Object b = rref::create<Weights>(cluster.peer(0, 2), matrix());
  at::Tensor x = matrix().requires_grad_();
};

TEST_F(PassEnds, HandlersRunWithoutGradOutsideAPass) {
  EXPECT_EQ(a.call<&Weights::no_grad_seen>(x.detach()).get().item<double>(), 0);
  Pass pass{cluster[0]};
  EXPECT_EQ(a.call<&Weights::no_grad_seen>(pass, x.detach()).get().item<double>(), 1);
}

TEST_F(PassEnds, NonLeafWithoutAPassIsAnError) {
  EXPECT_EQ(kind_of([&] { a.call<&Weights::multiply>(x * 2).get(); }), rpc::ErrorKind::failed_precondition);
  EXPECT_FALSE(a.call<&Weights::multiply>(x).get().requires_grad());  // a leaf is sent detached
}

TEST_F(PassEnds, FastModeNamesAnUnusedMessage) {
  Pass pass{cluster[0]};
  at::Tensor used = run_multiply(a, pass, x);
  run_multiply(b, pass, x);
  EXPECT_EQ(kind_of([&] { pass.backward(used.sum(), {.mode = BackwardMode::fast}).get(); },
                    "SendBackward(to worker0) on worker2"),
            rpc::ErrorKind::failed_precondition);
}

TEST_F(PassEnds, CallsAfterBackwardFail) {
  Pass pass{cluster[0]};
  pass.backward(run_multiply(a, pass, x).sum()).get();
  EXPECT_EQ(kind_of([&] { run_multiply(a, pass, x); }), rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { pass.backward(x.sum()).get(); }, "retain_graph"),
            rpc::ErrorKind::failed_precondition);
}

TEST_F(PassEnds, LocalBackwardThatReachesARemoteTensorIsAnError) {
  Pass pass{cluster[0]};
  at::Tensor out = run_multiply(a, pass, x).sum();
  EXPECT_EQ(kind_of([&] { out.backward(); }, "worker1"), rpc::ErrorKind::failed_precondition);
}

TEST_F(PassEnds, TensorOfAnotherPassIsAnError) {
  Pass one{cluster[0]}, two{cluster[0]};
  at::Tensor out = run_multiply(a, one, x);
  EXPECT_EQ(kind_of([&] { two.backward(run_multiply(b, two, out).sum()).get(); },
                    "reaches a tensor that arrived in"),
            rpc::ErrorKind::failed_precondition);
}

TEST_F(PassEnds, FailureInABackwardNodeAbortsThePassEverywhere) {
  Pass pass{cluster[0]};
  at::Tensor out = run_multiply(b, pass, a.call<&Weights::fail_backward>(pass, x).get());
  EXPECT_EQ(kind_of([&] { pass.backward(out.sum()).get(); }, "backward failed on purpose"),
            rpc::ErrorKind::handler_failed);
  EXPECT_EQ(run_multiply(a, Pass{cluster[0]}, x).dim(), 2) << "the agents go on";
}

TEST_F(PassEnds, FailedCallLeavesThePassUsable) {
  Pass pass{cluster[0]};
  EXPECT_EQ(kind_of([&] { a.call<&Weights::fail>(pass, x).get(); }, "forward failed"),
            rpc::ErrorKind::handler_failed);
  pass.backward(run_multiply(a, pass, x).sum()).get();
  EXPECT_TRUE(pass.gradient(x).defined());
}

TEST_F(PassEnds, LostWorkerFailsBackward) {
  Pass pass{cluster[0]};
  at::Tensor out = run_multiply(b, pass, run_multiply(a, pass, x)).sum();
  cluster.kill(1);
  EXPECT_EQ(kind_of([&] { pass.backward(out).get(); }, "worker1"), rpc::ErrorKind::peer_lost);
}

TEST_F(PassEnds, ReleaseFreesThePassEverywhere) {
  {
    Pass pass{cluster[0]};
    run_multiply(a, pass, run_multiply(b, pass, x));
    EXPECT_EQ(cluster.live_passes(), 3U);
  }
  weft::test::eventually("no pass is left", [&] { return cluster.live_passes() == 0; });
}

// One report with the statistics of the agent, its RRefs and its passes.
TEST_F(PassEnds, StatsCountPassesAndBackwardsNextToObjects) {
  const auto figure = [this](std::size_t worker, const char* name) {
    return rpc::stats(cluster[worker]).layers.at(name);
  };
  EXPECT_EQ(figure(0, "dist_autograd.passes"), 0U);
  {
    Pass pass{cluster[0]};
    const at::Tensor sent = x * 2;
    const auto out = a.remote<&Weights::multiply>(pass, sent);
    EXPECT_EQ(figure(0, "dist_autograd.passes"), 1U);
    EXPECT_EQ(figure(0, "dist_autograd.backwards"), 0U);
    weft::test::Event entered, left;  // by the hook of the returned gradient
    sent.register_hook([&](at::Tensor gradient) {
      entered.set();
      left.wait();
      return gradient;
    });
    auto done = pass.backward(out, at::ones_like(x));
    entered.wait();
    EXPECT_EQ(figure(0, "dist_autograd.backwards"), 1U);
    const rpc::AgentStats there = weft::test::got(rpc::stats(cluster.peer(0, 1)));
    EXPECT_EQ(there.name, "worker1");
    EXPECT_GT(there.calls_served, 0U);
    EXPECT_EQ(there.layers.at("rref.objects"), 2U);
    EXPECT_EQ(there.layers.at("dist_autograd.passes"), 1U);
    EXPECT_EQ(there.layers.at("dist_autograd.backwards"), 1U);
    left.set();
    weft::test::got(std::move(done));
    weft::test::eventually("no backward is left", [&] {
      return figure(0, "dist_autograd.backwards") + figure(1, "dist_autograd.backwards") == 0;
    });
    EXPECT_EQ(figure(0, "dist_autograd.passes"), 1U);
  }
  weft::test::eventually("no pass is left", [&] {
    return figure(0, "dist_autograd.passes") + figure(1, "dist_autograd.passes") == 0;
  });
}

// worker1 died, and therefore worker0 ended.
TEST(PassOfAJob, ItsErrorNamesTheMemberThatDied) {
  const auto network = std::make_shared<rpc::InProcess>();
  std::vector<std::unique_ptr<rpc::Agent>> agents;
  std::vector<rpc::Future<void>> met;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    rpc::MemberOptions options{{.name = "worker" + std::to_string(rank), .handler_threads = 2}};
    options.listen = {"inproc://" + options.name};
    options.in_process = network;
    options.rendezvous = {.store = "inproc://worker0", .rank = rank, .world_size = 3};
    options.log = [](const rpc::LogRecord&) {};
    agents.push_back(weft::test::make_member(options, layers()));
    agents.back()->allow_create<Weights>();
  }
  for (const auto& agent : agents) met.push_back(rpc::Job(*agent).wait_for(3));
  for (auto& one : met) weft::test::got(std::move(one));
  const Object weights = rref::create<Weights>(agents[2]->peer("worker0"), matrix());
  Pass pass{*agents[2]};
  const at::Tensor out = weft::test::got(weights.call<&Weights::total>(pass, matrix()));
  agents[1] = nullptr;
  weft::test::eventually("the survivor was told", [&] { return agents[2]->core()->job_error().has_value(); });
  agents[0] = nullptr;
  weft::test::eventually("worker0 is gone", [&] { return agents[2]->core()->counts().connections == 0; });
  const auto error = weft::test::error_of([&] { pass.backward(out).get(); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(std::string(error->what()).starts_with("worker1 was lost")) << error->what();
}

TEST_F(PassEnds, ThousandsOfConcurrentPassesStaySeparate) {
  constexpr int count = 2000;
  const at::Tensor wa = matrix(), wb = matrix();
  const Object first = rref::create<Weights>(cluster.peer(0, 1), wa);
  const Object second = rref::create<Weights>(cluster.peer(0, 2), wb);
  std::vector<Pass> passes;
  std::vector<rpc::Future<void>> done;
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < count; ++i) {
    auto& pass = passes.emplace_back(cluster[0]);
    inputs.push_back((x.detach() * i / count).requires_grad_());
    const auto hidden = first.remote<&Weights::multiply>(pass, inputs.back());
    const auto out = second.remote<&Weights::multiply>(pass, hidden);
    done.push_back(pass.backward(out, at::ones_like(x)));
  }
  rpc::when_all(std::move(done)).get();
  for (int i = 0; i < count; ++i) {
    const at::Tensor input = inputs[i].detach().requires_grad_();
    input.mm(wa).tanh().mm(wb).tanh().sum().backward();
    const at::Tensor gradient = passes[i].gradient(inputs[i]);
    ASSERT_TRUE(gradient.defined()) << i;
    ASSERT_TRUE(at::allclose(gradient, input.grad())) << i;
  }
}

}  // namespace
}  // namespace weft::dist_autograd::test::pass_test
