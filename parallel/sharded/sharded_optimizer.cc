// The buckets are gathered from the last to the first one, the order in which backward reaches them, which is
// the same on all ranks.
#include <weft/parallel/sharded/sharded_optimizer.h>

#include <weft/dist_optim/local/slices.h>
#include <weft/parallel/sharded/internal/flat_parameters.h>
#include <weft/parallel/sharded/internal/gather_state.h>
#include <weft/parallel/training/internal/agreement.h>
#include <weft/rpc/core/when_all.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

namespace weft::sharded {

namespace {

[[noreturn]] void refuse(const std::string& why, rpc::ErrorKind kind = rpc::ErrorKind::invalid_argument) {
  throw rpc::Error(kind, "ShardedOptimizer: " + why);
}

// The parameter to which a key of an OptimizerState belongs.
std::string owner_of(const std::string& key, const std::set<std::string>& parameters) {
  std::string name = key.substr(0, key.rfind('/'));
  if (!parameters.contains(name) && name.ends_with(']')) name.resize(name.rfind('['));
  return name;
}

// Returns why the ranks with these descriptions (describe()) cannot step together; nullopt: they can.
std::optional<std::string> difference_of(const std::vector<std::vector<std::string>>& descriptions) {
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank)
    if (const std::string& refusal = descriptions[rank].front(); !refusal.empty())
      return "rank " + std::to_string(rank) + ": " + refusal;
  auto difference = training::difference_of(descriptions, "no further parameter");
  if (difference) *difference += ", expected the same on all ranks";
  return difference;
}

}  // namespace

at::Tensor ShardedOptimizer::Slice::of(const at::Tensor& gradient) const {
  return gradient.detach().reshape({-1}).slice(0, begin, end);
}

ShardedOptimizer::ShardedOptimizer(data_parallel::Replica& replica, dist_optim::OptimizerSpec spec,
                                   ShardedOptimizerOptions options)
    : replica_(replica),
      spec_(std::move(spec)),
      options_(options),
      flat_(std::make_unique<FlatParameters>()) {
  find_parameters();
  start(false);
  if (options_.overlap) replica_.set_on_reduced([this](std::size_t parameter) { on_reduced(parameter); });
}

ShardedOptimizer::~ShardedOptimizer() {
  if (options_.overlap) replica_.set_on_reduced(nullptr);
  if (std::uncaught_exceptions() > exceptions_)
    (void)rpc::capture([&] { group_->abort("an exception has destroyed its ShardedOptimizer"); });
}

// --- The plan ---

// Adds the replica's parameters that are not known yet, if they require grad or have one of these names.
void ShardedOptimizer::find_parameters(const std::set<std::string>& names_of_frozen) {
  std::vector<at::Tensor> tensors = replica_.parameters();
  const std::vector<std::string> names = replica_.parameter_names();
  const auto is_wanted = [&](std::size_t i) {
    return tensors[i].requires_grad() || names_of_frozen.contains(names[i]);
  };
  const auto is_known = [&](std::size_t i) { return indices_[i] || !is_wanted(i); };
  bool known = std::equal(tensors.begin(), tensors.end(), replicated_.begin(), replicated_.end(),
                          [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  for (std::size_t i = 0; known && i < tensors.size(); ++i) known = is_known(i);
  if (known) return;
  const auto placements = tensor_parallel::placements(replica_.replicated_module());
  indices_.clear();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto is_this = [&](const auto& each) { return each.tensor.is_same(tensors[i]); };
    const auto found = std::find_if(parameters_.begin(), parameters_.end(), is_this);
    if (found != parameters_.end()) {
      indices_.emplace_back(found - parameters_.begin());
      continue;
    }
    if (!is_wanted(i)) {
      indices_.emplace_back();
      continue;
    }
    indices_.emplace_back(parameters_.size());
    parameters_.push_back({names[i], tensors[i]});
    const auto placement = std::find_if(placements.begin(), placements.end(), is_this);
    splits_.push_back(placement == placements.end() ? std::vector<tensor_parallel::Split>()
                                                    : placement->splits);
  }
  replicated_ = std::move(tensors);
}

// If a rank has a new group, finds the parameters that any rank knows, in the replica's order: a rank that
// constructs its optimizer does not know those that other ranks have trained and frozen again, and ranks may
// have added them in different orders.
void ShardedOptimizer::find_parameters_of_all_ranks(bool has_new_group) {
  const at::Tensor known = at::zeros({static_cast<std::int64_t>(indices_.size()) + 1}, at::kByte);
  auto* const is_known = known.mutable_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < indices_.size(); ++i) is_known[i] = indices_[i] ? 1 : 0;
  is_known[indices_.size()] = has_new_group ? 1 : 0;
  group_->all_reduce(known, collectives::ReduceOp::max).get();
  if (is_known[indices_.size()] == 0) return;
  const std::vector<std::string> names = replica_.parameter_names();
  std::set<std::string> wanted;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (is_known[i] != 0) wanted.insert(names[i]);
  parameters_.clear();
  splits_.clear();
  replicated_.clear();
  find_parameters(wanted);
}

