#include <weft/parallel/collectives/preparation.h>

#include <weft/parallel/collectives/in_place.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace weft::collectives {

using rpc::Error;
using rpc::ErrorKind;

void refuse(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

void check(const at::Tensor& tensor) {
  if (!tensor.defined()) refuse("a collective over an undefined tensor");
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw Error(ErrorKind::unsupported, "collectives are over dense tensors");
  if (!tensor.is_cpu())
    throw Error(ErrorKind::unsupported,
                "collectives are over tensors of the host and of GPUs, not of " + tensor.device().str());
}

void check_same(const at::Tensor& first, const at::Tensor& tensor) {
  check(tensor);
  if (tensor.scalar_type() != first.scalar_type()) refuse("tensors of one collective are of one dtype");
}

void expect_one_each(const GroupCore& group, const Tensors& tensors) {
  if (tensors.size() != static_cast<std::size_t>(group.size()))
    refuse(std::to_string(tensors.size()) + " tensors where each of " + std::to_string(group.size()) +
           " ranks has one");
}

std::vector<Range> equal_blocks(const GroupCore& group, const at::Tensor& whole, const at::Tensor& part) {
  if (whole.numel() != part.numel() * group.size())
    refuse(std::to_string(whole.numel()) + " elements where " + std::to_string(group.size()) + " × " +
           std::to_string(part.numel()) + " are due");
  return even_blocks(count_of(whole), group.size());
}

void expect_rank(const GroupCore& group, int rank) {
  if (rank < 0 || rank >= group.size())
    refuse("rank " + std::to_string(rank) + " of a group of " + std::to_string(group.size()));
}

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous().view({-1});
}

namespace {
// Of tensors that lie one after the other in one storage; else undefined.
at::Tensor joined(const Tensors& tensors) {
  const at::Tensor* first = nullptr;
  const std::byte* end = nullptr;
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) return {};
    if (first == nullptr) {
      first = &tensor;
    } else if (data_of(tensor) != end || !tensor.storage().is_alias_of(first->storage())) {
      return {};
    }
    end = data_of(tensor) + tensor.nbytes();
    elements += tensor.numel();
  }
  return first == nullptr ? at::Tensor() : first->detach().as_strided({elements}, {1});
}
}  // namespace

at::Tensor flat(const Tensors& tensors) {
  if (tensors.size() == 1) return flat(tensors.front());
  if (at::Tensor memory = joined(tensors); memory.defined()) return memory;
  Tensors parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(flat(tensor));
  return at::cat(parts);
}

std::vector<std::vector<std::int64_t>> shapes_of(const Tensors& tensors) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const at::Tensor& tensor : tensors) shapes.push_back(shape_of(tensor));
  return shapes;
}
std::vector<Range> blocks_of(const Tensors& tensors) {
  std::vector<std::size_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(static_cast<std::size_t>(tensor.numel()));
  return collectives::blocks_of(sizes);
}
std::string type_of(const at::Tensor& tensor) { return tensor_text(tensor.scalar_type(), shape_of(tensor)); }

rpc::Buffer bytes_of(const at::Tensor& memory) {
  return {std::make_shared<at::Tensor>(memory), data_of(memory), memory.nbytes()};
}

at::Tensor empty_in(SharedSpace* space, at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (space == nullptr || !options.device().is_cpu() || options.layout() != at::kStrided)
    return at::empty(sizes, options);
  const auto elements = static_cast<std::size_t>(c10::multiply_integers(sizes));
  auto memory = space->allocate(elements * c10::elementSize(c10::typeMetaToScalarType(options.dtype())));
  if (memory == nullptr) return at::empty(sizes, options);
  void* const data = memory.get();
  return at::from_blob(data, sizes, [memory = std::move(memory)](void*) {}, options);
}

// --- Output ---

// What a conjugated or negated view holds is not what it means.
Output::Output(at::Tensor tensor) : tensors_{std::move(tensor)} {
  const at::Tensor& only = tensors_.front();
  if (only.is_contiguous() && !only.is_conj() && !only.is_neg()) {
    memory_ = only.detach().view({-1});
    tensors_.clear();
  } else {
    allocate(only, nullptr);
  }
}

Output::Output(Tensors tensors, SharedSpace* space) : memory_(joined(tensors)) {
  if (!memory_.defined()) *this = copied(std::move(tensors), space);
}

