#include <weft/parallel/collectives/nccl/internal/tensor_collectives.h>

#include <weft/parallel/collectives/nccl/internal/types.h>
#include <weft/rpc/tensor/dtype.h>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::collectives::nccl {
namespace {

using rpc::Error;
using rpc::ErrorKind;
using rpc::Future;

std::string describe(std::string_view name, const at::Tensor& tensor) {
  std::string text(name);
  if (!tensor.defined()) return text;
  const at::IntArrayRef sizes = tensor.sizes();
  return text + " " + tensor_text(tensor.scalar_type(), {sizes.data(), sizes.size()});
}

// A reduction in one group of NCCL calls, with elements in NCCL's terms.
struct Reducing {
  MappedReduction mapped;
  RedOp op;
  Reducing(Calls& calls, const MappedReduction& reduction)
      : mapped(reduction),
        op(reduction.factor ? calls.premul_sum(reduction.factor->bits.data(), reduction.type)
                            : reduction.op) {}
  std::size_t count(const at::Tensor& tensor) const {
    return static_cast<std::size_t>(tensor.numel()) * mapped.per_element;
  }
};

const std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}
std::byte* mutable_data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

void send_bytes(Calls& calls, const void* from, std::size_t bytes, int to) {
  if (bytes != 0) calls.send(from, bytes, DataType::uint8, to);
}
void recv_bytes(Calls& calls, void* into, std::size_t bytes, int from) {
  if (bytes != 0) calls.recv(into, bytes, DataType::uint8, from);
}
void send_whole(Calls& calls, const at::Tensor& tensor, int to) {
  send_bytes(calls, data_of(tensor), tensor.nbytes(), to);
}
void recv_whole(Calls& calls, const at::Tensor& tensor, int from) {
  recv_bytes(calls, mutable_data_of(tensor), tensor.nbytes(), from);
}

// The operation in NCCL's calls: operations that only move data use bytes.
void make_calls(Calls& calls, const CollectiveCall& call, const std::optional<MappedReduction>& reduction,
                int rank, int ranks) {
  const std::span<const at::Tensor> outputs = call.outputs, inputs = call.inputs;
  const auto sent = inputs.size(), received = outputs.size();
  const int root = call.root.value_or(0);
  std::optional<Reducing> by;
  if (reduction) by.emplace(calls, *reduction);
  switch (call.operation) {
    case Operation::all_reduce:
      for (const at::Tensor& tensor : outputs)
        calls.all_reduce(data_of(tensor), mutable_data_of(tensor), by->count(tensor), by->mapped.type,
                         by->op);
      break;
    case Operation::reduce:
      calls.reduce(data_of(outputs[0]), rank == root ? mutable_data_of(outputs[0]) : nullptr,
                   by->count(outputs[0]), by->mapped.type, by->op, root);
      break;
    case Operation::broadcast:
      for (const at::Tensor& tensor : outputs)
        calls.broadcast(data_of(tensor), mutable_data_of(tensor), tensor.nbytes(), DataType::uint8, root);
      break;
    case Operation::all_gather:
      for (std::size_t i = 0; i < sent; ++i)
        calls.all_gather(data_of(inputs[i]), mutable_data_of(outputs[i]), inputs[i].nbytes(),
                         DataType::uint8);
      break;
    case Operation::all_gather_v:
      for (std::size_t i = 0; i < received; ++i)
        calls.broadcast(data_of(static_cast<int>(i) == rank ? inputs[0] : outputs[i]),
                        mutable_data_of(outputs[i]), outputs[i].nbytes(), DataType::uint8,
                        static_cast<int>(i));
      break;
    case Operation::reduce_scatter:
      for (std::size_t i = 0; i < sent; ++i)
        calls.reduce_scatter(data_of(inputs[i]), mutable_data_of(outputs[i]), by->count(outputs[i]),
                             by->mapped.type, by->op);
      break;
    case Operation::reduce_scatter_v:
      for (std::size_t i = 0; i < sent; ++i)
        calls.reduce(data_of(inputs[i]), static_cast<int>(i) == rank ? mutable_data_of(outputs[0]) : nullptr,
                     by->count(inputs[i]), by->mapped.type, by->op, static_cast<int>(i));
      break;
    case Operation::all_to_all: {
      const std::size_t bytes = inputs[0].nbytes() / static_cast<std::size_t>(ranks);
      for (int i = 0; i < ranks; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * bytes;
        send_bytes(calls, data_of(inputs[0]) + at, bytes, i);
        recv_bytes(calls, mutable_data_of(outputs[0]) + at, bytes, i);
      }
      break;
    }
    case Operation::all_to_all_v:
      for (std::size_t i = 0; i < sent; ++i) {
        send_whole(calls, inputs[i], static_cast<int>(i));
        recv_whole(calls, outputs[i], static_cast<int>(i));
      }
      break;
    case Operation::gather:
      send_whole(calls, inputs[0], root);
      for (std::size_t i = 0; i < received; ++i) recv_whole(calls, outputs[i], static_cast<int>(i));
      break;
    case Operation::scatter:
      for (std::size_t i = 0; i < sent; ++i) send_whole(calls, inputs[i], static_cast<int>(i));
      recv_whole(calls, outputs[0], root);
      break;
    case Operation::barrier:
      break;
  }
}

}  // namespace

c10::Device existing(c10::Device device) {
  try {
    const c10::impl::VirtualGuardImpl all(device.type());
    const int count = all.deviceCount();
    if (!device.has_index() && count != 0) return all.getDevice();
    if (device.index() >= 0 && device.index() < count) return device;
    throw Error(ErrorKind::unsupported, "there is no " + device.str() + ": this process has " +
                                            std::to_string(count) + " devices of this type");
  } catch (const c10::Error& error) {  // LibTorch was built without them
    throw Error(ErrorKind::unsupported,
                "there is no " + device.str() + ": " + error.what_without_backtrace());
  }
}

