#include <weft/parallel/sharded/internal/flat_parameters.h>

#include <weft/parallel/data_parallel/bucket_plan.h>
#include <weft/parallel/sharded/internal/parameter_memory.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

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
  set_memory(parameter, to);
}

}  // namespace

FlatParameters::FlatParameters(const collectives::Group& group, std::vector<dist_optim::Parameter> parameters,
                               std::size_t bucket_bytes)
    : parameters_(std::move(parameters)) {
  const at::NoGradGuard no_grad;
  check(parameters_);
  std::vector<data_parallel::ParameterSpec> specs;
  for (const auto& [name, tensor, slice] : parameters_)
    specs.push_back({tensor.nbytes(), tensor.scalar_type(), tensor.device()});
  std::vector<std::size_t> order(parameters_.size());
  std::iota(order.begin(), order.end(), 0);
  for (const auto& indices :
       data_parallel::plan_buckets(specs, std::vector<std::size_t>{bucket_bytes}, order)) {
    std::vector<std::int64_t> elements;
    for (const std::size_t index : indices) elements.push_back(parameters_[index].tensor.numel());
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

void FlatParameters::leave() {
  const at::NoGradGuard no_grad;
  if (buckets_.empty()) return;
  for (const auto& [name, tensor, slice] : parameters_)
    exchange_memory(tensor, at::empty({tensor.numel()}, tensor.options().requires_grad(false)));
  buckets_.clear();
}

}  // namespace weft::sharded
