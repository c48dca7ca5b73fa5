#include <weft/parallel/data_parallel/hooks/quantization_hook.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <string>
#include <tuple>

namespace weft::data_parallel {

namespace {

constexpr double levels = 255;

// The parts of what a rank sends. Scales are float32 for gradients of any type.
struct Quantized {
  at::Tensor scales, zeros;  // blocks x 1, float32
  at::Tensor bytes;          // blocks x block

  Quantized(const at::Tensor& row, std::int64_t blocks, std::int64_t block)
      : scales(row.narrow(0, 0, 4 * blocks).view(at::kFloat).view({blocks, 1})),
        zeros(row.narrow(0, 4 * blocks, 4 * blocks).view(at::kFloat).view({blocks, 1})),
        bytes(row.narrow(0, 8 * blocks, blocks * block).view({blocks, block})) {}
};

void quantize(const at::Tensor& values, const Quantized& out) {
  const auto [least, largest] = at::aminmax(values, 1, true);
  const at::Tensor min = least.clamp_max(0).to(at::kFloat);
  const at::Tensor scale = (largest.clamp_min(0).to(at::kFloat) - min) / levels;
  out.scales.copy_(scale.masked_fill(scale == 0, 1));
  out.zeros.copy_((-min / out.scales).round_());
  // If a scale is not finite, either the zero point is NaN, or the integers equal the zero point and
  // dequantize() computes 0 * infinity. Both results are NaN.
  out.bytes.copy_((values / out.scales).round_().add_(out.zeros).nan_to_num_(0).clamp_(0, levels));
}

at::Tensor dequantize(const Quantized& in, at::ScalarType dtype) {
  return in.bytes.to(dtype).sub_(in.zeros).mul_(in.scales);
}

}  // namespace

QuantizationHook::QuantizationHook(const QuantizationOptions& options) : options_(options) {
  if (options.block < 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "QuantizationHook: block " + std::to_string(options.block) + ", expected 0 or more");
}

void QuantizationHook::allocate(const collectives::Group& group, const at::Tensor& values,
                                Bucket& bucket) const {
  const std::int64_t block = options_.block == 0 ? std::max<std::int64_t>(values.numel(), 1) : options_.block;
  const std::int64_t blocks = (values.numel() + block - 1) / block;
  const auto wide = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  bucket.padded = at::zeros({blocks, block}, values.options().dtype(wide));
  // Rows are aligned for float32. A row without elements would have the alignment of a byte.
  const std::int64_t bytes = std::max<std::int64_t>((blocks * (8 + block) + 7) / 8 * 8, 8);
  bucket.gathered = group.empty({group.size(), bytes}, values.options().dtype(at::kByte));
  bucket.own = bucket.gathered[group.rank()];
  bucket.own.zero_();
}

std::optional<rpc::Future<void>> QuantizationHook::run(const collectives::Group& group,
                                                       GradientBucket& content, int step) {
  const at::Tensor& buffer = content.buffer;
  Bucket& bucket = buckets_.of(buffer);
  const at::Tensor values = buffer.is_complex() ? at::view_as_real(buffer).view({-1}) : buffer;
  if (step == 0) {
    if (!bucket.padded.defined()) allocate(group, values, bucket);
    bucket.padded.view({-1}).narrow(0, 0, values.numel()).copy_(values);
    quantize(bucket.padded, {bucket.own, bucket.padded.size(0), bucket.padded.size(1)});
    return group.all_gather(bucket.gathered, bucket.own);
  }
  at::Tensor sum = at::zeros_like(bucket.padded);
  for (const at::Tensor& row : bucket.gathered.unbind(0))
    sum.add_(dequantize({row, sum.size(0), sum.size(1)}, sum.scalar_type()));
  values.copy_(sum.div_(group.size()).view({-1}).narrow(0, 0, values.numel()));
  return std::nullopt;
}

}  // namespace weft::data_parallel
