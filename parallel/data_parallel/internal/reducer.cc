#include <weft/parallel/data_parallel/internal/reducer.h>

#include <weft/parallel/training/internal/engine_hook.h>

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace weft::data_parallel {
namespace {

std::string counts_text(const std::string& name, std::size_t actual, std::size_t expected) {
  return name + " (" + std::to_string(actual) + ", expected " + std::to_string(expected) + ")";
}

}  // namespace

struct Reducer::Parameter {
  bool accumulated = false;       // a backward that was not reduced has computed a gradient
  std::size_t expected_hits = 0;  // in the first backward
  // Of the present backward.
  std::size_t hits = 0;         // gradients that were accumulated
  std::size_t expected = 0;     // gradients that backward will compute
  std::size_t wanted_hits = 0;  // with the last of these, the gradient is ready
  bool ready = false;
  bool received = false;  // a gradient that was defined
};

std::shared_ptr<Reducer> Reducer::make(collectives::Group group, std::vector<NamedParameter> parameters,
                                       const Options& options, std::shared_ptr<LowPrecision> low_precision) {
  std::shared_ptr<Reducer> reducer(
      new Reducer(std::move(group), std::move(parameters), options, std::move(low_precision)));
  rpc::MutexLock lock(reducer->mutex_);
  reducer->hooks_.emplace(reducer->named_, reducer->low_precision_.get(),
                          [weak = std::weak_ptr(reducer)](std::size_t parameter, bool defined) {
                            if (const auto self = weak.lock()) self->is_ready(parameter, defined);
                          });
  return reducer;
}

Reducer::Reducer(collectives::Group group, std::vector<NamedParameter> parameters, const Options& options,
                 std::shared_ptr<LowPrecision> low_precision)
    : options_(options),
      low_precision_(std::move(low_precision)),
      named_(std::move(parameters)),
      group_(std::move(group)),
      parameters_(named_.size()),
      reached_(named_.size(), 0),
      report_(names_of(named_)) {
  start_anew();
}

Reducer::~Reducer() = default;

// Resets all state that earlier groups have changed, because the ranks of a new group must start equally.
void Reducer::start_anew() {
  excluded_.clear();
  overlap_ = options_.overlap;
  trial_.reset();
  if (overlap_ == Overlap::automatic) overlap_ = trial_.emplace().next();
  backwards_ = passes_ = 0;
  running_ = false;
  is_static_ = true;
  exchange_.reset();
  other_.reset();
  reductions_.reset();
  if (hooks_) hooks_->refresh();
  plan_anew(false);
}

// Adapts to what the program has done with the parameters since the last iteration. No rank waits here for
// another one: if the ranks have done different things, the exchange of the next backward fails on all ranks.
void Reducer::refresh() {
  bool fits = true;
  for (std::size_t i = 0; i < named_.size(); ++i) {
    const auto& [name, tensor, sparse] = named_[i];
    if (!buckets_.has(i)) {
      fits &= !tensor.requires_grad();
      continue;
    }
    if (!buckets_.has_type(i)) {
      const auto& before = buckets_.options(i);
      const std::string text = c10::str("DistributedDataParallel: parameter ", name,
                                        " has changed its dtype or device to ", tensor.scalar_type(), " on ",
                                        tensor.device(), ", expected ", before.dtype().toScalarType(), " on ",
                                        before.device(), ": move the module before it is wrapped");
      group_.abort("rank " + std::to_string(group_.rank()) + ": " + text);
      throw rpc::Error(rpc::ErrorKind::failed_precondition, text);
    }
    // The place of a frozen parameter is kept, unless the graph is compared with the first one.
    fits &= buckets_.has_layout(i) && (tensor.requires_grad() || !options_.static_graph);
  }
  if (low_precision_ != nullptr) low_precision_->add_accumulators();
  hooks_->refresh();
  if (!fits) plan_anew(!options_.static_graph);
}

// --- Buckets ---

// Plans the buckets of the parameters that require grad now. keeps_frozen: also of those that had a place, so
// that a program that trains two parts of a module in turn needs one plan.
void Reducer::plan_anew(bool keeps_frozen) {
  counted_ = ordered_ = false;
  std::vector<std::size_t> order;
  for (const std::size_t index : reverse_order(named_.size()))
    if (named_[index].tensor.requires_grad() || (keeps_frozen && buckets_.has(index))) order.push_back(index);
  allocate(plan_of(order));
}

// order: the parameters to plan.
BucketPlan Reducer::plan_of(const std::vector<std::size_t>& order) const {
  std::vector<ParameterSpec> specs;
  std::vector<std::size_t> places;
  for (const std::size_t index : order) {
    const auto& [name, tensor, sparse] = named_[index];
    places.push_back(specs.size());
    specs.push_back({tensor.nbytes(), tensor.scalar_type(), tensor.device(), sparse});
  }
  BucketPlan plan = split_last_bucket(plan_buckets(specs, options_.bucket_bytes, places), specs,
                                      options_.bucket_bytes.front());
  for (auto& bucket : plan)
    for (std::size_t& parameter : bucket) parameter = order[parameter];
  return plan;
}

// Moves gradients that are views of the old buckets to the new buckets.
void Reducer::allocate(BucketPlan plan) {
  const at::NoGradGuard no_grad;
  GradientBuckets buckets(group_, named_, std::move(plan));
  for (std::size_t i = 0; i < named_.size() && buckets_.size() != 0; ++i) {
    at::Tensor& gradient = named_[i].tensor.mutable_grad();
    const at::Tensor& view = buckets.view(i);
    if (!is_alias(gradient, buckets_.view(i)) || !view.defined() || view.sizes() != gradient.sizes())
      continue;
    view.copy_(gradient);
    gradient = view;
  }
  buckets_ = std::move(buckets);
  reached_.set_digest(buckets_.digest());
  buckets_.synchronize();
}

void Reducer::set_group(collectives::Group group) {
  rpc::MutexLock lock(mutex_);
  group_ = std::move(group);
  start_anew();
}

void Reducer::set_hook(std::shared_ptr<CommunicationHook> hook) {
  rpc::MutexLock lock(mutex_);
  hook_ = std::move(hook);
  hook_name_ = hook_ == nullptr ? "all_reduce" : hook_->name();
}

void Reducer::set_on_reduced(std::function<void(std::size_t)> f) {
  rpc::MutexLock lock(mutex_);
  on_reduced_ = std::move(f);
}

void Reducer::wait_for(rpc::Future<void> other) {
  rpc::MutexLock lock(mutex_);
  other_ = std::move(other);
}

void Reducer::set_sync(bool on) {
  rpc::MutexLock lock(mutex_);
  sync_ = on;
}

bool Reducer::sync() const {
  rpc::MutexLock lock(mutex_);
  return sync_;
}

void Reducer::set_excluded(std::vector<int> ranks) {
  rpc::MutexLock lock(mutex_);
  excluded_ = std::move(ranks);
}

std::shared_ptr<PassReduction> Reducer::make_pass_reduction(std::string name) {
  rpc::MutexLock lock(mutex_);
  refresh();
  if (name.empty()) name = std::to_string(++passes_);
  return std::make_shared<PassReduction>(
      PassReduction::Setup{group_, named_, buckets_.plan(), hook_, excluded_, std::move(name)});
}

BucketPlan Reducer::plan() const {
  rpc::MutexLock lock(mutex_);
  return buckets_.plan();
}

Overlap Reducer::overlap() const {
  rpc::MutexLock lock(mutex_);
  return overlap_;
}

IterationStats Reducer::last() const {
  rpc::MutexLock lock(mutex_);
  return last_;
}

// --- From the engine ---

void Reducer::begin_forward() {
  rpc::MutexLock lock(mutex_);
  if (other_) std::exchange(other_, std::nullopt)->get();  // of an earlier forward without a backward
  refresh();
  forward_at_ = std::chrono::steady_clock::now();
}

void Reducer::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return;
  rpc::MutexLock lock(mutex_);
  if (!sync_) return;
  std::erase_if(outputs_, [](const Output& each) { return each.alive.expired(); });
  const auto node = torch::autograd::impl::gradient_edge(output).function;
  auto alive = std::make_shared<char>();
  outputs_.push_back({node.get(), alive});
  if (output.grad_fn() == nullptr) {
    outputs_.back().once = std::move(alive);  // the node of a leaf is in the graphs of all forwards
    return;
  }
  training::call_before(*node, [weak = weak_from_this(), alive = std::move(alive)] {
    if (const auto self = weak.lock()) self->on_first_node();
  });
}

