#include <weft/parallel/data_parallel/hooks/cast_hook.h>

#include <ATen/Functions.h>

#include <string>
#include <utility>

namespace weft::data_parallel {

CastHook::CastHook(at::ScalarType dtype, std::shared_ptr<CommunicationHook> inner)
    : dtype_(dtype), inner_(std::move(inner)) {
  if (dtype != at::kHalf && dtype != at::kBFloat16 && dtype != at::kFloat)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, std::string("CastHook: ") + c10::toString(dtype) +
                                                           ", expected float16, bfloat16 or float32");
}

void CastHook::begin_iteration() {
  if (inner_ != nullptr) inner_->begin_iteration();
}

std::string CastHook::name() const {
  return std::string("CastHook(") + c10::toString(dtype_) + (inner_ == nullptr ? "" : ", " + inner_->name()) +
         ")";
}

std::optional<rpc::Future<void>> CastHook::run(const collectives::Group& group, GradientBucket& bucket,
                                               int step) {
  if (bucket.buffer.scalar_type() == dtype_) {
    if (inner_ != nullptr) return inner_->run(group, bucket, step);
    return step == 0 ? std::optional(all_reduce_average(group, bucket.buffer)) : std::nullopt;
  }
  if (buckets_.size() <= bucket.index) buckets_.resize(bucket.index + 1);
  Narrow& narrow = buckets_[bucket.index];
  const auto real = [](const at::Tensor& tensor) {
    return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  };
  const at::Tensor values = real(bucket.buffer);
  if (!narrow.of.defined() || !narrow.of.is_same(bucket.buffer)) {
    narrow = {bucket.buffer, bucket};
    narrow.bucket.buffer = group.empty({values.numel()}, values.options().dtype(dtype_));
    for (at::Tensor& gradient : narrow.bucket.gradients) {
      const at::Tensor wide = real(gradient);
      gradient = narrow.bucket.buffer.as_strided(wide.sizes(), wide.strides(),
                                                 wide.storage_offset() - values.storage_offset());
    }
  }
  at::Tensor& memory = narrow.bucket.buffer;
  if (step == 0) memory.copy_(values.view({-1}));
  std::optional<rpc::Future<void>> started;
  if (inner_ != nullptr)
    started = inner_->run(group, narrow.bucket, step);
  else if (step == 0)
    started = group.all_reduce(memory, collectives::ReduceOp::avg);
  if (!started) values.copy_(memory.view(values.sizes()));
  return started;
}

}  // namespace weft::data_parallel
