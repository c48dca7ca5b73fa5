// Edge cases of a backward: no calls, no roots, roots behind RRefs, failures and deaths of workers in nested
// calls, releases during the backward, and leaves that a call still computes.
#include "tests/dist_autograd/kinds_support.h"

namespace weft::dist_autograd::test::pass_edges_test {
namespace {

using rpc::ErrorKind;
using weft::test::got;
using weft::test::kind_of;
using weft::test::message_of;
using Value = rref::RRef<at::Tensor>;

// Checks a backward that failed on the initiator, and the state after it.
void expect_failure(Workers& workers, Pass& pass, const at::Tensor& root, const std::string& says) {
  try {
    got(pass.backward(root));
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {  // of the driver's own node, that node's
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
  workers.expect_nothing_left();
}

class PassEdges : public ::testing::Test, protected Workers {
 protected:
  PassEdges() : Workers(Kind::dense) {}
  at::Tensor along(Pass& pass, const std::vector<std::string>& route, const at::Tensor& x) {
    return got(cluster.peer(0, 1).call<&Functions::along>(pass, route, x, x));
  }
};

TEST_F(PassEdges, ABackwardNeedsARootAndItsGradient) {
  Pass pass{cluster[0]};
  EXPECT_EQ(kind_of([&] { got(pass.backward(std::vector<at::Tensor>{}, {})); }), ErrorKind::invalid_argument);
  const at::Tensor x = leaf();
  got(pass.backward((x * 2).sum()));  // no backward was started
  EXPECT_TRUE(pass.gradient(x).defined());
  for (const at::Tensor& root : {draw(), draw().sum(), leaf(), at::Tensor()}) {
    Pass other{cluster[0]};
    EXPECT_EQ(kind_of([&] { got(other.backward(root)); }), ErrorKind::invalid_argument);
  }
}

TEST_F(PassEdges, AReleasedPassRefusesCallsAndBackwards) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), sum = along(pass, {}, x);
  pass.release();
  pass.release();
  EXPECT_EQ(kind_of([&] { along(pass, {}, x); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { got(pass.backward(sum.sum())); }), ErrorKind::failed_precondition);
  EXPECT_FALSE(pass.gradient(x).defined());
  expect_nothing_left();
}

TEST_F(PassEdges, ARefusedBackwardLeavesTheGradientsOfAnEarlierOne) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), sum = along(pass, {}, x).sum();
  got(pass.backward(sum));
  EXPECT_EQ(kind_of([&] { got(pass.backward(sum)); }), ErrorKind::failed_precondition) << "no graph is left";
  EXPECT_EQ(kind_of([&] { got(pass.backward(draw().sum())); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { got(pass.backward(leaf())); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { got(pass.backward(leaf(), at::ones({2}))); }), ErrorKind::invalid_argument);
  expect_gradients(pass, {x}, {at::full_like(x, 2)});
  EXPECT_EQ(cluster.live_passes(), 2U);
}

// The owner of the root refuses the backward.
TEST_F(PassEdges, ABackwardWhoseRemoteRootIsRefusedLeavesTheGradientsOfAnEarlierOne) {
  for (const BackwardMode mode : {BackwardMode::smart, BackwardMode::fast}) {
    Pass pass{cluster[0]};
    const at::Tensor x = leaf(), sum = along(pass, {}, x).sum(), no_graph = draw().sum();
    const Value tensor = rref::remote<&Functions::add>(cluster.peer(0, 2), pass, no_graph, no_graph);
    const auto number = rref::remote<&Functions::number>(cluster.peer(0, 2), pass, 5);
    const Value no_tensor{number.reference()};
    EXPECT_EQ(kind_of([&] { got(pass.backward(tensor)); }), ErrorKind::invalid_argument);
    EXPECT_FALSE(pass.state()->had_backward());
    got(pass.backward(sum, {.retain_graph = true, .mode = mode}));
    const auto refused = [&](std::vector<Root> roots, ErrorKind kind) {
      EXPECT_EQ(kind_of([&] { got(pass.backward(std::move(roots), {.mode = mode})); }), kind);
      expect_gradients(pass, {x}, {at::full_like(x, 2)});
    };
    refused({no_tensor}, ErrorKind::type_mismatch);
    refused({Root(sum), Root(tensor)}, ErrorKind::invalid_argument);
    refused({Root(tensor), Root(no_tensor), Root(rref::local(cluster[0], sum))}, ErrorKind::invalid_argument);
    EXPECT_TRUE(along(pass, {}, x).defined()) << "calls may follow";
    EXPECT_EQ(state(1, pass).backwards(), 1U);
    got(pass.backward(sum));
    expect_gradients(pass, {x}, {at::full_like(x, 4)});
    pass.release();
    expect_nothing_left();
  }
}

TEST_F(PassEdges, ABackwardOverAGraphThatAnotherWorkerUsedUpLeavesTheGradients) {
  for (const BackwardMode mode : {BackwardMode::smart, BackwardMode::fast}) {
    Pass pass{cluster[0]};
    const at::Tensor x = leaf(), sum = along(pass, {"worker3"}, x).sum();
    got(cluster.peer(0, 2).call<&Functions::keep>(pass, rref::local(cluster[0], sum)));
    const auto from_another = [&] {
      return functions[2]->kept_pass->backward(functions[2]->kept_root, {}, {.mode = mode});
    };
    got(pass.backward(sum));
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(kind_of([&] { got(from_another()); }), ErrorKind::failed_precondition);
    expect_gradients(pass, {x}, {at::full_like(x, 2)});
    EXPECT_FALSE(state(2, pass).had_backward());
    EXPECT_FALSE(state(2, pass).in_backward());
    functions[2]->kept_pass.reset();
    pass.release();
    expect_nothing_left();
  }
}

TEST_F(PassEdges, ABackwardOfAnotherWorkerDuringABackwardIsRefused) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), sum = along(pass, {}, x).sum();
  got(cluster.peer(0, 2).call<&Functions::keep>(pass, rref::local(cluster[0], sum)));
  weft::test::Event entered, left;
  sum.register_hook([&](at::Tensor gradient) {
    entered.set();
    left.wait();
    return gradient;
  });
  auto first = pass.backward(sum);
  entered.wait();
  auto second = functions[2]->kept_pass->backward(functions[2]->kept_root);
  left.set();
  got(std::move(first));
  EXPECT_EQ(kind_of([&] { got(std::move(second)); }), ErrorKind::failed_precondition);
  EXPECT_FALSE(state(2, pass).in_backward()) << "the pass goes on there";
  expect_gradients(pass, {x}, {at::full_like(x, 2)});
  functions[2]->kept_pass.reset();
}

TEST_F(PassEdges, ABackwardOfLibTorchInsideANodeMustNotReachARemoteTensor) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), there = along(pass, {}, x), here = x * 1, nested = there.sum();
  here.register_hook([nested](at::Tensor gradient) {
    torch::autograd::backward({nested}, {});
    return gradient;
  });
  expect_failure(*this, pass, (here + there).sum(), "on this worker alone reached a tensor that came from");
}

