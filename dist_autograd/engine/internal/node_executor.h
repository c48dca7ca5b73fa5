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
// (a node without successors that is not a leaf) can be reached. run_weights() runs the other nodes, which
// lead only to leaves, and passes the gradients of all leaves to the sink. A node at the boundary has edges
// to nodes of both parts. If it is one of LibTorch's nodes and has no hooks, it runs in both parts, and
// computes in each part only the gradients of that part. Any other boundary node runs once, in the input
// part. The gradients have the same bits as without defer_weights, because all of them are added in the same
// order. The executor keeps until run_weights(): the incoming gradients and saved tensors of boundary nodes
// that run twice; the gradients that the other boundary nodes computed for the weight part; and the gradients
// and saved tensors of nodes of the weight part. An operator whose backward computes all of its gradients at
// once (a fused RNN) computes them twice.
//
// Threads: each pass has one NodeExecutor on each worker, which the pass's serial executor calls. Not
// thread-safe, but successive calls may come from different threads. As in LibTorch's engine, nodes run under
// the thread-local state of the thread that created the executor, with grad mode on only for create_graph;
// run() restores the state of the calling thread.
//
// Nodes and hooks do not have the state of a backward of LibTorch's Engine: Engine::queue_callback throws,
// there is no current graph task, and get_current_node() is null.
#pragma once

#include <weft/dist_autograd/engine/gradient_sink.h>
#include <weft/dist_autograd/engine/node_ptr.h>
#include <weft/rpc/core/executor.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::dist_autograd {

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

// Errors: a call with an invalid argument throws invalid_argument, a call at the wrong time throws
// failed_precondition, and both change nothing. If a node, a hook, the sink or Reached throws, the exception
// is passed on and the executor has failed: it holds neither graph nor gradients, and all further use throws
// failed_precondition.
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

  // Adds a node that will receive its gradients from outside, by one deliver(), and all nodes that are
  // reachable from it. Call it before plan(). The executor keeps the graph alive until it is complete.
  void expect(const NodePtr& source);

  // Throws invalid_argument if add_root() would throw it for these arguments.
  static void check_root(const at::Tensor& root, const at::Tensor& gradient);
  // Starts the backward at `root` with `gradient`, of the root's shape; undefined: 1, for a scalar. Call it
  // before plan(). A root may be part of the graph of another root, and may be added again: the gradients add
  // up.
  void add_root(const at::Tensor& root, at::Tensor gradient = {});

  // Closes the plan: no source and no root may be added afterwards.
  void plan();

  // Adds the gradients of all of `source`'s inputs; the gradient of an input may be undefined. They must be
  // ready on the current streams of the calling thread. deliver() itself runs no node. A node may call it
  // during run().
  void deliver(const NodePtr& source, std::vector<at::Tensor> gradients);

  // Declares that no gradients will arrive for `source`. Nodes that are reachable from it run with the
  // gradients that other nodes give them; a node that gets no gradients does not run. abandon() itself runs
  // no node.
  void abandon(const NodePtr& source);

  // Runs every node that is ready or becomes ready, and returns when none is left. If the executor is
  // complete, it does nothing. Results are ready on the current streams of the calling thread. Not
  // re-entrant, but nodes may run LibTorch's engine. within: a context that is entered around the nodes, in
  // their thread-local state; null: none.
  void run(rpc::ContextSwitch* within = nullptr);
  // Runs the nodes that run() has deferred so far. within: as in run().
  void run_weights(rpc::ContextSwitch* within = nullptr);

  // Whether some node has received only a part of its gradients.
  bool waiting() const;
  // visit_waiting() visits the nodes that have received only a part of their gradients, and all nodes that
  // are reachable from them. visit_from() visits `source` and all nodes that are reachable from it. The two
  // functions together visit a node at most once in the executor's lifetime.
  void visit_waiting(const Reached& visit);
  void visit_from(const NodePtr& source, const Reached& visit);

  // Whether plan() was called and every node of the plan has run. The executor then no longer holds the
  // graph.
  bool complete() const;
  // Whether plan() was called and every node of the plan has run, except the deferred nodes.
  bool inputs_complete() const;
  bool failed() const;
  // Sorted names of the sources that still wait for gradients, for the error if a pass ends too early.
  std::vector<std::string> blocked() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::dist_autograd
