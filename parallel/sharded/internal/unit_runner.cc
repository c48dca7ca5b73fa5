#include <weft/parallel/sharded/internal/unit_runner.h>

#include <weft/parallel/data_parallel/engine_hook.h>
#include <weft/rpc/core/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

namespace weft::sharded {

using data_parallel::CommunicationStream;
using rpc::Error;
using rpc::ErrorKind;

struct UnitRunner::Buffers {
  explicit Buffers(const Setup& setup)
      : whole(setup.gathers), sent(setup.gathers), gradients(setup.reductions), reduced(setup.reductions) {}

  void announce(const FlatShard& shard) {
    const auto [part, elements] = std::pair(shard.layout().part, shard.layout().elements());
    whole.announce(shard.gathered(), elements);
    sent.announce(shard.gathered(), part);
    if (!shard.trains()) return;
    gradients.announce(shard.gradients(), elements);
    reduced.announce(shard.gradients(), part);
  }
  std::size_t bytes() const { return whole.bytes() + sent.bytes() + gradients.bytes() + reduced.bytes(); }

  BufferPool whole, sent;         // parameters, and parts in another type than theirs
  BufferPool gradients, reduced;  // and parts of them, if the gradients of the parts have values
};

struct UnitRunner::Unit {
  enum class State { split, gathering, whole };

  std::string name;
  Buffers* buffers = nullptr;
  std::vector<FlatShard> shards;
  State state = State::split;
  std::vector<at::Tensor> whole, sent;  // by shard, while it is not split; sent: parts in the type of `whole`
  std::vector<rpc::Future<void>> gathers;

  // Of the backward that runs.
  std::size_t expected = 0, received = 0;  // gradients
  bool reduces = false, launched = false;
  std::vector<at::Tensor> gradients;  // by shard; undefined before the first one

  bool trains() const {
    return std::any_of(shards.begin(), shards.end(), [](const FlatShard& shard) { return shard.trains(); });
  }
  bool is_frozen_in_part() const {
    return std::any_of(shards.begin(), shards.end(),
                       [](const FlatShard& shard) { return shard.is_frozen_in_part(); });
  }
};

// One forward of the module, as long as its graph lives.
struct UnitRunner::Iteration {
  std::vector<std::size_t> order;  // units, without unit 0
  bool with_grad = false;
  // The ranks compare their orders, before the first backward.
  at::Tensor own_order = {}, orders = {};
  std::optional<rpc::Future<void>> comparison = {};

  void compare(const collectives::Group& group);
  void expect_equal_orders();
};

void UnitRunner::Iteration::compare(const collectives::Group& group) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, by word
  for (const std::size_t unit : order) hash = (hash ^ unit) * 0x100000001b3;
  own_order = at::full({1}, static_cast<std::int64_t>(hash), at::kLong);
  orders = at::empty({group.size()}, at::kLong);
  comparison = group.all_gather(orders, own_order);
}

void UnitRunner::Iteration::expect_equal_orders() {
  if (!comparison) return;
  std::exchange(comparison, std::nullopt)->get();
  const auto* const of_rank = orders.const_data_ptr<std::int64_t>();
  for (std::int64_t rank = 0; rank < orders.numel(); ++rank)
    if (of_rank[rank] != of_rank[0])
      throw Error(ErrorKind::failed_precondition,
                  "FullyShardedDataParallel: rank " + std::to_string(rank) +
                      " has run the blocks in another order than rank 0, expected the same one on all ranks");
}

struct UnitRunner::Reduction {
  Unit* unit;
  std::size_t shard;
  at::Tensor output;  // a part
  bool is_direct;
  rpc::Future<void> done;
};

// Held by the callback of a backward. If the engine drops the callback without a call, backward has failed.
class UnitRunner::Ending {
 public:
  explicit Ending(std::weak_ptr<UnitRunner> runner) : runner_(std::move(runner)) {}
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  ~Ending() {
    if (const auto runner = started_ ? runner_.lock() : nullptr)
      (void)rpc::capture([&] { runner->failed(); });
  }
  void start() { started_ = true; }
  void finish() {
    const auto runner = runner_.lock();
    if (runner == nullptr) return;
    std::lock_guard lock(runner->mutex_);
    runner->finish();  // if it throws, failed() follows
    started_ = false;
  }

 private:
  const std::weak_ptr<UnitRunner> runner_;
  bool started_ = false;
};

