#include <weft/parallel/sharded/internal/unit_runner.h>

#include <weft/parallel/data_parallel/engine_hook.h>
#include <weft/rpc/core/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
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

// A collective, and on a device its end on the stream.
struct UnitRunner::InFlight {
  rpc::Future<void> done;
  std::optional<c10::Event> ended = {};
};

struct UnitRunner::Unit {
  enum class State { split, gathering, whole };

  std::string name;
  Buffers* buffers = nullptr;
  std::vector<FlatShard> shards;
  State state = State::split;
  std::vector<at::Tensor> whole, sent;  // by shard, while it is not split; sent: parts in the type of `whole`
  std::vector<InFlight> gathers = {};

  // Of the backward that runs.
  std::size_t expected = 0, received = 0;  // gradients
  std::optional<std::size_t> place = {};   // in the sequence
  bool launched = false;
  std::vector<at::Tensor> gradients = {};  // by shard; undefined before the first one

  bool trains() const {
    return std::any_of(shards.begin(), shards.end(), [](const FlatShard& shard) { return shard.trains(); });
  }
  // Whether backward may use a parameter after the last gradient of the unit that it computes: one without a
  // gradient.
  bool may_be_used_after_gradients() const {
    std::size_t parameters = 0;
    for (const FlatShard& shard : shards) {
      if (shard.is_frozen_in_part()) return true;
      parameters += shard.parameters().size();
    }
    return expected < parameters;
  }
};

// One forward of the module, as long as its graph lives. The ranks compare the orders of its blocks.
struct UnitRunner::Iteration {
  std::vector<std::size_t> order;  // units, without unit 0
  bool with_grad = false;
  struct Comparison {
    at::Tensor own, all;
    rpc::Future<void> done;
  };
  std::vector<Comparison> comparisons = {};  // over the ranks, and over the replicas

  void compare(const collectives::Group& group);
  void expect_equal_orders();  // failed_precondition on all ranks
};

void UnitRunner::Iteration::compare(const collectives::Group& group) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, by word
  for (const std::size_t unit : order) hash = (hash ^ unit) * 0x100000001b3;
  Comparison comparison{
      at::full({1}, static_cast<std::int64_t>(hash), at::kLong), at::empty({group.size()}, at::kLong), {}};
  comparison.done = group.all_gather(comparison.all, comparison.own);
  comparisons.push_back(std::move(comparison));
}

void UnitRunner::Iteration::expect_equal_orders() {
  for (Comparison& comparison : std::exchange(comparisons, {})) {
    std::move(comparison.done).get();
    const auto* const of_rank = comparison.all.const_data_ptr<std::int64_t>();
    for (std::int64_t rank = 0; rank < comparison.all.numel(); ++rank)
      if (of_rank[rank] != of_rank[0])
        throw Error(
            ErrorKind::failed_precondition,
            "FullyShardedDataParallel: rank " + std::to_string(rank) +
                " has run the blocks in another order than rank 0, expected the same one on all ranks");
  }
}

struct UnitRunner::Reduction {
  Unit* unit;
  std::size_t shard;
  at::Tensor output;  // a part
  bool is_direct;
  InFlight collective;
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
  for (int i = 0; i < 2; ++i) buffers_.push_back(std::make_unique<Buffers>(setup_));
  for (UnitParameters& each : units) {
    Unit& unit = *units_.emplace_back(std::make_unique<Unit>());
    unit.name = std::move(each.name);
    unit.buffers = buffers_[units_.size() == 1 ? 0 : 1].get();
    for (auto& parameters : by_kind(each.parameters)) {
      const FlatShard& shard = unit.shards.emplace_back(std::move(parameters), setup_.gathers, setup_.types);
      const auto device = shard.gathered().device();
      if (!gather_stream_) {
        device_ = device;
        gather_stream_.emplace(device);
        reduce_stream_.emplace(device);
      }
      unit.buffers->announce(shard);
      if (!shard.trains()) continue;
      for (std::size_t i = 0; i < shard.parameters().size(); ++i)
        places_.push_back({units_.size() - 1, unit.shards.size() - 1, i});
    }
    if (units_.size() > 1) last_order_.push_back(units_.size() - 1);
  }
}

