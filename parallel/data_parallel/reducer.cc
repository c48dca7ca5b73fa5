#include <weft/parallel/data_parallel/reducer.h>

#include <weft/parallel/data_parallel/sparse_gradients.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace weft::data_parallel {

using torch::autograd::variable_list;
using Node = torch::autograd::Node;
using NodePtr = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
using Time = std::chrono::steady_clock::time_point;

namespace {

constexpr std::size_t alignment = 64;  // bytes of a gradient's place in a bucket

std::size_t padded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// Calls f before a node runs.
template <class F>
class PreHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit PreHook(F f) : f_(std::move(f)) {}
  variable_list operator()(const variable_list& gradients) override {
    f_();
    return gradients;
  }

 private:
  F f_;
};

bool is_alias(const at::Tensor& gradient, const at::Tensor& view) {
  return gradient.defined() && view.defined() && !gradient.is_sparse() &&
         gradient.const_data_ptr() == view.const_data_ptr() && gradient.strides() == view.strides();
}

// Where a backward runs only for some inputs (torch::autograd::grad, or `inputs`), others are not executed.
bool is_executed(Node* node) {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes != nullptr && !nodes->contains(node)) return false;
  const auto* some = torch::autograd::get_current_graph_task_exec_info();
  if (some == nullptr || some->empty()) return true;
  const auto info = some->find(node);
  return info != some->end() && info->second.needed_;
}

}  // namespace

struct Reducer::Parameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;
  NodePtr accumulator = {};  // holds the hook
  std::uintptr_t hook = 0;
  std::size_t bucket = 0;
  at::Tensor view = {};           // of the bucket; undefined for sparse gradients
  bool accumulated = false;       // its gradient has a part that was not reduced
  std::size_t expected_hits = 0;  // of a static graph
  // Of the present backward.
  std::size_t hits = 0;   // gradients that were accumulated
  bool expected = false;  // backward will reach it
  bool ready = false;
  at::Tensor kept = {};  // the gradient of before, if this rank does not reach it
};

struct Reducer::Bucket {
  std::size_t index = 0;
  std::vector<std::size_t> parameters;
  at::Tensor memory;       // undefined for sparse gradients
  GradientBucket content;  // for a hook
  // Of the present backward.
  std::size_t missing = 0;  // gradients
  bool skipped = false;
  int step = 0;                                   // of the hook
  std::optional<rpc::Future<void>> reduced = {};  // in flight
  std::optional<SparseGather> gather = {};
};

// Held by the callback of a backward. If the engine drops the callback without a call, backward has failed.
class Reducer::Ending {
 public:
  explicit Ending(std::weak_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {}
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  ~Ending() {
    if (const auto reducer = started_ ? reducer_.lock() : nullptr)
      (void)rpc::capture([&] { reducer->failed(); });
  }
  void start() { started_ = true; }
  void finish() {
    const auto reducer = reducer_.lock();
    if (reducer == nullptr) return;
    std::lock_guard lock(reducer->mutex_);
    reducer->finish();  // if it throws, failed() follows
    started_ = false;
  }

 private:
  const std::weak_ptr<Reducer> reducer_;
  bool started_ = false;
};

std::shared_ptr<Reducer> Reducer::make(collectives::Group group, std::vector<NamedParameter> parameters,
                                       const Options& options) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(group), std::move(parameters), options));
  reducer->add_hooks();
  return reducer;
}

Reducer::Reducer(collectives::Group group, std::vector<NamedParameter> parameters, const Options& options)
    : options_(options), group_(std::move(group)) {
  for (NamedParameter& parameter : parameters)
    parameters_.push_back({std::move(parameter.name), std::move(parameter.tensor), parameter.sparse});
  start_anew();
}

Reducer::~Reducer() {
  for (Parameter& parameter : parameters_)
    if (parameter.accumulator != nullptr) parameter.accumulator->del_post_hook(parameter.hook);
}

// As all ranks of a new group have to, whatever happened in an earlier one.
void Reducer::start_anew() {
  active_ranks_ = group_.size();
  overlap_ = options_.overlap;
  trial_.reset();
  if (overlap_ == Overlap::automatic) overlap_ = trial_.emplace().next();
  backwards_ = 0;
  counted_ = running_ = armed_ = false;
  exchange_.reset();
  reached_ = at::zeros({static_cast<std::int64_t>(parameters_.size())}, at::kByte);
  for (Parameter& parameter : parameters_) parameter.kept.reset();
  allocate(plan_of(reverse_order(parameters_.size())));
}