void ShardedOptimizer::start(bool has_new_group) {
  failure_ = "it has no group yet";
  round_ = {};
  group_ = replica_.group().split(0, replica_.group().rank()).get().value();
  find_parameters_of_all_ranks(has_new_group);
  compare();
  streams_.clear();
  slices_.clear();
  own_.clear();
  bucket_of_.clear();
  *flat_ = {};
  add_buckets(0);
  leaves_ = std::make_unique<dist_optim::ShadowLeaves>(slices_, spec_);
  failure_.reset();
}

// Moves the parameters from `first` on into buckets.
void ShardedOptimizer::add_buckets(std::size_t first) {
  const std::vector<dist_optim::Parameter> added(parameters_.begin() + static_cast<std::ptrdiff_t>(first),
                                                 parameters_.end());
  for (const auto& parameter : added)
    if (!parameter.tensor.is_cpu()) group_->prepare(parameter.tensor.device()).get();
  flat_->add(*group_, added, options_.bucket_bytes);
  own_.resize(parameters_.size());
  bucket_of_.resize(parameters_.size());
  std::unordered_map<c10::Device, std::shared_ptr<training::CommunicationStream>> streams;
  for (std::size_t i = 0; i < streams_.size(); ++i)
    streams[flat_->buckets()[i].buffer.device()] = streams_[i];
  for (std::size_t i = streams_.size(); i < flat_->buckets().size(); ++i) {
    const auto& bucket = flat_->buckets()[i];
    auto& stream = streams[bucket.buffer.device()];
    if (stream == nullptr) stream = std::make_shared<training::CommunicationStream>(bucket.buffer.device());
    for (const std::size_t parameter : bucket.parameters) bucket_of_[parameter] = streams_.size();
    for (const auto& slice : bucket.layout.slices[static_cast<std::size_t>(group_->rank())]) {
      const std::size_t parameter = bucket.parameters[slice.parameter];
      own_[parameter] = {slices_.size(), slice.begin, slice.end, slice.offset};
      slices_.push_back(dist_optim::slice_of(parameters_[parameter], slice.begin, slice.end));
    }
    streams_.push_back(stream);
  }
  for (const auto& stream : streams_) stream->synchronize_current();
}

// Returns one text for each property that all ranks must have in common. The first text is the error of this
// rank.
std::vector<std::string> ShardedOptimizer::describe() const {
  std::vector<std::string> texts{"", "optimizer " + to_string(spec_),
                                 "buckets of " + std::to_string(options_.bucket_bytes) + " bytes",
                                 std::string("overlap ") + (options_.overlap ? "on" : "off")};
  std::vector<std::string> names;
  for (const auto& parameter : parameters_) {
    texts.push_back(training::described("parameter " + parameter.name, parameter.tensor));
    names.push_back(parameter.name);
  }
  try {
    for (const auto& [group, spec] : spec_.by_group()) (void)spec.make({});
    if (!spec_.is_elementwise())
      refuse("optimizer " + spec_.name +
             " steps rows, expected one that steps each element alone: use SGD, "
             "Adam, AdamW, Adagrad, RMSprop, Adadelta, Adamax or Rprop");
    FlatParameters::check(parameters_);
    expect_groups(spec_, names);
  } catch (const std::exception& error) {
    texts.front() = error.what();
  }
  return texts;
}