TEST_F(PassEdges, TwoBackwardsFromAnRRefOfTheOwnAgent) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf();
  const Value root = rref::local(cluster[0], along(pass, {}, x).square().sum());
  got(pass.backward(root, {}, {.retain_graph = true}));
  got(pass.backward(root));
  expect_gradients(pass, {x},
                   {2 * gradients_here({x}, [](const auto& l) { return (l[0] + l[0]).square(); })[0]});
  // a tensor without a graph; a tensor that is not a scalar
  for (const at::Tensor& wrong : {draw(), leaf()}) {
    Pass other{cluster[0]};
    EXPECT_EQ(kind_of([&] { got(other.backward(rref::local(cluster[0], wrong))); }),
              ErrorKind::invalid_argument);
  }
  pass.release();
  EXPECT_EQ(kind_of([&] { got(pass.backward(root)); }), ErrorKind::failed_precondition);
}

TEST_F(PassEdges, TwoBackwardsFromAnRRefOfAnotherAgent) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), y = leaf();
  const Value root = rref::remote<&Functions::square_add>(cluster.peer(0, 1), pass, x, y);
  got(pass.backward(root, at::ones_like(x), {.retain_graph = true}));
  got(pass.backward(root, at::ones_like(x)));
  expect_gradients(pass, {x, y}, {4 * x.detach(), 2 * at::ones_like(y)});
}

// The receiver has the message's tensors although the call failed.
TEST_F(PassEdges, AMessageOfACallThatFailedAtItsReceiverStaysInThePass) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf();
  EXPECT_EQ(kind_of([&] { got(cluster.peer(0, 1).call<&Functions::keep_and_fail>(pass, x)); }),
            ErrorKind::handler_failed);
  got(pass.backward((got(cluster.peer(0, 1).call<&Functions::give>(pass)) * 3).sum()));
  expect_gradients(pass, {x}, {at::full_like(x, 3)});
}

