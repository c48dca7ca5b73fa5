// ShardedEmbedding: a table of rows by id, distributed over owners by a hash of the id. A row is created on
// first use. Passes look rows up, and a step updates the rows with the gradients of its passes (the parameter
// server of Li and others 2014, for sparse models).
//
//   dist_optim::EmbeddingOptions options{.dimension = 16, .optimizer = RowOptimizer::adagrad(0.05)};
//   dist_optim::ShardedEmbedding embedding{agent, options, {agent.peer("ps0"), agent.peer("ps1")}, "users"};
//   auto rows = co_await embedding.lookup(pass, ids);     // [ids' shape …, 16]
//   co_await pass.backward(loss(rows));
//   co_await embedding.step(pass);                        // each row by its own gradient, on its owner
//
// Owners must call allow_create<EmbeddingShard>(). If the embedding has a name, its shards live as long as
// their owners' agents, and all trainers that give the same name, options and owners work on the same rows.
// Otherwise the shards live as long as RRefs to them exist. docs/sharded_embedding.md states the guarantees.
//
// lookup() reads the ids, and step() collects the gradients, before the call returns. Errors of the futures:
// invalid_argument for ids or offsets that are not int64 on the CPU; failed_precondition for a step of a pass
// without gradients; owner_lost. Thread-safe. A ShardedEmbedding may be destroyed while its calls are in
// flight.
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
  // Shard: one owner's part. Bag: the operation by which lookup_bags() combines the rows of a bag.
  using Shard = EmbeddingShard::Ref;
  enum class Bag : std::uint8_t { sum, mean };

  // Creates the shards, or finds those of this name. Blocks until the agent is connected to all owners.
  ShardedEmbedding(rpc::Agent& agent, const EmbeddingOptions& options, const std::vector<rpc::Peer>& owners,
                   const std::optional<std::string>& name = {});
  // An embedding over existing shards: the shards() of another ShardedEmbedding.
  ShardedEmbedding(rpc::Agent& agent, std::int64_t dimension, std::vector<Shard> shards);

  rpc::Future<void> ready() const;  // completes when all shards are created, or with the error of one
  std::vector<Shard> shards() const { return client_->shards(); }  // of all owners, in their order

  // --- Training ---
  // ids: int64, of any shape. Returns [ids' shape …, dimension]. Each distinct id is requested once. The
  // gradients of the rows stay in the pass, on this agent.
  rpc::Future<at::Tensor> lookup(const dist_autograd::Pass& pass, const at::Tensor& ids) const;
  // The counterpart of torch::nn::EmbeddingBag: row i of the result is the sum or mean of the rows of
  // ids[offsets[i]] … ids[offsets[i+1]-1].
  rpc::Future<at::Tensor> lookup_bags(const dist_autograd::Pass& pass, const at::Tensor& ids,
                                      const at::Tensor& offsets, Bag mode) const;
  // Updates the rows with the gradients of all lookups of the pass or passes, summed for each id, in one call
  // to each owner. A pass can step once. The options are those of DistributedOptimizer::step, over the rows
  // of this embedding only. To step the embedding together with modules, give it to a DistributedOptimizer;
  // while a DistributedOptimizer is attached, step() fails with failed_precondition.
  rpc::Future<StepResult> step(const dist_autograd::Pass& pass, const StepOptions& options = {}) const {
    return step(std::span(&pass, 1), options);
  }
  rpc::Future<StepResult> step(std::span<const dist_autograd::Pass> passes,
                               const StepOptions& options = {}) const;
  rpc::Future<void> set_learning_rate(double rate) const;

  // --- Reading ---
  // Reads rows without gradients. It creates no rows and does not count as use. A missing row has the values
  // with which it would be created.
  rpc::Future<at::Tensor> read(const at::Tensor& ids) const;
  rpc::Future<std::vector<ShardStats>> stats() const;

  // --- Rows ---
  // Evicts the rows that were not used in the last `updates` updates of their owner; returns the number of
  // rows.
  rpc::Future<std::uint64_t> evict_unused(std::uint32_t updates) const;
  // Adds one owner, while training continues. failed_precondition: another owner is being added.
  rpc::Future<void> grow(const rpc::Peer& owner) const;

  // --- Checkpoints ---
  // Saves into a directory on each owner. incremental: an owner writes the changes since its last file in the
  // directory; an owner that has no file there writes all rows. The checkpoint is complete when the future
  // completes.
  rpc::Future<SavedRows> save(const std::string& directory, bool incremental = false) const;
  // Loads the newest complete checkpoint in the directory into an embedding without rows. Any number of
  // owners may have written it. Returns the number of rows. not_found: no checkpoint is complete. After an
  // error the embedding has no rows, and load() may be called again.
  rpc::Future<std::uint64_t> load(const std::string& directory) const;

  // Converts to a participant of a DistributedOptimizer.
  operator std::shared_ptr<dist_optim::StepParticipant>() const { return client_; }

 private:
  std::shared_ptr<EmbeddingClient> client_;
};

}  // namespace weft::dist_optim
