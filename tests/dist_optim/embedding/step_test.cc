// A DistributedOptimizer over modules and embeddings: the rows step together with the modules' parameters, or
// nothing steps.
#include <torch/nn/utils/clip_grad.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/dist_optim/embedding/sharded_embedding.h>

#include "tests/dist_optim/embedding/support.h"

namespace weft::dist_optim::embedding_step_test {
namespace {

using namespace embedding_test;
using torch::optim::SGDOptions;

constexpr std::int64_t dimension = 4;

struct Head : torch::nn::Module {
  Head() {
    linear = register_module("linear", torch::nn::Linear(dimension, dimension));
    at::NoGradGuard no_grad;
    for (auto& parameter : parameters())
      parameter.copy_((torch::arange(parameter.numel()) * 0.7 + 1).sin().reshape(parameter.sizes()));
  }
  torch::nn::Linear linear{nullptr};
  at::Tensor forward(at::Tensor input) { return linear(input).tanh(); }
  std::vector<at::Tensor> values() {
    std::vector<at::Tensor> all;
    for (const auto& parameter : parameters()) all.push_back(parameter.detach().clone());
    return all;
  }
  using Service = rpc::Service<"test.embedding_head", rpc::Constructor<>,
                               rpc::Method<"forward", &Head::forward>, rpc::Method<"values", &Head::values>>;
};

const std::vector<std::int64_t> row_ids{
    0,  1, 2, 3, -1, 1000, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(),
    17, 18};

// The indices of a batch into row_ids, and the factors of its loss.
struct Batch {
  std::vector<std::int64_t> rows;
  // factors of the two parts of the loss: an infinite factor makes one gradient infinite
  double rows_factor = 1, head_factor = 1;
};
Batch batch(int i) {
  Batch made;
  for (std::int64_t n = 0; n < 6; ++n) made.rows.push_back((n * n + i * (n + 3)) % 10);
  return made;
}
at::Tensor input(const Batch& batch) {
  return torch::tensor(batch.rows, at::kFloat).slice(0, 0, dimension).reshape({1, dimension}).sin();
}
at::Tensor loss_of(const Batch& batch, const at::Tensor& rows, const at::Tensor& mixed,
                   const at::Tensor& alone) {
  return (rows * rows.size(0)).sum() * batch.rows_factor + mixed.square().sum() +
         alone.sum() * batch.head_factor;
}

EmbeddingOptions options_of(RowOptimizer optimizer) {
  return {dimension, optimizer, {RowInitializer::Kind::normal, 0.3, 7}, 0};
}

// The table and the head in one process.
struct Oracle {
  explicit Oracle(bool sparse, double row_rate = 0.1)
      : table(
            torch::nn::EmbeddingOptions(static_cast<std::int64_t>(row_ids.size()), dimension).sparse(sparse)),
        adagrad(table->parameters(), torch::optim::AdagradOptions(row_rate)),
        sgd(head.parameters(), SGDOptions(0.1)) {
    at::NoGradGuard no_grad;
    const RowInitializer initializer = options_of({}).initializer;
    at::Tensor all = table->weight.detach();
    for (std::size_t i = 0; i < row_ids.size(); ++i)
      initializer.fill(row_ids[i], all[static_cast<std::int64_t>(i)].data_ptr<float>(), dimension);
  }
  void backward(const Batch& batch, double factor = 1) {
    const at::Tensor rows = table(ids_of(batch.rows));
    (loss_of(batch, rows, head.forward(rows), head.forward(input(batch))) * factor).backward();
  }
  std::vector<at::Tensor> parameters() {
    auto all = head.parameters();
    all.push_back(table->weight);
    return all;
  }
  void zero_grad() {
    adagrad.zero_grad();
    sgd.zero_grad();
  }
  void step() {
    adagrad.step();
    sgd.step();
  }
  Head head;
  torch::nn::Embedding table;
  torch::optim::Adagrad adagrad;
  torch::optim::SGD sgd;
};

// A trainer's view of a head on owner0 and of an embedding over the first `shards` owners, shared by name.
struct Model {
  Model(Owners& owners, std::size_t shards, RowOptimizer rows, std::size_t trainer = 0)
      : agent(owners.trainer(trainer)),
        head(rref::create<Head>(owners.peer(0, trainer), rref::Named{"head"})),
        embedding(agent, options_of(rows), owners.peers(shards, trainer), "items") {}

