// Dense and sparse (COO) tensors in calls without a pass: behind RRefs, as arguments of calls on RRefs, in
// nested calls, and in many concurrent calls.
#include "tests/dist_autograd/kinds_support.h"

namespace weft::dist_autograd::test::tensor_rrefs_test {
namespace {

using weft::test::got;
using Value = rref::RRef<at::Tensor>;

// Every agent serves these, in addition to Functions.
struct Results {
  explicit Results(rpc::Agent& a) : agent(&a) {}

  // Fetches the result of a call whose result stays on `next`.
  rpc::Task<at::Tensor> elsewhere(rpc::CallContext& call, std::string next, at::Tensor x, at::Tensor y) {
    const Value there = rref::remote<&Functions::add>(agent->peer(next).with(call), x, y);
    co_return co_await there.with(call).to_here();
  }
  // Returns RRefs to two values on `next`.
  std::vector<Value> two(std::string next, at::Tensor x) {
    const rpc::Peer peer = agent->peer(next);
    return {rref::remote<&Functions::add>(peer, x, x), rref::remote<&Functions::multiply>(peer, x, x)};
  }
  // Returns the mean over all trainers to each of them, after the last trainer has reported.
  rpc::Future<at::Tensor> average(at::Tensor gradient) {
    rpc::Promise<at::Tensor> promise;
    auto future = promise.future();
    std::vector<rpc::Promise<at::Tensor>> answered;
    at::Tensor mean;
    {
      std::lock_guard lock(mutex);
      sum = sum.defined() ? sum + gradient : gradient;
      waiting.push_back(std::move(promise));
      if (waiting.size() < 3) return future;
      answered.swap(waiting);
      mean = std::exchange(sum, at::Tensor()) / 3;
    }
    for (auto& each : answered) each.complete(mean);
    return future;
  }
  using Service = rpc::Service<"test.results", rpc::Method<"elsewhere", &Results::elsewhere>,
                               rpc::Method<"two", &Results::two>, rpc::Method<"average", &Results::average>>;

