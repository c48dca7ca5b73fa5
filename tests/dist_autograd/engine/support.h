// Shared by the tests of the engine: a sink that keeps gradients, and the comparison of a NodeExecutor with
// LibTorch's engine, the oracle, over the same program.
#pragma once

#include <torch/torch.h>

#include <weft/dist_autograd/engine/internal/make_node.h>
#include <weft/dist_autograd/engine/internal/node_executor.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace weft::dist_autograd::testing {

using torch::autograd::Node;
using torch::autograd::variable_list;

// Never changes a gradient in place, because the gradient may be shared.
class MapSink : public GradientSink {
 public:
  void accumulate(const at::Tensor& leaf, at::Tensor gradient, std::size_t) override {
    EXPECT_TRUE(gradient.defined());
    at::Tensor& sum = gradients_[leaf.unsafeGetTensorImpl()];
    sum = sum.defined() ? sum + gradient : std::move(gradient);
    ++calls;
  }

  // Returns an undefined tensor if no gradient arrived.
  at::Tensor operator[](const at::Tensor& leaf) const {
    auto found = gradients_.find(leaf.unsafeGetTensorImpl());
    return found == gradients_.end() ? at::Tensor() : found->second;
  }

  int calls = 0;

 private:
  std::map<const c10::TensorImpl*, at::Tensor> gradients_;
};

// A program under test: each call builds its graph again, from the same values.
struct Graph {
  variable_list roots;
  variable_list gradients;  // one a root; undefined: a scalar
  variable_list leaves;
};
using Program = std::function<Graph()>;

inline at::Tensor numbers(at::IntArrayRef sizes, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions(at::kDouble));
}

inline at::Tensor leaf(at::IntArrayRef sizes, std::uint64_t seed) {
  return numbers(sizes, seed).requires_grad_();
}

inline MapSink own_backward(const Graph& graph, ExecutorOptions options = {}) {
  MapSink sink;
  NodeExecutor executor(sink, options);
  for (std::size_t i = 0; i < graph.roots.size(); ++i) executor.add_root(graph.roots[i], graph.gradients[i]);
  executor.plan();
  executor.run();
  EXPECT_TRUE(executor.complete());
  return sink;
}

inline void oracle_backward(const Graph& graph, ExecutorOptions options = {}) {
  torch::autograd::backward(graph.roots, graph.gradients, options.retain_graph, options.create_graph);
}

// Checks that both tensors have the same bits and the same layout. NaN equals NaN.
inline void expect_identical(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!expected.defined()) return;
  ASSERT_EQ(actual.layout(), expected.layout()) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const at::Tensor a = actual.layout() == at::kSparse ? actual.to_dense() : actual;
  const at::Tensor b = expected.layout() == at::kSparse ? expected.to_dense() : expected;
  EXPECT_TRUE(at::allclose(a, b, 0.0, 0.0, /*equal_nan=*/true)) << what << "\n" << a << "\ninstead of\n" << b;
}

// Runs `program` with both engines. The gradients of all leaves must be identical, and no `.grad` may be set.
inline void expect_as_oracle(const Program& program, ExecutorOptions options = {}) {
  const Graph expected = program();
  oracle_backward(expected, options);
  const Graph actual = program();
  const MapSink sink = own_backward(actual, options);
  for (std::size_t i = 0; i < expected.leaves.size(); ++i) {
    expect_identical(sink[actual.leaves[i]], expected.leaves[i].grad(), "leaf " + std::to_string(i));
    EXPECT_FALSE(actual.leaves[i].grad().defined()) << "leaf " << i << " got a .grad";
  }
}

// Returns the message of the exception that `act` throws, without the stack that LibTorch appends. Returns an
// empty string if `act` throws nothing.
inline std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// A node whose gradients come from outside the graph. It passes them to the graphs of `tensors`.
struct Source : torch::autograd::Node {
  Source(std::string label, const variable_list& tensors) : label(std::move(label)) {
    for (const auto& tensor : tensors) {
      add_input_metadata(tensor);
      add_next_edge(torch::autograd::impl::gradient_edge(tensor));
    }
  }
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  std::string name() const override { return label; }
  std::string label;
};

inline NodePtr source_of(std::string label, const variable_list& tensors) {
  return make_node<Source>(std::move(label), tensors);
}

// Fails in its backward.
struct Fail : torch::autograd::Function<Fail> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(torch::autograd::AutogradContext*, const variable_list&) {
    throw std::runtime_error("no luck");
  }
};

}  // namespace weft::dist_autograd::testing
