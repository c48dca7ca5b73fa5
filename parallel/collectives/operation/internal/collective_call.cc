#include <weft/parallel/collectives/operation/internal/collective_call.h>

#include <weft/parallel/collectives/plan/internal/algorithms.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/tensor/dtype.h>

#include <c10/util/SmallVector.h>

#include <algorithm>

namespace weft::collectives {
namespace {

using Tensors = std::span<const at::Tensor>;
using Count = Description::Count;
using Sizes = Description::Sizes;

[[noreturn]] void refuse_call(const CollectiveCall& call, const std::string& why) {
  refuse(std::string(name_of(call.operation)) + ": " + why);
}

std::string count_text(std::size_t tensors, const char* list) {
  return std::to_string(tensors) + " tensors as " + list;
}

// --- The number of tensors ---

void check_count(const CollectiveCall& call, Count count, Tensors tensors, const char* list, int rank,
                 int ranks) {
  const bool one_each =
      count == Count::one_per_rank || (count == Count::one_per_rank_at_root && call.root == rank);
  if (one_each && tensors.size() != static_cast<std::size_t>(ranks))
    refuse_call(call, count_text(tensors.size(), list) + ", expected " + std::to_string(ranks) +
                          ": give one for each rank");
  if ((count == Count::one && tensors.size() != 1) || (count == Count::none && !tensors.empty()))
    refuse_call(call,
                count_text(tensors.size(), list) + ", expected " + (count == Count::one ? "one" : "none"));
  if (count == Count::one_per_rank_at_root && !one_each && !tensors.empty())
    refuse_call(call, count_text(tensors.size(), list) + " on rank " + std::to_string(rank) +
                          ", expected none: only the root, rank " + std::to_string(*call.root) +
                          ", gives these");
}

void check_counts(const CollectiveCall& call, const Description& takes, int rank, int ranks) {
  check_count(call, takes.outputs, call.outputs, "outputs", rank, ranks);
  check_count(call, takes.inputs, call.inputs, "inputs", rank, ranks);
  if (takes.outputs != Count::one_or_more) return;
  if (takes.inputs == Count::one_or_more && call.inputs.size() != call.outputs.size())
    refuse_call(call, std::to_string(call.outputs.size()) + " outputs, expected " +
                          std::to_string(call.inputs.size()) + ": give one output for each input");
  if (call.outputs.empty()) refuse_call(call, "0 tensors, expected at least one");
}

// --- The kinds of tensors ---

void check_same(const CollectiveCall& call, const at::Tensor& first, const at::Tensor& tensor) {
  check_tensor(name_of(call.operation), tensor);
  if (tensor.scalar_type() != first.scalar_type())
    refuse_call(call, std::string("tensors of ") + std::string(tensor::dtype_name(first.scalar_type())) +
                          " and of " + std::string(tensor::dtype_name(tensor.scalar_type())) +
                          ": give tensors of one dtype");
  if (tensor.device() != first.device())
    refuse_call(call, "tensors on " + first.device().str() + " and on " + tensor.device().str() +
                          ": give tensors on one device");
}

// --- The sizes of tensors ---

void check_each_as_large(const CollectiveCall& call, Tensors list, const char* name, const at::Tensor& one,
                         const char* other) {
  for (const at::Tensor& tensor : list)
    if (tensor.numel() != one.numel())
      refuse_call(call, std::string(name) + " of " + std::to_string(tensor.numel()) + " elements, expected " +
                            std::to_string(one.numel()) + ": as large as the " + other);
}

void check_whole(const CollectiveCall& call, const char* name, Tensors wholes, Tensors parts, int ranks) {
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (wholes[i].numel() != parts[i].numel() * ranks)
      refuse_call(call, std::string(name) + " of " + std::to_string(wholes[i].numel()) + " elements where " +
                            std::to_string(ranks) + " × " + std::to_string(parts[i].numel()) +
                            " are expected");
}

void check_sizes(const CollectiveCall& call, Sizes sizes, int rank, int ranks) {
  const auto own = static_cast<std::size_t>(rank);
  switch (sizes) {
    case Sizes::any:
      return;
    case Sizes::output_of_all:
      return check_whole(call, "an output", call.outputs, call.inputs, ranks);
    case Sizes::input_of_all:
      return check_whole(call, "an input", call.inputs, call.outputs, ranks);
    case Sizes::equal_parts:
      if (call.inputs[0].numel() != call.outputs[0].numel() || call.inputs[0].numel() % ranks != 0)
        refuse_call(call, "an input of " + std::to_string(call.inputs[0].numel()) +
                              " elements and an output of " + std::to_string(call.outputs[0].numel()) +
                              ": expected one size, a multiple of " + std::to_string(ranks) +
                              ", the size of "
                              "the group");
      return;
    case Sizes::own_output:
      return check_each_as_large(call, call.outputs.subspan(own, 1), "this rank's output", call.inputs[0],
                                 "input");
    case Sizes::own_input:
      return check_each_as_large(call, call.inputs.subspan(own, 1), "this rank's input", call.outputs[0],
                                 "output");
    case Sizes::each_output:
      return check_each_as_large(call, call.outputs, "an output", call.inputs[0], "input");
    case Sizes::each_input:
      return check_each_as_large(call, call.inputs, "an input", call.outputs[0], "output");
  }
}

// --- The memory of tensors ---

// The memory of a tensor. 0 bytes: it overlaps nothing.
struct MemorySpan {
  const std::byte* data;
  std::size_t bytes;
};

// Whether the two spans share no byte, or `part` is at `own`, the place of this rank's part in the whole;
// null: there is no such place. all_gather and gather have the part as input and the whole as output;
// reduce_scatter and scatter the reverse.
bool apart_or_in_place(MemorySpan whole, MemorySpan part, const std::byte* own) {
  return whole.bytes == 0 || part.bytes == 0 || part.data + part.bytes <= whole.data ||
         whole.data + whole.bytes <= part.data || part.data == own;
}

using Spans = c10::SmallVector<MemorySpan, 4>;

// The spans of tensors. A span is empty, and overlaps nothing, if the tensor has no elements, or if its
// elements are copied before or after the operation.
Spans spans_of(Tensors tensors) {
  Spans spans;
  for (const at::Tensor& tensor : tensors) {
    const bool is_used_as_it_is = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
    spans.push_back(is_used_as_it_is
                        ? MemorySpan{static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}
                        : MemorySpan{nullptr, 0});
  }
  return spans;
}

MemorySpan hull_of(const Spans& spans) {
  const std::byte *begin = nullptr, *end = nullptr;
  for (const MemorySpan& span : spans) {
    if (span.bytes == 0) continue;
    begin = begin == nullptr ? span.data : std::min(begin, span.data);
    end = end == nullptr ? span.data + span.bytes : std::max(end, span.data + span.bytes);
  }
  return {begin, static_cast<std::size_t>(end - begin)};
}

// Whether the outputs are whole tensors, and an input may be this rank's part of one. false: the reverse.
bool gathers(Sizes sizes) {
  return sizes == Sizes::output_of_all || sizes == Sizes::own_output || sizes == Sizes::each_output;
}

// Returns the permitted location of a part in the memory of a whole tensor, or null.
const std::byte* own_place(Sizes sizes, MemorySpan whole, std::size_t whole_index, MemorySpan part,
                           std::size_t part_index, std::size_t rank) {
  switch (sizes) {
    case Sizes::output_of_all:
    case Sizes::input_of_all:
      return whole_index == part_index ? whole.data + rank * part.bytes : nullptr;
    case Sizes::own_output:
    case Sizes::own_input:
    case Sizes::each_output:
    case Sizes::each_input:
      return whole_index == rank ? whole.data : nullptr;
    default:
      return nullptr;
  }
}

// Whether an input and an output overlap otherwise than in place.
bool overlap(const CollectiveCall& call, Sizes sizes, int rank) {
  const Spans outputs = spans_of(call.outputs), inputs = spans_of(call.inputs);
  if (apart_or_in_place(hull_of(outputs), hull_of(inputs), nullptr)) return false;
  const bool into_whole = gathers(sizes);
  const Spans &wholes = into_whole ? outputs : inputs, &parts = into_whole ? inputs : outputs;
  for (std::size_t w = 0; w < wholes.size(); ++w)
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const auto* const own = own_place(sizes, wholes[w], w, parts[p], p, static_cast<std::size_t>(rank));
      if (!apart_or_in_place(wholes[w], parts[p], own)) return true;
    }
  return false;
}

void check_overlap(const CollectiveCall& call, Sizes sizes, int rank) {
  if (call.checks == Checks::relaxed || !overlap(call, sizes, rank)) return;
  std::string why = "input and output overlap";
  if (sizes != Sizes::equal_parts && sizes != Sizes::any)
    why += std::string(", and the ") + (gathers(sizes) ? "input" : "output") + " is not exactly part " +
           std::to_string(rank) + " of the " + (gathers(sizes) ? "output" : "input");
  refuse_call(call, why + ": use tensors that do not overlap");
}

}  // namespace

