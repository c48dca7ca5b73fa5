#include <weft/parallel/data_parallel/hooks/power_sgd_hook.h>

#include <weft/parallel/data_parallel/hooks/internal/hook_state.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

namespace weft::data_parallel {

namespace {

// Returns, for each matrix of a batch, orthonormal columns with the same span. QR needs float32 or wider.
at::Tensor orthonormal(const at::Tensor& columns) {
  const auto dtype = columns.scalar_type();
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  return std::get<0>(at::linalg_qr(narrow ? columns.to(at::kFloat) : columns)).to(dtype);
}

void expect_option(bool valid, const char* name, const std::string& actual, const char* expected) {
  if (!valid)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     std::string("PowerSgdHook: ") + name + " " + actual + ", expected " + expected);
}

}  // namespace

PowerSgdHook::PowerSgdHook(const PowerSgdOptions& options) : options_(options) {
  expect_option(options.rank >= 1, "rank", std::to_string(options.rank), "1 or more");
  expect_option(options.start_iteration >= 0, "start_iteration", std::to_string(options.start_iteration),
                "0 or more");
  expect_option(options.min_compression_rate > 0, "min_compression_rate",
                std::to_string(options.min_compression_rate), "more than 0");
}

void PowerSgdHook::begin_iteration() {
  ++iterations_;
  volume_ = {};
}

std::optional<rpc::Future<void>> PowerSgdHook::run(const collectives::Group& group, GradientBucket& content,
                                                   int step) {
  Bucket& bucket = buckets_.of(content.buffer);
  if (step == 0) {
    for (const at::Tensor& gradient : content.gradients) volume_.gradients += gradient.numel();
    const bool started = iterations_ > options_.start_iteration;
    if (started && !std::exchange(bucket.planned, true)) plan(group, content, bucket);
    bucket.compresses = started && !bucket.batches.empty();
    if (!bucket.compresses) {
      volume_.sent += content.buffer.numel();
      return all_reduce_average(group, content.buffer);
    }
    for (std::size_t i = 0; i < bucket.plain.size(); ++i)
      bucket.copies[i].copy_(content.gradients[bucket.plain[i]]);
    for (Batch& batch : bucket.batches) compute_p(batch, content);
    volume_.sent += bucket.first.numel() + bucket.second.numel();
    return all_reduce_average(group, bucket.first);
  }
  if (!bucket.compresses) return std::nullopt;
  if (step == 1) {
    for (std::size_t i = 0; i < bucket.plain.size(); ++i)
      content.gradients[bucket.plain[i]].copy_(bucket.copies[i]);
    for (Batch& batch : bucket.batches) {
      batch.p.copy_(orthonormal(batch.p));
      batch.q.copy_(at::bmm(batch.matrices.mH(), batch.p));
    }
    return all_reduce_average(group, bucket.second);
  }
  for (Batch& batch : bucket.batches) decompress(batch, content);
  return std::nullopt;
}

// --- The matrices of a bucket ---

bool PowerSgdHook::is_worthwhile(std::int64_t rows, std::int64_t columns) const {
  const std::int64_t rank = std::min({options_.rank, rows, columns});
  return static_cast<double>((rows + columns) * rank) * options_.min_compression_rate <
         static_cast<double>(rows) * static_cast<double>(columns);
}

void PowerSgdHook::plan(const collectives::Group& group, const GradientBucket& content,
                        Bucket& bucket) const {
  const auto add = [&](Batch& batch, std::size_t member, std::int64_t begin) {
    batch.members.push_back(member);
    batch.begins.push_back(begin);
  };
  if (options_.batched) {
    std::int64_t total = 0;
    for (const at::Tensor& gradient : content.gradients) total += gradient.numel();
    const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(total))));
    if (2 * static_cast<double>(side * std::min(options_.rank, side)) * options_.min_compression_rate >=
        static_cast<double>(total))
      return;
    Batch& batch = bucket.batches.emplace_back(Batch{.count = 1, .rows = side, .columns = side});
    batch.parameters.push_back(content.indices.front());
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < content.gradients.size(); ++i) {
      add(batch, i, begin);
      begin += content.gradients[i].numel();
    }
  } else {
    for (std::size_t i = 0; i < content.gradients.size(); ++i) {
      const at::Tensor& gradient = content.gradients[i];
      const std::int64_t rows = gradient.dim() < 2 ? 0 : gradient.size(0);
      const std::int64_t columns = rows == 0 ? 0 : gradient.numel() / rows;
      if (!is_worthwhile(rows, columns)) {
        bucket.plain.push_back(i);
        continue;
      }
      auto batch = std::find_if(bucket.batches.begin(), bucket.batches.end(), [&](const Batch& each) {
        return each.rows == rows && each.columns == columns;
      });
      if (batch == bucket.batches.end())
        batch = bucket.batches.insert(batch, Batch{.rows = rows, .columns = columns});
      add(*batch, i, batch->count++ * rows * columns);
      batch->parameters.push_back(content.indices[i]);
    }
  }
  if (!bucket.batches.empty()) allocate(group, content, bucket);
}