// --- Buckets ---

BucketPlan Reducer::plan_of(const std::vector<std::size_t>& order) const {
  std::vector<ParameterSpec> specs;
  for (const Parameter& parameter : parameters_)
    specs.push_back({parameter.tensor.nbytes(), parameter.tensor.scalar_type(), parameter.tensor.device(),
                     parameter.sparse});
  return plan_buckets(specs, options_.bucket_bytes, order);
}

// Gradients that are views of the buckets before move to the new ones.
void Reducer::allocate(BucketPlan plan) {
  const at::NoGradGuard no_grad;
  plan_ = std::move(plan);
  std::vector<Bucket> buckets;
  for (const auto& indices : plan_) {
    Bucket& bucket = buckets.emplace_back();
    bucket.index = buckets.size() - 1;
    bucket.parameters = indices;
    for (const std::size_t index : indices) parameters_[index].bucket = bucket.index;
    if (parameters_[indices.front()].sparse) continue;
    const at::Tensor& first = parameters_[indices.front()].tensor;
    const auto item = first.element_size();
    std::size_t bytes = 0;
    for (const std::size_t index : indices) bytes += padded(parameters_[index].tensor.nbytes());
    bucket.memory = group_.empty({static_cast<std::int64_t>(bytes / item)},
                                 at::TensorOptions(first.device()).dtype(first.dtype()));
    bucket.memory.zero_();
    bucket.content = {.index = bucket.index, .last = buckets.size() == plan_.size(), .buffer = bucket.memory};
    std::size_t begin = 0;
    for (const std::size_t index : indices) {
      Parameter& parameter = parameters_[index];
      const at::Tensor& tensor = parameter.tensor;
      const at::Tensor part =
          bucket.memory.narrow(0, static_cast<std::int64_t>(begin / item), tensor.numel());
      // As LibTorch lays out a gradient: like its parameter, if that has no gaps. For autograd it is not a
      // view: Optimizer::zero_grad(false) detaches it in place.
      const at::AutoDispatchBelowADInplaceOrView no_view;
      const at::Tensor view = tensor.is_non_overlapping_and_dense()
                                  ? part.as_strided(tensor.sizes(), tensor.strides(), part.storage_offset())
                                  : part.view(tensor.sizes());
      if (is_alias(parameter.tensor.grad(), parameter.view)) {
        view.copy_(parameter.view);
        parameter.tensor.mutable_grad() = view;
      }
      parameter.view = view;
      bucket.content.gradients.push_back(view);
      bucket.content.parameters.push_back(tensor);
      begin += padded(tensor.nbytes());
    }
  }
  buckets_ = std::move(buckets);
}

void Reducer::set_group(collectives::Group group) {
  std::lock_guard lock(mutex_);
  group_ = std::move(group);
  start_anew();
}

void Reducer::set_hook(std::shared_ptr<CommunicationHook> hook) {
  std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

void Reducer::set_sync(bool on) {
  std::lock_guard lock(mutex_);
  sync_ = on;
}

bool Reducer::sync() const {
  std::lock_guard lock(mutex_);
  return sync_;
}

void Reducer::set_active(int ranks) {
  std::lock_guard lock(mutex_);
  active_ranks_ = ranks;
}

BucketPlan Reducer::plan() const {
  std::lock_guard lock(mutex_);
  return plan_;
}

Overlap Reducer::overlap() const {
  std::lock_guard lock(mutex_);
  return overlap_;
}

IterationStats Reducer::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

// --- From the engine ---

void Reducer::add_hooks() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    auto ready = [weak = weak_from_this(), i](const variable_list& outputs, const variable_list&) {
      if (const auto self = weak.lock()) self->is_ready(i);
      return outputs;
    };
    parameter.hook = parameter.accumulator->add_post_hook(
        std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(ready)));
  }
}

void Reducer::begin_forward() {
  std::lock_guard lock(mutex_);
  for (const Parameter& parameter : parameters_)
    if (torch::autograd::impl::try_get_grad_accumulator(parameter.tensor) != parameter.accumulator)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "DistributedDataParallel: parameter " + parameter.name +
                           " has changed its dtype or device: move the module before it is wrapped");
  reduces_ = armed_ = sync_;
  forward_at_ = std::chrono::steady_clock::now();
}

