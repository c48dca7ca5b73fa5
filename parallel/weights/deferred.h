// deferred(): constructs a module whose tensors have no memory, and records how their values are computed.
//
//   const auto [model, values] = weights::deferred([&] { return std::make_shared<Gpt>(config); });
//   sharded::FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .values = values}};
//
// A FullyShardedDataParallel or a GroupPipeline gives memory to this rank's part only. Without them,
// values->materialize(*model) gives all tensors memory.
//
// While the function runs, the tensors that its thread creates have sizes, strides and dtypes, and no
// elements, and no random numbers are drawn. compute() repeats the operations in their order, so that a
// parameter gets the values that the constructor would have drawn, whichever parameters are wanted: it draws
// those of all parameters, one after the other, and keeps the wanted ones.
//
// An operation whose shape or result depends on elements, such as item(), computes the elements at once. An
// error that depends on elements or on the sizes of an operation in place is one of compute().
// Access to the memory itself (data_ptr(), accessors, torch::tensor(std::vector)) is an error; make such
// tensors under a NotDeferred. torch::manual_seed() is not recorded: call it before deferred(). The function
// may use tensors that exist already. The library registers a kernel for LibTorch's dispatch key
// DeferredInit, as no other library in the process may do, and keeps the recording in a thread-local variable
// while the function runs.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace weft::weights {

// How the values of the tensors of a deferred module are computed. It keeps no elements, except those of
// tensors that existed before. Where the constructor would have drawn from LibTorch's default generator for
// the CPU, compute() draws from a copy of it as it was when deferred() began. Functions are thread-safe.
class WEFT_EXPORT InitialValues {
 public:
  InitialValues();
  ~InitialValues();
  InitialValues(const InitialValues&) = delete;
  InitialValues& operator=(const InitialValues&) = delete;

  // Whether the tensor was created by deferred() and has no memory.
  bool are_of(const at::Tensor& tensor) const;
  // Computes the values of the wanted tensors, which are of deferred(), and calls take(i, values) for the
  // tensor wanted[i] when they are final. Memory for the values of other tensors is freed as soon as no
  // operation needs them. draws: whether random numbers are drawn for tensors that are not wanted, so that
  // the wanted ones get equal values on all ranks. Throws the errors of the operations and of take();
  // failed_precondition: a result has another dtype, because the default dtype has changed since deferred().
  void compute(const std::vector<at::Tensor>& wanted,
               const std::function<void(std::size_t i, const at::Tensor& values)>& take,
               bool draws = true) const;
  // Gives the tensors of the module that have none memory with their values. initialize: false: with
  // unspecified values, for load_into(). The module may be a part of what deferred() has constructed.
  void materialize(torch::nn::Module& module, bool initialize = true) const;
  void materialize(const std::vector<at::Tensor>& tensors, bool initialize = true) const;

  // The state of the default generator from which compute() draws. Ranks that want equal values exchange it.
  at::Tensor random_state() const;
  void set_random_state(const at::Tensor& state);

  // The operations so far. For deferred() only.
  struct Recording;
  Recording& recording() const { return *recording_; }

 private:
  const std::unique_ptr<Recording> recording_;
};

// Records the operations of this thread. For deferred() only. failed_precondition: it records already.
class WEFT_EXPORT RecordingScope {
 public:
  explicit RecordingScope(InitialValues& to);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

// While it exists, tensors of this thread are created with memory.
class WEFT_EXPORT NotDeferred {
 public:
  NotDeferred();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

// Returns the result of make(), for example a module, and the values of its tensors. Errors: those of make();
// unsupported, which names the operation, for one that writes into a tensor with memory, or that draws random
// numbers and takes no generator.
template <class Make>
auto deferred(Make make) {
  auto values = std::make_shared<InitialValues>();
  const RecordingScope scope(*values);
  auto made = make();
  return std::pair(std::move(made), std::move(values));
}

}  // namespace weft::weights
