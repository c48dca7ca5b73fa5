#include <weft/dist_optim/local/optimizer_state.h>

#include <weft/dist_optim/local/internal/adadelta.h>
#include <weft/dist_optim/local/internal/adamax.h>
#include <weft/dist_optim/local/internal/rowwise_adagrad.h>
#include <weft/dist_optim/local/internal/rprop.h>
#include <weft/dist_optim/local/internal/sparse_adam.h>
#include <weft/rpc/core/error.h>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace weft::dist_optim {
namespace {

// Each optimizer's fields, once for reading and writing. `elementwise` has the parameter's shape, `rowwise`
// one element a row; an optional one may be undefined.
template <class Fields>
void visit(torch::optim::SGDParamState& state, Fields& fields) {
  fields.optional("momentum_buffer", state.momentum_buffer());
}
template <class AdamLike, class Fields>
void visit_adam(AdamLike& state, Fields& fields) {
  fields.count("step", state.step());
  fields.elementwise("exp_avg", state.exp_avg());
  fields.elementwise("exp_avg_sq", state.exp_avg_sq());
  fields.optional("max_exp_avg_sq", state.max_exp_avg_sq());
}
template <class Fields>
void visit(torch::optim::AdamParamState& state, Fields& fields) {
  visit_adam(state, fields);
}
template <class Fields>
void visit(torch::optim::AdamWParamState& state, Fields& fields) {
  visit_adam(state, fields);
}
template <class Fields>
void visit(torch::optim::AdagradParamState& state, Fields& fields) {
  fields.count("step", state.step());
  fields.elementwise("sum", state.sum());
}
template <class Fields>
void visit(torch::optim::RMSpropParamState& state, Fields& fields) {
  fields.count("step", state.step());
  fields.elementwise("square_avg", state.square_avg());
  fields.optional("momentum_buffer", state.momentum_buffer());
  fields.optional("grad_avg", state.grad_avg());
}
// weft's own optimizers list their fields themselves: counts, and tensors of the parameter's shape.
template <class State, class Fields>
void visit(LocalParamState<State>& state, Fields& fields) {
  for (const Field& field : static_cast<State&>(state).fields()) {
    if (auto* count = std::get_if<std::int64_t*>(&field.value)) fields.count(field.name, **count);
    if (auto* tensor = std::get_if<at::Tensor*>(&field.value)) fields.elementwise(field.name, **tensor);
  }
}
template <class Fields>
void visit(RowwiseAdagradParamState& state, Fields& fields) {
  fields.rowwise("sum", state.sum());
}

class Saver {
 public:
  Saver(std::string prefix, OptimizerState& to) : prefix_(std::move(prefix)), to_(to) {}
  void count(const char* field, std::int64_t value) { put(field, at::scalar_tensor(value, at::kLong)); }
  void elementwise(const char* field, const at::Tensor& tensor) { put(field, tensor.detach().clone()); }
  void rowwise(const char* field, const at::Tensor& tensor) { elementwise(field, tensor); }
  void optional(const char* field, const at::Tensor& tensor) {
    if (tensor.defined()) elementwise(field, tensor);
  }

 private:
  void put(const char* field, at::Tensor tensor) { to_.tensors[prefix_ + field] = std::move(tensor); }
  const std::string prefix_;
  OptimizerState& to_;
};

class Loader {
 public:
  Loader(const OptimizerState& from, std::string prefix, const at::Tensor& leaf)
      : from_(from), prefix_(std::move(prefix)), leaf_(leaf) {}

  void count(const char* field, std::int64_t& value) {
    const at::Tensor tensor = find(field);
    require(tensor.defined(), field, "is missing");
    if (tensor.scalar_type() != at::kLong || tensor.dim() != 0 || tensor.layout() != at::kStrided ||
        tensor.item<std::int64_t>() < 0)
      refuse(field, "is " + describe(tensor) + ", expected a dense 0-d int64 tensor of at least 0");
    value = tensor.item<std::int64_t>();
  }
  void elementwise(const char* field, at::Tensor& tensor) {
    optional(field, tensor);
    require(tensor.defined(), field, "is missing");
  }
  void optional(const char* field, at::Tensor& tensor) { take(field, leaf_.sizes(), true, tensor); }
  void rowwise(const char* field, at::Tensor& tensor) {
    take(field, {leaf_.dim() == 0 ? 1 : leaf_.size(0)}, false, tensor);
    require(tensor.defined(), field, "is missing");
  }
  std::size_t taken() const { return taken_; }

