#include <weft/parallel/pipeline/internal/stage_parameters.h>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>

namespace weft::pipeline {

using schedule::Action;
using schedule::Op;

namespace {

// A micro-batch belongs to the step that follows the end of its backward.
std::vector<std::vector<int>> batches_of(const schedule::Schedule& schedule, int stage) {
  std::vector<std::vector<int>> batches;
  for (const int rank : schedule.placement[static_cast<std::size_t>(stage)]) {
    std::size_t step = 0;
    for (const Action& each : schedule.ranks[static_cast<std::size_t>(rank)])
      schedule::for_each_part(each, [&](const Action& action) {
        if (action.stage != stage) return;
        if (action.op == Op::optimizer_step) ++step;
        if (action.op != Op::backward && action.op != Op::weight_gradient) return;
        if (batches.size() <= step) batches.resize(step + 1);
        batches[step].push_back(action.microbatch);
      });
  }
  return batches;
}

std::map<int, int> loads_of(const std::vector<Action>& actions, int stage) {
  std::map<int, int> loads;
  for (const Action& action : actions)
    if (action.op == Op::load && action.stage == stage) ++loads[action.version];
  return loads;
}

// Parameters that are shared within the module are in the list once.
std::vector<dist_optim::Parameter> all_parameters_of(const torch::nn::Module& module) {
  std::vector<dist_optim::Parameter> all;
  for (const auto& item : module.named_parameters())
    if (std::none_of(all.begin(), all.end(),
                     [&](const auto& other) { return other.tensor.is_same(item.value()); }))
      all.push_back({item.key(), item.value()});
  return all;
}

}  // namespace

// Adds the gradients of a unit's parameters to the unit, and the gradients of other leaves of the stage to
// `others`.
class StageParameters::ShardGradients final : public dist_autograd::GradientSink {
 public:
  ShardGradients(sharded::ShardedUnits& units, std::size_t unit, LeafGradients& others)
      : units_(units), unit_(unit), others_(others) {
    const auto& trained = units.trained(unit);
    for (std::size_t i = 0; i < trained.size(); ++i) index_[trained[i].tensor.unsafeGetTensorImpl()] = i;
  }
  void accumulate(const at::Tensor& leaf, at::Tensor gradient, std::size_t references) override {
    const auto found = index_.find(leaf.unsafeGetTensorImpl());
    if (found == index_.end()) return others_.accumulate(leaf, std::move(gradient), references);
    units_.add_gradient(unit_, found->second, gradient);
  }

 private:
  sharded::ShardedUnits& units_;
  const std::size_t unit_;
  LeafGradients& others_;
  std::map<const c10::TensorImpl*, std::size_t> index_;
};

StageParameters::StageParameters(const torch::nn::Module& module, const schedule::Schedule& schedule,
                                 int rank, int stage, ParameterOptions options)
    : all_(all_parameters_of(module)),
      parameters_(dist_optim::parameters_of(module)),
      options_(std::move(options)),
      batches_(batches_of(schedule, stage)),
      loads_(loads_of(schedule.ranks[static_cast<std::size_t>(rank)], stage)),
      shard_gradients_(options_.units == nullptr
                           ? nullptr
                           : std::make_unique<ShardGradients>(*options_.units, options_.unit, gradients_)) {
  if (!options_.optimizer) return;
  optimizer_ = std::make_unique<dist_optim::ShadowLeaves>(parameters_, *options_.optimizer);
  versions_.emplace(parameters_);
}

StageParameters::~StageParameters() = default;

dist_autograd::GradientSink& StageParameters::sink() {
  if (shard_gradients_ != nullptr) return *shard_gradients_;
  return gradients_;
}

void StageParameters::make_whole() {
  if (options_.units != nullptr) options_.units->finish_gather(options_.unit);
}

bool StageParameters::shares_gathered_memory(const at::Tensor& tensor) const {
  return options_.units != nullptr && tensor.defined() &&
         std::any_of(all_.begin(), all_.end(),
                     [&](const auto& parameter) { return tensor.is_alias_of(parameter.tensor); });
}

void StageParameters::begin(bool with_backward) {
  loads_left_ = loads_;
  if (options_.units != nullptr) return;
  follow_parameters();
  if (with_backward) start_comparison();
  if (optimizer_ == nullptr) return;
  const auto newest = versions_->newest();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.is_alias_of((*newest)[i])) continue;
    first_ = 0;
    versions_.emplace(parameters_);
    return optimizer_->move_to(*versions_->newest());
  }
}

