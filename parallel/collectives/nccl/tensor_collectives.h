// TensorCollectives: a communicator's collectives on tensors of its device.
//
//   const Device device = device_of({c10::kCUDA, 0}, Api::load(), loop, background);
//   TensorCollectives ranks(co_await Communicator::create(device, id, size, rank), {c10::kCUDA, 0});
//   auto done = ranks.run({.operation = Operation::all_reduce, .outputs = {&gradient, 1},
//                          .reduction = ReduceOp::avg});     // put on the current stream, as a kernel is
//
// Each is put on the stream that is current for the device at the call: later work on that stream sees the
// result. To overlap, select another stream (c10::StreamGuard). On a stream that is being captured it becomes
// part of the graph, and the future completes at once. Tensors must be contiguous and no lazy views (conj()),
// are kept until the future completes, and are borrowed as by a Group (group.h). Signatures are not compared
// here. Throws invalid_argument and unsupported before anything is started, and the errors of
// Communicator::launch, which may block. Written against LibTorch's interface of devices: compiled on every
// machine. A value; thread-safe as its communicator.
#pragma once

#include <weft/parallel/collectives/nccl/communicator.h>
#include <weft/parallel/collectives/nccl/stream_capture.h>
#include <weft/parallel/collectives/operation/collective_call.h>
#include <weft/parallel/collectives/operation/point_to_point.h>

#include <ATen/core/Tensor.h>

namespace weft::collectives::nccl {

// The same with its index, which is the calling thread's current one if it has none; unsupported if this
// process has no such device.
WEFT_EXPORT c10::Device existing(c10::Device device);
// A device of LibTorch; create one for all communicators on it.
WEFT_EXPORT Device device_of(c10::Device device, std::shared_ptr<const Api> api,
                             std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Executor> background);

class WEFT_EXPORT TensorCollectives {
 public:
  using Timeout = std::optional<std::chrono::nanoseconds>;  // none: the communicator's
  using Tensors = std::vector<at::Tensor>;

  TensorCollectives(Communicator::Ptr communicator, c10::Device device,
                    StreamCapture capture = StreamCapture::of_cuda());
  // Never null; shared by all copies.
  const Communicator::Ptr& communicator() const { return communicator_; }
  // A first collective, of one byte, on a separate stream: NCCL connects the ranks. Call it on all ranks,
  // before all others. Does not wait for the other ranks and takes no turn, so ranks may connect several
  // communicators at once, in any order.
  rpc::Future<void> connect(Timeout timeout = {}) const;
  // These call `begins` once the arguments of an operation are valid. It returns the turn in which the
  // operation is launched.
  TensorCollectives announcing(std::function<LaunchTurn()> begins) const {
    TensorCollectives announced = *this;
    announced.begins_ = std::move(begins);
    return announced;
  }

  // call: has passed check() for the communicator's rank and size. Its timeout is not used.
  rpc::Future<void> run(const CollectiveCall& call, Timeout timeout = {}) const;
  // Messages in one launch. NCCL has no tags: those of the messages are ignored.
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
