// EmbeddingClient: a program's view of a ShardedEmbedding's shards, and its requests to them: to each for its
// own ids, and again if an owner was added meanwhile.
//
// Shared by a ShardedEmbedding and its work in flight. Its tasks run on the agent's handler threads.
// Thread-safe. Errors: those of the shards and of the connections; with an error, each owner has done its
// part completely or not at all.
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
  // The client is shared; a Shard is one owner's part; Ids are shared by the calls of a lookup.
  using Ptr = std::shared_ptr<EmbeddingClient>;
  using Shard = EmbeddingShard::Ref;
  using Ids = std::shared_ptr<const UniqueIds>;

  // dimension: elements of a row. shards: of all owners, in their order.
  EmbeddingClient(std::shared_ptr<rpc::AgentCore> core, std::size_t dimension, std::vector<Shard> shards)
      : core_(std::move(core)), dimension_(dimension), shards_(std::move(shards)) {}

  // Elements of a row; the shards of all owners known now.
  std::size_t dimension() const { return dimension_; }
  std::vector<Shard> shards() const;
  template <class T>  // on the handler threads
  rpc::Future<T> start(rpc::Task<T> task) const {
    return std::move(task).start(core_->handlers());
  }

  static rpc::Task<at::Tensor> lookup(Ptr self, Ids ids, bool make);  // [ids, dimension], each id once
  // Applies gradients to their rows, each once.
  static rpc::Task<void> update(Ptr self, std::shared_ptr<const GradientSums::Sums> sums);
  // Asks for the number of owners.
  static rpc::Task<void> refresh(Ptr self);
  void add(std::size_t known, std::vector<Shard> more);  // to the first `known`

  // --- The rows that passes have looked up ---
  struct Kept {
    at::Tensor leaf;  // the rows of ids, in their order
    Ids ids;
  };
  void keep(const std::shared_ptr<dist_autograd::PassState>& pass, Kept lookup);
  std::vector<Kept> kept(const dist_autograd::PassId& pass) const;
  void forget(const dist_autograd::PassId& pass);

  // --- Steps ---
  // The gradients of the passes' rows, summed for each id, and the passes that have some.
  struct PassRows {
    std::vector<dist_autograd::PassId> passes;
    GradientSums::Sums sums;
  };
  PassRows gradients_of(std::span<const dist_autograd::Pass> passes) const;
  // For a DistributedOptimizer: the shards, and the same gradients divided among `owners` shards.
  std::vector<rref::ReferencePtr> objects() const override;
  std::vector<StepRows> step_rows(std::span<const dist_autograd::Pass> passes,
                                  std::size_t owners) const override;
  void admit_with(const std::shared_ptr<const Admit>& admit) override;
  static rpc::Task<void> admit(Ptr self, dist_autograd::PassId pass);

 private:
  using Ask = std::function<rpc::Future<ShardAnswer>(const Shard&, const OwnerBatch&)>;
  using Take = std::function<void(const OwnerBatch&, const ShardAnswer&)>;
  static rpc::Task<void> ask_owners(Ptr self, std::shared_ptr<const std::vector<std::int64_t>> ids, Ask ask,
                                    Take take);
  // A shard reported `owners` owners, while this knew `known`.
  static rpc::Task<void> follow(Ptr self, Shard shard, std::size_t known, std::size_t owners);

  const std::shared_ptr<rpc::AgentCore> core_;
  const std::size_t dimension_;
  mutable rpc::Mutex mutex_;
  std::vector<Shard> shards_ WEFT_GUARDED_BY(mutex_);
  std::map<dist_autograd::PassId, std::vector<Kept>> kept_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<const Admit>> admissions_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim
