// DistributedDataParallel: trains a module on all ranks of a group, each rank with its own batches.
//
//   auto group = co_await collectives::Group::create(agent);
//   auto model = std::make_shared<Net>();
//   data_parallel::DistributedDataParallel ddp{group, model};
//   torch::optim::SGD optimizer(model->parameters(), 0.1);
//   ...
//   auto loss = torch::cross_entropy_loss(ddp.forward(images), labels);
//   optimizer.zero_grad();
//   loss.backward();      // afterwards the gradients are the averages over the ranks
//   optimizer.step();     // the same step on all ranks
//
// All ranks start with the parameters of rank 0. If the ranks' optimizers are equal, the parameters stay
// equal. All ranks call forward() and backward() the same number of times. The ranks may use different parts
// of the module: a parameter that only other ranks use gets their gradients. An output may be a tensor, or a
// tuple, container, optional or struct (WEFT_CODEC) of tensors. The gradients are averaged in a backward that
// reaches an output. backward() throws the errors of the group. forward() throws the errors of the broadcast
// of buffers. create_graph is not supported. Not thread-safe, except that calls of forward(pass, ...) may run
// at the same time outside of a join. The algorithm is that of PyTorch's class of the same name (Li et al.,
// 2020).
//
// In a dist_autograd::Pass, gradients are averaged in the pass:
//
//   dist_autograd::Pass pass{agent};
//   auto loss = torch::cross_entropy_loss(ddp.forward(pass, images), labels);
//   co_await pass.backward(loss);
//   at::Tensor gradient = pass.gradient(model->weight);
#pragma once

#include <weft/parallel/data_parallel/replica.h>
#include <weft/rpc/tensor/on_streams.h>

#include <torch/nn/pimpl.h>

#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>

namespace torch::nn {
class SequentialImpl;
}

