// TensorCollectives: a communicator's collectives on tensors of its device.
//
//   const Device device = device_of({c10::kCUDA, 0}, Api::load(), loop, background);
//   TensorCollectives ranks(co_await Communicator::create(device, id, size, rank), {c10::kCUDA, 0});
//   auto done = ranks.all_reduce(gradient, ReduceOp::avg);   // put on the current stream, as a kernel is
//
// Each is put on the stream that is current for the device where it is called: what comes later on that
// stream finds the result, and to overlap is to choose another stream (c10::StreamGuard). On a stream that is
// being captured it becomes part of the graph, and the future is complete at once. Tensors are contiguous and
// no lazy views (conj()), kept until the future is complete and lent as to a Group (group.h), whose shapes
// these have; here nobody compares what ranks mean. Throws invalid_argument and unsupported before anything
// is begun, and what Communicator::launch does, which may block. Written against LibTorch's interface of
// devices: compiled everywhere. A value; thread-safe as its communicator.
#pragma once

#include <weft/parallel/collectives/nccl/communicator.h>
#include <weft/parallel/collectives/nccl/stream_capture.h>
#include <weft/parallel/collectives/point_to_point.h>
#include <weft/parallel/collectives/reduce_op.h>

#include <ATen/core/Tensor.h>

namespace weft::collectives::nccl {

// The same with its index, which is the calling thread's current one where it has none; unsupported where
// this process has no such device.
WEFT_EXPORT c10::Device existing(c10::Device device);
// A device of LibTorch's; one of these for all communicators on it.
WEFT_EXPORT Device device_of(c10::Device device, std::shared_ptr<const Api> api,
                             std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Executor> background);

class WEFT_EXPORT TensorCollectives {
 public:
  using Timeout = std::optional<std::chrono::nanoseconds>;
  using Tensors = std::vector<at::Tensor>;

  TensorCollectives(Communicator::Ptr communicator, c10::Device device,
                    StreamCapture capture = StreamCapture::of_cuda());
  const Communicator::Ptr& communicator() const { return communicator_; }
  // A first collective, of one byte, on a separate stream: NCCL connects the ranks. Of all ranks, before
  // all others. Does not wait for the other ranks and takes no turn, so that ranks may connect several
  // communicators at once, in any order.
  rpc::Future<void> connect(Timeout timeout = {}) const;
  // These, calling `begins` once the arguments of an operation are right. It returns the turn in which the
  // operation is launched.
  TensorCollectives announcing(std::function<LaunchTurn()> begins) const {
    TensorCollectives announced = *this;
    announced.begins_ = std::move(begins);
    return announced;
  }

  rpc::Future<void> all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum, Timeout timeout = {}) const;
  rpc::Future<void> reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::sum,
                           Timeout timeout = {}) const;
  rpc::Future<void> broadcast(at::Tensor tensor, int root, Timeout timeout = {}) const;
  rpc::Future<void> all_gather(at::Tensor output, at::Tensor input, Timeout timeout = {}) const;
  rpc::Future<void> all_gather_v(Tensors outputs, at::Tensor input, Timeout timeout = {}) const;
  rpc::Future<void> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                                   Timeout timeout = {}) const;
  rpc::Future<void> reduce_scatter_v(at::Tensor output, Tensors inputs, ReduceOp op = ReduceOp::sum,
                                     Timeout timeout = {}) const;
  rpc::Future<void> all_to_all(at::Tensor output, at::Tensor input, Timeout timeout = {}) const;
  rpc::Future<void> all_to_all_v(Tensors outputs, Tensors inputs, Timeout timeout = {}) const;
  rpc::Future<void> gather(Tensors outputs, at::Tensor input, int root, Timeout timeout = {}) const;
  rpc::Future<void> scatter(at::Tensor output, Tensors inputs, int root, Timeout timeout = {}) const;
  rpc::Future<void> send(at::Tensor tensor, int to, Timeout timeout = {}) const;
  rpc::Future<void> recv(at::Tensor tensor, int from, Timeout timeout = {}) const;
  // Several at once, in one launch: of tensors of one type, as each alone; messages, whose tags do not count.
  rpc::Future<void> all_reduce(Tensors tensors, ReduceOp op = ReduceOp::sum, Timeout timeout = {}) const;
  rpc::Future<void> broadcast(Tensors tensors, int root, Timeout timeout = {}) const;
  rpc::Future<void> all_gather(Tensors outputs, Tensors inputs, Timeout timeout = {}) const;
  rpc::Future<void> reduce_scatter(Tensors outputs, Tensors inputs, ReduceOp op = ReduceOp::sum,
                                   Timeout timeout = {}) const;
  rpc::Future<void> exchange(std::vector<PointToPoint> messages, Timeout timeout = {}) const;

 private:
  Launch launch_of(const char* name, const Tensors& tensors, Timeout timeout) const;
  rpc::Future<void> put(const char* name, Tensors tensors, Timeout timeout,
                        const std::function<void(Calls&)>& group) const;
  void check(const char* name, const Tensors& tensors) const;
  Tensors check_pairs(const char* name, const Tensors& parts, const Tensors& wholes) const;
  void check_rank(const char* name, int rank) const;
  const std::byte* own_part(const at::Tensor& whole, const at::Tensor& part) const;  // this rank's

  Communicator::Ptr communicator_;
  c10::Device device_;
  StreamCapture capture_;
  std::function<LaunchTurn()> begins_;
};

}  // namespace weft::collectives::nccl
