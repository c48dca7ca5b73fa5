#include <weft/dist_optim/embedding/sharded_embedding.h>

#include <weft/dist_autograd/pass_state.h>
#include <weft/dist_optim/local/gradients.h>
#include <weft/dist_optim/local/internal/row_tensors.h>
#include <weft/rpc/core/when_all.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <numeric>

namespace weft::dist_optim {
namespace {

using Client = EmbeddingClient;

struct BagShape {
  at::Tensor offsets;
  ShardedEmbedding::Bag mode;
};

Client::Ids read_ids(const at::Tensor& ids) {
  const at::Tensor plain = ids.defined() ? ids.contiguous() : ids;
  return std::make_shared<const UniqueIds>(unique_ids(ids_in(plain)));
}

at::Tensor read_offsets(const at::Tensor& offsets, std::int64_t ids) {
  at::Tensor own = offsets.defined() ? offsets.clone() : offsets;
  const auto all = ids_in(own);
  if (own.dim() != 1 || (!all.empty() && all.front() != 0) || !std::is_sorted(all.begin(), all.end()) ||
      (!all.empty() && all.back() > ids))
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "embedding: lookup_bags: expected offsets that begin with 0, do not decrease and do not exceed " +
            std::to_string(ids) + ", the number of ids");
  return own;
}

// Calls and their arguments are checked at once. Errors are reported by the future.
template <class T, class F>
rpc::Future<T> as_future(F&& f) {
  try {
    return f();
  } catch (...) {
    return rpc::Future<T>::made(std::current_exception());
  }
}

rpc::Task<at::Tensor> lookup_rows(Client::Ptr client, std::shared_ptr<dist_autograd::PassState> pass,
                                  Client::Ids ids, std::vector<std::int64_t> shape,
                                  std::optional<BagShape> bags) {
  if (pass != nullptr) co_await Client::admit(client, pass->id());
  at::Tensor leaf = co_await Client::lookup(client, ids, pass != nullptr);
  const at::Tensor inverse = tensor_of(ids->inverse);
  if (pass != nullptr) {
    leaf.set_requires_grad(true);
    client->keep(pass, {leaf, ids});
  }
  at::AutoGradMode grad(pass != nullptr);
  if (bags) {
    const std::int64_t mode = bags->mode == ShardedEmbedding::Bag::mean ? 1 : 0;
    co_return std::get<0>(at::embedding_bag(leaf, inverse, bags->offsets, false, mode));
  }
  shape.push_back(static_cast<std::int64_t>(client->dimension()));
  co_return at::index_select(leaf, 0, inverse).view(shape);
}

// Calls a method of every shard, and returns all replies.
template <auto Method, class... Given>
auto ask_all(const std::vector<Client::Shard>& shards, const Given&... given) {
  std::vector<decltype(shards.front().template call<Method>(given...))> parts;
  for (const auto& shard : shards) parts.push_back(shard.template call<Method>(given...));
  return rpc::when_all(std::move(parts));
}

rpc::Task<std::vector<ShardStats>> all_stats(Client::Ptr client) {
  co_await Client::refresh(client);
  const auto shards = client->shards();
  auto all = ask_all<&EmbeddingShard::stats>(shards);
  co_return co_await std::move(all);
}

rpc::Task<std::uint64_t> evict_all(Client::Ptr client, std::uint32_t updates) {
  co_await Client::refresh(client);
  const auto shards = client->shards();
  auto all = ask_all<&EmbeddingShard::evict_unused>(shards, updates);
  const std::vector<std::uint64_t> evicted = co_await std::move(all);
  co_return std::accumulate(evicted.begin(), evicted.end(), std::uint64_t{0});
}

rpc::Task<void> set_rate(Client::Ptr client, double rate) {
  co_await Client::refresh(client);
  const auto shards = client->shards();
  auto all = ask_all<&EmbeddingShard::set_learning_rate>(shards, rate);
  co_await std::move(all);
}

rpc::Task<void> add_owner(Client::Ptr client, rpc::Peer owner) {
  co_await Client::refresh(client);
  co_await owner.ready();
  const auto shards = client->shards();
  ShardOptions options = co_await shards.front().call<&EmbeddingShard::options>();
  options.index = static_cast<std::uint32_t>(shards.size());
  options.owners = options.index + 1;
  options.added = true;
  const Client::Shard added = rref::create<EmbeddingShard>(owner, options);
  co_await added.ready();
  std::exception_ptr failed;
  try {
    co_await shards.front().call<&EmbeddingShard::grow>(added, shards);
  } catch (const rpc::Error&) {
    failed = std::current_exception();
  }
  if (failed != nullptr) {
    // Shard 0 has reported this, too, unless it is the lost one.
    added.notify<&EmbeddingShard::abandon>(std::string("its coordinator failed"));
    std::rethrow_exception(failed);
  }
  client->add(shards.size(), {added});
}

rpc::Task<SavedRows> save_all(Client::Ptr client, std::string directory, bool incremental) {
  co_await Client::refresh(client);
  const auto shards = client->shards();
  auto listing = ask_all<&EmbeddingShard::list>(shards, directory);
  const std::vector<std::vector<CheckpointFile>> lists = co_await std::move(listing);
  std::uint64_t sequence = 1;
  for (const auto& list : lists)
    for (const CheckpointFile& file : list) sequence = std::max(sequence, file.sequence + 1);
  const auto owners = static_cast<std::uint32_t>(shards.size());
  auto saving = ask_all<&EmbeddingShard::save>(shards, directory, sequence, incremental, owners);
  const std::vector<SavedRows> saved = co_await std::move(saving);
  SavedRows all{sequence, 0, 0};
  for (const SavedRows& one : saved) {
    all.rows += one.rows;
    all.full += one.full;
  }
  co_return all;
}

rpc::Task<std::uint64_t> load_all(Client::Ptr client, std::string directory) {
  const std::vector<ShardStats> stats = co_await all_stats(client);
  for (const ShardStats& one : stats)
    if (one.rows != 0)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "embedding: load() of an embedding that has rows, expected an empty one");
  const auto shards = client->shards();
  auto listing = ask_all<&EmbeddingShard::list>(shards, directory);
  const std::vector<std::vector<CheckpointFile>> lists = co_await std::move(listing);
  std::vector<CheckpointFile> files;
  for (const auto& list : lists) files.insert(files.end(), list.begin(), list.end());
  const auto newest = newest_checkpoint(std::move(files));
  if (!newest)
    throw rpc::Error(rpc::ErrorKind::not_found, "embedding: no complete checkpoint in " + directory);
  std::vector<std::uint32_t> readers;
  for (std::size_t i = 0; i < newest->chains.size(); ++i) {
    const auto& chain = newest->chains[i];
    // The shards that have the files: all of them if they share the directory; then each reads its part.
    for (std::size_t offset = 0; offset < shards.size(); ++offset) {
      const std::size_t reader = (i + offset) % shards.size();
      const auto& list = lists[reader];
      const bool has_all = std::all_of(chain.begin(), chain.end(), [&](const CheckpointFile& file) {
        return std::binary_search(list.begin(), list.end(), file);
      });
      if (!has_all) continue;
      readers.push_back(static_cast<std::uint32_t>(reader));
      break;
    }
  }
  if (readers.size() != newest->chains.size())
    throw rpc::Error(rpc::ErrorKind::not_found,
                     "embedding: the files of one owner's checkpoint are spread over several owners");
  co_return co_await shards.front().call<&EmbeddingShard::load_all>(directory, newest->chains, readers,
                                                                    shards);
}

