// EmbeddingClient: one program's list of the shards of a ShardedEmbedding, and its requests to them. A
// request is divided among the owners of its ids. If a shard refuses its part because the number of owners
// has changed, the client updates its list of shards and repeats that part.
//
// Shared by a ShardedEmbedding and its work in flight. Its tasks run on the agent's handler threads.
// Thread-safe. Errors: those of the shards and of the connections, and aborted if the owners disagree on the
// number of owners. After an error, each owner has done its part completely or not at all.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/embedding/id_batch.h>
#include <weft/dist_optim/embedding/shard.h>
#include <weft/dist_optim/participant.h>
#include <weft/dist_optim/service/step_messages.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <functional>
#include <map>
#include <memory>
#include <span>

namespace weft::dist_optim {

class EmbeddingClient final : public dist_optim::StepParticipant,
                              public std::enable_shared_from_this<EmbeddingClient> {
 public:
  // Ptr: clients are shared. Shard: the shard of one owner. Ids: the ids of a lookup, shared by its calls.
  using Ptr = std::shared_ptr<EmbeddingClient>;
  using Shard = EmbeddingShard::Ref;
  using Ids = std::shared_ptr<const UniqueIds>;

  // dimension: the number of elements of a row. shards: the shards of all owners, by index.
  EmbeddingClient(std::shared_ptr<rpc::AgentCore> core, std::size_t dimension, std::vector<Shard> shards)
      : core_(std::move(core)), dimension_(dimension), shards_(std::move(shards)) {}

  // dimension(): the number of elements of a row. shards(): the shards of all owners that the client knows
  // now.
  std::size_t dimension() const { return dimension_; }
  std::vector<Shard> shards() const;
  // Starts the task on the agent's handler threads.
  template <class T>
  rpc::Future<T> start(rpc::Task<T> task) const {
    return std::move(task).start(core_->handlers());
  }

  // Returns the rows of the ids, [ids, dimension] float32, each id once. make: passed to
  // EmbeddingShard::lookup().
  static rpc::Task<at::Tensor> lookup(Ptr self, Ids ids, bool make);
  // Updates each row once, with its gradient in `sums`.
  static rpc::Task<void> update(Ptr self, std::shared_ptr<const GradientSums::Sums> sums);
  // Requests the number of owners from a shard, and updates the list of shards.
  static rpc::Task<void> refresh(Ptr self);
  // Appends shards to the list. No effect if the number of shards in the list is no longer `known`.
  void add(std::size_t known, std::vector<Shard> more);

  // --- The rows that passes have looked up ---
  struct LookedUpRows {
    at::Tensor leaf;  // the rows of `ids`, in the order of `ids`
    Ids ids;
  };
  // The end of the pass calls forget().
  void keep(const std::shared_ptr<dist_autograd::PassState>& pass, LookedUpRows lookup);
  std::vector<LookedUpRows> kept(const dist_autograd::PassId& pass) const;
  void forget(const dist_autograd::PassId& pass);

  // --- Steps ---
  // The gradients of the rows that the passes have looked up, summed for each id. passes: the passes that
  // have computed a gradient of some row.
  struct PassRows {
    std::vector<dist_autograd::PassId> passes;
    GradientSums::Sums sums;
  };
  PassRows gradients_of(std::span<const dist_autograd::Pass> passes) const;
  // For a DistributedOptimizer. objects(): the shards. step_rows(): the gradients of gradients_of(), divided
  // among the shards; failed_precondition if the number of shards is not `owners`.
  std::vector<rref::ReferencePtr> objects() const override;
  std::vector<StepRows> step_rows(std::span<const dist_autograd::Pass> passes,
                                  std::size_t owners) const override;
  void admit_with(const std::shared_ptr<const Admit>& admit) override;
  // Requests the admission of the pass from each optimizer that has called admit_with().
  static rpc::Task<void> admit(Ptr self, dist_autograd::PassId pass);

 private:
  // ask_owners(): calls `ask` with the part of each owner and `take` with each answer; repeats refused parts.
  using Ask = std::function<rpc::Future<ShardAnswer>(const Shard&, const OwnerBatch&)>;
  using Take = std::function<void(const OwnerBatch&, const ShardAnswer&)>;
  static rpc::Task<void> ask_owners(Ptr self, std::shared_ptr<const std::vector<std::int64_t>> ids, Ask ask,
                                    Take take);
  // A shard reported `owners` owners, and this client knew `known`: updates the list of shards.
  static rpc::Task<void> follow(Ptr self, Shard shard, std::size_t known, std::size_t owners);

  const std::shared_ptr<rpc::AgentCore> core_;
  const std::size_t dimension_;
  mutable rpc::Mutex mutex_;
  std::vector<Shard> shards_ WEFT_GUARDED_BY(mutex_);
  std::map<dist_autograd::PassId, std::vector<LookedUpRows>> kept_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<const Admit>> admissions_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim
