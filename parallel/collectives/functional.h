// Collectives that autograd records: functions of tensors, whose backward is a collective, too.
//
//   at::Tensor y = collectives::functional::all_reduce(group, x);   // y is the sum of all x
//   loss_of(y).backward();                                          // x.grad is the sum of all gradients of
//   y
//
// The gradient is that of the sum of the losses of all ranks: the backward of a collective is its adjoint. In
// tensor parallel training all ranks compute one loss from equal copies of a tensor (Copies::same). The
// gradient of each copy is then already the gradient of that loss. Megatron's conjugate functions (Shoeybi et
// al., 2019) are pairs of these: f is copy() and g is all_reduce(same); split() and all_gather(same) split
// and join a dimension. Backward can be recorded again (create_graph).
//
// All ranks call these functions in one order, and run their backward. The engine runs the nodes of a graph
// from the last to the first, so equal programs call the collectives of backward in one order. Inputs require
// grad on all ranks or on none, and outputs contribute to the loss on all ranks or on none; otherwise the
// ranks that wait get deadline_exceeded. Inputs are not changed. Tensors of the host: calls block, and throw
// the errors of the group. On a device, collectives run on the current stream, as kernels do; an error ends
// the group. Thread-safe as Group is.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <vector>

namespace weft::collectives::functional {

// How the ranks use their copies of an output.
enum class Copies : std::uint8_t {
  independent,  // in different losses, which are added
  same,         // all ranks compute the same result from it
};

// op: sum or avg; otherwise invalid_argument. The same applies below.
WEFT_EXPORT at::Tensor all_reduce(const Group& group, const at::Tensor& input, ReduceOp op = ReduceOp::sum,
                                  Copies copies = Copies::independent);
// Tensors of one dtype, in one collective.
WEFT_EXPORT std::vector<at::Tensor> all_reduce(const Group& group, const std::vector<at::Tensor>& inputs,
                                               ReduceOp op = ReduceOp::sum,
                                               Copies copies = Copies::independent);
// The input itself, which is the same on all ranks. Its gradient is the sum over the ranks.
WEFT_EXPORT at::Tensor copy(const Group& group, const at::Tensor& input);

// The inputs of all ranks, which have one shape, joined by rank along `dim`.
WEFT_EXPORT at::Tensor all_gather(const Group& group, const at::Tensor& input, std::int64_t dim = 0,
                                  Copies copies = Copies::independent);
// This rank's part along `dim` of the reduction. The size of that dimension must be a multiple of size();
// otherwise invalid_argument. The same applies below.
WEFT_EXPORT at::Tensor reduce_scatter(const Group& group, const at::Tensor& input, std::int64_t dim = 0,
                                      ReduceOp op = ReduceOp::sum);
// This rank's part along `dim` of an input that is the same on all ranks. No collective; backward joins the
// parts of the gradient.
WEFT_EXPORT at::Tensor split(const Group& group, const at::Tensor& input, std::int64_t dim = 0);

// Splits the input into size() parts along split_dim, and sends part i to rank i. Joins the parts for this
// rank by rank along join_dim.
WEFT_EXPORT at::Tensor all_to_all(const Group& group, const at::Tensor& input, std::int64_t split_dim = 0,
                                  std::int64_t join_dim = 0);
// sent: by rank, the number of rows of the input for it; received: by rank, the number of rows from it. Rows
// are indices of the first dimension. invalid_argument if `sent` does not add up to the input's rows, or the
// group's error if ranks disagree.
WEFT_EXPORT at::Tensor all_to_all_v(const Group& group, const at::Tensor& input,
                                    const std::vector<std::int64_t>& sent,
                                    const std::vector<std::int64_t>& received);

// The root's input. Inputs of the other ranks only give the shape and dtype, and their gradients are zero.
WEFT_EXPORT at::Tensor broadcast(const Group& group, const at::Tensor& input, int root);
// The sum at the root, zeros on the other ranks.
WEFT_EXPORT at::Tensor reduce(const Group& group, const at::Tensor& input, int root);

}  // namespace weft::collectives::functional
