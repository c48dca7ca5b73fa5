#include <weft/parallel/data_parallel/negotiated/all_reduce_optimizer.h>

#include <weft/parallel/data_parallel/hooks/adasum_hook.h>
#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/internal/gradient_cast.h>
#include <weft/parallel/data_parallel/internal/gradient_hooks.h>
#include <weft/parallel/data_parallel/internal/sparse_gradients.h>
#include <weft/rpc/core/mutex.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace weft::data_parallel {

using collectives::ReduceOp;

namespace {

[[noreturn]] void refuse_optimizer(rpc::ErrorKind kind, const std::string& text) {
  throw rpc::Error(kind, "AllReduceOptimizer: " + text);
}

// With a predivide factor, an average is computed as a sum with two factors.
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
  if (options.compression) expect_cast_type("AllReduceOptimizer: compression", *options.compression);
  if (options.adasum) {
    AdasumHook::expect_ranks(ranks);
    if (!averages || factor != 1 || !options.groups.empty())
      refuse_optimizer(rpc::ErrorKind::invalid_argument,
                       "adasum with op " + options.op.name() + ", gradient_predivide_factor " +
                           std::to_string(factor) + " and " + std::to_string(options.groups.size()) +
                           " groups, expected avg, 1 and 0");
  }
  if (factor == 1) return {.op = options.op};
  return {.op = ReduceOp::sum, .prescale = 1 / factor, .postscale = factor / ranks};
}

}  // namespace

// Returns a sparse gradient without rows, as that of an Embedding, with one sparse dimension.
at::Tensor no_rows(const at::Tensor& parameter) {
  std::vector<std::int64_t> values = parameter.sizes().vec();
  values.front() = 0;
  return at::sparse_coo_tensor(at::empty({1, 0}, parameter.options().dtype(at::kLong)),
                               at::empty(values, parameter.options()), parameter.sizes());
}