bool Reducer::reaches_an_output() const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [](const Output& each) { return !each.alive.expired() && is_executed(each.node); });
}

void Reducer::on_first_node() {
  const auto backward = std::make_shared<Backward>(weak_from_this());  // outlives the lock
  rpc::MutexLock lock(mutex_);
  if (!running_) start_in_engine(backward);
}

void Reducer::start_in_engine(const std::shared_ptr<Backward>& backward) {
  if (!in_backward())
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "DistributedDataParallel: its gradients are computed by a dist_autograd::Pass, which forward() was "
        "not given: call forward(pass, ...)");
  const std::vector<std::size_t> expected = hooks_->expected();
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].expected = expected[i];
  // torch::autograd::grad() of other tensors does not write gradients.
  const auto is_none = [](std::size_t count) { return count == 0; };
  if (is_partial_backward() && std::all_of(expected.begin(), expected.end(), is_none)) return;
  backward->start();
  shadows_ = false;
  start_iteration();
}

void Reducer::is_ready(std::size_t index, bool defined) {
  if (!in_backward()) return;  // of a pass, which has its own gradients
  const at::NoGradGuard no_grad;
  const auto backward = std::make_shared<Backward>(weak_from_this());
  rpc::MutexLock lock(mutex_);
  Parameter& parameter = parameters_[index];
  // A loss node that uses a parameter may run before the nodes of the module's outputs.
  if (!running_ && reaches_an_output()) start_in_engine(backward);
  const bool is_reduced = running_ && buckets_.has(index);
  at::Tensor& gradient = named_[index].tensor.mutable_grad();
  if (!is_reduced || named_[index].sparse)  // the copy of a parameter has narrow gradients
    if (gradient.defined()) gradient = gradient.to(buckets_.options(index).dtype());
  if (!is_reduced) {
    parameter.accumulated |= defined;
    return;
  }
  const std::size_t bucket = buckets_.bucket_of(index);
  ++parameter.hits;
  if (options_.static_graph && counted_ && parameter.hits > parameter.expected_hits)
    refuse_graph(counts_text(named_[index].name, parameter.hits, parameter.expected_hits));
  if (reductions_->next() > bucket || (parameter.expected == 0 && !options_.static_graph))
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "DistributedDataParallel: parameter " + named_[index].name +
            " received a gradient that the graph of this backward did not announce: a nested backward (a "
            "re-entrant checkpoint) computed it. Use dist_autograd::activation_checkpoint(), or "
            "Options::static_graph");
  parameter.received |= defined;
  if (defined && !named_[index].sparse) buckets_.move_in(index, gradient);
  if (parameter.ready || parameter.hits < parameter.wanted_hits) return;
  parameter.ready = true;
  order_.push_back(index);
  reductions_->add(bucket, index, parameter.expected > 0);
  if (at_the_end_) return;
  launch_ready();
  if (on_reduced_ != nullptr) publish_complete();
}