void ShardedOptimizer::compare() const {
  if (const auto difference = difference_of(group_->all_gather_object(describe()).get()))
    training::throw_on_all_ranks(*group_,
                                 {rpc::ErrorKind::invalid_argument, "ShardedOptimizer: " + *difference});
}

void ShardedOptimizer::set_group(const std::vector<dist_optim::OptimizerState>& states) {
  std::map<std::string, double> rates;
  for (const auto& [group, spec] : spec_.by_group()) rates[group] = leaves_->learning_rate(group);
  find_parameters();
  start(true);
  for (const auto& [group, rate] : rates) leaves_->set_learning_rate(rate, group);
  if (!states.empty()) set_state(states);
}

// --- Steps ---

void ShardedOptimizer::require_usable() const {
  if (failure_)
    refuse("an earlier step failed, and the parameters are unspecified: restore them and call set_group(). " +
               *failure_,
           rpc::ErrorKind::failed_precondition);
}

void ShardedOptimizer::require_no_round(const char* operation) const {
  if (round_.began)
    refuse(std::string(operation) + ": backward has stepped parameters already: call step() first",
           rpc::ErrorKind::failed_precondition);
}

// If f throws, the group is aborted, so the other ranks fail too. The other ranks may still write to the
// group's memory, so the parameters are moved out of it.
template <class F>
void ShardedOptimizer::or_fail(F f) {
  try {
    f();
  } catch (const std::exception& error) {
    failure_ = error.what();
    (void)rpc::capture([&] {
      group_->abort("the step of rank " + std::to_string(group_->rank()) + " failed: " + *failure_);
    });
    drop_round();
    flat_->leave();
    throw;
  }
}

void ShardedOptimizer::drop_round() {
  for (auto& future : round_.in_flight) (void)rpc::capture([&] { future.get(); });
  round_ = {};
  leaves_->end_round();
}

void ShardedOptimizer::add_parameters(const std::set<std::string>& names_of_frozen) {
  const std::size_t known = parameters_.size();
  find_parameters(names_of_frozen);
  if (parameters_.size() == known) return;
  // If another rank has no new parameter, it runs another collective than this one, which the group reports
  // on all ranks (not so for the objects of compare()).
  const at::Tensor counts = at::zeros({group_->size()}, at::kLong);
  group_->all_gather(counts, at::full({1}, static_cast<std::int64_t>(parameters_.size()), at::kLong)).get();
  compare();
  const dist_optim::OptimizerState state = leaves_->state();
  add_buckets(known);
  leaves_ = std::make_unique<dist_optim::ShadowLeaves>(slices_, spec_);
  leaves_->set_state(state);
}

void ShardedOptimizer::begin_round() {
  if (round_.began) return;
  add_parameters({});
  flat_->take_replaced();
  round_ = {};
  round_.began = true;
  round_.arrived.assign(parameters_.size(), 0);
  for (const auto& bucket : flat_->buckets()) round_.missing.push_back(bucket.parameters.size());
}

void ShardedOptimizer::step() {
  require_usable();
  const at::NoGradGuard no_grad;
  if (!options_.overlap)
    for (const auto& [name, tensor, slice] : parameters_)
      if (tensor.grad().defined() && tensor.grad().layout() != at::kStrided)
        refuse("the gradient of " + name +
               " is sparse, expected a dense one: use an Embedding without the option `sparse`");
  or_fail([&] {
    begin_round();
    while (round_.next < flat_->buckets().size()) {
      const std::size_t bucket = flat_->buckets().size() - 1 - round_.next;
      if (!options_.overlap)
        for (const std::size_t parameter : flat_->buckets()[bucket].parameters) take(parameter);
      launch_next();
    }
    finish_round();
  });
}

