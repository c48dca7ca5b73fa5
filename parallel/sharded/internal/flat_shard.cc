#include <weft/parallel/sharded/internal/flat_shard.h>

#include <weft/parallel/weights/internal/tensor_memory.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

namespace weft::sharded {
namespace {

std::vector<std::vector<std::int64_t>> sizes_of(
    const std::vector<data_parallel::NamedParameter>& parameters) {
  std::vector<std::vector<std::int64_t>> sizes;
  for (const auto& each : parameters) sizes.push_back(each.tensor.sizes().vec());
  return sizes;
}

std::vector<std::int64_t> elements_of(const std::vector<std::vector<std::int64_t>>& sizes) {
  std::vector<std::int64_t> elements;
  for (const auto& each : sizes) elements.push_back(c10::multiply_integers(each));
  return elements;
}

}  // namespace

FlatShard::FlatShard(std::vector<data_parallel::NamedParameter> parameters, const collectives::Group& group,
                     const ShardOptions& options, const std::string& owner)
    : owner_(owner),
      parameters_(std::move(parameters)),
      sizes_(sizes_of(parameters_)),
      rank_(static_cast<std::size_t>(group.rank())),
      layout_(elements_of(sizes_), group.size()),
      storages_(parameters_.size()),
      received_(parameters_.size()) {
  const at::NoGradGuard no_grad;
  const at::Tensor& first = parameters_.front().tensor;
  const bool is_floating = first.is_floating_point();
  const at::TensorOptions original = at::TensorOptions(first.scalar_type()).device(first.device());
  gathered_ = is_floating && options.compute ? original.dtype(*options.compute) : original;
  gradients_of_buffer_ = is_floating && options.reduction ? original.dtype(*options.reduction) : gathered_;
  make_part(group, options.in_host_memory ? original.device(at::kCPU) : original, first.requires_grad());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (weights::has_memory(parameters_[i].tensor)) take_values(i, parameters_[i].tensor.detach());
    parameters_[i].tensor.mutable_grad().reset();
    detach(i);
  }
}

void FlatShard::take_values(std::size_t parameter, const at::Tensor& values) {
  const at::Tensor flat = values.contiguous().view({-1});
  for (const ShardLayout::Slice& slice : own())
    if (slice.parameter == parameter) slice_in(part_, slice).copy_(flat.slice(0, slice.begin, slice.end));
}

void FlatShard::detach(std::size_t parameter) {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  weights::detach_memory(tensor, gathered_, sizes_[parameter], reason(parameter));
  storages_[parameter] = tensor.storage();
}

bool FlatShard::is_replaced(std::size_t parameter) const {
  return parameters_[parameter].tensor.storage().unsafeGetStorageImpl() !=
         storages_[parameter].unsafeGetStorageImpl();
}

void FlatShard::make_part(const collectives::Group& group, const at::TensorOptions& options, bool trains) {
  if (options.device() == gathered_.device()) {
    part_ = group.empty({layout_.part}, options).zero_();
  } else {
    part_ = at::zeros({layout_.part}, options.pinned_memory(true));
  }
  if (trains) make_gradients();
  slices_.clear();
  for (const ShardLayout::Slice& slice : own())
    slices_.push_back({parameters_[slice.parameter].name + "[" + std::to_string(slice.begin) + ":" +
                           std::to_string(slice.end) + "]",
                       slice_in(part_, slice).detach().set_requires_grad(trains), true});
}

void FlatShard::make_gradients() {
  part_gradients_ = at::zeros({layout_.part}, part_.options().pinned_memory(part_.is_pinned()));
}

std::vector<std::string> FlatShard::thawed() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor, sparse] : parameters_)
    if (!trains() && tensor.requires_grad()) names.push_back(name);
  return names;
}

void FlatShard::train() {
  make_gradients();
  for (dist_optim::Parameter& slice : slices_) slice.tensor.set_requires_grad(true);
}

void FlatShard::set_group(const collectives::Group& group, bool trains) {
  rank_ = static_cast<std::size_t>(group.rank());
  layout_ = ShardLayout(elements_of(sizes_), group.size());
  part_gradients_.reset();
  make_part(group, at::TensorOptions(part_.scalar_type()).device(part_.device()), trains);
  forget_gradients();
}

std::string FlatShard::reason(std::size_t parameter) const {
  return "parameter " + parameters_[parameter].name +
         " is split over the ranks: its elements are here only while the " + owner_ +
         " has gathered them. Call the functions of the " + owner_ +
         " instead of the module's forward, and move or convert the module before it is split";
}

bool FlatShard::is_frozen_in_part() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const auto& each) { return !each.tensor.requires_grad(); });
}

