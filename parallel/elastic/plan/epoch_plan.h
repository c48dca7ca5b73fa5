// EpochPlan: the order of a dataset's samples in an epoch, and each rank's part of it. Pure: no LibTorch.
//
// The ranks process the order in rounds: in each round every rank has one batch. The samples that all ranks
// together have processed are therefore a prefix of the order, and its length is the whole state. After a
// change of the ranks the rest is divided again, so each sample is processed once in an epoch, even if the
// ranks change several times.
//
// All ranks use equal options, epochs and batch sizes, and record the same rounds. Not thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace weft::elastic {

// The numbers from 0 to size - 1, in the order of the epoch. Equal for equal arguments, on every platform.
WEFT_EXPORT std::vector<std::size_t> epoch_order(std::size_t size, bool shuffle, std::uint64_t seed,
                                                 std::uint64_t epoch);

// One rank's batch of a round.
struct Round {
  std::vector<std::size_t> indices;  // never empty
  // The number of these samples that belong to this rank: all or none. If a round has fewer samples than
  // ranks, the ranks without a sample get the round's first sample, which belongs to another rank.
  std::size_t own = 0;
  std::size_t all = 0;  // samples of all ranks in this round
  // Multiply this rank's mean loss by this factor: the average of the products over the ranks is then the
  // mean over the samples of the round. The factor is 1 if the round has ranks x batch size samples, and 0 if
  // own is 0.
  double weight = 1;
};

// The progress of all ranks together, equal on all ranks.
struct EpochProgress {
  std::uint64_t epoch = 0;      // the number of the epoch
  std::uint64_t processed = 0;  // the number of samples that all ranks have processed

  friend bool operator==(const EpochProgress&, const EpochProgress&) = default;
};

class WEFT_EXPORT EpochPlan {
 public:
  // Throws invalid_argument if size is 0.
  EpochPlan(std::size_t size, bool shuffle, std::uint64_t seed);

  // Sets the rank of this process and the number of ranks. Samples that were fetched and not recorded are
  // divided and fetched again. resting: ranks that get no samples of their own in the first round that is
  // fetched after this call. Throws invalid_argument unless 0 <= rank < ranks and at least one rank does not
  // rest.
  void set_ranks(int rank, int ranks, std::vector<int> resting = {});
  // Before set_ranks(): rank 0 of one rank.
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Sets the epoch, and the number of its samples that are processed.
  void set_progress(const EpochProgress& progress);
  // left(): the samples of the epoch that are not processed. size(): of the dataset.
  const EpochProgress& progress() const { return progress_; }
  std::vector<std::size_t> processed() const;  // indices, in the order of the epoch
  std::size_t left() const { return order_.size() - progress_.processed; }
  std::size_t size() const { return order_.size(); }

  // Returns the next round, with `batch_size` samples for each rank. nullopt: the end of the epoch.
  std::optional<Round> fetch(std::size_t batch_size);
  // Records that all ranks have processed the oldest round that was fetched and not recorded. Throws
  // failed_precondition if there is no such round.
  void record();

  void rewind();  // samples that were fetched and not recorded are fetched again

 private:
  const bool shuffle_;
  const std::uint64_t seed_;
  int rank_ = 0, ranks_ = 1;
  std::vector<int> resting_;  // in ascending order; empty from the first record() on
  EpochProgress progress_;
  std::vector<std::size_t> order_;
  std::size_t fetched_ = 0;            // the number of fetched samples; at least progress_.processed
  std::deque<std::size_t> in_flight_;  // samples of the rounds that are fetched and not recorded
};

}  // namespace weft::elastic