void ShardedOptimizer::on_reduced(std::size_t parameter) {
  require_usable();
  const at::NoGradGuard no_grad;
  or_fail([&] {
    begin_round();
    if (!indices_[parameter]) return;
    take(*indices_[parameter]);
    while (round_.next < flat_->buckets().size() &&
           round_.missing[flat_->buckets().size() - 1 - round_.next] == 0)
      launch_next();
  });
}

// If a parameter has a gradient, steps this rank's slice of the parameter.
void ShardedOptimizer::take(std::size_t parameter) {
  const auto& [name, tensor, slice] = parameters_[parameter];
  const at::Tensor& gradient = tensor.grad();
  if (!gradient.defined()) return;
  if (gradient.layout() != at::kStrided)
    refuse("the gradient of " + name + " is sparse, expected a dense one");
  if (round_.arrived[parameter] != 0)
    refuse("parameter " + name +
               " has stepped in backward already: call step() after each backward, or no_sync() for the "
               "backwards whose gradients are to be added up",
           rpc::ErrorKind::failed_precondition);
  round_.arrived[parameter] = 1;
  --round_.missing[bucket_of_[parameter]];
  if (const auto& own = own_[parameter]) {
    leaves_->step_one(own->index, own->of(gradient));
    streams_[bucket_of_[parameter]]->note_writer();
  }
}

void ShardedOptimizer::launch_next() {
  const std::size_t index = flat_->buckets().size() - 1 - round_.next;
  const auto& bucket = flat_->buckets()[index];
  give(index);
  streams_[index]->note_writer();
  streams_[index]->follow_writers();
  round_.in_flight.push_back(
      streams_[index]->run([&] { return group_->all_gather(bucket.buffer, bucket.part); }));
  ++round_.next;
}

void ShardedOptimizer::finish_round() {
  rpc::when_all(std::exchange(round_.in_flight, {})).get();
  for (const auto& stream : streams_) stream->begin_reads();
  leaves_->end_round();
  round_ = {};
}

// --- Join ---

// For ranks without a batch: the gradients of their parts.
void ShardedOptimizer::give(std::size_t index) {
  const std::vector<int> without = replica_.ranks_without_batch();
  const auto has_batch = [&](int rank) {
    return std::find(without.begin(), without.end(), rank) == without.end();
  };
  for (int rank = 0; rank < group_->rank(); ++rank)
    if (has_batch(rank)) return;
  if (!has_batch(group_->rank())) return;
  const auto& bucket = flat_->buckets()[index];
  std::vector<std::uint8_t> arrived;
  for (const std::size_t parameter : bucket.parameters) arrived.push_back(round_.arrived[parameter]);
  for (const int rank : without) {
    const at::Tensor part = at::zeros_like(bucket.part);
    for (const auto& [i, begin, end, offset] : bucket.layout.slices[static_cast<std::size_t>(rank)])
      if (arrived[i] != 0)
        part.narrow(0, offset, end - begin)
            .copy_(Slice{0, begin, end, offset}.of(parameters_[bucket.parameters[i]].tensor.grad()));
    round_.in_flight.push_back(group_->send_object(arrived, rank, index));
    round_.in_flight.push_back(group_->send(part, rank, index));
  }
}

void ShardedOptimizer::receive(int source, std::size_t index) {
  const auto& bucket = flat_->buckets()[index];
  const at::Tensor part = at::empty_like(bucket.part);
  const auto arrived = group_->recv_object<std::vector<std::uint8_t>>(source, index).get();
  group_->recv(part, source, index).get();
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    const auto& own = own_[bucket.parameters[i]];
    if (!own || arrived.at(i) == 0) continue;
    leaves_->step_one(own->index, part.narrow(0, own->offset, own->end - own->begin));
  }
}