namespace {

// Parameters of one type and device, which all require grad or all do not, in the order of the first ones.
std::vector<std::vector<data_parallel::NamedParameter>> by_kind(
    const std::vector<data_parallel::NamedParameter>& parameters) {
  std::vector<std::vector<data_parallel::NamedParameter>> kinds;
  for (const auto& each : parameters) {
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) {
      const at::Tensor& first = kind.front().tensor;
      return first.dtype() == each.tensor.dtype() && first.device() == each.tensor.device() &&
             first.requires_grad() == each.tensor.requires_grad();
    });
    same == kinds.end() ? kinds.push_back({each}) : same->push_back(each);
  }
  return kinds;
}

}  // namespace

std::shared_ptr<UnitRunner> UnitRunner::make(Setup setup, std::vector<UnitParameters> units) {
  std::shared_ptr<UnitRunner> runner(new UnitRunner(std::move(setup), std::move(units)));
  std::vector<data_parallel::NamedParameter> trained;
  for (const Place& place : runner->places_)
    trained.push_back(runner->units_[place.unit]->shards[place.shard].parameters()[place.index]);
  runner->hooks_.emplace(std::move(trained), nullptr,
                         [weak = std::weak_ptr(runner)](std::size_t parameter, bool defined) {
                           if (const auto self = weak.lock()) self->accumulated(parameter, defined);
                         });
  return runner;
}

UnitRunner::UnitRunner(Setup setup, std::vector<UnitParameters> units) : setup_(std::move(setup)) {
  c10::Device first_device(at::kCPU);
  for (int i = 0; i < 2; ++i) buffers_.push_back(std::make_unique<Buffers>(setup_));
  for (UnitParameters& each : units) {
    Unit& unit = *units_.emplace_back(std::make_unique<Unit>());
    unit.name = std::move(each.name);
    unit.buffers = buffers_[units_.size() == 1 ? 0 : 1].get();
    for (auto& parameters : by_kind(each.parameters)) {
      const FlatShard& shard = unit.shards.emplace_back(std::move(parameters), setup_.gathers, setup_.types);
      const auto device = shard.gathered().device();
      if (!gather_stream_) {
        first_device = device;
        gather_stream_.emplace(device);
        reduce_stream_.emplace(device);
        on_device_ = !device.is_cpu();
      }
      if (device != first_device)
        throw Error(ErrorKind::unsupported,
                    "FullyShardedDataParallel: parameter " + shard.parameters().front().name + " is on " +
                        device.str() + ", others on " + first_device.str() + ", expected one device");
      unit.buffers->announce(shard);
      if (!shard.trains()) continue;
      for (std::size_t i = 0; i < shard.parameters().size(); ++i)
        places_.push_back({units_.size() - 1, unit.shards.size() - 1, i});
    }
    if (units_.size() > 1) last_order_.push_back(units_.size() - 1);
  }
}

UnitRunner::~UnitRunner() = default;

std::vector<const FlatShard*> UnitRunner::shards() const {
  std::vector<const FlatShard*> shards;
  for (const auto& unit : units_)
    for (const FlatShard& shard : unit->shards) shards.push_back(&shard);
  return shards;
}

std::size_t UnitRunner::bytes() const {
  std::lock_guard lock(mutex_);
  std::size_t bytes = buffers_[0]->bytes() + buffers_[1]->bytes();
  for (const FlatShard* shard : shards()) bytes += shard->bytes();
  return bytes;
}

void UnitRunner::abort(const std::string& reason) const {
  setup_.gathers.abort(reason);
  setup_.reductions.abort(reason);
  if (setup_.replicas) setup_.replicas->abort(reason);
}

// --- Whole parameters ---

void UnitRunner::start_gather(Unit& unit) {
  if (unit.state != Unit::State::split) return;
  const at::NoGradGuard no_grad;
  for (FlatShard& shard : unit.shards) {
    const at::Tensor& whole =
        unit.whole.emplace_back(unit.buffers->whole.take(shard.gathered(), shard.layout().elements()));
    at::Tensor& sent = unit.sent.emplace_back(shard.part());
    if (!shard.is_sent_as_is()) {
      sent = unit.buffers->sent.take(shard.gathered(), shard.layout().part);
      sent.copy_(shard.part(), /*non_blocking=*/true);
    }
    gather_stream_->note_writer();
    gather_stream_->follow_writers();
    unit.gathers.push_back(gather_stream_->run([&] { return setup_.gathers.all_gather(whole, sent); }));
  }
  unit.state = Unit::State::gathering;
}

