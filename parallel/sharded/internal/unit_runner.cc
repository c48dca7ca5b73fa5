#include <weft/parallel/sharded/internal/unit_runner.h>

#include <weft/parallel/training/internal/engine_hook.h>
#include <weft/rpc/core/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace weft::sharded {

using rpc::Error;
using rpc::ErrorKind;

namespace {

std::uint64_t hash_of(const std::vector<std::size_t>& units) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, by word
  for (const std::size_t unit : units) hash = (hash ^ unit) * 0x100000001b3;
  return hash;
}

}  // namespace

// One forward of the module; lives as long as its graph. The ranks compare the orders of its blocks.
struct UnitRunner::Iteration {
  std::vector<std::size_t> order;  // units, without unit 0
  bool with_grad = false;
  bool reduces = true;  // its backward
  struct Comparison {
    at::Tensor own, all;
    rpc::Future<void> done;
  };
  std::vector<Comparison> comparisons = {};  // over the ranks, and over the replicas

  void compare(const collectives::Group& group);
  void expect_equal();  // failed_precondition on all ranks
};

void UnitRunner::Iteration::compare(const collectives::Group& group) {
  Comparison comparison{at::full({2}, static_cast<std::int64_t>(hash_of(order)), at::kLong),
                        at::empty({group.size(), 2}, at::kLong),
                        {}};
  comparison.own[1] = reduces ? 1 : 0;
  comparison.done = group.all_gather(comparison.all, comparison.own);
  comparisons.push_back(std::move(comparison));
}

void UnitRunner::Iteration::expect_equal() {
  const auto refuse = [](std::int64_t rank, const std::string& what) {
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: rank " + std::to_string(rank) + what);
  };
  for (Comparison& comparison : std::exchange(comparisons, {})) {
    std::move(comparison.done).get();
    const auto all = comparison.all.accessor<std::int64_t, 2>();
    for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
      if (all[rank][0] != all[0][0])
        refuse(rank, " has run the blocks in another order than rank 0, expected the same one on all ranks");
      if (all[rank][1] != all[0][1])
        refuse(rank, std::string(" has run a forward ") +
                         (all[rank][1] == 0 ? "within no_sync(), rank 0 outside of it"
                                            : "outside of no_sync(), rank 0 within it") +
                         ", expected the same on all ranks");
    }
  }
}

namespace {

std::vector<std::string> names_of(const std::vector<UnitParameters>& units) {
  std::vector<std::string> names;
  for (const UnitParameters& unit : units) names.push_back(unit.name);
  return names;
}

// Unit 0 uses other buffers than the blocks, since it is whole for all of forward and backward.
std::vector<UnitParameters> with_buffers(std::vector<UnitParameters> units) {
  for (std::size_t unit = 1; unit < units.size(); ++unit) units[unit].buffers = 1;
  return units;
}

}  // namespace

std::shared_ptr<UnitRunner> UnitRunner::make(ShardSetup setup, std::vector<UnitParameters> units,
                                             bool splits_after_forward) {
  std::shared_ptr<UnitRunner> runner(
      new UnitRunner(std::move(setup), std::move(units), splits_after_forward));
  runner->hook();
  return runner;
}

// A parameter may begin to require grad, and gets another accumulator if its memory is replaced by memory of
// another type. A parameter that is frozen keeps its hook, for the backwards of earlier forwards.
void UnitRunner::hook() {
  if (hooks_) return hooks_->refresh();
  std::vector<data_parallel::NamedParameter> parameters;
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    for (std::size_t i = 0; i < units_.trained(unit).size(); ++i) {
      parameter_indices_.push_back({unit, i});
      parameters.push_back(units_.trained(unit)[i]);
    }
  hooks_.emplace(std::move(parameters), nullptr,
                 [weak = weak_from_this()](std::size_t parameter, bool defined) {
                   if (const auto self = weak.lock()) self->accumulated(parameter, defined);
                 });
}