namespace weft::data_parallel {

namespace detail {

// Whether tensor::for_each_tensor() finds every tensor within a T.
template <class T>
constexpr bool shows_tensors() {
  if constexpr (std::is_same_v<T, at::Tensor> || std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                rpc::detail::HasFields<T>) {
    return true;
  } else if constexpr (tensor::detail::TupleLike<T>) {
    return []<std::size_t... i>(std::index_sequence<i...>) {
      return (shows_tensors<std::remove_cvref_t<std::tuple_element_t<i, T>>>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (std::ranges::range<const T>) {
    return shows_tensors<std::remove_cvref_t<std::ranges::range_value_t<const T>>>();
  } else if constexpr (requires(const T& value) { value.has_value(), *value; }) {
    return shows_tensors<std::remove_cvref_t<decltype(*std::declval<const T&>())>>();
  } else {
    return false;
  }
}

// Whether the tensors of a copy of a T can be replaced without a change of the original. Views do not own
// their tensors.
template <class T>
constexpr bool owns_tensors() {
  if constexpr (!std::is_copy_constructible_v<T>) {
    return false;
  } else if constexpr (std::is_same_v<T, at::Tensor> || rpc::detail::HasFields<T>) {
    return true;
  } else if constexpr (tensor::detail::TupleLike<T>) {
    return []<std::size_t... i>(std::index_sequence<i...>) {
      return (owns_tensors<std::remove_cvref_t<std::tuple_element_t<i, T>>>() || ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (std::ranges::range<const T>) {
    if constexpr (requires(const T& value) { value.get_allocator(); })
      return owns_tensors<std::ranges::range_value_t<const T>>();
    return false;
  } else if constexpr (requires(const T& value) { value.has_value(), *value; }) {
    return owns_tensors<std::remove_cvref_t<decltype(*std::declval<const T&>())>>();
  } else {
    return false;
  }
}

// A copy of an argument that owns tensors, else a reference to the argument.
template <class T>
using Converted = std::conditional_t<owns_tensors<std::remove_cvref_t<T>>(), std::remove_cvref_t<T>, T&&>;

template <class T>
Converted<T> convert(T&& argument, at::ScalarType dtype) {
  if constexpr (owns_tensors<std::remove_cvref_t<T>>()) {
    std::remove_cvref_t<T> copy(std::forward<T>(argument));
    tensor::for_each_tensor(copy, [dtype](const at::Tensor& each) {
      if (each.defined() && each.is_floating_point()) const_cast<at::Tensor&>(each) = each.to(dtype);
    });
    return copy;
  } else {
    return std::forward<T>(argument);
  }
}

// Runs the module with its arguments converted to the type.
template <class Module, class... Arguments>
auto forward_in([[maybe_unused]] at::ScalarType dtype, Module& module, Arguments&&... arguments) {
  std::tuple<Converted<Arguments>...> converted(convert(std::forward<Arguments>(arguments), dtype)...);
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return module.forward(std::forward<Arguments>(std::get<i>(converted))...);
  }(std::index_sequence_for<Arguments...>());
}

template <class Module>
std::shared_ptr<torch::nn::Module> as_module(const std::shared_ptr<Module>& module) {
  constexpr bool is_module = std::is_base_of_v<torch::nn::Module, Module>;
  static_assert(is_module, "weft: DistributedDataParallel expects a torch::nn::Module, or a holder of one");
  if constexpr (is_module) return module;
  return nullptr;
}

}  // namespace detail

template <class Module>
class DistributedDataParallel : public Replica {
 public:
  DistributedDataParallel(const collectives::Group& group, std::shared_ptr<Module> module,
                          Options options = {})
      : Replica(group, detail::as_module(module), std::move(options)), module_(std::move(module)) {}
  // For a module holder, such as torch::nn::Linear or torch::nn::Sequential.
  template <class Holder>
    requires std::is_base_of_v<torch::nn::ModuleHolder<Module>, Holder>
  DistributedDataParallel(const collectives::Group& group, const Holder& module, Options options = {})
      : DistributedDataParallel(group, module.ptr(), std::move(options)) {}

  Module& module() const { return *module_; }  // the module given to the constructor

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    before_forward();
    auto output = run(std::forward<Arguments>(arguments)...);
    static_assert(detail::shows_tensors<decltype(output)>(),
                  "the module's output is not made of tensors: give a struct WEFT_CODEC, or return a tuple");
    tensor::for_each_tensor(output, [this](const at::Tensor& each) { watch(each); });
    after_forward();
    return output;
  }
  // Runs the module in a pass, whose backward then averages the pass's gradients of this module (attach()).
  // If the module's forward has a Pass parameter, it gets the pass. That of a torch::nn::Sequential, which
  // accepts any argument, does not.
  template <class GivenPass, class... Arguments>
    requires std::is_same_v<std::remove_cvref_t<GivenPass>, dist_autograd::Pass>
  auto forward(GivenPass&& pass, Arguments&&... arguments) {
    attach_now(pass);
    if constexpr (!std::is_base_of_v<torch::nn::SequentialImpl, Module> &&
                  requires { module_->forward(pass, std::forward<Arguments>(arguments)...); }) {
      return module_->forward(pass, std::forward<Arguments>(arguments)...);
    } else {
      return module_->forward(std::forward<Arguments>(arguments)...);
    }
  }

 private:
  template <class... Arguments>
  auto run(Arguments&&... arguments) {
    if (low_precision() == nullptr) return module_->forward(std::forward<Arguments>(arguments)...);
    const LowPrecision::Forward in_low_precision(low_precision());
    return detail::forward_in(low_precision()->dtype(), *module_, std::forward<Arguments>(arguments)...);
  }

  const std::shared_ptr<Module> module_;
};

template <class Holder>
DistributedDataParallel(collectives::Group, const Holder&)
    -> DistributedDataParallel<typename Holder::ContainedType>;
template <class Holder>
DistributedDataParallel(collectives::Group, const Holder&, Options)
    -> DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace weft::data_parallel
