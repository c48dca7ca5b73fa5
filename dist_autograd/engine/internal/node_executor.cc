#include <weft/dist_autograd/engine/internal/node_executor.h>

#include <weft/dist_autograd/engine/internal/dependency_plan.h>
#include <weft/dist_autograd/engine/internal/node_runner.h>
#include <weft/dist_autograd/engine/internal/node_streams.h>
#include <weft/rpc/core/error.h>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/input_buffer.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

namespace weft::dist_autograd {

static_assert(std::is_same_v<NodePtr, decltype(torch::autograd::Edge::function)>);

namespace {

using rpc::Error;
using rpc::ErrorKind;
using torch::autograd::AnomalyMode;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::InputBuffer;
using torch::autograd::Node;
using torch::autograd::variable_list;

// A node's outgoing edges, in the form of DependencyPlan. An input that needs no gradient has an empty edge.
constexpr auto next_nodes = [](Node* node, auto&& visit) {
  for (const Edge& edge : node->next_edges()) {
    if (edge.is_valid()) visit(edge.function.get());
  }
};

bool is_exit(Node* node) { return dynamic_cast<torch::autograd::AccumulateGrad*>(node) == nullptr; }

std::string describe_gradient(const at::Tensor& gradient) {
  return std::string(c10::toString(gradient.scalar_type())) + " gradient of sizes " +
         c10::str(gradient.sizes());
}

// If a gradient has more dimensions than its input, LibTorch's engine sums it over the additional
// dimensions. Between nodes this is broadcasting; in a gradient from outside it would hide an error.
void check_gradient(const Node& node, std::size_t input, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  const auto& expected = node.input_metadata(input);
  if (expected.was_default_constructed()) return;
  if (!expected.is_same_shape(gradient)) {
    throw Error(ErrorKind::invalid_argument, node.name() + ": a " + describe_gradient(gradient) +
                                                 " does not fit input " + std::to_string(input) +
                                                 " of sizes " + c10::str(expected.shape_as_dim_vector()));
  }
}

void validate_from_outside(const edge_list& edges, variable_list& gradients) {
  for (std::size_t i = 0; i < edges.size(); ++i) {
    check_gradient(*edges[i].function, edges[i].input_nr, gradients[i]);
  }
  try {
    torch::autograd::validate_outputs(edges, gradients, [](const std::string& fault) { return fault; });
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::invalid_argument,
                edges[0].function->name() + ": " + error.what_without_backtrace());
  }
}

// Returns the input at which a root's gradient arrives. Creates the gradient of a scalar root that has none.
Edge edge_of_root(const at::Tensor& root, variable_list& gradients) {
  if (!root.defined() || !root.requires_grad()) {
    throw Error(ErrorKind::invalid_argument, "a root of a backward must require a gradient");
  }
  Edge edge = torch::autograd::impl::gradient_edge(root);
  if (!gradients[0].defined()) {
    if (root.numel() != 1) {
      throw Error(ErrorKind::invalid_argument, "a root of sizes " + c10::str(root.sizes()) +
                                                   " needs a gradient: only for a scalar it can be left out");
    }
    gradients[0] = at::ones_like(root, at::MemoryFormat::Contiguous);
  }
  validate_from_outside({edge}, gradients);
  return edge;
}

}  // namespace

struct NodeExecutor::Impl {
  Impl(GradientSink& sink, ExecutorOptions options, Reached reached)
      : sink(sink), options(options), reached(std::move(reached)) {
    if (options.defer_weights && options.create_graph)
      throw Error(ErrorKind::invalid_argument,
                  "defer_weights: a recorded backward (create_graph) cannot run in two parts");
    thread_locals.set_grad_mode(options.create_graph);
  }

  enum class Phase { planning, running, complete, failed };

