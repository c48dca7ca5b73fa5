// There are two slots for commits: `confirmed_`, and `staged_` for the next commit. Their memory is used
// again. If a rank fails before it knows that all ranks have staged a commit, it has both commits. It offers
// both, and the ranks use the commit to which they return. The same holds for reshard(): its result is
// staged, and confirmed once all ranks have it.
#include <weft/parallel/elastic/sharded/sharded_part.h>

#include <weft/parallel/elastic/sharded/exchange_plan.h>
#include <weft/parallel/sharded/checkpoint/cpu_copy.h>
#include <weft/parallel/training/internal/agreement.h>
#include <weft/rpc/core/when_all.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>
#include <utility>

namespace weft::elastic {
namespace detail {
namespace {

using collectives::Group;
using collectives::PointToPoint;
using sharded::SharedElements;
using sharded::SlicedState;
using sharded::SlicedTensor;
using sharded::SliceRange;
using Slices = std::map<std::string, SlicedTensor>;

constexpr std::uint64_t share_tag = std::uint64_t{1} << 62;  // of messages, away from those of programs

std::vector<SliceRange> ranges_of(const Slices& slices) {
  std::vector<SliceRange> ranges;
  for (const auto& [name, tensor] : slices)
    ranges.push_back({name, tensor.sizes, c10::toString(tensor.values.scalar_type()), tensor.begin,
                      tensor.begin + tensor.values.numel(), tensor.runs});
  return ranges;
}

bool is_equal(const SliceRange& a, const SliceRange& b) {
  return a.name == b.name && a.sizes == b.sizes && a.dtype == b.dtype && a.begin == b.begin &&
         a.end == b.end && a.runs == b.runs;
}

at::ScalarType type_named(const std::string& name) {
  for (int type = 0; type < static_cast<int>(at::ScalarType::NumOptions); ++type)
    if (name == c10::toString(static_cast<at::ScalarType>(type))) return static_cast<at::ScalarType>(type);
  throw rpc::Error(rpc::ErrorKind::protocol_error,
                   "elastic: a tensor has the type '" + name + "', expected a name such as Float");
}

// A shard of another rank.
struct CopiedShard {
  std::string owner;
  Slices slices;
};

struct ShardedCommit {
  bool is_made = false;
  std::uint64_t number = 0;
  std::string owner;                 // this worker
  std::vector<std::string> workers;  // of the commit
  sharded::CpuCopy own;
  std::map<std::string, std::string> notes;
  std::set<std::string> names;  // of the tensors of all ranks
  std::vector<CopiedShard> copies;

  const Slices& shard(std::size_t index) const {
    return index == 0 ? own.tensors() : copies[index - 1].slices;
  }
  void add_to(RankIndex& index) const {
    index.workers = workers;
    index.notes = notes;
    index.names.insert(index.names.end(), names.begin(), names.end());
    index.shards.push_back({owner, ranges_of(own.tensors())});
    for (const CopiedShard& copy : copies) index.shards.push_back({copy.owner, ranges_of(copy.slices)});
  }
};

class ShardedObjectsPart final : public ShardedPart {
 public:
  ShardedObjectsPart(ShardedObjects objects, const ShardedPartOptions& options)
      : objects_(std::move(objects)), copies_(options.copies) {}

  std::string kind() const override { return "sharded, " + std::to_string(copies_) + " copies"; }
  void stage(std::uint64_t number, const Group* group) override;
  void commit() override {
    if (!staged_.is_made) return;
    std::swap(confirmed_, staged_);
    staged_.is_made = false;
    awaits_values_ = false;
  }
  void forget() override { confirmed_.is_made = staged_.is_made = false; }
  void restore() override;
  void reshard(const Group& group, std::uint64_t number) override;
  bool has_values() const override { return !awaits_values_; }

 private:
  void exchange_names(const Group& group);
  void copy_shard(const Group& group, int distance);

