#include <weft/parallel/data_parallel/negotiated/all_reduce_optimizer.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

namespace weft::data_parallel {

using collectives::ReduceOp;

namespace {

[[noreturn]] void refuse_optimizer(rpc::ErrorKind kind, const std::string& text) {
  throw rpc::Error(kind, "AllReduceOptimizer: " + text);
}

// With the predivide factor an average is a sum with two factors.
ReductionCall call_of(const AllReduceOptimizerOptions& options, int ranks) {
  const double factor = options.gradient_predivide_factor;
  if (options.backward_passes_per_step < 1)
    refuse_optimizer(rpc::ErrorKind::invalid_argument, "backward_passes_per_step is " +
                                                           std::to_string(options.backward_passes_per_step) +
                                                           ", expected 1 or more");
  const bool averages = options.op.kind == ReduceOp::Kind::avg;
  if (!averages && options.op.kind != ReduceOp::Kind::sum)
    refuse_optimizer(rpc::ErrorKind::invalid_argument,
                     "op is " + options.op.name() + ", expected avg or sum");
  if (!(factor > 0) || (!averages && factor != 1))
    refuse_optimizer(rpc::ErrorKind::invalid_argument,
                     "gradient_predivide_factor is " + std::to_string(factor) +
                         (averages ? ", expected more than 0" : ", expected 1 with op sum"));
  if (factor == 1) return {.op = options.op};
  return {.op = ReduceOp::sum, .prescale = 1 / factor, .postscale = factor / ranks};
}

}  // namespace

// The gradients, and which of them are in flight. The hooks refer to it weakly.
class AllReduceOptimizer::Gradients : public std::enable_shared_from_this<Gradients> {
 public:
  Gradients(std::shared_ptr<NegotiatedReduction> reduction, const torch::optim::Optimizer& optimizer,
            const torch::nn::Module& module, AllReduceOptimizerOptions options)
      : reduction_(std::move(reduction)),
        options_(std::move(options)),
        call_(call_of(options_, reduction_->size())) {
    std::map<const void*, std::string> names;
    for (const auto& entry : module.named_parameters())
      names.emplace(entry.value().unsafeGetTensorImpl(), entry.key());
    for (const auto& group : optimizer.param_groups())
      for (const at::Tensor& tensor : group.params()) {
        if (!tensor.requires_grad()) continue;
        const auto found = names.find(tensor.unsafeGetTensorImpl());
        if (found == names.end())
          refuse_optimizer(rpc::ErrorKind::invalid_argument, "the module has no name for parameter " +
                                                                 std::to_string(parameters_.size()) +
                                                                 " of the optimizer");
        parameters_.push_back({found->second, tensor});
      }
    make_units();
  }

  ~Gradients() {
    for (Parameter& parameter : parameters_)
      if (parameter.accumulator != nullptr) parameter.accumulator->del_post_hook(parameter.hook);
  }