Device device_of(c10::Device device, std::shared_ptr<const Api> api, std::shared_ptr<rpc::Loop> loop,
                 std::shared_ptr<rpc::Executor> background) {
  Device made;
  made.api = std::move(api);
  made.watch = std::make_shared<Watch>(std::move(loop));
  made.background = std::move(background);
  made.within = [device](const std::function<void()>& job) {
    std::optional<c10::DeviceGuard> guard;
    try {
      guard.emplace(device);
    } catch (const c10::Error& error) {
      throw Error(ErrorKind::internal, device.str() + ": " + error.what_without_backtrace());
    }
    job();
  };
  return made;
}

TensorCollectives::TensorCollectives(Communicator::Ptr communicator, c10::Device device,
                                     StreamCapture capture)
    : communicator_(std::move(communicator)), device_(device), capture_(std::move(capture)) {}

// Checks the limits of NCCL, which reads and writes the memory of tensors without conversion.
void TensorCollectives::check_limits(std::string_view name, const Tensors& tensors) const {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device() != device_)
      refuse("NCCL: " + describe(name, tensor) + ": the tensor is on " + tensor.device().str() +
             ", expected the communicator's device, " + device_.str());
    if (!tensor.is_contiguous())
      refuse("NCCL: " + describe(name, tensor) + ": the tensor is not contiguous, expected a contiguous one");
    if (tensor.is_conj() || tensor.is_neg())
      throw Error(ErrorKind::unsupported, "NCCL: " + describe(name, tensor) +
                                              ": the tensor is a lazy view: resolve_conj() or resolve_neg()");
  }
}

Launch TensorCollectives::launch_of(std::string_view name, const Tensors& tensors, Timeout timeout) const {
  const c10::impl::VirtualGuardImpl device(device_.type());
  const c10::Stream stream = device.getStream(device_);
  const auto kept = std::make_shared<const Tensors>(tensors);
  Launch launch;
  launch.stream = device.getStreamNativeHandle(stream);
  launch.what = describe(name, tensors.front());
  launch.timeout = timeout;
  launch.keeps = kept;
  launch.mark = [device, stream, kept, native = launch.stream, capture = capture_] {
    if (capture.is_captured(native)) {
      // The launch completes at once and keeps nothing, so the allocator must know the stream.
      for (const at::Tensor& tensor : *kept)
        device.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
      return std::function<bool()>();
    }
    auto event = std::make_shared<c10::Event>(device.type());
    event->record(stream);
    return std::function<bool()>([event, capture] {
      const AsksEvents asks(capture);
      return event->query();
    });
  };
  return launch;
}

Future<void> TensorCollectives::put(std::string_view name, Tensors tensors, Timeout timeout,
                                    const std::function<void(Calls&)>& group) const {
  LaunchTurn turn = begins_ ? begins_() : LaunchTurn();
  Launch launch = launch_of(name, tensors, timeout);
  launch.turn = std::move(turn);
  return communicator_->launch(std::move(launch), group);
}

Future<void> TensorCollectives::connect(Timeout timeout) const {
  const c10::DeviceGuard guard(device_);
  const c10::impl::VirtualGuardImpl device(device_.type());
  const c10::StreamGuard on(device.getStreamFromGlobalPool(device_));
  const at::Tensor one = at::empty({1}, at::TensorOptions().device(device_).dtype(at::kByte));
  Launch launch = launch_of("the first all_reduce", {one}, timeout);
  launch.waits = false;
  launch.turn = std::make_shared<LaunchOrder>()->reserve();
  return communicator_->launch(std::move(launch), [&](Calls& calls) {
    calls.all_reduce(one.const_data_ptr(), one.mutable_data_ptr(), 1, DataType::uint8, RedOp::max);
  });
}

Future<void> TensorCollectives::run(const CollectiveCall& call, Timeout timeout) const {
  const std::string_view name = name_of(call.operation);
  Tensors tensors(call.inputs.begin(), call.inputs.end());
  tensors.insert(tensors.end(), call.outputs.begin(), call.outputs.end());
  check_limits(name, tensors);
  std::optional<MappedReduction> reduction;
  if (call.reduction) reduction = map_reduction(call.first()->scalar_type(), *call.reduction);
  return put(name, std::move(tensors), timeout, [&](Calls& calls) {
    make_calls(calls, call, reduction, communicator_->rank(), communicator_->size());
  });
}

Future<void> TensorCollectives::exchange(std::vector<PointToPoint> messages, Timeout timeout) const {
  if (messages.empty()) refuse("NCCL: no messages, expected at least one");
  Tensors tensors;
  for (const PointToPoint& each : messages) {
    check_tensor("a message", each.tensor);
    if (each.peer < 0 || each.peer >= communicator_->size())
      refuse("NCCL: a message: rank " + std::to_string(each.peer) + " of a group of " +
             std::to_string(communicator_->size()) + ": give a rank from 0 to " +
             std::to_string(communicator_->size() - 1));
    tensors.push_back(each.tensor);
  }
  check_limits("a message", tensors);
  return put("messages", tensors, timeout, [&](Calls& calls) {
    for (const PointToPoint& each : messages)
      each.kind == PointToPoint::Kind::send ? send_whole(calls, each.tensor, each.peer)
                                            : recv_whole(calls, each.tensor, each.peer);
  });
}

}  // namespace weft::collectives::nccl
