#include <weft/parallel/data_parallel/internal/bucket_reductions.h>

#include <algorithm>
#include <utility>

namespace weft::data_parallel {

void BucketReductions::add(std::size_t bucket, std::size_t parameter, bool expected) {
  State& state = states_[bucket];
  const Time before = std::exchange(state.ready_at, std::chrono::steady_clock::now());
  if (const auto delay = state.ready_at - before; before != Time() && delay > state.delay) {
    state.delay = delay;
    state.late = parameter;
  }
  if (expected) --state.missing;
}

void BucketReductions::launch_next(const at::Tensor& sparse) {
  buckets_->end_writes(next_);
  states_[next_].launched_at = std::chrono::steady_clock::now();
  states_[next_].reduced_at = std::make_shared<Time>();
  run_step(next_, sparse);
  ++next_;
}

void BucketReductions::run_step(std::size_t bucket, const at::Tensor& sparse) {
  State& state = states_[bucket];
  auto started = buckets_->run(group_, hook_, bucket, state.step++, sparse);
  if (!started) return;
  state.in_flight = std::move(*started).then([at = state.reduced_at](rpc::Result<void>&& result) {
    *at = std::chrono::steady_clock::now();
    return std::move(result);
  });
}

bool BucketReductions::is_reduced(std::size_t bucket) const {
  return states_[bucket].in_flight && states_[bucket].in_flight->ready();
}

void BucketReductions::take(std::size_t bucket) {
  try {
    std::exchange(states_[bucket].in_flight, std::nullopt)->get();
  } catch (...) {
    std::rethrow_exception(buckets_->failure(bucket, std::current_exception()));
  }
}

void BucketReductions::wait(const std::function<void(std::size_t)>& reduced) {
  std::exception_ptr error;
  std::size_t failed = 0;
  for (bool more = true; more;) {
    more = false;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (!states_[i].in_flight) continue;
      try {
        std::exchange(states_[i].in_flight, std::nullopt)->get();
        if (error == nullptr) run_step(i);
        if (error == nullptr && !states_[i].in_flight) reduced(i);
      } catch (...) {
        if (error == nullptr) error = std::current_exception(), failed = i;
      }
      more |= states_[i].in_flight.has_value();
    }
  }
  if (error != nullptr) std::rethrow_exception(buckets_->failure(failed, error));
}

void BucketReductions::note(Time began_at, IterationStats& stats) const {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    if (state.skipped) {
      ++stats.skipped;
      continue;
    }
    BucketStats& noted = stats.buckets.emplace_back();
    noted.index = i;
    noted.bytes = buckets_->bytes(i);
    noted.dtype = c10::toString(buckets_->dtype(i));
    noted.late = state.late;
    noted.delay = state.delay;
    noted.launched = state.launched_at - began_at;
    noted.reduced = std::max(*state.reduced_at, state.launched_at) - began_at;
  }
}

}  // namespace weft::data_parallel
