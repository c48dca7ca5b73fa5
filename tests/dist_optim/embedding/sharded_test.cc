// ShardedEmbedding over agents of one process: parity with a dense table, the number of calls, several
// trainers, errors.
#include <weft/dist_autograd/pass_state.h>
#include <weft/dist_optim/embedding/sharded_embedding.h>

#include "tests/dist_optim/embedding/support.h"

namespace weft::dist_optim::embedding_test {
namespace {

// The same rows in one dense tensor.
at::Tensor dense_rows(const RowInitializer& initializer, std::int64_t rows, std::int64_t dimension) {
  at::Tensor table = at::empty({rows, dimension}, at::kFloat);
  for (std::int64_t id = 0; id < rows; ++id)
    initializer.fill(id, table[id].data_ptr<float>(), static_cast<std::size_t>(dimension));
  return table;
}

TEST(ShardedEmbedding, TrainsLikeADenseTable) {
  constexpr std::int64_t rows = 40, dimension = 6;
  Owners owners(3);
  const RowInitializer initializer{RowInitializer::Kind::normal, 0.3, 7};
  const ShardedEmbedding embedding(owners.trainer(), {dimension, RowOptimizer::adagrad(0.1), initializer, 0},
                                   owners.peers(3));
  at::Tensor table = dense_rows(initializer, rows, dimension).set_requires_grad(true);
  torch::optim::Adagrad oracle(std::vector{table}, torch::optim::AdagradOptions(0.1));
  torch::manual_seed(1);
  const at::Tensor weights = torch::randn({dimension});
  const auto loss_of = [&](const at::Tensor& a, const at::Tensor& b) {
    return (a * weights).sum() + (a.sum(0) * b).square().sum();
  };
  for (int step = 0; step < 12; ++step) {
    // Two lookups in one pass. Ids occur several times within and across the lookups.
    const at::Tensor first = torch::randint(rows, {4, 5}, at::kLong),
                     second = torch::randint(rows, {5}, at::kLong);
    Pass pass{owners.trainer()};
    const at::Tensor a = got(embedding.lookup(pass, first)), b = got(embedding.lookup(pass, second));
    ASSERT_EQ(a.sizes(), (at::IntArrayRef{4, 5, dimension}));
    got(pass.backward(loss_of(a, b)));
    got(embedding.step(pass));
    oracle.zero_grad();
    loss_of(table.index({first}), table.index({second})).backward();
    oracle.step();
    const at::Tensor now = got(embedding.read(torch::arange(rows)));
    ASSERT_TRUE(torch::allclose(now, table.detach(), 1e-4, 1e-5)) << step;
  }
}

TEST(ShardedEmbedding, BagsAreSumsAndMeans) {
  constexpr std::int64_t rows = 20, dimension = 3;
  Owners owners(2);
  const RowInitializer initializer{RowInitializer::Kind::uniform, 1, 3};
  const ShardedEmbedding embedding(owners.trainer(), {dimension, RowOptimizer::sgd(0.1), initializer, 0},
                                   owners.peers(2));
  at::Tensor table = dense_rows(initializer, rows, dimension);
  const at::Tensor ids = ids_of({3, 7, 3, 19, 0, 7}), offsets = ids_of({0, 3, 3, 5});  // one bag is empty
  torch::manual_seed(2);
  const at::Tensor weights = torch::randn({4, dimension});
  for (const auto mode : {ShardedEmbedding::Bag::sum, ShardedEmbedding::Bag::mean}) {
    Pass pass{owners.trainer()};
    const at::Tensor bags = got(embedding.lookup_bags(pass, ids, offsets, mode));
    got(pass.backward((bags * weights).sum()));
    got(embedding.step(pass));

    at::Tensor dense = table.clone().set_requires_grad(true);
    const at::Tensor want = std::get<0>(
        at::embedding_bag(dense, ids, offsets, false, mode == ShardedEmbedding::Bag::mean ? 1 : 0));
    EXPECT_TRUE(torch::allclose(bags, want));
    (want * weights).sum().backward();
    table -= 0.1 * dense.grad();
    EXPECT_TRUE(torch::allclose(got(embedding.read(torch::arange(rows))), table));
  }
}

TEST(ShardedEmbedding, SendsOneCallToEachOwnerWithEachIdOnce) {
  Owners owners(3);
  const ShardedEmbedding embedding(owners.trainer(), zeros(2), owners.peers(3));
  const at::Tensor first = torch::arange(100).repeat({7}), second = torch::arange(50, 150).repeat({2});
  Pass pass{owners.trainer()};
  const at::Tensor a = got(embedding.lookup(pass, first)), b = got(embedding.lookup(pass, second));
  got(pass.backward(a.sum() + b.sum()));
  got(embedding.step(pass));
  std::uint64_t looked_up = 0, updated = 0, rows = 0;
  for (const ShardStats& shard : got(embedding.stats())) {
    EXPECT_EQ(shard.lookup_calls, 2u);
    EXPECT_EQ(shard.update_calls, 1u);
    looked_up += shard.rows_looked_up;
    updated += shard.rows_updated;
    rows += shard.rows;
  }
  EXPECT_EQ(looked_up, 200u);
  EXPECT_EQ(updated, 150u);
  EXPECT_EQ(rows, 150u);
  const at::Tensor now = got(embedding.read(torch::arange(150)));
  EXPECT_TRUE(torch::equal(now.select(1, 0), -(torch::arange(150) < 100).to(at::kFloat) * 7 -
                                                 (torch::arange(150) >= 50).to(at::kFloat) * 2));
}

// The work of an owner for a batch is proportional to 1/owners: one call for its share of the rows.
TEST(ShardedEmbedding, WorkIsSharedEqually) {
  constexpr std::int64_t ids = 8192;
  Owners owners(8);
  for (const std::size_t count : {1u, 2u, 4u, 8u}) {
    const ShardedEmbedding embedding(owners.trainer(), zeros(1), owners.peers(count));
    touch(owners.trainer(), embedding, torch::arange(ids) * 1000);
    const double share = static_cast<double>(ids) / static_cast<double>(count);
    for (const ShardStats& shard : got(embedding.stats())) {
      EXPECT_EQ(shard.lookup_calls + shard.update_calls, 2u);
      EXPECT_NEAR(static_cast<double>(shard.rows_looked_up), share, 4 * std::sqrt(share));
      EXPECT_EQ(shard.rows_updated, shard.rows_looked_up);
    }
  }
}

TEST(ShardedEmbedding, ReadingCreatesNoRows) {
  Owners owners(2);
  const RowInitializer initializer{RowInitializer::Kind::uniform, 1, 3};
  const ShardedEmbedding embedding(owners.trainer(), {4, RowOptimizer::adam(0.1), initializer, 0},
                                   owners.peers(2));
  const auto rows = [&] {
    std::uint64_t all = 0;
    for (const ShardStats& shard : got(embedding.stats())) all += shard.rows;
    return all;
  };
  const at::Tensor before = got(embedding.read(torch::arange(30)));
  EXPECT_FALSE(before.requires_grad());
  EXPECT_EQ(rows(), 0u);
  Pass pass{owners.trainer()};
  EXPECT_TRUE(torch::equal(got(embedding.lookup(pass, torch::arange(30))), before));
  EXPECT_EQ(rows(), 30u);
  EXPECT_EQ(got(embedding.read(at::empty({0, 3}, at::kLong))).sizes(), (at::IntArrayRef{0, 3, 4}));
}

TEST(ShardedEmbedding, TrainersShareItByName) {
  Owners owners(2, 2);
  const ShardedEmbedding a(owners.trainer(0), zeros(3), owners.peers(2, 0), "items");
  const ShardedEmbedding b(owners.trainer(1), zeros(3), owners.peers(2, 1), "items");
  const ShardedEmbedding other(owners.trainer(1), zeros(3), owners.peers(2, 1), "users");
  const auto train = [&](std::size_t trainer, const ShardedEmbedding& embedding) {
    for (int i = 0; i < 20; ++i) touch(owners.trainer(trainer), embedding, torch::arange(i, 60));
  };
  std::thread beside([&] { train(1, b); });
  train(0, a);
  beside.join();
  const at::Tensor want = -2 * (torch::arange(60) + 1).clamp_max(20).to(at::kFloat);
  EXPECT_TRUE(torch::equal(got(a.read(torch::arange(60))).select(1, 2), want));
  EXPECT_TRUE(torch::equal(got(other.read(torch::arange(60))), torch::zeros({60, 3})));
  const ShardedEmbedding unlike(owners.trainer(1), zeros(4), owners.peers(2, 1), "items");
  EXPECT_EQ(kind_of([&] { got(unlike.ready()); }), rpc::ErrorKind::already_exists);
}

TEST(ShardedEmbedding, StepsWithSeveralPassesAndRates) {
  Owners owners(2);
  const ShardedEmbedding embedding(owners.trainer(), zeros(1), owners.peers(2));
  std::vector<Pass> passes;
  for (int i = 0; i < 3; ++i) {
    const Pass& pass = passes.emplace_back(owners.trainer());
    got(passes.back().backward(got(embedding.lookup(pass, ids_of({1, 2}))).sum()));
  }
  got(embedding.step(passes));
  got(embedding.set_learning_rate(0.5));
  touch(owners.trainer(), embedding, ids_of({2}));
  EXPECT_TRUE(torch::equal(got(embedding.read(ids_of({1, 2}))), torch::tensor({{-3.0f}, {-3.5f}})));
  std::uint64_t updates = 0;
  for (const ShardStats& shard : got(embedding.stats())) updates += shard.rows_updated;
  EXPECT_EQ(updates, 3u) << "the passes' gradients travel as one";
}

TEST(ShardedEmbedding, StaysWithinItsCapacity) {
  Owners owners(2);
  EmbeddingOptions options = zeros(2);
  options.capacity = 100;
  const ShardedEmbedding embedding(owners.trainer(), options, owners.peers(2));
  for (std::int64_t i = 0; i < 20; ++i)
    touch(owners.trainer(), embedding, torch::arange(i * 50, i * 50 + 50));
  std::uint64_t rows = 0, evicted = 0;
  for (const ShardStats& shard : got(embedding.stats())) {
    EXPECT_LE(shard.rows, 100u);
    EXPECT_GE(shard.rows, 50u);
    rows += shard.rows;
    evicted += shard.evicted;
  }
  EXPECT_EQ(rows + evicted, 1000u);
  const at::Tensor now = got(embedding.read(torch::arange(1000))).select(1, 0);
  EXPECT_TRUE(torch::equal(now.slice(0, 900), torch::full({100}, -1.0f))) << "the youngest are there";
  EXPECT_TRUE(torch::equal(now.slice(0, 0, 700), torch::zeros({700}))) << "the oldest are as never used";
  EXPECT_EQ(got(embedding.evict_unused(2)), rows - 50);
}

TEST(ShardedEmbedding, ReportsErrors) {
  using rpc::ErrorKind;
  Owners owners(1);
  const ShardedEmbedding embedding(owners.trainer(), zeros(2), owners.peers(1));
  {
    Pass pass{owners.trainer()};
    const auto look_up = [&](const at::Tensor& ids) {
      return kind_of([&] { got(embedding.lookup(pass, ids)); });
    };
    EXPECT_EQ(look_up(torch::tensor({1, 2}, at::kInt)), ErrorKind::invalid_argument);
    EXPECT_EQ(look_up(torch::tensor({1.0f})), ErrorKind::invalid_argument);
    EXPECT_EQ(look_up({}), ErrorKind::invalid_argument);
    const auto bags = [&](const at::Tensor& offsets) {
      return kind_of(
          [&] { got(embedding.lookup_bags(pass, ids_of({1, 2}), offsets, ShardedEmbedding::Bag::sum)); });
    };
    EXPECT_EQ(bags(ids_of({0, 3})), ErrorKind::invalid_argument);
    EXPECT_EQ(bags(ids_of({1})), ErrorKind::invalid_argument);
    EXPECT_EQ(bags(ids_of({0, 2, 1})), ErrorKind::invalid_argument);
    EXPECT_EQ(kind_of([&] { got(embedding.step(pass)); }), ErrorKind::failed_precondition)
        << "nothing looked up";
    const at::Tensor rows = got(embedding.lookup(pass, ids_of({1, 1})));
    EXPECT_EQ(kind_of([&] { got(embedding.step(pass)); }), ErrorKind::failed_precondition) << "no backward";
    got(pass.backward(rows.sum()));
    got(embedding.step(pass));
    EXPECT_EQ(kind_of([&] { got(embedding.step(pass)); }), ErrorKind::failed_precondition) << "twice";
  }
  const auto shard = embedding.shards().front();
  EXPECT_EQ(kind_of([&] { got(shard.call<&EmbeddingShard::update>(ids_of({1, 2}), torch::ones({2, 3}))); }),
            ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { got(shard.call<&EmbeddingShard::update>(ids_of({1, 2}), torch::ones({1, 2}))); }),
            ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { got(embedding.set_learning_rate(-1)); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { ShardedEmbedding(owners.trainer(), zeros(0), owners.peers(1)); }),
            ErrorKind::invalid_argument);
}

// No backward would collect the gradient of the lookup.
TEST(EmbeddingPass, RefusesLookupsAfterItsBackward) {
  Owners owners(1);
  const ShardedEmbedding embedding(owners.trainer(), zeros(1), owners.peers(1));
  Pass pass{owners.trainer()};
  got(pass.backward(got(embedding.lookup(pass, ids_of({1, 2}))).sum()));
  EXPECT_EQ(kind_of([&] { got(embedding.lookup(pass, ids_of({3}))); }), rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] {
              got(embedding.lookup_bags(pass, ids_of({3}), ids_of({0}), ShardedEmbedding::Bag::sum));
            }),
            rpc::ErrorKind::failed_precondition);
  got(embedding.step(pass));
  EXPECT_TRUE(
      torch::equal(got(embedding.read(ids_of({1, 2, 3}))), torch::tensor({{-1.0f}, {-1.0f}, {0.0f}})));
}