void UnitRunner::settle(rpc::Future<void> done, const CommunicationStream& stream) {
  if (!on_device_) return std::move(done).get();
  stream.begin_reads();
  unchecked_.push_back(std::move(done));
}

// A device runs on after an error, with elements that are not there.
void UnitRunner::expect_settled() {
  for (auto& done : std::exchange(unchecked_, {})) std::move(done).get();
}

void UnitRunner::finish_gather(Unit& unit) {
  start_gather(unit);
  if (unit.state == Unit::State::whole) return;
  for (auto& gather : std::exchange(unit.gathers, {})) settle(std::move(gather), *gather_stream_);
  for (std::size_t i = 0; i < unit.shards.size(); ++i) {
    if (!unit.shards[i].is_sent_as_is()) unit.buffers->sent.give_back(unit.sent[i]);
    unit.shards[i].place(unit.whole[i]);
  }
  unit.sent.clear();
  unit.state = Unit::State::whole;
}

void UnitRunner::split(Unit& unit) {
  if (kept_whole_ > 0) return;
  if (unit.state == Unit::State::gathering) finish_gather(unit);  // nobody needed it
  if (unit.state == Unit::State::split) return;
  for (FlatShard& shard : unit.shards) shard.displace();
  for (const at::Tensor& whole : std::exchange(unit.whole, {})) unit.buffers->whole.give_back(whole);
  unit.state = Unit::State::split;
}

void UnitRunner::split_all() {
  for (const auto& unit : units_) split(*unit);
}

void UnitRunner::keep_whole() {
  std::lock_guard lock(mutex_);
  if (in_forward_ || running_)
    throw Error(
        ErrorKind::failed_precondition,
        "FullyShardedDataParallel: gather() within forward or backward, expected it between iterations");
  split_all();  // parameters may have changed
  for (const auto& unit : units_) start_gather(*unit);
  for (const auto& unit : units_) finish_gather(*unit);
  expect_settled();
  ++kept_whole_;
}

void UnitRunner::release_whole() {
  std::lock_guard lock(mutex_);
  --kept_whole_;
  split_all();
}

// --- Forward ---

void UnitRunner::begin_forward() {
  std::lock_guard lock(mutex_);
  for (const FlatShard* shard : shards()) shard->check_unchanged();
  split_all();  // parameters may have changed
  iteration_ = std::make_shared<Iteration>();
  iteration_->with_grad = at::GradMode::is_enabled();
  in_forward_ = true;
  finish_gather(*units_.front());
  if (!last_order_.empty()) start_gather(*units_[last_order_.front()]);
}

void UnitRunner::before_forward(std::size_t unit) {
  std::lock_guard lock(mutex_);
  const bool is_recomputation = data_parallel::in_backward();
  if (!in_forward_ && !is_recomputation && kept_whole_ == 0)
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: the block " + units_[unit]->name +
                    " runs outside of the module's forward, expected fsdp.forward(), or gather() before it");
  finish_gather(*units_[unit]);
  if (!in_forward_ || is_recomputation) return;
  std::vector<std::size_t>& order = iteration_->order;
  order.push_back(unit);
  if (order.size() < last_order_.size() && last_order_[order.size() - 1] == unit)
    start_gather(*units_[last_order_[order.size()]]);
}

void UnitRunner::watch(std::size_t unit, const at::Tensor& output) {
  if (!output.defined() || output.grad_fn() == nullptr || data_parallel::in_backward()) return;
  std::lock_guard lock(mutex_);
  if (!in_forward_) return;
  const std::size_t position = unit == 0 ? iteration_->order.size() : iteration_->order.size() - 1;
  data_parallel::call_before(*output.grad_fn(),
                             [weak = weak_from_this(), unit, iteration = iteration_, position] {
                               if (const auto self = weak.lock())
                                 self->before_backward(unit, iteration, position);
                             });
}

void UnitRunner::after_forward(std::size_t unit) {
  std::lock_guard lock(mutex_);
  if (data_parallel::in_backward() || !in_forward_) return;
  // Backward begins with the last unit.
  const bool is_last = iteration_->with_grad && iteration_->order == last_order_;
  if (!is_last && (setup_.splits_after_forward || !iteration_->with_grad)) split(*units_[unit]);
}

void UnitRunner::end_forward() {
  std::lock_guard lock(mutex_);
  in_forward_ = false;
  last_order_ = iteration_->order;
  if (iteration_->with_grad) iteration_->compare(setup_.reductions);
  if (!iteration_->with_grad) {
    split_all();
    expect_settled();
  }
  if (!setup_.splits_after_forward) return;
  // Gathers that the prediction began in vain.
  for (const auto& unit : units_)
    if (unit->state == Unit::State::gathering) split(*unit);
}