  const ShardedObjects objects_;
  const int copies_;
  ShardedCommit confirmed_, staged_;
  std::set<std::string> own_names_, all_names_;  // of the latest exchange in this generation
  bool awaits_values_ = false;                   // the live objects have new shards without values
};

void ShardedObjectsPart::stage(std::uint64_t number, const Group* group) {
  SlicedState live;
  objects_.add_to(live);
  staged_.is_made = false;
  staged_.number = number;
  staged_.own.copy(live.tensors);
  staged_.notes = std::move(live.notes);
  staged_.workers = group == nullptr ? std::vector<std::string>() : group->members();
  staged_.owner = group == nullptr ? "" : staged_.workers[static_cast<std::size_t>(group->rank())];
  staged_.names.clear();
  if (group != nullptr) {
    exchange_names(*group);
    staged_.names = all_names_;
  }
  for (const auto& [name, tensor] : staged_.own.tensors()) staged_.names.insert(name);
  const int copies = group == nullptr ? 0 : std::min(copies_, group->size() - 1);
  staged_.copies.resize(static_cast<std::size_t>(copies));
  for (int distance = 1; distance <= copies; ++distance) copy_shard(*group, distance);
  staged_.is_made = true;
}

// If only one rank has a tensor, the other ranks can detect its loss only if they know its name. Names
// change rarely: an optimizer's first step creates its state.
void ShardedObjectsPart::exchange_names(const Group& group) {
  std::set<std::string> own;
  for (const auto& [name, tensor] : staged_.own.tensors()) own.insert(name);
  const at::Tensor changed = at::full({1}, own == own_names_ ? 0 : 1, at::kByte);
  group.inlined().all_reduce(changed, collectives::ReduceOp::max).get();
  if (changed.item<std::uint8_t>() == 0) return;
  const std::vector<std::string> names(own.begin(), own.end());
  all_names_.clear();
  for (const auto& rank : group.all_gather_object(names).get()) all_names_.insert(rank.begin(), rank.end());
  own_names_ = std::move(own);
}

// Copies the shard of the rank at this distance after this rank. The rank at this distance before this rank
// gets a copy of this rank's shard. Slices that the receiver has itself are left out.
void ShardedObjectsPart::copy_shard(const Group& group, int distance) {
  const int from = (group.rank() + distance) % group.size(),
            to = (group.rank() - distance + group.size()) % group.size();
  const auto own = ranges_of(staged_.own.tensors());
  std::vector<rpc::Future<void>> in_flight;
  in_flight.push_back(group.send_object(own, from, share_tag));
  const auto known = group.recv_object<std::vector<SliceRange>>(to, share_tag).get();
  std::vector<SliceRange> sent;
  std::vector<PointToPoint> messages;
  auto next = known.begin();
  for (const SliceRange& range : own) {
    while (next != known.end() && next->name < range.name) ++next;
    if (next != known.end() && is_equal(*next, range)) continue;
    sent.push_back(range);
    if (range.begin < range.end)
      messages.push_back(
          {.tensor = staged_.own.tensors().at(range.name).values, .peer = to, .tag = share_tag});
  }
  in_flight.push_back(group.send_object(sent, to, share_tag));
  CopiedShard& copy = staged_.copies[static_cast<std::size_t>(distance - 1)];
  auto memory = std::exchange(copy.slices, {});
  copy.owner = staged_.workers[static_cast<std::size_t>(from)];
  for (const SliceRange& range : group.recv_object<std::vector<SliceRange>>(from, share_tag).get()) {
    const at::ScalarType type = type_named(range.dtype);
    at::Tensor values = memory[range.name].values;
    if (!values.defined() || values.numel() != range.end - range.begin || values.scalar_type() != type)
      values = at::empty({range.end - range.begin}, type);
    copy.slices[range.name] = {range.sizes, range.begin, values, range.runs};
    if (range.begin < range.end)
      messages.push_back(
          {.kind = PointToPoint::Kind::recv, .tensor = values, .peer = from, .tag = share_tag});
  }
  if (!messages.empty()) in_flight.push_back(group.batch(std::move(messages), group.options().timeout));
  rpc::when_all(std::move(in_flight)).get();
}

// Objects with new shards have no values before reshard(), which always follows.
void ShardedObjectsPart::restore() {
  if (awaits_values_ || !confirmed_.is_made) return;
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : confirmed_.own.tensors()) names.push_back(name);
  SlicedState live;
  objects_.add_wanted_to(live, names);
  for (auto& [name, tensor] : live.tensors)
    tensor.values.detach().copy_(confirmed_.own.tensors().at(name).values);
  live.notes = confirmed_.notes;
  objects_.take_from(live);
}

void ShardedObjectsPart::reshard(const Group& group, std::uint64_t number) {
  const at::NoGradGuard no_grad;
  awaits_values_ = true;
  objects_.set_group(group);
  // Another rank has confirmed the commit that this rank has only staged.
  if (staged_.is_made && staged_.number == number && confirmed_.number != number)
    std::swap(confirmed_, staged_);
  RankIndex own;
  std::vector<const Slices*> shards;
  for (const ShardedCommit* const commit : {&confirmed_, &staged_}) {
    if (!commit->is_made || commit->number != number) continue;
    commit->add_to(own);
    for (std::size_t i = 0; i <= commit->copies.size(); ++i) shards.push_back(&commit->shard(i));
  }
  const auto ranks = group.all_gather_object(own).get();

  std::set<std::string> names;
  std::map<std::string, std::string> notes;
  for (const RankIndex& rank : ranks) {
    if (notes.empty()) notes = rank.notes;
    names.insert(rank.names.begin(), rank.names.end());
  }
  SlicedState wanted;
  objects_.add_wanted_to(wanted, {names.begin(), names.end()});
  const auto all_wanted = group.all_gather_object(ranges_of(wanted.tensors)).get();
  std::vector<ExchangePiece> pieces;
  try {
    pieces = plan_exchange(ranks, all_wanted);
  } catch (const rpc::Error& error) {
    training::throw_on_all_ranks(group, error);
  }

  std::vector<PointToPoint> messages;
  std::vector<std::pair<at::Tensor, at::Tensor>> arrivals;  // to, from
  for (const ExchangePiece& piece : pieces) {
    at::Tensor from, to;
    if (piece.from == group.rank()) {
      const SlicedTensor& slice = shards[piece.shard]->at(piece.name);
      from = slice.values.narrow(0, piece.elements.from - slice.begin, piece.elements.count);
    }
    if (piece.to == group.rank()) {
      const SlicedTensor& slice = wanted.tensors.at(piece.name);
      to = slice.values.detach().narrow(0, piece.elements.to - slice.begin, piece.elements.count);
    }
    if (from.defined() && to.defined()) {
      to.copy_(from);
    } else if (from.defined()) {
      messages.push_back({.tensor = from, .peer = piece.to, .tag = share_tag});
    } else if (to.defined()) {
      if (!to.is_cpu()) {
        const at::Tensor arrival = at::empty(to.sizes(), to.options().device(at::kCPU));
        arrivals.emplace_back(std::exchange(to, arrival), arrival);
      }
      messages.push_back(
          {.kind = PointToPoint::Kind::recv, .tensor = to, .peer = piece.from, .tag = share_tag});
    }
  }
  if (!messages.empty()) group.batch(std::move(messages), group.options().timeout).get();
  for (const auto& [to, from] : arrivals) to.copy_(from);
  wanted.notes = std::move(notes);
  objects_.take_from(wanted);

  own_names_.clear();
  all_names_.clear();  // all ranks exchange them
  stage(number, &group);
  group.barrier(group.options().timeout).get();  // some ranks transfer more than others
  commit();
}

}  // namespace
}  // namespace detail