  struct Source {
    NodePtr node;
    bool settled = false;  // its gradients were delivered, or will never arrive
  };
  // Gradients from outside for consecutive inputs of a node.
  struct Arrival {
    Arrival(Node* node, std::uint32_t first_input, variable_list arrived)
        : node(node), first_input(first_input), gradients(std::move(arrived)) {
      producers.reserve(gradients.size());
      for (const at::Tensor& gradient : gradients) producers.push_back(detail::current_stream(gradient));
    }

    Node* node;
    std::uint32_t first_input;
    variable_list gradients;
    std::vector<std::optional<c10::Stream>> producers;
  };
  // A node that run_weights() runs. inputs: the gradients of a boundary node whose input part has run;
  // nullopt: run_weights() uses the gradients that have arrived at the node by then.
  struct Deferred {
    Node* node;
    std::optional<InputBuffer> inputs;
  };

  void require_phase(Phase wanted, const char* what) const {
    if (phase == wanted) return;
    const char* why = phase == Phase::planning   ? "before the plan is closed"
                      : phase == Phase::running  ? "after the plan was closed"
                      : phase == Phase::complete ? "after the backward was completed"
                                                 : "after the backward failed";
    throw Error(ErrorKind::failed_precondition, std::string(what) + " " + why);
  }

  void add_source(Node* node) {
    try {
      plan.add_source(node, next_nodes, [this](Node* found) {
        if (reached) reached(*found);
      });
    } catch (...) {
      end(Phase::failed);
      throw;
    }
  }

  static void put(std::optional<InputBuffer>& buffer, Node& node, std::uint32_t input, at::Tensor gradient,
                  const std::optional<c10::Stream>& producer) {
    if (!buffer) buffer.emplace(node.num_inputs());
    if (!gradient.defined()) return;
    const auto consumer = gradient.is_cpu() ? std::nullopt : detail::forward_stream(node);
    buffer->add(input, std::move(gradient), producer, consumer, &node);
  }

  static void put(std::optional<InputBuffer>& buffer, Arrival& arrival) {
    if (!buffer) buffer.emplace(arrival.node->num_inputs());
    for (std::size_t i = 0; i < arrival.gradients.size(); ++i) {
      put(buffer, *arrival.node, arrival.first_input + static_cast<std::uint32_t>(i),
          std::move(arrival.gradients[i]), arrival.producers[i]);
    }
  }

  template <class Put>
  void arrive(Node* node, Put&& put_all) {
    bool first = false;
    const bool all = plan.arrive(node, [&](std::optional<InputBuffer>& buffer) {
      first = !buffer;
      put_all(buffer);
    });
    if (all) {
      if (!first) --partial;
      ready.push(node, node->sequence_nr());
    } else if (first) {
      ++partial;
    }
  }

  NodePart part_of(Node* node) const { return options.defer_weights ? parts.at(node) : NodePart::input; }
  // Returns the node's edges to nodes of the weight part, or its other edges.
  edge_list edges_of(const Node& node, bool weights) const {
    edge_list edges;
    for (const Edge& edge : node.next_edges())
      if (edge.is_valid() && (part_of(edge.function.get()) == NodePart::weight) == weights)
        edges.push_back(edge);
    return edges;
  }
  // Notes that a node of the weight part expects a gradient, which arrives in run_weights(). The gradient is
  // counted now, so that nodes are deferred in the order in which they would run.
  void arrive_deferred(Node* node) {
    arrive(node, [](std::optional<InputBuffer>& buffer) {
      if (!buffer) buffer.emplace(0);
    });
  }

  // Notes that no gradient will arrive at `node` by one of its incoming edges.
  void miss(Node* node) {
    std::vector<Node*> missed{node};
    while (!missed.empty()) {
      Node* const next = missed.back();
      missed.pop_back();
      if (!plan.arrive(next)) continue;
      if (plan.payload(next)) {
        --partial;
        ready.push(next, next->sequence_nr());
        continue;
      }
      plan.take(next);
      next_nodes(next, [&](Node* behind) { missed.push_back(behind); });
    }
  }

