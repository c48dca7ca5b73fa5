// The records of a pass about the messages of its calls, on both sides, with dense and with sparse tensors;
// the workers that the pass knows; the removal of all records when the pass ends.
#include <weft/dist_autograd/internal/message_part.h>

#include "tests/dist_autograd/kinds_support.h"

namespace weft::dist_autograd::test::pass_messages_test {
namespace {

using rpc::ErrorKind;
using weft::test::got;
using weft::test::kind_of;

const std::string from0 = "RecvBackward(from worker0)", from1 = "RecvBackward(from worker1)",
                  from2 = "RecvBackward(from worker2)";

class PassMessages : public KindsTest {};

struct Route {
  std::string name;
  std::vector<std::string> workers;                           // that follow worker1
  std::vector<std::size_t> sent;                              // by each worker
  std::vector<std::pair<std::size_t, std::string>> arrivals;  // at a worker, and the node behind both tensors
};
const std::vector<Route> routes{
    {"one call", {}, {1, 1}, {{1, from0}}},
    {"three nested calls", {"worker2", "worker3"}, {1, 2, 2, 1}, {{1, from0}, {2, from1}, {3, from2}}},
    {"back to the first caller", {"worker0"}, {2, 2}, {{1, from0}, {0, from1}}}};

TEST_P(PassMessages, HaveOneNodeOnEachSideUntilThePassEnds) {
  for (const Route& route : routes) {
    SCOPED_TRACE(route.name);
    Pass pass{cluster[0]};
    const at::Tensor x = leaf(), y = leaf();
    const at::Tensor sum = run<&Functions::along>(1, pass, route.workers, x, y);
    EXPECT_TRUE(dense(sum).equal(dense(x + y)));
    for (std::size_t worker = 0; worker < route.sent.size(); ++worker)
      EXPECT_EQ(sent(worker, pass), route.sent[worker]) << "worker" << worker;
    EXPECT_EQ(origin(sum), from1);
    EXPECT_EQ(sum.grad_fn()->num_inputs(), 1U);
    for (const auto& [worker, from] : route.arrivals) {
      const Arrival arrival = functions[worker]->last_arrival();
      EXPECT_EQ(arrival.origins, (std::vector<std::string>{from, from})) << "worker" << worker;
      EXPECT_EQ(arrival.nodes, 1U) << "one for the message, on worker" << worker;
      EXPECT_EQ(arrival.inputs, 2U) << "one for each tensor, on worker" << worker;
    }
    got(pass.backward(total(sum)));
    expect_gradients(pass, {x, y},
                     gradients_here({x, y}, [](const auto& leaves) { return leaves[0] + leaves[1]; }));
    const PassId id = pass.id();
    pass.release();
    EXPECT_EQ(kind_of([&] { AutogradLayer::of(*cluster[0].core())->find(id); }), ErrorKind::not_found);
    expect_nothing_left();
  }
}

TEST_P(PassMessages, WithoutGradMakeNoNodes) {
  Pass pass{cluster[0]};
  const at::Tensor sum = run<&Functions::add>(1, pass, draw(), draw());
  EXPECT_FALSE(sum.requires_grad());
  EXPECT_EQ(sent(0, pass), 0U);
  EXPECT_EQ(sent(1, pass), 0U);
  EXPECT_EQ(functions[1]->last_arrival().origins, (std::vector<std::string>{"", ""}));
  EXPECT_EQ(state(1, pass).id(), pass.id()) << "the callee is in the pass nevertheless";
}

TEST_P(PassMessages, OfAListWhereSomeTensorsRequireGrad) {
  Pass pass{cluster[0]};
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 10; ++i) tensors.push_back(i % 2 == 0 ? leaf() : draw());
  const at::Tensor stacked = run<&Functions::stack>(1, pass, tensors);
  EXPECT_TRUE(dense(stacked).equal(dense(at::stack(tensors))));
  const Arrival arrival = functions[1]->last_arrival();
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(arrival.origins[i], i % 2 == 0 ? from0 : "") << i;
  EXPECT_EQ(arrival.nodes, 1U);
  EXPECT_EQ(arrival.inputs, 5U);
  EXPECT_EQ(sent(0, pass), 1U);
  EXPECT_EQ(pass.state()->met(), (std::set<rpc::AgentId>{cluster[1].id()}));
  got(pass.backward(total(stacked)));
  expect_gradients(pass, tensors,
                   gradients_here(tensors, [](const auto& leaves) { return at::stack(leaves); }));
}

TEST_P(PassMessages, EndWithThePassOnEveryWorker) {
  for (const bool with_grad : {true, false}) {
    Pass pass{cluster[0]};
    for (std::size_t worker = 1; worker < 4; ++worker)
      run<&Functions::add>(worker, pass, draw().requires_grad_(with_grad), draw());
    EXPECT_EQ(cluster.live_passes(), 4U);
    pass.release();
    expect_nothing_left();
  }
}

TEST_P(PassMessages, OfNestedCallsEndWithThePass) {
  Pass pass{cluster[0]};
  run<&Functions::along>(1, pass, std::vector<std::string>{"worker2"}, leaf(), leaf());
  EXPECT_EQ(pass.state()->met(), (std::set<rpc::AgentId>{cluster[1].id()})) << "worker2 it does not know";
  EXPECT_EQ(cluster.live_passes(), 3U);
  pass.release();
  expect_nothing_left();
}

TEST_P(PassMessages, RecordTheWorkersOfThePass) {
  Pass pass{cluster[0]};
  std::set<rpc::AgentId> others;
  for (std::size_t worker = 1; worker < 4; ++worker) {
    others.insert(cluster[worker].id());
    run<&Functions::add>(worker, pass, draw(), draw());
    EXPECT_EQ(pass.state()->met(), others) << "though nothing needs grad";
  }
  for (std::size_t worker = 1; worker < 4; ++worker) run<&Functions::add>(worker, pass, leaf(), leaf());
  EXPECT_EQ(pass.state()->met(), others);
}

INSTANTIATE_TEST_SUITE_P(Kinds, PassMessages, all_kinds(), kinds_name);

class PassOperators : public ::testing::TestWithParam<Kind>, protected Workers {
 protected:
  PassOperators() : Workers(GetParam()) { tensor::allow_operators(cluster[1], {"aten::add.Tensor"}); }
};

TEST_P(PassOperators, AreRecordedAsOtherCallsAre) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), y = leaf();
  const at::Tensor sum = got(tensor::call_operator(cluster.peer(0, 1), "aten::add.Tensor", pass, x, y));
  EXPECT_EQ(sent(0, pass), 1U);
  EXPECT_EQ(sent(1, pass), 1U);
  EXPECT_EQ(origin(sum), from1);
  got(pass.backward(total(sum)));
  expect_gradients(pass, {x, y},
                   gradients_here({x, y}, [](const auto& leaves) { return leaves[0] + leaves[1]; }));
  const PassId id = pass.id();
  pass.release();
  EXPECT_EQ(kind_of([&] { AutogradLayer::of(*cluster[0].core())->find(id); }), ErrorKind::not_found);
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Kinds, PassOperators, ::testing::Values(Kind::dense, Kind::sparse),
                         [](const auto& info) { return kind_name(info.param); });

