#include <weft/parallel/data_parallel/hooks/adasum_hook.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <bit>
#include <limits>
#include <string>

namespace weft::data_parallel {

namespace {

at::Tensor dot_product(const at::Tensor& a, const at::Tensor& b) {
  return at::dot(a.to(at::kDouble), b.to(at::kDouble));
}

// a becomes the combination of both.
void combine(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor product = dot_product(a, b);
  const auto factor = [&](const at::Tensor& of) {
    // A zero vector has the product zero, so its factor is arbitrary.
    return (1 - product / (2 * dot_product(of, of)).clamp_min(std::numeric_limits<double>::min()))
        .to(a.scalar_type());
  };
  const at::Tensor of_a = factor(a), of_b = factor(b);
  a.copy_(a * of_a + b * of_b);  // symmetric, so that both ranks get the same bits
}

}  // namespace

void AdasumHook::expect_ranks(int ranks) {
  if (!std::has_single_bit(static_cast<unsigned>(ranks)))
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "AdasumHook: " + std::to_string(ranks) + " ranks, expected a power of two");
}

std::optional<rpc::Future<void>> AdasumHook::run(const collectives::Group& group, GradientBucket& bucket,
                                                 int step) {
  expect_ranks(group.size());
  const auto ranks = static_cast<unsigned>(group.size());
  bucket.factor = 1;  // a combination with zeros changes nothing
  at::Tensor& received = received_.of(bucket.buffer);
  if (!received.defined()) received = group.empty(bucket.buffer.sizes(), bucket.buffer.options());
  if (step > 0) {
    const auto flat = [](const at::Tensor& part) {
      return part.is_complex() ? at::view_as_real(part).view({-1}) : part;
    };
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      const std::int64_t begin = bucket.begin_of(i), count = bucket.gradients[i].numel();
      combine(flat(bucket.buffer.narrow(0, begin, count)), flat(received.narrow(0, begin, count)));
    }
  }
  const unsigned distance = 1U << static_cast<unsigned>(step);
  if (distance >= ranks) return std::nullopt;
  const int partner = static_cast<int>(static_cast<unsigned>(group.rank()) ^ distance);
  using Kind = collectives::PointToPoint::Kind;
  return group.batch(
      {{Kind::send, bucket.buffer, partner, bucket.index}, {Kind::recv, received, partner, bucket.index}});
}

}  // namespace weft::data_parallel
