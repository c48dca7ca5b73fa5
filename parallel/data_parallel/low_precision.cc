#include <weft/parallel/data_parallel/low_precision.h>

#include <weft/parallel/training/internal/engine_hook.h>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

namespace weft::data_parallel {
namespace {

namespace variables = torch::autograd::impl;

// Weak: an intrusive pointer since LibTorch 2.15, a std::weak_ptr before.
template <class Weak>
void set_accumulator(void (*set)(const at::Tensor&, Weak), const at::Tensor& parameter,
                     const LowPrecision::Accumulator& accumulator) {
  set(parameter, Weak(accumulator));
}

// If the dtype changes, set_data() drops the accumulator. Other objects may still hold it, so it is set
// again.
void exchange_data(const at::Tensor& parameter, const at::Tensor& data,
                   const LowPrecision::Accumulator& accumulator) {
  parameter.set_data(data);
  if (accumulator != nullptr) set_accumulator(&variables::set_grad_accumulator, parameter, accumulator);
}

}  // namespace

LowPrecision::LowPrecision(std::vector<at::Tensor> parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (at::Tensor& tensor : parameters)
    if (tensor.is_floating_point() && tensor.scalar_type() != dtype)
      parameters_.push_back({.tensor = std::move(tensor)});
  add_accumulators();
}

void LowPrecision::add_accumulators() {
  const auto lacks = [](const Parameter& each) {
    return each.tensor.requires_grad() && each.accumulator == nullptr;
  };
  if (std::none_of(parameters_.begin(), parameters_.end(), lacks)) return;
  enter(true);
  for (Parameter& parameter : parameters_)
    if (lacks(parameter)) parameter.accumulator = variables::grad_accumulator(parameter.tensor);
  leave();
}

LowPrecision::Accumulator LowPrecision::accumulator(const at::Tensor& parameter) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const Parameter& each) { return each.tensor.is_same(parameter); });
  return found == parameters_.end() ? nullptr : found->accumulator;
}

bool LowPrecision::enter(bool with_new_copies) {
  const at::NoGradGuard no_grad;
  rpc::MutexLock lock(mutex_);
  if (std::exchange(entered_, true)) return false;
  for (Parameter& parameter : parameters_) {
    parameter.own = parameter.tensor.detach();
    if (parameter.tensor.requires_grad())
      parameter.own_accumulator = variables::try_get_grad_accumulator(parameter.tensor);
    if (with_new_copies || !parameter.copy.defined()) parameter.copy = parameter.own.to(dtype_);
    exchange_data(parameter.tensor, parameter.copy, parameter.accumulator);
  }
  return true;
}

void LowPrecision::leave() {
  rpc::MutexLock lock(mutex_);
  if (!std::exchange(entered_, false)) return;
  for (Parameter& parameter : parameters_) {
    exchange_data(parameter.tensor, parameter.own, parameter.own_accumulator);
    parameter.own.reset();
    parameter.own_accumulator.reset();
  }
}

LowPrecision::Forward::Forward(LowPrecision* of) : of_(of != nullptr && of->enter(true) ? of : nullptr) {}
LowPrecision::Forward::~Forward() {
  if (of_ != nullptr) of_->leave();
}

void LowPrecision::watch(const at::Tensor& output) {
  if (!output.defined() || output.grad_fn() == nullptr) return;
  training::call_before(*output.grad_fn(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->enter_backward();
  });
}

void LowPrecision::enter_backward() {
  if (!enter(false)) return;
  // The engine drops the callback if backward fails.
  const std::shared_ptr<void> leaving(nullptr, [self = shared_from_this()](void*) { self->leave(); });
  torch::autograd::Engine::get_default_engine().queue_callback([leaving, this] { leave(); });
}

}  // namespace weft::data_parallel
