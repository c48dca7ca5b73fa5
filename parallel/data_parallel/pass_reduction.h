// PassReduction: averages the gradients that the backwards of a dist_autograd::Pass compute for one replica.
//
// It attaches itself to this worker's part of the pass. The pass keeps the gradients, as views of buckets
// that belong to the pass. The backwards of several passes may reach the replicas in different orders, and
// all ranks reduce the buckets in one order: each collective is a launch of the group (Group::launch), whose
// name begins with that of the pass. When no gradient can arrive any more, the ranks exchange which
// parameters some rank has reached. A gradient that no rank has reached stays as it is, also undefined. The
// backward of the pass ends after the last bucket.
//
// If a backward fails on this worker before its gradients are reduced, the group is aborted, so that no rank
// waits for its timeout. Thread-safe.
#pragma once

#include <weft/dist_autograd/pass_state.h>
#include <weft/parallel/data_parallel/gradient_buckets.h>
#include <weft/parallel/data_parallel/reached_parameters.h>
#include <weft/rpc/core/mutex.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT PassReduction : public std::enable_shared_from_this<PassReduction> {
 public:
  // On all ranks, with equal values.
  struct Setup {
    collectives::Group group;
    std::vector<NamedParameter> parameters;
    BucketPlan plan;
    std::shared_ptr<CommunicationHook> hook;  // null: all-reduce
    int active_ranks = 1;                     // whose gradients are averaged
    std::string name;                         // of the pass among the passes of this group
  };
  explicit PassReduction(Setup setup);

  // Before the backward. Once.
  void attach(const std::shared_ptr<dist_autograd::PassState>& pass);
  const std::string& name() const { return setup_.name; }
  // Takes part in the reduction of a pass that reaches the other ranks alone, with zeros.
  rpc::Future<void> shadow();

 private:
  struct Parameter {
    bool reached = false;    // by this rank, in the present backward
    at::Tensor kept = {};    // the gradient of before, if this rank has not reached it
    at::Tensor sparse = {};  // the gradient that the pass holds
  };
  struct Bucket {
    std::size_t missing = 0;  // gradients
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

  // These belong to on_gradient() and prepare(), which hold mutex_, until a bucket is launched; then to its
  // launches, which run one at a time; and to publish() after the last one.
  GradientBuckets buckets_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> states_;  // of the present backward, as the next two
  ReachedParameters reached_;
  bool hook_began_ = false;

  rpc::Mutex mutex_;
  std::size_t backward_ WEFT_GUARDED_BY(mutex_) = 0;  // the present one, from 1
  bool running_ WEFT_GUARDED_BY(mutex_) = false;
  bool publishing_ WEFT_GUARDED_BY(mutex_) = false;
  std::size_t open_ WEFT_GUARDED_BY(mutex_) = 0;  // buckets in flight, and the exchange of reached_
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);
  std::optional<rpc::Promise<void>> done_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::data_parallel
