#include <weft/parallel/collectives/nccl/tensor_collectives.h>

#include <weft/parallel/collectives/in_place.h>
#include <weft/parallel/collectives/nccl/types.h>
#include <weft/rpc/tensor/dtype.h>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <iterator>

namespace weft::collectives::nccl {
namespace {

using rpc::Error;
using rpc::ErrorKind;
using rpc::Future;

std::string describe(const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) return name;
  std::string text = std::string(name) + " " + std::string(tensor::dtype_name(tensor.scalar_type())) + "[";
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
  return text + "]";
}

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, "NCCL: " + what + ": " + why);
}

void need(bool holds, const char* name, const at::Tensor& tensor, const char* why) {
  if (!holds) refuse(describe(name, tensor), why);
}

MemorySpan memory_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}
// NCCL is in place where the tensor is exactly this rank's part of the whole.
void need_apart(const char* name, const at::Tensor& whole, const at::Tensor& tensor, const std::byte* part) {
  need(apart_or_in_place(memory_of(whole), memory_of(tensor), part), name, tensor,
       "the tensor overlaps the other one and is not exactly this rank's part of it");
}

const char* part(const at::Tensor& tensor, std::size_t i, std::size_t bytes) {
  return static_cast<const char*>(tensor.const_data_ptr()) + i * bytes;
}
char* mutable_part(const at::Tensor& tensor, std::size_t i, std::size_t bytes) {
  return static_cast<char*>(tensor.mutable_data_ptr()) + i * bytes;
}

// A reduction within one group: of elements in NCCL's terms.
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

void send_bytes(Calls& calls, const void* from, std::size_t bytes, int to) {
  if (bytes != 0) calls.send(from, bytes, DataType::uint8, to);
}
void recv_bytes(Calls& calls, void* into, std::size_t bytes, int from) {
  if (bytes != 0) calls.recv(into, bytes, DataType::uint8, from);
}

}  // namespace

