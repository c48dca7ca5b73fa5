// DependencyPlan and ReadyQueue over small graphs. The tests do not need LibTorch, and therefore run in every
// sanitizer build.
#include <weft/dist_autograd/engine/internal/dependency_plan.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace weft::dist_autograd::plan_test {
namespace {

using ToyGraph = std::map<int, std::vector<int>>;  // node -> successors, repeated for parallel edges

auto edges_of(const ToyGraph& graph) {
  return [&graph](int node, auto&& visit) {
    auto found = graph.find(node);
    if (found == graph.end()) return;
    for (int next : found->second) visit(next);
  };
}

// Runs everything that is ready, with the node as the sequence number. Returns the order.
template <class Plan>
std::vector<int> drain(Plan& plan, ReadyQueue<int>& ready, const ToyGraph& graph) {
  std::vector<int> order;
  while (!ready.empty()) {
    int node = ready.pop();
    order.push_back(node);
    plan.take(node);
    edges_of(graph)(node, [&](int next) {
      if (plan.arrive(next)) ready.push(next, static_cast<std::uint64_t>(next));
    });
  }
  return order;
}

template <class Plan>
void arrive(Plan& plan, ReadyQueue<int>& ready, int node) {
  if (plan.arrive(node)) ready.push(node, static_cast<std::uint64_t>(node));
}

TEST(ReadyQueue, HighestFirstAndEqualsInOrderOfArrival) {
  ReadyQueue<char> ready;
  for (char node : {'a', 'b', 'c', 'd', 'e'}) ready.push(node, 7);
  ready.push('x', 9);
  ready.push('y', 1);
  std::string order;
  while (!ready.empty()) order += ready.pop();
  EXPECT_EQ(order, "xabcdey");
}

TEST(DependencyPlan, RefusesUnexpectedArrivals) {
  const ToyGraph graph{{2, {1}}};
  DependencyPlan<int> plan;
  plan.add_source(2, edges_of(graph));
  EXPECT_THROW(plan.arrive(7), std::logic_error);
  EXPECT_THROW(plan.take(2), std::logic_error);  // nothing arrived
  EXPECT_THROW(plan.take(7), std::logic_error);
  EXPECT_TRUE(plan.arrive(2));
  EXPECT_THROW(plan.arrive(2), std::logic_error);  // nothing more is due
  plan.take(2);
  EXPECT_THROW(plan.arrive(2), std::logic_error);
}

TEST(DependencyPlan, WalksADeepGraphWithoutRecursion) {
  ToyGraph graph;
  const int depth = 200'000;
  for (int node = 1; node <= depth; ++node) graph[node] = {node - 1};
  DependencyPlan<int> plan;
  ReadyQueue<int> ready;
  plan.add_source(depth, edges_of(graph));
  arrive(plan, ready, depth);
  EXPECT_EQ(drain(plan, ready, graph).size(), static_cast<std::size_t>(depth) + 1);
}

// Every node runs once and after all its predecessors, in whatever order arrivals from outside occur.
TEST(DependencyPlan, RandomGraphsRunInTopologicalOrder) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    const int nodes = 2 + below(30);
    ToyGraph graph;
    for (int node = 1; node < nodes; ++node) {
      for (int k = below(4); k > 0; --k) graph[node].push_back(below(node));
    }
    DependencyPlan<int> plan;
    std::vector<int> sources;
    for (int k = 1 + below(4); k > 0; --k) {
      sources.push_back(below(nodes));
      plan.add_source(sources.back(), edges_of(graph));
    }
    const std::size_t planned = plan.size();
    std::shuffle(sources.begin(), sources.end(), random);

    ReadyQueue<int> ready;
    std::vector<int> order;
    for (int source : sources) {
      arrive(plan, ready, source);
      for (int node : drain(plan, ready, graph)) order.push_back(node);
    }
    ASSERT_EQ(order.size(), planned) << "seed " << seed;
    std::map<int, std::size_t> position;
    for (std::size_t i = 0; i < order.size(); ++i)
      ASSERT_TRUE(position.emplace(order[i], i).second) << "seed " << seed;
    for (int node : order) {
      for (int next : graph[node]) ASSERT_LT(position.at(node), position.at(next)) << "seed " << seed;
    }
  }
}

TEST(PlanParts, RandomGraphsAgreeWithASearchFromEachNode) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    ToyGraph graph;
    std::vector<int> nodes;
    for (int node = 0, count = 2 + below(25); node < count; ++node) {
      nodes.push_back(node);
      if (node > 0)
        for (int k = below(4); k > 0; --k) graph[node].push_back(below(node));
    }
    const auto is_exit = [](int node) { return node % 3 == 0; };
    const std::function<bool(int)> leads_to_exit = [&](int node) {
      const auto found = graph.find(node);
      if (found == graph.end() || found->second.empty()) return is_exit(node);
      return std::any_of(found->second.begin(), found->second.end(), leads_to_exit);
    };
    const auto parts = plan_parts(nodes, edges_of(graph), is_exit);
    ASSERT_EQ(parts.size(), nodes.size());
    for (const int node : nodes) {
      const auto& next = graph[node];
      const bool all = std::all_of(next.begin(), next.end(), leads_to_exit);
      const NodePart expected = !leads_to_exit(node) ? NodePart::weight
                                : all                ? NodePart::input
                                                     : NodePart::boundary;
      ASSERT_EQ(parts.at(node), expected) << "seed " << seed << ", node " << node;
    }
  }
}

}  // namespace
}  // namespace weft::dist_autograd::plan_test
