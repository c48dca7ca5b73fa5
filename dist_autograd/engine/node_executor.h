// NodeExecutor: one worker's part of one backward pass.
//
// It runs the local autograd graph from its roots and from the sources whose gradients come from elsewhere,
// as LibTorch's engine would run the whole graph: each node once, when all its gradients are in, highest
// sequence number first. Leaves' gradients go to a GradientSink.
//
// Life: expect() and add_root(), then plan(), then deliver(), abandon(), run() and run_weights() in any order
// until complete(). Destroying it abandons what is left.
//
// With defer_weights a backward has two parts, for schedules that fill waiting times with weight gradients
// (Qi et al., Zero Bubble Pipeline Parallelism, 2024). run() is the input part: all nodes from which an exit
// can be reached, a node without successors that is not a leaf. run_weights() runs the others, which lead to
// leaves alone, and gives all leaves their gradients. A node at the boundary has edges of both kinds: one of
// LibTorch's computes in each part only the gradients of that part. Any other, and one with hooks, runs once,
// in the input part. The gradients are the same bits as without defer_weights, since all of them are added up
// in the same order. Kept until run_weights(): the incoming gradients of boundary nodes and what these nodes
// saved (of those that run once, their gradients for the weight part instead), the gradients and saved
// tensors of nodes of the weight part. An operator whose backward computes all of its gradients at once (a
// fused RNN) computes them twice.
//
// Threads: one per (pass, worker), driven by one serial executor. Not thread-safe, but successive calls may
// come from different threads. As in LibTorch's engine, nodes run under the thread-local state of the thread
// that made the executor, with grad mode on only for create_graph; run() restores the calling thread's own.
//
// What belongs to an Engine's own backward is absent in nodes and hooks: Engine::queue_callback throws, there
// is no current graph task, get_current_node() is null.
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

// How LibTorch owns nodes, which is the type of Edge::function: an intrusive_ptr since 2.15, a shared_ptr
// before. Taken from Tensor, since the headers of the autograd engine cost seconds to compile.
using NodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

struct ExecutorOptions {
  // Keep what the forward saved, so that another backward can run over the same graph.
  bool retain_graph = false;
  // Record the backward itself, so that its results can be differentiated. Usually with retain_graph.
  bool create_graph = false;
  // Also accumulate into the leaves' `.grad` as LibTorch does, which alone runs post-accumulate-grad hooks.
  bool write_grad = false;
  // run() defers the gradients of leaves to run_weights(). Not with create_graph.
  bool defer_weights = false;
};

// What fails: wrong use is an rpc::Error, invalid_argument for a value and failed_precondition for the
// moment, and changes nothing. An exception out of a node, a hook, the sink or Reached passes through, and
// the executor has failed: it holds neither graph nor gradients, and all further use is failed_precondition.
class WEFT_EXPORT NodeExecutor {
 public:
  // Called once for each node that becomes part of the plan, from within expect() and add_root(). A layer
  // above sees by it which of its receiving nodes will run, hence which workers take part in the pass.
  using Reached = std::function<void(torch::autograd::Node&)>;

  // `sink` outlives the executor. invalid_argument: defer_weights with create_graph.
  NodeExecutor(GradientSink& sink, ExecutorOptions options, Reached reached = {});
  ~NodeExecutor();
  NodeExecutor(const NodeExecutor&) = delete;
  NodeExecutor& operator=(const NodeExecutor&) = delete;

  // Before plan(). Adds a node that will receive its gradients from outside, by one deliver(), and all that
  // is reachable from it. The executor keeps the graph alive until it is complete.
  void expect(const NodePtr& source);

  // Throws invalid_argument where add_root() would.
  static void check_root(const at::Tensor& root, const at::Tensor& gradient);
  // Before plan(). Starts the backward at `root` with `gradient`, of its shape; undefined is one, for a
  // scalar. A root may lie inside the graph of another, and may be added again: the gradients add up.
  void add_root(const at::Tensor& root, at::Tensor gradient = {});

  // Closes the plan: no source and no root comes after it.
  void plan();

  // The gradients of all of `source`'s inputs, undefined where there is none. They must be ready on the
  // current streams of the calling thread. Runs nothing. May be called from within a node that run() runs.
  void deliver(const NodePtr& source, std::vector<at::Tensor> gradients);

  // No gradients will come for `source`: what lies behind it runs with what comes from elsewhere, and a node
  // where nothing comes does not run at all. Runs nothing itself.
  void abandon(const NodePtr& source);

  // Runs every node that is ready or becomes so, and returns when none is; nothing, once complete. Results
  // are ready on the current streams of the calling thread. Not re-entrant, though nodes may run LibTorch's
  // engine inside. within: entered around them, in their thread-local state; null: nothing is.
  void run(rpc::ContextSwitch* within = nullptr);
  // Likewise, what run() has deferred so far.
  void run_weights(rpc::ContextSwitch* within = nullptr);

  // Some node has part of its gradients and waits for the rest.
  bool waiting() const;
  // Visits every node that has part of its gradients, or is `source`, and all that is reachable from it; each
  // node once in the executor's life.
  void visit_waiting(const Reached& visit);
  void visit_from(const NodePtr& source, const Reached& visit);

  // Planned, and every node of the plan has run: the graph is no longer held.
  bool complete() const;
  // The same, except for what was deferred.
  bool inputs_complete() const;
  bool failed() const;
  // Names, sorted, of the sources that still wait for gradients: what to report when a pass ends too early.
  std::vector<std::string> blocked() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::dist_autograd
