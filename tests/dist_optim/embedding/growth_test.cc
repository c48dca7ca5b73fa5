// Owners are added while an embedding is trained: no row is lost, counted twice or served by two owners. Also
// tests the loss of the new owner.
#include <weft/dist_optim/embedding/sharded_embedding.h>

#include <random>

#include "tests/dist_optim/embedding/support.h"

namespace weft::dist_optim::embedding_test {
namespace {

using Shard = EmbeddingShard::Ref;

TEST(EmbeddingGrowth, NoRowIsLostWhileTwoTrainersContinue) {
  constexpr std::int64_t ids = 120'000;  // a few blocks for each owner
  Owners owners(4, 2);
  const ShardedEmbedding a(owners.trainer(0), zeros(2), owners.peers(2, 0), "growing");
  const ShardedEmbedding b(owners.trainer(1), zeros(2), owners.peers(2, 1), "growing");
  touch(owners.trainer(0), a, torch::arange(ids));

  std::vector<std::int64_t> counts[2];
  std::atomic<int> steps[2] = {0, 0}, enough{0};
  const auto train = [&](std::size_t trainer, const ShardedEmbedding& embedding) {
    std::mt19937_64 random(trainer);
    counts[trainer].resize(ids);
    while (enough == 0) {
      std::vector<std::int64_t> batch(400);
      for (std::int64_t& id : batch)
        ++counts[trainer][static_cast<std::size_t>(id = static_cast<std::int64_t>(random() % ids))];
      touch(owners.trainer(trainer), embedding, ids_of(batch));
      ++steps[trainer];
    }
  };
  std::thread first([&] { train(0, a); }), second([&] { train(1, b); });
  const auto a_few_more_steps = [&] {
    const int before[2] = {steps[0], steps[1]};
    test::eventually("both go on", [&] { return steps[0] > before[0] + 2 && steps[1] > before[1] + 2; });
  };
  a_few_more_steps();
  EXPECT_EQ(kind_of([&] { got(a.grow(owners.peer(2, 0))); }), std::nullopt);
  a_few_more_steps();
  EXPECT_EQ(kind_of([&] { got(b.grow(owners.peer(3, 1))); }), std::nullopt) << "by another trainer";
  a_few_more_steps();
  enough = 1;
  first.join();
  second.join();

  at::Tensor want = at::full({ids}, -1.0f);
  for (std::int64_t id = 0; id < ids; ++id)
    want.data_ptr<float>()[id] -=
        static_cast<float>(counts[0][static_cast<std::size_t>(id)] + counts[1][static_cast<std::size_t>(id)]);
  for (const auto* embedding : {&a, &b})
    EXPECT_TRUE(torch::equal(got(embedding->read(torch::arange(ids))).select(1, 1), want));
  EXPECT_EQ(a.shards().size(), 4u);
  std::uint64_t rows = 0, refused = 0;
  for (const ShardStats& shard : got(b.stats())) {
    EXPECT_EQ(shard.owners, 4u);
    EXPECT_NEAR(static_cast<double>(shard.rows), ids / 4, 5 * std::sqrt(ids / 4));
    rows += shard.rows;
    refused += shard.refused;
  }
  EXPECT_EQ(rows, static_cast<std::uint64_t>(ids)) << "each row at one owner";
  EXPECT_GT(refused, 0u) << "the trainers learnt of the new owners by being refused";
  // A trainer that joins later knows only the first owners.
  const ShardedEmbedding late(owners.trainer(1), zeros(2), owners.peers(2, 1), "growing");
  EXPECT_TRUE(torch::equal(got(late.read(torch::arange(ids))).select(1, 1), want));
  EXPECT_EQ(late.shards().size(), 4u);
}

// Two shards with rows, and a third shard that is being added. A test can run the growth step by step.
struct StepByStep : testing::Test {
  StepByStep() : owners(3), embedding(owners.trainer(), zeros(1), owners.peers(2)) {
    touch(owners.trainer(), embedding, torch::arange(300));
    ShardOptions options = got(embedding.shards().front().call<&EmbeddingShard::options>());
    options.index = 2;
    options.owners = 3;
    options.added = true;
    added = rref::create<EmbeddingShard>(owners.peer(2), options);
    got(added.ready());
  }
  rpc::Future<void> hand_over(std::size_t source) {
    return embedding.shards()[source].call<&EmbeddingShard::hand_over>(added, 2u);
  }
  // The first shard hands over its rows, which have arrived when this returns.
  rpc::Future<void> begin() {
    auto first = hand_over(0);
    test::eventually("its rows have arrived", [&] { return stats(added).rows > 0; });
    return first;
  }
  ShardStats stats(const Shard& shard) { return got(shard.call<&EmbeddingShard::stats>()); }
  // Returns ids that move from this shard to the third one.
  at::Tensor moving(std::uint32_t source) {
    std::vector<std::int64_t> ids;
    for (std::int64_t id = 0; id < 300; ++id)
      if (owner_of(id, 2) == source && owner_of(id, 3) == 2) ids.push_back(id);
    return ids_of(ids);
  }
  Owners owners;
  ShardedEmbedding embedding;
  Shard added;
};

TEST_F(StepByStep, OnlyCallsThatNeedMovingRowsWait) {
  auto first = hand_over(0);
  test::eventually("its rows have arrived",
                   [&] { return stats(added).rows == static_cast<std::uint64_t>(moving(0).numel()); });
  // The shards serve the rows that stay and the rows that have arrived.
  touch(owners.trainer(), embedding, moving(0));
  EXPECT_EQ(embedding.shards().size(), 3u);
  auto waiting = embedding.read(torch::arange(300));
  test::eventually("the read waits", [&] { return stats(added).waited >= 1; });
  EXPECT_FALSE(waiting.ready());
  auto second = hand_over(1);
  got(std::move(first));
  got(std::move(second));
  at::Tensor want = at::full({300}, -1.0f);
  want.index_put_({moving(0)}, -2.0f);
  EXPECT_TRUE(torch::equal(got(std::move(waiting)).select(1, 0), want));
  EXPECT_EQ(stats(added).rows, static_cast<std::uint64_t>(moving(0).numel() + moving(1).numel()));
  EXPECT_EQ(stats(added).rows + stats(embedding.shards()[0]).rows + stats(embedding.shards()[1]).rows, 300u);
}

TEST_F(StepByStep, IsRevertedIfItIsAbandoned) {
  auto first = begin();
  got(embedding.read(moving(0)));  // now the trainer knows the third shard
  auto waiting = embedding.read(torch::arange(300));
  test::eventually("the read waits", [&] { return stats(added).waited >= 1; });
  EXPECT_EQ(kind_of([&] { got(hand_over(0)); }), rpc::ErrorKind::failed_precondition);
  got(added.call<&EmbeddingShard::abandon>(std::string("the test wants it")));
  test::expect_error([&] { got(std::move(first)); }, rpc::ErrorKind::aborted, "the test wants it");
  EXPECT_TRUE(torch::equal(got(std::move(waiting)), at::full({300, 1}, -1.0f)));
  EXPECT_EQ(embedding.shards().size(), 2u);
  touch(owners.trainer(), embedding, torch::arange(300));
  EXPECT_TRUE(torch::equal(got(embedding.read(torch::arange(300))), at::full({300, 1}, -2.0f)));
  // A later growth succeeds.
  got(embedding.grow(owners.peer(2)));
  EXPECT_TRUE(torch::equal(got(embedding.read(torch::arange(300))), at::full({300, 1}, -2.0f)));
}

// Then every call of the owner fails at once.
TEST_F(StepByStep, IsRevertedIfTheWorldFails) {
  auto first = begin();
  owners.cluster["owner0"].core()->fail_job(
      rpc::Error(rpc::ErrorKind::peer_lost, "owner9 was lost: for a test"));
  const auto error = test::error_of([&] { return got(std::move(first)), 0; });
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("owner9 was lost"), std::string::npos) << error->what();
  EXPECT_EQ(stats(embedding.shards()[0]).owners, 2u);
}

TEST_F(StepByStep, IsRevertedIfTheNewOwnerIsLost) {
  auto first = begin();
  owners.cluster.end("owner2");
  EXPECT_EQ(kind_of([&] { got(std::move(first)); }), rpc::ErrorKind::owner_lost);
  EXPECT_EQ(stats(embedding.shards()[0]).owners, 2u);
  EXPECT_TRUE(torch::equal(got(embedding.read(torch::arange(300))), at::full({300, 1}, -1.0f)));
}

TEST_F(StepByStep, OnlyOneGrowthRunsAtATime) {
  const TemporaryDirectory saved;
  got(embedding.save(saved.path));
  auto first = begin();
  EXPECT_EQ(kind_of([&] { got(embedding.grow(owners.peer(2))); }), rpc::ErrorKind::failed_precondition);
  TemporaryDirectory directory;
  EXPECT_EQ(kind_of([&] { got(embedding.save(directory.path)); }), rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { got(embedding.load(saved.path)); }), rpc::ErrorKind::failed_precondition);
  got(hand_over(1));
  got(std::move(first));
  EXPECT_EQ(kind_of([&] { got(embedding.save(directory.path)); }), std::nullopt);
}

}  // namespace
}  // namespace weft::dist_optim::embedding_test
