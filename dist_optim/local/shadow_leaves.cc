#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/optim/sgd.h>

namespace weft::dist_optim {
namespace {

// SGD keeps its momentum in the layout of the first gradient; a gradient of another layout would fail in the
// middle of a step, with some parameters already changed.
bool fits_momentum(const torch::optim::Optimizer& optimizer, const at::Tensor& shadow,
                   const at::Tensor& gradient) {
  auto found = optimizer.state().find(shadow.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return true;
  auto* state = dynamic_cast<const torch::optim::SGDParamState*>(found->second.get());
  if (state == nullptr || !state->momentum_buffer().defined()) return true;
  return state->momentum_buffer().layout() == gradient.layout();
}

}  // namespace

ShadowLeaves::ShadowLeaves(std::vector<Parameter> parameters, OptimizerSpec spec)
    : parameters_(std::move(parameters)), spec_(std::move(spec)), specs_(spec_.by_group()) {
  check_parameters(parameters_);
  for (const Parameter& parameter : parameters_) {
    shadows_.push_back(parameter.tensor.variable_data());
    groups_.push_back(spec_.group_of(parameter.name));
    if (parameter.slice && !spec_.is_elementwise())
      throw rpc::Error(
          rpc::ErrorKind::invalid_argument,
          "optimizer " + spec_.name + " cannot step the slice " + parameter.name +
              ": it steps whole rows; use SGD, Adam, AdamW, Adagrad, RMSprop, Adadelta, Adamax or "
              "Rprop, or give it the whole parameter");
  }
  optimizers_ = make_optimizers();
}

// A separate optimizer for each group, instead of LibTorch's parameter groups: if a group's option equals
// LibTorch's default, LibTorch treats it as unset and uses the base's value.
ShadowLeaves::Optimizers ShadowLeaves::make_optimizers() const {
  std::map<std::string, std::vector<at::Tensor>> shadows;
  for (std::size_t i = 0; i < shadows_.size(); ++i) shadows[groups_[i]].push_back(shadows_[i]);
  Optimizers optimizers;
  for (const auto& [group, spec] : specs_) optimizers[group] = spec.make(std::move(shadows[group]));
  return optimizers;
}

torch::optim::Optimizer& ShadowLeaves::optimizer_of(std::size_t parameter) const {
  return *optimizers_.at(groups_[parameter]);
}

torch::optim::Optimizer& ShadowLeaves::optimizer_of_group(const std::string& group) const {
  auto found = optimizers_.find(group);
  if (found == optimizers_.end())
    throw rpc::Error(rpc::ErrorKind::not_found, "unknown parameter group " + group);
  return *found->second;
}

ShadowLeaves::~ShadowLeaves() = default;

void ShadowLeaves::check(const Gradients& gradients) const {
  check_gradients(parameters_, gradients, true);
  for (const auto& [index, gradient] : gradients) {
    if (!gradient.defined()) continue;
    if (!specs_.at(groups_[index]).takes_sparse_gradients()) {
      check_gradients(parameters_, {{index, gradient}}, false);
    } else if (!fits_momentum(optimizer_of(index), shadows_[index], gradient)) {
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "the gradient of parameter " + parameters_[index].name +
                           (gradient.is_sparse() ? " is sparse, expected dense as its momentum"
                                                 : " is dense, expected sparse as its momentum"));
    }
  }
}

void ShadowLeaves::require_no_round(const char* operation) const {
  if (stepped_.empty()) return;
  throw rpc::Error(rpc::ErrorKind::failed_precondition,
                   std::string(operation) + ": " + std::to_string(stepped_.size()) + " of " +
                       std::to_string(parameters_.size()) +
                       " parameters have stepped in a round of step_one(); call end_round() first");
}

void ShadowLeaves::step(const Gradients& gradients) {
  require_no_round("step");
  check(gradients);
  struct Clear {
    std::vector<at::Tensor>& shadows;
    ~Clear() {
      for (at::Tensor& shadow : shadows) shadow.mutable_grad().reset();
    }
  } clear{shadows_};
  for (const auto& [index, gradient] : gradients) {
    // Detached, because a pass that was made for double backward has gradients with a graph.
    if (gradient.defined()) shadows_[index].mutable_grad() = gradient.detach();
  }
  for (auto& [group, optimizer] : optimizers_) optimizer->step();
}

void ShadowLeaves::step_one(std::size_t index, const at::Tensor& gradient) {
  check({{index, gradient}});
  if (!stepped_.insert(index).second)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "step_one: parameter " + parameters_[index].name +
                         " has stepped in this round already; call end_round() before the next round");
  if (!gradient.defined()) return;
  // LibTorch's step() visits every parameter of its group, so for its duration this one is the whole group.
  struct Alone {
    Alone(torch::optim::Optimizer& of, at::Tensor& one)
        : group(of.param_groups().front().params()), shadow(one) {
      group.swap(kept);
    }
    ~Alone() {
      group.swap(kept);
      shadow.mutable_grad().reset();
    }
    std::vector<at::Tensor>& group;
    at::Tensor& shadow;
    std::vector<at::Tensor> kept{shadow};
  } alone{optimizer_of(index), shadows_[index]};
  alone.shadow.mutable_grad() = gradient.detach();
  optimizer_of(index).step();
}

