#include <weft/parallel/elastic/sharded/sharded_part.h>

#include <weft/parallel/elastic/internal/state_access.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>

#include <memory>

#include "tests/parallel/data_parallel/ranks.h"
#include "tests/parallel/elastic/training.h"

namespace weft::elastic {
namespace sharded_part_test {

using namespace testing;
using collectives::testing::on_ranks;
using data_parallel::testing::Company;
using sharded::FullyShardedDataParallel;
using sharded::FullyShardedOptimizer;
using sharded::ShardedOptimizer;
using Names = std::vector<std::string>;

// A model that is trained in one of two ways.
struct Trainee {
  Trainee(std::uint64_t seed, bool freezes) : model(std::make_shared<Net>(seed)) {
    model->first.requires_grad_(!freezes);
  }
  virtual ~Trainee() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  virtual void zero_grad() = 0;
  virtual void step() = 0;
  // On all ranks.
  virtual std::vector<at::Tensor> values() const = 0;
  virtual void add_to(State& state) = 0;

  std::vector<at::Tensor> copies() const {
    return {model->first.detach().clone(), model->second.detach().clone()};
  }
  std::shared_ptr<Net> model;
  std::shared_ptr<StatePart> part;
};

const auto momentum = torch::optim::SGDOptions(learning_rate).momentum(0.9);

struct FullySharded final : Trainee {
  FullySharded(const Group& alone, std::uint64_t seed, int copies, bool freezes)
      : Trainee(seed, freezes), module(alone, model), optimizer(module, momentum) {
    part = sharded_part(module, optimizer, {.copies = copies});
  }
  at::Tensor forward(const at::Tensor& x) override { return module.forward(x); }
  void zero_grad() override { optimizer.zero_grad(); }
  void step() override { optimizer.step(); }
  std::vector<at::Tensor> values() const override {
    const auto whole = module.gather();
    return copies();
  }
  void add_to(State& state) override { state.add("sharded", part); }
  FullyShardedDataParallel<Net> module;
  FullyShardedOptimizer optimizer;
};

template <bool overlap>
struct OptimizerSharded final : Trainee {
  OptimizerSharded(const Group& alone, std::uint64_t seed, int copies, bool freezes)
      : Trainee(seed, freezes), ddp(alone, model), optimizer(ddp, momentum, {.overlap = overlap}) {
    part = sharded_part(ddp, optimizer, {.copies = copies});
  }
  at::Tensor forward(const at::Tensor& x) override { return ddp.forward(x); }
  void zero_grad() override { optimizer.zero_grad(); }
  void step() override { optimizer.step(); }
  std::vector<at::Tensor> values() const override { return copies(); }
  void add_to(State& state) override { state.add("model", model).add("optimizer", part); }
  data_parallel::DistributedDataParallel<Net> ddp;
  ShardedOptimizer optimizer;
};

using Make = std::unique_ptr<Trainee> (*)(const Group& alone, std::uint64_t seed, int copies, bool freezes);
template <class T>
std::unique_ptr<Trainee> made(const Group& alone, std::uint64_t seed, int copies, bool freezes) {
  return std::make_unique<T>(alone, seed, copies, freezes);
}
struct Way {
  const char* name;
  Make make;
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }
const Way ways[] = {{"FullySharded", made<FullySharded>},
                    {"ShardedOptimizer", made<OptimizerSharded<false>>},
                    {"Overlapped", made<OptimizerSharded<true>>}};

void train_step(Trainee& trainee, const Data& data) {
  trainee.zero_grad();
  at::mse_loss(trainee.forward(data.x), data.y).backward();
  trainee.step();
}
// The values after steps of one process.
void expect_trained(const std::vector<at::Tensor>& values, int steps) {
  Net expected(0);
  const Data data;
  torch::optim::SGD optimizer(expected.parameters(), momentum);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::mse_loss(expected.forward(data.x), data.y).backward();
    optimizer.step();
  }
  ASSERT_EQ(values.size(), 2U);
  expect_values(expected, values[0], values[1]);
}

// A worker: an agent of an elastic world, and a thread that trains.
struct Worker {
  Worker(const test::JobStore& store, const std::string& name, std::size_t place)
      : job(worker_options(store, name, place), training_layers()), number(place) {}
  void start(const Way& way, const RunOptions& options, int copies = 1) {
    thread.start([this, way, options, copies] {
      job.join().get();
      const Group alone = Group::create(agent, {.name = "alone", .members = {agent.name()}}).get();
      trainee = way.make(alone, number, copies, freezes);
      State state;
      trainee->add_to(state);
      state.add("sampler", sampler).add("epoch", epoch).add("step", step);
      run(job, state, [&](const Group& group) { train(group, state); }, options);
    });
  }
  void train(const Group& group, State& state) {
    const std::uint64_t generation = ++generations;
    members = group.members();
    for (; epoch < epochs; ++epoch) {
      sampler.set_epoch(static_cast<std::uint64_t>(epoch));
      sampler.reset();
      while (const auto indices = sampler.next(batch_size)) {
        sampler.deliver();
        if (before_step) before_step(step, group);
        const Round round = sampler.round();
        trainee->zero_grad();
        at::Tensor x = Data::rows(data.x, *indices);
        if (within_backward)
          x.requires_grad_().register_hook([&](const at::Tensor&) { within_backward(step); });
        const at::Tensor loss =
            at::mse_loss(trainee->forward(x), Data::rows(data.y, *indices)) * round.weight;
        loss.backward();
        if (after_backward) after_backward(step);
        trainee->step();
        sampler.record();
        Step done{step, epoch, generation, group.rank(), group.size(), loss.item<double>(), round.indices};
        done.indices.resize(round.own);
        ++step;
        log->add(done);
        state.commit_every(2);
      }
    }
    values = trainee->values();
  }
  void end() { thread.end(); }
  void dies_at(std::int64_t at) {
    before_step = [this, at](std::int64_t now, const Group&) {
      if (now == at) die(agent);
    };
  }

