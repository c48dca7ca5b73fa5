// GradientBuckets: memory for the gradients of a bucket plan, and the steps in which each bucket is reduced.
//
// The gradients of a bucket are views of one tensor, in memory of the group, so that collectives do not copy
// them. A sparse gradient has a bucket to itself, without memory. On a device, the steps run on a separate
// stream, at the same time as the backward. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/internal/sparse_gather.h>
#include <weft/parallel/data_parallel/bucket_plan.h>
#include <weft/parallel/data_parallel/hooks/communication_hook.h>
#include <weft/parallel/data_parallel/internal/reached_parameters.h>
#include <weft/parallel/data_parallel/named_parameter.h>
#include <weft/parallel/training/communication_stream.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::data_parallel {

// The names in the order of the parameters.
std::vector<std::string> names_of(const std::vector<NamedParameter>& parameters);

class WEFT_EXPORT GradientBuckets {
 public:
  GradientBuckets() = default;
  // Allocates the buckets, filled with zeros. The plan may leave out parameters.
  GradientBuckets(const collectives::Group& group, const std::vector<NamedParameter>& parameters,
                  BucketPlan plan);

  // The plan: buckets, each with the indices of its parameters.
  const BucketPlan& plan() const { return plan_; }
  std::size_t size() const { return plan_.size(); }
  bool has(std::size_t parameter) const { return bucket_of_[parameter] != none; }  // in the plan
  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_[parameter]; }
  const std::vector<std::size_t>& parameters(std::size_t bucket) const { return plan_[bucket]; }
  std::size_t bytes(std::size_t bucket) const;      // of its memory
  at::ScalarType dtype(std::size_t bucket) const {  // of its gradients
    return parameters_[plan_[bucket].front()].tensor.scalar_type();
  }
  // The place of the parameter's gradient in its bucket. Undefined for a parameter with sparse gradients.
  const at::Tensor& view(std::size_t parameter) const { return views_[parameter]; }
  // Whether a parameter of the plan still has the type, on the same device, or the shape and strides for
  // which its place was made.
  bool has_type(std::size_t parameter) const;
  bool has_layout(std::size_t parameter) const;
  const at::TensorOptions& options(std::size_t parameter) const { return options_[parameter]; }
  // Equal on two ranks if the ranks have the same plan, with parameters of the same types and layouts.
  std::uint64_t digest() const { return digest_; }
  // The error if the digests of the ranks differ.
  rpc::Error difference(const collectives::Group& group) const;

  // The error of a reduction of the bucket, with the names of the bucket's parameters if it is an rpc::Error.
  std::exception_ptr failure(std::size_t bucket, const std::exception_ptr& error) const;

  // Starts an iteration. excluded: GradientBucket::excluded.
  void begin(const std::vector<int>& excluded);
  // Copies a computed dense gradient into the bucket, and replaces it by the view; an undefined gradient
  // becomes a view of zeros. failed_precondition: the gradient is sparse, or autograd has recorded it.
  void move_in(std::size_t parameter, at::Tensor& gradient) const;
  // Writes this rank's contribution for a dense gradient that it has not computed: the present gradient, or
  // zeros if it is undefined.
  void contribute(std::size_t parameter, const at::Tensor& present);
  // Call it before an iteration writes to the buckets: a gradient that the program still has, although it has
  // reset that of the parameter, gets memory of its own.
  void leave_kept();
  // Call it after the last write to a bucket, or after its sparse gradient was computed, on the same thread.
  // The next step then starts when the device has completed these writes.
  void end_writes(std::size_t bucket) const;
  // Call it before the result of a bucket is read, on the thread that reads it. publish() calls it.
  void begin_reads(std::size_t bucket) const { streams_[bucket]->begin_reads(); }
  // Blocks until the devices have completed all work that is enqueued on the current streams so far.
  void synchronize() const;

  // Starts a step of the reduction of a bucket, as CommunicationHook::run() does. sparse: for step 0 of a
  // sparse bucket, the gradient that this rank contributes; undefined: zero.
  std::optional<rpc::Future<void>> run(const collectives::Group& group, CommunicationHook* hook,
                                       std::size_t bucket, int step, const at::Tensor& sparse = {});
  // Computes the averages of a bucket, over the ranks that count, and calls `use` for each parameter of which
  // some rank has computed a gradient. A gradient in the bucket that no rank has computed gets its value from
  // before contribute() back. Call it once after the last step, on the thread that reads the averages.
  // had_gradient: contribute() got a defined gradient.
  using Use = std::function<void(std::size_t parameter, const at::Tensor& average, bool had_gradient)>;
  void publish(std::size_t bucket, const ReachedParameters& reached, const Use& use);

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  std::optional<rpc::Future<void>> run_on_stream(const collectives::Group& group, CommunicationHook* hook,
                                                 std::size_t bucket, int step, const at::Tensor& sparse);

  BucketPlan plan_;
  std::vector<NamedParameter> parameters_;
  std::vector<at::TensorOptions> options_;  // of the gradients, by parameter
  std::vector<std::size_t> bucket_of_;      // by parameter; none: not in the plan
  std::vector<at::Tensor> views_;           // by parameter
  std::vector<at::Tensor> before_;          // by parameter: the value of contribute(), until publish()
  std::vector<GradientBucket> buckets_;
  // By bucket; the buckets on one device share a stream.
  std::vector<std::shared_ptr<training::CommunicationStream>> streams_;
  std::vector<std::optional<collectives::SparseGather>> gathers_;  // by bucket
  std::uint64_t digest_ = 0;
  std::int64_t ranks_ = 0;  // of the group
};

// Whether the gradient uses the memory of this view of a bucket.
bool is_alias(const at::Tensor& gradient, const at::Tensor& view);

}  // namespace weft::data_parallel
