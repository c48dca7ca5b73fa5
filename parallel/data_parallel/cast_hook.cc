#include <weft/parallel/data_parallel/cast_hook.h>

#include <ATen/Functions.h>

namespace weft::data_parallel {

CastHook::CastHook(at::ScalarType dtype) : dtype_(dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     std::string("CastHook: ") + c10::toString(dtype) + ", expected float16 or bfloat16");
}

std::optional<rpc::Future<void>> CastHook::run(const collectives::Group& group, GradientBucket& bucket,
                                               int step) {
  if (buckets_.size() <= bucket.index) buckets_.resize(bucket.index + 1);
  Narrow& narrow = buckets_[bucket.index];
  const at::Tensor values = bucket.buffer.is_complex() ? at::view_as_real(bucket.buffer) : bucket.buffer;
  if (step == 1) {
    values.copy_(narrow.memory);
    return std::nullopt;
  }
  if (!narrow.of.defined() || !narrow.of.is_same(bucket.buffer))
    narrow = {bucket.buffer, group.empty(values.sizes(), values.options().dtype(dtype_))};
  narrow.memory.copy_(values);
  return group.all_reduce(narrow.memory, collectives::ReduceOp::avg);
}

}  // namespace weft::data_parallel
