// Preparation: a collective being put together from a program's tensors: what it means, its memory, and what
// becomes of its results. And the checks of arguments that collectives have in common; each throws
// invalid_argument, or unsupported. For the group's own sources. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/collectives/group_core.h>

namespace weft::collectives {

using Tensors = std::vector<at::Tensor>;

// Of an accelerator, whose tensors go by NCCL. PrivateUse1: whoever makes a device of his own says which
// library is NCCL there (nccl/devices.h).
inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_cuda() || tensor.is_privateuseone());
}
inline bool is_on_device(const Tensors& tensors) { return !tensors.empty() && is_on_device(tensors.front()); }

[[noreturn]] void refuse(const std::string& why);  // invalid_argument
void check(const at::Tensor& tensor);
void check_same(const at::Tensor& first, const at::Tensor& tensor);
void expect_one_each(const GroupCore& group, const Tensors& tensors);
void expect_rank(const GroupCore& group, int rank);
// The whole of `parts`, and how it is cut.
std::vector<Range> equal_blocks(const GroupCore& group, const at::Tensor& whole, const at::Tensor& part);

// Elements one after the other, of a tensor or of several: their own memory, where it is so.
at::Tensor flat(const at::Tensor& tensor);
at::Tensor flat(const Tensors& tensors);

std::vector<std::vector<std::int64_t>> shapes_of(const Tensors& tensors);
std::vector<Range> blocks_of(const Tensors& tensors);
std::string type_of(const at::Tensor& tensor);   // "float32[4]"
rpc::Buffer bytes_of(const at::Tensor& memory);  // contiguous
inline std::vector<std::int64_t> shape_of(const at::Tensor& tensor) { return tensor.sizes().vec(); }
inline std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }
inline std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

// In that space, where it has room; space may be null.
at::Tensor empty_in(SharedSpace* space, at::IntArrayRef sizes, const at::TensorOptions& options);

// Where results are put: one piece of memory, the tensor's own where it can be, else copied there in the end.
class Output {
 public:
  explicit Output(at::Tensor tensor);
  // space: for what is copied, where there is one. Tensors that are one piece of memory are not copied.
  explicit Output(Tensors tensors, SharedSpace* space = nullptr);
  static Output copied(Tensors tensors, SharedSpace* space = nullptr);  // in any case

  const at::Tensor& memory() const { return memory_; }
  bool is_copied() const { return !tensors_.empty(); }  // in the end
  void gather() const;                                  // what the tensors hold now, where they are copied
  void write_back() const;

 private:
  Output() = default;
  void allocate(const at::Tensor& like, SharedSpace* space);

  Tensors tensors_;  // to be written in the end
  at::Tensor memory_;
};

class Preparation {
 public:
  Preparation(const GroupCore& group, Operation operation, const at::Tensor& first, Timeout timeout,
              const std::source_location& site);

  Signature& signature() { return collective_.signature; }
  Layout& layout() { return collective_.layout; }
  void set_root(int root);
  void set_reduction(ReduceOp op);
  bool is_root() const { return collective_.signature.root == group_.rank(); }
  // Whether the output is changed before the ranks are known to agree.
  bool needs_scratch() const { return group_.writes_early(collective_); }

  void set_input(at::Tensor memory);
  void set_output(Output output);
  // The output's memory is the accumulator too, where its elements are as wide.
  void accumulate_in_output();

  // Throws invalid_argument where input and output overlap, unless the collective is in place.
  Collective take();

 private:
  void check_overlap() const;

  const GroupCore& group_;
  Collective collective_;
  at::Tensor input_, output_;  // memory; may be undefined
  std::vector<Output> outputs_;
};

}  // namespace weft::collectives