  void visit(Node* from, const Reached& visit) {
    std::vector<Node*> open{from};
    while (!open.empty()) {
      Node* const node = open.back();
      open.pop_back();
      if (!visited.insert(node).second) continue;
      visit(*node);
      next_nodes(node, [&](Node* next) { open.push_back(next); });
    }
  }

  void take_in_arrivals() {
    for (Arrival& arrival : std::exchange(inbox, {})) {
      Node* const node = arrival.node;
      if (part_of(node) == NodePart::weight) {
        deferred.emplace_back(std::move(arrival));
        arrive_deferred(node);
      } else {
        arrive(node, [&](std::optional<InputBuffer>& buffer) { put(buffer, arrival); });
      }
    }
  }

  void run_ready() {
    for (;;) {
      if (!inbox.empty()) take_in_arrivals();
      if (ready.empty()) return;
      Node& node = *ready.pop();
      guarded(node, [&] { execute(node); });
    }
  }

  void run_deferred() {
    while (!deferred.empty()) {
      auto next = std::move(deferred.front());
      deferred.pop_front();
      if (auto* arrival = std::get_if<Arrival>(&next)) {
        put(weight_inputs[arrival->node], *arrival);
      } else {
        auto& [node, inputs] = std::get<Deferred>(next);
        guarded(*node, [&, node = node, &inputs = inputs] { execute_deferred(*node, std::move(inputs)); });
      }
    }
  }

  template <class Body>
  void guarded(Node& node, Body body) {
    // The previous node or hook may have changed the mode and not restored it.
    c10::GradMode::set_enabled(options.create_graph);
    try {
      body();
    } catch (...) {
      // Warns with the name of the node and where its forward was called.
      if (AnomalyMode::is_enabled()) node.metadata()->print_stack(node.name());
      throw;
    }
  }