TEST(ShardedEmbedding, ReportsALostOwner) {
  Owners owners(2);
  const ShardedEmbedding embedding(owners.trainer(), zeros(2), owners.peers(2));
  touch(owners.trainer(), embedding, torch::arange(10));
  Pass pass{owners.trainer()};
  got(pass.backward(got(embedding.lookup(pass, torch::arange(10))).sum()));
  owners.cluster.end("owner1");
  EXPECT_EQ(kind_of([&] { got(embedding.step(pass)); }), rpc::ErrorKind::owner_lost);
  EXPECT_EQ(kind_of([&] { got(embedding.read(torch::arange(10))); }), rpc::ErrorKind::owner_lost);
  std::vector<std::int64_t> of_first;
  for (std::int64_t id = 0; id < 10; ++id)
    if (owner_of(id, 2) == 0) of_first.push_back(id);
  const at::Tensor left = got(embedding.read(ids_of(of_first)));
  EXPECT_TRUE(torch::equal(left, torch::full_like(left, -2))) << "the other's rows were updated";
}

TEST(ShardedEmbedding, RowsOfAPassAreReleasedAtItsEnd) {
  Owners owners(1);
  const auto client =
      std::make_shared<EmbeddingClient>(owners.trainer().core(), 1, std::vector<EmbeddingShard::Ref>{});
  const auto ids = std::make_shared<const UniqueIds>();
  std::optional<Pass> pass(std::in_place, owners.trainer());
  const auto id = pass->id();
  const auto state = pass->state();
  client->keep(state, {torch::zeros({1}), ids});
  client->keep(state, {torch::zeros({1}), ids});
  EXPECT_EQ(client->kept(id).size(), 2u);
  pass.reset();
  test::eventually("they are forgotten", [&] { return client->kept(id).empty(); });
  client->keep(state, {torch::zeros({1}), ids});
  EXPECT_TRUE(client->kept(id).empty()) << "a lookup that ends after its pass";
}

}  // namespace
}  // namespace weft::dist_optim::embedding_test