// --- Backward ---

void UnitRunner::before_backward(std::size_t unit, const std::shared_ptr<Iteration>& iteration,
                                 std::size_t position) {
  const auto ending = std::make_shared<Ending>(weak_from_this());  // outlives the lock
  std::lock_guard lock(mutex_);
  if (!running_) start_in_engine(ending, iteration.get());
  finish_gather(*units_.front());
  finish_gather(*units_[unit]);
  const auto& order = iteration->order;
  if (position > 0) start_gather(*units_[order[position - 1]]);
  // A unit that is frozen in part may still compute when its last gradient is there. By now two others have
  // begun after it.
  for (std::size_t i = position + 2; i < order.size(); ++i)
    if (units_[order[i]]->is_frozen_in_part() && order[i] != unit) split(*units_[order[i]]);
}

void UnitRunner::start_in_engine(const std::shared_ptr<Ending>& ending, Iteration* iteration) {
  if (!data_parallel::in_backward())
    throw Error(ErrorKind::unsupported,
                "FullyShardedDataParallel: its gradients are computed by a dist_autograd::Pass, expected "
                "backward() of LibTorch");
  if (iteration != nullptr) iteration->expect_equal_orders();
  torch::autograd::Engine::get_default_engine().queue_callback([ending] { ending->finish(); });
  ending->start();
  running_ = true;
  reduce_order_.clear();
  next_reduction_ = 0;
  const std::vector<std::size_t> expected = hooks_->expected();
  for (const auto& unit : units_) {
    unit->expected = unit->received = 0;
    unit->reduces = unit->launched = false;
    for (FlatShard& shard : unit->shards) shard.forget_gradients();
  }
  for (std::size_t i = 0; i < places_.size(); ++i)
    units_[places_[i].unit]->expected += expected[i] > 0 ? 1 : 0;
  writes_gradients_ =
      !data_parallel::is_partial_backward() ||
      std::any_of(expected.begin(), expected.end(), [](std::size_t count) { return count > 0; });
  if (!writes_gradients_) return;
  const auto add = [&](std::size_t unit) {
    if (!std::exchange(units_[unit]->reduces, true) && units_[unit]->trains()) reduce_order_.push_back(unit);
  };
  if (iteration != nullptr) {
    std::for_each(iteration->order.rbegin(), iteration->order.rend(), add);
  }
  add(0);
}

void UnitRunner::accumulated(std::size_t parameter, bool defined) {
  const at::NoGradGuard no_grad;
  const auto ending = std::make_shared<Ending>(weak_from_this());
  std::lock_guard lock(mutex_);
  if (!running_) start_in_engine(ending, nullptr);
  const auto [at, kind, index] = places_[parameter];
  Unit& unit = *units_[at];
  FlatShard& shard = unit.shards[kind];
  const auto& [name, tensor, sparse] = shard.parameters()[index];
  at::Tensor& gradient = tensor.mutable_grad();
  if (unit.launched)
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: parameter " + name +
                    " got a gradient after its unit was reduced: a nested backward (a re-entrant checkpoint) "
                    "computed it, expected one backward");
  if (defined) {
    if (gradient.is_sparse())
      throw Error(ErrorKind::unsupported, "FullyShardedDataParallel: the gradient of parameter " + name +
                                              " is sparse, expected a dense one");
    unit.gradients.resize(unit.shards.size());
    at::Tensor& buffer = unit.gradients[kind];
    if (!buffer.defined()) buffer = gradient_buffer(unit, shard);
    shard.add_gradient(index, gradient, buffer);
    gradient.reset();
  }
  ++unit.received;
  launch_ready();
}

// Two buffers are enough: of the unit that computes, and of one whose reduction is in flight.
at::Tensor UnitRunner::gradient_buffer(Unit& unit, const FlatShard& shard) {
  BufferPool& buffers = unit.buffers->gradients;
  while (!in_flight_.empty() && (in_flight_.front().done.ready() || (!buffers.has_free(shard.gradients()) &&
                                                                     buffers.made(shard.gradients()) > 1)))
    retire_first();
  return buffers.take(shard.gradients(), shard.layout().elements());
}

void UnitRunner::launch_ready() {
  while (next_reduction_ < reduce_order_.size()) {
    Unit& unit = *units_[reduce_order_[next_reduction_]];
    if (unit.received < unit.expected) return;
    ++next_reduction_;
    launch(unit);
  }
}

