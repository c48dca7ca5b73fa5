// Replica: one rank's copy of a module whose copies on all ranks are trained together. The part of a
// DistributedDataParallel that does not depend on the module's type.
//
// Not thread-safe, except that attach() may be called at the same time, outside of a join; gradients may be
// computed by several threads of the engine.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/bucket_plan.h>
#include <weft/parallel/data_parallel/iteration_stats.h>
#include <weft/parallel/data_parallel/join.h>
#include <weft/parallel/data_parallel/low_precision.h>
#include <weft/parallel/data_parallel/named_parameter.h>
#include <weft/parallel/data_parallel/options.h>

#include <torch/nn/module.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::data_parallel {

class CommunicationHook;
class PassReduction;
class Reducer;

// A program's function that exchanges the buffers of a module between the ranks. It is called only in
// training mode, and only in iterations whose gradients are reduced. It replaces Options::buffers.
struct BufferHook {
  // By name.
  using Buffers = std::vector<std::pair<std::string, at::Tensor>>;
  // `run` must start the same collectives of the group on all ranks. In a join, it is also called on ranks
  // without a batch. source: the first rank that has a batch. In a pass, `run` is called as one launch
  // (Group::launch), and must start all collectives before it returns. buffers: tensors with the memory of
  // the module's buffers and versions of their own, so that backward accepts that they change.
  std::function<rpc::Future<void>(const collectives::Group& group, const Buffers& buffers, int source)> run;
  // false: `run` is called before forward, which waits for the future. true: it is called after forward, and
  // the end of backward waits for the future. In a pass, `run` is always called before forward.
  bool after_forward = false;
};

class WEFT_EXPORT Replica : public Joining {
 public:
  // All ranks of the group call the constructor, which blocks. The constructor splits a group of the same
  // members for this replica alone, so that other collectives of the program may run at any time. It compares
  // the parameters and buffers of all ranks, and sends those of rank 0 to all ranks. failed_precondition,
  // which names the first difference: names, shapes or types differ between ranks.
  Replica(const collectives::Group& group, std::shared_ptr<torch::nn::Module> module, Options options);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;
  // If an exception destroys the replica, the destructor aborts the group, so that no other rank waits for
  // its timeout. The destructor runs no collective.
  ~Replica() override;

  const collectives::Group& group() const { return group_; }  // of this replica alone
  // The module that each rank has; DistributedDataParallel::module() has its type.
  const torch::nn::Module& replicated_module() const { return *module_; }

  // If a forward runs while the guard exists, its backward only accumulates into the gradients of this rank.
  // All ranks must use the guard for the same iterations. A backward that also reaches an output of another
  // forward is reduced, with all of its gradients. The next backward that is reduced includes the accumulated
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
  [[nodiscard]] NoSync no_sync();

  // Returns the elements of a range, whose number may differ between ranks (join.h). others: further objects
  // that run collectives, in the order in which forward runs them.
  template <class Range>
  JoinedRange<Range> join(Range& range, const JoinOptions& options = {}, std::vector<Joinable*> others = {}) {
    begin_join(options, std::move(others));
    return JoinedRange<Range>(*this, range);
  }

  // After a join: the rank whose parameters all ranks now have. No optimizer of another rank has made more
  // steps.
  int join_source() const { return join_source_; }
  // Within a join: the ranks without a batch in the present iteration. Outside of a join: empty.
  std::vector<int> ranks_without_batch() const { return join_ ? join_->without_batch : std::vector<int>(); }

  // Makes the backwards of the pass average the pass's gradients of this replica; each backward completes
  // after its gradients are averaged. forward(pass, ...) calls attach() and waits for the future. All ranks
  // call it for each of their passes, before the pass's backward; the first call counts. name: passes with
  // the same name on all ranks are reduced together. If one pass reaches all replicas, its id can be the
  // name. Give a name if passes reach the replicas in different orders. Default: the ranks' first passes are
  // reduced together, then their second passes, and so on. The future completes when the ranks have exchanged
  // buffers, if they do so. A handler, which must not block, awaits it before forward(pass, ...). Within a
  // join, the call blocks. failed_precondition: a name is given within a join; a parameter has begun to
  // require grad after the first call. unsupported: MixedPrecision::parameters is set.
  rpc::Future<void> attach(const dist_autograd::Pass& pass, std::string name = {});

  // Sets the communication hook. All ranks call it, between iterations. If `hook` is null, the buckets are
  // reduced by an all-reduce.
  void set_hook(std::shared_ptr<CommunicationHook> hook);
  // Replaces Options::buffers. All ranks call it, between iterations. If `run` is empty, Options::buffers
  // applies again.
  void set_buffer_hook(BufferHook hook) { buffer_hook_ = std::move(hook); }
  // See Reducer; an OptimizerInBackward uses it.
  void set_on_reduced(std::function<void(std::size_t parameter)> f);
  // Call it if this rank cannot complete an iteration but keeps the replica. All ranks, including ranks that
  // already wait, get an error with this rank and the reason. Then call set_group(). Does not block.
  void abort(const std::string& reason) const;
  // Replaces the group, for example after the old group has failed. All ranks of the new group call it,
  // between iterations; a new rank constructs its replica instead. Rank 0 of the new group sends its
  // parameters and buffers to all ranks. With Options::init_sync, the same parameters then require grad as on
  // rank 0.
  void set_group(const collectives::Group& group);

  // The buckets of the next backward, and the durations of the last one.
  BucketPlan plan() const;
  IterationStats last() const;
  std::string last_table() const { return to_table(last(), parameter_names()); }
  Overlap overlap() const;  // of the next backward
  // The parameters in the order of the indices in a BucketPlan, and their names. They include the frozen
  // parameters, which are in no bucket.
  std::vector<std::string> parameter_names() const;
  std::vector<at::Tensor> parameters() const;

 protected:
  // A derived class calls before_forward() and after_forward() around its forward, and between these two
  // calls watch() for each output.
  void before_forward();
  void after_forward();
  void watch(const at::Tensor& output);
  // attach(), and waits for it. failed_precondition: the thread must not block.
  void attach_now(const dist_autograd::Pass& pass);
  LowPrecision* low_precision() const { return low_precision_.get(); }  // null: not requested in Options

 private:
  void begin_join(const JoinOptions& options, std::vector<Joinable*> others) override;
  void drain_join() override;
  void leave_join() noexcept override;

  // The result of the exchange before a forward. source: the first rank that has a batch; nullopt: no rank
  // has one.
  struct Round {
    std::optional<int> source;
    bool reduces = false, shares_buffers = false, in_pass = false;  // in this iteration
  };
  Round exchange(bool has_batch, bool in_pass = false);
  bool shares_buffers() const;
  bool shares_after_forward() const { return buffer_hook_.run && buffer_hook_.after_forward; }

  bool compare(bool has_new_group) const;
  void broadcast_all(int source, bool with_buffers = true) const;
  rpc::Future<void> share_buffers(int source) const;
  rpc::Future<void> share_buffers_in_pass(const PassReduction& pass, int source) const;

  const Options options_;
  const std::shared_ptr<torch::nn::Module> module_;
  collectives::Group group_;
  std::vector<NamedParameter> parameters_;
  BufferHook::Buffers buffers_;
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
  class Passes;
  const std::shared_ptr<Passes> passes_;  // those that are attached
  int join_source_ = 0;
};

}  // namespace weft::data_parallel