TEST_F(PassEdges, AMessageOfARemoteCallThatTimedOutStaysInThePass) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf();
  const rpc::CallOptions hurried{.timeout = std::chrono::seconds{1}};  // enough to send it
  const Value there = rref::remote<&Functions::square_later>(cluster.peer(0, 1).with(hurried), pass, x);
  weft::test::eventually("the call has timed out", [&] { return cluster[0].counts().waiting == 0; });
  functions[1]->gate.set();
  got(pass.backward(got(there.to_here(pass)).sum()));
  expect_gradients(pass, {x}, {2 * x.detach()});
}

at::Tensor unserved(at::Tensor x) { return x; }
using Unserved = rpc::Function<"test.unserved", &unserved>;

// The peer refuses the call before it reads the tensors: fast would otherwise wait for their gradients.
TEST_F(PassEdges, AnUnsentMessageIsForgotten) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf();
  EXPECT_EQ(kind_of([&] { got(cluster.peer(0, 1).call<Unserved>(pass, x)); }), ErrorKind::not_found);
  got(pass.backward(along(pass, {}, x).sum(), {.mode = BackwardMode::fast}));
  expect_gradients(pass, {x}, {at::full_like(x, 2)});
}

TEST_F(PassEdges, IsQuiescentOnceItsCallsHaveCompleted) {
  using Direction = PassState::Direction;
  Pass pass{cluster[0]};
  PassState& state = *pass.state();
  int own = 0, all = 0;
  const auto ask = [&] {
    state.when_quiet(false, [&] { ++own; });
    state.when_quiet(true, [&] { ++all; });
  };
  ask();
  EXPECT_EQ(std::pair(own, all), std::pair(1, 1)) << "no call";
  state.call_began(Direction::outgoing);
  state.call_began(Direction::outgoing);
  state.call_began(Direction::incoming);
  ask();
  state.call_ended(Direction::outgoing);
  EXPECT_EQ(std::pair(own, all), std::pair(1, 1)) << "a call of both kinds";
  state.call_ended(Direction::outgoing);
  EXPECT_EQ(std::pair(own, all), std::pair(2, 1)) << "a call that is served";
  ask();
  EXPECT_EQ(std::pair(own, all), std::pair(3, 1));
  state.call_ended(Direction::incoming);
  EXPECT_EQ(std::pair(own, all), std::pair(3, 3));
}

TEST_F(PassEdges, AFailureBehindANestedCallIsReported) {
  Pass pass{cluster[0]};
  const at::Tensor result =
      got(cluster.peer(0, 1).call<&Functions::nested_failure>(pass, std::string("worker2"), leaf()));
  expect_failure(*this, pass, result.sum(), "backward failed on purpose");
}

TEST_F(PassEdges, ManyFailedPassesDoNotAffectALaterPass) {
  const at::Tensor x = leaf();
  for (int i = 0; i < 50; ++i) {
    Pass pass{cluster[0]};
    const at::Tensor sum = got(cluster.peer(0, 1).call<&Functions::fail_backward>(pass, x)).sum();
    EXPECT_EQ(kind_of([&] { got(pass.backward(sum, {.retain_graph = true})); }), ErrorKind::handler_failed);
    EXPECT_FALSE(pass.gradient(x).defined());
  }
  Pass pass{cluster[0]};
  got(pass.backward(along(pass, {}, x).sum()));
  expect_gradients(pass, {x}, {at::full_like(x, 2)});
}

// The backward returns from worker to worker to the initiator. The node of the initiator is the last one, and
// it fails.
TEST_F(PassEdges, AFailureAfterManyRoundTripsIsReported) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf();
  at::Tensor value = FailingBackward::apply((x + x) * x);
  for (const std::size_t worker : {1, 2, 3, 1})
    value = got(cluster.peer(0, worker).call<&Functions::square_add>(pass, value, x));
  expect_failure(*this, pass, value.sum(), "backward failed on purpose");
}

TEST_F(PassEdges, TheDeathOfAWorkerReachedOnlyByANestedCall) {
  Pass pass{cluster[0]};
  const at::Tensor sum = along(pass, {"worker2", "worker3"}, leaf());
  EXPECT_FALSE(pass.state()->met().contains(cluster[3].id()));
  Pass told{cluster[0]};
  const at::Tensor other = along(told, {"worker2", "worker3"}, leaf());
  cluster.kill(3);
  EXPECT_THROW(got(pass.backward(sum.sum())), rpc::Error);
  const std::string failure = message_of([&] { got(told.backward(other.sum())); });
  EXPECT_NE(failure.find("worker3"), std::string::npos) << failure;
  Pass next{cluster[0]};
  const at::Tensor x = leaf();
  got(next.backward(along(next, {"worker2"}, x).sum()));
  EXPECT_TRUE(next.gradient(x).defined()) << "the others go on";
}