c10::Device existing(c10::Device device) {
  try {
    const c10::impl::VirtualGuardImpl all(device.type());
    const int count = all.deviceCount();
    if (!device.has_index() && count != 0) return all.getDevice();
    if (device.index() >= 0 && device.index() < count) return device;
    throw Error(ErrorKind::unsupported,
                "there is no " + device.str() + ": this process has " + std::to_string(count) + " of these");
  } catch (const c10::Error& error) {  // LibTorch is made without them
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

void TensorCollectives::check(const char* name, const Tensors& tensors) const {
  for (const at::Tensor& tensor : tensors) {
    need(tensor.defined() && tensor.layout() == at::kStrided, name, tensor, "the tensor is not dense");
    need(tensor.device() == device_, name, tensor, "the tensor is not on the communicator's device");
    need(tensor.is_contiguous(), name, tensor, "the tensor is not contiguous");
    if (tensor.is_conj() || tensor.is_neg())  // what is read is its memory
      throw Error(ErrorKind::unsupported, "NCCL: " + describe(name, tensor) +
                                              ": the tensor is a lazy view: resolve_conj() or resolve_neg()");
    need(tensor.scalar_type() == tensors.front().scalar_type(), name, tensor, "the tensors' types differ");
  }
}

const std::byte* TensorCollectives::own_part(const at::Tensor& whole, const at::Tensor& part) const {
  return memory_of(whole).data + static_cast<std::size_t>(communicator_->rank()) * part.nbytes();
}

void TensorCollectives::check_rank(const char* name, int rank) const {
  if (rank < 0 || rank >= communicator_->size())
    refuse(name,
           "there is no rank " + std::to_string(rank) + " among " + std::to_string(communicator_->size()));
}

Launch TensorCollectives::launch_of(const char* name, const Tensors& tensors, Timeout timeout) const {
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
      // The launch is complete at once and keeps nothing: the allocator must know the stream.
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

Future<void> TensorCollectives::put(const char* name, Tensors tensors, Timeout timeout,
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

Future<void> TensorCollectives::all_reduce(at::Tensor tensor, ReduceOp op, Timeout timeout) const {
  check("all_reduce", {tensor});
  const MappedReduction reduction = map_reduction(tensor.scalar_type(), op);
  return put("all_reduce", {tensor}, timeout, [&](Calls& calls) {
    const Reducing reducing(calls, reduction);
    calls.all_reduce(tensor.const_data_ptr(), tensor.mutable_data_ptr(), reducing.count(tensor),
                     reduction.type, reducing.op);
  });
}

Future<void> TensorCollectives::reduce(at::Tensor tensor, int root, ReduceOp op, Timeout timeout) const {
  check("reduce", {tensor});
  check_rank("reduce", root);
  const MappedReduction reduction = map_reduction(tensor.scalar_type(), op);
  return put("reduce", {tensor}, timeout, [&](Calls& calls) {
    const Reducing reducing(calls, reduction);
    void* const out = communicator_->rank() == root ? tensor.mutable_data_ptr() : nullptr;
    calls.reduce(tensor.const_data_ptr(), out, reducing.count(tensor), reduction.type, reducing.op, root);
  });
}

Future<void> TensorCollectives::broadcast(at::Tensor tensor, int root, Timeout timeout) const {
  check("broadcast", {tensor});
  check_rank("broadcast", root);
  return put("broadcast", {tensor}, timeout, [&](Calls& calls) {
    calls.broadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.nbytes(), DataType::uint8,
                    root);
  });
}

Future<void> TensorCollectives::all_gather(at::Tensor output, at::Tensor input, Timeout timeout) const {
  check("all_gather", {output, input});
  need(output.numel() == input.numel() * communicator_->size(), "all_gather", output, "not one input a rank");
  need_apart("all_gather", output, input, own_part(output, input));
  return put("all_gather", {output, input}, timeout, [&](Calls& calls) {
    calls.all_gather(input.const_data_ptr(), output.mutable_data_ptr(), input.nbytes(), DataType::uint8);
  });
}

Future<void> TensorCollectives::all_gather_v(Tensors outputs, at::Tensor input, Timeout timeout) const {
  Tensors all = outputs;
  all.insert(all.begin(), input);
  check("all_gather_v", all);
  const auto rank = static_cast<std::size_t>(communicator_->rank());
  need(std::ssize(outputs) == communicator_->size(), "all_gather_v", input, "not one output a rank");
  need(outputs[rank].numel() == input.numel(), "all_gather_v", input, "its own output is of another size");
  for (const at::Tensor& output : outputs)
    need_apart("all_gather_v", output, input, memory_of(outputs[rank]).data);
  return put("all_gather_v", all, timeout, [&](Calls& calls) {
    for (std::size_t i = 0; i < outputs.size(); ++i)
      calls.broadcast(i == rank ? input.const_data_ptr() : outputs[i].const_data_ptr(),
                      outputs[i].mutable_data_ptr(), outputs[i].nbytes(), DataType::uint8,
                      static_cast<int>(i));
  });
}

Future<void> TensorCollectives::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op,
                                               Timeout timeout) const {
  check("reduce_scatter", {output, input});
  need(input.numel() == output.numel() * communicator_->size(), "reduce_scatter", input,
       "not one output a rank");
  need_apart("reduce_scatter", input, output, own_part(input, output));
  const MappedReduction reduction = map_reduction(input.scalar_type(), op);
  return put("reduce_scatter", {output, input}, timeout, [&](Calls& calls) {
    const Reducing reducing(calls, reduction);
    calls.reduce_scatter(input.const_data_ptr(), output.mutable_data_ptr(), reducing.count(output),
                         reduction.type, reducing.op);
  });
}

Future<void> TensorCollectives::reduce_scatter_v(at::Tensor output, Tensors inputs, ReduceOp op,
                                                 Timeout timeout) const {
  Tensors all = inputs;
  all.insert(all.begin(), output);
  check("reduce_scatter_v", all);
  const auto rank = static_cast<std::size_t>(communicator_->rank());
  need(std::ssize(inputs) == communicator_->size(), "reduce_scatter_v", output, "not one input a rank");
  need(inputs[rank].numel() == output.numel(), "reduce_scatter_v", output,
       "its own input is of another size");
  for (const at::Tensor& input : inputs)
    need_apart("reduce_scatter_v", input, output, memory_of(inputs[rank]).data);
  const MappedReduction reduction = map_reduction(output.scalar_type(), op);
  return put("reduce_scatter_v", all, timeout, [&](Calls& calls) {
    const Reducing reducing(calls, reduction);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      calls.reduce(inputs[i].const_data_ptr(), i == rank ? output.mutable_data_ptr() : nullptr,
                   reducing.count(inputs[i]), reduction.type, reducing.op, static_cast<int>(i));
  });
}

Future<void> TensorCollectives::all_to_all(at::Tensor output, at::Tensor input, Timeout timeout) const {
  check("all_to_all", {output, input});
  need(output.numel() == input.numel() && input.numel() % communicator_->size() == 0, "all_to_all", input,
       "not equal parts, one a rank, of both");
  need(apart_or_in_place(memory_of(output), memory_of(input), nullptr), "all_to_all", input,
       "the tensor overlaps the output");
  const std::size_t bytes = input.nbytes() / static_cast<std::size_t>(communicator_->size());
  return put("all_to_all", {output, input}, timeout, [&](Calls& calls) {
    for (int i = 0; i < communicator_->size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      send_bytes(calls, part(input, at, bytes), bytes, i);
      recv_bytes(calls, mutable_part(output, at, bytes), bytes, i);
    }
  });
}

Future<void> TensorCollectives::all_to_all_v(Tensors outputs, Tensors inputs, Timeout timeout) const {
  const auto ranks = static_cast<std::size_t>(communicator_->size());
  if (outputs.size() != ranks || inputs.size() != ranks) refuse("all_to_all_v", "not one tensor a rank");
  Tensors all = outputs;
  all.insert(all.end(), inputs.begin(), inputs.end());
  check("all_to_all_v", all);
  return put("all_to_all_v", all, timeout, [&](Calls& calls) {
    for (std::size_t i = 0; i < ranks; ++i) {
      send_bytes(calls, inputs[i].const_data_ptr(), inputs[i].nbytes(), static_cast<int>(i));
      recv_bytes(calls, outputs[i].mutable_data_ptr(), outputs[i].nbytes(), static_cast<int>(i));
    }
  });
}

Future<void> TensorCollectives::gather(Tensors outputs, at::Tensor input, int root, Timeout timeout) const {
  const bool is_root = communicator_->rank() == root;
  Tensors all = outputs;
  all.insert(all.begin(), input);
  check("gather", all);
  check_rank("gather", root);
  need(std::ssize(outputs) == (is_root ? communicator_->size() : 0), "gather", input,
       "outputs, one a rank, are the root's");
  for (const at::Tensor& output : outputs)
    need(output.numel() == input.numel(), "gather", output, "not as large as the input");
  return put("gather", all, timeout, [&](Calls& calls) {
    send_bytes(calls, input.const_data_ptr(), input.nbytes(), root);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      recv_bytes(calls, outputs[i].mutable_data_ptr(), outputs[i].nbytes(), static_cast<int>(i));
  });
}

Future<void> TensorCollectives::scatter(at::Tensor output, Tensors inputs, int root, Timeout timeout) const {
  const bool is_root = communicator_->rank() == root;
  Tensors all = inputs;
  all.insert(all.begin(), output);
  check("scatter", all);
  check_rank("scatter", root);
  need(std::ssize(inputs) == (is_root ? communicator_->size() : 0), "scatter", output,
       "inputs, one a rank, are the root's");
  for (const at::Tensor& input : inputs)
    need(input.numel() == output.numel(), "scatter", input, "not as large as the output");
  return put("scatter", all, timeout, [&](Calls& calls) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      send_bytes(calls, inputs[i].const_data_ptr(), inputs[i].nbytes(), static_cast<int>(i));
    recv_bytes(calls, output.mutable_data_ptr(), output.nbytes(), root);
  });
}

Future<void> TensorCollectives::send(at::Tensor tensor, int to, Timeout timeout) const {
  check("send", {tensor});
  check_rank("send", to);
  return put("send", {tensor}, timeout,
             [&](Calls& calls) { send_bytes(calls, tensor.const_data_ptr(), tensor.nbytes(), to); });
}

Future<void> TensorCollectives::recv(at::Tensor tensor, int from, Timeout timeout) const {
  check("recv", {tensor});
  check_rank("recv", from);
  return put("recv", {tensor}, timeout,
             [&](Calls& calls) { recv_bytes(calls, tensor.mutable_data_ptr(), tensor.nbytes(), from); });
}

// --- Several at once ---

// Each whole is as large as one part a rank.
TensorCollectives::Tensors TensorCollectives::check_pairs(const char* name, const Tensors& parts,
                                                          const Tensors& wholes) const {
  if (parts.empty() || parts.size() != wholes.size())
    refuse(name, std::to_string(wholes.size()) + " tensors, and " + std::to_string(parts.size()) +
                     " parts of them");
  Tensors all = parts;
  all.insert(all.end(), wholes.begin(), wholes.end());
  check(name, all);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    need(wholes[i].numel() == parts[i].numel() * communicator_->size(), name, wholes[i],
         "not one part a rank");
    need_apart(name, wholes[i], parts[i], own_part(wholes[i], parts[i]));
  }
  return all;
}

