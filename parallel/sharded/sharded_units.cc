#include <weft/parallel/sharded/sharded_units.h>

#include <weft/parallel/sharded/internal/buffer_pool.h>
#include <weft/parallel/sharded/internal/flat_shard.h>
#include <weft/parallel/sharded/internal/name_patterns.h>
#include <weft/parallel/training/broadcast_state.h>
#include <weft/parallel/training/communication_stream.h>
#include <weft/parallel/training/internal/agreement.h>
#include <weft/parallel/weights/deferred.h>
#include <weft/parallel/weights/internal/tensor_memory.h>
#include <weft/rpc/core/error.h>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace weft::sharded {

using data_parallel::NamedParameter;
using rpc::Error;
using rpc::ErrorKind;
using training::CommunicationStream;

struct ShardedUnits::Buffers {
  explicit Buffers(const ShardGroups& groups)
      : whole(groups.gathers),
        sent(groups.gathers),
        gradients(groups.reductions),
        reduced(groups.reductions) {}

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
struct ShardedUnits::InFlight {
  rpc::Future<void> done;
  std::optional<c10::Event> ended = {};
};

struct ShardedUnits::Reduction {
  std::size_t unit, shard;
  at::Tensor output;  // a part
  bool is_direct;
  InFlight collective;
};

struct ShardedUnits::Streams {
  explicit Streams(c10::Device of) : device(of), gathers(of), reductions(of) {}
  const c10::Device device;
  CommunicationStream gathers, reductions;
};

struct ShardedUnits::Unit {
  enum class State { split, gathering, whole };

  std::vector<FlatShard> shards = {};
  std::vector<Buffers*> buffers = {};  // by shard
  std::vector<NamedParameter> trained = {};
  std::vector<std::pair<std::size_t, std::size_t>> places = {};  // of these: shard, and parameter in it
  State state = State::split;
  std::vector<at::Tensor> whole = {}, sent = {};  // by shard, while it is not split; sent: parts in its type
  std::vector<InFlight> gathers = {};
  std::vector<at::Tensor> gradients = {};  // by shard; undefined before the first one
};

namespace {

// Parameters of one type and device with the same options, which all require grad or all do not.
struct Kind {
  std::vector<NamedParameter> parameters;
  ShardOptions options;  // with the types of these parameters
};

// In the order of their first parameters.
std::vector<Kind> by_kind(const std::vector<NamedParameter>& parameters, const ShardOptions& options) {
  std::vector<Kind> kinds;
  for (const auto& each : parameters) {
    ShardOptions own = options;
    if (const PrecisionOf* const other = first_match(options.precision_of, each.name)) {
      own.compute = other->types.parameters;
      own.reduction = other->types.reduction;
    }
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) {
      const at::Tensor& first = kind.parameters.front().tensor;
      return first.dtype() == each.tensor.dtype() && first.device() == each.tensor.device() &&
             first.requires_grad() == each.tensor.requires_grad() && kind.options.compute == own.compute &&
             kind.options.reduction == own.reduction;
    });
    same == kinds.end() ? kinds.push_back({{each}, std::move(own)}) : same->parameters.push_back(each);
  }
  return kinds;
}

// Calls f(). If it fails on a rank of the group or of its replicas, all their ranks throw.
template <class F>
void run_on_all_shards(const ShardGroups& groups, F f) {
  const auto run = [&] { training::run_on_all_ranks(groups.gathers, f); };
  groups.replicas ? training::run_on_all_ranks(*groups.replicas, run) : run();
}

}  // namespace

void materialize_whole(const ShardSetup& setup, const std::vector<at::Tensor>& tensors) {
  const auto& values = setup.options.values;
  if (values == nullptr) return;
  at::Tensor state = values->random_state();
  if (setup.groups.replicas) training::broadcast_tensors(*setup.groups.replicas, {state}, 0).get();
  training::broadcast_tensors(setup.groups.gathers, {state}, 0).get();
  values->set_random_state(state);
  run_on_all_shards(setup.groups, [&] { values->materialize(tensors); });
}