void UnitRunner::launch(Unit& unit) {
  if (std::exchange(unit.launched, true)) return;
  unit.gradients.resize(unit.shards.size());
  for (std::size_t i = 0; i < unit.shards.size(); ++i) {
    FlatShard& shard = unit.shards[i];
    if (!shard.trains()) continue;
    at::Tensor& buffer = unit.gradients[i];
    if (!buffer.defined()) buffer = gradient_buffer(unit, shard);
    shard.complete(buffer);
    at::Tensor output = shard.direct_output();
    const bool is_direct = output.defined();
    if (!is_direct) output = unit.buffers->reduced.take(shard.gradients(), shard.layout().part);
    reduce_stream_->note_writer();
    reduce_stream_->follow_writers();
    in_flight_.push_back({&unit, i, output, is_direct, reduce_stream_->run([&] {
                            return setup_.reductions.reduce_scatter(output, buffer,
                                                                    collectives::ReduceOp::avg);
                          })});
  }
  if (&unit != units_.front().get() && !unit.is_frozen_in_part()) split(unit);
}

void UnitRunner::retire_first() {
  const at::NoGradGuard no_grad;
  Reduction reduction = std::move(in_flight_.front());
  in_flight_.pop_front();
  settle(std::move(reduction.done), *reduce_stream_);
  if (setup_.replicas) {
    auto averaged = reduce_stream_->run(
        [&] { return setup_.replicas->all_reduce(reduction.output, collectives::ReduceOp::avg); });
    settle(std::move(averaged), *reduce_stream_);
  }
  Unit& unit = *reduction.unit;
  unit.shards[reduction.shard].take_reduced(reduction.output);
  unit.buffers->gradients.give_back(std::exchange(unit.gradients[reduction.shard], at::Tensor()));
  if (!reduction.is_direct) unit.buffers->reduced.give_back(reduction.output);
}

void UnitRunner::finish() {
  const at::NoGradGuard no_grad;
  if (!writes_gradients_) {  // torch::autograd::grad() of other tensors
    running_ = false;
    return;
  }
  // Units that got gradients without an output that watch() has seen.
  for (std::size_t i = 0; i < units_.size(); ++i)
    if (units_[i]->received > 0 && !units_[i]->reduces) reduce_order_.push_back(i);
  for (; next_reduction_ < reduce_order_.size(); ++next_reduction_)
    launch(*units_[reduce_order_[next_reduction_]]);

  const auto count = static_cast<std::int64_t>(places_.size());
  const at::Tensor reached = at::zeros({count}, at::kByte);  // by parameter: a rank has computed a gradient
  auto* const bytes = reached.mutable_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const auto [unit, shard, index] = places_[i];
    bytes[i] = units_[unit]->shards[shard].has_received(index) ? 1 : 0;
  }
  auto exchange = setup_.reductions.all_reduce(reached, collectives::ReduceOp::max);
  while (!in_flight_.empty()) retire_first();
  std::move(exchange).get();
  expect_settled();
  if (setup_.replicas) setup_.replicas->all_reduce(reached, collectives::ReduceOp::max).get();
  std::size_t next = 0;
  for (const auto& unit : units_)
    for (FlatShard& shard : unit->shards) {
      if (!shard.trains()) continue;
      std::vector<bool> has_gradient;
      for (std::size_t i = 0; i < shard.parameters().size(); ++i) has_gradient.push_back(bytes[next++] != 0);
      if (unit->launched) shard.publish(has_gradient);
    }
  split_all();
  running_ = false;
}

void UnitRunner::failed() {
  std::lock_guard lock(mutex_);
  running_ = false;
  abort("backward of rank " + std::to_string(setup_.gathers.rank()) +
        " failed before all of its gradients were reduced");
  drop_backward();
}

// What is in flight ends with the groups.
void UnitRunner::drop_backward() {
  for (Reduction& each : std::exchange(in_flight_, {})) unchecked_.push_back(std::move(each.done));
  for (const auto& unit : units_) {
    for (auto& gather : std::exchange(unit->gathers, {})) unchecked_.push_back(std::move(gather));
    if (unit->state == Unit::State::whole)
      for (FlatShard& shard : unit->shards) shard.displace();
    unit->whole.clear();
    unit->sent.clear();
    unit->gradients.clear();
    unit->state = Unit::State::split;
  }
  for (auto& done : std::exchange(unchecked_, {})) (void)rpc::capture([&] { std::move(done).get(); });
}

}  // namespace weft::sharded