void PowerSgdHook::allocate(const collectives::Group& group, const GradientBucket& content,
                            Bucket& bucket) const {
  std::int64_t first = 0, second = 0;
  for (const std::size_t i : bucket.plain) first += content.gradients[i].numel();
  for (Batch& batch : bucket.batches) {
    batch.rank = std::min({options_.rank, batch.rows, batch.columns});
    first += batch.count * batch.rows * batch.rank;
    second += batch.count * batch.columns * batch.rank;
  }
  bucket.first = group.empty({first}, content.buffer.options());
  bucket.second = group.empty({second}, content.buffer.options());
  const auto part = [](const at::Tensor& flat, std::int64_t& begin, at::IntArrayRef sizes) {
    const std::int64_t count = c10::multiply_integers(sizes);
    return flat.narrow(0, std::exchange(begin, begin + count), count).view(sizes);
  };
  first = second = 0;
  for (const std::size_t i : bucket.plain)
    bucket.copies.push_back(part(bucket.first, first, content.gradients[i].sizes()));
  for (Batch& batch : bucket.batches) {
    batch.p = part(bucket.first, first, {batch.count, batch.rows, batch.rank});
    batch.q = part(bucket.second, second, {batch.count, batch.columns, batch.rank});
    batch.factors = batch.q.unbind(0);
    batch.start = at::empty_like(batch.q);
    if (options_.warm_start) fill_start(batch);
    batch.matrices = at::zeros({batch.count, batch.rows, batch.columns}, content.buffer.options());
    for (std::size_t i = 0; i < batch.members.size(); ++i) {
      std::int64_t begin = batch.begins[i];
      batch.sums.push_back(
          part(batch.matrices.view({-1}), begin, content.gradients[batch.members[i]].sizes()));
    }
  }
}

// Fills the start values, which are the same on all ranks and for every bucket plan.
void PowerSgdHook::fill_start(Batch& batch) const {
  const std::uint64_t iteration = options_.warm_start ? 0 : static_cast<std::uint64_t>(iterations_ - 1);
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
    auto generator = at::detail::createCPUGenerator(options_.seed + batch.parameters[i] + (iteration << 20));
    batch.start[static_cast<std::int64_t>(i)].copy_(at::randn(
        {batch.columns, batch.rank}, generator, batch.start.is_complex() ? at::kComplexFloat : at::kFloat));
  }
}

// --- One iteration ---

// Takes residuals and factors, which decompress() stores again. So if an iteration fails in between, none of
// its values remain.
void PowerSgdHook::compute_p(Batch& batch, const GradientBucket& content) {
  for (std::size_t i = 0; i < batch.members.size(); ++i)
    residuals_.take(content.indices[batch.members[i]], batch.sums[i], content.gradients[batch.members[i]]);
  if (!options_.warm_start) fill_start(batch);
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
    const auto found = factors_.find(batch.parameters[i]);
    const bool fits = found != factors_.end() && found->second.sizes() == batch.factors[i].sizes();
    const at::Tensor from = fits ? found->second : batch.start[static_cast<std::int64_t>(i)];
    if (!from.is_same(batch.factors[i])) batch.factors[i].copy_(from);
    if (found != factors_.end()) factors_.erase(found);
  }
  // A column of Q that has become zero would remain zero, so it gets a new start value.
  const at::Tensor is_zero = (batch.q == 0).all(1, true);
  at::bmm_out(batch.p, batch.matrices, orthonormal(at::where(is_zero, batch.start, batch.q)));
}

void PowerSgdHook::decompress(Batch& batch, const GradientBucket& content) {
  const at::Tensor product = at::bmm(batch.p, batch.q.mH());
  const at::Tensor flat = product.view({-1});
  for (std::size_t i = 0; i < batch.members.size(); ++i) {
    const at::Tensor& gradient = content.gradients[batch.members[i]];
    gradient.copy_(flat.narrow(0, batch.begins[i], gradient.numel()).view(gradient.sizes()));
  }
  if (options_.use_error_feedback) {
    for (std::size_t i = 0; i < batch.members.size(); ++i) {
      batch.sums[i].sub_(flat.narrow(0, batch.begins[i], batch.sums[i].numel()).view(batch.sums[i].sizes()));
      residuals_.keep(content.indices[batch.members[i]], batch.sums[i]);
    }
  }
  if (!options_.warm_start) return;
  for (std::size_t i = 0; i < batch.parameters.size(); ++i)
    factors_.insert_or_assign(batch.parameters[i], batch.factors[i]);
}

// --- State ---

void PowerSgdHook::save(torch::serialize::OutputArchive& archive) const {
  save_number(archive, "iterations", iterations_);
  residuals_.save(archive);
  save_map(archive, "factors", factors_);
}

void PowerSgdHook::load(torch::serialize::InputArchive& archive) {
  iterations_ = load_number(archive, "iterations");
  residuals_.load(archive);
  factors_ = load_map(archive, "factors");
}

}  // namespace weft::data_parallel