torch::OrderedDict<std::string, at::Tensor> with_memory(
    const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  torch::OrderedDict<std::string, at::Tensor> selected;
  for (const auto& entry : tensors)
    if (!entry.value().has_storage() || (entry.value().numel() > 0 && weights::has_memory(entry.value())))
      selected.insert(entry.key(), entry.value());
  return selected;
}

collectives::Group own_group_for(const collectives::Group& group, const std::string& purpose,
                                 const collectives::GroupOptions& options) {
  collectives::GroupOptions own = options;
  own.name = group.name() + "/" + purpose;
  return group.split(0, group.rank(), own).get().value();
}

ShardedUnits::ShardedUnits(ShardSetup setup, const std::vector<UnitParameters>& units)
    : setup_(std::move(setup)) {
  struct Deferred {
    at::Tensor tensor;  // as it was constructed
    FlatShard* shard;
    std::size_t parameter;
  };
  std::vector<Deferred> deferred;
  for (const UnitParameters& each : units) {
    Unit& unit = *units_.emplace_back(std::make_unique<Unit>());
    split_.insert(split_.end(), each.split.begin(), each.split.end());
    auto kinds = by_kind(each.parameters, setup_.options);
    unit.shards.reserve(kinds.size());
    for (auto& [parameters, options] : kinds) {
      std::vector<at::Tensor> constructed;
      for (const NamedParameter& parameter : parameters)
        constructed.push_back(parameter.tensor.variable_data());
      FlatShard& shard =
          unit.shards.emplace_back(std::move(parameters), setup_.groups.gathers, options, setup_.owner);
      if (streams_ == nullptr) streams_ = std::make_unique<Streams>(shard.gathered().device());
      auto& buffers = buffers_[{each.buffers, c10::typeMetaToScalarType(shard.gathered().dtype())}];
      if (buffers == nullptr) buffers = std::make_unique<Buffers>(setup_.groups);
      unit.buffers.push_back(buffers.get());
      buffers->announce(shard);
      for (std::size_t i = 0; i < constructed.size(); ++i)
        if (!weights::has_memory(constructed[i])) deferred.push_back({constructed[i], &shard, i});
      for (std::size_t i = 0; shard.is_differentiable() && i < shard.parameters().size(); ++i) {
        unit.trained.push_back(shard.parameters()[i]);
        unit.places.emplace_back(unit.shards.size() - 1, i);
      }
    }
    unit.gradients.resize(unit.shards.size());
  }
  if (deferred.empty() || !setup_.options.initialize) return;
  std::vector<at::Tensor> wanted;
  for (const Deferred& each : deferred) wanted.push_back(each.tensor);
  run_on_all_shards(setup_.groups, [&] {
    setup_.options.values->compute(wanted, [&](std::size_t i, const at::Tensor& values) {
      deferred[i].shard->take_values(deferred[i].parameter, values);
    });
  });
}

ShardedUnits::~ShardedUnits() {
  for (const auto& unit : units_)
    if (unit->state == Unit::State::whole)
      for (FlatShard& shard : unit->shards) shard.displace();
}

// drop() would wait for collectives of the old groups, in which a lost rank does not take part.
void ShardedUnits::set_groups(ShardGroups groups) {
  const at::NoGradGuard no_grad;
  abort("the " + setup_.owner + " has got another group");
  drop();
  setup_.groups = std::move(groups);
  for (const auto& [key, buffers] : buffers_) *buffers = Buffers(setup_.groups);
  const std::vector<bool> trains = share_trained();
  auto next = trains.begin();
  for (const auto& unit : units_)
    for (std::size_t i = 0; i < unit->shards.size(); ++i) {
      unit->shards[i].set_group(setup_.groups.gathers, *next++);
      unit->buffers[i]->announce(unit->shards[i]);
    }
}