void ShadowLeaves::move_to(const std::vector<at::Tensor>& storages) {
  require_no_round("move_to");
  // set_data keeps the shadow's TensorImpl, by which LibTorch's optimizers find their state.
  for (std::size_t i = 0; i < shadows_.size(); ++i) shadows_[i].set_data(storages.at(i));
}

double ShadowLeaves::learning_rate(const std::string& group) const {
  return optimizer_of_group(group).param_groups().front().options().get_lr();
}

void ShadowLeaves::set_learning_rate(double rate, const std::optional<std::string>& group) {
  require_no_round("set_learning_rate");
  if (!std::isfinite(rate) || rate < 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "set_learning_rate: the rate is " +
                                                           std::to_string(rate) +
                                                           ", expected a finite number of at least 0");
  const auto set = [rate](torch::optim::Optimizer& optimizer) {
    optimizer.param_groups().front().options().set_lr(rate);
  };
  if (group) return set(optimizer_of_group(*group));
  for (auto& [name, optimizer] : optimizers_) set(*optimizer);
}

OptimizerState ShadowLeaves::state() const {
  require_no_round("state");
  OptimizerState state;
  state.optimizer = spec_.name;
  for (const auto& [group, optimizer] : optimizers_) state.learning_rates[group] = learning_rate(group);
  for (std::size_t i = 0; i < shadows_.size(); ++i)
    read_state(spec_.name, optimizer_of(i), shadows_[i], parameters_[i].name, state);
  return state;
}

void ShadowLeaves::set_state(const OptimizerState& state) {
  require_no_round("set_state");
  optimizers_ = made_from(state);
}

void ShadowLeaves::check_state(const OptimizerState& state) const { (void)made_from(state); }

ShadowLeaves::Optimizers ShadowLeaves::made_from(const OptimizerState& state) const {
  auto refuse = [](const std::string& why) { throw rpc::Error(rpc::ErrorKind::invalid_argument, why); };
  if (state.optimizer != spec_.name)
    refuse("the state belongs to the optimizer " + state.optimizer + ", expected " + spec_.name);
  Optimizers loaded = make_optimizers();
  std::size_t taken = 0;
  for (std::size_t i = 0; i < shadows_.size(); ++i)
    taken += write_state(state, parameters_[i].name, shadows_[i], *loaded.at(groups_[i]));
  if (taken != state.tensors.size()) {
    const auto other = std::find_if(state.tensors.begin(), state.tensors.end(), [&](const auto& tensor) {
      return std::none_of(parameters_.begin(), parameters_.end(), [&](const Parameter& parameter) {
        return tensor.first.starts_with(parameter.name + "/");
      });
    });
    refuse("the state has " + std::to_string(state.tensors.size()) + " tensors, of which " +
           std::to_string(taken) + " belong to these parameters, expected all" +
           (other == state.tensors.end() ? "" : ": no parameter that is optimized has " + other->first));
  }
  for (const auto& [group, rate] : state.learning_rates) {
    if (!loaded.contains(group))
      refuse("the state has a parameter group " + group + ", which this optimizer does not have");
    if (!std::isfinite(rate) || rate < 0)
      refuse("the state's learning rate is " + std::to_string(rate) +
             ", expected a finite number of at least 0");
    loaded.at(group)->param_groups().front().options().set_lr(rate);
  }
  return loaded;
}

}  // namespace weft::dist_optim