UnitRunner::UnitRunner(ShardSetup setup, std::vector<UnitParameters> units, bool splits_after_forward)
    : names_(names_of(units)),
      splits_after_forward_(splits_after_forward),
      units_(std::move(setup), with_buffers(std::move(units))),
      kept_(units_.size()),
      in_backward_(units_.size()) {
  predict_order();
}

// Predicts the order for the first forward. All ranks predict the same order.
void UnitRunner::predict_order() {
  last_order_.resize(units_.size() - 1);
  std::iota(last_order_.begin(), last_order_.end(), std::size_t{1});
}

void UnitRunner::set_groups(ShardGroups groups) {
  std::lock_guard lock(mutex_);
  if (in_forward_ || running_ || gathered_ > 0)
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: set_group() within gather(), forward or backward, expected it "
                "between iterations");
  units_.set_groups(std::move(groups));
  iteration_.reset();
  iterations_.clear();
  predict_order();
}

std::size_t UnitRunner::bytes() const {
  std::lock_guard lock(mutex_);
  return units_.bytes();
}

// --- Whole parameters ---

void UnitRunner::split(std::size_t unit) {
  if (kept_[unit] == 0) units_.split(unit);
}

void UnitRunner::split_all() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) split(unit);
}

// Ranks that gathered other units than each other would mix their elements.
void UnitRunner::expect_equal_gathers(rpc::Result<std::vector<std::size_t>>& units, std::optional<int> root,
                                      bool keeps_changes) {
  const collectives::Group& group = units_.setup().groups.gathers;
  std::uint64_t hash = 0;
  if (units.ok()) {
    hash = hash_of(units.value());
    const int others = 2 * (root ? *root + 1 : 0) + int{keeps_changes};
    hash = (hash ^ static_cast<std::uint64_t>(others)) * 0x100000001b3 | 1;
  }
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, static_cast<std::int64_t>(hash), at::kLong)).get();
  if (!units.ok()) std::rethrow_exception(units.error());
  for (std::int64_t rank = 0; rank < group.size(); ++rank)
    if (all[rank].item<std::int64_t>() != all[group.rank()].item<std::int64_t>())
      throw Error(ErrorKind::failed_precondition,
                  "FullyShardedDataParallel: gather(): rank " + std::to_string(rank) +
                      " has other blocks, another root or other changes than rank " +
                      std::to_string(group.rank()) +
                      ", or an error; expected the same arguments on all ranks");
}

UnitRunner::KeptWhole UnitRunner::keep_whole(rpc::Result<std::vector<std::size_t>> units,
                                             std::optional<int> root, bool keeps_changes) {
  std::lock_guard lock(mutex_);
  if (in_forward_ || running_)
    throw Error(
        ErrorKind::failed_precondition,
        "FullyShardedDataParallel: gather() within forward or backward, expected it between iterations");
  if (on_one_rank_ || (root && gathered_ > 0))
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: a gather() on one rank together with another gather(), expected "
                "the guard of the first one to end before");
  KeptWhole kept{.is_here = !root || *root == units_.setup().groups.gathers.rank(),
                 .on_one_rank = root.has_value()};
  expect_equal_gathers(units, root, keeps_changes);
  try {
    split_all();  // parameters may have changed
    units_.take_replaced();
    for (const std::size_t unit : units.value()) units_.start_gather(unit, root);
    for (const std::size_t unit : units.value()) units_.finish_gather(unit, root);
    units_.wait_for_all();
  } catch (const std::exception& error) {
    abort(std::string("gather() failed: ") + error.what());
    throw;
  }
  ++gathered_;
  on_one_rank_ = kept.on_one_rank;
  kept.units = std::move(units).get();
  for (const std::size_t unit : kept.units) {
    if (kept.is_here) ++kept_[unit];
    if (keeps_changes) kept.before.push_back(units_.own_elements(unit));
  }
  return kept;
}

void UnitRunner::take_replaced() {
  std::lock_guard lock(mutex_);
  if (gathered_ == 0) units_.take_replaced();
}