// --- One backward ---

void Reducer::start_iteration() {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].expected > 0 && !buckets_.has(i) && named_[i].tensor.requires_grad())
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "DistributedDataParallel: a backward computes the gradient of " + named_[i].name +
                           ", which did not require grad at the last forward: run the backward of a forward "
                           "before the parameter is frozen for another forward");
  running_ = true;
  std::erase_if(outputs_, [](const Output& each) { return each.once != nullptr && is_executed(each.node); });
  order_.clear();
  stats_ = {};
  began_at_ = std::chrono::steady_clock::now();
  const bool counted = options_.static_graph && counted_ && !shadows_;
  at_the_end_ = overlap_ == Overlap::after || (options_.static_graph && !counted);
  buckets_.leave_kept();
  for (Parameter& parameter : parameters_) {
    parameter.hits = 0;
    parameter.ready = parameter.received = false;
    if (counted) parameter.expected = parameter.expected_hits;
    parameter.wanted_hits = !options_.static_graph || counted ? parameter.expected : 0;
  }
  const bool inlined = overlap_ == Overlap::caller || at_the_end_;
  reductions_.emplace(buckets_, inlined ? group_.inlined() : group_, hook_.get());
  buckets_.begin(excluded_);
  published_.assign(buckets_.size(), false);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].expected > 0 && buckets_.has(i)) reductions_->expect(buckets_.bucket_of(i));
  if (hook_ != nullptr) hook_->begin_iteration();
  if (!options_.static_graph) exchange_reached(false);
  if (!at_the_end_) launch_ready();
}

