#include <weft/parallel/elastic/plan/epoch_plan.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/split_mix.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace weft::elastic {
namespace {

// Generators and distributions of the standard library and of LibTorch may differ between releases; the order
// must not, because workers of different builds train together.
//
// Returns a uniform number below the bound. Draws again if a number would make small results more likely.
std::size_t draw_below(rpc::SplitMix64& random, std::size_t bound) {
  const std::uint64_t limit = bound;
  const std::uint64_t reject_below = (0 - limit) % limit;
  for (std::uint64_t drawn = random();; drawn = random())
    if (drawn >= reject_below) return static_cast<std::size_t>(drawn % limit);
}

}  // namespace

std::vector<std::size_t> epoch_order(std::size_t size, bool shuffle, std::uint64_t seed,
                                     std::uint64_t epoch) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!shuffle) return order;
  rpc::SplitMix64 seeds(seed);
  rpc::SplitMix64 random(seeds() ^ epoch);
  for (std::size_t i = size; i > 1; --i)
    std::swap(order[i - 1], order[draw_below(random, i)]);  // Fisher, Yates
  return order;
}

EpochPlan::EpochPlan(std::size_t size, bool shuffle, std::uint64_t seed) : shuffle_(shuffle), seed_(seed) {
  if (size == 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "EpochPlan: the dataset is empty, expected at least one sample");
  order_ = epoch_order(size, shuffle_, seed_, 0);
}

void EpochPlan::set_ranks(int rank, int ranks, std::vector<int> resting) {
  if (ranks < 1 || rank < 0 || rank >= ranks || resting.size() >= static_cast<std::size_t>(ranks))
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "EpochPlan: rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                         ", of which " + std::to_string(resting.size()) +
                         " are idle, expected a rank below their number, and fewer idle ranks");
  rank_ = rank;
  ranks_ = ranks;
  resting_ = std::move(resting);
  std::sort(resting_.begin(), resting_.end());
  rewind();
}

void EpochPlan::set_progress(const EpochProgress& progress) {
  if (progress.processed > order_.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "EpochPlan: " + std::to_string(progress.processed) +
                                                           " samples are processed, expected at most " +
                                                           std::to_string(order_.size()));
  if (progress.epoch != progress_.epoch) order_ = epoch_order(order_.size(), shuffle_, seed_, progress.epoch);
  progress_ = progress;
  rewind();
}

std::vector<std::size_t> EpochPlan::processed() const {
  return {order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(progress_.processed)};
}

std::optional<Round> EpochPlan::fetch(std::size_t batch_size) {
  if (batch_size == 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "EpochPlan: batches of 0 samples, expected at least 1");
  // Only ranks that do not rest take part in the first round.
  const bool rests = in_flight_.empty() && !resting_.empty();
  const auto lower = std::lower_bound(resting_.begin(), resting_.end(), rank_);
  const std::size_t ranks = static_cast<std::size_t>(ranks_) - (rests ? resting_.size() : 0);
  auto first = static_cast<std::size_t>(rank_);
  if (rests) first -= static_cast<std::size_t>(lower - resting_.begin());
  const bool has_place = !rests || lower == resting_.end() || *lower != rank_;
  const std::size_t unfetched = order_.size() - fetched_;
  if (unfetched == 0) return std::nullopt;
  Round round;
  round.all = unfetched / ranks >= batch_size ? batch_size * ranks : unfetched;
  for (std::size_t place = first; has_place && place < round.all; place += ranks)
    round.indices.push_back(order_[fetched_ + place]);
  round.own = round.indices.size();
  round.weight =
      static_cast<double>(round.own * static_cast<std::size_t>(ranks_)) / static_cast<double>(round.all);
  if (round.own == 0) round.indices.push_back(order_[fetched_]);
  fetched_ += round.all;
  in_flight_.push_back(round.all);
  return round;
}

void EpochPlan::record() {
  if (in_flight_.empty())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "EpochPlan: record() with 0 fetched rounds, expected at least 1");
  progress_.processed += in_flight_.front();
  in_flight_.pop_front();
  resting_.clear();
}

void EpochPlan::rewind() {
  fetched_ = progress_.processed;
  in_flight_.clear();
}

}  // namespace weft::elastic
