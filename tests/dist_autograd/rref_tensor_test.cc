// Dense and sparse tensors behind RRefs, as arguments, as results and in containers. PyTorch's rpc_test.py
// has a test of each behaviour for each kind of tensor.
#include <weft/rpc/core/when_all.h>

#include "tests/dist_autograd/pass_support.h"

namespace weft::dist_autograd::rref_tensor_test {

using Tensors = std::vector<at::Tensor>;
using References = std::vector<rref::RRef<at::Tensor>>;

namespace {

at::Tensor add(at::Tensor a, at::Tensor b) { return a + b; }
using Add = rpc::Function<"rref_tensor.add", &add>;

at::Tensor sum_of(std::map<std::string, Tensors> tensors) {
  at::Tensor sum;
  for (const auto& [name, list] : tensors)
    for (const auto& tensor : list) sum = sum.defined() ? sum + tensor : tensor;
  return sum;
}
using SumOf = rpc::Function<"rref_tensor.sum_of", &sum_of>;

Tensors twice_each(Tensors tensors) {
  for (auto& tensor : tensors) tensor = tensor + tensor;
  return tensors;
}
using TwiceEach = rpc::Function<"rref_tensor.twice_each", &twice_each>;

// A chain of calls over several agents.
struct Middle {
  // Creates a result on `next`, and fetches it.
  rpc::Task<at::Tensor> remote_and_fetch(std::string next, at::Tensor a) {
    const auto there = rref::remote<Add>(agent->peer(next), a, a);
    co_return co_await there.to_here();
  }
  // Calls `next`, which may be the caller of this function, and waits.
  rpc::Task<at::Tensor> call_back(std::string next, at::Tensor a) {
    co_return co_await agent->peer(next).call<Add>(a, a);
  }
  // Returns references to results on `next`.
  References references(std::string next, at::Tensor a) {
    References all;
    for (int i = 0; i < 2; ++i) all.push_back(rref::remote<Add>(agent->peer(next), a, a));
    return all;
  }
  using Service =
      rpc::Service<"rref_tensor.middle", rpc::Method<"remote_and_fetch", &Middle::remote_and_fetch>,
                   rpc::Method<"call_back", &Middle::call_back>,
                   rpc::Method<"references", &Middle::references>>;
  rpc::Agent* agent;
};

// Replies to all callers after the last one has reported.
struct Mean {
  rpc::Future<at::Tensor> report(at::Tensor value) {
    sum = sum.defined() ? sum + value : value;
    auto future = waiting.emplace_back().future();
    if (waiting.size() == 3)
      for (auto& one : std::exchange(waiting, {})) one.complete(sum / 3);
    return future;
  }
  using Service = rpc::Service<"rref_tensor.mean", rpc::Method<"report", &Mean::report>>;
  at::Tensor sum;
  std::vector<rpc::Promise<at::Tensor>> waiting;
};

class RRefTensors : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    for (std::size_t i = 0; i < workers.size(); ++i) {
      workers[i].serve<Add>();
      workers[i].serve<SumOf>();
      workers[i].serve<TwiceEach>();
      workers[i].serve(std::make_shared<Middle>(Middle{&workers[i]}));
      workers[i].allow_create<Mean>();
    }
  }
  static at::Tensor value(double x, std::int64_t n = 3) {
    at::Tensor dense = torch::zeros({n, 4}, at::kDouble);
    dense[n - 1].fill_(x);
    return GetParam() ? dense.to_sparse() : dense;
  }
  static void expect_same(const at::Tensor& got, const at::Tensor& want) {
    EXPECT_EQ(got.layout(), want.layout());
    EXPECT_TRUE(got.to_dense().equal(want.to_dense())) << got << want;
  }
  test::Cluster workers{3};
};
INSTANTIATE_TEST_SUITE_P(, RRefTensors, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Sparse" : "Dense"; });

TEST_P(RRefTensors, TenResultsStayAndAreFetchedInOrder) {
  for (const std::size_t owner : {1U, 0U}) {  // elsewhere, and on the caller itself
    References results;
    for (int i = 0; i < 10; ++i)
      results.push_back(rref::remote<Add>(workers.peer(0, owner), value(i), value(1)));
    for (int i = 0; i < 10; ++i)
      expect_same(results[static_cast<std::size_t>(i)].to_here().get(), value(i + 1));
  }
}

TEST_P(RRefTensors, AreArgumentsOfCallsAndOfRemote) {
  const auto own = rref::local(workers[0], value(2));
  const auto there = rref::remote<Add>(workers.peer(0, 1), value(1), value(2));
  for (const std::size_t callee : {0U, 1U, 2U}) {
    expect_same(workers.peer(0, callee).call<Add>(own, there).get(), value(5));
    expect_same(rref::remote<Add>(workers.peer(0, callee), there, own).to_here().get(), value(5));
    expect_same(workers.peer(0, callee).call<Add>(own, own).get(), value(4));
  }
}

TEST_P(RRefTensors, AHandlerFetchesAResultThatAnotherAgentKeeps) {
  expect_same(workers.peer(0, 1).call<&Middle::remote_and_fetch>("worker2", value(2)).get(), value(4));
}

TEST_P(RRefTensors, AHandlerCallsItsCallerBack) {
  expect_same(workers.peer(0, 1).call<&Middle::call_back>("worker0", value(2)).get(), value(4));
}

TEST_P(RRefTensors, TwentyReferencesToValuesThatHoldReferences) {
  std::vector<rref::RRef<References>> all;
  for (int i = 0; i < 20; ++i)
    all.push_back(rref::remote<&Middle::references>(workers.peer(0, 1), "worker2", value(i)));
  for (int i = 0; i < 20; ++i) {
    const References inner = all[static_cast<std::size_t>(i)].to_here().get();
    ASSERT_EQ(inner.size(), 2U);
    for (const auto& one : inner) expect_same(one.to_here().get(), value(2 * i));
  }
}

TEST_P(RRefTensors, InListsAndMaps) {
  expect_same(workers.peer(0, 1)
                  .call<SumOf>(std::map<std::string, Tensors>{{"a", {value(1), value(2)}}, {"b", {value(4)}}})
                  .get(),
              value(7));
  const Tensors twice = workers.peer(0, 1).call<TwiceEach>(Tensors{value(1), value(2, 5), value(3, 1)}).get();
  ASSERT_EQ(twice.size(), 3U);
  expect_same(twice[0], value(2));
  expect_same(twice[1], value(4, 5));
  expect_same(twice[2], value(6, 1));
}

TEST_P(RRefTensors, ManyCallsOfDifferentSizesAreInFlightAtOnce) {
  std::vector<rpc::Future<at::Tensor>> calls;
  for (int i = 0; i < 100; ++i)
    calls.push_back(workers.peer(0, 1).call<Add>(value(i, 1 + i % 37), value(1, 1 + i % 37)));
  for (int i = 0; i < 100; ++i)
    expect_same(calls[static_cast<std::size_t>(i)].get(), value(i + 1, 1 + i % 37));
}

TEST_P(RRefTensors, AnObjectRepliesToAllCallersAfterTheLastCall) {
  const auto mean = rref::create<Mean>(workers.peer(0, 1));
  std::vector<rpc::Future<at::Tensor>> reports;
  for (const double x : {1.0, 2.0, 6.0}) reports.push_back(mean.call<&Mean::report>(value(x)));
  for (auto& report : reports) expect_same(report.get(), value(3));
}

TEST_P(RRefTensors, OneAgentAlone) {
  test::Cluster alone(1);
  alone[0].serve<Add>();
  const auto here = rref::remote<Add>(alone.peer(0, 0), value(1), value(2));
  EXPECT_TRUE(here.is_owner());
  expect_same(alone.peer(0, 0).call<Add>(here, value(1)).get(), value(4));
  expect_same(*here.local().get(), value(3));
}

}  // namespace
}  // namespace weft::dist_autograd::rref_tensor_test
