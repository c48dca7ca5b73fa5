// EmbeddingShard: one owner's part of a ShardedEmbedding, behind an RRef: serves lookups and updates of the
// rows that the partition assigns to it, hands rows over when an owner is added, and writes and reads
// checkpoints.
//
// One shard serves an id at any moment. The number of owners determines which one, and each shard has its own
// view of that number. A shard refuses a request for an id that it does not own as a whole, without an
// effect, and returns the number of owners that it knows.
//
// Growth (docs/sharded_embedding.md): hand_over() on an old owner counts one owner more at once, sends the
// rows that it no longer owns in blocks, and deletes them when the new owner has those of all old ones; if
// that fails, it returns to the previous owners. The new owner keeps calls about rows that have not arrived
// yet waiting.
//
// Owned by its agent, by RRef. Its methods run one at a time, in its turn; methods that are tasks end their
// turn while they wait for another shard. Errors: invalid_argument for tensors that do not fit.
#pragma once

#include <weft/dist_optim/embedding/checkpoint_file.h>
#include <weft/dist_optim/service/stepped_object.h>
#include <weft/rpc/tensor/tensor_codec.h>
#include <weft/rref/rref.h>

#include <atomic>
#include <memory>
#include <optional>

namespace weft::dist_optim {

// How one shard is made.
struct ShardOptions {
  std::int64_t dimension = 0;
  RowOptimizer optimizer;
  RowInitializer initializer;
  std::uint64_t capacity = 0;  // maximum number of rows; the least recently used are evicted. 0: no limit
  std::uint32_t index = 0;     // the index of this shard,
  std::uint32_t owners = 1;    // and the number of shards
  bool added = false;          // to others that have rows, which have not arrived yet
};
WEFT_CODEC(ShardOptions, dimension, optimizer, initializer, capacity, index, owners, added)

// refused: the call had no effect, because some of the ids belong to other shards; `owners` is their number,
// as far as this shard knows.
struct ShardAnswer {
  bool refused = false;
  std::uint32_t owners = 0;
  at::Tensor rows;  // of a lookup
};
WEFT_CODEC(ShardAnswer, refused, owners, rows)

// Counters of one shard since it was made; rows and bytes are those that it has now.
struct ShardStats {
  std::uint32_t index = 0, owners = 0;
  std::uint64_t rows = 0, bytes = 0;
  std::uint64_t lookup_calls = 0, rows_looked_up = 0;
  std::uint64_t update_calls = 0, rows_updated = 0;
  std::uint64_t evicted = 0;  // rows
  std::uint64_t refused = 0;  // calls
  std::uint64_t waited = 0;   // calls, for rows in transit
};
WEFT_CODEC(ShardStats, index, owners, rows, bytes, lookup_calls, rows_looked_up, update_calls, rows_updated,
           evicted, refused, waited)

// What save() has written.
struct SavedRows {
  std::uint64_t sequence = 0;  // of the checkpoint
  std::uint64_t rows = 0;      // written
  std::uint32_t full = 0;      // files that have all rows of their owner, of those that were written
};
WEFT_CODEC(SavedRows, sequence, rows, full)

class WEFT_EXPORT EmbeddingShard final : public dist_optim::SteppedObject {
 public:
  // A reference to a shard. options: those of its embedding, with the shard's place.
  using Ref = rref::RRef<EmbeddingShard>;

  // invalid_argument: the options fit no shard.
  explicit EmbeddingShard(ShardOptions options);

  // --- Rows. ids: [n] int64; gradients and returned rows: [n, dimension] float ---
  // make: rows are created on first use, and count as used; otherwise as in RowStore::lookup.
  rpc::Task<ShardAnswer> lookup(rpc::CallContext& call, at::Tensor ids, bool make);
  // One tick of the rows' ages. failed_precondition while an optimizer steps the shard.
  rpc::Task<ShardAnswer> update(rpc::CallContext& call, at::Tensor ids, at::Tensor gradients);
  // The same for a step of optimizers that have the shard as a participant (RowTarget). check_gradient():
  // failed_precondition if some rows belong to another shard, or have not arrived yet.
  void check_gradient(const at::Tensor& ids, const at::Tensor& gradients) const;
  void apply(const at::Tensor& ids, const at::Tensor& gradients);
  std::unique_ptr<dist_optim::StepTarget> make_step_target(
      std::shared_ptr<dist_optim::SteppedObject> self) override;
  std::uint64_t evict_unused(std::uint32_t age);  // rows not used for that number of updates of this shard
  void set_learning_rate(double rate);
  ShardStats stats() const;
  ShardOptions options() const;  // with the present values

