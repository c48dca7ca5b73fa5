// GradientBuckets: averages the gradients of parameters over a group while a backward pass computes them.
//
// The gradients are views of a few buckets in memory that the group's ranks share (Group::empty), so that no
// collective copies them. As soon as the last gradient of a bucket is there, its all_reduce starts, and the
// backward pass goes on. Ranks start buckets in one order. All parameters have one dtype and take part in
// every pass. One thread at a time; the parameters' hooks are removed with this object.
#pragma once

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>
#include <weft/parallel/collectives/group.h>

#include <cstddef>
#include <memory>
#include <vector>

class GradientBuckets {
 public:
  using Group = weft::collectives::Group;

  // elements: of a bucket, about; a larger parameter has a bucket to itself.
  GradientBuckets(Group group, const std::vector<at::Tensor>& parameters, std::int64_t elements = 1 << 20)
      : group_(std::move(group)) {
    // A backward pass ends with the first layers: their gradients are in the last bucket.
    for (auto end = parameters.rbegin(); end != parameters.rend();) {
      const auto begin = end;
      std::int64_t size = 0;
      do size += (end++)->numel();
      while (end != parameters.rend() && size + end->numel() <= elements);
      add_bucket({begin, end}, size);
    }
  }
  ~GradientBuckets() {
    for (auto& [accumulator, hook] : hooks_) accumulator->del_post_hook(hook);
  }
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Before a pass, instead of the optimizer's zero_grad(), which would drop the views.
  void zero() {
    for (Bucket& bucket : buckets_) {
      bucket.gradients.zero_();
      bucket.missing = bucket.parameters;
    }
    started_ = 0;
  }
  // After a pass: all gradients are the mean of all ranks'.
  void wait() {
    for (Bucket& bucket : buckets_) bucket.averaged.get();
  }

 private:
  struct Bucket {
    at::Tensor gradients;
    std::size_t parameters = 0, missing = 0;
    weft::rpc::Future<void> averaged = {};
  };

  void add_bucket(const std::vector<at::Tensor>& parameters, std::int64_t size) {
    const at::Tensor memory = group_.empty({size}, parameters.front().options().requires_grad(false));
    buckets_.push_back({.gradients = memory, .parameters = parameters.size()});
    std::int64_t begin = 0;
    for (at::Tensor parameter : parameters) {
      parameter.mutable_grad() = memory.narrow(0, begin, parameter.numel()).view(parameter.sizes());
      begin += parameter.numel();
      const auto ready = [this, index = buckets_.size() - 1](const Variables& outputs, const Variables&) {
        is_ready(buckets_[index]);
        return outputs;
      };
      auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
      const auto hook =
          accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(ready));
      hooks_.emplace_back(std::move(accumulator), hook);
    }
  }
  void is_ready(Bucket& bucket) {
    --bucket.missing;
    for (; started_ < buckets_.size() && buckets_[started_].missing == 0; ++started_) {
      Bucket& next = buckets_[started_];
      next.averaged = group_.all_reduce(next.gradients, weft::collectives::ReduceOp::avg);
    }
  }

  using Variables = torch::autograd::variable_list;
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  const Group group_;
  std::vector<Bucket> buckets_;
  std::vector<std::pair<Accumulator, std::uintptr_t>> hooks_;
  std::size_t started_ = 0;
};
