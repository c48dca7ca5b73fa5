// Collectives that autograd records: functions of tensors, whose backward is a collective, too.
//
//   at::Tensor y = collectives::functional::all_reduce(group, x);   // y is the sum of all x
//   loss_of(y).backward();                                          // x.grad: the sum of all gradients of y
//
// A gradient is the gradient of the sum of the losses of all ranks: the backward of a collective is its
// adjoint. In tensor parallel training all ranks compute one loss from equal copies of a tensor
// (Copies::same). The gradient of each copy is then already the gradient of that loss. Megatron's conjugate
// functions (Shoeybi et al., 2019) are among these functions: f is copy() and g is all_reduce(same); split()
// and all_gather(same) split and join a dimension. The backward can be recorded again (create_graph).
//
// All ranks call these functions in the same order, and all run the backward. The engine runs the nodes of a
// graph from the last to the first, so if the ranks run the same program, they also call the collectives of
// the backward in the same order. Inputs require grad on all ranks or on none, and outputs contribute to the
// loss on all ranks or on none; otherwise the ranks that wait fail with deadline_exceeded. Inputs are not
// changed. With tensors in host memory, calls block, and throw the errors of the group. On a device,
// collectives run on the current stream, as kernels do; an error ends the group. As thread-safe as Group.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <vector>

namespace weft::collectives::functional {

// How the ranks use their copies of an output.
enum class Copies : std::uint8_t {
  independent,  // each rank computes its own loss; the losses are added
  same,         // all ranks compute the same result from their copies
};

// Reduces the inputs of all ranks. op: sum or avg; otherwise invalid_argument, also in the functions below.
WEFT_EXPORT at::Tensor all_reduce(const Group& group, const at::Tensor& input, ReduceOp op = ReduceOp::sum,
                                  Copies copies = Copies::independent);
// The same for several tensors of one dtype, in one collective.
WEFT_EXPORT std::vector<at::Tensor> all_reduce(const Group& group, const std::vector<at::Tensor>& inputs,
                                               ReduceOp op = ReduceOp::sum,
                                               Copies copies = Copies::independent);
// Returns the input, which must be the same on all ranks. Its gradient is the sum of the ranks' gradients.
WEFT_EXPORT at::Tensor copy(const Group& group, const at::Tensor& input);

// Joins the inputs of all ranks, which have the same shape, along `dim` in the order of ranks.
WEFT_EXPORT at::Tensor all_gather(const Group& group, const at::Tensor& input, std::int64_t dim = 0,
                                  Copies copies = Copies::independent);
// Returns this rank's part, along `dim`, of the reduction of all inputs. The size of that dimension must be a
// multiple of group.size(); otherwise invalid_argument. This also applies to split(), and to the split_dim of
// all_to_all().
WEFT_EXPORT at::Tensor reduce_scatter(const Group& group, const at::Tensor& input, std::int64_t dim = 0,
                                      ReduceOp op = ReduceOp::sum);
// Returns this rank's part, along `dim`, of an input that is the same on all ranks. It runs no collective;
// the backward joins the ranks' parts of the gradient.
WEFT_EXPORT at::Tensor split(const Group& group, const at::Tensor& input, std::int64_t dim = 0);

// Splits the input into group.size() parts along split_dim, and sends part i to rank i. Joins the received
// parts along join_dim in the order of ranks.
WEFT_EXPORT at::Tensor all_to_all(const Group& group, const at::Tensor& input, std::int64_t split_dim = 0,
                                  std::int64_t join_dim = 0);
// Sends the first sent[0] rows of the input to rank 0, the next sent[1] rows to rank 1, and so on; returns
// the rows from all ranks in the order of ranks, received[i] of them from rank i. Rows are along the first
// dimension. invalid_argument: `sent` does not add up to the input's rows. If ranks disagree on a number, the
// group fails.
WEFT_EXPORT at::Tensor all_to_all_v(const Group& group, const at::Tensor& input,
                                    const std::vector<std::int64_t>& sent,
                                    const std::vector<std::int64_t>& received);

// Returns the root's input. The inputs of the other ranks only define the shape and dtype; their gradients
// are zero.
WEFT_EXPORT at::Tensor broadcast(const Group& group, const at::Tensor& input, int root);
// Returns the sum of all inputs at the root, and zeros on the other ranks.
WEFT_EXPORT at::Tensor reduce(const Group& group, const at::Tensor& input, int root);

}  // namespace weft::collectives::functional