// torch::load calls set_(), which gives a parameter the memory of the loaded tensor and not its type. If the
// module computes in another type than that of the part, the memory has elements of the part's type.
at::Tensor FlatShard::replaced_values(const at::Tensor& parameter) const {
  const auto bytes_of = [&](const at::TensorOptions& options) {
    return static_cast<std::size_t>(parameter.numel()) * options.dtype().itemsize();
  };
  const at::TensorOptions own = gathered_.dtype(part_.dtype());
  const bool is_of_part = parameter.dtype() == gathered_.dtype() && parameter.is_contiguous() &&
                          parameter.storage_offset() == 0 && bytes_of(own) != bytes_of(gathered_) &&
                          parameter.storage().nbytes() == bytes_of(own);
  if (!is_of_part) return parameter.detach().contiguous().view({-1});
  return at::empty({0}, own).set_(parameter.storage(), 0, {parameter.numel()}, {1});
}

void FlatShard::take_replaced(const at::Tensor& buffer) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_replaced(i)) continue;
    const auto& [name, tensor, sparse] = parameters_[i];
    const std::string what =
        tensor.scalar_type() != part_.scalar_type() && tensor.dtype() != gathered_.dtype()
            ? c10::str("has another type now (", tensor.scalar_type(), ", expected ", part_.scalar_type(),
                       ")")
        : tensor.device() != gathered_.device()
            ? c10::str("is on another device now (", tensor.device(), ", expected ", gathered_.device(), ")")
        : tensor.sizes() != sizes_[i] ? c10::str("has other sizes now (", tensor.sizes(), ", expected ",
                                                 at::IntArrayRef(sizes_[i]), ")")
                                      : std::string();
    if (!what.empty())
      throw rpc::Error(rpc::ErrorKind::failed_precondition, owner_ + ": parameter " + name + " " + what +
                                                                ": change the module before the " + owner_ +
                                                                " is constructed");
    const at::Tensor values = replaced_values(tensor);
    take_values(i, values);
    detach(i);
    if (!buffer.defined()) continue;
    const at::Tensor whole = buffer.narrow(0, layout_.offsets[i], values.numel());
    whole.copy_(values);
    weights::set_memory(tensor, whole);
  }
}

void FlatShard::drop_replaced() {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (is_replaced(i)) detach(i);
}

void FlatShard::place(const at::Tensor& buffer) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    if (is_replaced(i)) continue;
    weights::set_memory(tensor, buffer.narrow(0, layout_.offsets[i], tensor.numel()));
  }
}

void FlatShard::keep_changes(const at::Tensor& buffer, const at::Tensor& before) {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = own_in(buffer);
  const at::Tensor changed = whole.ne(before).to(part_.device());
  part_.copy_(at::where(changed, whole.to(part_.options()), part_));
  take_replaced(buffer);  // last: its values are not rounded to the buffer's type
}

void FlatShard::displace() {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!is_replaced(i)) weights::remove_memory(parameters_[i].tensor, reason(i));
}

void FlatShard::add_gradient(std::size_t parameter, const at::Tensor& gradient, const at::Tensor& buffer) {
  const at::Tensor place =
      buffer.narrow(0, layout_.offsets[parameter], gradient.numel()).view(gradient.sizes());
  received_[parameter] ? place.add_(gradient) : place.copy_(gradient);
  received_[parameter] = true;
}

void FlatShard::complete(const at::Tensor& buffer) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!received_[i]) buffer.narrow(0, layout_.offsets[i], c10::multiply_integers(sizes_[i])).zero_();
}

at::Tensor FlatShard::direct_output() {
  std::size_t own = 1;  // references to the memory
  for (const dist_optim::Parameter& slice : slices_)
    if (const at::Tensor& gradient = slice.tensor.grad();
        gradient.defined() && gradient.is_alias_of(part_gradients_))
      ++own;
  if (part_gradients_.storage().use_count() > own) make_gradients();
  for (const dist_optim::Parameter& slice : slices_)
    if (slice.tensor.grad().defined()) return {};
  const bool fits = part_gradients_.device() == gradients_of_buffer_.device() &&
                    part_gradients_.dtype() == gradients_of_buffer_.dtype();
  return fits ? part_gradients_ : at::Tensor();
}

void FlatShard::take_reduced(const at::Tensor& part) {
  const bool is_direct = part.is_alias_of(part_gradients_);
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const at::Tensor reduced = slice_in(part, own()[i]);
    at::Tensor& gradient = slices_[i].tensor.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(reduced.to(gradient.device()));
    } else if (!is_direct) {
      slice_in(part_gradients_, own()[i]).copy_(reduced);
    }
  }
}

void FlatShard::publish(const std::vector<bool>& has_gradient) {
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    at::Tensor& gradient = slices_[i].tensor.mutable_grad();
    if (!gradient.defined() && has_gradient[own()[i].parameter])
      gradient = slice_in(part_gradients_, own()[i]).variable_data();
  }
}

std::size_t FlatShard::bytes() const {
  return part_.nbytes() + (part_gradients_.defined() ? part_gradients_.nbytes() : 0);
}

}  // namespace weft::sharded
