// Reducer: averages the gradients of a module's parameters over a process group while backward computes them.
//
// It executes a bucket plan (bucket_plan.h). The gradients are views of the buckets, which are in memory of
// the group, so that collectives do not copy them. A bucket is reduced as soon as all of its gradients are
// ready, in the order of the buckets, which is the same on all ranks. When backward ends, the reducer waits
// for all buckets, in the thread that called backward(). After the first backward it plans new buckets, in
// the order in which the gradients of rank 0 became ready.
//
// A backward that reaches an output that was given to watch() is an iteration: all of its gradients are
// reduced. It starts with the first node behind such an output, or with the first gradient, if a loss uses a
// parameter itself. The reducer then reads from the engine which parameters backward will reach. The ranks
// exchange which parameters these are (one byte for each parameter), and at the end which of them have
// received a gradient. Therefore:
//   - an unreached parameter contributes its present gradient, or zero if it has none;
//   - a bucket that no rank reaches is not reduced;
//   - a gradient that no rank has computed keeps its value, or stays undefined. Autograd may reach a
//     parameter and compute no gradient.
// A parameter whose gradient was accumulated by a backward that was not reduced counts as reached. If
// backward fails, the group is aborted with a text that names this rank, so that no rank waits for its
// timeout.
//
// Parameters may be frozen and unfrozen, loaded, and converted to another order of memory between iterations,
// on all ranks. If a forward finds that the plan no longer fits, the reducer makes new buckets. The exchange
// above compares the plans of the ranks.
//
// GradientHooks tells the reducer which gradients backward will compute, and when each of them is ready.
// BucketReductions has the buckets that are in flight.
//
// The group must run no other collectives during backward, because two users of one group could start their
// collectives in different orders on different ranks. Owned by a Replica. Thread-safe: hooks run on threads
// of the engine. One backward at a time.
#pragma once