void Reducer::watch(const at::Tensor& output) {
  if (!output.defined() || output.grad_fn() == nullptr) return;
  auto began = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_first_node();
  };
  output.grad_fn()->add_pre_hook(std::make_unique<PreHook<decltype(began)>>(std::move(began)));
}

void Reducer::on_first_node() {
  const auto ending = std::make_shared<Ending>(weak_from_this());  // outlives the lock
  std::lock_guard lock(mutex_);
  if (!running_ && reduces_) start_in_engine(ending);
}

void Reducer::start_in_engine(const std::shared_ptr<Ending>& ending) {
  if (torch::autograd::get_current_graph_task_id() < 0)
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "DistributedDataParallel: its gradients are computed by a dist_autograd::Pass, expected a "
        "backward() of LibTorch");
  // torch::autograd::grad() of other tensors does not write gradients.
  if (const auto* some = torch::autograd::get_current_graph_task_exec_info();
      some != nullptr && !some->empty() &&
      std::none_of(parameters_.begin(), parameters_.end(),
                   [](const Parameter& each) { return is_executed(each.accumulator.get()); }))
    return;
  torch::autograd::Engine::get_default_engine().queue_callback([ending] { ending->finish(); });
  ending->start();
  for (Parameter& parameter : parameters_) parameter.expected = is_executed(parameter.accumulator.get());
  shadows_ = false;
  start_iteration();
}

void Reducer::is_ready(std::size_t index) {
  const at::NoGradGuard no_grad;
  const auto ending = std::make_shared<Ending>(weak_from_this());
  std::lock_guard lock(mutex_);
  Parameter& parameter = parameters_[index];
  // Loss nodes that use a parameter run before the module's outputs do.
  if (!running_ && reduces_ && armed_) start_in_engine(ending);
  if (!running_) {
    parameter.accumulated |= !reduces_;
    return;
  }
  const Bucket& bucket = buckets_[parameter.bucket];
  if (next_ > bucket.index || (!parameter.expected && !options_.static_graph))
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "DistributedDataParallel: parameter " + parameter.name +
            " received a gradient that the graph of this backward did not announce: a nested backward (a "
            "re-entrant checkpoint) computed it. Use dist_autograd::activation_checkpoint(), or "
            "Options::static_graph");
  ++parameter.hits;
  if (!parameter.sparse) move_to_bucket(parameter);
  if (parameter.ready || (options_.static_graph && parameter.hits < parameter.expected_hits)) return;
  parameter.ready = true;
  order_.push_back(index);
  if (parameter.expected) --buckets_[parameter.bucket].missing;
  if (!at_the_end_) launch_ready();
}

// --- One backward ---

void Reducer::start_iteration() {
  running_ = true;
  armed_ = false;
  next_ = 0;
  order_.clear();
  stats_ = {};
  began_at_ = std::chrono::steady_clock::now();
  const bool counted = options_.static_graph && counted_ && !shadows_;
  at_the_end_ = overlap_ == Overlap::after || (options_.static_graph && !counted);
  for (Parameter& parameter : parameters_) {
    parameter.hits = 0;
    parameter.ready = false;
    if (counted) parameter.expected = parameter.expected_hits > 0;
  }
  for (Bucket& bucket : buckets_) {
    bucket.skipped = false;
    bucket.step = 0;
    bucket.missing = static_cast<std::size_t>(
        std::count_if(bucket.parameters.begin(), bucket.parameters.end(),
                      [&](std::size_t index) { return parameters_[index].expected; }));
  }
  if (!options_.static_graph) exchange_reached();
  if (!at_the_end_) launch_ready();
}

// Which parameters some rank reaches. In a static graph this is known at the end of the first backward.
void Reducer::exchange_reached() {
  auto* reached = reached_.mutable_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    reached[i] = parameters_[i].expected || parameters_[i].hits > 0 || parameters_[i].accumulated;
  exchange_ = group_.all_reduce(reached_, collectives::ReduceOp::max);
}

bool Reducer::know_reached(bool wait) {
  if (!exchange_) return true;
  if (!wait && !exchange_->ready()) return false;
  std::exchange(exchange_, std::nullopt)->get();
  return true;
}

bool Reducer::reached_anywhere(std::size_t index) const {
  return reached_.const_data_ptr<std::uint8_t>()[index] != 0;
}

