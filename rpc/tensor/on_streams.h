// OnStreams<T>: a value whose tensors may still be in the making on streams of accelerators, on its way
// through a future.
//
//   promise.complete(tensor::OnStreams(work(x)));           // where it is made
//   at::Tensor y = (co_await std::move(future)).take();     // where it is used
//
// When it is made it notes how far the current streams of the calling thread have come, on the devices that
// its tensors are on. take() makes the current streams of its own thread wait for that, and no thread; the
// memory is not reused before those streams are done with it. T is a tensor or made of tensors: containers,
// tuples, optionals and structs that travel (WEFT_CODEC); tensors on the CPU are complete anyhow. A handler
// whose result another thread completes returns a Future<OnStreams<T>>, which is a T to its callers: of a
// plain one the tensors have to be complete. What calls bring needs none of this: it arrives on the streams
// that were current where the call was made. Thread-safety: a value. After
// torch.futures.Future(devices=…).
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/tensor/device_layer.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <ranges>
#include <tuple>
#include <utility>
#include <vector>

namespace weft::tensor {

namespace detail {

template <class T>
concept TupleLike = requires { std::tuple_size<T>::value; };

}  // namespace detail

// Calls f with each tensor within the value, undefined ones too.
template <class T, class F>
void for_each_tensor(const T& value, const F& f) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    f(value);
  } else if constexpr (rpc::detail::HasFields<T>) {
    std::apply([&](auto... field) { (for_each_tensor(value.*field.member, f), ...); },
               weft_fields(static_cast<T*>(nullptr)));
  } else if constexpr (detail::TupleLike<T>) {
    std::apply([&](const auto&... part) { (for_each_tensor(part, f), ...); }, value);
  } else if constexpr (std::ranges::range<const T>) {
    for (const auto& item : value) for_each_tensor(item, f);
  } else if constexpr (requires { value.has_value(); }) {
    if (value.has_value()) for_each_tensor(*value, f);
  }
}

// How far streams have come, one for each device.
class WEFT_EXPORT StreamMarks {
 public:
  void note(const at::Tensor& tensor);  // the current stream of its device; that of one device once
  // The current stream of the tensor's device waits for what was noted, and uses the tensor's memory.
  void pass_on(const at::Tensor& tensor);
  void wait();  // the thread does

 private:
  struct Mark {
    c10::Device device;
    c10::Event reached;
  };
  std::vector<Mark> marks_;
};

template <class T>
class OnStreams {
 public:
  explicit OnStreams(T value) : value_(std::move(value)) {
    for_each_tensor(value_, [this](const at::Tensor& tensor) { marks_.note(tensor); });
  }

  // Once.
  T take() {
    for_each_tensor(value_, [this](const at::Tensor& tensor) { marks_.pass_on(tensor); });
    return std::move(value_);
  }
  T take_complete() {
    marks_.wait();
    return std::move(value_);
  }

 private:
  T value_;
  StreamMarks marks_;
};

}  // namespace weft::tensor

namespace weft::rpc {

template <class T>
struct FutureResult<tensor::OnStreams<T>> {
  using Type = T;
  static T take(tensor::OnStreams<T>&& value, IncomingCall& call) {
    if (call.keeps_result()) return value.take_complete();
    const c10::MultiStreamGuard on_streams(tensor::call_streams(call));
    return value.take();
  }
};

}  // namespace weft::rpc