void ShardedOptimizer::shadow_step(int source) {
  require_usable();
  const at::NoGradGuard no_grad;
  or_fail([&] {
    begin_round();
    while (round_.next < flat_->buckets().size()) {
      receive(source, flat_->buckets().size() - 1 - round_.next);
      launch_next();
    }
    finish_round();
  });
}

// --- Gradients, rates, states ---

void ShardedOptimizer::zero_grad(bool set_to_none) {
  for (const auto& [name, tensor, slice] : parameters_) {
    at::Tensor& gradient = tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient.detach_();
      gradient.zero_();
    }
  }
}

void ShardedOptimizer::set_learning_rate(double rate, const std::optional<std::string>& group) {
  require_no_round("set_learning_rate");
  leaves_->set_learning_rate(rate, group);
}

dist_optim::OptimizerState ShardedOptimizer::state() const {
  require_no_round("state");
  return leaves_->state();
}

void ShardedOptimizer::set_state(const std::vector<dist_optim::OptimizerState>& states) {
  require_no_round("set_state");
  if (states.empty()) refuse("set_state: 0 states, expected at least one");
  std::set<std::string> names;
  for (const auto& parameter : parameters_) names.insert(parameter.name);
  for (const auto& state : states)
    for (const auto& [key, tensor] : state.tensors)
      if (!names.contains(owner_of(key, names)))
        refuse(
            "set_state: the state has " + key +
            ", expected only states of this optimizer's parameters: let the others require grad before the "
            "optimizer is constructed, or load a checkpoint (add_wanted_to())");
  leaves_->set_state(dist_optim::reslice(states, slices_));
}

std::vector<ParameterSlice> ShardedOptimizer::slices() const {
  std::vector<ParameterSlice> slices;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (own_[i])
      slices.push_back({parameters_[i].name, parameters_[i].tensor.sizes().vec(), own_[i]->begin,
                        own_[i]->end, slices_[own_[i]->index], splits_[i]});
  return slices;
}

void ShardedOptimizer::add_to(SlicedState& state, const std::string& prefix) const {
  add_optimizer(state, this->state(), slices(), prefix);
}

// A parameter that is frozen now may begin to require grad after the state is loaded, and then needs its
// state.
void ShardedOptimizer::add_wanted_to(SlicedState& state, const std::vector<std::string>& names,
                                     const std::string& prefix) {
  std::set<std::string> with_state;
  for (const std::string& name : names)
    if (const auto slash = name.rfind('/'); name.starts_with(prefix) && slash > prefix.size())
      with_state.insert(name.substr(prefix.size(), slash - prefix.size()));
  const std::vector<std::string> of_replica = replica_.parameter_names();
  bool known = true;
  for (std::size_t i = 0; i < indices_.size(); ++i)
    known = known && (indices_[i] || !with_state.contains(of_replica[i]));
  if (!known) {
    const at::NoGradGuard no_grad;
    if (round_.began) drop_round();
    or_fail([&] { add_parameters(with_state); });
  }
  add_wanted_optimizer(state, spec_, slices(), names, prefix);
}

void ShardedOptimizer::take_from(const SlicedState& state, const std::string& prefix) {
  if (round_.began) drop_round();
  leaves_->set_state(optimizer_in(state, spec_.name, slices(), prefix));
}

dist_optim::OptimizerState ShardedOptimizer::whole_state(std::optional<int> root) const {
  if (root && (*root < 0 || *root >= group_->size()))
    refuse("whole_state: rank " + std::to_string(*root) + " of " + std::to_string(group_->size()) +
           " ranks, expected 0 to " + std::to_string(group_->size() - 1));
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    for (const tensor_parallel::Split& split : splits_[i])
      if (split.group.size() > 1)
        throw rpc::Error(rpc::ErrorKind::unsupported,
                         "whole_state: the parameter " + parameters_[i].name + " is split over '" +
                             split.group.name() + "', expected parameters that each rank has: use add_to()");
  const at::NoGradGuard no_grad;
  return gather_state(*group_, parameters_, flat_->buckets(), state(), root, flat_->buckets().size());
}

}  // namespace weft::sharded