Output Output::copied(Tensors tensors, SharedSpace* space) {
  Output output;
  output.tensors_ = std::move(tensors);
  output.allocate(output.tensors_.front(), space);
  return output;
}

void Output::allocate(const at::Tensor& like, SharedSpace* space) {
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : tensors_) {
    for (std::int64_t d = 0; d < tensor.dim(); ++d)
      if (tensor.stride(d) == 0 && tensor.size(d) > 1) refuse("an expanded tensor cannot take a result");
    elements += tensor.numel();
  }
  auto made = rpc::capture([&] { return empty_in(space, {elements}, like.options().requires_grad(false)); });
  memory_ =
      made.ok() ? std::move(made).get() : empty_in(nullptr, {elements}, like.options().requires_grad(false));
}

void Output::gather() const {
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors_) {
    memory_.narrow(0, begin, tensor.numel()).view(tensor.sizes()).copy_(tensor.detach());
    begin += tensor.numel();
  }
}

void Output::write_back() const {
  const at::NoGradGuard no_grad;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors_) {
    tensor.detach().copy_(memory_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

// --- Preparation ---

Preparation::Preparation(const GroupCore& group, Operation operation, const at::Tensor& first,
                         Timeout timeout, const std::source_location& site)
    : group_(group) {
  check(first);
  collective_.signature.operation = operation;
  collective_.layout.operation = operation;
  collective_.signature.dtype = first.scalar_type();
  collective_.site = site;
  collective_.timeout = timeout;
  collective_.memory.item_size = first.element_size();
}

void Preparation::set_root(int root) {
  if (root < 0 || root >= group_.size())
    refuse("root " + std::to_string(root) + " of a group of " + std::to_string(group_.size()));
  collective_.signature.root = root;
  collective_.layout.root = root;
}

void Preparation::set_reduction(ReduceOp op) {
  collective_.signature.reduction = op.kind;
  collective_.reduction.emplace(op, collective_.signature.dtype);
}

void Preparation::set_input(at::Tensor memory) {
  if (collective_.reduction && collective_.reduction->premultiplies()) {
    at::Tensor scaled = at::empty_like(memory);
    collective_.reduction->premultiply(data_of(scaled), data_of(memory), count_of(memory));
    memory = std::move(scaled);
  }
  collective_.memory.input = data_of(memory);
  input_ = std::move(memory);
}

void Preparation::set_output(Output output) {
  collective_.memory.output = data_of(output.memory());
  output_ = output.memory();
  if (output.is_copied()) outputs_.push_back(std::move(output));
}

void Preparation::accumulate_in_output() {
  if (!collective_.reduction->accumulates_wide()) collective_.memory.accumulator = collective_.memory.output;
}

void Preparation::check_overlap() const {
  const Layout& layout = collective_.layout;
  if (layout.blocks.empty() || !input_.defined() || !output_.defined()) return;  // or they are one
  const MemorySpan input{data_of(input_), input_.nbytes()}, output{data_of(output_), output_.nbytes()};
  const bool gathers = layout.operation == Operation::all_gather ||
                       layout.operation == Operation::all_gather_v || layout.operation == Operation::gather;
  const MemorySpan whole = gathers ? output : input, part = gathers ? input : output;
  const bool has_part = layout.from.empty();  // not all_to_all
  const std::size_t begin = layout.blocks[static_cast<std::size_t>(group_.rank())].begin;
  const std::byte* const own = has_part ? whole.data + begin * collective_.memory.item_size : nullptr;
  if (apart_or_in_place(whole, part, own)) return;
  std::string text(name_of(layout.operation));
  text += ": input and output overlap";
  if (has_part)
    text += std::string(", and the ") + (gathers ? "input" : "output") + " is not exactly part " +
            std::to_string(group_.rank()) + " of the " + (gathers ? "output" : "input");
  refuse(text + ": use tensors that do not overlap");
}

Collective Preparation::take() {
  check_overlap();
  collective_.memory.keeper = std::make_shared<std::pair<at::Tensor, at::Tensor>>(input_, output_);
  if (!outputs_.empty())
    collective_.finish = [outputs = std::move(outputs_)] {
      for (const Output& output : outputs) output.write_back();
    };
  return std::move(collective_);
}

}  // namespace weft::collectives