  Pass pass(const Batch& batch, double factor = 1) {
    Pass made{agent};
    std::vector<std::int64_t> ids;
    for (const std::int64_t row : batch.rows) ids.push_back(row_ids[static_cast<std::size_t>(row)]);
    const at::Tensor rows = got(embedding.lookup(made, ids_of(ids)));
    const at::Tensor mixed = got(head.call<&Head::forward>(made, rows));
    const at::Tensor alone = got(head.call<&Head::forward>(made, input(batch)));
    got(made.backward(loss_of(batch, rows, mixed, alone) * factor));
    return made;
  }
  void expect_as(Oracle& oracle) {
    EXPECT_TRUE(
        torch::allclose(got(embedding.read(ids_of(row_ids))), oracle.table->weight.detach(), 1e-5, 1e-6));
    const auto values = got(head.call<&Head::values>()), want = oracle.head.values();
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(torch::allclose(values[i], want[i], 1e-5, 1e-6));
  }

  rpc::Agent& agent;
  rref::RRef<Head> head;
  ShardedEmbedding embedding;
};

struct World : Owners {
  explicit World(std::size_t owners, std::size_t trainers = 1) : Owners(owners, trainers) {
    cluster["owner0"].allow_create<Head>();
  }
};

// All parts are on one owner, which decides a step itself, or on three.
class EmbeddingStep : public testing::TestWithParam<std::size_t> {
 protected:
  World world{GetParam()};
  Model model{world, GetParam(), RowOptimizer::adagrad(0.1)};
};
INSTANTIATE_TEST_SUITE_P(Owners, EmbeddingStep, testing::Values(1, 3),
                         [](const auto& info) { return std::string(info.param == 1 ? "One" : "Three"); });

TEST_P(EmbeddingStep, EqualsOneProcessInEveryMode) {
  for (const StepMode mode :
       {StepMode(synchronous), StepMode(synchronous_mean), bounded_staleness(1), dist_optim::hogwild}) {
    World own(GetParam());
    Model trained(own, GetParam(), RowOptimizer::adagrad(0.1));
    DistributedOptimizer optimizer{trained.agent, SGDOptions(0.1), mode, trained.head, trained.embedding};
    Oracle oracle(true);
    for (int i = 0; i < 5; ++i) {
      const StepResult result = got(optimizer.step(trained.pass(batch(i))));
      EXPECT_TRUE(result.applied);
      EXPECT_EQ(result.versions.size(), 1 + GetParam());
      oracle.zero_grad();
      oracle.backward(batch(i));
      oracle.step();
      trained.expect_as(oracle);
    }
    for (const ShardStats& shard : got(trained.embedding.stats())) EXPECT_LE(shard.update_calls, 5u);
  }
}

TEST_P(EmbeddingStep, ClipsByTheNormOverModulesAndRows) {
  DistributedOptimizer optimizer{model.agent, SGDOptions(0.1), synchronous, model.head, model.embedding};
  Oracle oracle(false);
  const double infinity = std::numeric_limits<double>::infinity();
  int i = 0;
  for (auto [p, most] :
       std::vector<std::pair<double, double>>{{2.0, 0.1}, {1.0, 0.5}, {infinity, 0.01}, {2.0, 1e6}}) {
    const StepResult result = got(optimizer.step(model.pass(batch(i)), {.clip_norm = most, .norm_type = p}));
    oracle.zero_grad();
    oracle.backward(batch(i++));
    const double norm = torch::nn::utils::clip_grad_norm_(oracle.parameters(), most, p);
    EXPECT_NEAR(result.total_norm, norm, 1e-5 * norm);
    oracle.step();
    model.expect_as(oracle);
  }
}

TEST_P(EmbeddingStep, ClipsByValueTheMeanOverPasses) {
  DistributedOptimizer optimizer{model.agent, SGDOptions(0.1), bounded_staleness(0), model.head,
                                 model.embedding};
  Oracle oracle(false);
  std::vector<Pass> passes;
  for (int i = 0; i < 3; ++i) passes.push_back(model.pass(batch(i)));
  got(optimizer.step(passes, {.mean = true, .clip_value = 0.5}));
  for (int i = 0; i < 3; ++i) oracle.backward(batch(i), 1.0 / 3);
  torch::nn::utils::clip_grad_value_(oracle.parameters(), 0.5);
  oracle.step();
  model.expect_as(oracle);
}

TEST_P(EmbeddingStep, AScalerSkipsRowsAndModulesTogether) {
  DistributedOptimizer optimizer{model.agent, SGDOptions(0.1), synchronous, model.head, model.embedding};
  Oracle oracle(true);
  GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  for (int i = 0; i < 5; ++i) {
    Batch bad = batch(i);
    if (i == 1) bad.rows_factor = std::numeric_limits<double>::infinity();
    if (i == 3) bad.head_factor = std::numeric_limits<double>::infinity();
    const bool spoilt = i == 1 || i == 3;
    const StepResult result =
        got(optimizer.step(model.pass(bad, scaler.factor()), {.loss_scale = scaler.factor()}));
    scaler.update(result.applied);
    EXPECT_EQ(result.applied, !spoilt) << i;
    if (!spoilt) {
      oracle.zero_grad();
      oracle.backward(batch(i));
      oracle.step();
    }
    model.expect_as(oracle);
  }
  EXPECT_EQ(scaler.factor(), 256);  // two steps were skipped
}

TEST_P(EmbeddingStep, AnAbandonedStepDoesNotChangeRowsOrPass) {
  DistributedOptimizer optimizer{model.agent, SGDOptions(0.1), synchronous, model.head, model.embedding};
  Oracle oracle(true);
  Batch bad = batch(0);
  bad.head_factor = std::numeric_limits<double>::infinity();
  const Pass pass = model.pass(bad);
  EXPECT_EQ(kind_of([&] { got(optimizer.step(pass, {.clip_norm = 1, .error_if_nonfinite = true})); }),
            rpc::ErrorKind::failed_precondition);
  model.expect_as(oracle);
  // The pass may step again. In this test it ends without a change.
  EXPECT_FALSE(got(optimizer.step(pass, {.loss_scale = 1})).applied);
  EXPECT_EQ(kind_of([&] { got(optimizer.step(pass)); }), rpc::ErrorKind::failed_precondition) << "twice";
  model.expect_as(oracle);
  {
    Pass none{model.agent};
    const at::Tensor rows = got(model.embedding.lookup(none, ids_of({0, 1})));
    EXPECT_EQ(kind_of([&] { got(optimizer.step(none)); }), rpc::ErrorKind::failed_precondition)
        << "no backward";
  }
  got(optimizer.step(model.pass(batch(1))));
  oracle.backward(batch(1));
  oracle.step();
  model.expect_as(oracle);
}

TEST_P(EmbeddingStep, IfAModuleRefusesNoRowSteps) {
  // Adam refuses sparse gradients, and therefore a module with such a table refuses the step.
  struct Table : torch::nn::Module {
    Table() {
      rows = register_module("rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 4).sparse(true)));
    }
    torch::nn::Embedding rows{nullptr};
  };
  const auto table = std::make_shared<Table>();
  DistributedOptimizer optimizer{
      model.agent,
      synchronous,
      {{rref::local(model.agent, table).reference(), torch::optim::AdamOptions(0.1)}},
      {model.embedding}};
  Pass pass{model.agent};
  const at::Tensor rows = got(model.embedding.lookup(pass, ids_of({0, 1})));
  got(pass.backward(rows.sum() + table->rows(ids_of({1})).sum()));
  EXPECT_EQ(kind_of([&] { got(optimizer.step(pass)); }), rpc::ErrorKind::invalid_argument);
  Oracle oracle(true);
  EXPECT_TRUE(torch::allclose(got(model.embedding.read(ids_of(row_ids))), oracle.table->weight.detach()));
}

TEST_P(EmbeddingStep, AnEmbeddingThatIsSteppedDoesNotStepAloneOrGrow) {
  const auto touch_alone = [&] { touch(model.agent, model.embedding, ids_of({0})); };
  {
    DistributedOptimizer optimizer{model.agent, SGDOptions(0.1), synchronous, model.embedding};
    got(optimizer.attached());
    EXPECT_EQ(kind_of(touch_alone), rpc::ErrorKind::failed_precondition);
    world.cluster.add("more").allow_create<EmbeddingShard>();
    world.cluster.acquaint();
    const auto more = world.cluster.peer("trainer0", "more");
    EXPECT_EQ(kind_of([&] { got(model.embedding.grow(more)); }), rpc::ErrorKind::failed_precondition);
    got(optimizer.step(model.pass(batch(0))));
  }
  test::eventually("the optimizer is detached", [&] {
    try {
      touch_alone();
      return true;
    } catch (const rpc::Error&) {
      return false;
    }
  });
  got(model.embedding.grow(world.cluster.peer("trainer0", "more")));
  DistributedOptimizer optimizer{model.agent, SGDOptions(0.1), synchronous, model.embedding};
  EXPECT_EQ(got(optimizer.step(model.pass(batch(1)))).versions.size(), GetParam() + 1);
}

TEST_P(EmbeddingStep, OtherOptimizersAreRefused) {
  const auto shard = model.embedding.shards().front();
  DistributedOptimizer optimizer{model.agent, SGDOptions(0.1), synchronous, shard};
  EXPECT_EQ(kind_of([&] { got(optimizer.attached()); }), rpc::ErrorKind::invalid_argument);
}

// Several trainers in one round, each with another batch.
class EmbeddingRound : public testing::Test {
 protected:
  static constexpr std::size_t trainers = 3, shards = 2;
  World world{shards, trainers};
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<DistributedOptimizer>> optimizers;

  void begin(StepMode mode, RowOptimizer rows) {
    for (std::size_t i = 0; i < trainers; ++i) {
      models.push_back(std::make_unique<Model>(world, shards, rows, i));
      optimizers.push_back(std::make_unique<DistributedOptimizer>(models[i]->agent, SGDOptions(0.1), mode,
                                                                  models[i]->head, models[i]->embedding));
      got(optimizers.back()->attached());
    }
  }
};

TEST_F(EmbeddingRound, AppliesTheSumOrTheMeanOnce) {
  begin(synchronous(trainers), RowOptimizer::adagrad(0.1));
  Oracle oracle(true);
  for (const bool mean : {false, true}) {
    if (mean) got(optimizers[0]->set_mode(synchronous_mean(trainers)));
    for (int round = 0; round < 3; ++round) {
      std::vector<Pass> passes;
      for (std::size_t i = 0; i < trainers; ++i)
        passes.push_back(models[i]->pass(batch(round + static_cast<int>(i))));
      std::vector<rpc::Future<StepResult>> steps;
      for (std::size_t i = trainers; i-- > 0;) steps.push_back(optimizers[i]->step(passes[i]));
      for (auto& step : steps) EXPECT_TRUE(got(std::move(step)).applied);
      oracle.zero_grad();
      for (std::size_t i = 0; i < trainers; ++i)
        oracle.backward(batch(round + static_cast<int>(i)), mean ? 1.0 / trainers : 1);
      oracle.step();
      models[0]->expect_as(oracle);
    }
  }
  for (const ShardStats& shard : got(models[0]->embedding.stats())) EXPECT_LE(shard.update_calls, 6u);
}

// In float, 1e8, -1e8 and 1 have the sum 1 if 1 is the last term, and otherwise 0.
TEST_F(EmbeddingRound, SumsInTheOrderOfTheTrainersNames) {
  begin(synchronous(trainers), RowOptimizer::sgd(1));
  for (std::size_t with_one = 0; with_one < trainers; ++with_one) {
    double large = 1e8;
    std::vector<Pass> passes;
    at::Tensor before;
    for (std::size_t i = 0; i < trainers; ++i) {
      Pass& pass = passes.emplace_back(models[i]->agent);
      const at::Tensor rows = got(models[i]->embedding.lookup(pass, ids_of({5})));
      before = rows.detach().clone();
      got(pass.backward(rows.sum() * (i == with_one ? 1 : std::exchange(large, -large))));
    }
    std::vector<rpc::Future<StepResult>> steps;
    for (const std::size_t i : {2u, 0u, 1u}) steps.push_back(optimizers[i]->step(passes[i]));
    for (auto& step : steps) got(std::move(step));
    const at::Tensor after = got(models[0]->embedding.read(ids_of({5})));
    EXPECT_TRUE(torch::equal(after, with_one + 1 == trainers ? before - 1 : before)) << with_one;
  }
}

TEST_F(EmbeddingRound, TheNextLookupWaitsForTheRound) {
  begin(synchronous(trainers), RowOptimizer::sgd(1));
  std::vector<Pass> passes;
  for (std::size_t i = 0; i < trainers; ++i) {
    Pass& pass = passes.emplace_back(models[i]->agent);
    got(pass.backward(got(models[i]->embedding.lookup(pass, ids_of({5}))).sum()));
  }
  auto first = optimizers[0]->step(passes[0]);
  Pass next{models[0]->agent};
  const at::Tensor before = got(models[1]->embedding.read(ids_of({5})));
  auto early = models[0]->embedding.lookup(next, ids_of({5}));
  for (std::size_t i = 1; i < trainers; ++i) {
    EXPECT_FALSE(first.ready());
    got(models[i]->embedding.read(ids_of({5})));
    auto step = optimizers[i]->step(passes[i]);
    if (i + 1 < trainers) {
      EXPECT_FALSE(early.ready());
      std::move(step).then([](auto&&) {});
    } else {
      got(std::move(step));
    }
  }
  got(std::move(first));
  EXPECT_TRUE(torch::allclose(got(std::move(early)).detach(), before - 3));
}

TEST_F(EmbeddingRound, ATrainerThatDiesFailsTheRoundForRowsToo) {
  begin(synchronous(trainers), RowOptimizer::sgd(1));
  const Pass pass = models[0]->pass(batch(0));
  const at::Tensor before = got(models[0]->embedding.read(ids_of(row_ids)));
  auto step = optimizers[0]->step(pass);
  world.cluster.end("trainer2");
  try {
    got(std::move(step));
    FAIL() << "it was stepped";
  } catch (const rpc::Error& error) {
    EXPECT_NE(std::string(error.what()).find("trainer2 died"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(torch::equal(got(models[1]->embedding.read(ids_of(row_ids))), before));
}

// The first trainer reads rows; under bounded_staleness(0) the second one's lookup waits for the first one's
// step.
TEST(EmbeddingStale, LookupsObeyTheBound) {
  World world(2, 2);
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<DistributedOptimizer>> optimizers;
  for (std::size_t i = 0; i < 2; ++i) {
    models.push_back(std::make_unique<Model>(world, 2, RowOptimizer::sgd(1), i));
    optimizers.push_back(std::make_unique<DistributedOptimizer>(
        models[i]->agent, SGDOptions(0.1), bounded_staleness(0), models[i]->embedding, models[i]->head));
    got(optimizers.back()->attached());
  }
  const Pass first = models[0]->pass(batch(0));
  Pass second{models[1]->agent};
  auto lookup = models[1]->embedding.lookup(second, ids_of(row_ids));
  got(models[1]->embedding.read(ids_of(row_ids)));
  EXPECT_FALSE(lookup.ready());
  got(optimizers[0]->step(first));
  const at::Tensor rows = got(std::move(lookup));
  EXPECT_TRUE(torch::equal(rows.detach(), got(models[0]->embedding.read(ids_of(row_ids)))));
  got(second.backward(rows.sum()));
  EXPECT_TRUE(got(optimizers[1]->step(second)).applied);
}

// The step does not use a DistributedOptimizer.
TEST(ShardedEmbeddingOptions, ApplyToAStepOfTheEmbeddingAlone) {
  World world(2);
  Model model(world, 2, RowOptimizer::adagrad(0.1));
  Oracle oracle(false);
  const auto pass_of = [&](int i, double factor) {
    Pass pass{model.agent};
    std::vector<std::int64_t> ids;
    for (const std::int64_t row : batch(i).rows) ids.push_back(row_ids[static_cast<std::size_t>(row)]);
    got(pass.backward(got(model.embedding.lookup(pass, ids_of(ids))).exp().sum() * factor));
    return pass;
  };
  const auto oracle_backward = [&](int i, double factor) {
    (oracle.table(ids_of(batch(i).rows)).exp().sum() * factor).backward();
  };
  const auto expect_same = [&] {
    EXPECT_TRUE(torch::allclose(got(model.embedding.read(ids_of(row_ids))), oracle.table->weight.detach(),
                                1e-5, 1e-6));
  };
  const StepResult clipped = got(model.embedding.step(pass_of(0, 64), {.loss_scale = 64, .clip_norm = 0.1}));
  oracle_backward(0, 1);
  const double norm = torch::nn::utils::clip_grad_norm_(oracle.table->parameters(), 0.1);
  EXPECT_TRUE(clipped.applied);
  EXPECT_NEAR(clipped.total_norm, norm, 1e-5 * norm);
  oracle.adagrad.step();
  expect_same();

  EXPECT_FALSE(
      got(model.embedding.step(pass_of(1, std::numeric_limits<double>::infinity()), {.loss_scale = 2}))
          .applied);
  expect_same();

  std::vector<Pass> passes;
  for (int i = 0; i < 3; ++i) passes.push_back(pass_of(i, 1));
  EXPECT_TRUE(got(model.embedding.step(passes, {.mean = true, .clip_value = 0.2})).applied);
  oracle.zero_grad();
  for (int i = 0; i < 3; ++i) oracle_backward(i, 1.0 / 3);
  torch::nn::utils::clip_grad_value_(oracle.table->parameters(), 0.2);
  oracle.adagrad.step();
  expect_same();

  const Pass bad = pass_of(2, std::numeric_limits<double>::infinity());
  EXPECT_EQ(kind_of([&] { got(model.embedding.step(bad, {.clip_norm = 1, .error_if_nonfinite = true})); }),
            rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { got(model.embedding.step(bad, {.clip_norm = -1})); }),
            rpc::ErrorKind::invalid_argument);
  expect_same();
}

}  // namespace
}  // namespace weft::dist_optim::embedding_step_test