bool UnitRunner::set_reduces(bool on) {
  std::lock_guard lock(mutex_);
  return std::exchange(next_reduces_, on);
}

// Called by a destructor: if the program has given a parameter memory that cannot be its, the next forward or
// gather() reports it.
void UnitRunner::release_whole(const KeptWhole& kept) {
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < kept.before.size(); ++i)
    (void)rpc::capture([&] { units_.keep_changes(kept.units[i], kept.before[i]); });
  --gathered_;
  if (kept.on_one_rank) on_one_rank_ = false;
  for (const std::size_t unit : kept.units)
    if (kept.is_here) --kept_[unit];
  // The gather of a unit fails if a forward has thrown meanwhile. The next use of the module reports it.
  for (std::size_t unit = 0; unit < units_.size(); ++unit) (void)rpc::capture([&] { split(unit); });
  for (const std::size_t unit : kept.units)
    if (kept.before.empty() && kept_[unit] == 0) (void)rpc::capture([&] { units_.drop_replaced(unit); });
}

// If this rank fails where the others run collectives, they fail too, and do not wait for their timeout.
void UnitRunner::abort(const std::string& what) const {
  units_.abort("rank " + std::to_string(units_.setup().groups.gathers.rank()) + ": " + what);
}

// --- Forward ---

void UnitRunner::begin_forward() {
  std::lock_guard lock(mutex_);
  if (on_one_rank_)
    throw Error(
        ErrorKind::failed_precondition,
        "FullyShardedDataParallel: a forward within a gather() on one rank, expected its guard to end "
        "before");
  in_forward_ = true;
  units_.check_ended();  // of forwards without a backward
  split_all();           // parameters may have changed
  take_replaced();
  units_.train_thawed();
  hook();
  iteration_ = std::make_shared<Iteration>();
  iteration_->with_grad = at::GradMode::is_enabled();
  iteration_->reduces = next_reduces_;
  units_.finish_gather(0);
  if (!last_order_.empty()) units_.start_gather(last_order_.front());
}

void UnitRunner::before_forward(std::size_t unit) {
  std::lock_guard lock(mutex_);
  const bool is_recomputation = data_parallel::in_backward();
  if (!in_forward_ && !is_recomputation && kept_[unit] == 0)
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: the " + names_[unit] +
                    " runs outside of the module's forward, expected fsdp.forward(), or gather() before it");
  // The ranks gather in the order of the sequence, and some of them may not run the block again.
  if (is_recomputation && running_ && in_backward_[unit].place)
    start_gathers(std::min(*in_backward_[unit].place + 2, sequence_.size()));
  units_.finish_gather(unit);
  if (!in_forward_ || is_recomputation) return;
  std::vector<std::size_t>& order = iteration_->order;
  order.push_back(unit);
  if (order.size() < last_order_.size() && last_order_[order.size() - 1] == unit)
    units_.start_gather(last_order_[order.size()]);
}

void UnitRunner::watch(std::size_t unit, const at::Tensor& output) {
  if (!output.defined() || output.grad_fn() == nullptr || data_parallel::in_backward()) return;
  std::lock_guard lock(mutex_);
  if (!in_forward_) return;
  training::call_before(*output.grad_fn(), [weak = weak_from_this(), unit, iteration = iteration_] {
    if (const auto self = weak.lock()) self->before_backward(unit, iteration);
  });
}

void UnitRunner::after_forward(std::size_t unit) {
  std::lock_guard lock(mutex_);
  if (data_parallel::in_backward() || !in_forward_) return;
  // Backward begins with the last unit.
  const bool is_last = iteration_->with_grad && iteration_->order == last_order_;
  if (!is_last && (splits_after_forward_ || !iteration_->with_grad)) split(unit);
}