 private:
  at::Tensor find(const char* field) {
    auto found = from_.tensors.find(prefix_ + field);
    if (found == from_.tensors.end()) return {};
    ++taken_;
    return found->second;
  }
  void take(const char* field, at::IntArrayRef shape, bool sparse, at::Tensor& tensor) {
    const at::Tensor found = find(field);
    if (!found.defined()) return;
    if (found.sizes() != shape || found.scalar_type() != leaf_.scalar_type() ||
        (found.layout() != at::kStrided && !(sparse && found.layout() == at::kSparse)))
      refuse(field, "is " + describe(found) + ", expected " + c10::str(leaf_.scalar_type(), shape) +
                        (sparse ? ", dense or COO" : ", dense"));
    tensor = found.detach().to(leaf_.device(), leaf_.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  void require(bool holds, const char* field, const char* otherwise) const {
    if (!holds) refuse(field, otherwise);
  }
  [[noreturn]] void refuse(const char* field, const std::string& why) const {
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "the optimizer's state " + prefix_ + field + " " + why);
  }
  static std::string describe(const at::Tensor& tensor) {
    return c10::str(tensor.scalar_type(), tensor.sizes(), " of layout ", tensor.layout());
  }

  const OptimizerState& from_;
  const std::string prefix_;
  const at::Tensor& leaf_;
  std::size_t taken_ = 0;
};

// Calls `with` with a new state of the optimizer's type.
template <class With>
void with_state_of(const std::string& name, With with) {
  if (name == "SGD") return with(std::make_unique<torch::optim::SGDParamState>());
  if (name == "Adam") return with(std::make_unique<torch::optim::AdamParamState>());
  if (name == "AdamW") return with(std::make_unique<torch::optim::AdamWParamState>());
  if (name == "Adagrad") return with(std::make_unique<torch::optim::AdagradParamState>());
  if (name == "RMSprop") return with(std::make_unique<torch::optim::RMSpropParamState>());
  if (name == "SparseAdam") return with(std::make_unique<SparseAdamParamState>());
  if (name == "RowwiseAdagrad") return with(std::make_unique<RowwiseAdagradParamState>());
  if (name == "Adadelta") return with(std::make_unique<AdadeltaParamState>());
  if (name == "Adamax") return with(std::make_unique<AdamaxParamState>());
  if (name == "Rprop") return with(std::make_unique<RpropParamState>());
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "unknown optimizer state: " + name);
}

}  // namespace

void read_state(const std::string& name, const torch::optim::Optimizer& from, const at::Tensor& leaf,
                const std::string& parameter, OptimizerState& to) {
  auto found = from.state().find(leaf.unsafeGetTensorImpl());
  if (found == from.state().end()) return;
  with_state_of(name, [&]<class State>(std::unique_ptr<State>) {
    Saver saver(parameter + "/", to);
    visit(static_cast<State&>(*found->second), saver);
  });
}

std::size_t write_state(const OptimizerState& from, const std::string& parameter, const at::Tensor& leaf,
                        torch::optim::Optimizer& to) {
  const std::string prefix = parameter + "/";
  auto first = from.tensors.lower_bound(prefix);
  if (first == from.tensors.end() || !first->first.starts_with(prefix)) return 0;  // it never had a gradient
  std::size_t taken = 0;
  with_state_of(from.optimizer, [&]<class State>(std::unique_ptr<State> state) {
    Loader loader(from, prefix, leaf);
    visit(*state, loader);
    taken = loader.taken();
    to.state()[leaf.unsafeGetTensorImpl()] = std::move(state);
  });
  return taken;
}

}  // namespace weft::dist_optim
