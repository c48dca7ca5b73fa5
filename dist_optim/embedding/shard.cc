#include <weft/dist_optim/embedding/shard.h>

#include <weft/dist_optim/embedding/partition.h>
#include <weft/dist_optim/embedding/row_target.h>
#include <weft/dist_optim/local/internal/row_tensors.h>
#include <weft/dist_optim/service/internal/owned_parameters_guard.h>
#include <weft/rpc/core/when_all.h>
#include <weft/rref/rref_layer.h>

#include <ATen/ops/empty.h>

#include <algorithm>

namespace weft::dist_optim {
namespace {

constexpr RowStore::Row rows_a_block = 1 << 15;
constexpr std::int64_t largest_dimension = 1 << 20;

rpc::Error refused_state(const std::string& what) {
  return rpc::Error(rpc::ErrorKind::failed_precondition, "embedding: " + what);
}

void refuse_while_stepped(rpc::CallContext& call, const std::string& what) {
  const auto* target = call.slots().find<rref::RRefLayer::Target>();
  if (target == nullptr) return;
  const auto guard = std::dynamic_pointer_cast<OwnedParametersGuard>(target->object->guard());
  if (guard != nullptr && guard->owned().is_stepped())
    throw refused_state(what + " while a DistributedOptimizer steps it; destroy all its handles first");
}

std::size_t dimension_of(const ShardOptions& options) {
  if (options.dimension < 1 || options.dimension > largest_dimension)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "embedding: the dimension is " + std::to_string(options.dimension) + ", expected 1 to 2^20");
  if (options.owners == 0 || options.index >= options.owners || (options.added && options.owners == 1))
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "embedding: invalid shard " +
                                                           std::to_string(options.index) + " of " +
                                                           std::to_string(options.owners));
  return static_cast<std::size_t>(options.dimension);
}

// A call through an RRef outlives a lost connection, so an error is final.
rpc::Task<void> send_rows(EmbeddingShard::Ref to, RowBlock block, std::size_t record_size) {
  const at::Tensor ids = tensor_of(block.ids), ages = tensor_of(block.ages);
  const at::Tensor records = tensor_of(block.records, record_size);
  co_await to.call<&EmbeddingShard::take>(ids, ages, records);
}

}  // namespace

EmbeddingShard::EmbeddingShard(ShardOptions options)
    : options_(options),
      index_(options.index),
      capacity_(options.capacity),
      owners_(options.owners),
      rows_(dimension_of(options), options.optimizer, options.initializer),
      later_from_(options.owners) {
  if (!options.added) return;
  arrivals_ = Arrivals();
  arrivals_->arrived.resize(owners_ - 1);
  arrivals_->open = owners_ - 1;
}

// --- Rows ---

bool EmbeddingShard::owns(std::span<const std::int64_t> ids) const {
  return std::all_of(ids.begin(), ids.end(),
                     [&](std::int64_t id) { return owner_of(id, owners_) == index_; });
}

bool EmbeddingShard::is_still_to_come(std::span<const std::int64_t> ids) const {
  return arrivals_ && std::any_of(ids.begin(), ids.end(), [&](std::int64_t id) {
           return !arrivals_->arrived[owner_of(id, owners_ - 1)];
         });
}

rpc::Task<std::optional<ShardAnswer>> EmbeddingShard::admit(rpc::CallContext& call,
                                                            std::span<const std::int64_t> ids) {
  for (bool first = true;; first = false) {
    std::optional<ShardAnswer> refusal;
    if (arrivals_ && arrivals_->failed != nullptr) {
      refusal.emplace(ShardAnswer{true, owners_ - 1, {}});
    } else if (!owns(ids)) {
      refusal.emplace(ShardAnswer{true, owners_, {}});
    }
    if (refusal) ++counts_.refused;
    if (refusal || !is_still_to_come(ids)) co_return std::move(refusal);
    if (first) ++counts_.waited;
    co_await next_arrival(call);
  }
}

rpc::Task<ShardAnswer> EmbeddingShard::lookup(rpc::CallContext& call, at::Tensor ids, bool make) {
  const auto some = ids_in(ids);
  std::optional<ShardAnswer> refusal = co_await admit(call, some);
  if (refusal) co_return std::move(*refusal);
  const auto count = static_cast<std::int64_t>(some.size());
  ShardAnswer answer{false, owners_,
                     at::empty({count, static_cast<std::int64_t>(rows_.dimension())}, at::kFloat)};
  rows_.lookup(some, answer.rows.mutable_data_ptr<float>(), make);
  ++counts_.lookup_calls;
  counts_.rows_looked_up += some.size();
  keep_capacity();
  co_return std::move(answer);
}