// The gradients, and which of them are in flight. The hooks hold weak pointers to this object.
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
        const auto found = names.find(tensor.unsafeGetTensorImpl());
        parameters_.push_back({found == names.end() ? "" : found->second, tensor});
      }
    if (!options_.sparse_as_dense)
      for (const std::string& name : sparse_parameters(module))
        for (Parameter& parameter : parameters_)
          if (parameter.name == name) parameter.is_sparse = true;
    make_units();
    for (const auto& [name, group] : group_of_)
      if (std::none_of(parameters_.begin(), parameters_.end(), [&name = name](const Parameter& parameter) {
            return parameter.name == name && parameter.unit != none;
          }))
        refuse_optimizer(rpc::ErrorKind::invalid_argument,
                         "groups: the optimizer has no parameter " + name +
                             " that requires grad, expected names of its parameters");
  }

  void add_hooks() {
    rpc::MutexLock lock(mutex_);
    std::vector<NamedParameter> named;
    for (const Parameter& parameter : parameters_) named.push_back({parameter.name, parameter.tensor});
    hooks_.emplace(std::move(named), nullptr, [weak = weak_from_this()](std::size_t index, bool) {
      if (const auto self = weak.lock()) self->is_ready(index);
    });
  }

  // The parameters that are reduced.
  std::vector<at::Tensor> tensors() const {
    rpc::MutexLock lock(mutex_);
    std::vector<at::Tensor> tensors;
    for (const Parameter& parameter : parameters_)
      if (parameter.unit != none) tensors.push_back(parameter.tensor);
    return tensors;
  }
  // Starts a step without a reduction: the gradients of the next backwards belong to another step. Returns
  // whether other parameters than before are reduced.
  bool begin_step() {
    rpc::MutexLock lock(mutex_);
    for (Unit& unit : units_) unit.ready = 0;
    for (Parameter& parameter : parameters_) parameter.passes = 0;
    compare().get();
    const bool changed = has_changed();
    renew();
    return changed;
  }

  bool in_flight() const {
    rpc::MutexLock lock(mutex_);
    return std::any_of(units_.begin(), units_.end(),
                       [](const Unit& unit) { return unit.reduced.has_value(); });
  }

  void synchronize() {
    rpc::MutexLock lock(mutex_);
    std::exception_ptr error;
    const auto attempt = [&](auto f) {
      if (const auto result = rpc::capture(f); !result.ok() && error == nullptr) error = result.error();
    };
    attempt([&] {
      mutex_.assume_locked();
      compare().get();
    });
    const bool changed = error == nullptr && has_changed();
    attempt([&] {
      mutex_.assume_locked();
      if (changed) append_units();
    });
    // After an error, all ranks start the units that they had in common.
    for (Unit& unit : units_)
      if (!unit.reduced)
        attempt([&] {
          mutex_.assume_locked();
          start(unit, changed);
        });
    // Waits for all reductions, also after a failure. Afterwards nothing writes to gradients.
    const at::NoGradGuard no_grad;
    for (Unit& unit : units_) {
      if (unit.reduced) attempt([&] { std::exchange(unit.reduced, std::nullopt)->get(); });
      for (const std::size_t index : unit.parameters)
        attempt([&] {
          mutex_.assume_locked();
          take_result(parameters_[index]);
        });
      unit.ready = 0;
    }
    for (Parameter& parameter : parameters_)
      parameter.passes = 0, parameter.gradient.reset(), parameter.sent.reset();
    if (error != nullptr) std::rethrow_exception(error);
    renew();
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct Parameter {
    std::string name;  // empty: the module has no such parameter
    at::Tensor tensor;
    std::size_t unit = none;   // none: it did not require grad when the units were made
    int passes = 0;            // backwards that reached it since the last step
    bool is_sparse = false;    // its gradients
    at::Tensor gradient = {};  // while it is reduced
    at::Tensor sent = {};      // the gradient or its narrow copy
  };
  struct Unit {  // parameters that are reduced under one name
    std::string name;
    std::vector<std::size_t> parameters;
    std::size_t ready = 0;  // of these
    std::optional<rpc::Future<void>> reduced = {};
  };

  // Starts to compare which parameters require grad on the ranks. A rank that has joined contributes zeros,
  // so the comparison is whether the numbers of all other ranks have the variance zero. failed_precondition:
  // they differ.
  rpc::Future<void> compare() WEFT_REQUIRES(mutex_) {
    std::uint32_t hash = 2166136261U;  // FNV-1a
    std::size_t trained = 0;
    for (const Parameter& parameter : parameters_) {
      hash = (hash ^ (parameter.tensor.requires_grad() ? 1U : 2U)) * 16777619U;
      trained += parameter.tensor.requires_grad();
    }
    const std::int64_t number = hash >> 12;  // small enough for the sum of the squares
    const at::Tensor sums = at::tensor({std::int64_t{1}, number, number * number}, at::kLong);
    return reduction_->all_reduce(options_.prefix + "(parameters)", sums, {.op = ReduceOp::sum})
        .then([sums, text = std::to_string(trained) + " of " +
                            std::to_string(parameters_.size())](rpc::Result<void>&& result) {
          const auto* sum = sums.const_data_ptr<std::int64_t>();
          if (result.ok() && sum[0] * sum[2] != sum[1] * sum[1])
            return rpc::Result<void>(rpc::Error(
                rpc::ErrorKind::failed_precondition,
                "AllReduceOptimizer: other parameters require grad than on other ranks (here " + text +
                    "): freeze and unfreeze the same parameters on all ranks, before the same step"));
          return std::move(result);
        });
  }

  bool has_changed() const WEFT_REQUIRES(mutex_) {
    return std::any_of(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
      return parameter.tensor.requires_grad() != (parameter.unit != none);
    });
  }

  // Makes the units of the next step.
  void renew() WEFT_REQUIRES(mutex_) {
    if (has_changed()) make_units();
    hooks_->refresh();
  }

  // Adds a unit for each parameter that has begun to require grad, for the rest of this step.
  void append_units() WEFT_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      if (parameter.unit != none || !parameter.tensor.requires_grad()) continue;
      expect_name(i);
      parameter.unit = units_.size();
      units_.push_back({options_.prefix + parameter.name, {i}});
    }
  }

  void expect_name(std::size_t index) const WEFT_REQUIRES(mutex_) {
    if (parameters_[index].name.empty())
      refuse_optimizer(rpc::ErrorKind::invalid_argument,
                       "the module has no name for parameter " + std::to_string(index) +
                           " of the optimizer, expected only parameters of the module");
  }

  // Creates a unit for each group, dtype and device, and a unit for each other parameter that requires grad.
  void make_units() WEFT_REQUIRES(mutex_) {
    units_.clear();
    for (std::size_t group = 0; group < options_.groups.size(); ++group)
      for (const std::string& name : options_.groups[group]) group_of_[name] = group;
    std::map<std::tuple<std::size_t, at::ScalarType, std::string>, std::size_t> units;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      parameter.unit = none;
      if (!parameter.tensor.requires_grad()) continue;
      expect_name(i);
      parameter.unit = units_.size();
      if (const auto group = group_of_.find(parameter.name); group != group_of_.end()) {
        if (parameter.is_sparse)
          refuse_optimizer(rpc::ErrorKind::invalid_argument,
                           "groups: the gradient of " + parameter.name +
                               " is sparse, expected a dense one: set sparse_as_dense");
        const std::tuple key(group->second, parameter.tensor.scalar_type(), parameter.tensor.device().str());
        parameter.unit = units.emplace(key, units_.size()).first->second;
      }
      if (parameter.unit == units_.size()) units_.push_back({options_.prefix + parameter.name, {}});
      units_[parameter.unit].parameters.push_back(i);
    }
  }

  // Called by the engine when it has accumulated a gradient.
  void is_ready(std::size_t index) {
    rpc::MutexLock lock(mutex_);
    Parameter& parameter = parameters_[index];
    if (parameter.unit == none) return;  // its unit is made in synchronize()
    Unit& unit = units_[parameter.unit];
    if (parameter.passes == options_.backward_passes_per_step || unit.reduced)
      refuse_optimizer(rpc::ErrorKind::failed_precondition,
                       "parameter " + parameter.name + " received more than " +
                           std::to_string(options_.backward_passes_per_step) +
                           " gradients before step(): raise backward_passes_per_step");
    if (++parameter.passes < options_.backward_passes_per_step) return;
    if (++unit.ready == unit.parameters.size() && !options_.adasum) start(unit);
  }

  // without_frozen: leaves out the parameters that do not require grad any more.
  void start(Unit& unit, bool without_frozen = false) WEFT_REQUIRES(mutex_) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const std::size_t index : unit.parameters) {
      Parameter& parameter = parameters_[index];
      if (without_frozen && !parameter.tensor.requires_grad()) continue;
      parameter.gradient = gradient_of(parameter);
      const bool narrows = options_.compression && !parameter.is_sparse;
      parameter.sent = narrows ? narrowed(parameter.gradient, *options_.compression) : parameter.gradient;
      gradients.push_back(parameter.sent);
    }
    if (gradients.empty()) return;
    unit.reduced = reduction_->all_reduce(unit.name, std::move(gradients), call_);
  }

  at::Tensor gradient_of(Parameter& parameter) const {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined())
      gradient = parameter.is_sparse ? no_rows(parameter.tensor) : at::zeros_like(parameter.tensor);
    if (gradient.requires_grad())
      refuse_optimizer(
          rpc::ErrorKind::failed_precondition,
          "the gradient of " + parameter.name +
              " was recorded by autograd, expected one without a graph: create_graph is not supported");
    if (gradient.is_sparse() && options_.sparse_as_dense) gradient = gradient.to_dense();
    parameter.is_sparse = gradient.is_sparse();
    return gradient;
  }

  static void take_result(const Parameter& parameter) {
    if (!parameter.gradient.defined()) return;
    if (!parameter.tensor.grad().is_same(parameter.gradient))
      refuse_optimizer(rpc::ErrorKind::failed_precondition,
                       "the gradient of " + parameter.name +
                           " was replaced between backward and step(): call zero_grad() before backward");
    widen(parameter.sent, parameter.gradient);
  }

  const std::shared_ptr<NegotiatedReduction> reduction_;
  const AllReduceOptimizerOptions options_;
  const ReductionCall call_;
  mutable rpc::Mutex mutex_;
  std::vector<Parameter> parameters_ WEFT_GUARDED_BY(mutex_);
  std::vector<Unit> units_ WEFT_GUARDED_BY(mutex_);
  std::map<std::string, std::size_t> group_of_ WEFT_GUARDED_BY(mutex_);  // AllReduceOptimizerOptions::groups
  std::optional<GradientHooks> hooks_ WEFT_GUARDED_BY(mutex_);           // made by add_hooks()
};

