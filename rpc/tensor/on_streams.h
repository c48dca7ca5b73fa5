// OnStreams<T>: a value for a future. Streams of accelerators may still be computing the tensors of the
// value.
//
//   promise.complete(tensor::OnStreams(work(x)));           // where it is made
//   at::Tensor y = (co_await std::move(future)).take();     // where it is used
//
// The constructor records how far the current streams of the calling thread have advanced, on the devices of
// the value's tensors. take() makes the current streams of the thread that calls it wait for that point; no
// thread blocks. The memory of the tensors is not reused before these streams have finished with it. T is a
// tensor or contains tensors: containers, tuples, optionals and structs with WEFT_CODEC. Tensors on the CPU
// are always complete.
//
// If another thread completes the result of a handler, the handler returns a Future<OnStreams<T>>, and its
// callers receive a T. If the handler returns a Future<T> instead, the tensors must be complete when the
// future completes. Results of calls do not need OnStreams: they arrive on the streams that were current when
// the call was made. Thread-safety: a value. Modeled on torch.futures.Future(devices=…).
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

// Calls f with each tensor within the value, including undefined ones.
template <class T, class F>
void for_each_tensor(const T& value, const F& f) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    f(value);
  } else if constexpr (rpc::detail::HasFields<T>) {
    rpc::for_each_field(value, [&](std::string_view, const auto& field) { for_each_tensor(field, f); });
  } else if constexpr (detail::TupleLike<T>) {
    std::apply([&](const auto&... part) { (for_each_tensor(part, f), ...); }, value);
  } else if constexpr (std::ranges::range<const T>) {
    for (const auto& item : value) for_each_tensor(item, f);
  } else if constexpr (requires { value.has_value(); }) {
    if (value.has_value()) for_each_tensor(*value, f);
  }
}

// The points that streams have reached, one for each device.
class WEFT_EXPORT StreamMarks {
 public:
  void note(const at::Tensor& tensor);  // records the current stream of its device, once for each device
  // Makes the current stream of the tensor's device wait for the recorded point, and notes that this stream
  // uses the tensor's memory.
  void pass_on(const at::Tensor& tensor);
  void wait();  // blocks the thread until the streams have reached the points

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

  // Return the value; call one of them, once. take(): makes the current streams wait. take_complete(): blocks
  // the thread until the tensors are complete.
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
