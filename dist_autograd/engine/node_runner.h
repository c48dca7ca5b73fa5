// run_node: one node of an autograd graph, run as LibTorch's engine runs it.
//
// Order: hooks on tensors, hooks that retain gradients, pre-hooks, the node, its post-hooks, each once and on
// the full gradient. `inputs` are the node's accumulated gradients, undefined where none arrived. Returns a
// checked gradient for each outgoing edge. A leaf's AccumulateGrad is not run; its gradient is passed to
// `sink`, with the same hooks around. The caller sets grad mode, thread-local state and streams. Exceptions
// of the node or a hook are passed on.
#pragma once

#include <weft/dist_autograd/engine/gradient_sink.h>
#include <weft/dist_autograd/engine/node_executor.h>

#include <torch/csrc/autograd/function.h>

namespace weft::dist_autograd::detail {

torch::autograd::variable_list run_node(torch::autograd::Node& node, torch::autograd::variable_list inputs,
                                        GradientSink& sink, const ExecutorOptions& options);

// Whether run_part() may run `node`: its operator is LibTorch's, which computes requested outputs and can run
// twice, and no hook needs all of its gradients at once.
bool runs_in_parts(torch::autograd::Node& node);

// Runs such a node only for its edges to the functions of `wanted`; the other gradients are undefined. last:
// the node's saved tensors may be released. Thread-safe as run_node() is: the node is not changed.
torch::autograd::variable_list run_part(torch::autograd::Node& node, torch::autograd::variable_list inputs,
                                        torch::autograd::edge_list wanted, bool last,
                                        const ExecutorOptions& options);

}  // namespace weft::dist_autograd::detail