// The changes that an optimizer has made in one step, in one bucket for each dtype, and their Adasum over
// the ranks.
class AllReduceOptimizer::Deltas {
 public:
  Deltas(const NegotiatedReduction& reduction, const std::vector<at::Tensor>& parameters,
         const AllReduceOptimizerOptions& options)
      : group_(reduction.split("adasum")), hook_(std::make_shared<AdasumHook>()) {
    if (options.compression) hook_ = std::make_shared<CastHook>(*options.compression, hook_);
    plan(parameters);
  }

  void plan(const std::vector<at::Tensor>& parameters) {
    buckets_.clear();
    if (parameters.empty()) return;
    const c10::Device device = parameters.front().device();
    std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
    for (const at::Tensor& parameter : parameters) {
      if (parameter.device() != device)
        refuse_optimizer(rpc::ErrorKind::unsupported, "adasum of parameters on " + device.str() + " and " +
                                                          parameter.device().str() + ", expected one device");
      by_dtype[parameter.scalar_type()].push_back(parameter);
    }
    if (!device.is_cpu()) group_.prepare(device).get();
    for (auto& [dtype, of_dtype] : by_dtype) {
      std::int64_t elements = 0;
      for (const at::Tensor& parameter : of_dtype) elements += parameter.numel();
      GradientBucket& bucket = buckets_.emplace_back(GradientBucket{.index = buckets_.size()});
      bucket.buffer = group_.empty({elements}, at::device(device).dtype(dtype));
      std::int64_t begin = 0;
      for (const at::Tensor& parameter : of_dtype) {
        bucket.gradients.push_back(bucket.buffer.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
        begin += parameter.numel();
      }
      bucket.parameters = std::move(of_dtype);
    }
  }

  void step(torch::optim::Optimizer& optimizer) {
    const at::NoGradGuard no_grad;
    std::vector<std::vector<at::Tensor>> before;
    for (const GradientBucket& bucket : buckets_) {
      auto& values = before.emplace_back();
      for (const at::Tensor& parameter : bucket.parameters) values.push_back(parameter.clone());
    }
    optimizer.step();
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      GradientBucket& bucket = buckets_[b];
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
        bucket.gradients[i].copy_(bucket.parameters[i] - before[b][i]);
      for (int step = 0;; ++step) {
        auto started = hook_->run(group_, bucket, step);
        if (!started) break;
        started->get();
      }
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
        bucket.parameters[i].copy_(before[b][i] + bucket.gradients[i]);
    }
  }