void Reducer::launch_ready() {
  for (; next_ < buckets_.size(); ++next_) {
    Bucket& bucket = buckets_[next_];
    if (bucket.missing > 0) return;
    const auto is_expected = [&](std::size_t index) { return parameters_[index].expected; };
    if (std::none_of(bucket.parameters.begin(), bucket.parameters.end(), is_expected)) {
      if (!know_reached(false)) return;  // looked at again with the next gradient
      bucket.skipped = is_skipped(bucket);
    }
    if (!bucket.skipped) launch(bucket);
  }
}

bool Reducer::is_skipped(const Bucket& bucket) const {
  return std::none_of(bucket.parameters.begin(), bucket.parameters.end(),
                      [&](std::size_t index) { return reached_anywhere(index); });
}

void Reducer::launch(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  for (const std::size_t index : bucket.parameters)
    if (Parameter& parameter = parameters_[index]; !parameter.ready && !parameter.sparse)
      contribute(parameter);
  ++stats_.buckets;
  stats_.bytes += bucket.memory.defined() ? bucket.memory.nbytes() : 0;
  if (!bucket.memory.defined()) {
    const Parameter& parameter = parameters_[bucket.parameters.front()];
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined() && !gradient.is_sparse())
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "DistributedDataParallel: the gradient of " + parameter.name +
                           " is dense, expected a sparse one: use an Embedding without the option `sparse`");
    bucket.gather.emplace(group_, parameter.tensor, gradient);
  } else if (hook_ != nullptr) {
    bucket.reduced = hook_->run(group_, bucket.content, bucket.step++);
  } else {
    const bool inlined = overlap_ == Overlap::caller || at_the_end_;
    const at::Tensor memory =
        bucket.memory.is_complex() ? at::view_as_real(bucket.memory).view({-1}) : bucket.memory;
    bucket.reduced = (inlined ? group_.inlined() : group_).all_reduce(memory, collectives::ReduceOp::avg);
  }
}

// A gradient becomes a view of its bucket.
void Reducer::move_to_bucket(Parameter& parameter) {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  const auto refuse = [&](const char* what) {
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "DistributedDataParallel: the gradient of " + parameter.name + what);
  };
  if (!gradient.defined()) {
    parameter.view.zero_();
  } else if (gradient.is_sparse()) {
    refuse(" is sparse, expected a dense one: name the parameter in Options::sparse");
  } else if (gradient.requires_grad()) {
    refuse(" was recorded by autograd: create_graph is not supported");
  } else if (!is_alias(gradient, parameter.view)) {
    parameter.view.copy_(gradient);
    gradient = parameter.view;
  }
}

// The gradient of a parameter that this rank does not reach, which stays if no other rank reaches it.
void Reducer::contribute(Parameter& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined()) {
    parameter.view.zero_();
  } else if (is_alias(gradient, parameter.view)) {
    parameter.kept = gradient.clone();
  } else {
    parameter.view.copy_(gradient);
  }
}

// --- The end of a backward ---

void Reducer::finish() {
  const at::NoGradGuard no_grad;
  const auto ended_at = std::chrono::steady_clock::now();
  for (const Bucket& bucket : buckets_)
    if (bucket.reduced && bucket.reduced->ready()) ++stats_.before_the_end;
  if (options_.static_graph && !shadows_ && !counted_) {
    for (Parameter& parameter : parameters_) parameter.expected_hits = parameter.hits;
    counted_ = true;
  }
  if (options_.static_graph && backwards_ == 0) exchange_reached();
  know_reached(true);
  for (; next_ < buckets_.size(); ++next_) {
    Bucket& bucket = buckets_[next_];
    bucket.skipped = is_skipped(bucket);
    if (!bucket.skipped) launch(bucket);
  }
  wait_for_buckets();
  publish();
  stats_.skipped = buckets_.size() - stats_.buckets;
  running_ = false;
  if (++backwards_ == 1) replan();
  stats_.iteration = backwards_;
  if (!shadows_) stats_.forward = began_at_ - forward_at_;
  stats_.backward = ended_at - began_at_;
  stats_.waited = std::chrono::steady_clock::now() - ended_at;
  stats_.order = order_;
  last_ = stats_;
  if (trial_) decide_overlap();
}

