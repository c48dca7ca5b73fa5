// Block: a part of a module whose parameters are gathered before its forward and its backward.
//
//   struct Gpt : torch::nn::Module {
//     std::shared_ptr<sharded::Block<Layer>> first =
//         register_module("first", std::make_shared<sharded::Block<Layer>>(width));
//     at::Tensor forward(const at::Tensor& x) { return first->forward(x); }
//   };
//
// A Block<M> is an M with the same constructors. Within a FullyShardedDataParallel, its parameters are one
// unit, and its forward gathers them. With mixed precision, the forward also converts floating-point inputs
// (Options::mixed_precision). Elsewhere the forward is that of M. Entries of a torch::nn::Sequential need no
// Block.
#pragma once

#include <weft/parallel/data_parallel/distributed_data_parallel.h>

#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft::sharded {

// Observes the forwards of blocks.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  // Around the forward of the block with this number.
  virtual void before_forward(std::size_t unit) = 0;
  virtual void after_forward(std::size_t unit) = 0;
  // Called for each output of a forward, before after_forward().
  virtual void watch(std::size_t unit, const at::Tensor& output) = 0;
};

// A base class of every Block: stores the observer of its forwards. Not thread-safe.
class ObservedForward {
 public:
  virtual ~ObservedForward() = default;
  // Sets the observer of the next forwards. unit: the number of the block. input_type: of the block's
  // floating-point inputs; nullopt: they are not converted.
  void observe(std::weak_ptr<BlockObserver> observer, std::size_t unit,
               std::optional<at::ScalarType> input_type) {
    observer_ = std::move(observer);
    unit_ = unit;
    input_type_ = input_type;
  }

 protected:
  // Runs forward(type of the inputs) and reports to the observer, if there is one.
  template <class F>
  auto observed(F&& forward) {
    const auto observer = observer_.lock();
    if (observer == nullptr) return std::forward<F>(forward)(std::optional<at::ScalarType>());
    observer->before_forward(unit_);
    auto output = std::forward<F>(forward)(input_type_);
    tensor::for_each_tensor(output, [&](const at::Tensor& each) { observer->watch(unit_, each); });
    observer->after_forward(unit_);
    return output;
  }

 private:
  std::weak_ptr<BlockObserver> observer_;
  std::size_t unit_ = 0;
  std::optional<at::ScalarType> input_type_;
};

template <class Module>
class Block final : public Module, public ObservedForward {
 public:
  static_assert(
      std::is_base_of_v<torch::nn::Module, Module>,
      "weft: Block expects a torch::nn::Module; of a holder such as torch::nn::Linear give the Impl");
  using Module::Module;

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    using Output = decltype(Module::forward(std::forward<Arguments>(arguments)...));
    static_assert(data_parallel::detail::shows_tensors<std::remove_cvref_t<Output>>(),
                  "the block's output is not made of tensors: give a struct WEFT_CODEC, or return a tuple");
    return observed([&](const std::optional<at::ScalarType>& type) -> std::remove_cvref_t<Output> {
      if (!type) return Module::forward(std::forward<Arguments>(arguments)...);
      return data_parallel::detail::forward_in(*type, static_cast<Module&>(*this),
                                               std::forward<Arguments>(arguments)...);
    });
  }
};

}  // namespace weft::sharded