 private:
  const collectives::Group group_;
  std::shared_ptr<CommunicationHook> hook_;
  std::vector<GradientBucket> buckets_;
};

AllReduceOptimizer::AllReduceOptimizer(std::shared_ptr<NegotiatedReduction> reduction,
                                       torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                                       AllReduceOptimizerOptions options)
    : gradients_(std::make_shared<Gradients>(reduction, optimizer, module, options)),
      deltas_(options.adasum ? std::make_unique<Deltas>(*reduction, gradients_->tensors(), options)
                             : nullptr),
      optimizer_(optimizer) {
  gradients_->add_hooks();
}
AllReduceOptimizer::AllReduceOptimizer(std::shared_ptr<NegotiatedReduction> reduction,
                                       torch::optim::Optimizer& optimizer, const torch::nn::Module& module)
    : AllReduceOptimizer(std::move(reduction), optimizer, module, AllReduceOptimizerOptions{}) {}

AllReduceOptimizer::~AllReduceOptimizer() = default;

void AllReduceOptimizer::synchronize() {
  if (deltas_ != nullptr)
    refuse_optimizer(rpc::ErrorKind::failed_precondition,
                     "synchronize() with adasum, which reduces no gradients: clip them before step()");
  gradients_->synchronize();
  synchronized_ = true;
}

void AllReduceOptimizer::step() {
  if (deltas_ != nullptr) {
    if (!synchronizes_)
      refuse_optimizer(rpc::ErrorKind::failed_precondition,
                       "skip_synchronize() with adasum, which reduces no gradients before the step");
    if (gradients_->begin_step()) deltas_->plan(gradients_->tensors());
    return deltas_->step(optimizer_);
  }
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