// A new rank may have constructed its module before the other ranks froze or unfroze parameters: all ranks
// train the same ones as rank 0. Returns, by shard, whether it has gradients.
std::vector<bool> ShardedUnits::share_trained() const {
  std::vector<at::Tensor> parameters;
  std::vector<std::uint8_t> trains;
  std::vector<std::string> names;  // of each shard
  for (const auto& unit : units_)
    for (const FlatShard& shard : unit->shards) {
      trains.push_back(shard.trains() ? 1 : 0);
      names.emplace_back();
      for (const auto& [name, tensor, sparse] : shard.parameters()) {
        parameters.push_back(tensor);
        names.back() += (names.back().empty() ? "" : ", ") + name;
      }
    }
  const auto share = [&](const collectives::Group& group) {
    const auto all = group.all_gather_object(names).get();
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank] != all[0])
        training::throw_on_all_ranks(
            group, {ErrorKind::failed_precondition,
                    setup_.owner + ": rank " + std::to_string(rank) +
                        " has its parameters in other shards than rank 0, expected modules of which the same "
                        "parameters require grad when they are wrapped"});
    training::share_requires_grad(group, parameters, 0);
    trains = group.broadcast_object(trains, 0).get();
  };
  if (setup_.groups.replicas) share(*setup_.groups.replicas);
  share(setup_.groups.gathers);
  return {trains.begin(), trains.end()};
}

const std::vector<NamedParameter>& ShardedUnits::trained(std::size_t unit) const {
  return units_[unit]->trained;
}

bool ShardedUnits::is_frozen_in_part(std::size_t unit) const {
  const auto& shards = units_[unit]->shards;
  return std::any_of(shards.begin(), shards.end(),
                     [](const FlatShard& shard) { return shard.is_frozen_in_part(); });
}

bool ShardedUnits::trains(std::size_t unit) const {
  const auto& shards = units_[unit]->shards;
  return std::any_of(shards.begin(), shards.end(), [](const FlatShard& shard) { return shard.trains(); });
}

// If another rank does not compare, it runs another collective of the group than this one, which the group
// reports on all ranks (not so for all_gather_object()).
void ShardedUnits::train_thawed() {
  std::vector<std::string> own;
  for (const auto& unit : units_)
    for (const FlatShard& shard : unit->shards)
      for (std::string& name : shard.thawed()) own.push_back(std::move(name));
  if (own.empty()) return;
  const auto compare = [&](const collectives::Group& group) {
    const at::Tensor counts = at::zeros({group.size()}, at::kLong);
    group.all_gather(counts, at::full({1}, static_cast<std::int64_t>(own.size()), at::kLong)).get();
    const auto all = group.all_gather_object(own).get();
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] != all[0]) {
        const auto [first, other] =
            std::mismatch(all[0].begin(), all[0].end(), all[rank].begin(), all[rank].end());
        training::throw_on_all_ranks(
            group, {ErrorKind::failed_precondition,
                    setup_.owner + ": the parameter " + (first == all[0].end() ? *other : *first) +
                        " requires grad now on rank " +
                        std::to_string(first == all[0].end() ? rank : std::size_t{0}) + " and not on rank " +
                        std::to_string(first == all[0].end() ? std::size_t{0} : rank) +
                        ", expected the same on all ranks"});
      }
  };
  compare(setup_.groups.gathers);
  if (setup_.groups.replicas) compare(*setup_.groups.replicas);
  for (const auto& unit : units_)
    for (std::size_t i = 0; i < unit->shards.size(); ++i)
      if (FlatShard& shard = unit->shards[i]; !shard.thawed().empty()) {
        shard.train();
        unit->buffers[i]->announce(shard);
      }
}

// --- Collectives ---

// Starts a collective on the stream.
template <class Start>
ShardedUnits::InFlight ShardedUnits::in_flight(const CommunicationStream& stream, Start start) const {
  return stream.run([&] {
    InFlight collective{start()};
    collective.ended = CommunicationStream::written(streams_->device);
    return collective;
  });
}

// Waits for the collective: on the CPU, blocks; on a device, later work on the current stream waits.
void ShardedUnits::settle(InFlight collective) {
  if (!collective.ended) return std::move(collective.done).get();
  const c10::Device device = streams_->device;
  collective.ended->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  unchecked_.push_back(std::move(collective.done));
}

void ShardedUnits::check_ended() {
  while (!unchecked_.empty() && unchecked_.front().ready()) {
    auto done = std::move(unchecked_.front());
    unchecked_.erase(unchecked_.begin());
    std::move(done).get();
  }
}

void ShardedUnits::wait_for_all() {
  for (auto& done : std::exchange(unchecked_, {})) std::move(done).get();
}