void Reducer::decide_overlap() {
  trial_->add(stats_.backward + stats_.waited);
  overlap_ = trial_->next();
  if (!trial_->complete()) return;
  auto seconds = std::exchange(trial_, std::nullopt)->medians();
  const at::Tensor sums = at::from_blob(seconds.data(), {2}, at::kDouble);
  group_.all_reduce(sums).get();
  overlap_ = OverlapTrial::faster(seconds);
}

// All reductions are waited for, also after a failure: nothing then writes to gradients any more.
void Reducer::wait_for_buckets() {
  std::exception_ptr error;
  const Bucket* failed = nullptr;
  const auto attempt = [&](Bucket& bucket, auto f) {
    try {
      f();
    } catch (...) {
      if (error == nullptr) error = std::current_exception(), failed = &bucket;
      bucket.gather.reset();
    }
  };
  for (Bucket& bucket : buckets_)
    if (bucket.gather) attempt(bucket, [&] { bucket.gather->start_values(); });
  for (bool more = true; more && error == nullptr;) {
    more = false;
    for (Bucket& bucket : buckets_) {
      if (!bucket.reduced) continue;
      attempt(bucket, [&] {
        std::exchange(bucket.reduced, std::nullopt)->get();
        if (hook_ != nullptr) bucket.reduced = hook_->run(group_, bucket.content, bucket.step++);
      });
      more |= bucket.reduced.has_value();
    }
  }
  for (Bucket& bucket : buckets_)
    if (bucket.reduced) attempt(bucket, [&] { std::exchange(bucket.reduced, std::nullopt)->get(); });
  if (error != nullptr) fail(*failed, error);
}

void Reducer::fail(const Bucket& bucket, const std::exception_ptr& error) const {
  std::string names;
  for (const std::size_t index : bucket.parameters)
    names += (names.empty() ? "" : ", ") + parameters_[index].name;
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    throw rpc::Error(known.kind(), "DistributedDataParallel: bucket " + std::to_string(bucket.index) + " (" +
                                       names + ") was not reduced: " + known.what());
  }
}

// Puts the averages where the optimizer reads them.
void Reducer::publish() {
  const double scale = static_cast<double>(group_.size()) / active_ranks_;
  for (Bucket& bucket : buckets_) {
    if (bucket.skipped) continue;
    if (bucket.gather) {
      Parameter& parameter = parameters_[bucket.parameters.front()];
      parameter.tensor.mutable_grad() = bucket.gather->sum().div_(active_ranks_);
      bucket.gather.reset();
      parameter.accumulated = false;
      continue;
    }
    if (scale != 1) bucket.memory.mul_(scale);
    for (const std::size_t index : bucket.parameters) {
      Parameter& parameter = parameters_[index];
      if (reached_anywhere(index)) {
        parameter.accumulated = false;
        parameter.tensor.mutable_grad() = parameter.view;
      } else if (parameter.kept.defined()) {
        parameter.view.copy_(parameter.kept);
      }
      parameter.kept.reset();
    }
  }
}

// The order of rank 0 becomes that of all. Parameters that it did not reach come last.
void Reducer::replan() {
  std::vector<std::size_t> order = order_;
  for (const std::size_t index : reverse_order(parameters_.size()))
    if (!parameters_[index].ready) order.push_back(index);
  const std::vector<std::int64_t> own(order.begin(), order.end());
  const auto agreed = group_.broadcast_object(own, 0).get();
  BucketPlan plan = plan_of({agreed.begin(), agreed.end()});
  if (plan != plan_) allocate(std::move(plan));
}

void Reducer::shadow() {
  try {
    const at::NoGradGuard no_grad;
    std::lock_guard lock(mutex_);
    for (Parameter& parameter : parameters_) {
      parameter.expected = false;
      if (!parameter.accumulated) parameter.tensor.mutable_grad().reset();
    }
    shadows_ = true;
    start_iteration();
    finish();
    for (Parameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  } catch (...) {
    failed();
    throw;
  }
}

void Reducer::failed() {
  std::lock_guard lock(mutex_);
  running_ = false;
  exchange_.reset();
  for (Bucket& bucket : buckets_) {
    bucket.reduced.reset();
    bucket.gather.reset();
  }
  group_.abort("backward of rank " + std::to_string(group_.rank()) +
               " failed before all of its gradients were reduced");
}

}  // namespace weft::data_parallel