void UnitRunner::end_forward() {
  std::lock_guard lock(mutex_);
  in_forward_ = false;
  last_order_ = iteration_->order;
  iteration_->compare(units_.setup().groups.reductions);
  if (units_.setup().groups.replicas) iteration_->compare(*units_.setup().groups.replicas);
  if (!iteration_->with_grad) {
    split_all();
    units_.wait_for_all();
    return expect_equal(*iteration_);
  }
  if (!splits_after_forward_) return;
  // Drops gathers that the prediction started and no block has used.
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    if (units_.is_gathering(unit)) split(unit);
}

void UnitRunner::leave_forward() {
  std::lock_guard lock(mutex_);
  if (!std::exchange(in_forward_, false)) return;
  const auto& groups = units_.setup().groups;
  if (groups.gathers.size() > 1 || groups.replicas) abort("a forward of the module threw an exception");
}

// If the orders of the ranks differ, the ranks have gathered different blocks with each other. The groups are
// aborted, so that this does not happen again.
void UnitRunner::expect_equal(Iteration& iteration) const {
  try {
    iteration.expect_equal();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::failed_precondition) units_.abort(error.what());
    throw;
  }
}

// --- Backward ---

void UnitRunner::before_backward(std::size_t unit, const std::shared_ptr<Iteration>& iteration) {
  const auto backward = std::make_shared<Backward>(weak_from_this());  // outlives the lock
  std::lock_guard lock(mutex_);
  if (!running_) start_in_engine(backward, iteration);
  add_to_sequence(iteration);
  launch_ready();
  units_.finish_gather(0);
  const std::size_t place = unit == 0 ? 0 : *in_backward_[unit].place + 1;
  start_gathers(std::min(place + 1, sequence_.size()));  // and the gather of the next unit
  if (unit == 0) return;
  // If the unit has been split again, this rank computes no gradient for it.
  if (units_.is_gathering(unit)) units_.finish_gather(unit);
  // After these units, at least two others have started their backward.
  for (std::size_t i = 0; i + 3 <= place; ++i)
    if (const std::size_t other = sequence_[i]; in_backward_[other].launched || !units_.trains(other))
      split(other);
}

void UnitRunner::start_in_engine(const std::shared_ptr<Backward>& backward,
                                 const std::shared_ptr<Iteration>& iteration) {
  if (!data_parallel::in_backward())
    throw Error(ErrorKind::unsupported,
                "FullyShardedDataParallel: its gradients are computed by a dist_autograd::Pass, expected "
                "backward() of LibTorch");
  const std::vector<std::size_t> expected = hooks_->expected();
  writes_gradients_ =
      !data_parallel::is_partial_backward() ||
      std::any_of(expected.begin(), expected.end(), [](std::size_t count) { return count > 0; });
  if ((writes_gradients_ || on_one_rank_) && gathered_ > 0)
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: backward within gather(), expected its guard to end before");
  if (iteration != nullptr) expect_equal(*iteration);
  reduces_ = iteration == nullptr || iteration->reduces;
  backward->start();
  running_ = true;
  iterations_.clear();
  sequence_.clear();
  next_gather_ = next_reduction_ = 0;
  in_backward_.assign(units_.size(), {});
  for (std::size_t i = 0; i < parameter_indices_.size(); ++i)
    in_backward_[parameter_indices_[i].unit].expected += expected[i] > 0 ? 1 : 0;
  if (iteration != nullptr) add_to_sequence(iteration);
}

// A backward may reach several forwards.
void UnitRunner::add_to_sequence(const std::shared_ptr<Iteration>& iteration) {
  if (std::find(iterations_.begin(), iterations_.end(), iteration) != iterations_.end()) return;
  expect_equal(*iteration);
  if (iteration->reduces != reduces_)
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: a backward reaches forwards within and outside of no_sync(), "
                "expected a backward for each");
  iterations_.push_back(iteration);
  for (auto unit = iteration->order.rbegin(); unit != iteration->order.rend(); ++unit)
    if (!in_backward_[*unit].place) {
      in_backward_[*unit].place = sequence_.size();
      sequence_.push_back(*unit);
    }
}