void refuse(const std::string& why) { throw rpc::Error(rpc::ErrorKind::invalid_argument, why); }

void check_tensor(std::string_view operation, const at::Tensor& tensor) {
  const auto name = [&] { return std::string(operation) + ": "; };
  if (!tensor.defined()) refuse(name() + "an undefined tensor, expected a defined one");
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw rpc::Error(rpc::ErrorKind::unsupported, name() + "a sparse or quantized tensor: give a dense one");
  if (!tensor.is_cpu() && !is_on_device(tensor))
    throw rpc::Error(rpc::ErrorKind::unsupported, name() + "a tensor on " + tensor.device().str() +
                                                      ": give one of the host's memory or of a GPU");
}

void check_separate(std::string_view operation, const at::Tensor& tensor) {
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.stride(d) == 0 && tensor.size(d) > 1)
      refuse(std::string(operation) + ": an output, " +
             tensor_text(tensor.scalar_type(), {tensor.sizes().data(), tensor.sizes().size()}) +
             ", is expanded: elements share memory in dimension " + std::to_string(d) +
             ", expected separate elements: give a contiguous tensor");
}

void note_writes(Tensors outputs) {
  for (const at::Tensor& tensor : outputs)
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

std::vector<std::int64_t> compared_shape(const at::Tensor& tensor, Checks checks) {
  return checks == Checks::strict ? tensor.sizes().vec() : std::vector{tensor.numel()};
}

Copies copies_of(const CollectiveCall& call, int rank) {
  const Description& takes = description_of(call.operation);
  if (call.checks == Checks::strict || takes.inputs == Count::none || !overlap(call, takes.sizes, rank))
    return Copies::nothing;
  return gathers(takes.sizes) ? Copies::inputs : Copies::outputs;
}

void check(const CollectiveCall& call, int rank, int ranks) {
  const Description& takes = description_of(call.operation);
  if (takes.has_root && (*call.root < 0 || *call.root >= ranks))
    refuse_call(call, "root " + std::to_string(*call.root) + " of a group of " + std::to_string(ranks) +
                          ": give a rank from 0 to " + std::to_string(ranks - 1));
  check_counts(call, takes, rank, ranks);
  const at::Tensor* const first = call.first();
  if (first == nullptr) return;
  check_tensor(name_of(call.operation), *first);
  for (const Tensors list : {call.inputs, call.outputs})
    for (const at::Tensor& tensor : list)
      if (&tensor != first) check_same(call, *first, tensor);
  check_sizes(call, takes.sizes, rank, ranks);
  if (takes.inputs != Count::none) check_overlap(call, takes.sizes, rank);
}

Signature signature_of(const CollectiveCall& call) {
  using Agreed = Description::Agreed;
  Signature signature;
  signature.operation = call.operation;
  signature.root = call.root;
  if (call.reduction) signature.reduction = call.reduction->kind;
  const at::Tensor* const first = call.first();
  if (first != nullptr) signature.dtype = first->scalar_type();
  const Agreed agreed = description_of(call.operation).agreed;
  if (agreed == Agreed::unknown) {
    signature.shapes = {{-1}};
  } else if (agreed != Agreed::nothing) {
    const Tensors tensors = agreed == Agreed::outputs ? call.outputs : call.inputs;
    signature.shapes.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) signature.shapes.push_back(compared_shape(tensor, call.checks));
  }
  return signature;
}

