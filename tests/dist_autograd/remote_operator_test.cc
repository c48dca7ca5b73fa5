// Operators whose results stay on their worker, and operators on tensors behind RRefs.
#include <weft/dist_autograd/remote_operator.h>

#include "tests/dist_autograd/kinds_support.h"

namespace weft::dist_autograd::test::remote_operator_test {
namespace {

using weft::test::got;
using weft::test::kind_of;
using Value = rref::RRef<at::Tensor>;

class RemoteOperators : public ::testing::TestWithParam<Kind>, protected Workers {
 protected:
  RemoteOperators() : Workers(GetParam()) {
    for (std::size_t i = 0; i < cluster.size(); ++i)
      tensor::allow_operators(cluster[i], {"aten::add.Tensor", "aten::mul.Tensor", "aten::neg"});
  }
  Value add(std::size_t at, const at::Tensor& x, const at::Tensor& y) {
    return remote_operator(cluster.peer(0, at), "aten::add.Tensor", x, y);
  }
  void expect_same(const at::Tensor& found, const at::Tensor& want) {
    EXPECT_EQ(found.is_sparse(), GetParam() == Kind::sparse);
    EXPECT_TRUE(dense(found).equal(dense(want)));
  }
};

TEST_P(RemoteOperators, TenOperatorsRunOnOneWorker) {
  std::vector<at::Tensor> inputs;
  std::vector<Value> sums;
  for (int i = 0; i < 10; ++i) {
    inputs.push_back(draw());
    sums.push_back(add(1, inputs.back(), inputs.back()));
  }
  EXPECT_EQ(sums[0].owner().name, "worker1");
  for (std::size_t i = 0; i < 10; ++i) expect_same(got(sums[i].to_here()), inputs[i] + inputs[i]);
}

TEST_P(RemoteOperators, AResultOfTheOwnAgentNeedsNoFetch) {
  const at::Tensor x = draw(), y = draw();
  const Value sum = add(0, x, y);
  EXPECT_TRUE(sum.is_owner());
  expect_same(*got(sum.local()), x + y);
}

// The owner is another worker, or the caller.
TEST_P(RemoteOperators, RunOnTensorsBehindRRefs) {
  const at::Tensor x = draw(), y = draw();
  for (const std::size_t owner : {1, 0}) {
    const Value sum = add(owner, x, y);
    const rpc::Peer there = sum.owner_peer();
    expect_same(got(tensor::call_operator(there, "aten::neg", sum)), -(x + y));
    const Value negative = remote_operator(there, "aten::neg", sum);
    expect_same(got(negative.to_here()), -(x + y));
    expect_same(got(remote_operator(cluster.peer(0, 2), "aten::add.Tensor", negative, sum).to_here()), x - x);
  }
}

TEST_P(RemoteOperators, ADisallowedOperatorFailsTheRRef) {
  const Value none = remote_operator(cluster.peer(0, 1), "aten::relu", draw());
  const std::string text = weft::test::message_of([&] { got(none.to_here()); });
  EXPECT_NE(text.find("aten::relu"), std::string::npos) << text;
}

TEST_P(RemoteOperators, BelongToTheirPass) {
  const std::vector<at::Tensor> leaves{leaf(), leaf()};
  Pass pass{cluster[0]};
  const Value sum = remote_operator(cluster.peer(0, 1), "aten::add.Tensor", pass, leaves[0], leaves[1]);
  const Value twice = remote_operator(cluster.peer(0, 1), "aten::add.Tensor", pass, sum, sum);
  got(pass.backward(total(got(twice.to_here(pass)))));
  expect_gradients(pass, leaves, gradients_here(leaves, [](const std::vector<at::Tensor>& here) {
                     const at::Tensor sum = here[0] + here[1];
                     return sum + sum;
                   }));
}

// --- Deadlines: the operators wait at worker1 and at the caller for a value that does not exist yet ---

const rpc::CallOptions hurried{.timeout = std::chrono::milliseconds{20}};

TEST_P(RemoteOperators, AResultIsFetchedAfterAnEarlierFetchTimedOut) {
  for (const std::size_t owner : {1, 0}) {
    SCOPED_TRACE(owner);
    const at::Tensor x = draw();
    const Value awaited = rref::remote<&Functions::make_later>(cluster.peer(0, owner), x);
    const Value negative = remote_operator(cluster.peer(0, owner), "aten::neg", awaited);
    EXPECT_EQ(kind_of([&] { got(negative.with(hurried).to_here()); }), rpc::ErrorKind::deadline_exceeded);
    auto patient = negative.to_here();
    EXPECT_FALSE(patient.ready());
    functions[owner]->gate.set();
    expect_same(got(std::move(patient)), -x);
    expect_same(got(negative.with(rpc::CallOptions{.timeout = std::chrono::minutes{1}}).to_here()), -x);
  }
}

// The creator's timer or the owner reports the expired deadline, whichever is first. The owner has then
// abandoned the operator.
TEST_P(RemoteOperators, AnOperatorPastItsDeadlineFailsTheRRef) {
  for (const std::size_t owner : {1, 0}) {
    SCOPED_TRACE(owner);
    const at::Tensor x = draw();
    const Value awaited = rref::remote<&Functions::make_later>(cluster.peer(0, owner), x);
    const Value negative = remote_operator(cluster.peer(0, owner).with(hurried), "aten::neg", awaited);
    const auto expect_late = [&] {
      const auto kind = kind_of([&] { got(negative.to_here()); });
      EXPECT_TRUE(kind == rpc::ErrorKind::deadline_exceeded || kind == rpc::ErrorKind::failed_precondition)
          << (kind ? to_string(*kind) : "no error");
    };
    expect_late();
    functions[owner]->gate.set();
    expect_same(got(awaited.to_here()), x);
    expect_late();  // forever
    expect_same(got(remote_operator(cluster.peer(0, owner), "aten::neg", awaited).to_here()), -x);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RemoteOperators, ::testing::Values(Kind::dense, Kind::sparse),
                         [](const auto& info) { return kind_name(info.param); });

}  // namespace
}  // namespace weft::dist_autograd::test::remote_operator_test
