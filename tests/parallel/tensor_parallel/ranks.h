// Shared by the tests of tensor parallel layers: ranks that are threads, and the comparison of a split module
// with a whole one.
#pragma once

#include <weft/parallel/tensor_parallel/split.h>

#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/dist_autograd/engine/support.h"
#include "tests/parallel/data_parallel/ranks.h"

namespace weft::tensor_parallel::testing {

using collectives::Group;
using collectives::ReduceOp;
using collectives::testing::Backend;
using collectives::testing::Company;
using collectives::testing::on_ranks;
using collectives::testing::RankBody;
using data_parallel::testing::expect_close;
using dist_autograd::testing::numbers;
using rpc::ErrorKind;
using test::error_of;

inline at::Generator generator(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

// 1, 2, 3 and 4 ranks.
class OnRanks : public ::testing::TestWithParam<int> {
 protected:
  const int ranks = GetParam();
  Company company{ranks, Backend::memory};
  std::vector<Group> groups = company.groups();
};
inline auto up_to_four() { return ::testing::Values(1, 2, 3, 4); }

inline at::Tensor own_chunk(const Group& group, const at::Tensor& whole, std::int64_t dim) {
  return whole.detach().chunk(group.size(), dim)[static_cast<std::size_t>(group.rank())].clone();
}

// f() fails on every rank, with this kind and these words.
inline void expect_refused(const std::vector<Group>& groups, ErrorKind kind,
                           const std::vector<std::string>& words, RankBody f) {
  on_ranks(groups, [&](const Group& group) {
    SCOPED_TRACE("rank " + std::to_string(group.rank()));
    test::expect_error([&] { f(group); }, kind, words);
  });
}

// The other ranks wait for this one. They get only the error of its abort.
inline const std::string abort_reason = "out of patience";
[[noreturn]] inline void abort_and_leave(const Group& group) {
  group.abort(abort_reason);
  throw rpc::Error(ErrorKind::aborted, abort_reason);
}

// During its lifetime, calls `f` before the n-th call of an operator, such as "aten::mm", on this thread.
class BeforeOperator {
 public:
  BeforeOperator(std::string_view name, int nth, std::function<void()> f)
      : name_(name), left_(nth), f_(std::move(f)) {
    current() = this;
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&called).scopes({at::RecordScope::FUNCTION}));
  }
  ~BeforeOperator() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  BeforeOperator(const BeforeOperator&) = delete;
  BeforeOperator& operator=(const BeforeOperator&) = delete;

 private:
  static BeforeOperator*& current() {
    static thread_local BeforeOperator* value = nullptr;
    return value;
  }
  static std::unique_ptr<at::ObserverContext> called(const at::RecordFunction& call) {
    if (call.name() == current()->name_ && --current()->left_ == 0) current()->f_();
    return nullptr;
  }

  const std::string_view name_;
  int left_;
  const std::function<void()> f_;
  const at::RecordFunctionGuard records_{true};
  at::CallbackHandle handle_ = 0;
};
inline bool is_set(std::future<void>& future) {
  return future.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
}

// Expects that values and gradients of this rank's parameters equal the parts of the whole module's, by name.
inline void expect_parts(const torch::nn::Module& split, const torch::nn::Module& whole,
                         double tolerance = 1e-10) {
  const auto expected = whole.named_parameters();
  const auto actual = placements(split);
  ASSERT_EQ(actual.size(), expected.size());
  for (const Placement& each : actual) {
    at::Tensor value = expected[each.name].detach(), gradient = expected[each.name].grad();
    for (const Split& part : each.splits) {
      value = part.part_of(value);
      if (gradient.defined()) gradient = part.part_of(gradient);
    }
    EXPECT_TRUE(at::allclose(each.tensor.detach(), value, tolerance, tolerance)) << each.name;
    ASSERT_EQ(each.tensor.grad().defined(), gradient.defined()) << each.name;
    if (gradient.defined()) {
      EXPECT_TRUE(at::allclose(each.tensor.grad(), gradient, tolerance, tolerance))
          << each.name << "\n"
          << each.tensor.grad() << "\n"
          << gradient;
    }
  }
}

// Trains the whole module, and on each rank the one that make(group) returns, with equal inputs. Compares the
// outputs, the gradients of the inputs, and the parameters at the end.
//
// dim: the dimension in which inputs and outputs are split over the ranks; nullopt: each rank has the whole.
// optimizer_of(parameters): a new optimizer. loss(output, mine): mine(tensor) is this rank's part of a
// tensor.
template <class Whole, class Make, class OptimizerOf, class Loss>
void expect_equal_training(const std::vector<Group>& groups, Whole& whole, Make make, at::IntArrayRef sizes,
                           std::optional<std::int64_t> dim, OptimizerOf optimizer_of, Loss loss) {
  constexpr int steps = 20;
  auto optimizer = optimizer_of(whole.parameters());
  std::vector<at::Tensor> inputs, outputs;
  for (int step = 0; step < steps; ++step) {
    inputs.push_back(numbers(sizes, static_cast<std::uint64_t>(step)).requires_grad_());
    optimizer.zero_grad();
    outputs.push_back(whole.forward(inputs.back()));
    loss(outputs.back(), [](const at::Tensor& tensor) { return tensor; }).backward();
    optimizer.step();
  }
  on_ranks(groups, [&](const Group& group) {
    const auto mine = [&](const at::Tensor& tensor) {
      return dim ? own_chunk(group, tensor, *dim) : tensor.detach().clone();
    };
    const auto module = make(group);
    auto own = optimizer_of(module->parameters());
    for (std::size_t step = 0; step < inputs.size(); ++step) {
      const at::Tensor x = mine(inputs[step]).requires_grad_();
      own.zero_grad();
      const at::Tensor output = module->forward(x);
      loss(output, mine).backward();
      expect_close({output.detach(), x.grad()}, {mine(outputs[step]), mine(inputs[step].grad())});
      own.step();
    }
    expect_parts(*module, whole);
  });
}

// The node executor computes the gradients of the leaves that LibTorch's backward computes.
template <class MakeLoss>
void expect_same_in_node_executor(MakeLoss loss, const std::vector<at::Tensor>& leaves) {
  using namespace dist_autograd::testing;
  MapSink sink = own_backward({{loss()}, {at::Tensor()}, leaves});
  loss().backward();
  for (const at::Tensor& leaf : leaves) expect_close({sink[leaf]}, {leaf.grad()});
}

}  // namespace weft::tensor_parallel::testing