  void add_hooks() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
      auto ready = [weak = weak_from_this(), i](const Variables& outputs, const Variables&) {
        if (const auto self = weak.lock()) self->is_ready(i);
        return outputs;
      };
      parameter.hook = parameter.accumulator->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(ready)));
    }
  }

  bool in_flight() const {
    std::lock_guard lock(mutex_);
    return std::any_of(units_.begin(), units_.end(),
                       [](const Unit& unit) { return unit.reduced.has_value(); });
  }

  void synchronize() {
    std::lock_guard lock(mutex_);
    std::exception_ptr error;
    const auto attempt = [&](auto f) {
      if (const auto result = rpc::capture(f); !result.ok() && error == nullptr) error = result.error();
    };
    for (Unit& unit : units_)
      if (!unit.reduced) attempt([&] { start(unit); });
    // Waits for all, also after a failure: nothing then writes to gradients any more.
    for (Unit& unit : units_) {
      if (unit.reduced) attempt([&] { std::exchange(unit.reduced, std::nullopt)->get(); });
      for (const std::size_t index : unit.parameters) attempt([&] { expect_in_place(parameters_[index]); });
      unit.ready = 0;
    }
    for (Parameter& parameter : parameters_) parameter.passes = 0, parameter.sent.reset();
    if (error != nullptr) std::rethrow_exception(error);
  }

 private:
  using Variables = std::vector<torch::autograd::Variable>;
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

  struct Parameter {
    std::string name;
    at::Tensor tensor;
    NodePtr accumulator = {};  // holds the hook
    std::uintptr_t hook = 0;
    std::size_t unit = 0;
    int passes = 0;        // backwards that reached it since the last step
    at::Tensor sent = {};  // its gradient, as it is reduced
  };
  struct Unit {  // parameters that are reduced under one name
    std::string name;
    std::vector<std::size_t> parameters;
    std::size_t ready = 0;  // of these
    std::optional<rpc::Future<void>> reduced = {};
  };

  // A unit for each group and dtype, and one for each other parameter.
  void make_units() {
    std::map<std::string, std::size_t> group_of;
    for (std::size_t group = 0; group < options_.groups.size(); ++group)
      for (const std::string& name : options_.groups[group]) {
        if (std::none_of(parameters_.begin(), parameters_.end(),
                         [&](const Parameter& parameter) { return parameter.name == name; }))
          refuse_optimizer(rpc::ErrorKind::invalid_argument,
                           "groups: the optimizer has no parameter " + name + " that requires grad");
        group_of[name] = group;
      }
    std::map<std::pair<std::size_t, at::ScalarType>, std::size_t> units;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      parameter.unit = units_.size();
      if (const auto group = group_of.find(parameter.name); group != group_of.end())
        parameter.unit =
            units.emplace(std::pair(group->second, parameter.tensor.scalar_type()), units_.size())
                .first->second;
      if (parameter.unit == units_.size()) units_.push_back({options_.prefix + parameter.name, {}});
      units_[parameter.unit].parameters.push_back(i);
    }
  }

  // From the engine, when it has accumulated a gradient.
  void is_ready(std::size_t index) {
    std::lock_guard lock(mutex_);
    Parameter& parameter = parameters_[index];
    Unit& unit = units_[parameter.unit];
    if (parameter.passes == options_.backward_passes_per_step || unit.reduced)
      refuse_optimizer(rpc::ErrorKind::failed_precondition,
                       "parameter " + parameter.name + " received more than " +
                           std::to_string(options_.backward_passes_per_step) +
                           " gradients before step(): raise backward_passes_per_step");
    if (++parameter.passes < options_.backward_passes_per_step) return;
    if (++unit.ready == unit.parameters.size()) start(unit);
  }

  void start(Unit& unit) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const std::size_t index : unit.parameters) gradients.push_back(gradient_of(parameters_[index]));
    unit.reduced = reduction_->all_reduce(unit.name, std::move(gradients), call_);
  }

  at::Tensor gradient_of(Parameter& parameter) const {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameter.tensor);
    if (gradient.requires_grad())
      refuse_optimizer(
          rpc::ErrorKind::failed_precondition,
          "the gradient of " + parameter.name + " was recorded by autograd: create_graph is not supported");
    if (gradient.is_sparse()) {
      if (!options_.sparse_as_dense)
        refuse_optimizer(rpc::ErrorKind::failed_precondition,
                         "the gradient of " + parameter.name + " is sparse: set sparse_as_dense");
      gradient = gradient.to_dense();
    }
    return parameter.sent = gradient;
  }

  static void expect_in_place(const Parameter& parameter) {
    if (parameter.sent.defined() && !parameter.tensor.grad().is_same(parameter.sent))
      refuse_optimizer(rpc::ErrorKind::failed_precondition,
                       "the gradient of " + parameter.name +
                           " was replaced between backward and step(): call zero_grad() before backward");
  }

  const std::shared_ptr<NegotiatedReduction> reduction_;
  const AllReduceOptimizerOptions options_;
  const ReductionCall call_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
};

AllReduceOptimizer::AllReduceOptimizer(std::shared_ptr<NegotiatedReduction> reduction,
                                       torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                                       AllReduceOptimizerOptions options)
    : gradients_(std::make_shared<Gradients>(std::move(reduction), optimizer, module, std::move(options))),
      optimizer_(optimizer) {
  gradients_->add_hooks();
}
AllReduceOptimizer::AllReduceOptimizer(std::shared_ptr<NegotiatedReduction> reduction,
                                       torch::optim::Optimizer& optimizer, const torch::nn::Module& module)
    : AllReduceOptimizer(std::move(reduction), optimizer, module, AllReduceOptimizerOptions{}) {}

AllReduceOptimizer::~AllReduceOptimizer() = default;

void AllReduceOptimizer::synchronize() {
  gradients_->synchronize();
  synchronized_ = true;
}

void AllReduceOptimizer::step() {
  if (synchronizes_) {
    if (synchronized_)
      refuse_optimizer(
          rpc::ErrorKind::failed_precondition,
          "step() after synchronize() would reduce the gradients again: hold skip_synchronize()");
    synchronize();
  }
  optimizer_.step();
  synchronized_ = false;
}

void AllReduceOptimizer::zero_grad(bool set_to_none) {
  if (gradients_->in_flight())
    refuse_optimizer(rpc::ErrorKind::failed_precondition,
                     "zero_grad() between backward and step() or synchronize(): gradients are in flight");
  optimizer_.zero_grad(set_to_none);
}

}  // namespace weft::data_parallel