// A call of the initiator may arrive after the pass has ended here, and before the initiator has heard of it.
TEST_F(PassEdges, AWorkerThatHasEndedAFailedPassReportsTheCause) {
  Pass pass{cluster[0]};
  along(pass, {}, leaf());
  const auto layer = AutogradLayer::of(*cluster[1].core());
  layer->release(pass.id(), std::make_exception_ptr(rpc::Error(ErrorKind::peer_lost, "worker3 is gone")));
  EXPECT_EQ(message_of([&] { layer->find(pass.id()); }), "worker3 is gone");
  EXPECT_EQ(kind_of([&] { layer->join(pass.id(), cluster[0].id(), 0); }), ErrorKind::peer_lost);
}

TEST_F(PassEdges, AReleaseByTheInitiatorDuringABackward) {
  Pass pass{cluster[0]};
  at::Tensor x = leaf();
  for (std::size_t i = 0; i < 30; ++i) x = got(cluster.peer(0, 1 + i % 3).call<&Functions::add>(pass, x, x));
  const auto context = AutogradLayer::of(*cluster[0].core());
  const at::Tensor root = x * 1;
  root.register_hook([context, id = pass.id()](at::Tensor gradient) {
    context->release(id, nullptr);
    return gradient;
  });
  expect_failure(*this, pass, root.sum(), "was released");
}

TEST_F(PassEdges, AReleaseByAnotherWorkerDuringABackward) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf();
  const at::Tensor there = got(cluster.peer(0, 1).call<&Functions::releasing>(pass, x));
  const at::Tensor sum = got(cluster.peer(0, 2).call<&Functions::add>(pass, there, x));
  expect_failure(*this, pass, sum.sum(), "was released");
}

TEST_F(PassEdges, OfALeafThatACallWithoutThePassStillMakes) {
  const at::Tensor value = draw();
  const Value there = rref::remote<&Functions::make_later>(cluster.peer(0, 1), value);
  Pass pass{cluster[0]};
  auto fetched = there.to_here(pass);
  EXPECT_FALSE(fetched.ready());
  functions[1]->gate.set();
  got(pass.backward(got(std::move(fetched)).square().sum()));
  expect_gradient(got(cluster.peer(0, 1).call<&Functions::gradient>(pass.id(), there)), 2 * value,
                  "at its owner");
}

// Ids contain only the origin's incarnation, which another agent may state.
TEST_F(PassEdges, AnotherAgentDoesNotEndThePassesOfTheirOrigin) {
  const rpc::AgentId origin = cluster[0].id(), other = cluster[2].id();
  const auto layer = AutogradLayer::of(*cluster[1].core());
  Pass pass{cluster[0]};
  const at::Tensor x = leaf();
  const at::Tensor there = got(cluster.peer(0, 1).call<&Functions::add>(pass, x, x));
  layer->peer_gone({"mallory", origin.incarnation}, rpc::Error(ErrorKind::peer_lost, "the test says so"));
  EXPECT_TRUE(layer->may_release(pass.id(), origin));
  EXPECT_FALSE(layer->may_release(pass.id(), other)) << "it has exchanged no call of the pass";
  const PassId later{origin.incarnation, pass.id().number + 100};
  const auto joined = layer->join(later, other, later.number);
  EXPECT_FALSE(layer->has_ended(pass.id()));
  got(pass.backward(there.sum()));
  const PassId between{origin.incarnation, pass.id().number + 50};
  EXPECT_NE(layer->join(between, origin, 0), nullptr);
  for (const PassId& id : {later, between}) layer->release(id, nullptr);
}

TEST_F(PassEdges, TheMemoryOfEndedPassesIsBounded) {
  const auto layer = AutogradLayer::of(*cluster[1].core());
  for (std::uint64_t number = 2; number <= 6000; number += 2) layer->release({7, number}, nullptr);
  EXPECT_LE(layer->remembered(), 1024U) << "of an origin, some of whose passes never arrived here";
  EXPECT_TRUE(layer->has_ended({7, 6000}));
  for (std::uint64_t origin = 100; origin < 10'100; ++origin) layer->release({origin, 1}, nullptr);
  EXPECT_LE(layer->remembered(), 4096U);
  EXPECT_TRUE(layer->has_ended({10'099, 1}));
}

}  // namespace
}  // namespace weft::dist_autograd::test::pass_edges_test