  // --- Growth ---
  // On shard 0: makes all `shards` hand over to `added`. failed_precondition if they are not all, or if
  // another growth or the loading of a checkpoint is in progress.
  rpc::Task<void> grow(Ref added, std::vector<Ref> shards);
  // The request of grow() to each shard. failed_precondition while an optimizer steps the shard.
  rpc::Task<void> hand_over(rpc::CallContext& call, Ref added, std::uint32_t index);
  void take(at::Tensor ids, at::Tensor ages, at::Tensor records);  // rows that are now this shard's
  // That shard has sent all of its rows; completes when all shards have sent all.
  rpc::Task<void> arrived(rpc::CallContext& call, std::uint32_t source);
  void abandon(std::string reason);                  // no more rows will arrive
  std::vector<Ref> later(std::uint32_t from) const;  // the shards from this number on

  // --- Checkpoints ---
  std::vector<CheckpointFile> list(std::string directory) const;
  SavedRows save(std::string directory, std::uint64_t sequence, bool incremental, std::uint32_t owners);
  // On shard 0: makes shard readers[i] read chains[i], for every i. Returns the number of rows.
  // failed_precondition if `shards` are not all, or if a growth or another loading runs; until it ends,
  // growth and saving are refused.
  rpc::Task<std::uint64_t> load_all(std::string directory, std::vector<std::vector<CheckpointFile>> chains,
                                    std::vector<std::uint32_t> readers, std::vector<Ref> shards);
  // The request of load_all(): reads one owner's files and gives every row to the shard that owns it.
  rpc::Task<std::uint64_t> load(std::string directory, std::vector<CheckpointFile> chain,
                                std::vector<Ref> shards);

  using Service = rpc::Service<
      "weft.embedding_shard", rpc::Constructor<ShardOptions>, rpc::Method<"lookup", &EmbeddingShard::lookup>,
      rpc::Method<"update", &EmbeddingShard::update>,
      rpc::Method<"evict_unused", &EmbeddingShard::evict_unused>,
      rpc::Method<"set_learning_rate", &EmbeddingShard::set_learning_rate>,
      rpc::Method<"stats", &EmbeddingShard::stats>, rpc::Method<"options", &EmbeddingShard::options>,
      rpc::Method<"grow", &EmbeddingShard::grow>, rpc::Method<"hand_over", &EmbeddingShard::hand_over>,
      rpc::Method<"take", &EmbeddingShard::take>, rpc::Method<"arrived", &EmbeddingShard::arrived>,
      rpc::Method<"abandon", &EmbeddingShard::abandon>, rpc::Method<"later", &EmbeddingShard::later>,
      rpc::Method<"list", &EmbeddingShard::list>, rpc::Method<"save", &EmbeddingShard::save>,
      rpc::Method<"load_all", &EmbeddingShard::load_all>, rpc::Method<"load", &EmbeddingShard::load>>;

 private:
  // A handler that waits, until something changes or its result is not wanted any more: the shard keeps it,
  // and it keeps the shard.
  struct Waiting {
    std::atomic_flag over;
    rpc::Promise<void> promise;
    void end(rpc::Result<void> result) {
      if (!over.test_and_set()) promise.complete(std::move(result));
    }
  };
  // The rows for which an added shard still waits.
  struct Arrivals {
    std::vector<bool> arrived;  // by source
    std::size_t open = 0;
    std::exception_ptr failed;
    std::vector<std::shared_ptr<Waiting>> waiting;  // for any change of the above
  };
  // The starting point of the next incremental checkpoint.
  struct Base {
    std::string directory;
    CheckpointFile file;
    RowStore::Epoch epoch = 0;
  };

  struct Outcome {
    std::exception_ptr error;
  };
  struct LoadedRows {
    std::uint64_t rows = 0;
    std::exception_ptr error;
  };

  // Completes when the ids are this shard's and their rows have arrived: with nothing; or with the reply that
  // refuses them.
  rpc::Task<std::optional<ShardAnswer>> admit(rpc::CallContext& call, std::span<const std::int64_t> ids);
  bool owns(std::span<const std::int64_t> ids) const;
  bool is_still_to_come(std::span<const std::int64_t> ids) const;
  rpc::Future<void> next_arrival(rpc::CallContext& call);
  void wake();
  void keep_capacity();
  // With that number of owners, and no growth in progress here.
  void require_settled(std::uint32_t owners) const;

  const ShardOptions options_;
  const std::uint32_t index_;
  const std::uint64_t capacity_;
  std::uint32_t owners_;
  RowStore rows_;
  bool handing_over_ = false;  // some of rows_ already belong to the last of later_
  bool moving_ = false;        // grow() or load_all() runs
  std::optional<Arrivals> arrivals_;
  const std::uint32_t later_from_;
  std::vector<Ref> later_;  // shards added in this one's lifetime: later_from_, later_from_ + 1, …
  std::optional<Base> base_;
  ShardStats counts_;
};

}  // namespace weft::dist_optim