  rpc::Job job;
  rpc::Agent& agent = job.agent();
  const std::size_t number;
  const Data data;
  bool freezes = false;  // the first parameter of the new model
  std::unique_ptr<Trainee> trainee;
  ElasticSampler sampler{dataset_size, {.seed = 5}};
  std::int64_t epoch = 0, step = 0;
  std::uint64_t generations = 0;  // of this worker: enough for a log in which no worker comes late
  Log* log = nullptr;
  std::function<void(std::int64_t step, const Group&)> before_step;
  std::function<void(std::int64_t step)> within_backward, after_backward;
  Names members;
  std::vector<at::Tensor> values;
  WorkerThread thread;
};

class ElasticShards : public ::testing::TestWithParam<Way> {
 protected:
  ~ElasticShards() override {
    while (workers.size() > 1) workers.pop_back();  // the first one keeps the store
  }
  Worker& worker(const std::string& name) {
    Worker& one = *workers.emplace_back(std::make_unique<Worker>(store, name, workers.size()));
    one.log = &log;
    return one;
  }
  void expect_replay(const Worker& last) {
    Net model(0);
    log.expect_replay(model);
    ASSERT_EQ(last.values.size(), 2U);
    expect_values(model, last.values[0], last.values[1]);
  }

  test::InProcessJobStore store;
  Log log;
  std::vector<std::unique_ptr<Worker>> workers;
};
INSTANTIATE_TEST_SUITE_P(Ways, ElasticShards, ::testing::ValuesIn(ways),
                         [](const auto& info) { return info.param.name; });

// The shard of the dead worker is lost, and only one copy of it is left. The death occurs after a step that
// was not committed.
TEST_P(ElasticShards, SurvivorsRestoreTheCommitFromTheirShards) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  workers[2]->dies_at(7);
  for (auto& each : workers) each->start(GetParam(), {.workers = {.min = 2, .start = 3}});
  EXPECT_THROW(workers[2]->end(), Died);
  for (const int survivor : {0, 1}) workers[survivor]->end();
  EXPECT_EQ(workers[1]->members, (Names{"anna", "bert"}));
  EXPECT_EQ(log.of_step(5).size(), 3U);
  EXPECT_EQ(log.of_step(6).size(), 2U);
  expect_replay(*workers[1]);
}