Future<void> TensorCollectives::all_reduce(Tensors tensors, ReduceOp op, Timeout timeout) const {
  if (tensors.empty()) refuse("all_reduce", "no tensors");
  check("all_reduce", tensors);
  const MappedReduction reduction = map_reduction(tensors.front().scalar_type(), op);
  return put("all_reduce", tensors, timeout, [&](Calls& calls) {
    const Reducing reducing(calls, reduction);
    for (const at::Tensor& tensor : tensors)
      calls.all_reduce(tensor.const_data_ptr(), tensor.mutable_data_ptr(), reducing.count(tensor),
                       reduction.type, reducing.op);
  });
}

Future<void> TensorCollectives::broadcast(Tensors tensors, int root, Timeout timeout) const {
  if (tensors.empty()) refuse("broadcast", "no tensors");
  check("broadcast", tensors);
  check_rank("broadcast", root);
  return put("broadcast", tensors, timeout, [&](Calls& calls) {
    for (const at::Tensor& tensor : tensors)
      calls.broadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.nbytes(), DataType::uint8,
                      root);
  });
}

Future<void> TensorCollectives::all_gather(Tensors outputs, Tensors inputs, Timeout timeout) const {
  const Tensors all = check_pairs("all_gather", inputs, outputs);
  return put("all_gather", all, timeout, [&](Calls& calls) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      calls.all_gather(inputs[i].const_data_ptr(), outputs[i].mutable_data_ptr(), inputs[i].nbytes(),
                       DataType::uint8);
  });
}

