#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include <ATen/Functions.h>

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

}  // namespace weft::data_parallel
