#include <weft/parallel/data_parallel/hooks/top_k_hook.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>

namespace weft::data_parallel {

namespace {

constexpr std::int64_t row_alignment = 16;  // in bytes: of a rank's row, and of the positions in it

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + row_alignment - 1) / row_alignment * row_alignment;
}

// The elements that a rank sends, and their positions in the buffer, in its row of bytes.
struct Chosen {
  at::Tensor values, positions;

  Chosen(const at::Tensor& row, std::int64_t elements, at::ScalarType type, at::ScalarType position)
      : values(part(row, 0, elements, type)),
        positions(part(row, aligned(elements * item(type)), elements, position)) {}

  static std::int64_t bytes(std::int64_t elements, at::ScalarType type, at::ScalarType position) {
    return aligned(elements * item(type)) + aligned(elements * item(position));
  }

 private:
  static std::int64_t item(at::ScalarType type) { return static_cast<std::int64_t>(c10::elementSize(type)); }
  static at::Tensor part(const at::Tensor& row, std::int64_t begin, std::int64_t elements,
                         at::ScalarType type) {
    return row.narrow(0, begin, elements * item(type)).view(type);
  }
};

}  // namespace

TopKHook::TopKHook(const TopKOptions& options) : options_(options) {
  if (!(options.ratio > 0 && options.ratio <= 1))
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "TopKHook: ratio " + std::to_string(options.ratio) +
                                                           ", expected more than 0, at most 1");
}

void TopKHook::plan(const collectives::Group& group, const GradientBucket& content, Bucket& bucket) const {
  for (std::size_t i = 0; i < content.gradients.size(); ++i) {
    const std::int64_t count = content.gradients[i].numel();
    const auto k = static_cast<std::int64_t>(std::ceil(options_.ratio * static_cast<double>(count)));
    bucket.parts.push_back({content.begin_of(i), count, bucket.elements, k});
    bucket.elements += k;
  }
  bucket.flat = at::zeros_like(content.buffer);
  bucket.sums = content.views_of(bucket.flat);
  if (content.buffer.numel() <= std::numeric_limits<std::int32_t>::max()) bucket.positions = at::kInt;
  bucket.gathered = group.empty(
      {group.size(), Chosen::bytes(bucket.elements, content.buffer.scalar_type(), bucket.positions)},
      content.buffer.options().dtype(at::kByte));
  bucket.own = bucket.gathered[group.rank()];
  bucket.own.zero_();
}

void TopKHook::choose(const GradientBucket& content, Bucket& bucket) {
  const Chosen own(bucket.own, bucket.elements, bucket.flat.scalar_type(), bucket.positions);
  for (std::size_t i = 0; i < bucket.parts.size(); ++i) {
    const Part& part = bucket.parts[i];
    residuals_.take(content.indices[i], bucket.sums[i], content.gradients[i]);
    const at::Tensor flat = bucket.flat.narrow(0, part.begin, part.count);
    const at::Tensor places = std::get<1>(flat.abs().topk(part.k));
    own.values.narrow(0, part.chosen, part.k).copy_(flat.index_select(0, places));
    own.positions.narrow(0, part.chosen, part.k).copy_(places + part.begin);
    flat.index_fill_(0, places, 0);
  }
}

std::optional<rpc::Future<void>> TopKHook::run(const collectives::Group& group, GradientBucket& content,
                                               int step) {
  Bucket& bucket = buckets_.of(content.buffer);
  if (step == 0) {
    if (!bucket.flat.defined()) plan(group, content, bucket);
    choose(content, bucket);
    return group.all_gather(bucket.gathered, bucket.own);
  }
  content.buffer.zero_();
  // The positions of one rank differ from each other, so each element adds the ranks' values in the order of
  // the ranks.
  for (const at::Tensor& row : bucket.gathered.unbind(0)) {
    const Chosen chosen(row, bucket.elements, bucket.flat.scalar_type(), bucket.positions);
    content.buffer.index_add_(0, chosen.positions, chosen.values);
  }
  content.buffer.div_(group.size());
  if (options_.use_error_feedback)
    for (std::size_t i = 0; i < bucket.sums.size(); ++i) residuals_.keep(content.indices[i], bucket.sums[i]);
  return std::nullopt;
}

}  // namespace weft::data_parallel
