// TensorCollectives: a communicator's collectives on tensors of its device.
//
//   const Device device = device_of({c10::kCUDA, 0}, Api::load(), loop, background);
//   TensorCollectives ranks(co_await Communicator::create(device, id, size, rank), {c10::kCUDA, 0});
//   auto done = ranks.run({.operation = Operation::all_reduce, .outputs = {&gradient, 1},
//                          .reduction = ReduceOp::avg});     // on the current stream, as a kernel is
//
// Each operation is enqueued on the stream that is current for the device at the call. Later work on that
// stream sees the result. To overlap it with other work, select another stream (c10::StreamGuard). If the
// stream is being captured, the operation becomes part of the graph, and the future completes at once.
//
// Tensors must be contiguous and must not be lazy views (conj()). The operation keeps them until its future
// completes, and borrows their memory as a Group does (group.h). Signatures of ranks are not compared.
// Invalid arguments throw invalid_argument or unsupported before NCCL is called. Communicator::launch, which
// may block, throws its own errors. The code uses only LibTorch's generic interface of devices, so it
// compiles without CUDA. A value; thread-safe as its communicator.
#pragma once

#include <weft/parallel/collectives/nccl/internal/communicator.h>
#include <weft/parallel/collectives/nccl/internal/stream_capture.h>
#include <weft/parallel/collectives/operation/internal/collective_call.h>
#include <weft/parallel/collectives/operation/point_to_point.h>

#include <ATen/core/Tensor.h>

namespace weft::collectives::nccl {

// Returns the device with an index. If `device` has no index, returns the calling thread's current device.
// unsupported: this process has no such device.
WEFT_EXPORT c10::Device existing(c10::Device device);
// Creates the Device for a device of LibTorch. Use one for all communicators on the device.
WEFT_EXPORT Device device_of(c10::Device device, std::shared_ptr<const Api> api,
                             std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Executor> background);

class WEFT_EXPORT TensorCollectives {
 public:
  using Timeout = std::optional<std::chrono::nanoseconds>;  // nullopt: the communicator's timeout
  using Tensors = std::vector<at::Tensor>;

  TensorCollectives(Communicator::Ptr communicator, c10::Device device,
                    StreamCapture capture = StreamCapture::of_cuda());
  // Never null; shared by all copies.
  const Communicator::Ptr& communicator() const { return communicator_; }
  // Runs a first collective, of one byte, on a separate stream, with which NCCL connects the ranks. Call it
  // on all ranks, before all other operations. The call does not wait for the other ranks, and takes no turn
  // in the device's launch order, so ranks may connect several communicators at once, in any order.
  rpc::Future<void> connect(Timeout timeout = {}) const;
  // Returns a copy whose operations call begins() after they have checked their arguments. begins() returns
  // the turn in which the operation is launched.
  TensorCollectives announcing(std::function<LaunchTurn()> begins) const {
    TensorCollectives announced = *this;
    announced.begins_ = std::move(begins);
    return announced;
  }

  // call: must have passed check() for the communicator's rank and size. call.timeout is not used.
  rpc::Future<void> run(const CollectiveCall& call, Timeout timeout = {}) const;
  // Sends and receives all messages in one launch. NCCL has no tags: the tags of the messages are ignored.
  rpc::Future<void> exchange(std::vector<PointToPoint> messages, Timeout timeout = {}) const;

 private:
  Launch launch_of(std::string_view name, const Tensors& tensors, Timeout timeout) const;
  rpc::Future<void> put(std::string_view name, Tensors tensors, Timeout timeout,
                        const std::function<void(Calls&)>& group) const;
  void check_limits(std::string_view name, const Tensors& tensors) const;

  Communicator::Ptr communicator_;
  c10::Device device_;
  StreamCapture capture_;
  std::function<LaunchTurn()> begins_;
};

}  // namespace weft::collectives::nccl