// One worker joins, then another one dies, and then the last one trains alone.
TEST_P(ElasticShards, WorkersJoinAndDie) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  dora.generations = 1;  // as many as the others have had
  workers[0]->before_step = [&](std::int64_t step, const Group& group) {
    if (step != 3 || group.size() != 2 || dora.thread.started()) return;
    dora.start(GetParam(), {});
    await_ready(workers[0]->job, "dora");
  };
  workers[1]->dies_at(9);
  dora.dies_at(14);
  for (const int first : {0, 1}) workers[first]->start(GetParam(), {.workers = {.start = 2}});
  EXPECT_THROW(workers[1]->end(), Died);
  EXPECT_THROW(dora.end(), Died);
  workers[0]->end();
  EXPECT_EQ(log.of_step(4).size(), 3U);
  EXPECT_EQ(log.of_step(9).size(), 2U);
  EXPECT_EQ(log.of_step(14).size(), 1U);
  expect_replay(*workers[0]);
}

// The worker that joins constructs its model with the parameter frozen that the others have unfrozen.
TEST_P(ElasticShards, AWorkerJoinsAfterUnfreezing) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  dora.generations = 1;
  for (auto& each : workers) {
    each->freezes = true;
    each->before_step = [&, &own = *each](std::int64_t step, const Group& group) {
      freeze_and_unfreeze(step, *own.trainee->model);
      if (&own != workers[0].get() || step != 5 || group.size() != 2) return;
      dora.start(GetParam(), {});
      await_ready(own.job, "dora");
    };
  }
  for (const int first : {0, 1}) workers[first]->start(GetParam(), {.workers = {.start = 2}});
  for (const int each : {0, 1, 2}) workers[each]->end();
  Net model(0);
  log.expect_replay(model, epochs, {}, freeze_and_unfreeze);
  EXPECT_EQ(dora.members.size(), 3U);
  ASSERT_EQ(dora.values.size(), 2U);
  expect_values(model, dora.values[0], dora.values[1]);
}

// The others wait in groups of the module or of the optimizer, which run() does not know.
TEST_P(ElasticShards, AFailureOfOneRankFailsTheStepOnAllRanks) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  std::set<std::int64_t> failed;
  const auto fails_at = [&](std::int64_t step) {
    if (failed.insert(step).second) throw rpc::Error(ErrorKind::unavailable, "the data's server is gone");
  };
  workers[1]->before_step = [&](std::int64_t step, const Group&) {
    if (step == 7) fails_at(step);
  };
  workers[1]->after_backward = [&](std::int64_t step) {
    if (step == 9) fails_at(step);
  };
  workers[1]->within_backward = [&](std::int64_t step) {
    if (step == 11) fails_at(step);
  };
  for (auto& each : workers) each->start(GetParam(), {.workers = {.start = 3}});
  for (auto& each : workers) each->end();
  EXPECT_EQ(workers[0]->generations, 4U);
  expect_replay(*workers[1]);
}

// Two neighbours die. The first one had the only copy of the second one's shard.
TEST_P(ElasticShards, DeathsBeyondTheCopiesAreReported) {
  for (const std::string name : {"anna", "bert", "cleo", "dora"}) worker(name);
  for (const int dies : {1, 2}) workers[dies]->dies_at(7);
  for (auto& each : workers) each->start(GetParam(), {.workers = {.start = 4}});
  for (const int dies : {1, 2}) EXPECT_THROW(workers[dies]->end(), Died);
  for (const int survivor : {0, 3}) {
    test::expect_error([&] { workers[survivor]->end(); }, ErrorKind::failed_precondition,
                       {"no worker has the shards of cleo,", "load a checkpoint"});
  }
}

TEST_P(ElasticShards, TwoCopiesSurviveTwoDeaths) {
  for (const std::string name : {"anna", "bert", "cleo", "dora"}) worker(name);
  for (const int dies : {1, 2}) workers[dies]->dies_at(7);
  for (auto& each : workers) each->start(GetParam(), {.workers = {.start = 4}}, 2);
  for (const int dies : {1, 2}) EXPECT_THROW(workers[dies]->end(), Died);
  for (const int survivor : {0, 3}) workers[survivor]->end();
  expect_replay(*workers[3]);
}