// The optimizer keeps the parameters that were frozen, and their state.
void StageParameters::follow_parameters() {
  std::vector<dist_optim::Parameter> now;
  auto known = parameters_.begin();  // in the order of all_
  bool is_equal = true;
  for (const dist_optim::Parameter& parameter : all_) {
    const bool was_there = known != parameters_.end() && known->tensor.is_same(parameter.tensor);
    if (was_there) ++known;
    const bool is_there = parameter.tensor.requires_grad() || (was_there && optimizer_ != nullptr);
    if (is_there) now.push_back(parameter);
    is_equal = is_equal && is_there == was_there;
  }
  if (is_equal) return;
  if (optimizer_ != nullptr) {
    auto larger = std::make_unique<dist_optim::ShadowLeaves>(now, *options_.optimizer);
    larger->set_state(optimizer_->state());
    optimizer_ = std::move(larger);
    versions_.emplace(now);
    first_ = 0;
  }
  parameters_ = std::move(now);
}

void StageParameters::start_comparison() {
  if (!options_.group || all_.empty()) return;
  at::Tensor found = at::empty({2, static_cast<std::int64_t>(all_.size())}, at::kInt);
  auto marks = found.accessor<int, 2>();
  auto next = parameters_.begin();  // in the order of all_
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const bool trains = next != parameters_.end() && next->tensor.is_same(all_[i].tensor);
    if (trains) ++next;
    marks[0][static_cast<std::int64_t>(i)] = trains;
    marks[1][static_cast<std::int64_t>(i)] = !trains;
  }
  auto done = options_.group->all_reduce(found, collectives::ReduceOp::max, options_.timeout);
  comparison_.emplace(Comparison{std::move(found), std::move(done)});
}

void StageParameters::finish_comparison() {
  if (!comparison_) return;
  Comparison comparison = *std::exchange(comparison_, std::nullopt);
  std::move(comparison.done).get();
  const auto marks = comparison.found.accessor<int, 2>();
  for (std::size_t i = 0; i < all_.size(); ++i)
    if (marks[0][static_cast<std::int64_t>(i)] + marks[1][static_cast<std::int64_t>(i)] == 2)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "the parameter " + all_[i].name +
                           " requires grad on some of the ranks that have the stage, and not on others: "
                           "freeze and unfreeze it on all of them between the same steps");
}

void StageParameters::run(const Action& action, const std::vector<double>& shares) {
  if (options_.units != nullptr) return run_sharded(action.op);
  const at::NoGradGuard no_grad;
  switch (action.op) {
    case Op::stash:
      stashed_.insert(newest_);
      return;
    case Op::load:
      return load(action.version);
    case Op::optimizer_step:
      return step(shares);
    case Op::reduce_gradient:
      return start_reduction();
    case Op::wait_reduce_gradient:
      return finish_reduction();
    default:
      return;
  }
}

void StageParameters::run_sharded(Op op) {
  sharded::ShardedUnits& units = *options_.units;
  switch (op) {
    case Op::unshard:
      return units.start_gather(options_.unit);
    case Op::reshard:
      at::autocast::clear_cache();  // the cache has casts of the parameters
      return units.split(options_.unit);
    case Op::reduce_gradient:
      return units.start_reduction(options_.unit);
    case Op::wait_reduce_gradient:
      return units.finish_reductions(options_.unit);
    default:
      return;
  }
}

void StageParameters::load(int version) {
  if (!versions_) return;
  --loads_left_[version];
  const int before = std::exchange(loaded_, version);
  versions_->load(first_ + static_cast<unsigned>(version));
  at::autocast::clear_cache();  // it has casts of the other version
  if (before != version && before != newest_ && loads_left_[before] == 0)
    versions_->drop(first_ + static_cast<unsigned>(before));
}

