#include <weft/parallel/training/distributed_sampler.h>

#include <weft/parallel/training/internal/sampler_archive.h>
#include <weft/rpc/core/mutex.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

namespace weft::training {
namespace {

std::vector<std::size_t> order_of(std::size_t size, const SamplerOptions& options, std::size_t epoch) {
  std::vector<std::size_t> order(size);
  if (!options.shuffle) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    return order;
  }
  const at::Tensor permuted = at::randperm(static_cast<std::int64_t>(size),
                                           at::detail::createCPUGenerator(options.seed + epoch), at::kLong);
  std::copy_n(permuted.const_data_ptr<std::int64_t>(), size, order.begin());
  return order;
}

}  // namespace

std::vector<std::size_t> indices_of_rank(const std::vector<std::size_t>& order, int rank, int ranks,
                                         std::size_t consumed, bool drop_last) {
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t left = order.size() - std::min(consumed, order.size());
  const std::size_t each = drop_last ? left / count : (left + count - 1) / count;
  std::vector<std::size_t> indices;
  indices.reserve(each);
  for (std::size_t i = 0; i < each; ++i) {
    const std::size_t place = i * count + static_cast<std::size_t>(rank);
    indices.push_back(place < left ? order[consumed + place] : order[(place - left) % order.size()]);
  }
  return indices;
}

struct DistributedSampler::State {
  std::size_t size WEFT_GUARDED_BY(mutex);
  const int rank, ranks;
  const SamplerOptions options;

  mutable rpc::Mutex mutex;
  std::size_t epoch WEFT_GUARDED_BY(mutex) = 0;
  // The number of indices of the epoch's order that all ranks together had consumed when the present pass
  // began.
  std::size_t consumed WEFT_GUARDED_BY(mutex) = 0;
  bool resumes WEFT_GUARDED_BY(mutex) = false;  // the next pass begins at `consumed`
  std::vector<std::size_t> indices WEFT_GUARDED_BY(mutex);
  std::size_t next WEFT_GUARDED_BY(mutex) = 0;             // in indices
  std::deque<std::size_t> fetched WEFT_GUARDED_BY(mutex);  // sizes of batches that are not delivered yet
  std::size_t done WEFT_GUARDED_BY(mutex) = 0;  // indices of this rank that were delivered in this pass

  void begin(std::size_t from) WEFT_REQUIRES(mutex) {
    consumed = from;
    indices = indices_of_rank(order_of(size, options, epoch), rank, ranks, consumed, options.drop_last);
    next = done = 0;
    fetched.clear();
  }
};

DistributedSampler::DistributedSampler(std::size_t size, int rank, int ranks, SamplerOptions options)
    : state_(new State{.size = size, .rank = rank, .ranks = ranks, .options = options}) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "DistributedSampler: rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                         " ranks, expected at least one rank, and a rank below their number");
  if (size == 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "DistributedSampler: the dataset is empty, expected at least one sample");
  state_->begin(0);
}

void DistributedSampler::set_epoch(std::size_t epoch) {
  rpc::MutexLock lock(state_->mutex);
  if (epoch == state_->epoch) return;
  state_->epoch = epoch;
  state_->resumes = false;
  state_->begin(0);
}

std::size_t DistributedSampler::epoch() const {
  rpc::MutexLock lock(state_->mutex);
  return state_->epoch;
}

std::size_t DistributedSampler::samples() const {
  rpc::MutexLock lock(state_->mutex);
  const auto count = static_cast<std::size_t>(state_->ranks);
  return state_->options.drop_last ? state_->size / count : (state_->size + count - 1) / count;
}

void DistributedSampler::delivered() {
  rpc::MutexLock lock(state_->mutex);
  if (state_->fetched.empty()) return;
  state_->done += state_->fetched.front();
  state_->fetched.pop_front();
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  rpc::MutexLock lock(state_->mutex);
  if (new_size) state_->size = *new_size;
  state_->begin(std::exchange(state_->resumes, false) ? state_->consumed : 0);
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  rpc::MutexLock lock(state_->mutex);
  const std::size_t left = state_->indices.size() - state_->next;
  if (left == 0) return std::nullopt;
  const auto begin = state_->indices.begin() + static_cast<std::ptrdiff_t>(state_->next);
  std::vector<std::size_t> batch(begin, begin + static_cast<std::ptrdiff_t>(std::min(left, batch_size)));
  state_->next += batch.size();
  state_->fetched.push_back(batch.size());
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  rpc::MutexLock lock(state_->mutex);
  write_number(archive, "epoch", state_->epoch);
  write_number(archive, "seed", state_->options.seed);
  write_number(archive, "size", state_->size);
  write_number(archive, "shuffle", state_->options.shuffle);
  write_number(archive, "consumed",
               state_->consumed + state_->done * static_cast<std::size_t>(state_->ranks));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  rpc::MutexLock lock(state_->mutex);
  expect_number(archive, "DistributedSampler", "seed", state_->options.seed);
  expect_number(archive, "DistributedSampler", "size", state_->size);
  expect_number(archive, "DistributedSampler", "shuffle", state_->options.shuffle);
  state_->epoch = read_number(archive, "epoch");
  state_->begin(std::min<std::size_t>(read_number(archive, "consumed"), state_->size));
  state_->resumes = true;
}

}  // namespace weft::training