// A trainee and its state on a rank, without run().
struct OnRank {
  OnRank(const Way& way, const Group& all, std::uint64_t seed)
      : world(all), alone(world.split(world.rank()).get().value()), trainee(way.make(alone, seed, 1, false)) {
    trainee->add_to(state);
  }
  void step() { train_step(*trainee, data); }
  // Commits after a step, and after another one. Only rank 0 learns that all ranks have staged the second
  // commit.
  void commit_twice() {
    access.set_votes([this](Vote own) {
      world.barrier().get();
      if (fails) throw rpc::Error(ErrorKind::aborted, "another rank does not answer");
      return own;
    });
    step();
    state.commit();
    step();
    fails = world.rank() != 0;
    EXPECT_EQ(test::error_of([&] { state.commit(); }).has_value(), fails);
  }

  const Group world, alone;
  const std::unique_ptr<Trainee> trainee;
  State state;
  detail::StateAccess access{state};
  const Data data;
  bool fails = false;
};

// The other ranks do not know that the second commit is complete, and rank 2 dies: rank 1 provides its staged
// parts, including those of rank 2.
TEST_P(ElasticShards, ARankProvidesAStagedCommitThatItHasNotConfirmed) {
  Company company(3);
  std::vector<std::vector<at::Tensor>> values(3);
  on_ranks(company.groups(), [&](const Group& world) {
    const int rank = world.rank();
    OnRank own(GetParam(), world, static_cast<std::uint64_t>(rank));
    const auto survivors = world.split(rank < 2 ? std::optional(0) : std::nullopt).get();
    EXPECT_EQ(own.state.sync(world), 0);
    own.commit_twice();
    own.step();  // this one is lost
    if (!survivors) return;
    own.state.restore();
    EXPECT_EQ(own.state.sync(*survivors), 0);
    EXPECT_EQ(own.state.commits(), 2U);
    own.step();
    values[static_cast<std::size_t>(rank)] = own.trainee->values();
  });
  for (const std::size_t rank : {0, 1}) expect_trained(values[rank], 3);
}

// Only rank 0 knows that the second commit is complete. It is declared dead in the next generation, in which
// nothing is committed, and returns in the one after: at that time its commit has lost the other shards.
TEST_P(ElasticShards, TheCommitOfARankThatMissedAGenerationIsDropped) {
  Company company(3);
  std::vector<std::vector<at::Tensor>> values(3);
  on_ranks(company.groups(), [&](const Group& world) {
    const int rank = world.rank();
    OnRank own(GetParam(), world, static_cast<std::uint64_t>(rank));
    const auto others = world.split(rank > 0 ? std::optional(0) : std::nullopt).get();
    own.access.begin_generation(1);
    EXPECT_EQ(own.state.sync(world), 0);
    own.commit_twice();
    EXPECT_EQ(own.state.commits(), rank == 0 ? 2U : 1U);
    if (others) {
      own.state.restore();
      own.access.begin_generation(2);
      EXPECT_EQ(own.state.sync(*others), std::nullopt);
      own.step();  // this one is lost
    }
    own.state.restore();
    own.access.begin_generation(3);
    EXPECT_EQ(own.state.sync(world), 1);
    EXPECT_EQ(own.state.commits(), 1U);
    own.step();
    values[static_cast<std::size_t>(rank)] = own.trainee->values();
  });
  for (const auto& of_rank : values) expect_trained(of_rank, 2);
}

// Restores after a failure outside of run(). The commit is this rank's own shard.
TEST_P(ElasticShards, RestoreUsesTheOwnShard) {
  on_ranks(2, [&](const Group& world) {
    OnRank own(GetParam(), world, 1);
    own.state.sync(world);
    own.step();
    own.state.commit();
    EXPECT_EQ(test::kind_of([&] { own.state.step([&] { own.step(); }); }),
              rpc::ErrorKind::failed_precondition);
    std::vector<std::vector<at::Tensor>> values;
    for (int again = 0; again < 2; ++again) {
      own.step();
      own.step();
      values.push_back(own.trainee->values());
      own.state.restore();
    }
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(values[0][i], values[1][i]));
  });
}

}  // namespace sharded_part_test
}  // namespace weft::elastic
