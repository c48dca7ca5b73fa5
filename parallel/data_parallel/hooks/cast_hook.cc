#include <weft/parallel/data_parallel/hooks/cast_hook.h>

#include <weft/parallel/data_parallel/hooks/internal/gradient_cast.h>

#include <string>
#include <utility>

namespace weft::data_parallel {

CastHook::CastHook(at::ScalarType dtype, std::shared_ptr<CommunicationHook> inner)
    : dtype_(dtype), inner_(std::move(inner)) {
  expect_cast_type("CastHook", dtype);
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
  GradientBucket& narrow = narrow_.of(bucket.buffer);
  const at::Tensor values = as_real(bucket.buffer);
  if (!narrow.buffer.defined()) {
    narrow = bucket;
    narrow.buffer = group.empty({values.numel()}, values.options().dtype(dtype_));
    for (at::Tensor& gradient : narrow.gradients) {
      const at::Tensor wide = as_real(gradient);
      gradient = narrow.buffer.as_strided(wide.sizes(), wide.strides(),
                                          wide.storage_offset() - values.storage_offset());
    }
  }
  const at::Tensor& memory = narrow.buffer;
  if (step == 0) {
    memory.copy_(values.view({-1}));
    narrow.excluded = bucket.excluded;
    narrow.factor = bucket.factor;
  }
  std::optional<rpc::Future<void>> started;
  if (inner_ != nullptr)
    started = inner_->run(group, narrow, step);
  else if (step == 0)
    started = group.all_reduce(memory, collectives::ReduceOp::avg);
  bucket.factor = narrow.factor;
  if (!started) widen(memory, bucket.buffer);
  return started;
}

}  // namespace weft::data_parallel