void ShardedUnits::abort(const std::string& reason) const {
  setup_.groups.gathers.abort(reason);
  setup_.groups.reductions.abort(reason);
  if (setup_.groups.replicas) setup_.groups.replicas->abort(reason);
}

void ShardedUnits::drop() {
  for (Reduction& each : std::exchange(reductions_, {}))
    unchecked_.push_back(std::move(each.collective.done));
  for (const auto& unit : units_) {
    for (auto& gather : std::exchange(unit->gathers, {})) unchecked_.push_back(std::move(gather.done));
    for (FlatShard& shard : unit->shards) {
      if (unit->state == Unit::State::whole) shard.displace();
      shard.forget_gradients();
    }
    unit->whole.clear();
    unit->sent.clear();
    unit->gradients.assign(unit->shards.size(), {});
    unit->state = Unit::State::split;
  }
  for (auto& done : std::exchange(unchecked_, {})) (void)rpc::capture([&] { std::move(done).get(); });
}

// --- Parameters ---

void ShardedUnits::start_gather(std::size_t index, std::optional<int> root) {
  Unit& unit = *units_[index];
  if (unit.state != Unit::State::split) return;
  const at::NoGradGuard no_grad;
  for (FlatShard& shard : unit.shards) shard.take_replaced();
  const collectives::Group& group = setup_.groups.gathers;
  const bool is_wanted = !root || group.rank() == *root;
  std::vector<at::Tensor> whole, sent;
  std::vector<InFlight> gathers;
  for (std::size_t i = 0; i < unit.shards.size(); ++i) {
    const FlatShard& shard = unit.shards[i];
    if (is_wanted) whole.push_back(unit.buffers[i]->whole.take(shard.gathered(), shard.layout().elements()));
    sent.push_back(shard.part());
    if (!shard.is_sent_as_is()) {
      sent.back() = unit.buffers[i]->sent.take(shard.gathered(), shard.layout().part);
      sent.back().copy_(shard.part(), /*non_blocking=*/true);
    }
    streams_->gathers.note_writer();
    streams_->gathers.follow_writers();
    gathers.push_back(in_flight(streams_->gathers, [&] {
      if (!root) return group.all_gather(whole.back(), sent.back());
      return group.gather(is_wanted ? whole.back().chunk(group.size()) : std::vector<at::Tensor>(),
                          sent.back(), *root);
    }));
  }
  unit.whole = std::move(whole);
  unit.sent = std::move(sent);
  unit.gathers = std::move(gathers);
  unit.state = Unit::State::gathering;
}

void ShardedUnits::finish_gather(std::size_t index, std::optional<int> root) {
  start_gather(index, root);
  Unit& unit = *units_[index];
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
    if (!unit.shards[i].is_sent_as_is()) unit.buffers[i]->sent.give_back(unit.sent[i]);
    if (!unit.whole.empty()) unit.shards[i].place(unit.whole[i]);
  }
  unit.sent.clear();
  unit.state = unit.whole.size() < unit.shards.size() ? Unit::State::split : Unit::State::whole;
}

void ShardedUnits::take_replaced() {
  const at::NoGradGuard no_grad;
  for (const auto& unit : units_) {
    if (unit->state == Unit::State::gathering) continue;  // the next gather takes them
    for (std::size_t i = 0; i < unit->shards.size(); ++i)
      unit->shards[i].take_replaced(unit->state == Unit::State::whole ? unit->whole[i] : at::Tensor());
  }
}

void ShardedUnits::drop_replaced(std::size_t unit) {
  for (FlatShard& shard : units_[unit]->shards) shard.drop_replaced();
}

std::vector<at::Tensor> ShardedUnits::own_elements(std::size_t index) const {
  const Unit& unit = *units_[index];
  std::vector<at::Tensor> elements;
  for (std::size_t i = 0; i < unit.shards.size(); ++i)
    elements.push_back(unit.shards[i].own_in(unit.whole[i]).clone());
  return elements;
}

void ShardedUnits::keep_changes(std::size_t index, const std::vector<at::Tensor>& before) {
  Unit& unit = *units_[index];
  for (std::size_t i = 0; i < unit.shards.size(); ++i) unit.shards[i].keep_changes(unit.whole[i], before[i]);
}

