// Replica: one rank's copy of a module whose copies on all ranks are trained together. The part of a
// DistributedDataParallel that does not depend on the module's type.
//
// Not thread-safe; gradients may be computed by several threads of the engine.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/parallel/data_parallel/join.h>
#include <weft/parallel/data_parallel/low_precision.h>
#include <weft/parallel/data_parallel/reducer.h>

#include <torch/nn/module.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::data_parallel {

// Another way in which the ranks share the buffers of a module, in training, for iterations that are reduced.
struct BufferHook {
  // By name.
  using Buffers = std::vector<std::pair<std::string, at::Tensor>>;
  // Starts collectives of the group, the same on all ranks, also on ranks without a batch in a join. source:
  // the first rank that has a batch. In a pass it is one launch: the collectives are started before it
  // returns.
  std::function<rpc::Future<void>(const collectives::Group& group, const Buffers& buffers, int source)> run;
  // Off: before forward, which waits for the future. On: after forward; the end of backward waits for the
  // future. In a pass always before.
  bool after_forward = false;
};

class WEFT_EXPORT Replica : public Joining {
 public:
  // All ranks of the group call it, and it blocks. Makes a group of its members for this replica alone
  // (split()), so that other collectives of the program may run at any time. Compares the parameters and
  // buffers of all ranks (failed_precondition with the first difference), and makes them those of rank 0.
  Replica(const collectives::Group& group, std::shared_ptr<torch::nn::Module> module, Options options);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;
  // If an exception destroys the replica, the group is aborted, so that no other rank waits for its timeout.
  // That runs no collective.
  ~Replica() override;

  const collectives::Group& group() const { return group_; }  // of this replica alone
  // The module that each rank has; DistributedDataParallel::module() has its type.
  const torch::nn::Module& replicated_module() const { return *module_; }

  // The backward of a forward that runs while the guard lives accumulates into the gradients of this rank
  // alone. All ranks use it for the same iterations. The next backward outside reduces the accumulated
  // gradients.
  class WEFT_EXPORT NoSync {
   public:
    explicit NoSync(Reducer& reducer);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Reducer& reducer_;
    const bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*reducer_); }

  // The elements of a range, whose number may differ between the ranks (join.h). others: in the order in
  // which they run collectives in forward.
  template <class Range>
  JoinedRange<Range> join(Range& range, const JoinOptions& options = {}, std::vector<Joinable*> others = {}) {
    begin_join(options, std::move(others));
    return JoinedRange<Range>(*this, range);
  }

  // After a join: the rank whose parameters all ranks have. Its optimizer's state is that of most steps.
  int join_source() const { return join_source_; }
  // Within a join, of the present iteration. Empty outside.
  std::vector<int> ranks_without_batch() const { return join_ ? join_->without_batch : std::vector<int>(); }

  // The backwards of the pass average the gradients that the pass has of this replica, and end afterwards.
  // forward(pass, ...) calls it. All ranks call it once for each of their passes, before its backward; a
  // further call does nothing. name: pairs the passes of the ranks, if passes reach the replicas in different
  // orders: the pass's id, for example, if one pass reaches all replicas. Default: the ranks' first passes
  // are reduced together, then their second ones, and so on. Blocks while the ranks share buffers.
  // failed_precondition: a name within a join. unsupported: MixedPrecision::parameters.
  void attach(const dist_autograd::Pass& pass, std::string name = {});

  // On all ranks, between iterations. Null: all-reduce again.
  void set_hook(std::shared_ptr<CommunicationHook> hook);
  // Replaces Options::buffers, on all ranks, between iterations. Without `run`: Options::buffers again.
  void set_buffer_hook(BufferHook hook) { buffer_hook_ = std::move(hook); }
  // See Reducer; an OptimizerInBackward uses it.
  void set_on_reduced(std::function<void(std::size_t parameter)> f) {
    reducer_->set_on_reduced(std::move(f));
  }
  // If a rank cannot go on with an iteration, and keeps the replica: all ranks get an error with this rank
  // and the reason, also those that wait already. Then set_group(). Does not block.
  void abort(const std::string& reason) const;
  // On all ranks of the new group, between iterations: after the old group has failed, for example. Its rank
  // 0 gives parameters and buffers to all.
  void set_group(const collectives::Group& group);

  // The buckets of the next backward, and the durations of the last one.
  BucketPlan plan() const { return reducer_->plan(); }
  IterationStats last() const { return reducer_->last(); }
  std::string last_table() const { return to_table(last(), parameter_names()); }
  Overlap overlap() const { return reducer_->overlap(); }  // of the next backward
  // By the indices of a plan.
  std::vector<std::string> parameter_names() const;
  std::vector<at::Tensor> parameters() const;

 protected:
  // A derived class calls these around its forward; watch(), between them, for each output.
  void before_forward();
  void after_forward();
  void watch(const at::Tensor& output);
  LowPrecision* low_precision() const { return low_precision_.get(); }  // null: Options ask for none

 private:
  void begin_join(const JoinOptions& options, std::vector<Joinable*> others) override;
  void drain_join() override;
  void leave_join() noexcept override;

  // Of the exchange before a forward. source: the first rank that has a batch; none: no rank has one.
  struct Round {
    std::optional<int> source;
    bool reduces = false, shares_buffers = false, in_pass = false;  // in this iteration
  };
  Round exchange(bool has_batch, bool in_pass = false);
  bool shares_buffers() const;
  bool shares_after_forward() const { return buffer_hook_.run && buffer_hook_.after_forward; }

  void compare() const;
  void broadcast_all(int source, bool with_buffers = true) const;
  rpc::Future<void> share_buffers(int source) const;
  rpc::Future<void> share_buffers_in_pass(const PassReduction& pass, int source) const;
  bool is_ignored(const std::string& name) const;

  const Options options_;
  const std::shared_ptr<torch::nn::Module> module_;
  collectives::Group group_;
  std::vector<NamedParameter> parameters_;
  BufferHook::Buffers frozen_, buffers_;  // parameters without gradients; buffers
  BufferHook buffer_hook_;
  const int exceptions_ = std::uncaught_exceptions();
  std::shared_ptr<LowPrecision> low_precision_;
  std::shared_ptr<Reducer> reducer_;

  struct Join {
    JoinOptions options;
    std::vector<Joinable*> others;
    int last_source = 0;
    std::vector<int> without_batch = {};  // in this iteration
  };
  std::optional<Join> join_;
  int join_source_ = 0;
};

}  // namespace weft::data_parallel