void EmbeddingShard::check_gradient(const at::Tensor& ids, const at::Tensor& gradients) const {
  const auto some = ids_in(ids);
  floats_in(gradients, some.size(), rows_.dimension(), "gradients of rows");
  if (!owns(some) || is_still_to_come(some))
    throw refused_state(
        "shard " + std::to_string(index_) + " of " + std::to_string(owners_) +
        " does not have all rows of this step: an owner was added; create the DistributedOptimizer "
        "again, over the embedding as it is now");
}

std::unique_ptr<dist_optim::StepTarget> EmbeddingShard::make_step_target(
    std::shared_ptr<dist_optim::SteppedObject> self) {
  return std::make_unique<RowTarget>(std::shared_ptr<EmbeddingShard>(std::move(self), this));
}

void EmbeddingShard::apply(const at::Tensor& ids, const at::Tensor& gradients) {
  const auto some = ids_in(ids);
  rows_.update(some, floats_in(gradients, some.size(), rows_.dimension(), "gradients of rows").data());
  rows_.tick();
  ++counts_.update_calls;
  counts_.rows_updated += some.size();
  keep_capacity();
}

rpc::Task<ShardAnswer> EmbeddingShard::update(rpc::CallContext& call, at::Tensor ids, at::Tensor gradients) {
  refuse_while_stepped(call, "rows are not updated one by one");
  const auto some = ids_in(ids);
  floats_in(gradients, some.size(), rows_.dimension(), "gradients of rows");
  std::optional<ShardAnswer> refusal = co_await admit(call, some);
  if (refusal) co_return std::move(*refusal);
  apply(ids, gradients);
  ShardAnswer answer{false, owners_, {}};
  co_return std::move(answer);
}

// Evicts a sixteenth more rows than necessary. The search for old rows then has its cost only once for many
// new rows.
void EmbeddingShard::keep_capacity() {
  if (capacity_ == 0 || rows_.size() <= capacity_) return;
  counts_.evicted += rows_.evict_to(capacity_ - capacity_ / 16);
}

std::uint64_t EmbeddingShard::evict_unused(std::uint32_t age) {
  const std::size_t evicted = rows_.evict_older(age);
  counts_.evicted += evicted;
  return evicted;
}

void EmbeddingShard::set_learning_rate(double rate) {
  RowOptimizer with = rows_.optimizer();
  with.learning_rate = rate;
  with.check();
  rows_.set_learning_rate(rate);
}

ShardStats EmbeddingShard::stats() const {
  ShardStats now = counts_;
  now.index = index_;
  now.owners = owners_;
  now.rows = rows_.size();
  now.bytes = rows_.bytes();
  return now;
}

ShardOptions EmbeddingShard::options() const {
  ShardOptions now = options_;
  now.optimizer = rows_.optimizer();
  now.owners = owners_;
  now.added = false;
  return now;
}

// --- Growth ---

void EmbeddingShard::require_settled(std::uint32_t owners) const {
  if (moving_ || handing_over_ || arrivals_)
    throw refused_state(
        "an owner is being added, or a checkpoint is being loaded; try again when that is done");
  if (owners != owners_)
    throw refused_state("the embedding has " + std::to_string(owners_) + " owners, but the call names " +
                        std::to_string(owners));
}

rpc::Task<void> EmbeddingShard::grow(Ref added, std::vector<Ref> shards) {
  require_settled(static_cast<std::uint32_t>(shards.size()));
  moving_ = true;
  std::vector<rpc::Future<Outcome>> parts;
  for (const Ref& shard : shards)
    parts.push_back(shard.call<&EmbeddingShard::hand_over>(added, static_cast<std::uint32_t>(shards.size()))
                        .then([added](rpc::Result<void>&& result) {
                          // At the new owner the other shards wait for this shard's rows: end that wait.
                          if (!result.ok()) {
                            try {
                              added.notify<&EmbeddingShard::abandon>(rpc::what_of(result.error()));
                            } catch (const rpc::Error&) {
                              // The new owner is lost; the other shards know this from their own calls.
                            }
                          }
                          return Outcome{result.error()};
                        }));
  auto all = rpc::when_all(std::move(parts));
  const std::vector<Outcome> outcomes = co_await std::move(all);
  moving_ = false;
  std::exception_ptr failed;  // the cause; `aborted` is only a consequence
  for (const Outcome& outcome : outcomes)
    if (outcome.error != nullptr && (failed == nullptr || rpc::error_kind(failed) == rpc::ErrorKind::aborted))
      failed = outcome.error;
  if (failed != nullptr) std::rethrow_exception(failed);
}

rpc::Task<void> EmbeddingShard::hand_over(rpc::CallContext& call, Ref added, std::uint32_t index) {
  refuse_while_stepped(call, "an embedding does not grow");
  if (handing_over_ || arrivals_ || index != owners_) {
    require_settled(index);
    throw refused_state("an owner is being added");
  }
  handing_over_ = true;
  ++owners_;  // from here on, requests for moving rows are refused, so the rows sent below are in their last
              // state
  later_.push_back(added);
  const RowStore::Wanted moves = [this](std::int64_t id) { return owner_of(id, owners_) != index_; };
  std::exception_ptr failed;
  try {
    for (RowStore::Row from = 0; from < rows_.end();
         from += std::min<RowStore::Row>(rows_a_block, rows_.end() - from)) {
      RowBlock block = rows_.take_out(from, rows_a_block, 0, moves);
      if (!block.ids.empty()) co_await send_rows(added, std::move(block), rows_.record_size());
    }
    co_await added.call<&EmbeddingShard::arrived>(index_);
  } catch (...) {
    failed = std::current_exception();
  }
  if (failed != nullptr) {
    // All rows of this shard are still here, and the new owner does not serve without them. So undo the
    // change.
    --owners_;
    later_.pop_back();
    handing_over_ = false;
    std::rethrow_exception(failed);
  }
  // Removes the rows in blocks; other calls get their turn between two blocks.
  for (RowStore::Row from = 0; from < rows_.end();
       from += std::min<RowStore::Row>(rows_a_block, rows_.end() - from)) {
    for (const std::int64_t id : rows_.take_out(from, rows_a_block, 0, moves).ids) rows_.erase(id);
    try {
      co_await added.ready();
    } catch (const rpc::Error&) {
      // The new owner was lost in the meantime, and its rows with it.
    }
  }
  handing_over_ = false;
}

void EmbeddingShard::take(at::Tensor ids, at::Tensor ages, at::Tensor records) {
  if (arrivals_ && arrivals_->failed != nullptr) std::rethrow_exception(arrivals_->failed);
  const auto some = ids_in(ids);
  const auto used = ages_in(ages, some.size());
  const auto floats = floats_in(records, some.size(), rows_.record_size(), "rows with their state");
  const RowBlock block{
      {some.begin(), some.end()}, {used.begin(), used.end()}, {floats.begin(), floats.end()}};
  if (!owns(block.ids))
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "embedding: shard " + std::to_string(index_) + " of " +
                                                           std::to_string(owners_) +
                                                           " received rows that belong to another shard");
  rows_.put(block);
  keep_capacity();
}

rpc::Future<void> EmbeddingShard::next_arrival(rpc::CallContext& call) {
  auto waiting = std::make_shared<Waiting>();
  auto future = waiting->promise.future();
  arrivals_->waiting.push_back(waiting);
  call.on_cancel([weak = std::weak_ptr(waiting)] {
    if (const auto waits = weak.lock())
      waits->end(std::make_exception_ptr(
          rpc::Error(rpc::ErrorKind::cancelled, "embedding: the caller has cancelled this call")));
  });
  return future;
}

void EmbeddingShard::wake() {
  const auto waiting = std::exchange(arrivals_->waiting, {});
  if (arrivals_->open == 0) arrivals_.reset();
  for (const auto& waits : waiting) waits->end(rpc::Result<void>());
}

rpc::Task<void> EmbeddingShard::arrived(rpc::CallContext& call, std::uint32_t source) {
  if (arrivals_ && arrivals_->failed == nullptr && source < arrivals_->arrived.size() &&
      !arrivals_->arrived[source]) {
    arrivals_->arrived[source] = true;
    --arrivals_->open;
    wake();
  }
  while (arrivals_ && arrivals_->failed == nullptr) co_await next_arrival(call);
  if (arrivals_) std::rethrow_exception(arrivals_->failed);
}

void EmbeddingShard::abandon(std::string reason) {
  if (!arrivals_ || arrivals_->failed != nullptr) return;
  arrivals_->failed = std::make_exception_ptr(
      rpc::Error(rpc::ErrorKind::aborted, "embedding: adding an owner failed: " + reason));
  wake();
}

