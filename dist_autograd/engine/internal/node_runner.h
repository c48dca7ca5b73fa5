// run_node: one node of an autograd graph, run as LibTorch's engine runs it.
//
// Order: hooks on tensors, hooks that retain gradients, pre-hooks, the node, its post-hooks. Each runs once,
// on the full gradient. `inputs` are the node's accumulated gradients, undefined where no gradient arrived.
// Returns a gradient for each outgoing edge, after checking its shape and type. A leaf's AccumulateGrad is
// not run: the leaf's gradient is passed to `sink`, and the same hooks run before and after that. The caller
// sets grad mode, thread-local state and streams. Exceptions of the node or a hook are passed on.
#pragma once

#include <weft/dist_autograd/engine/gradient_sink.h>
#include <weft/dist_autograd/engine/internal/node_executor.h>

#include <torch/csrc/autograd/function.h>

namespace weft::dist_autograd::detail {

torch::autograd::variable_list run_node(torch::autograd::Node& node, torch::autograd::variable_list inputs,
                                        GradientSink& sink, const ExecutorOptions& options);

// Whether run_part() may run `node`. This requires that the node is one of LibTorch's operators, which can
// compute only the requested outputs and can run twice, and that no hook needs all of the node's gradients at
// once.
bool runs_in_parts(torch::autograd::Node& node);

// Runs a node for which runs_in_parts() is true, and computes only the gradients of its edges to the
// functions of `wanted`; the other gradients are undefined. last: true if the node's saved tensors may be
// released. As thread-safe as run_node(), because it does not change the node.
torch::autograd::variable_list run_part(torch::autograd::Node& node, torch::autograd::variable_list inputs,
                                        torch::autograd::edge_list wanted, bool last,
                                        const ExecutorOptions& options);

}  // namespace weft::dist_autograd::detail
