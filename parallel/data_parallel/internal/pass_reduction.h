// PassReduction: averages the gradients that the backwards of a dist_autograd::Pass compute for one replica.
//
// It adds hooks to this worker's part of the pass. The pass keeps the gradients, as views of buckets that
// belong to the pass. The backwards of several passes may reach the replicas in different orders, but all
// ranks must reduce the buckets in one order. So each collective is a launch of the group (Group::launch),
// whose name begins with that of the pass. When no gradient can arrive any more, the ranks exchange which
// parameters some rank has reached. A gradient that no rank has reached keeps its value, or stays undefined.
// The backward of the pass ends after the last bucket.
//
// If a backward fails on this worker before its gradients are reduced, the group is aborted, so that no rank
// waits for its timeout. Thread-safe.
#pragma once

#include <weft/dist_autograd/pass_state.h>
#include <weft/parallel/data_parallel/internal/gradient_buckets.h>
#include <weft/parallel/data_parallel/internal/reached_parameters.h>
#include <weft/rpc/core/mutex.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT PassReduction : public std::enable_shared_from_this<PassReduction> {
 public:
  // Values that are equal on all ranks.
  struct Setup {
    collectives::Group group;
    std::vector<NamedParameter> parameters;
    BucketPlan plan;
    std::shared_ptr<CommunicationHook> hook;  // null: all-reduce
    std::vector<int> excluded;                // the ranks that do not count in the mean
    std::string name;                         // the name of the pass among the passes of this group
  };
  explicit PassReduction(Setup setup);

  // Call it once, before the backward. Parameters that do not require grad get no gradient of this rank.
  void attach(const std::shared_ptr<dist_autograd::PassState>& pass);
  const std::string& name() const { return setup_.name; }
  // The name of a parameter that has begun to require grad since attach(); nullptr: there is none.
  const std::string* unfrozen() const;
  // Takes part, with zeros, in the reduction of a pass that reaches only other ranks.
  rpc::Future<void> shadow();

 private:
  struct Parameter {
    bool awaited = false;    // attach() has set its hook
    bool reached = false;    // by this rank, in the present backward
    at::Tensor sparse = {};  // the gradient that the pass holds
  };
  struct Bucket {
    std::size_t missing = 0;  // the number of gradients that have not arrived
    bool launched = false;
  };

  void on_gradient(std::size_t index, at::Tensor& gradient);
  rpc::Future<void> finalize();
  void reached_is_known(rpc::Result<void> result);
  void run(std::size_t bucket, int step);
  void ended(rpc::Result<void> result);
  void publish(dist_autograd::PassState& pass);
  void pass_ended();
  std::string launch_name(const std::string& part) WEFT_EXCLUDES(mutex_);

  void begin() WEFT_REQUIRES(mutex_);
  void prepare(std::size_t bucket) WEFT_REQUIRES(mutex_);

  const Setup setup_;
  std::weak_ptr<dist_autograd::PassState> pass_;

  // The next five members are not guarded by mutex_. Until a bucket is launched, on_gradient() and prepare()
  // use its data, and hold mutex_. After that, the launches of the bucket use the data; they run one at a
  // time. After the last launch, publish() uses the data of all buckets.
  GradientBuckets buckets_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> states_;  // this member and the next two belong to the present backward
  ReachedParameters reached_;
  bool hook_began_ = false;

  rpc::Mutex mutex_;
  std::size_t backward_ WEFT_GUARDED_BY(mutex_) = 0;  // the number of the present backward, from 1
  bool running_ WEFT_GUARDED_BY(mutex_) = false;
  bool publishing_ WEFT_GUARDED_BY(mutex_) = false;
  std::size_t open_ WEFT_GUARDED_BY(mutex_) = 0;  // buckets in flight, and the exchange of reached_
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);
  std::optional<rpc::Promise<void>> done_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::data_parallel
