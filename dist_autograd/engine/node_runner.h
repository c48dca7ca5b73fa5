// run_node: one node of an autograd graph, run as LibTorch's engine runs it.
//
// Order: hooks on tensors, hooks that retain gradients, pre-hooks, the node, its post-hooks, each once and on
// the full gradient. `inputs` are the node's accumulated gradients, undefined where none came. Returns a
// checked gradient for each outgoing edge. A leaf's AccumulateGrad is not run but gives its gradient to
// `sink`, with the same hooks around. Grad mode, thread-local state and streams are the caller's to set. What
// the node or a hook throws passes through.
#pragma once

#include <weft/dist_autograd/engine/gradient_sink.h>
#include <weft/dist_autograd/engine/node_executor.h>

#include <torch/csrc/autograd/function.h>

namespace weft::dist_autograd::detail {

torch::autograd::variable_list run_node(torch::autograd::Node& node, torch::autograd::variable_list inputs,
                                        GradientSink& sink, const ExecutorOptions& options);

// Whether run_part() may run `node`: its operator is LibTorch's, which computes requested outputs and can run
// twice, and no hook has to see all of its gradients at once.
bool runs_in_parts(torch::autograd::Node& node);

// Runs such a node for its edges to the functions of `wanted` alone; the other gradients are undefined. last:
// what the node has saved may be released. Thread-safe as run_node() is: the node is not changed.
torch::autograd::variable_list run_part(torch::autograd::Node& node, torch::autograd::variable_list inputs,
                                        torch::autograd::edge_list wanted, bool last,
                                        const ExecutorOptions& options);

}  // namespace weft::dist_autograd::detail