void ShardedUnits::split(std::size_t index) {
  Unit& unit = *units_[index];
  if (unit.state == Unit::State::gathering) finish_gather(index);  // no computation needed it
  if (unit.state == Unit::State::split) return;
  for (std::size_t i = 0; i < unit.shards.size(); ++i) {
    unit.shards[i].displace();
    unit.buffers[i]->whole.give_back(unit.whole[i]);
  }
  unit.whole.clear();
  unit.state = Unit::State::split;
}

bool ShardedUnits::is_gathering(std::size_t unit) const {
  return units_[unit]->state == Unit::State::gathering;
}

// --- Gradients ---

void ShardedUnits::add_gradient(std::size_t index, std::size_t parameter, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  Unit& unit = *units_[index];
  const auto [kind, place] = unit.places[parameter];
  if (gradient.is_sparse())
    throw Error(ErrorKind::unsupported, setup_.owner + ": the gradient of parameter " +
                                            unit.trained[parameter].name +
                                            " is sparse, expected a dense one");
  unit.shards[kind].add_gradient(place, gradient, gradient_buffer(unit, kind));
  streams_->reductions.note_writer();
}

// Returns the unit's buffer for gradients; takes one for its first gradient. If each unit is reduced after
// its last gradient, two buffers are enough: one for the unit that computes, and one for the unit whose
// reduction is in flight. With replicas all ranks must wait at the same place of the program, since two
// groups of ranks could otherwise wait for each other.
at::Tensor ShardedUnits::gradient_buffer(Unit& unit, std::size_t shard) {
  at::Tensor& buffer = unit.gradients[shard];
  if (buffer.defined()) return buffer;
  BufferPool& buffers = unit.buffers[shard]->gradients;
  const at::TensorOptions& options = unit.shards[shard].gradients();
  while (!reductions_.empty() && ((!setup_.groups.replicas && reductions_.front().collective.done.ready()) ||
                                  (!buffers.has_free(options) && buffers.made(options) > 1)))
    finish_first_reduction();
  return buffer = buffers.take(options, unit.shards[shard].layout().elements());
}

void ShardedUnits::start_reduction(std::size_t index) {
  const at::NoGradGuard no_grad;
  Unit& unit = *units_[index];
  for (std::size_t i = 0; i < unit.shards.size(); ++i) {
    FlatShard& shard = unit.shards[i];
    if (!shard.trains()) continue;
    const at::Tensor buffer = gradient_buffer(unit, i);
    shard.complete(buffer);
    at::Tensor output = shard.direct_output();
    const bool is_direct = output.defined();
    if (!is_direct) output = unit.buffers[i]->reduced.take(shard.gradients(), shard.layout().part);
    streams_->reductions.note_writer();
    streams_->reductions.follow_writers();
    auto collective = in_flight(streams_->reductions, [&] {
      return setup_.groups.reductions.reduce_scatter(output, buffer, collectives::ReduceOp::avg);
    });
    reductions_.push_back({index, i, output, is_direct, std::move(collective)});
  }
}

// A rank without a gradient takes a buffer too: gradient_buffer() may wait for a reduction, and with replicas
// all ranks wait at the same places.
void ShardedUnits::keep_gradients(std::size_t index) {
  Unit& unit = *units_[index];
  for (std::size_t i = 0; i < unit.shards.size(); ++i)
    if (unit.shards[i].trains()) (void)gradient_buffer(unit, i);
}

void ShardedUnits::finish_reductions(std::optional<std::size_t> unit) {
  const auto is_of_unit = [&](const Reduction& each) { return !unit || each.unit == *unit; };
  while (std::any_of(reductions_.begin(), reductions_.end(), is_of_unit)) finish_first_reduction();
}

void ShardedUnits::finish_first_reduction() {
  const at::NoGradGuard no_grad;
  Reduction reduction = std::move(reductions_.front());
  reductions_.erase(reductions_.begin());
  settle(std::move(reduction.collective));
  if (setup_.groups.replicas)
    settle(in_flight(streams_->reductions, [&] {
      return setup_.groups.replicas->all_reduce(reduction.output, collectives::ReduceOp::avg);
    }));
  Unit& unit = *units_[reduction.unit];
  unit.shards[reduction.shard].take_reduced(reduction.output);
  Buffers& buffers = *unit.buffers[reduction.shard];
  buffers.gradients.give_back(std::exchange(unit.gradients[reduction.shard], at::Tensor()));
  if (!reduction.is_direct) buffers.reduced.give_back(reduction.output);
}