// Exchanges which parameters are reached on any rank, or, if at_the_end is true, which gradients any rank
// has computed. In a static graph the ranks know this after the first backward.
void Reducer::exchange_reached(bool at_the_end) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    reached_.set(i, (at_the_end ? parameter.received : parameter.expected > 0) ||
                        (parameter.accumulated && named_[i].tensor.grad().defined()));
  }
  exchange_ = reached_.exchange(group_);
}

bool Reducer::know_reached(bool wait) {
  if (!exchange_) return true;
  if (!wait && !exchange_->ready()) return false;
  std::exchange(exchange_, std::nullopt)->get();
  if (!reached_.agreed()) throw buckets_.difference(group_);
  return true;
}

void Reducer::launch_ready() {
  while (!reductions_->all_launched() && reductions_->next_is_complete()) {
    const auto& parameters = buckets_.parameters(reductions_->next());
    const auto is_expected = [&](std::size_t index)
                                 WEFT_REQUIRES(mutex_) { return parameters_[index].expected > 0; };
    if (std::any_of(parameters.begin(), parameters.end(), is_expected)) {
      launch_next();
    } else if (know_reached(false)) {
      skip_or_launch_next();
    } else {
      return;  // called again after the next gradient
    }
  }
}

void Reducer::skip_or_launch_next() {
  reached_.any_of(buckets_.parameters(reductions_->next())) ? launch_next() : reductions_->skip_next();
}

void Reducer::launch_next() {
  const at::NoGradGuard no_grad;
  const auto& parameters = buckets_.parameters(reductions_->next());
  for (const std::size_t index : parameters)
    if (!parameters_[index].received && !named_[index].sparse)
      buckets_.contribute(index, named_[index].tensor.mutable_grad());
  const NamedParameter& first = named_[parameters.front()];
  reductions_->launch_next(first.sparse ? first.tensor.mutable_grad() : at::Tensor());
}

// --- The end of a backward ---

void Reducer::finish() {
  const at::NoGradGuard no_grad;
  if (low_precision_ != nullptr) low_precision_->leave();
  const auto ended_at = std::chrono::steady_clock::now();
  if (!shadows_) compare_graph();
  if (options_.static_graph && !ordered_) exchange_reached(true);
  know_reached(true);
  while (!reductions_->all_launched()) skip_or_launch_next();
  if (!options_.static_graph && on_reduced_ == nullptr) exchange_reached(true);
  reductions_->wait([&](std::size_t bucket) WEFT_REQUIRES(mutex_) {
    if (on_reduced_ != nullptr) publish(bucket);
  });
  know_reached(true);
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) publish(bucket);
  if (other_) std::exchange(other_, std::nullopt)->get();
  reductions_->note(began_at_, stats_);
  reductions_.reset();
  running_ = false;
  ++backwards_;
  if (!std::exchange(ordered_, true)) replan();
  stats_.iteration = backwards_;
  stats_.hook = hook_name_;
  stats_.is_static = is_static_;
  if (!shadows_) stats_.forward = began_at_ - forward_at_;
  stats_.backward = ended_at - began_at_;
  stats_.waited = std::chrono::steady_clock::now() - ended_at;
  stats_.order = order_;
  last_ = stats_;
  report_.add(group_, last_, std::chrono::steady_clock::now() - began_at_);
  if (trial_) decide_overlap();
}

