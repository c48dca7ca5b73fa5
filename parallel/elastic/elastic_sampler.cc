#include <weft/parallel/elastic/elastic_sampler.h>

#include <weft/parallel/training/internal/sampler_archive.h>
#include <weft/rpc/core/mutex.h>

#include <deque>
#include <utility>

namespace weft::elastic {

using training::expect_number;
using training::read_number;
using training::write_number;

struct ElasticSampler::State {
  const SamplerOptions options;

  mutable rpc::Mutex mutex;
  EpochPlan plan WEFT_GUARDED_BY(mutex);
  bool has_ranks WEFT_GUARDED_BY(mutex) = false;        // set_ranks() was called
  std::deque<Round> fetched WEFT_GUARDED_BY(mutex);     // by the loader, not delivered
  std::optional<Round> current WEFT_GUARDED_BY(mutex);  // delivered, not recorded
  bool in_round WEFT_GUARDED_BY(mutex) = false;         // round() was called for it

  void forget_fetched() WEFT_REQUIRES(mutex) {
    fetched.clear();
    current.reset();
  }
};

ElasticSampler::ElasticSampler(std::size_t size, SamplerOptions options)
    : state_(new State{.options = options, .plan = EpochPlan(size, options.shuffle, options.seed)}) {}

void ElasticSampler::set_ranks(int rank, int ranks, std::vector<int> resting) {
  const rpc::MutexLock lock(state_->mutex);
  state_->plan.set_ranks(rank, ranks, std::move(resting));
  state_->has_ranks = true;
  state_->forget_fetched();
}

void ElasticSampler::set_epoch(std::uint64_t epoch) {
  const rpc::MutexLock lock(state_->mutex);
  if (epoch == state_->plan.progress().epoch) return;
  state_->plan.set_progress({.epoch = epoch});
  state_->forget_fetched();
}

EpochProgress ElasticSampler::progress() const {
  const rpc::MutexLock lock(state_->mutex);
  return state_->plan.progress();
}

void ElasticSampler::set_progress(const EpochProgress& progress) {
  const rpc::MutexLock lock(state_->mutex);
  state_->plan.set_progress(progress);
  state_->forget_fetched();
}

std::vector<std::size_t> ElasticSampler::processed() const {
  const rpc::MutexLock lock(state_->mutex);
  return state_->plan.processed();
}

void ElasticSampler::deliver() {
  const rpc::MutexLock lock(state_->mutex);
  if (state_->current)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "ElasticSampler: the batch before was not recorded: call record() after each step");
  if (state_->fetched.empty())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "ElasticSampler: no batch was fetched: give the loader this sampler");
  state_->current = std::move(state_->fetched.front());
  state_->in_round = false;
  state_->fetched.pop_front();
}

Round ElasticSampler::round() const {
  const rpc::MutexLock lock(state_->mutex);
  if (!state_->current)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "ElasticSampler: there is no batch: iterate over batches(loader)");
  state_->in_round = true;
  return *state_->current;
}

bool ElasticSampler::in_round() const {
  const rpc::MutexLock lock(state_->mutex);
  return state_->current && state_->in_round;
}

void ElasticSampler::record() {
  const rpc::MutexLock lock(state_->mutex);
  if (!state_->current)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "ElasticSampler: there is no batch to record: iterate over batches(loader)");
  state_->plan.record();
  state_->current.reset();
}

void ElasticSampler::reset(std::optional<std::size_t> new_size) {
  const rpc::MutexLock lock(state_->mutex);
  if (new_size && *new_size != state_->plan.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "ElasticSampler: reset to " +
                                                           std::to_string(*new_size) + " samples, expected " +
                                                           std::to_string(state_->plan.size()));
  state_->plan.rewind();
  state_->forget_fetched();
}

std::optional<std::vector<std::size_t>> ElasticSampler::next(std::size_t batch_size) {
  const rpc::MutexLock lock(state_->mutex);
  if (!state_->has_ranks)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "ElasticSampler: its ranks are unknown: add it to the State of elastic::run(), or call "
                     "set_group()");
  auto round = state_->plan.fetch(batch_size);
  if (!round) return std::nullopt;
  return state_->fetched.emplace_back(*std::move(round)).indices;
}

void ElasticSampler::save(torch::serialize::OutputArchive& archive) const {
  const rpc::MutexLock lock(state_->mutex);
  write_number(archive, "seed", state_->options.seed);
  write_number(archive, "size", state_->plan.size());
  write_number(archive, "shuffle", state_->options.shuffle ? 1 : 0);
  write_number(archive, "epoch", state_->plan.progress().epoch);
  write_number(archive, "processed", state_->plan.progress().processed);
}

void ElasticSampler::load(torch::serialize::InputArchive& archive) {
  const rpc::MutexLock lock(state_->mutex);
  expect_number(archive, "ElasticSampler", "seed", state_->options.seed);
  expect_number(archive, "ElasticSampler", "size", state_->plan.size());
  expect_number(archive, "ElasticSampler", "shuffle", state_->options.shuffle ? 1 : 0);
  state_->plan.set_progress(
      {.epoch = read_number(archive, "epoch"), .processed = read_number(archive, "processed")});
  state_->forget_fetched();
}

std::string ElasticSampler::description() const {
  const rpc::MutexLock lock(state_->mutex);
  return std::to_string(state_->plan.size()) + " samples" +
         (state_->options.shuffle ? ", seed " + std::to_string(state_->options.seed) : ", in order");
}

}  // namespace weft::elastic