std::vector<Client::Shard> create_shards(const EmbeddingOptions& options,
                                         const std::vector<rpc::Peer>& owners,
                                         const std::optional<std::string>& name) {
  ShardOptions shard{options.dimension,
                     options.optimizer,
                     options.initializer,
                     options.capacity,
                     0,
                     static_cast<std::uint32_t>(owners.size()),
                     false};
  std::vector<Client::Shard> shards;
  for (const rpc::Peer& owner : owners) {
    if (name) {
      rref::Named named{"weft.embedding/" + *name + "/" + std::to_string(shard.index)};
      shards.push_back(rref::create<EmbeddingShard>(owner, named, shard));
    } else {
      shards.push_back(rref::create<EmbeddingShard>(owner, shard));
    }
    ++shard.index;
  }
  return shards;
}

}  // namespace

ShardedEmbedding::ShardedEmbedding(rpc::Agent& agent, const EmbeddingOptions& options,
                                   const std::vector<rpc::Peer>& owners,
                                   const std::optional<std::string>& name)
    : ShardedEmbedding(agent, options.dimension, create_shards(options, owners, name)) {}

ShardedEmbedding::ShardedEmbedding(rpc::Agent& agent, std::int64_t dimension, std::vector<Shard> shards) {
  if (shards.empty() || dimension < 1)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "embedding: " + std::to_string(shards.size()) + " owners and dimension " +
                         std::to_string(dimension) + ", expected at least 1 of each");
  client_ =
      std::make_shared<EmbeddingClient>(agent.core(), static_cast<std::size_t>(dimension), std::move(shards));
}