UnitRunner::~UnitRunner() {
  for (const auto& unit : units_)
    if (unit->state == Unit::State::whole)
      for (FlatShard& shard : unit->shards) shard.displace();
}

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

UnitRunner::InFlight UnitRunner::in_flight(const CommunicationStream& stream,
                                           const std::function<rpc::Future<void>()>& begin) const {
  return stream.run([&] {
    InFlight collective{begin()};
    collective.ended = CommunicationStream::written(device_);
    return collective;
  });
}

void UnitRunner::settle(InFlight collective) {
  if (!collective.ended) return std::move(collective.done).get();
  collective.ended->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  unchecked_.push_back(std::move(collective.done));
}

// A device runs on after an error, with elements that are not there.
void UnitRunner::expect_settled() {
  for (auto& done : std::exchange(unchecked_, {})) std::move(done).get();
}

void UnitRunner::start_gather(Unit& unit) {
  if (unit.state != Unit::State::split) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> whole, sent;
  std::vector<InFlight> gathers;
  for (FlatShard& shard : unit.shards) {
    whole.push_back(unit.buffers->whole.take(shard.gathered(), shard.layout().elements()));
    sent.push_back(shard.part());
    if (!shard.is_sent_as_is()) {
      sent.back() = unit.buffers->sent.take(shard.gathered(), shard.layout().part);
      sent.back().copy_(shard.part(), /*non_blocking=*/true);
    }
    gather_stream_->note_writer();
    gather_stream_->follow_writers();
    gathers.push_back(
        in_flight(*gather_stream_, [&] { return setup_.gathers.all_gather(whole.back(), sent.back()); }));
  }
  unit.whole = std::move(whole);
  unit.sent = std::move(sent);
  unit.gathers = std::move(gathers);
  unit.state = Unit::State::gathering;
}

void UnitRunner::finish_gather(Unit& unit) {
  start_gather(unit);
  if (unit.state == Unit::State::whole) return;
  try {
    for (InFlight& gather : std::exchange(unit.gathers, {})) settle(std::move(gather));
  } catch (...) {  // the buffers of a collective that has failed are not used again
    unit.whole.clear();
    unit.sent.clear();
    unit.state = Unit::State::split;
    throw;
  }
  for (std::size_t i = 0; i < unit.shards.size(); ++i) {
    if (!unit.shards[i].is_sent_as_is()) unit.buffers->sent.give_back(unit.sent[i]);
    unit.shards[i].place(unit.whole[i]);
  }
  unit.sent.clear();
  unit.state = Unit::State::whole;
}

