#include <weft/parallel/sharded/internal/flat_parameters.h>

#include <weft/parallel/data_parallel/bucket_plan.h>
#include <weft/parallel/weights/internal/tensor_memory.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace weft::sharded {
namespace {

// to: contiguous, with as many elements as the parameter. Its storage lives as long as the parameter uses it.
void exchange_memory(const at::Tensor& parameter, const at::Tensor& to) {
  if (parameter.numel() == 0) return;
  to.copy_(parameter.detach().view({-1}));
  weights::set_memory(parameter, to);
}

}  // namespace

void FlatParameters::add(const collectives::Group& group,
                         const std::vector<dist_optim::Parameter>& parameters, std::size_t bucket_bytes) {
  const at::NoGradGuard no_grad;
  check(parameters);
  const std::size_t before = parameters_.size();
  std::vector<data_parallel::ParameterSpec> specs;
  for (const auto& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    specs.push_back({tensor.nbytes(), tensor.scalar_type(), tensor.device()});
    parameters_.push_back(parameter);
    sizes_.push_back(tensor.sizes().vec());
  }
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  for (auto indices : data_parallel::plan_buckets(specs, std::vector<std::size_t>{bucket_bytes}, order)) {
    std::vector<std::int64_t> elements;
    for (std::size_t& index : indices) {
      index += before;
      elements.push_back(parameters_[index].tensor.numel());
    }
    Bucket bucket{indices, ShardLayout(elements, group.size()), {}, {}};
    bucket.buffer = group.empty({bucket.layout.elements()},
                                parameters_[indices.front()].tensor.options().requires_grad(false));
    bucket.buffer.zero_();
    bucket.part = bucket.buffer.narrow(0, group.rank() * bucket.layout.part, bucket.layout.part);
    for (std::size_t i = 0; i < indices.size(); ++i)
      exchange_memory(parameters_[indices[i]].tensor,
                      bucket.buffer.narrow(0, bucket.layout.offsets[i], elements[i]));
    buckets_.push_back(std::move(bucket));
  }
}

void FlatParameters::check(const std::vector<dist_optim::Parameter>& parameters) {
  std::map<const void*, std::string> owners;  // of storages
  for (const auto& [name, tensor, slice] : parameters) {
    const auto refuse = [&, &name = name](const std::string& why) {
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "sharded: parameter " + name + " " + why +
                           ", expected a contiguous tensor with a storage to itself: clone() it");
    };
    if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) refuse("is not contiguous");
    if (tensor.numel() == 0) continue;
    const auto [other, is_first] = owners.emplace(tensor.storage().unsafeGetStorageImpl(), name);
    if (!is_first) refuse("shares its storage with parameter " + other->second);
    if (tensor.storage_offset() != 0 || tensor.storage().nbytes() != tensor.nbytes())
      refuse("has " + std::to_string(tensor.nbytes()) + " bytes of a storage of " +
             std::to_string(tensor.storage().nbytes()));
  }
}

void FlatParameters::take_replaced() {
  const at::NoGradGuard no_grad;
  for (const Bucket& bucket : buckets_)
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const auto& [name, tensor, slice] = parameters_[bucket.parameters[i]];
      const std::vector<std::int64_t>& sizes = sizes_[bucket.parameters[i]];
      const at::Tensor own = bucket.place_of(i).narrow(0, 0, c10::multiply_integers(sizes));
      const bool has_type = tensor.dtype() == own.dtype() && tensor.device() == own.device();
      if (has_type && tensor.sizes() == sizes &&
          (own.numel() == 0 || tensor.const_data_ptr() == own.const_data_ptr()))
        continue;
      if (!has_type || tensor.sizes() != sizes)
        throw rpc::Error(
            rpc::ErrorKind::failed_precondition,
            c10::str("sharded: parameter ", name, " is ", tensor.scalar_type(), tensor.sizes(), " on ",
                     tensor.device(), " now, expected ", own.scalar_type(), at::IntArrayRef(sizes), " on ",
                     own.device(), ": change the module before its optimizer is constructed"));
      own.copy_(tensor.detach().reshape({-1}));
      weights::detach_memory(tensor, own.options(), sizes, "it is moved into a bucket");
      weights::set_memory(tensor, own);
    }
}

void FlatParameters::leave() {
  const at::NoGradGuard no_grad;
  if (buckets_.empty()) return;
  for (const Bucket& bucket : buckets_)
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const at::Tensor& tensor = parameters_[bucket.parameters[i]].tensor;
      if (tensor.numel() > 0 && tensor.const_data_ptr() == bucket.place_of(i).const_data_ptr())
        exchange_memory(tensor, at::empty({tensor.numel()}, tensor.options().requires_grad(false)));
    }
  buckets_.clear();
  parameters_.clear();
  sizes_.clear();
}

}  // namespace weft::sharded