rpc::Future<void> ShardedEmbedding::ready() const {
  std::vector<rpc::Future<void>> parts;
  for (const Shard& shard : shards()) parts.push_back(shard.ready());
  return rpc::when_all(std::move(parts));
}

rpc::Future<at::Tensor> ShardedEmbedding::lookup(const dist_autograd::Pass& pass,
                                                 const at::Tensor& ids) const {
  return as_future<at::Tensor>([&] {
    pass.state()->check_open();
    auto unique = read_ids(ids);
    return client_->start(lookup_rows(client_, pass.state(), unique, ids.sizes().vec(), std::nullopt));
  });
}

rpc::Future<at::Tensor> ShardedEmbedding::lookup_bags(const dist_autograd::Pass& pass, const at::Tensor& ids,
                                                      const at::Tensor& offsets, Bag mode) const {
  return as_future<at::Tensor>([&] {
    pass.state()->check_open();
    auto unique = read_ids(ids);
    const std::optional<BagShape> bags = BagShape{read_offsets(offsets, ids.numel()), mode};
    return client_->start(lookup_rows(client_, pass.state(), unique, {}, bags));
  });
}

rpc::Future<at::Tensor> ShardedEmbedding::read(const at::Tensor& ids) const {
  return as_future<at::Tensor>([&] {
    auto unique = read_ids(ids);
    return client_->start(lookup_rows(client_, nullptr, unique, ids.sizes().vec(), std::nullopt));
  });
}

rpc::Future<StepResult> ShardedEmbedding::step(std::span<const dist_autograd::Pass> passes,
                                               const StepOptions& options) const {
  return as_future<StepResult>([&] {
    options.check();
    Client::PassRows rows = client_->gradients_of(passes);
    for (const auto& pass : passes)
      if (std::find(rows.passes.begin(), rows.passes.end(), pass.id()) == rows.passes.end())
        throw rpc::Error(rpc::ErrorKind::failed_precondition,
                         to_string(pass.id()) +
                             " has no gradients for this embedding: it looked up no rows, its backward "
                             "has not run, or it was stepped with already");
    Gradients gradients;
    gradients[0] = tensor_of(rows.sums.gradients, client_->dimension());
    prepare_gradients(gradients, passes.size(), options);
    const StepDecision decision = decide({measure(gradients, options)}, options);
    if (decision.action == StepDecision::Action::give_up)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "the total norm of order " + std::to_string(options.norm_type) +
                           " of the step's gradients is not finite, so that it cannot be clipped: nothing "
                           "has stepped");
    for (const auto& pass : passes) client_->forget(pass.id());
    const StepResult result{decision.action == StepDecision::Action::apply, decision.total_norm, {}};
    if (!result.applied) return rpc::Future<StepResult>::made(result);
    scale_gradients(gradients, decision.scale);
    const at::Tensor plain = gradients[0].contiguous();
    std::copy_n(plain.const_data_ptr<float>(), rows.sums.gradients.size(), rows.sums.gradients.begin());
    auto sums = std::make_shared<const GradientSums::Sums>(std::move(rows.sums));
    return client_->start(EmbeddingClient::update(client_, sums)).then([result](rpc::Result<void>&& updated) {
      std::move(updated).get();
      return result;
    });
  });
}

rpc::Future<void> ShardedEmbedding::set_learning_rate(double rate) const {
  return client_->start(set_rate(client_, rate));
}
rpc::Future<std::vector<ShardStats>> ShardedEmbedding::stats() const {
  return client_->start(all_stats(client_));
}
rpc::Future<std::uint64_t> ShardedEmbedding::evict_unused(std::uint32_t updates) const {
  return client_->start(evict_all(client_, updates));
}
rpc::Future<void> ShardedEmbedding::grow(const rpc::Peer& owner) const {
  return client_->start(add_owner(client_, owner));
}
rpc::Future<SavedRows> ShardedEmbedding::save(const std::string& directory, bool incremental) const {
  return client_->start(save_all(client_, directory, incremental));
}
rpc::Future<std::uint64_t> ShardedEmbedding::load(const std::string& directory) const {
  return client_->start(load_all(client_, directory));
}

}  // namespace weft::dist_optim