void UnitRunner::split(Unit& unit) {
  if (kept_whole_ > 0) return;
  if (unit.state == Unit::State::gathering) finish_gather(unit);  // no computation needed it
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
  while (!unchecked_.empty() && unchecked_.front().ready()) {  // of forwards without a backward
    auto done = std::move(unchecked_.front());
    unchecked_.erase(unchecked_.begin());
    std::move(done).get();
  }
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
  data_parallel::call_before(*output.grad_fn(), [weak = weak_from_this(), unit, iteration = iteration_] {
    if (const auto self = weak.lock()) self->before_backward(unit, iteration);
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
  iteration_->compare(setup_.reductions);
  if (setup_.replicas) iteration_->compare(*setup_.replicas);
  if (!iteration_->with_grad) {
    split_all();
    expect_settled();
    return expect_equal_orders(*iteration_);
  }
  if (!setup_.splits_after_forward) return;
  // Gathers that the prediction began in vain.
  for (const auto& unit : units_)
    if (unit->state == Unit::State::gathering) split(*unit);
}

void UnitRunner::leave_forward() {
  std::lock_guard lock(mutex_);
  in_forward_ = false;
}

// Ranks whose orders differ have gathered each other's blocks, and would do so again.
void UnitRunner::expect_equal_orders(Iteration& iteration) const {
  try {
    iteration.expect_equal_orders();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::failed_precondition) abort(error.what());
    throw;
  }
}

// --- Backward ---

void UnitRunner::before_backward(std::size_t unit, const std::shared_ptr<Iteration>& iteration) {
  const auto ending = std::make_shared<Ending>(weak_from_this());  // outlives the lock
  std::lock_guard lock(mutex_);
  if (!running_) start_in_engine(ending, iteration);
  add_to_sequence(iteration);
  launch_ready();
  finish_gather(*units_.front());
  const std::size_t place = unit == 0 ? 0 : *units_[unit]->place + 1;
  start_gathers(std::min(place + 1, sequence_.size()));  // and that of the next one
  if (unit == 0) return;
  // If it has been split again, this rank computes no gradient for it.
  if (units_[unit]->state == Unit::State::gathering) finish_gather(*units_[unit]);
  // By now two others have begun after these.
  for (std::size_t i = 0; i + 3 <= place; ++i)
    if (Unit& other = *units_[sequence_[i]]; other.launched || !other.trains()) split(other);
}

void UnitRunner::start_in_engine(const std::shared_ptr<Ending>& ending,
                                 const std::shared_ptr<Iteration>& iteration) {
  if (!data_parallel::in_backward())
    throw Error(ErrorKind::unsupported,
                "FullyShardedDataParallel: its gradients are computed by a dist_autograd::Pass, expected "
                "backward() of LibTorch");
  const std::vector<std::size_t> expected = hooks_->expected();
  writes_gradients_ =
      !data_parallel::is_partial_backward() ||
      std::any_of(expected.begin(), expected.end(), [](std::size_t count) { return count > 0; });
  if (writes_gradients_ && kept_whole_ > 0)
    throw Error(ErrorKind::failed_precondition,
                "FullyShardedDataParallel: backward within gather(), expected its guard to end before");
  if (iteration != nullptr) expect_equal_orders(*iteration);
  torch::autograd::Engine::get_default_engine().queue_callback([ending] { ending->finish(); });
  ending->start();
  running_ = true;
  iterations_.clear();
  sequence_.clear();
  next_gather_ = next_reduction_ = 0;
  for (const auto& unit : units_) {
    unit->expected = unit->received = 0;
    unit->place.reset();
    unit->launched = false;
    for (FlatShard& shard : unit->shards) shard.forget_gradients();
  }
  for (std::size_t i = 0; i < places_.size(); ++i)
    units_[places_[i].unit]->expected += expected[i] > 0 ? 1 : 0;
  if (iteration != nullptr) add_to_sequence(iteration);
}

// A backward may reach several forwards.
void UnitRunner::add_to_sequence(const std::shared_ptr<Iteration>& iteration) {
  if (std::find(iterations_.begin(), iterations_.end(), iteration) != iterations_.end()) return;
  expect_equal_orders(*iteration);
  iterations_.push_back(iteration);
  for (auto unit = iteration->order.rbegin(); unit != iteration->order.rend(); ++unit)
    if (!units_[*unit]->place) {
      units_[*unit]->place = sequence_.size();
      sequence_.push_back(*unit);
    }
}

void UnitRunner::start_gathers(std::size_t end) {
  for (; next_gather_ < end; ++next_gather_) {
    Unit& unit = *units_[sequence_[next_gather_]];
    start_gather(unit);
    if (unit.launched && !unit.may_be_used_after_gradients()) split(unit);
  }
}

void UnitRunner::accumulated(std::size_t parameter, bool defined) {
  const at::NoGradGuard no_grad;
  const auto ending = std::make_shared<Ending>(weak_from_this());
  std::lock_guard lock(mutex_);
  // A loss node that uses a parameter runs before the module's outputs do.
  const bool has_iteration = iteration_ != nullptr && iteration_->with_grad;
  if (!running_) start_in_engine(ending, has_iteration ? iteration_ : nullptr);
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
    reduce_stream_->note_writer();
    gradient.reset();
  }
  ++unit.received;
  launch_ready();
}

