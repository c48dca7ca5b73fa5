// EmbeddingShard: one owner's part of a ShardedEmbedding, behind an RRef. It serves lookups and updates of
// the rows that the partition assigns to it, hands rows over when an owner is added, and writes and reads
// checkpoints.
//
// At any moment one shard serves an id. The number of owners determines which shard this is; each shard
// stores this number. If a request contains an id that the shard does not own, the shard refuses the whole
// request, without an effect, and returns the number of owners that it knows.
//
// Growth (docs/sharded_embedding.md): hand_over() on an old owner increments the number of owners at once and
// sends, in blocks, the rows that it no longer owns. It deletes these rows when the new owner has received
// the rows of all old owners. If that fails, the old owner returns to the previous number. If a call at the
// new owner needs rows that have not arrived, the call waits for them.
//
// Owned by its agent, by RRef. Its methods run one at a time, in the shard's turn. A method that is a task
// ends its turn while it waits for another shard. Errors: invalid_argument for tensors of a wrong dtype or
// shape.
#pragma once

#include <weft/dist_optim/embedding/checkpoint_file.h>
#include <weft/dist_optim/service/stepped_object.h>
#include <weft/rpc/tensor/tensor_codec.h>
#include <weft/rref/rref.h>

#include <atomic>
#include <memory>
#include <optional>

namespace weft::dist_optim {

// The arguments with which a shard is created.
struct ShardOptions {
  std::int64_t dimension = 0;
  RowOptimizer optimizer;
  RowInitializer initializer;
  std::uint64_t capacity = 0;  // maximum number of rows; the least recently used are evicted. 0: no limit
  std::uint32_t index = 0;     // the index of this shard
  std::uint32_t owners = 1;    // the number of shards, including this one
  bool added = false;  // true: grow() adds this shard, and the other shards still have to send its rows
};
WEFT_CODEC(ShardOptions, dimension, optimizer, initializer, capacity, index, owners, added)

// The reply to lookup() and update(). refused: the call had no effect, because some of the ids belong to
// other shards. owners: the number of owners that this shard knows.
struct ShardAnswer {
  bool refused = false;
  std::uint32_t owners = 0;
  at::Tensor rows;  // of a lookup
};
WEFT_CODEC(ShardAnswer, refused, owners, rows)

// Counters of one shard since its creation. rows and bytes are the present values.
struct ShardStats {
  std::uint32_t index = 0, owners = 0;
  std::uint64_t rows = 0, bytes = 0;
  std::uint64_t lookup_calls = 0, rows_looked_up = 0;
  std::uint64_t update_calls = 0, rows_updated = 0;
  std::uint64_t evicted = 0;  // rows
  std::uint64_t refused = 0;  // calls
  std::uint64_t waited = 0;   // calls that waited for rows in transit
};
WEFT_CODEC(ShardStats, index, owners, rows, bytes, lookup_calls, rows_looked_up, update_calls, rows_updated,
           evicted, refused, waited)

// The result of save().
struct SavedRows {
  std::uint64_t sequence = 0;  // of the checkpoint
  std::uint64_t rows = 0;      // the number of rows that were written
  std::uint32_t full = 0;      // the number of files that have all rows of their owner
};
WEFT_CODEC(SavedRows, sequence, rows, full)

class WEFT_EXPORT EmbeddingShard final : public dist_optim::SteppedObject {
 public:
  // A reference to a shard.
  using Ref = rref::RRef<EmbeddingShard>;

  // options: those of the embedding, with the index of this shard. invalid_argument: an option is out of
  // range.
  explicit EmbeddingShard(ShardOptions options);

