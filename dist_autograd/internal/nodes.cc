#include <weft/dist_autograd/internal/nodes.h>

#include <weft/dist_autograd/pass_state.h>

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace weft::dist_autograd {

SendBackward::SendBackward(const std::vector<at::Tensor>& tensors, std::string destination)
    : destination_(std::move(destination)) {
  torch::autograd::edge_list edges;
  edges.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    add_input_metadata(tensor);
    edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  }
  set_next_edges(std::move(edges));
}

torch::autograd::variable_list SendBackward::apply(torch::autograd::variable_list&& gradients) {
  return std::move(gradients);
}

RecvBackward::RecvBackward(std::weak_ptr<PassState> pass, PassId id, MessageId message, rpc::AgentId sender,
                           tensor::DeviceMap back)
    : pass_(std::move(pass)),
      id_(id),
      message_(message),
      sender_(std::move(sender)),
      back_(std::move(back)) {}

at::Tensor RecvBackward::join(const NodePtr& self, at::Tensor tensor, std::uint64_t mark) {
  if (!torch::autograd::isDifferentiableType(tensor.scalar_type()))
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     std::string("a message of a pass sends a tensor of type ") +
                         c10::toString(tensor.scalar_type()) +
                         " as one that requires grad: expected a floating-point or complex type");
  const bool ascending = marks_.empty() || mark > marks_.back();  // as weft itself writes them
  if (!ascending && std::find(marks_.begin(), marks_.end(), mark) != marks_.end())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "two tensors of a message of a pass have the mark " + std::to_string(mark));
  torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::Edge(self, add_input_metadata(tensor)));
  marks_.push_back(mark);
  return tensor;
}

torch::autograd::variable_list RecvBackward::apply(torch::autograd::variable_list&& gradients) {
  const auto pass = pass_.lock();
  // A pass runs without a graph task. If there is a graph task, a nested backward of LibTorch's engine has
  // reached this node.
  const bool of_pass = torch::autograd::get_current_graph_task_id() == -1;
  if (pass == nullptr || !of_pass || !pass->running_here())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "backward() on this worker alone reached a tensor that came from " + sender_.name +
                         " in " + to_string(id_) +
                         (pass == nullptr ? ", which was released" : ": use Pass::backward"));
  std::vector<at::Tensor> by_mark;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (by_mark.size() <= marks_[i]) by_mark.resize(marks_[i] + 1);
    by_mark[marks_[i]] = gradients[i];
  }
  pass->send_gradients(sender_, message_, std::move(by_mark), back_);
  return {};
}

}  // namespace weft::dist_autograd