// Whether each parameter got as many gradients as in the first backward.
void Reducer::compare_graph() {
  std::string changed;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (!counted_) parameter.expected_hits = parameter.hits;
    if (parameter.hits != parameter.expected_hits)
      changed += (changed.empty() ? "" : ", ") +
                 counts_text(named_[i].name, parameter.hits, parameter.expected_hits);
  }
  counted_ = true;
  if (changed.empty()) return;
  is_static_ = false;
  if (options_.static_graph) refuse_graph(changed);
}

void Reducer::refuse_graph(const std::string& parameters) const {
  throw rpc::Error(
      rpc::ErrorKind::failed_precondition,
      "DistributedDataParallel: backward computed another number of gradients than the first backward "
      "for " +
          parameters + ": keep the graph the same in each iteration, or leave out Options::static_graph");
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

// Publishes buckets during backward, for an optimizer that steps in backward: those that are reduced and
// whose parameters backward does not use any more. If a hook is set, this happens after backward, because
// the hook may have further steps.
void Reducer::publish_complete() {
  if (hook_ != nullptr || low_precision_ != nullptr || !know_reached(false)) return;
  for (std::size_t bucket = 0; bucket < reductions_->next(); ++bucket) {
    const auto& parameters = buckets_.parameters(bucket);
    if (!reductions_->is_reduced(bucket) || named_[parameters.front()].sparse ||
        !std::all_of(parameters.begin(), parameters.end(),
                     [&](std::size_t index) WEFT_REQUIRES(mutex_) { return parameters_[index].received; }))
      continue;
    reductions_->take(bucket);
    publish(bucket);
  }
}

// Writes the averages to the gradients that the optimizer reads.
void Reducer::publish(std::size_t bucket) {
  if (reductions_->is_skipped(bucket) || published_[bucket]) return;
  published_[bucket] = true;
  buckets_.publish(bucket, reached_,
                   [&](std::size_t index, const at::Tensor& average, bool) WEFT_REQUIRES(mutex_) {
                     parameters_[index].accumulated = false;
                     named_[index].tensor.mutable_grad() = average;
                     if (on_reduced_ != nullptr && !shadows_) on_reduced_(index);
                   });
}

// All ranks take the order of rank 0. Parameters that rank 0 did not reach come last.
void Reducer::replan() {
  std::vector<std::size_t> order = order_;
  for (const std::size_t index : reverse_order(parameters_.size()))
    if (buckets_.has(index) && !parameters_[index].ready) order.push_back(index);
  const std::vector<std::int64_t> own(order.begin(), order.end());
  const auto agreed = group_.broadcast_object(own, 0).get();
  BucketPlan plan = plan_of({agreed.begin(), agreed.end()});
  if (plan != buckets_.plan()) allocate(std::move(plan));
}

void Reducer::shadow() {
  try {
    const at::NoGradGuard no_grad;
    rpc::MutexLock lock(mutex_);
    refresh();  // as the forward of the other ranks does
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].expected = 0;
      if (buckets_.has(i) && !parameters_[i].accumulated) named_[i].tensor.mutable_grad().reset();
    }
    shadows_ = true;
    start_iteration();
    finish();
    for (std::size_t i = 0; i < named_.size(); ++i)
      if (buckets_.has(i)) named_[i].tensor.mutable_grad().reset();
  } catch (...) {
    failed();
    throw;
  }
}

void Reducer::backward_ended() {
  rpc::MutexLock lock(mutex_);
  finish();
}

void Reducer::failed() {
  rpc::MutexLock lock(mutex_);
  running_ = false;
  exchange_.reset();
  other_.reset();
  reductions_.reset();
  group_.abort("backward of rank " + std::to_string(group_.rank()) +
               " failed before all of its gradients were reduced");
}

}  // namespace weft::data_parallel
