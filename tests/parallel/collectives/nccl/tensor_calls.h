// TensorCalls: TensorCollectives with one function for each operation, for tests. Each checks its arguments
// as a group does.
#pragma once

#include <weft/parallel/collectives/nccl/internal/tensor_collectives.h>

namespace weft::collectives::nccl::testing {

class TensorCalls : public TensorCollectives {
 public:
  using TensorCollectives::TensorCollectives;
  using Done = rpc::Future<void>;

  Done all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum, Timeout timeout = {}) const {
    return checked({.operation = Operation::all_reduce, .outputs = one(tensor), .reduction = op}, timeout);
  }
  Done reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::sum) const {
    return checked({.operation = Operation::reduce, .outputs = one(tensor), .root = root, .reduction = op});
  }
  Done broadcast(const at::Tensor& tensor, int root) const {
    return checked({.operation = Operation::broadcast, .outputs = one(tensor), .root = root});
  }
  Done all_gather(const at::Tensor& output, const at::Tensor& input) const {
    return checked({.operation = Operation::all_gather, .outputs = one(output), .inputs = one(input)});
  }
  Done reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::sum) const {
    return checked({.operation = Operation::reduce_scatter,
                    .outputs = one(output),
                    .inputs = one(input),
                    .reduction = op});
  }
  Done reduce_scatter_v(const at::Tensor& output, const Tensors& inputs, ReduceOp op = ReduceOp::sum) const {
    return checked({.operation = Operation::reduce_scatter_v,
                    .outputs = one(output),
                    .inputs = inputs,
                    .reduction = op});
  }
  Done all_to_all(const at::Tensor& output, const at::Tensor& input) const {
    return checked({.operation = Operation::all_to_all, .outputs = one(output), .inputs = one(input)});
  }
  Done send(const at::Tensor& tensor, int to) const {
    return exchange({{PointToPoint::Kind::send, tensor, to}});
  }
  Done recv(const at::Tensor& tensor, int from) const {
    return exchange({{PointToPoint::Kind::recv, tensor, from}});
  }

 private:
  static std::span<const at::Tensor> one(const at::Tensor& tensor) { return {&tensor, 1}; }
  Done checked(const CollectiveCall& call, Timeout timeout = {}) const {
    check(call, communicator()->rank(), communicator()->size());
    return run(call, timeout);
  }
};

}  // namespace weft::collectives::nccl::testing
