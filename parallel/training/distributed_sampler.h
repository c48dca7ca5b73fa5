// DistributedSampler: gives each rank its part of a dataset's indices, for LibTorch's data loader.
//
//   training::DistributedSampler sampler{dataset.size().value(), group};
//   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, 64);
//   for (std::size_t epoch = 0; epoch < 10; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : sampler.batches(*loader)) ...
//   }
//
// All ranks permute the indices in the same way, which depends on the seed and the epoch; each of P ranks
// takes every P-th index. A sampler is a handle: the copy in the loader shares its state. save() and load()
// resume within an epoch, also with another number of ranks. The sampler resumes after the batches that
// batches() has delivered. Batches that the loader has only prefetched do not count. The loader must keep its
// batches in order (DataLoaderOptions::enforce_ordering, the default). Thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/training/observed_range.h>

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weft::training {

// The options must be equal on all ranks.
struct SamplerOptions {
  bool shuffle = true;  // a new order in each epoch
  // If the number of indices is not a multiple of the number of ranks: true leaves out the last indices;
  // false repeats indices from the beginning, so that all ranks have the same number.
  bool drop_last = false;
  std::uint64_t seed = 0;
};

// The indices of one rank in `order`, without the first `consumed` indices of `order`, which the ranks have
// processed already. A pure function.
WEFT_EXPORT std::vector<std::size_t> indices_of_rank(const std::vector<std::size_t>& order, int rank,
                                                     int ranks, std::size_t consumed, bool drop_last);

class WEFT_EXPORT DistributedSampler final : public torch::data::samplers::Sampler<> {
 public:
  DistributedSampler(std::size_t size, int rank, int ranks, SamplerOptions options = {});
  DistributedSampler(std::size_t size, const collectives::Group& group, SamplerOptions options = {})
      : DistributedSampler(size, group.rank(), group.size(), options) {}

  // Sets the number of the epoch, which selects the permutation. Call it before the epoch. If the number is
  // that of the present epoch, the call has no effect.
  void set_epoch(std::size_t epoch);
  std::size_t epoch() const;
  std::size_t samples() const;  // of this rank in an epoch

  // The batches of a loader with this sampler. A batch counts as delivered when the loop receives it. The
  // sampler and the loader must outlive the range.
  template <class Loader>
  using Batches = ObservedRange<Loader>;
  template <class Loader>
  Batches<Loader> batches(Loader& loader) {
    return {loader, [this](bool has_batch) {
              if (has_batch) delivered();
            }};
  }
  void delivered();  // counts one more batch, for programs that do not use batches()

  // The functions that the loader calls.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  // The state is the epoch, the seed and the number of indices that all ranks together have consumed. Call
  // save() when all ranks have delivered equally many batches. After load() the loader continues with the
  // next index.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::training
