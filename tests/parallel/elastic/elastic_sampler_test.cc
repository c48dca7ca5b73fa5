#include <weft/parallel/elastic/elastic_sampler.h>

#include <torch/torch.h>

#include "tests/support/archives.h"
#include "tests/support/errors.h"

namespace weft::elastic {
namespace elastic_sampler_test {

using rpc::ErrorKind;
using test::kind_of;
using Indices = std::vector<std::size_t>;

// The numbers from 0 on.
struct Numbers : torch::data::Dataset<Numbers> {
  explicit Numbers(std::size_t size) : count(size) {}
  torch::data::Example<> get(std::size_t index) override {
    return {at::full({1}, static_cast<std::int64_t>(index)), at::zeros({1})};
  }
  std::optional<std::size_t> size() const override { return count; }
  std::size_t count;
};

auto loader_of(ElasticSampler& sampler, std::size_t workers = 0) {
  return torch::data::make_data_loader(Numbers(20).map(torch::data::transforms::Stack<>()), sampler,
                                       torch::data::DataLoaderOptions().batch_size(3).workers(workers));
}

Indices numbers_of(const torch::data::Example<>& batch) {
  const at::Tensor flat = batch.data.flatten();
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

TEST(ElasticSamplerOf, GivesALoaderItsBatchesAndContinuesAfterTheRecordedOnes) {
  for (const std::size_t threads : {0, 2}) {
    ElasticSampler sampler(20, {.seed = 3});
    sampler.set_ranks(1, 2);
    Indices seen;
    {
      auto loader = loader_of(sampler, threads);
      for (auto& batch : sampler.batches(*loader)) {
        EXPECT_EQ(sampler.round().indices, numbers_of(batch));
        EXPECT_EQ(sampler.round().all, 6U);
        EXPECT_EQ(sampler.round().weight, 1.0);
        sampler.record();
        if (sampler.progress().processed == 12) break;  // the loader has fetched more
      }
    }
    const Indices order = epoch_order(20, true, 3, 0);
    EXPECT_EQ(sampler.processed(), Indices(order.begin(), order.begin() + 12));
    sampler.set_ranks(2, 3);
    auto loader = loader_of(sampler, threads);
    for (auto& batch : sampler.batches(*loader)) {
      EXPECT_EQ(numbers_of(batch), (Indices{order[14], order[17]}));
      EXPECT_EQ(sampler.round().weight, 2.0 * 3 / 8);
      sampler.record();
    }
    EXPECT_EQ(sampler.progress(), (EpochProgress{.epoch = 0, .processed = 20}));
    sampler.set_epoch(0);
    EXPECT_EQ(sampler.progress().processed, 20U);
    sampler.set_epoch(1);
    EXPECT_EQ(sampler.progress(), (EpochProgress{.epoch = 1}));
  }
}

TEST(ElasticSamplerOf, ABatchThatWasNotRecordedIsAnError) {
  ElasticSampler sampler(20);
  sampler.set_ranks(0, 1);
  auto loader = loader_of(sampler);
  EXPECT_EQ(kind_of([&] {
              for (auto& batch : sampler.batches(*loader)) (void)batch;
            }),
            ErrorKind::failed_precondition);
  ElasticSampler other(20);
  EXPECT_EQ(kind_of([&] { other.record(); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { other.round(); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { other.deliver(); }), ErrorKind::failed_precondition);
}

// Each rank would process all samples.
TEST(ElasticSamplerOf, NextBeforeTheRanksAreSetIsAnError) {
  ElasticSampler sampler(20);
  EXPECT_EQ(kind_of([&] { sampler.next(5); }), ErrorKind::failed_precondition);
}

TEST(ElasticSamplerOf, IsSavedAndLoaded) {
  ElasticSampler sampler(20, {.seed = 3});
  sampler.set_ranks(0, 1);
  sampler.set_epoch(4);
  sampler.next(5);
  sampler.deliver();
  sampler.record();
  const std::string saved = test::saved(sampler);
  ElasticSampler loaded(20, {.seed = 3});
  loaded.set_ranks(0, 2);
  test::load(loaded, saved);
  EXPECT_EQ(loaded.progress(), (EpochProgress{.epoch = 4, .processed = 5}));
  EXPECT_EQ(loaded.next(2), (Indices{epoch_order(20, true, 3, 4)[5], epoch_order(20, true, 3, 4)[7]}));
  ElasticSampler other(20, {.seed = 4});
  EXPECT_EQ(kind_of([&] { test::load(other, saved); }), ErrorKind::failed_precondition);
}

}  // namespace elastic_sampler_test
}  // namespace weft::elastic