  rpc::Agent* agent;
  std::mutex mutex;  // guards what follows
  at::Tensor sum;
  std::vector<rpc::Promise<at::Tensor>> waiting;
};

class TensorRRefs : public ::testing::TestWithParam<Kind>, protected Workers {
 protected:
  TensorRRefs() : Workers(GetParam()) {
    for (std::size_t i = 0; i < cluster.size(); ++i) cluster[i].serve(std::make_shared<Results>(cluster[i]));
  }
  void expect_same(const at::Tensor& found, const at::Tensor& want) {
    EXPECT_EQ(found.is_sparse(), GetParam() == Kind::sparse);
    EXPECT_TRUE(dense(found).equal(dense(want)));
  }
  at::Tensor fetched(const Value& value) { return got(value.to_here()); }
};

TEST_P(TensorRRefs, OfTheOwnAgentAreFetchedAndCalledWith) {
  const at::Tensor x = draw(), y = draw();
  const rpc::Peer self = cluster.peer(0, 0);
  expect_same(got(self.call<&Functions::add>(x, y)), x + y);
  expect_same(fetched(rref::remote<&Functions::add>(self, x, y)), x + y);
  const Value mine = rref::local(cluster[0], x);
  for (const std::size_t callee : {0, 1}) {
    expect_same(got(cluster.peer(0, callee).call<&Functions::add>(mine, y)), x + y);
    expect_same(fetched(rref::remote<&Functions::add>(cluster.peer(0, callee), mine, y)), x + y);
  }
}

TEST_P(TensorRRefs, AreArgumentsAtTheirOwnerAndAtAThirdAgent) {
  const at::Tensor x = draw(), y = draw();
  const rpc::Peer owner = cluster.peer(0, 1);
  const Value a = rref::remote<&Functions::add>(owner, x, y), b = rref::remote<&Functions::add>(owner, y, y);
  for (const std::size_t callee : {1, 2}) {
    expect_same(got(cluster.peer(0, callee).call<&Functions::add>(a, b)), (x + y) + (y + y));
    expect_same(fetched(rref::remote<&Functions::add>(cluster.peer(0, callee), a, b)), (x + y) + (y + y));
  }
}

TEST_P(TensorRRefs, TenResultsOfOneCalleeAreFetchedInTurn) {
  std::vector<at::Tensor> inputs;
  std::vector<Value> results;
  for (int i = 0; i < 10; ++i) {
    inputs.push_back(draw());
    results.push_back(rref::remote<&Functions::add>(cluster.peer(0, 1), inputs.back(), inputs.back()));
  }
  for (int i = 0; i < 10; ++i) expect_same(fetched(results[i]), inputs[i] + inputs[i]);
}

TEST_P(TensorRRefs, OfARemoteInAHandler) {
  const at::Tensor x = draw(), y = draw();
  expect_same(got(cluster.peer(0, 1).call<&Results::elsewhere>(std::string("worker2"), x, y)), x + y);
}

TEST_P(TensorRRefs, TwentyMayReferToValuesThatHoldRRefs) {
  std::vector<at::Tensor> inputs;
  std::vector<rref::RRef<std::vector<Value>>> outer;
  for (int i = 0; i < 20; ++i) {
    inputs.push_back(draw());
    outer.push_back(rref::remote<&Results::two>(cluster.peer(0, 1), std::string("worker2"), inputs.back()));
  }
  for (int i = 0; i < 20; ++i) {
    const auto inner = got(outer[i].to_here());
    ASSERT_EQ(inner.size(), 2U);
    expect_same(fetched(inner[0]), inputs[i] + inputs[i]);
    expect_same(fetched(inner[1]), inputs[i] * inputs[i]);
  }
}

TEST_P(TensorRRefs, InANestedCallBackToTheCaller) {
  const at::Tensor x = draw(), y = draw();
  expect_same(got(cluster.peer(0, 1).call<&Functions::along>(std::vector<std::string>{"worker0"}, x, y)),
              x + y);
}

TEST_P(TensorRRefs, SeveralInOneArgument) {
  const std::vector<at::Tensor> three{draw(), draw(), draw()};
  expect_same(got(cluster.peer(0, 1).call<&Functions::stack>(three)), at::stack(three));
}

TEST_P(TensorRRefs, AFetchReportsTheErrorOfAHandlerThatThrew) {
  const Value broken = rref::remote<&Functions::keep_and_fail>(cluster.peer(0, 1), draw());
  for (int i = 0; i < 2; ++i) {
    const std::string text = weft::test::message_of([&] { got(broken.to_here()); });
    EXPECT_NE(text.find("forward failed on purpose"), std::string::npos) << text;
  }
}

TEST_P(TensorRRefs, ManyCallsAtOnce) {
  std::vector<at::Tensor> inputs;
  std::vector<rpc::Future<at::Tensor>> results;
  for (int i = 0; i < 20; ++i) {
    inputs.push_back(draw());
    results.push_back(cluster.peer(0, 1).call<&Functions::multiply>(inputs.back(), inputs.back()));
  }
  const auto all = got(rpc::when_all(std::move(results)));
  for (int i = 0; i < 20; ++i) expect_same(all[i], inputs[i] * inputs[i]);
}

TEST_P(TensorRRefs, RepliesWaitForTheLastCaller) {
  std::vector<at::Tensor> gradients;
  std::vector<rpc::Future<at::Tensor>> answers;
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_TRUE(answers.empty() || !answers.back().ready());
    gradients.push_back(draw());
    answers.push_back(cluster.peer(i, 0).call<&Results::average>(gradients.back()));
  }
  const at::Tensor mean = dense(gradients[0] + gradients[1] + gradients[2]) / 3;
  for (auto& answer : answers) {
    const at::Tensor found = got(std::move(answer));
    EXPECT_EQ(found.is_sparse(), GetParam() == Kind::sparse);
    expect_equal(dense(found), mean, "the mean");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TensorRRefs, ::testing::Values(Kind::dense, Kind::sparse),
                         [](const auto& info) { return kind_name(info.param); });

}  // namespace
}  // namespace weft::dist_autograd::test::tensor_rrefs_test