std::shared_ptr<StatePart> sharded_part(ShardedObjects objects, ShardedPartOptions options) {
  if (options.copies < 0)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "elastic::sharded_part: " + std::to_string(options.copies) + " copies, expected none or more");
  return std::make_shared<detail::ShardedObjectsPart>(std::move(objects), options);
}

std::shared_ptr<StatePart> sharded_part(sharded::ShardedModule& module,
                                        sharded::FullyShardedOptimizer& optimizer,
                                        ShardedPartOptions options) {
  return sharded_part({.set_group =
                           [&](const collectives::Group& group) {
                             module.set_group(group);
                             optimizer.set_group();
                           },
                       .add_to =
                           [&](sharded::SlicedState& to) {
                             module.add_to(to);
                             optimizer.add_to(to);
                           },
                       .add_wanted_to =
                           [&](sharded::SlicedState& to, const std::vector<std::string>& names) {
                             module.add_to(to);
                             optimizer.add_wanted_to(to, names);
                           },
                       .take_from = [&](const sharded::SlicedState& from) { optimizer.take_from(from); }},
                      options);
}

std::shared_ptr<StatePart> sharded_part(data_parallel::Replica& replica, sharded::ShardedOptimizer& optimizer,
                                        ShardedPartOptions options) {
  return sharded_part(
      {.set_group =
           [&](const collectives::Group& group) {
             replica.set_group(group);
             optimizer.set_group({});
           },
       .add_to = [&](sharded::SlicedState& to) { optimizer.add_to(to); },
       .add_wanted_to = [&](sharded::SlicedState& to,
                            const std::vector<std::string>& names) { optimizer.add_wanted_to(to, names); },
       .take_from = [&](const sharded::SlicedState& from) { optimizer.take_from(from); }},
      options);
}

}  // namespace weft::elastic