std::vector<std::vector<bool>> ShardedUnits::exchange_gradients(const std::vector<std::size_t>& units) const {
  std::vector<std::uint8_t> own;
  for (const std::size_t unit : units)
    for (const auto& [shard, parameter] : units_[unit]->places)
      own.push_back(units_[unit]->shards[shard].has_received(parameter) ? 1 : 0);
  const at::Tensor reached = at::zeros({static_cast<std::int64_t>(own.size())}, at::kByte);
  auto* const bytes = reached.mutable_data_ptr<std::uint8_t>();
  std::copy(own.begin(), own.end(), bytes);
  setup_.groups.reductions.all_reduce(reached, collectives::ReduceOp::max).get();
  if (setup_.groups.replicas) setup_.groups.replicas->all_reduce(reached, collectives::ReduceOp::max).get();
  std::vector<std::vector<bool>> has;
  const std::uint8_t* next = bytes;
  for (const std::size_t unit : units) {
    has.emplace_back(next, next + units_[unit]->places.size());
    next += units_[unit]->places.size();
  }
  return has;
}

void ShardedUnits::publish(std::size_t index, const std::vector<bool>& has) {
  auto next = has.begin();
  for (FlatShard& shard : units_[index]->shards) {
    if (!shard.is_differentiable()) continue;
    const auto end = next + static_cast<std::ptrdiff_t>(shard.parameters().size());
    if (shard.trains()) shard.publish(std::vector<bool>(next, end));
    shard.forget_gradients();
    next = end;
  }
}

// --- What this rank has ---

std::vector<ParameterSlice> ShardedUnits::slices() const {
  std::vector<ParameterSlice> slices;
  for (const auto& unit : units_)
    for (const FlatShard& shard : unit->shards)
      for (std::size_t i = 0; shard.is_differentiable() && i < shard.slices().size(); ++i) {
        const auto& [name, tensor, sparse] = shard.parameters()[shard.own()[i].parameter];
        slices.push_back({name, tensor.sizes().vec(), shard.own()[i].begin, shard.own()[i].end,
                          shard.slices()[i], splits_of(tensor)});
      }
  return slices;
}

std::vector<tensor_parallel::Split> ShardedUnits::splits_of(const at::Tensor& parameter) const {
  for (const tensor_parallel::Placement& each : split_)
    if (each.tensor.is_same(parameter)) return each.splits;
  return {};
}

std::vector<tensor_parallel::Placement> ShardedUnits::placements() const {
  std::vector<tensor_parallel::Placement> placements;
  for (const ParameterSlice& slice : slices())
    placements.push_back({.name = slice.leaf.name, .tensor = slice.leaf.tensor, .splits = slice.splits});
  return placements;
}

std::vector<std::string> ShardedUnits::names() const {
  std::vector<std::string> names = setup_.names_elsewhere;
  for (const auto& unit : units_)
    for (const NamedParameter& parameter : unit->trained) names.push_back(parameter.name);
  return names;
}

void ShardedUnits::add_to(SlicedState& state, const std::string& prefix) const {
  for (const auto& unit : units_)
    for (const FlatShard& shard : unit->shards)
      for (std::size_t i = 0; i < shard.slices().size(); ++i) {
        const auto& [name, tensor, sparse] = shard.parameters()[shard.own()[i].parameter];
        state.tensors[prefix + name] = slice_of_whole(name, tensor.sizes().vec(), shard.own()[i].begin,
                                                      shard.slices()[i].tensor.detach(), splits_of(tensor));
      }
}

std::size_t ShardedUnits::bytes() const {
  std::size_t bytes = 0;
  for (const auto& [key, buffers] : buffers_) bytes += buffers->bytes();
  for (const auto& unit : units_)
    for (const FlatShard& shard : unit->shards) bytes += shard.bytes();
  return bytes;
}

}  // namespace weft::sharded
