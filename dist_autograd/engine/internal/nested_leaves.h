// NestedLeaves: detects the leaves whose `.grad` is written by a backward of LibTorch's engine that runs
// within a node or its hooks.
//
// A custom function or a hook may run LibTorch's engine. Over leaves that the function makes, this is
// correct: it returns their gradients. Over parameters (checkpointing), it is an error: their gradients would
// be added to `.grad` instead of the pass. LibTorch reports each node that it runs to the thread's observers
// (at::RecordFunction), also on the threads of its engine. A leaf that still exists after the function and
// the hooks have returned counts as a parameter. In a recorded backward (create_graph), the graph of the
// node's results may keep leaves that the function made: leaves of that graph do not count.
//
// Lives on the stack, around a node and its hooks. Thread-safety: one thread.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/function.h>

#include <memory>

namespace weft::dist_autograd::detail {

class NestedLeaves {
 public:
  NestedLeaves();
  ~NestedLeaves();
  NestedLeaves(const NestedLeaves&) = delete;
  NestedLeaves& operator=(const NestedLeaves&) = delete;

  // Call after the node and its hooks have run. failed_precondition if the `.grad` of a leaf other than the
  // node's own was written. recorded: the node's results in a recorded backward, otherwise empty.
  void check(const torch::autograd::Node& node, const torch::autograd::variable_list& recorded) const;

 private:
  class Seen;
  std::shared_ptr<Seen> seen_;
  c10::DebugInfoGuard info_;
  at::CallbackHandle observer_;
};

}  // namespace weft::dist_autograd::detail