Layout layout_of(const CollectiveCall& call, int ranks) {
  const auto elements = [](Tensors tensors) {
    std::size_t all = 0;
    for (const at::Tensor& tensor : tensors) all += count_of(tensor);
    return all;
  };
  const auto blocks = [](Tensors tensors) {
    std::vector<std::size_t> sizes;
    for (const at::Tensor& tensor : tensors) sizes.push_back(count_of(tensor));
    return blocks_of(sizes);
  };
  Layout layout;
  layout.operation = call.operation;
  layout.root = call.root.value_or(-1);
  const Description& takes = description_of(call.operation);
  const Tensors wholes = gathers(takes.sizes) ? call.outputs : call.inputs;
  const Tensors parts = gathers(takes.sizes) ? call.inputs : call.outputs;
  switch (takes.sizes) {
    case Sizes::any:
      if (takes.inputs == Count::none) {
        layout.elements = elements(call.outputs);
      } else {
        layout.blocks = blocks(call.inputs);
        layout.from = blocks(call.outputs);
      }
      break;
    case Sizes::output_of_all:
    case Sizes::input_of_all:
      layout.blocks = even_blocks(elements(wholes), ranks);
      break;
    case Sizes::equal_parts:
      layout.blocks = layout.from = even_blocks(elements(call.inputs), ranks);
      break;
    case Sizes::own_output:
    case Sizes::own_input:
      layout.blocks = blocks(wholes);
      break;
    case Sizes::each_output:
    case Sizes::each_input:
      layout.blocks = even_blocks(count_of(parts[0]) * static_cast<std::size_t>(ranks), ranks);
      break;
  }
  return layout;
}

}  // namespace weft::collectives
