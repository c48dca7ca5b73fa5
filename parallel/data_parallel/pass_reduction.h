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

#include <memory>
#include <mutex>
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
  std::string launch_name(const std::string& part) const;

  // With mutex_:
  void begin();
  void prepare(std::size_t bucket);

  const Setup setup_;
  std::weak_ptr<dist_autograd::PassState> pass_;

  std::mutex mutex_;  // guards what follows
  GradientBuckets buckets_;
  std::vector<Parameter> parameters_;
  // Of the present backward.
  std::size_t backward_ = 0;  // from 1
  bool running_ = false;
  bool hook_began_ = false;  // written by launches, which run one at a time
  bool publishing_ = false;
  std::vector<Bucket> states_;
  ReachedParameters reached_;
  std::size_t open_ = 0;  // buckets in flight, and the exchange of reached_
  std::exception_ptr error_;
  std::optional<rpc::Promise<void>> done_;
};

}  // namespace weft::data_parallel