#include <weft/parallel/data_parallel/internal/bucket_reductions.h>
#include <weft/parallel/data_parallel/internal/gradient_buckets.h>
#include <weft/parallel/data_parallel/internal/gradient_hooks.h>
#include <weft/parallel/data_parallel/internal/iteration_report.h>
#include <weft/parallel/data_parallel/internal/overlap_trial.h>
#include <weft/parallel/data_parallel/internal/pass_reduction.h>
#include <weft/parallel/data_parallel/internal/reached_parameters.h>
#include <weft/parallel/data_parallel/low_precision.h>
#include <weft/parallel/data_parallel/options.h>
#include <weft/parallel/training/internal/engine_backward.h>
#include <weft/rpc/core/mutex.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // Allocates the buckets. All ranks give equal parameters and options. The parameters may be frozen.
  // low_precision: the copies with which the module computes. Null: the module computes with the parameters
  // in their own type.
  static std::shared_ptr<Reducer> make(collectives::Group group, std::vector<NamedParameter> parameters,
                                       const Options& options, std::shared_ptr<LowPrecision> low_precision);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Call it before a forward. failed_precondition, on all ranks: a parameter has changed its dtype or device.
  void begin_forward();
  // Call it after that forward, with its output. If sync() is on, backwards that reach the output are
  // reduced. No effect if the output does not require grad.
  void watch(const at::Tensor& output);
  // Off: backwards that reach only outputs of later forwards accumulate into the gradients of this rank
  // alone.
  void set_sync(bool on);
  bool sync() const;

  // Takes part in the collectives of a backward of the other ranks. This rank contributes the gradients that
  // it has accumulated without synchronization; otherwise zero. Afterwards this rank has no gradients.
  void shadow();
  // ranks: those whose gradients are zeros that do not count. The reduced gradients are the mean over the
  // other ranks. Default: none.
  void set_excluded(std::vector<int> ranks);

  // Creates the reduction for the backwards of a dist_autograd::Pass; the pass keeps these gradients apart
  // from those of this reducer. name: equal on all ranks; if empty, the number of passes so far.
  // failed_precondition: as in begin_forward().
  std::shared_ptr<PassReduction> make_pass_reduction(std::string name);

  // Call it between iterations, on all ranks of the new group: all state except the values of the gradients
  // is reset.
  void set_group(collectives::Group group);
  void set_hook(std::shared_ptr<CommunicationHook> hook);
  // f is called in each backward that is reduced, on the thread of that backward, for each parameter whose
  // gradient is now the average. The parameter's bucket has then been reduced; other buckets may be in
  // flight. f is not called for gradients that no rank has computed, nor in a shadow(). f must call no
  // function of the reducer. While f is set, a gradient that autograd leaves undefined counts as zero. If f
  // is null, there are no calls. Call set_on_reduced() on all ranks, between iterations.
  void set_on_reduced(std::function<void(std::size_t parameter)> f);
  // The next backward that is reduced, or the next forward if it starts first, also waits for `other`.
  void wait_for(rpc::Future<void> other);

  // The buckets of the next backward, and the durations of the last one.
  BucketPlan plan() const;
  IterationStats last() const;
  Overlap overlap() const;  // of the next backward

 private:
  struct Parameter;
  using Backward = training::EngineBackward<Reducer>;
  friend Backward;

  Reducer(collectives::Group group, std::vector<NamedParameter> parameters, const Options& options,
          std::shared_ptr<LowPrecision> low_precision);

  // Called by hooks of the engine.
  void on_first_node();  // a backward reaches an output given to watch()
  // The engine has accumulated a gradient. defined: whether the gradient was defined.
  void is_ready(std::size_t index, bool defined);
  void backward_ended();
  void failed();  // backward has failed: the engine has not called the callbacks

  void start_anew() WEFT_REQUIRES(mutex_);
  void refresh() WEFT_REQUIRES(mutex_);
  void plan_anew(bool keeps_frozen) WEFT_REQUIRES(mutex_);
  void allocate(BucketPlan plan) WEFT_REQUIRES(mutex_);
  BucketPlan plan_of(const std::vector<std::size_t>& order) const;
  bool reaches_an_output() const WEFT_REQUIRES(mutex_);
  void start_in_engine(const std::shared_ptr<Backward>& backward) WEFT_REQUIRES(mutex_);
  void start_iteration() WEFT_REQUIRES(mutex_);
  void exchange_reached(bool at_the_end) WEFT_REQUIRES(mutex_);
  void compare_graph() WEFT_REQUIRES(mutex_);
  [[noreturn]] void refuse_graph(const std::string& parameters) const;
  bool know_reached(bool wait) WEFT_REQUIRES(mutex_);
  void launch_ready() WEFT_REQUIRES(mutex_);
  void skip_or_launch_next() WEFT_REQUIRES(mutex_);
  void launch_next() WEFT_REQUIRES(mutex_);
  void finish() WEFT_REQUIRES(mutex_);
  void publish_complete() WEFT_REQUIRES(mutex_);
  void publish(std::size_t bucket) WEFT_REQUIRES(mutex_);
  void replan() WEFT_REQUIRES(mutex_);
  void decide_overlap() WEFT_REQUIRES(mutex_);

  const Options options_;
  const std::shared_ptr<LowPrecision> low_precision_;
  const std::vector<NamedParameter> named_;

  mutable rpc::Mutex mutex_;
  collectives::Group group_ WEFT_GUARDED_BY(mutex_);
  std::vector<Parameter> parameters_ WEFT_GUARDED_BY(mutex_);   // the state of each parameter
  std::optional<GradientHooks> hooks_ WEFT_GUARDED_BY(mutex_);  // made after the constructor
  GradientBuckets buckets_ WEFT_GUARDED_BY(mutex_);
  std::shared_ptr<CommunicationHook> hook_ WEFT_GUARDED_BY(mutex_);
  std::string hook_name_ WEFT_GUARDED_BY(mutex_) = "all_reduce";
  std::function<void(std::size_t)> on_reduced_ WEFT_GUARDED_BY(mutex_);
  bool sync_ WEFT_GUARDED_BY(mutex_) = true;
  std::vector<int> excluded_ WEFT_GUARDED_BY(mutex_);
  Overlap overlap_ WEFT_GUARDED_BY(mutex_) = Overlap::group;
  std::optional<OverlapTrial> trial_ WEFT_GUARDED_BY(mutex_);  // as long as overlap_ is not decided
  std::size_t backwards_ WEFT_GUARDED_BY(mutex_) = 0;          // reduced backwards since the group was set
  std::size_t passes_ WEFT_GUARDED_BY(mutex_) = 0;             // passes without a name in this group
  bool ordered_ WEFT_GUARDED_BY(mutex_) = false;  // the plan has the order of a backward of rank 0
  // This rank knows how many gradients each parameter got in the first backward.
  bool counted_ WEFT_GUARDED_BY(mutex_) = false;
  bool is_static_ WEFT_GUARDED_BY(mutex_) = true;  // the counts of all later backwards were equal so far

  // The outputs whose backwards are reduced.
  struct Output {
    torch::autograd::Node* node;      // used as an address only
    std::weak_ptr<void> alive;        // as long as the node exists
    std::shared_ptr<void> once = {};  // of a leaf: set until its first backward
  };
  std::vector<Output> outputs_ WEFT_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point forward_at_ WEFT_GUARDED_BY(mutex_);  // of the last forward

  // State of the present backward.
  bool running_ WEFT_GUARDED_BY(mutex_) = false;
  bool shadows_ WEFT_GUARDED_BY(mutex_) = false;
  bool at_the_end_ WEFT_GUARDED_BY(mutex_) = false;  // buckets are launched when backward has ended
  std::optional<BucketReductions> reductions_ WEFT_GUARDED_BY(mutex_);
  std::vector<bool> published_ WEFT_GUARDED_BY(mutex_);     // by bucket
  std::vector<std::size_t> order_ WEFT_GUARDED_BY(mutex_);  // the order in which gradients became ready
  ReachedParameters reached_ WEFT_GUARDED_BY(mutex_);
  std::optional<rpc::Future<void>> exchange_ WEFT_GUARDED_BY(mutex_);  // the exchange of reached_
  std::optional<rpc::Future<void>> other_ WEFT_GUARDED_BY(mutex_);     // the future of wait_for()
  std::chrono::steady_clock::time_point began_at_ WEFT_GUARDED_BY(mutex_);
  IterationStats stats_ WEFT_GUARDED_BY(mutex_);
  IterationStats last_ WEFT_GUARDED_BY(mutex_);
  IterationReport report_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::data_parallel