// Two buffers are enough: of the unit that computes, and of one whose reduction is in flight. With replicas
// the wait is at the same place of the program on all ranks, since two groups of ranks could wait for each
// other.
at::Tensor UnitRunner::gradient_buffer(Unit& unit, const FlatShard& shard) {
  BufferPool& buffers = unit.buffers->gradients;
  while (!reductions_.empty() &&
         ((!setup_.replicas && reductions_.front().collective.done.ready()) ||
          (!buffers.has_free(shard.gradients()) && buffers.made(shard.gradients()) > 1)))
    retire_first();
  return buffers.take(shard.gradients(), shard.layout().elements());
}

void UnitRunner::launch_ready() {
  for (; writes_gradients_ && next_reduction_ < sequence_.size(); ++next_reduction_) {
    Unit& unit = *units_[sequence_[next_reduction_]];
    if (unit.received < unit.expected) return;
    if (unit.trains()) launch(unit);
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
    auto collective = in_flight(*reduce_stream_, [&] {
      return setup_.reductions.reduce_scatter(output, buffer, collectives::ReduceOp::avg);
    });
    reductions_.push_back({&unit, i, output, is_direct, std::move(collective)});
  }
  const bool is_gathered = unit.place && *unit.place < next_gather_;
  if (is_gathered && !unit.may_be_used_after_gradients()) split(unit);
}

void UnitRunner::retire_first() {
  const at::NoGradGuard no_grad;
  Reduction reduction = std::move(reductions_.front());
  reductions_.pop_front();
  settle(std::move(reduction.collective));
  if (setup_.replicas)
    settle(in_flight(*reduce_stream_, [&] {
      return setup_.replicas->all_reduce(reduction.output, collectives::ReduceOp::avg);
    }));
  Unit& unit = *reduction.unit;
  unit.shards[reduction.shard].take_reduced(reduction.output);
  unit.buffers->gradients.give_back(std::exchange(unit.gradients[reduction.shard], at::Tensor()));
  if (!reduction.is_direct) unit.buffers->reduced.give_back(reduction.output);
}

// By parameter that requires grad: whether a rank has computed a gradient.
std::vector<bool> UnitRunner::exchange_reached() {
  const at::Tensor reached = at::zeros({static_cast<std::int64_t>(places_.size())}, at::kByte);
  auto* const bytes = reached.mutable_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const auto [unit, shard, index] = places_[i];
    bytes[i] = units_[unit]->shards[shard].has_received(index) ? 1 : 0;
  }
  setup_.reductions.all_reduce(reached, collectives::ReduceOp::max).get();
  if (setup_.replicas) setup_.replicas->all_reduce(reached, collectives::ReduceOp::max).get();
  return std::vector<bool>(bytes, bytes + places_.size());
}

void UnitRunner::finish() {
  const at::NoGradGuard no_grad;
  start_gathers(sequence_.size());  // other ranks may wait for them
  if (!writes_gradients_) {         // torch::autograd::grad() of other tensors
    split_all();
    expect_settled();
    running_ = false;
    return;
  }
  for (; next_reduction_ < sequence_.size(); ++next_reduction_)
    if (Unit& unit = *units_[sequence_[next_reduction_]]; unit.trains()) launch(unit);
  const std::vector<bool> reached = exchange_reached();
  for (std::size_t i = 0; i < places_.size(); ++i)  // unit 0, and blocks outside of the sequence
    if (reached[i]) launch(*units_[places_[i].unit]);
  while (!reductions_.empty()) retire_first();
  expect_settled();
  std::size_t next = 0;
  for (const auto& unit : units_)
    for (FlatShard& shard : unit->shards) {
      if (!shard.trains()) continue;
      std::vector<bool> has_gradient;
      for (std::size_t i = 0; i < shard.parameters().size(); ++i) has_gradient.push_back(reached[next++]);
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

// The collectives in flight end with the groups.
void UnitRunner::drop_backward() {
  for (Reduction& each : std::exchange(reductions_, {}))
    unchecked_.push_back(std::move(each.collective.done));
  for (const auto& unit : units_) {
    for (auto& gather : std::exchange(unit->gathers, {})) unchecked_.push_back(std::move(gather.done));
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
