// NodeExecutor: one worker's part of one backward pass.
//
// It runs the local autograd graph from its roots and from the sources whose gradients come from elsewhere,
// as LibTorch's engine would run the whole graph: each node once, when all its gradients have arrived,
// highest sequence number first. Leaves' gradients are passed to a GradientSink.
//
// Use: expect() and add_root(), then plan(), then deliver(), abandon(), run() and run_weights() in any order
// until complete(). The destructor abandons the remaining nodes.
//
// With defer_weights a backward has two parts, for schedules that fill waiting times with weight gradients
// (Qi et al., Zero Bubble Pipeline Parallelism, 2024). run() is the input part: all nodes from which an exit
// (a node without successors that is not a leaf) can be reached. run_weights() runs the others, which lead
// only to leaves, and gives all leaves their gradients. A node at the boundary has edges of both kinds. If it
// is one of LibTorch's, it computes in each part only the gradients of that part. Any other boundary node,
// and one with hooks, runs once, in the input part. The gradients have the same bits as without
// defer_weights, because all of them are added in the same order. Kept until run_weights(): the incoming
// gradients of boundary nodes and their saved tensors (for those that run once, their gradients for the
// weight part instead), and the gradients and saved tensors of nodes of the weight part. An operator whose
// backward computes all of its gradients at once (a fused RNN) computes them twice.
//
// Threads: one for each pass and worker, driven by one serial executor. Not thread-safe, but successive calls
// may come from different threads. As in LibTorch's engine, nodes run under the thread-local state of the
// thread that created the executor, with grad mode on only for create_graph; run() restores the state of the
// calling thread.
//
// The state of an Engine's own backward is absent in nodes and hooks: Engine::queue_callback throws, there is
// no current graph task, and get_current_node() is null.
#pragma once

#include <weft/dist_autograd/engine/gradient_sink.h>
#include <weft/rpc/core/executor.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::dist_autograd {

// The type by which LibTorch owns nodes, which is the type of Edge::function: an intrusive_ptr since 2.15, a
// shared_ptr before. Taken from Tensor, because the headers of the autograd engine take seconds to compile.
using NodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

// How the executor runs its graph.
struct ExecutorOptions {
  // Keep the saved tensors of the forward, so that another backward can run over the same graph.
  bool retain_graph = false;
  // Record the backward itself, so that its results can be differentiated. Usually with retain_graph.
  bool create_graph = false;
  // Also accumulate into the leaves' `.grad` as LibTorch does. Only then post-accumulate-grad hooks run.
  bool write_grad = false;
  // run() defers the gradients of leaves to run_weights(). Not with create_graph.
  bool defer_weights = false;
};

// Errors: wrong use throws an rpc::Error, invalid_argument for a value and failed_precondition for the state,
// and changes nothing. An exception of a node, a hook, the sink or Reached is passed on, and the executor has
// failed: it holds neither graph nor gradients, and all further use is failed_precondition.
class WEFT_EXPORT NodeExecutor {
 public:
  // Called once for each node that becomes part of the plan, from within expect() and add_root(). A higher
  // layer learns from it which of its receiving nodes will run, and therefore which workers take part in the
  // pass.
  using Reached = std::function<void(torch::autograd::Node&)>;

  // `sink` outlives the executor. invalid_argument: defer_weights with create_graph.
  NodeExecutor(GradientSink& sink, ExecutorOptions options, Reached reached = {});
  ~NodeExecutor();
  NodeExecutor(const NodeExecutor&) = delete;
  NodeExecutor& operator=(const NodeExecutor&) = delete;

  // Before plan(). Adds a node that will receive its gradients from outside, by one deliver(), and all that
  // is reachable from it. The executor keeps the graph alive until it is complete.
  void expect(const NodePtr& source);

  // Throws invalid_argument if add_root() would.
  static void check_root(const at::Tensor& root, const at::Tensor& gradient);
  // Before plan(). Starts the backward at `root` with `gradient`, of its shape; undefined means one, for a
  // scalar. A root may lie inside the graph of another, and may be added again: the gradients add up.
  void add_root(const at::Tensor& root, at::Tensor gradient = {});

  // Closes the plan: no source and no root may be added afterwards.
  void plan();

  // The gradients of all of `source`'s inputs, undefined for an input without one. They must be ready on the
  // current streams of the calling thread. Runs nothing. May be called from within a node that run() runs.
  void deliver(const NodePtr& source, std::vector<at::Tensor> gradients);

  // No gradients will arrive for `source`: the nodes behind it run with the gradients from elsewhere, and a
  // node without gradients does not run at all. Runs nothing itself.
  void abandon(const NodePtr& source);

  // Runs every node that is ready or becomes ready, and returns when none is left; nothing, once complete.
  // Results are ready on the current streams of the calling thread. Not re-entrant, but nodes may run
  // LibTorch's engine inside. within: entered around the nodes, in their thread-local state; null: none.
  void run(rpc::ContextSwitch* within = nullptr);
  // The same for the nodes that run() has deferred so far.
  void run_weights(rpc::ContextSwitch* within = nullptr);

  // Some node has part of its gradients and waits for the others.
  bool waiting() const;
  // Visits every node that has part of its gradients, or is `source`, and all that is reachable from it; each
  // node once in the executor's life.
  void visit_waiting(const Reached& visit);
  void visit_from(const NodePtr& source, const Reached& visit);

  // Planned, and every node of the plan has run: the graph is no longer held.
  bool complete() const;
  // The same, except for deferred nodes.
  bool inputs_complete() const;
  bool failed() const;
  // Sorted names of the sources that still wait for gradients, for the report if a pass ends too early.
  std::vector<std::string> blocked() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::dist_autograd