TEST(PassIds, AreDistinctAndKnownUntilTheEnd) {
  Cluster cluster(2);
  const auto context = AutogradLayer::of(*cluster[0].core());
  std::set<PassId> ids;
  for (int i = 0; i < 200; ++i) {
    Pass pass{cluster[0]};
    EXPECT_EQ(context->find(pass.id()), pass.state());
    EXPECT_EQ(pass.id().origin, cluster[0].id().incarnation);
    ids.insert(pass.id());
  }
  EXPECT_EQ(ids.size(), 200U);
  for (const PassId& id : ids) EXPECT_EQ(kind_of([&] { context->find(id); }), ErrorKind::not_found);
  EXPECT_NE(Pass{cluster[0]}.id(), Pass{cluster[1]}.id()) << "of two workers";
}

TEST(PassIds, OfCallsWithoutTensorsAreSentAndEnd) {
  Workers workers{Kind::dense};
  Pass pass{workers.cluster[0]};
  EXPECT_EQ(got(workers.cluster.peer(0, 1).call<&Functions::number>(pass, 6)), 7);
  EXPECT_EQ(workers.cluster.live_passes(), 2U);
  pass.release();
  workers.expect_nothing_left();
}

}  // namespace
}  // namespace weft::dist_autograd::test::pass_messages_test
