#include <weft/parallel/sharded/internal/flat_shard.h>

#include <weft/parallel/sharded/internal/parameter_memory.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace weft::sharded {
namespace {

std::vector<std::int64_t> elements_of(const std::vector<data_parallel::NamedParameter>& parameters) {
  std::vector<std::int64_t> elements;
  for (const auto& each : parameters) elements.push_back(each.tensor.numel());
  return elements;
}

}  // namespace

FlatShard::FlatShard(std::vector<data_parallel::NamedParameter> parameters, const collectives::Group& group,
                     const ShardOptions& options, const std::string& owner)
    : owner_(owner),
      parameters_(std::move(parameters)),
      rank_(static_cast<std::size_t>(group.rank())),
      layout_(elements_of(parameters_), group.size()),
      received_(parameters_.size()) {
  const at::NoGradGuard no_grad;
  const at::Tensor& first = parameters_.front().tensor;
  const bool is_floating = first.is_floating_point();
  const at::TensorOptions original = at::TensorOptions(first.scalar_type()).device(first.device());
  gathered_ = is_floating && options.compute ? original.dtype(*options.compute) : original;
  gradients_of_buffer_ = is_floating && options.reduction ? original.dtype(*options.reduction) : gathered_;
  make_part(group, options.in_host_memory ? original.device(at::kCPU) : original, first.requires_grad());
  for (const ShardLayout::Slice& slice : own())
    slice_in(part_, slice)
        .copy_(parameters_[slice.parameter].tensor.detach().contiguous().view({-1}).slice(0, slice.begin,
                                                                                          slice.end));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.mutable_grad().reset();
    detach_memory(parameters_[i].tensor, c10::typeMetaToScalarType(gathered_.dtype()), reason(i));
  }
}

void FlatShard::make_part(const collectives::Group& group, const at::TensorOptions& options, bool trains) {
  if (options.device() == gathered_.device()) {
    part_ = group.empty({layout_.part}, options).zero_();
  } else {
    part_ = at::zeros({layout_.part}, options.pinned_memory(true));
  }
  if (trains) part_gradients_ = at::zeros({layout_.part}, part_.options().pinned_memory(part_.is_pinned()));
  slices_.clear();
  for (const ShardLayout::Slice& slice : own())
    slices_.push_back({parameters_[slice.parameter].name + "[" + std::to_string(slice.begin) + ":" +
                           std::to_string(slice.end) + "]",
                       slice_in(part_, slice).detach().set_requires_grad(trains), true});
}

void FlatShard::set_group(const collectives::Group& group) {
  rank_ = static_cast<std::size_t>(group.rank());
  layout_ = ShardLayout(elements_of(parameters_), group.size());
  make_part(group, at::TensorOptions(part_.scalar_type()).device(part_.device()), trains());
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

void FlatShard::check_unchanged() const {
  for (const auto& [name, tensor, sparse] : parameters_) {
    const std::string what =
        tensor.requires_grad() && !trains() ? "requires grad now, expected no grad"
        : tensor.dtype() != gathered_.dtype()
            ? c10::str("has another type now (", tensor.scalar_type(), ", expected ",
                       c10::typeMetaToScalarType(gathered_.dtype()), ")")
        : tensor.device() != gathered_.device()
            ? c10::str("is on another device now (", tensor.device(), ", expected ", gathered_.device(), ")")
            : std::string();
    if (!what.empty())
      throw rpc::Error(rpc::ErrorKind::failed_precondition, owner_ + ": parameter " + name + " " + what +
                                                                ": change the module before the " + owner_ +
                                                                " is constructed");
  }
}

void FlatShard::place(const at::Tensor& buffer) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    set_memory(tensor, buffer.narrow(0, layout_.offsets[i], tensor.numel()));
  }
}

void FlatShard::keep_changes(const at::Tensor& buffer) {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = buffer.narrow(0, static_cast<std::int64_t>(rank_) * layout_.part, layout_.part);
  const at::Tensor changed = whole.ne(part_.to(whole.options())).to(part_.device());
  part_.copy_(at::where(changed, whole.to(part_.options()), part_));
}

void FlatShard::displace() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) remove_memory(parameters_[i].tensor, reason(i));
}

void FlatShard::add_gradient(std::size_t parameter, const at::Tensor& gradient, const at::Tensor& buffer) {
  const at::Tensor place =
      buffer.narrow(0, layout_.offsets[parameter], gradient.numel()).view(gradient.sizes());
  received_[parameter] ? place.add_(gradient) : place.copy_(gradient);
  received_[parameter] = true;
}

void FlatShard::complete(const at::Tensor& buffer) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!received_[i]) buffer.narrow(0, layout_.offsets[i], parameters_[i].tensor.numel()).zero_();
}

at::Tensor FlatShard::direct_output() const {
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
