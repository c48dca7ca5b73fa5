// ShardedEmbedding: a table of rows by id, created on first use, distributed over owners by a hash of the id;
// looked up in passes and updated with their gradients (the parameter server of Li and others 2014, for
// sparse models).
//
//   dist_optim::EmbeddingOptions options{.dimension = 16, .optimizer = RowOptimizer::adagrad(0.05)};
//   dist_optim::ShardedEmbedding embedding{agent, options, {agent.peer("ps0"), agent.peer("ps1")}, "users"};
//   auto rows = co_await embedding.lookup(pass, ids);     // [ids' shape …, 16]
//   co_await pass.backward(loss(rows));
//   co_await embedding.step(pass);                        // each row by its own gradient, on its owner
//
// Owners must have allow_create<EmbeddingShard>(). With a name, the shards live until their owners' agents
// end, and all trainers that give the same name, options and owners work on the same rows. Without a name
// they live as long as RRefs to them exist. docs/sharded_embedding.md states the guarantees.
//
// Ids are read and gradients collected before lookup() and step() return. The futures have the errors:
// invalid_argument for ids or offsets that are not int64 on the CPU; failed_precondition for a step of a pass
// without gradients; owner_lost. Thread-safe. It may be destroyed while its work is in flight.
#pragma once

#include <weft/dist_optim/embedding/client.h>
#include <weft/dist_optim/local/step_options.h>

#include <optional>
#include <span>
#include <string>

namespace weft::dist_optim {

struct EmbeddingOptions {
  std::int64_t dimension = 0;
  RowOptimizer optimizer;
  RowInitializer initializer;
  std::uint64_t capacity =
      0;  // maximum number of rows of one owner; the least recently used are evicted. 0: no limit
};

class WEFT_EXPORT ShardedEmbedding {
 public:
  // One owner's part; how lookup_bags() combines the rows of a bag.
  using Shard = EmbeddingShard::Ref;
  enum class Bag : std::uint8_t { sum, mean };

  // Connects to owners that are not known yet, and waits for that.
  ShardedEmbedding(rpc::Agent& agent, const EmbeddingOptions& options, const std::vector<rpc::Peer>& owners,
                   const std::optional<std::string>& name = {});
  // Over all shards of another one, in their order.
  ShardedEmbedding(rpc::Agent& agent, std::int64_t dimension, std::vector<Shard> shards);

  rpc::Future<void> ready() const;  // all shards are created, or the error of one
  std::vector<Shard> shards() const { return client_->shards(); }  // of all owners, in their order

  // --- Training ---
  // Each distinct id is requested once. The rows' gradients stay in the pass, on this agent.
  rpc::Future<at::Tensor> lookup(const dist_autograd::Pass& pass, const at::Tensor& ids) const;
  // As torch::nn::EmbeddingBag: bag i is the sum or mean of the rows of ids[offsets[i]] …
  // ids[offsets[i+1]-1].
  rpc::Future<at::Tensor> lookup_bags(const dist_autograd::Pass& pass, const at::Tensor& ids,
                                      const at::Tensor& offsets, Bag mode) const;
  // The gradients of all lookups of the pass (of all the passes), summed for each id, in one call to each
  // owner. Once for each pass. The options are those of DistributedOptimizer::step, over the rows of this
  // embedding only. To step it together with modules, give it to a DistributedOptimizer; while one steps it,
  // this fails with failed_precondition.
  rpc::Future<StepResult> step(const dist_autograd::Pass& pass, const StepOptions& options = {}) const {
    return step(std::span(&pass, 1), options);
  }
  rpc::Future<StepResult> step(std::span<const dist_autograd::Pass> passes,
                               const StepOptions& options = {}) const;
  rpc::Future<void> set_learning_rate(double rate) const;

  // --- Reading ---
  // Without gradient. Creates no rows and does not count as use: missing rows read as they would be created.
  rpc::Future<at::Tensor> read(const at::Tensor& ids) const;
  rpc::Future<std::vector<ShardStats>> stats() const;

  // --- Rows ---
  // Evicts the rows that were not used for that number of updates of their owner; returns their number.
  rpc::Future<std::uint64_t> evict_unused(std::uint32_t updates) const;
  // Adds one owner, while training continues. failed_precondition if one is being added already.
  rpc::Future<void> grow(const rpc::Peer& owner) const;

  // --- Checkpoints ---
  // Saves into a directory on each owner. incremental: the changes since this owner's last file in it; an
  // owner without a file there writes all rows. Complete once the future completes.
  rpc::Future<SavedRows> save(const std::string& directory, bool incremental = false) const;
  // Loads the newest complete checkpoint of any number of owners, into an embedding without rows. not_found
  // if no checkpoint is complete. Returns the number of rows.
  rpc::Future<std::uint64_t> load(const std::string& directory) const;

  // To step it with a DistributedOptimizer.
  operator std::shared_ptr<dist_optim::StepParticipant>() const { return client_; }

 private:
  std::shared_ptr<EmbeddingClient> client_;
};

}  // namespace weft::dist_optim