void UnitRunner::start_gathers(std::size_t end) {
  for (; next_gather_ < end; ++next_gather_) {
    const std::size_t unit = sequence_[next_gather_];
    units_.start_gather(unit);
    if (in_backward_[unit].launched && !may_be_used_after_gradients(unit)) split(unit);
  }
}

void UnitRunner::accumulated(std::size_t parameter, bool defined) {
  const at::NoGradGuard no_grad;
  const auto backward = std::make_shared<Backward>(weak_from_this());
  std::lock_guard lock(mutex_);
  // A loss node that uses a parameter may run before the nodes of the module's outputs.
  const bool has_iteration = iteration_ != nullptr && iteration_->with_grad;
  if (!running_) start_in_engine(backward, has_iteration ? iteration_ : nullptr);
  const auto [unit, index] = parameter_indices_[parameter];
  const auto& [name, tensor, sparse] = units_.trained(unit)[index];
  if (in_backward_[unit].launched)
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: parameter " + name +
                    " got a gradient after its unit was reduced: a nested backward (a re-entrant checkpoint) "
                    "computed it, expected one backward");
  if (defined && tensor.grad().defined()) {
    units_.add_gradient(unit, index, tensor.grad());
    tensor.mutable_grad().reset();
  }
  ++in_backward_[unit].received;
  launch_ready();
}

void UnitRunner::launch_ready() {
  for (; writes_gradients_ && next_reduction_ < sequence_.size(); ++next_reduction_) {
    const std::size_t unit = sequence_[next_reduction_];
    if (in_backward_[unit].received < in_backward_[unit].expected) return;
    // A rank that computes gradients of these blocks gathers the next one before it reduces this one. A rank
    // that does not must not wait for reductions before it has started that gather.
    start_gathers(std::min(next_reduction_ + 2, sequence_.size()));
    launch(unit);
  }
}

// Whether backward may use a parameter of the unit after it has computed the unit's last gradient: a
// parameter that gets no gradient.
bool UnitRunner::may_be_used_after_gradients(std::size_t unit) const {
  return units_.is_frozen_in_part(unit) || in_backward_[unit].expected < units_.trained(unit).size();
}

void UnitRunner::launch(std::size_t unit) {
  InBackward& state = in_backward_[unit];
  if (!units_.trains(unit) || std::exchange(state.launched, true)) return;
  reduces_ ? units_.start_reduction(unit) : units_.keep_gradients(unit);
  const bool is_gathered = state.place && *state.place < next_gather_;
  if (is_gathered && !may_be_used_after_gradients(unit)) split(unit);
}

void UnitRunner::finish() {
  const at::NoGradGuard no_grad;
  start_gathers(sequence_.size());  // other ranks may wait for them
  if (!writes_gradients_) {         // torch::autograd::grad() of other tensors
    split_all();
    units_.wait_for_all();
    running_ = false;
    return;
  }
  for (; next_reduction_ < sequence_.size(); ++next_reduction_) launch(sequence_[next_reduction_]);
  std::vector<std::size_t> all(units_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (!reduces_) {
    for (const std::size_t unit : all) launch(unit);
    split_all();
    units_.wait_for_all();
    running_ = false;
    return;
  }
  const auto has_gradients = units_.exchange_gradients(all);
  for (const std::size_t unit : all) {  // unit 0, and blocks outside of the sequence
    const auto& has = has_gradients[unit];
    if (std::find(has.begin(), has.end(), true) != has.end()) launch(unit);
  }
  units_.finish_reductions();
  units_.wait_for_all();
  for (const std::size_t unit : all)
    if (in_backward_[unit].launched) units_.publish(unit, has_gradients[unit]);
  split_all();
  running_ = false;
}

void UnitRunner::backward_ended() {
  std::lock_guard lock(mutex_);
  finish();
}

void UnitRunner::failed() {
  std::lock_guard lock(mutex_);
  running_ = false;
  units_.abort("backward of rank " + std::to_string(units_.setup().groups.gathers.rank()) +
               " failed before all of its gradients were reduced");
  units_.drop();
}

}  // namespace weft::sharded
