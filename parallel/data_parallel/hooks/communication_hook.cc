#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include <ATen/Functions.h>
#include <c10/util/Type.h>

#include <typeinfo>

namespace weft::data_parallel {

std::vector<at::Tensor> GradientBucket::views_of(const at::Tensor& flat) const {
  std::vector<at::Tensor> views;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    views.push_back(
        flat.as_strided(gradients[i].sizes(), gradients[i].strides(), flat.storage_offset() + begin_of(i)));
  return views;
}

std::int64_t GradientBucket::begin_of(std::size_t gradient) const {
  return gradients[gradient].storage_offset() - buffer.storage_offset();
}

rpc::Future<void> all_reduce_average(const collectives::Group& group, const at::Tensor& tensor) {
  return group.all_reduce(tensor.is_complex() ? at::view_as_real(tensor) : tensor,
                          collectives::ReduceOp::avg);
}

std::string CommunicationHook::name() const {
  const std::string full = c10::demangle(typeid(*this).name());
  const auto scope = full.rfind("::");
  return scope == std::string::npos ? full : full.substr(scope + 2);
}

}  // namespace weft::data_parallel
