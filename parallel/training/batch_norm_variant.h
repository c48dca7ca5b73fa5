// BatchNormVariant: the base class of batch norms that normalize by other statistics than those of their
// input, and functions that convert LibTorch's batch norms to them.
//
// SyncBatchNorm and pipeline::DeferredBatchNorm derive from it: modules for 1, 2 and 3 spatial dimensions,
// which share the parameters and buffers of a torch::nn::BatchNorm. Not thread-safe.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/export.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weft::training {

// All dimensions except that of the channels.
WEFT_EXPORT std::vector<std::int64_t> reduced_dims(const at::Tensor& input);

template <class Derived>
class BatchNormVariant : public torch::nn::NormImplBase<1, Derived, torch::nn::BatchNormOptions> {
 public:
  // The base class of LibTorch, which has the options, the parameters and the buffers.
  using Base = torch::nn::NormImplBase<1, Derived, torch::nn::BatchNormOptions>;
  using Base::Base;

  // Shares the parameters and buffers of a BatchNorm with the same options, and gets its mode (training or
  // evaluation).
  template <class BatchNorm>
  void take_over(const BatchNorm& like) {
    const auto take = [&](const char* name, at::Tensor& member, const at::Tensor& from) {
      member = from;
      if (at::Tensor* const entry = this->parameters_.find(name)) *entry = from;
    };
    take("weight", this->weight, like.weight);
    take("bias", this->bias, like.bias);
    this->train(like.is_training());
    if (!this->running_mean.defined()) return;
    this->running_mean.set_data(like.running_mean);
    this->running_var.set_data(like.running_var);
    this->num_batches_tracked.set_data(like.num_batches_tracked);
  }

 protected:
  void _check_input_dim(const at::Tensor& input) override {
    if (input.dim() < 2 || input.size(1) != this->options.num_features())
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       this->name() + ": an input of " + std::to_string(input.dim()) + " dimensions" +
                           (input.dim() < 2 ? "" : " and " + std::to_string(input.size(1)) + " channels") +
                           ", expected [N, " + std::to_string(this->options.num_features()) + ", ...]");
  }
};

// Replaces modules within torch::nn::Sequential containers, at any depth, and returns their names.
// replacement: returns the module that replaces the given one; empty: the module is kept.
// failed_precondition: a module to be replaced is a member of another module, whose holder cannot be replaced
// from outside. The error begins with `operation`, and names `type`, which the program can declare as the
// member's type instead.
WEFT_EXPORT std::vector<std::string> replace_in_sequentials(
    torch::nn::Module& module, const std::string& operation, const std::string& type,
    const std::function<torch::nn::AnyModule(const torch::nn::Module&)>& replacement);

// Replaces each BatchNorm1d, 2d and 3d by the result of make(const BatchNorm&), a pointer to a
// BatchNormVariant; null: the batch norm is kept.
template <class Make>
std::vector<std::string> replace_batch_norms(torch::nn::Module& module, const std::string& operation,
                                             const std::string& type, const Make& make) {
  return replace_in_sequentials(module, operation, type, [&](const torch::nn::Module& each) {
    torch::nn::AnyModule made;
    const auto make_like = [&](const auto* norm) {
      if (norm == nullptr) return;
      if (auto variant = make(*norm)) {
        variant->take_over(*norm);
        made = torch::nn::AnyModule(std::move(variant));
      }
    };
    make_like(dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&each));
    make_like(dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&each));
    make_like(dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&each));
    return made;
  });
}

}  // namespace weft::training
