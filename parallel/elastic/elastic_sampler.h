// ElasticSampler: gives each rank its part of a dataset, for LibTorch's data loader, while the number of
// ranks changes. Each sample is processed once in an epoch, even if the ranks change (plan/epoch_plan.h).
//
//   elastic::ElasticSampler sampler{dataset.size().value()};
//   state.add("sampler", sampler);
//   ...
//   auto loader = torch::data::make_data_loader(dataset, sampler, 64);
//   sampler.set_epoch(epoch);
//   for (auto& batch : sampler.batches(*loader)) {
//     loss = torch::cross_entropy_loss(ddp.forward(batch.data), batch.target) * sampler.round().weight;
//     ...
//     optimizer.step();
//     sampler.record();   // all ranks have processed their batches
//     state.commit_every(50);
//   }
//
// A round is one batch on every rank. All ranks have equally many rounds in an epoch, so
// DistributedDataParallel needs no join(). In the last round the batches may differ in size, and a rank may
// get only a sample that belongs to another rank: multiply the loss by Round::weight. A sampler is a handle:
// the copy in the loader shares its state. The loader must keep its batches in order. Thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/elastic/plan/epoch_plan.h>
#include <weft/parallel/training/observed_range.h>

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::elastic {

// The order of the samples: equal on all ranks.
struct SamplerOptions {
  bool shuffle = true;  // another order in each epoch; false: the order of the dataset in every epoch
  std::uint64_t seed = 0;
};

class WEFT_EXPORT ElasticSampler final : public torch::data::samplers::Sampler<> {
 public:
  // Throws invalid_argument if size is 0.
  explicit ElasticSampler(std::size_t size, SamplerOptions options = {});

  // Sets the ranks that process the rest of the epoch. A State that contains the sampler calls this function.
  // Before the first call, next() throws failed_precondition.
  void set_group(const collectives::Group& group) { set_ranks(group.rank(), group.size()); }
  // resting: ranks that have no samples of their own in the first round.
  void set_ranks(int rank, int ranks, std::vector<int> resting = {});

  // Sets the number of the epoch, which determines the order of its samples. Call it before the epoch. If it
  // is the present epoch, the call has no effect, and the epoch continues after its processed samples.
  void set_epoch(std::uint64_t epoch);
  // progress(): the epoch, and the number of its samples that all ranks have processed. set_progress() sets
  // both, and drops batches that were fetched and not recorded.
  std::uint64_t epoch() const { return progress().epoch; }
  EpochProgress progress() const;
  void set_progress(const EpochProgress& progress);
  std::vector<std::size_t> processed() const;  // indices, in the order of the epoch

  // The batches of a loader with this sampler. In the loop, round() describes the present batch. If record()
  // was not called for a batch, the next iteration throws failed_precondition. The sampler and the loader
  // must outlive the range. Iterate over it once, on one thread: begin() starts the loader's next epoch.
  template <class Loader>
  using Batches = training::ObservedRange<Loader>;
  template <class Loader>
  Batches<Loader> batches(Loader& loader) {
    return {loader, [this](bool has_batch) {
              if (has_batch) deliver();
            }};
  }
  // For programs that do not use batches(): delivers the oldest batch that next() has returned. Throws
  // failed_precondition if there is no such batch, or if the previous batch was not recorded.
  void deliver();

  Round round() const;  // of the delivered batch; without one it throws failed_precondition
  void record();        // all ranks have processed their batches of this round
  // Whether round() was called for the delivered batch, and record() was not yet: a State refuses to commit.
  bool in_round() const;

  // The functions that the loader calls.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  // The state is the seed, size, epoch and number of processed samples. load() throws failed_precondition if
  // the saved sampler has another order.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  std::string description() const;  // size and order: equal on all ranks

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::elastic
