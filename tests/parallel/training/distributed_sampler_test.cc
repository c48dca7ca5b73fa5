#include <weft/parallel/training/distributed_sampler.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/support/archives.h"
#include "tests/support/errors.h"

namespace weft::training::distributed_sampler_test {
namespace {

using test::load;
using test::saved;
using Indices = std::vector<std::size_t>;

Indices all_of(DistributedSampler& sampler, std::size_t batch = 3) {
  Indices all;
  while (const auto some = sampler.next(batch)) all.insert(all.end(), some->begin(), some->end());
  return all;
}

Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

Indices upto(std::size_t n) {
  Indices indices(n);
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

TEST(DistributedSampler, RanksPartitionTheIndices) {
  for (const bool drop_last : {false, true})
    for (std::size_t size = 1; size < 20; ++size)
      for (const int ranks : {1, 2, 3, 4}) {
        Indices all;
        std::set<std::size_t> lengths;
        for (int rank = 0; rank < ranks; ++rank) {
          DistributedSampler sampler(size, rank, ranks, {.drop_last = drop_last});
          const Indices own = all_of(sampler);
          EXPECT_EQ(own.size(), sampler.samples());
          lengths.insert(own.size());
          all.insert(all.end(), own.begin(), own.end());
        }
        EXPECT_EQ(lengths.size(), 1U);  // equally many on all ranks
        const std::set<std::size_t> different(all.begin(), all.end());
        if (drop_last) {
          EXPECT_EQ(different.size(), all.size());
          EXPECT_GT(all.size() + static_cast<std::size_t>(ranks), size);
        } else {
          EXPECT_EQ(different.size(), size);
          EXPECT_LT(all.size(), size + static_cast<std::size_t>(ranks));
        }
      }
}

TEST(DistributedSampler, WithoutShuffleItEqualsThatOfPyTorch) {
  // torch.utils.data.DistributedSampler(range(10), num_replicas=4, rank=r, shuffle=False)
  const std::vector<Indices> expected = {{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}};
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(10, rank, 4, {.shuffle = false});
    EXPECT_EQ(all_of(sampler), expected[static_cast<std::size_t>(rank)]);
  }
}

TEST(DistributedSampler, TheEpochChoosesTheOrder) {
  DistributedSampler sampler(100, 0, 1, {.seed = 5});
  const Indices first = all_of(sampler);
  EXPECT_NE(first, upto(100));
  EXPECT_EQ(sorted(first), upto(100));
  sampler.reset();
  EXPECT_EQ(all_of(sampler), first);
  sampler.set_epoch(1);
  const Indices second = all_of(sampler);
  EXPECT_NE(second, first);
  DistributedSampler other(100, 0, 1, {.seed = 6});
  EXPECT_NE(all_of(other), first);
}

struct Numbers : torch::data::Dataset<Numbers> {
  explicit Numbers(std::size_t n) : n(n) {}
  torch::data::Example<> get(std::size_t index) override {
    return {at::full({1}, static_cast<double>(index), at::kFloat), at::zeros({1})};
  }
  torch::optional<std::size_t> size() const override { return n; }
  std::size_t n;
};

auto loader_of(const DistributedSampler& sampler, std::size_t n, std::size_t workers) {
  return torch::data::make_data_loader(Numbers(n).map(torch::data::transforms::Stack<>()), sampler,
                                       torch::data::DataLoaderOptions(4).workers(workers));
}

// The loader fetches in advance. Batches that it has not delivered are not lost. The epoch continues with any
// number of ranks.
TEST(DistributedSampler, ResumesAfterTheBatchesThatWereDelivered) {
  constexpr std::size_t n = 48;
  for (const std::size_t workers : {0, 2}) {
    Indices seen;
    const auto note = [&](const torch::data::Example<>& batch) {
      for (std::int64_t i = 0; i < batch.data.numel(); ++i)
        seen.push_back(static_cast<std::size_t>(batch.data[i].item<float>()));
    };
    std::string state;
    for (int rank = 0; rank < 2; ++rank) {
      DistributedSampler sampler(n, rank, 2);
      sampler.set_epoch(3);
      auto loader = loader_of(sampler, n, workers);
      int batches = 0;
      for (auto& batch : sampler.batches(*loader)) {
        note(batch);
        if (++batches == 2) break;
      }
      state = saved(sampler);
    }
    EXPECT_EQ(seen.size(), 16U);
    for (int rank = 0; rank < 4; ++rank) {
      DistributedSampler sampler(n, rank, 4);
      load(sampler, state);
      EXPECT_EQ(sampler.epoch(), 3U);
      auto loader = loader_of(sampler, n, workers);
      for (auto& batch : sampler.batches(*loader)) note(batch);
    }
    EXPECT_EQ(sorted(seen), upto(n)) << workers << " workers";  // each exactly once
  }
}

TEST(DistributedSampler, AnEpochAfterAResumedOneIsComplete) {
  DistributedSampler sampler(20, 0, 2);
  all_of(sampler, 5);
  sampler.delivered();
  const std::string state = saved(sampler);
  DistributedSampler other(20, 0, 2);
  load(other, state);
  other.reset();
  EXPECT_EQ(all_of(other).size(), 5U);
  EXPECT_EQ(saved(sampler), state);
  other.reset();
  EXPECT_EQ(all_of(other).size(), 10U);
}

TEST(DistributedSampler, RefusesInvalidRanksAndStates) {
  using rpc::ErrorKind;
  EXPECT_EQ(test::kind_of([] { DistributedSampler(10, 2, 2); }), ErrorKind::invalid_argument);
  EXPECT_EQ(test::kind_of([] { DistributedSampler(0, 0, 1); }), ErrorKind::invalid_argument);
  const std::string state = saved(DistributedSampler(10, 0, 1, {.seed = 1}));
  EXPECT_EQ(test::kind_of([&] {
              DistributedSampler other(10, 0, 1, {.seed = 2});
              load(other, state);
            }),
            ErrorKind::failed_precondition);
  EXPECT_EQ(test::kind_of([&] {
              DistributedSampler other(11, 0, 1, {.seed = 1});
              load(other, state);
            }),
            ErrorKind::failed_precondition);
}

}  // namespace
}  // namespace weft::training::distributed_sampler_test