  void execute(Node& node) {
    InputBuffer inputs = *plan.take(&node);
    const NodePart part = part_of(&node);
    if (part == NodePart::weight) {
      deferred.emplace_back(Deferred{&node, std::nullopt});
      next_nodes(&node, [this](Node* next) { arrive_deferred(next); });
      return;
    }
    const auto stream = detail::enter_stream(node, inputs);
    std::optional<c10::StreamGuard> on_stream;
    if (stream) on_stream.emplace(*stream);
    const bool in_parts = part == NodePart::boundary && detail::runs_in_parts(node);
    variable_list outputs = in_parts
                                ? detail::run_part(node, inputs.buffer, edges_of(node, false), false, options)
                                : detail::run_node(node, std::move(inputs.buffer), sink, options);
    if (in_parts) deferred.emplace_back(Deferred{&node, std::move(inputs)});
    if (outputs.empty()) leaf_streams.add(stream);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Edge& edge = node.next_edge(i);
      if (!edge.is_valid()) continue;
      Node& next = *edge.function;
      if (part == NodePart::boundary && part_of(&next) == NodePart::weight) {
        if (!in_parts) deferred.emplace_back(Arrival(&next, edge.input_nr, {std::move(outputs[i])}));
        arrive_deferred(&next);
        continue;
      }
      arrive(&next, [&](std::optional<InputBuffer>& buffer) {
        put(buffer, next, edge.input_nr, std::move(outputs[i]), stream);
      });
    }
  }

  void execute_deferred(Node& node, std::optional<InputBuffer> kept) {
    const bool in_parts = kept.has_value();
    InputBuffer inputs = in_parts ? *std::move(kept) : *std::move(weight_inputs.extract(&node).mapped());
    const auto stream = detail::enter_stream(node, inputs);
    std::optional<c10::StreamGuard> on_stream;
    if (stream) on_stream.emplace(*stream);
    variable_list outputs =
        in_parts ? detail::run_part(node, std::move(inputs.buffer), edges_of(node, true), true, options)
                 : detail::run_node(node, std::move(inputs.buffer), sink, options);
    if (outputs.empty()) leaf_streams.add(stream);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Edge& edge = node.next_edge(i);
      if (!edge.is_valid() || part_of(edge.function.get()) != NodePart::weight) continue;
      put(weight_inputs[edge.function.get()], *edge.function, edge.input_nr, std::move(outputs[i]), stream);
    }
  }

  // Runs `body`, which runs nodes, in the environment that they expect.
  template <class Body>
  void run_nodes(rpc::ContextSwitch* within, Body body) {
    if (phase == Phase::complete) return;
    require_phase(Phase::running, "nodes were run");
    if (in_run) throw Error(ErrorKind::failed_precondition, "nodes were run from within a node");
    in_run = true;
    try {
      at::ThreadLocalStateGuard as_made(thread_locals);
      const rpc::ContextScope scope(within);
      body();
      leaf_streams.join();
    } catch (...) {
      in_run = false;
      end(Phase::failed);
      throw;
    }
    in_run = false;
    end_if_complete();
  }

  void end_if_complete() {
    if (plan.empty() && deferred.empty()) end(Phase::complete);
  }

  // Drops graph and gradients. Their destructors may run user code, so the executor is set to its last phase
  // first.
  void end(Phase last) {
    phase = last;
    ready.clear();
    inbox.clear();
    deferred.clear();
    weight_inputs.clear();
    parts.clear();
    plan.clear();
    visited.clear();
    partial = 0;
    roots.clear();
    sources.clear();
  }

  GradientSink& sink;
  const ExecutorOptions options;
  const Reached reached;
  at::ThreadLocalState thread_locals;  // of the thread that created the executor, except grad mode

  Phase phase = Phase::planning;
  bool in_run = false;
  // Nodes that have not run, with the gradients that have arrived there; the first one makes the buffer.
  DependencyPlan<Node*, std::optional<InputBuffer>> plan;
  ReadyQueue<Node*> ready;
  std::size_t partial = 0;            // nodes of the plan with part of their gradients
  std::unordered_set<Node*> visited;  // by visit_waiting() and visit_from()
  // Processed by run(), which alone has the thread-local state to add gradients.
  std::vector<Arrival> inbox;
  // With defer_weights.
  std::unordered_map<Node*, NodePart> parts;
  std::deque<std::variant<Arrival, Deferred>> deferred;                 // in the order of one backward
  std::unordered_map<Node*, std::optional<InputBuffer>> weight_inputs;  // arrived in run_weights()
  // Keeps the graph alive.
  std::unordered_map<Node*, Source> sources;
  std::vector<NodePtr> roots;
  detail::LeafStreams leaf_streams;
};

NodeExecutor::NodeExecutor(GradientSink& sink, ExecutorOptions options, Reached reached)
    : impl_(std::make_unique<Impl>(sink, options, std::move(reached))) {}
NodeExecutor::~NodeExecutor() = default;

void NodeExecutor::expect(const NodePtr& source) {
  impl_->require_phase(Impl::Phase::planning, "a source was added");
  if (!source) throw Error(ErrorKind::invalid_argument, "a source must be a node");
  if (!impl_->sources.try_emplace(source.get(), Impl::Source{source}).second) {
    throw Error(ErrorKind::invalid_argument, source->name() + " is already a source of this backward");
  }
  impl_->add_source(source.get());
}

void NodeExecutor::check_root(const at::Tensor& root, const at::Tensor& gradient) {
  variable_list gradients{gradient};
  edge_of_root(root, gradients);
}

void NodeExecutor::add_root(const at::Tensor& root, at::Tensor gradient) {
  impl_->require_phase(Impl::Phase::planning, "a root was added");
  variable_list gradients{std::move(gradient)};
  Edge edge = edge_of_root(root, gradients);
  impl_->add_source(edge.function.get());
  impl_->inbox.emplace_back(edge.function.get(), edge.input_nr, std::move(gradients));
  impl_->roots.push_back(std::move(edge.function));
}

