#include <weft/parallel/collectives/internal/group/preparation.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace weft::collectives {
namespace {

using View = std::span<const at::Tensor>;

// Whether the memory of the tensor has its elements in order. This is false for a conjugated or negated
// view.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Memory of tensors that follow each other in one storage; otherwise undefined.
at::Tensor joined(View tensors) {
  const at::Tensor* first = nullptr;
  const std::byte* end = nullptr;
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (!is_plain(tensor)) return {};
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

at::Tensor flat(View tensors) {
  if (tensors.size() == 1) return collectives::flat(tensors.front());
  if (at::Tensor memory = joined(tensors); memory.defined()) return memory;
  Tensors parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(collectives::flat(tensor));
  return at::cat(parts);
}

// The part of a rank as a view: of a contiguous tensor, or a row of one that has a row for each rank.
at::Tensor part_of(const at::Tensor& whole, int rank, int ranks) {
  const bool has_rows = whole.dim() > 1 && whole.size(0) == ranks && whole.select(0, 0).is_contiguous();
  if (!whole.is_contiguous() && !has_rows)
    refuse("one of several tensors with parts for the ranks, " + type_of(whole) +
           ", is not contiguous, expected a contiguous one, or one with a contiguous row for each of " +
           std::to_string(ranks) + " ranks");
  if (has_rows) return whole.detach().select(0, rank).view({-1});
  const std::int64_t part = whole.numel() / ranks;
  return whole.detach().view({-1}).narrow(0, rank * part, part);
}

// Returns the parts of several tensors, by rank: the blocks follow each other by rank, and each has the
// parts of one tensor after the other.
Tensors parts_by_rank(View wholes, int ranks) {
  Tensors parts;
  parts.reserve(wholes.size() * static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    for (const at::Tensor& whole : wholes) parts.push_back(part_of(whole, rank, ranks));
  return parts;
}

// The memory that the collective reads and writes. An undefined input or no output: the collective has none.
struct Memory {
  at::Tensor input;
  std::optional<Output> output = {};
};

// type: of the elements that the backend moves.
Memory memory_of(const GroupMember& group, Backend& backend, const CollectiveCall& call,
                 const Collective& collective, at::ScalarType type) {
  const Copies copies = copies_of(call, group.rank());
  const bool is_root = call.root == group.rank(), converts = type != collective.signature.dtype;
  switch (call.operation) {
    case Operation::all_reduce: {
      // The program's tensors must not change before the ranks are known to agree.
      Output output = converts || backend.writes_early(collective) ? Output::copied(call.outputs, type)
                                                                   : Output(call.outputs, &backend);
      output.gather();
      at::Tensor input = output.memory();
      return {std::move(input), std::move(output)};
    }
    case Operation::reduce:
      if (!is_root) return {flat(call.outputs).to(type)};
      return {flat(call.outputs).to(type),
              converts ? Output::copied(call.outputs, type) : Output(call.outputs)};
    case Operation::broadcast: {
      if (!is_root) return {{}, Output(call.outputs)};
      at::Tensor memory = flat(call.outputs);
      Output output(View(&memory, 1));
      return {std::move(memory), std::move(output)};
    }
    default:
      break;
  }
  Tensors parts;
  View outputs = call.outputs, inputs = call.inputs;
  if (call.operation == Operation::all_gather && outputs.size() > 1)
    outputs = parts = parts_by_rank(outputs, group.size());
  if (call.operation == Operation::reduce_scatter && inputs.size() > 1)
    inputs = parts = parts_by_rank(inputs, group.size());
  Memory memory;
  if (!inputs.empty())
    memory.input = flat(inputs).to(type, /*non_blocking=*/false, /*copy=*/copies == Copies::inputs);
  if (!outputs.empty())
    memory.output = converts || copies == Copies::outputs ? Output::copied(outputs, type) : Output(outputs);
  return memory;
}

// The sum of integers would overflow in a narrow type, although the average does not.
at::ScalarType type_within(const CollectiveCall& call, at::ScalarType type) {
  const bool averages = call.reduction && call.reduction->kind == ReduceOp::Kind::avg;
  return averages && c10::isIntegralType(type, /*includeBool=*/false) && c10::elementSize(type) < 8
             ? at::kLong
             : type;
}

at::Tensor premultiplied(const Reduction& reduction, const at::Tensor& memory) {
  at::Tensor scaled = at::empty_like(memory);
  reduction.premultiply(data_of(scaled), data_of(memory), count_of(memory));
  return scaled;
}

}  // namespace

Collective collective_of(const GroupMember& group, Backend& backend, const CollectiveCall& call) {
  const at::NoGradGuard no_grad;
  check(call, group.rank(), group.size());
  Collective collective{.signature = signature_of(call),
                        .site = call.site,
                        .layout = layout_of(call, group.size()),
                        .memory = {},
                        .reduction = {},
                        .timeout = call.timeout};
  if (call.first() == nullptr) return collective;  // a barrier
  const at::ScalarType type = type_within(call, collective.signature.dtype);
  if (call.reduction) collective.reduction.emplace(*call.reduction, type);
  PlanMemory& places = collective.memory;
  places.item_size = c10::elementSize(type);

  Memory memory = memory_of(group, backend, call, collective, type);
  if (collective.reduction && collective.reduction->premultiplies())
    memory.input = premultiplied(*collective.reduction, memory.input);
  if (memory.input.defined()) places.input = data_of(memory.input);
  at::Tensor output;
  if (memory.output) {
    output = memory.output->memory();
    places.output = data_of(output);
    // The same memory is the accumulator if its elements are as wide.
    if (call.operation == Operation::all_reduce && !collective.reduction->accumulates_wide())
      places.accumulator = places.output;
    if (memory.output->is_copied())
      collective.finish = [results = std::move(*memory.output)] { results.write_back(); };
  }
  places.keeper =
      std::make_shared<std::pair<at::Tensor, at::Tensor>>(std::move(memory.input), std::move(output));
  return collective;
}

void expect_rank(const GroupMember& group, int rank) {
  if (rank < 0 || rank >= group.size())
    refuse("rank " + std::to_string(rank) + " of a group of " + std::to_string(group.size()) +
           ": give a rank from 0 to " + std::to_string(group.size() - 1));
}

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous().view({-1});
}

std::string type_of(const at::Tensor& tensor, Checks checks) {
  return tensor_text(tensor.scalar_type(), compared_shape(tensor, checks));
}

rpc::Buffer bytes_of(const at::Tensor& memory) {
  return {std::make_shared<at::Tensor>(memory), data_of(memory), memory.nbytes()};
}

at::Tensor empty_in(Backend* backend, at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (backend == nullptr || !options.device().is_cpu() || options.layout() != at::kStrided)
    return at::empty(sizes, options);
  const auto elements = static_cast<std::size_t>(c10::multiply_integers(sizes));
  auto memory = backend->allocate(elements * c10::elementSize(c10::typeMetaToScalarType(options.dtype())));
  if (memory == nullptr) return at::empty(sizes, options);
  void* const data = memory.get();
  return at::from_blob(data, sizes, [memory = std::move(memory)](void*) {}, options);
}

// --- Output ---

Output::Output(View tensors, Backend* backend) {
  if (tensors.size() == 1 && is_plain(tensors.front()))
    memory_ = tensors.front().detach().view({-1});
  else
    memory_ = joined(tensors);
  if (!memory_.defined()) allocate(tensors, tensors.front().scalar_type(), backend);
}

Output Output::copied(View tensors, at::ScalarType type) {
  Output output;
  output.allocate(tensors, type, nullptr);
  return output;
}

void Output::allocate(View tensors, at::ScalarType type, Backend* backend) {
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    check_separate("a collective", tensor);
    elements += tensor.numel();
  }
  tensors_.assign(tensors.begin(), tensors.end());
  const at::TensorOptions options = tensors.front().options().dtype(type).requires_grad(false);
  auto made = rpc::capture([&] { return empty_in(backend, {elements}, options); });
  memory_ = made.ok() ? std::move(made).get() : empty_in(nullptr, {elements}, options);
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

}  // namespace weft::collectives