std::vector<EmbeddingShard::Ref> EmbeddingShard::later(std::uint32_t from) const {
  if (from < later_from_)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "embedding: shard " + std::to_string(index_) +
                                                           " does not know shard " + std::to_string(from));
  const std::size_t skip = std::min<std::size_t>(from - later_from_, later_.size());
  return {later_.begin() + static_cast<std::ptrdiff_t>(skip), later_.end()};
}

// --- Checkpoints ---

std::vector<CheckpointFile> EmbeddingShard::list(std::string directory) const {
  return checkpoint_files(directory);
}

SavedRows EmbeddingShard::save(std::string directory, std::uint64_t sequence, bool incremental,
                               std::uint32_t owners) {
  require_settled(owners);
  CheckpointFile file{sequence, 0, index_, owners_};
  RowStore::Epoch since = 0;
  if (incremental && base_ && base_->directory == directory && base_->file.sequence < sequence &&
      rows_.remembers(base_->epoch) && std::filesystem::exists(base_->directory + "/" + base_->file.name())) {
    file.previous = base_->file.sequence;
    since = base_->epoch;
  }
  const RowStore::Epoch epoch = rows_.close_epoch();
  const std::uint64_t written = write_checkpoint(directory, file, rows_, since);
  rows_.remember(epoch);
  base_ = Base{directory, file, epoch};
  return {sequence, written, since == 0 ? 1u : 0u};
}

rpc::Task<std::uint64_t> EmbeddingShard::load_all(std::string directory,
                                                  std::vector<std::vector<CheckpointFile>> chains,
                                                  std::vector<std::uint32_t> readers,
                                                  std::vector<Ref> shards) {
  require_settled(static_cast<std::uint32_t>(shards.size()));
  if (readers.size() != chains.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "embedding: " + std::to_string(chains.size()) +
                                                           " chains of checkpoint files, but " +
                                                           std::to_string(readers.size()) + " readers");
  moving_ = true;
  std::vector<rpc::Future<LoadedRows>> parts;
  for (std::size_t i = 0; i < chains.size(); ++i)
    parts.push_back(shards[readers[i] % shards.size()]
                        .call<&EmbeddingShard::load>(directory, chains[i], shards)
                        .then([](rpc::Result<std::uint64_t>&& rows) {
                          return rows.ok() ? LoadedRows{rows.value(), nullptr} : LoadedRows{0, rows.error()};
                        }));
  auto all = rpc::when_all(std::move(parts));  // all complete before growth is allowed again
  const std::vector<LoadedRows> loaded = co_await std::move(all);
  std::uint64_t rows = 0;
  std::exception_ptr failed;
  for (const LoadedRows& one : loaded) {
    if (failed == nullptr) failed = one.error;
    rows += one.rows;
  }
  if (failed != nullptr) {
    // Some rows are loaded. Without them, load() may be called again.
    std::vector<rpc::Future<Outcome>> emptied;
    for (const Ref& shard : shards)
      emptied.push_back(
          shard.call<&EmbeddingShard::evict_unused>(0U).then([](rpc::Result<std::uint64_t>&& result) {
            return Outcome{result.error()};  // a lost owner has no rows
          }));
    auto all_emptied = rpc::when_all(std::move(emptied));
    (void)co_await std::move(all_emptied);
  }
  moving_ = false;
  if (failed != nullptr) std::rethrow_exception(failed);
  co_return rows;
}

rpc::Task<std::uint64_t> EmbeddingShard::load(std::string directory, std::vector<CheckpointFile> chain,
                                              std::vector<Ref> shards) {
  // Shard 0 ensures that no growth runs at the same time, so `shards` are the owners until the end.
  if (handing_over_ || arrivals_ || shards.size() != owners_)
    throw refused_state("an owner was added; load the checkpoint again");
  RowStore read(rows_.dimension(), rows_.optimizer(), RowInitializer{});
  for (const CheckpointFile& file : chain) read_checkpoint(directory, file, read);
  for (RowStore::Row from = 0; from < read.end();
       from += std::min<RowStore::Row>(rows_a_block, read.end() - from)) {
    for (std::uint32_t owner = 0; owner < shards.size(); ++owner) {
      const RowStore::Wanted is_theirs = [owner, owners = static_cast<std::uint32_t>(shards.size())](
                                             std::int64_t id) { return owner_of(id, owners) == owner; };
      RowBlock block = read.take_out(from, rows_a_block, 0, is_theirs);
      if (owner == index_) {
        rows_.put(block);
      } else if (!block.ids.empty()) {
        co_await send_rows(shards[owner], std::move(block), read.record_size());
      }
    }
  }
  keep_capacity();
  co_return read.size();
}

}  // namespace weft::dist_optim
