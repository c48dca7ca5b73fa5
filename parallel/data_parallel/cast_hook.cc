#include <weft/parallel/data_parallel/cast_hook.h>

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
  if (step == 1) {
    bucket.buffer.copy_(narrow.memory);
    return std::nullopt;
  }
  if (!narrow.of.defined() || !narrow.of.is_same(bucket.buffer))
    narrow = {bucket.buffer, group.empty(bucket.buffer.sizes(), bucket.buffer.options().dtype(dtype_))};
  narrow.memory.copy_(bucket.buffer);
  return group.all_reduce(narrow.memory, collectives::ReduceOp::avg);
}

}  // namespace weft::data_parallel