  // --- Rows. ids: [n] int64; gradients and returned rows: [n, dimension] float ---
  // make: as in RowStore::lookup().
  rpc::Task<ShardAnswer> lookup(rpc::CallContext& call, at::Tensor ids, bool make);
  // Updates the rows and increments the clock of the rows' ages. failed_precondition: an optimizer steps the
  // shard.
  rpc::Task<ShardAnswer> update(rpc::CallContext& call, at::Tensor ids, at::Tensor gradients);
  // The update by an optimizer that has the shard as a participant (RowTarget): check_gradient(), then
  // apply(). check_gradient() fails with failed_precondition if some rows belong to another shard or have not
  // arrived yet.
  void check_gradient(const at::Tensor& ids, const at::Tensor& gradients) const;
  void apply(const at::Tensor& ids, const at::Tensor& gradients);
  std::unique_ptr<dist_optim::StepTarget> make_step_target(
      std::shared_ptr<dist_optim::SteppedObject> self) override;
  std::uint64_t evict_unused(std::uint32_t age);  // evicts rows that were not used in the last `age` updates
  void set_learning_rate(double rate);
  ShardStats stats() const;
  ShardOptions options() const;  // with the present values

  // --- Growth ---
  // Called on shard 0. Calls hand_over() on each of `shards`, so that they send rows to `added`.
  // failed_precondition: `shards` are not all shards, or another growth or the loading of a checkpoint is in
  // progress.
  rpc::Task<void> grow(Ref added, std::vector<Ref> shards);
  // grow() calls it on each shard. failed_precondition: an optimizer steps the shard.
  rpc::Task<void> hand_over(rpc::CallContext& call, Ref added, std::uint32_t index);
  void take(at::Tensor ids, at::Tensor ages, at::Tensor records);  // adds rows that another shard hands over
  // Shard `source` has sent all rows that it hands over. Completes when all shards have done so.
  rpc::Task<void> arrived(rpc::CallContext& call, std::uint32_t source);
  void abandon(std::string reason);                  // no more rows will arrive
  std::vector<Ref> later(std::uint32_t from) const;  // the shards with index `from` or higher

  // --- Checkpoints ---
  std::vector<CheckpointFile> list(std::string directory) const;
  SavedRows save(std::string directory, std::uint64_t sequence, bool incremental, std::uint32_t owners);
  // Called on shard 0. For every i, shard readers[i] reads the files chains[i]. Returns the number of rows.
  // failed_precondition: `shards` are not all shards, or a growth or another loading is in progress. Growth
  // and saving are refused until it has completed.
  rpc::Task<std::uint64_t> load_all(std::string directory, std::vector<std::vector<CheckpointFile>> chains,
                                    std::vector<std::uint32_t> readers, std::vector<Ref> shards);
  // load_all() calls it on each reader: reads one owner's files and sends every row to the shard that owns
  // it.
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
  // A handler that waits until a shard has sent its rows, or until the caller cancels. The shard and the
  // handler keep each other alive until then.
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
    std::size_t open = 0;       // the number of sources that have not arrived
    std::exception_ptr failed;
    std::vector<std::shared_ptr<Waiting>> waiting;  // for any change of the members above
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

  // If some ids belong to other shards, completes at once with the reply that refuses the call. Otherwise
  // completes with nullopt when the rows of the ids have arrived.
  rpc::Task<std::optional<ShardAnswer>> admit(rpc::CallContext& call, std::span<const std::int64_t> ids);
  bool owns(std::span<const std::int64_t> ids) const;
  bool is_still_to_come(std::span<const std::int64_t> ids) const;
  rpc::Future<void> next_arrival(rpc::CallContext& call);
  void wake();
  void keep_capacity();
  // Throws unless this shard knows that number of owners and no growth is in progress here.
  void require_settled(std::uint32_t owners) const;

  const ShardOptions options_;
  const std::uint32_t index_;
  const std::uint64_t capacity_;
  std::uint32_t owners_;
  RowStore rows_;
  bool handing_over_ = false;  // some of rows_ already belong to the last shard in later_
  bool moving_ = false;        // grow() or load_all() runs
  std::optional<Arrivals> arrivals_;
  const std::uint32_t later_from_;
  std::vector<Ref> later_;  // shards that were added after this one: later_from_, later_from_ + 1, …
  std::optional<Base> base_;
  ShardStats counts_;
};

}  // namespace weft::dist_optim