void NodeExecutor::plan() {
  impl_->require_phase(Impl::Phase::planning, "the plan was closed");
  // The roots' gradients waited until now: a root that looked ready could still be reachable from a later
  // one.
  impl_->phase = Impl::Phase::running;
  if (impl_->options.defer_weights) {
    std::vector<Node*> nodes;
    impl_->plan.each([&](Node* node, const auto&) { nodes.push_back(node); });
    impl_->parts = plan_parts(nodes, next_nodes, is_exit);
  }
  impl_->end_if_complete();
}

void NodeExecutor::deliver(const NodePtr& source, std::vector<at::Tensor> gradients) {
  impl_->require_phase(Impl::Phase::running, "gradients were delivered");
  // Only for errors: a node creates its name at each call.
  const auto name = [&source] { return source ? source->name() : std::string("no node"); };
  auto found = impl_->sources.find(source.get());
  if (found == impl_->sources.end()) {
    throw Error(ErrorKind::invalid_argument, name() + " is not a source of this backward");
  }
  if (found->second.settled) {
    throw Error(ErrorKind::failed_precondition,
                "the gradients of " + name() + " were already delivered, or abandoned");
  }
  if (gradients.size() != source->num_inputs()) {
    throw Error(ErrorKind::invalid_argument, name() + " takes " + std::to_string(source->num_inputs()) +
                                                 " gradients, not " + std::to_string(gradients.size()));
  }
  edge_list edges;
  edges.reserve(gradients.size());
  for (std::uint32_t i = 0; i < gradients.size(); ++i) edges.emplace_back(source, i);
  {
    // The check casts to the dtype of the input; create_graph must record this.
    at::AutoGradMode mode(impl_->options.create_graph);
    validate_from_outside(edges, gradients);
  }
  found->second.settled = true;
  impl_->inbox.emplace_back(source.get(), 0, std::move(gradients));
}

void NodeExecutor::abandon(const NodePtr& source) {
  impl_->require_phase(Impl::Phase::running, "a source was abandoned");
  auto found = impl_->sources.find(source.get());
  if (found == impl_->sources.end() || found->second.settled)
    throw Error(ErrorKind::invalid_argument, "only a source that waits for its gradients can be abandoned");
  found->second.settled = true;
  impl_->miss(source.get());
  impl_->end_if_complete();
}

void NodeExecutor::run(rpc::ContextSwitch* within) {
  impl_->run_nodes(within, [this] { impl_->run_ready(); });
}

void NodeExecutor::run_weights(rpc::ContextSwitch* within) {
  impl_->run_nodes(within, [this] { impl_->run_deferred(); });
}

bool NodeExecutor::waiting() const { return impl_->partial != 0; }

void NodeExecutor::visit_waiting(const Reached& visit) {
  if (impl_->phase == Impl::Phase::complete) return;
  impl_->require_phase(Impl::Phase::running, "the nodes that wait were looked for");
  std::vector<Node*> partly;
  impl_->plan.each([&](Node* node, const std::optional<InputBuffer>& arrived) {
    if (arrived) partly.push_back(node);
  });
  for (Node* node : partly) impl_->visit(node, visit);
}

void NodeExecutor::visit_from(const NodePtr& source, const Reached& visit) {
  impl_->require_phase(Impl::Phase::running, "nodes were looked for");
  impl_->visit(source.get(), visit);
}

bool NodeExecutor::complete() const { return impl_->phase == Impl::Phase::complete; }
bool NodeExecutor::inputs_complete() const {
  return complete() || (impl_->phase == Impl::Phase::running && impl_->plan.empty());
}
bool NodeExecutor::failed() const { return impl_->phase == Impl::Phase::failed; }

std::vector<std::string> NodeExecutor::blocked() const {
  std::vector<std::string> names;
  for (const auto& [node, source] : impl_->sources) {
    if (!source.settled) names.push_back(node->name());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace weft::dist_autograd