Future<void> TensorCollectives::reduce_scatter(Tensors outputs, Tensors inputs, ReduceOp op,
                                               Timeout timeout) const {
  const Tensors all = check_pairs("reduce_scatter", outputs, inputs);
  const MappedReduction reduction = map_reduction(inputs.front().scalar_type(), op);
  return put("reduce_scatter", all, timeout, [&](Calls& calls) {
    const Reducing reducing(calls, reduction);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      calls.reduce_scatter(inputs[i].const_data_ptr(), outputs[i].mutable_data_ptr(),
                           reducing.count(outputs[i]), reduction.type, reducing.op);
  });
}

Future<void> TensorCollectives::exchange(std::vector<PointToPoint> messages, Timeout timeout) const {
  if (messages.empty()) refuse("messages", "none");
  Tensors tensors;
  for (const PointToPoint& each : messages) {
    check("a message", {each.tensor});
    check_rank("a message", each.peer);
    tensors.push_back(each.tensor);
  }
  return put("messages", tensors, timeout, [&](Calls& calls) {
    for (const PointToPoint& each : messages) {
      if (each.kind == PointToPoint::Kind::send)
        send_bytes(calls, each.tensor.const_data_ptr(), each.tensor.nbytes(), each.peer);
      else
        recv_bytes(calls, each.tensor.mutable_data_ptr(), each.tensor.nbytes(), each.peer);
    }
  });
}

}  // namespace weft::collectives::nccl