void StageParameters::step(const std::vector<double>& shares) {
  if (optimizer_ == nullptr) return;
  double share = 0;
  if (const auto at = static_cast<std::size_t>(newest_); at < batches_.size())
    for (const int microbatch : batches_[at])
      if (const auto index = static_cast<std::size_t>(microbatch); index < shares.size())
        share += shares[index];
  if (!options_.mean_loss || share == 0) share = 1;
  dist_optim::Gradients gradients;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (const at::Tensor gradient = gradients_.take(parameters_[i].tensor); gradient.defined())
      gradients[i] = share == 1 ? gradient : gradient / share;

  const auto next = first_ + static_cast<unsigned>(newest_) + 1;
  optimizer_->check(gradients);
  if (stashed_.contains(newest_)) {
    auto copy = versions_->copy_newest();
    optimizer_->move_to(copy);
    versions_->advance_to(next, std::move(copy));
  } else {
    versions_->advance_in_place(next);
  }
  ++newest_;
  if (!gradients.empty()) optimizer_->step(gradients);
  ++loads_left_[newest_];  // load() counts one down
  load(newest_);
}

void StageParameters::start_reduction() {
  finish_comparison();
  if (!options_.group || parameters_.empty()) return;
  Reduction reduction;
  std::vector<double> has_gradient;
  for (const dist_optim::Parameter& parameter : parameters_) {
    const at::Tensor gradient = gradients_.take(parameter.tensor);
    has_gradient.push_back(gradient.defined() ? 1 : 0);
    reduction.gradients.push_back(gradient.defined()
                                      ? gradient.to_dense().contiguous()
                                      : at::zeros_like(parameter.tensor, at::MemoryFormat::Contiguous));
  }
  reduction.has_gradient = at::tensor(has_gradient).to(reduction.gradients.front().options());
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;  // a collective has one type
  by_type[reduction.has_gradient.scalar_type()].push_back(reduction.has_gradient);
  for (const at::Tensor& gradient : reduction.gradients) by_type[gradient.scalar_type()].push_back(gradient);
  for (auto& [type, gradients] : by_type)
    reduction.done.push_back(options_.group->all_reduce(std::move(gradients), options_.op, options_.timeout));
  reduction_ = std::move(reduction);
}

void StageParameters::finish_reduction() {
  if (!reduction_) return;
  Reduction reduction = *std::exchange(reduction_, std::nullopt);
  for (rpc::Future<void>& done : reduction.done) done.get();
  const at::Tensor has_gradient = reduction.has_gradient.cpu();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (has_gradient[static_cast<std::int64_t>(i)].item<double>() > 0)
      gradients_.accumulate(parameters_[i].tensor, std::move(reduction.gradients[i]), 1);
}

void StageParameters::publish() {
  if (!options_.optimizer) gradients_.publish();
  keep_newest_alone();
}

void StageParameters::clear() {
  gradients_.clear();
  comparison_.reset();
  reduction_.reset();
  keep_newest_alone();
}

void StageParameters::keep_newest_alone() {
  if (!versions_) return;
  const auto newest = first_ + static_cast<unsigned>(newest_);
  // Otherwise the module may have memory that the program has given it since the last step.
  if (loaded_ != newest_) versions_->load(newest);
  for (const int version : stashed_) versions_->drop(first_ + static_cast<unsigned>(version));
  first_ = newest;
  newest_ = loaded_ = 0;
  stashed_.clear();
}

dist_optim::StepTarget& optimizer_of(const std::string& executor, std::map<int, StageParameters>& parameters,
                                     int stage) {
  const auto own = parameters.find(stage);
  if (own == parameters.end() || own->second.optimizer() == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     executor + ": no optimizer of stage " + std::to_string(stage) +
                         " is here: give one in the options, on the stage's rank");
  return *own->second.optimizer();
}

}  // namespace weft::pipeline
