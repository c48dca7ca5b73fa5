#include <weft/parallel/elastic/run.h>

#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/testing/wait.h>

#include <array>
#include <atomic>
#include <latch>
#include <memory>

#include "tests/parallel/elastic/training.h"

namespace weft::elastic {
namespace run_test {

using namespace testing;

// A worker: an agent of an elastic world, and a thread that trains.
struct Worker {
  Worker(const test::JobStore& store, const std::string& name, std::size_t number,
         std::chrono::nanoseconds detection = {})
      : job(options(store, name, number, detection), training_layers()), training(number) {}
  void start(RunOptions options) {
    thread.start([this, options = std::move(options)]() mutable {
      const auto on_change = options.on_change;
      options.on_change = [this, on_change](const Change& change) {
        changes.push_back(change);
        if (on_change) on_change(change);
      };
      outcome = run(
          job, training.state,
          [this](const Group& group) { training.train(group, changes.back().generation); }, options);
    });
  }
  rpc::MemberOptions options(const test::JobStore& store, const std::string& name, std::size_t number,
                             std::chrono::nanoseconds detection) {
    rpc::MemberOptions options = worker_options(store, name, number, detection);
    options.log = [this](const rpc::LogRecord& record) {
      if (record.message.find("have continued without this worker") != std::string_view::npos)
        excluded = record.message;
      if (!waits_while.empty() || record.message.find("waits while") == std::string_view::npos) return;
      waits_while = record.message;
      waits.set();
    };
    return options;
  }
  std::optional<Outcome> end() {  // rethrows what run() has thrown
    thread.end();
    return outcome;
  }

  std::string waits_while;  // the log's, before `waits`
  std::string excluded;     // the log's; its thread's, until end()
  test::Event waits;
  rpc::Job job;
  rpc::Agent& agent = job.agent();
  Trained training;
  std::vector<Change> changes;  // its thread's, until end()
  std::optional<Outcome> outcome;
  WorkerThread thread;
};

class ElasticRun : public ::testing::Test {
 protected:
  ~ElasticRun() override {
    // The agent of the host ends last, because the other agents use its store when they leave.
    while (workers.size() > 1) workers.pop_back();
  }
  Worker& worker(const std::string& name) {
    Worker& made = *workers.emplace_back(std::make_unique<Worker>(store, name, workers.size(), detection));
    made.training.log = [this](const Step& step) { log.add(step); };
    return made;
  }
  // The first worker starts another one in a step of so many ranks, and waits until it is ready.
  void starts_in(std::int64_t step, int ranks, Worker& other, const RunOptions& options = {}) {
    workers[0]->training.before_step = [this, step, ranks, &other, options](std::int64_t now,
                                                                            const Group& group) {
      if (now != step || group.size() != ranks || other.thread.started()) return;
      other.start(options);
      await_ready(workers[0]->job, other.agent.name());
    };
  }
  // Expects that these workers have trained to the end.
  void expect_finished(const std::vector<std::size_t>& numbers) {
    for (const std::size_t number : numbers) EXPECT_EQ(workers[number]->end(), Outcome::finished);
  }
  static std::vector<std::uint64_t> generations(const Worker& worker) {
    std::vector<std::uint64_t> numbers;
    for (const Change& change : worker.changes) numbers.push_back(change.generation);
    return numbers;
  }
  // The worker's agent dies during a step, without an announcement.
  static void dies_at(Worker& worker, std::int64_t step) {
    worker.training.before_step = [&worker, step](std::int64_t now, const Group&) {
      if (now == step) die(worker.agent);
    };
  }

  const RunOptions three{.workers = {.min = 2, .start = 3}};
  std::chrono::nanoseconds detection{0};  // of further workers; 0: the default
  test::InProcessJobStore store;
  Log log;
  std::vector<std::unique_ptr<Worker>> workers;
};

using Names = std::vector<std::string>;

TEST_F(ElasticRun, TrainsAsOneProcessDoes) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  for (auto& each : workers) each->start(three);
  for (auto& each : workers) EXPECT_EQ(each->end(), Outcome::finished);
  log.expect_replay(0, *workers[1]->training.model);
  for (const auto& each : workers) {
    ASSERT_EQ(each->changes.size(), 1U);
    EXPECT_EQ(each->changes[0].joined, (Names{"anna", "bert", "cleo"}));
    EXPECT_EQ(each->changes[0].synced_from, 0);
  }
}

TEST_F(ElasticRun, SurvivorsContinueFromTheLastCommit) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  dies_at(*workers[1], 7);
  for (auto& each : workers) each->start(three);
  EXPECT_THROW(workers[1]->end(), Died);
  expect_finished({0, 2});
  log.expect_replay(0, *workers[2]->training.model);
  // three workers computed it, and it was lost, because the last commit was after step 5
  EXPECT_EQ(log.of_step(6).size(), 2U);
  EXPECT_EQ(log.of_step(5).size(), 3U);
  const Change& change = workers[2]->changes.back();
  EXPECT_EQ(change.gone, Names{"bert"});
  EXPECT_EQ(change.joined, Names{});
  EXPECT_EQ(change.group.members(), (Names{"anna", "cleo"}));
  EXPECT_EQ(change.synced_from, std::nullopt);  // both have that commit
}

TEST_F(ElasticRun, AWorkerJoinsAtACommit) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  starts_in(5, 2, dora);
  for (const int first : {0, 1}) workers[first]->start({.workers = {.min = 2}});
  expect_finished({0, 1});
  EXPECT_EQ(dora.end(), Outcome::finished);
  log.expect_replay(0, *dora.training.model);
  std::int64_t first = 0;
  while (log.of_step(first).size() == 2) ++first;
  EXPECT_GE(first, 6);
  EXPECT_EQ(first % 2, 0);  // after a commit, so no step was repeated
  ASSERT_EQ(dora.changes.size(), 1U);
  EXPECT_EQ(dora.changes[0].group.rank(), 2);
  EXPECT_EQ(dora.changes[0].synced_from, 0);
  EXPECT_EQ(workers[1]->changes.back().joined, Names{"dora"});
}

// The worker that joins constructs its model with the parameters frozen that the others have unfrozen.
TEST_F(ElasticRun, AWorkerJoinsAfterUnfreezing) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  for (auto& each : workers) {
    const auto model = each->training.model;
    model->first.requires_grad_(false);
    each->training.before_step = [&, model, starts = each == workers[0]](std::int64_t step,
                                                                         const Group& group) {
      freeze_and_unfreeze(step, *model);
      if (!starts || step != 5 || group.size() != 2) return;
      dora.start({});
      await_ready(workers[0]->job, "dora");
    };
  }
  for (const int first : {0, 1}) workers[first]->start({.workers = {.min = 2}});
  expect_finished({0, 1, 2});
  Net model(0);
  log.expect_replay(model, epochs, {}, freeze_and_unfreeze);
  expect_values(model, *dora.training.model);
  EXPECT_EQ(dora.changes[0].group.size(), 3);
}

TEST_F(ElasticRun, ADepartureCausesNoSync) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  Worker& bert = *workers[1];
  bert.training.before_step = [&](std::int64_t step, const Group&) {
    if (step == 4) bert.training.state.leave();
  };
  for (auto& each : workers) each->start(three);
  EXPECT_EQ(bert.end(), Outcome::left);
  expect_finished({0, 2});
  log.expect_replay(0, *workers[2]->training.model);
  EXPECT_EQ(log.of_step(5).size(), 3U);  // the commit after which the worker left
  EXPECT_EQ(log.of_step(6).size(), 2U);
  EXPECT_EQ(workers[2]->changes.back().gone, Names{"bert"});
  EXPECT_EQ(workers[2]->changes.back().synced_from, std::nullopt);
}

// The worker leaves before it starts, as after a SIGTERM while it waits to join the job.
TEST_F(ElasticRun, AWorkerThatStopsBeforeItTrainsDoesNotTrain) {
  Worker& anna = worker("anna");
  anna.training.state.leave();
  anna.start({});
  EXPECT_EQ(anna.end(), Outcome::left);
  EXPECT_TRUE(anna.changes.empty());
  anna.start({});  // leave() applied to one run() only
  EXPECT_EQ(anna.end(), Outcome::finished);
}

// One worker leaves, which only that worker knows, while another one joins, which only a third worker knows.
// Horovod's ranks would then disagree about the sync (issue 3494).
TEST_F(ElasticRun, RanksThatSeeDifferentChangesAgreeOnTheSync) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  Worker& dora = worker("dora");
  starts_in(4, 3, dora);
  workers[1]->training.before_step = [&](std::int64_t step, const Group&) {
    if (step == 5) workers[1]->training.state.leave();
  };
  for (const int first : {0, 1, 2}) workers[first]->start(three);
  EXPECT_EQ(workers[1]->end(), Outcome::left);
  expect_finished({0, 2, 3});
  log.expect_replay(0, *dora.training.model);
  for (const int other : {0, 2, 3}) {
    EXPECT_EQ(workers[other]->changes.back().group.members(), (Names{"anna", "cleo", "dora"}));
    EXPECT_EQ(workers[other]->changes.back().synced_from, 0);
  }
}

// A rank that has failed before its commit gets the commit of the others.
TEST_F(ElasticRun, AllRanksGetTheStateOfTheMostAdvancedSurvivor) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  bool failed = false;
  for (auto& each : workers) each->training.commit_interval = 1;
  workers[0]->training.after_step = [&](const Step& step, const Group&) {
    if (step.step == 8 && !std::exchange(failed, true))
      throw rpc::Error(ErrorKind::unavailable, "what this rank alone needs is not there");
  };
  for (auto& each : workers) each->start(three);
  for (auto& each : workers) EXPECT_EQ(each->end(), Outcome::finished);
  log.expect_replay(0, *workers[0]->training.model);
  for (const auto& each : workers) {
    EXPECT_EQ(generations(*each), (std::vector<std::uint64_t>{1, 2}));
    EXPECT_EQ(each->changes.back().synced_from, 1);
    EXPECT_EQ(each->changes.back().group.members(), (Names{"anna", "bert", "cleo"}));
  }
  EXPECT_EQ(log.of_step(8).front().generation, 1U);
}

TEST_F(ElasticRun, WaitsBelowTheMinimumForAnotherWorker) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  dies_at(*workers[1], 7);
  const RunOptions two{.workers = {.min = 2}};
  for (const int first : {0, 1}) workers[first]->start(two);
  EXPECT_THROW(workers[1]->end(), Died);
  dora.start(two);
  EXPECT_EQ(dora.end(), Outcome::finished);
  EXPECT_EQ(workers[0]->end(), Outcome::finished);
  log.expect_replay(0, *workers[0]->training.model);
  EXPECT_EQ(dora.changes[0].group.members(), (Names{"anna", "dora"}));
  EXPECT_EQ(dora.changes[0].synced_from, 0);
}

// The worker was ready when the others agreed on a generation with it, but it never joins the group.
TEST_F(ElasticRun, AWorkerThatLeavesBeforeTheGroupIsFormedIsSkipped) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& cleo = worker("cleo");
  for (const int other : {0, 1}) workers[other]->start(three);
  cleo.job.join().get();
  const auto store_of_job = cleo.job.store();
  const std::string key = "elastic/train/ready/cleo";
  store_of_job->set(key, std::to_string(cleo.agent.id().incarnation) + " 2").get();
  store_of_job->get("elastic/train/generation", {.timeout = std::chrono::seconds{60}}).get();
  store_of_job->remove(key).get();
  expect_finished({0, 1});
  log.expect_replay(0, *workers[1]->training.model);
  EXPECT_EQ(workers[1]->changes.at(0).group.members(), (Names{"anna", "bert"}));
  EXPECT_EQ(workers[1]->changes.at(0).generation, 2U);
}

// The same with a death that the store does not detect: the lease is longer than the test.
TEST_F(ElasticRun, AWorkerThatDiesBeforeTheGroupIsFormedIsSkipped) {
  const test::FileJobStore file;
  Worker anna(file, "anna", 0), bert(file, "bert", 1), cleo(file, "cleo", 2);
  for (Worker* each : {&anna, &bert}) {
    each->training.log = [this](const Step& step) { log.add(step); };
    each->start(three);
  }
  cleo.job.join().get();
  const auto store_of_job = cleo.job.store();
  store_of_job->set("elastic/train/ready/cleo", std::to_string(cleo.agent.id().incarnation) + " 2").get();
  store_of_job->get("elastic/train/generation", {.timeout = std::chrono::seconds{60}}).get();
  cleo.agent.shut_down();
  for (Worker* each : {&anna, &bert}) EXPECT_EQ(each->end(), Outcome::finished);
  log.expect_replay(0, *bert.training.model);
  EXPECT_EQ(bert.changes.at(0).group.members(), (Names{"anna", "bert"}));
}

TEST_F(ElasticRun, AWorkerThatJoinsAfterTheEndFindsItFinished) {
  worker("anna").start({});
  EXPECT_EQ(workers[0]->end(), Outcome::finished);
  Worker& dora = worker("dora");
  dora.start({});
  EXPECT_EQ(dora.end(), Outcome::finished);
  EXPECT_TRUE(dora.changes.empty());
}

TEST_F(ElasticRun, AWorkerOfAFinishedTrainingLogsThatItDoesNotTrain) {
  Worker& anna = worker("anna");
  anna.start({});
  EXPECT_EQ(anna.end(), Outcome::finished);
  std::atomic<int> warnings = 0;
  rpc::MemberOptions options = worker_options(store, "bert", 1);
  options.log = [&](const rpc::LogRecord& record) {
    warnings += record.level == rpc::LogLevel::warning &&
                record.message ==
                    "elastic training 'train' has already finished in this store: run() returns without "
                    "training; another training needs a new store";
  };
  rpc::Job job(options, training_layers());
  Trained training(1);
  EXPECT_EQ(run(job, training.state, [](const Group&) { ADD_FAILURE(); }, {}), Outcome::finished);
  EXPECT_EQ(warnings, 1);
}

TEST_F(ElasticRun, FailsBelowTheMinimumAfterItsPatience) {
  Worker& anna = worker("anna");
  anna.start({.workers = {.min = 2}, .patience = std::chrono::milliseconds{20}});
  test::expect_error([&] { return anna.end(); }, ErrorKind::deadline_exceeded,
                     "1 worker is ready, expected at least 2");
}

TEST(LauncherLimits, AreTheDefaultOfRun) {
  EXPECT_EQ(launcher_limits().min, 0U);
  ::setenv("WEFT_MIN_WORKERS", "2", 1);
  ::setenv("WEFT_MAX_WORKERS", "4", 1);
  const WorkerLimits set = WorkerLimits{.start = 3}.or_else(launcher_limits());
  EXPECT_EQ(set.min, 2U);
  EXPECT_EQ(set.start, 3U);
  EXPECT_EQ(set.max, 4U);
  ::setenv("WEFT_MAX_WORKERS", "4x", 1);
  EXPECT_EQ(test::kind_of([] { launcher_limits(); }), ErrorKind::invalid_argument);
  ::unsetenv("WEFT_MIN_WORKERS");
  ::unsetenv("WEFT_MAX_WORKERS");
}

// Workers whose program hangs, while their agents answer.
class ElasticHang : public ElasticRun {
 protected:
  ElasticHang() {
    detection = std::chrono::seconds{2};
    for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  }
  ~ElasticHang() override { resumes.set(); }
  // From that step on, this worker waits for `resumes`.
  void hangs_at(Worker& worker, std::int64_t step) {
    worker.training.before_step = [this, step](std::int64_t now, const Group&) {
      if (now == step && !std::exchange(hung, true)) resumes.wait();
    };
  }
  const RunOptions soon{.workers = {.min = 2, .start = 3}, .hang = std::chrono::seconds{4}};
  bool hung = false;
  test::Event resumes;
};

TEST_F(ElasticHang, TheOthersContinueWithoutAWorkerThatHangs) {
  hangs_at(*workers[1], 7);
  for (auto& each : workers) each->start(soon);
  expect_finished({0, 2});
  log.expect_replay(0, *workers[2]->training.model);
  EXPECT_EQ(workers[2]->changes.back().gone, Names{"bert"});
  const auto text =
      workers[0]->job.store()->try_get(std::string(rpc::membership_keys::excluded) + "bert").get();
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->starts_with(std::to_string(workers[1]->agent.id().incarnation) + " 'bert' does not form"))
      << *text;
  // They have waited in a group of the replica before, and do not wait as long again.
  EXPECT_LT(std::stod(text->substr(text->find("waited for ") + 11)), 4) << *text;
  resumes.set();
  EXPECT_EQ(workers[1]->end(), Outcome::finished);
}

TEST_F(ElasticHang, AWorkerThatResumesJoinsAgain) {
  hangs_at(*workers[1], 7);
  workers[0]->training.before_step = [this](std::int64_t step, const Group& group) {
    if (step != 8 || group.size() != 2) return;
    resumes.set();
    await_ready(workers[0]->job, "bert");
  };
  for (auto& each : workers) each->start(soon);
  expect_finished({0, 1, 2});
  log.expect_replay(0, *workers[1]->training.model);
  EXPECT_EQ(workers[0]->changes.back().group.size(), 3);
  EXPECT_NE(workers[1]->excluded.find("'bert' does not form the group of generation 2"), std::string::npos)
      << workers[1]->excluded;
  EXPECT_EQ(workers[0]->job.store()->try_get(std::string(rpc::membership_keys::excluded) + "bert").get(),
            std::nullopt);
}

// Another failure comes first: the next group waits for the worker that hangs.
TEST_F(ElasticHang, AWorkerThatHangsIsExcludedAfterTheDeathOfAnother) {
  worker("dora");
  hangs_at(*workers[1], 6);
  workers[3]->training.before_step = [this](std::int64_t step, const Group&) {
    if (step == 6) die(workers[3]->agent);
  };
  RunOptions four = soon;
  four.workers.start = 4;
  for (auto& each : workers) each->start(four);
  EXPECT_THROW(workers[3]->end(), Died);
  expect_finished({0, 2});
  log.expect_replay(0, *workers[2]->training.model);
  resumes.set();
  EXPECT_EQ(workers[1]->end(), Outcome::finished);
}

TEST_F(ElasticHang, AWorkerThatWaitsOutsideLosesItsPatienceIfTheOthersHang) {
  Worker& dora = worker("dora");
  for (const int first : {0, 1, 2})
    workers[first]->training.before_step = [&, first](std::int64_t step, const Group& group) {
      if (step != 3 || group.size() != 3) return;
      if (first == 0) {
        RunOptions impatient = soon;
        impatient.patience = std::chrono::seconds{1};
        dora.start(impatient);
        test::expect_error(
            [&] { return dora.end(); }, ErrorKind::deadline_exceeded,
            "this worker waits while anna, bert, cleo train; if they have died, it waits until "
            "their leases end; they have made no progress for 1 s (RunOptions::patience)");
        resumes.set();
      }
      resumes.wait();
    };
  RunOptions patient = soon;
  patient.hang = std::chrono::minutes{1};
  for (const int first : {0, 1, 2}) workers[first]->start(patient);
  expect_finished({0, 1, 2});
}

TEST_F(ElasticHang, AHangShorterThanTheDetectionTimeIsRefused) {
  workers[0]->start({.hang = std::chrono::milliseconds{1500}});
  test::expect_error([&] { return workers[0]->end(); }, ErrorKind::invalid_argument,
                     "elastic::run: RunOptions::hang is 1.5 s, expected at least 2 s");
}

TEST_F(ElasticRun, SparesReplaceWorkersInTheirOrder) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  starts_in(1, 2, dora, {.workers = {.min = 2, .max = 2}});
  dies_at(*workers[1], 9);
  for (const int first : {0, 1}) workers[first]->start({.workers = {.min = 2, .max = 2}});
  EXPECT_THROW(workers[1]->end(), Died);
  EXPECT_EQ(workers[0]->end(), Outcome::finished);
  EXPECT_EQ(dora.end(), Outcome::finished);
  log.expect_replay(0, *workers[0]->training.model);
  EXPECT_EQ(generations(*workers[0]), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(dora.changes[0].group.members(), (Names{"anna", "dora"}));
}

// --- State::step() ---

class ElasticSteps : public ElasticRun {
 protected:
  Worker& worker(const std::string& name) {
    Worker& made = ElasticRun::worker(name);
    made.training.transactions = true;
    return made;
  }
  // The victim dies when all others are in the same step. They have the result of the previous vote.
  void dies_in(Worker& victim, std::int64_t step) {
    const auto begun = std::make_shared<std::latch>(std::ptrdiff_t(workers.size()) - 1);
    for (auto& each : workers) {
      if (each.get() == &victim) continue;
      each->training.before_step = [before = each->training.before_step, begun, step](std::int64_t now,
                                                                                      const Group& group) {
        if (before) before(now, group);
        if (now == step && !begun->try_wait()) begun->count_down();
      };
    }
    victim.training.before_step = [&victim, begun, step](std::int64_t now, const Group&) {
      if (now != step) return;
      begun->wait();
      die(victim.agent);
    };
  }
  // At the beginning of step 5 all workers know the joining worker, so it can join after that step.
  void start_in_step_5(Worker& joining, const RunOptions& options) {
    for (auto& each : workers) {
      if (each.get() == &joining) continue;
      each->training.before_step = [&each = *each, &joining, options](std::int64_t step, const Group& group) {
        if (step != 5 || group.size() != 2) return;
        if (group.rank() == 0 && !joining.thread.started()) joining.start(options);
        await_ready(each.job, joining.agent.name());
      };
    }
  }
  // A ready worker joins once the boards of the others have received its record.
  std::int64_t first_step_of_three() const {
    std::int64_t first = 0;
    while (log.of_step(first).size() == 2) ++first;
    return first;
  }
};

TEST_F(ElasticSteps, SurvivorsLoseOnlyTheStepInFlight) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  dies_in(*workers[1], 7);
  for (auto& each : workers) each->start(three);
  EXPECT_THROW(workers[1]->end(), Died);
  expect_finished({0, 2});
  log.expect_replay(0, *workers[2]->training.model);
  EXPECT_EQ(log.of_step(6).size(), 3U);
  EXPECT_EQ(log.of_step(7).size(), 2U);
  EXPECT_EQ(workers[2]->changes.back().synced_from, std::nullopt);
  EXPECT_EQ(generations(*workers[0]), (std::vector<std::uint64_t>{1, 2}));
}

TEST_F(ElasticSteps, AWorkerJoinsAfterAnyStep) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  start_in_step_5(dora, {});
  for (const int first : {0, 1}) workers[first]->start({.workers = {.min = 2}});
  expect_finished({0, 1, 2});
  log.expect_replay(0, *dora.training.model);
  EXPECT_GE(first_step_of_three(), 6);
  EXPECT_EQ(dora.changes[0].synced_from, 0);
}

// A worker that dies in the step that unfreezes parameters, when another worker has not unfrozen them yet.
TEST_F(ElasticSteps, AWorkerJoinsAndAnotherOneDiesWhileParametersAreUnfrozen) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  start_in_step_5(dora, {});
  for (auto& each : workers) {
    const auto model = each->training.model;
    model->first.requires_grad_(false);
    each->training.before_step = [&each = *each, before = each->training.before_step, model](
                                     std::int64_t step, const Group& group) {
      if (before) before(step, group);
      if (step == 10 && each.agent.name() == "bert") die(each.agent);
      freeze_and_unfreeze(step, *model);
    };
  }
  for (const int first : {0, 1}) workers[first]->start({.workers = {.min = 2}});
  EXPECT_THROW(workers[1]->end(), Died);
  expect_finished({0, 2});
  Net model(0);
  log.expect_replay(model, epochs, {}, freeze_and_unfreeze);
  expect_values(model, *dora.training.model);
}

TEST_F(ElasticSteps, ASpareTakesOverWithoutTheLossOfAStep) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  const RunOptions two{.workers = {.min = 2, .max = 2}};
  RunOptions soon_logged = two;
  soon_logged.patience = std::chrono::seconds{6};
  dies_in(*workers[1], 9);
  Worker& spare = worker("dora");
  workers[0]->training.before_step = [&, before = workers[0]->training.before_step](std::int64_t step,
                                                                                    const Group& group) {
    before(step, group);
    if (step != 1 || spare.thread.started()) return;
    spare.start(soon_logged);
    await_ready(workers[0]->job, "dora");
    spare.waits.wait();
  };
  for (const int first : {0, 1}) workers[first]->start(two);
  EXPECT_THROW(workers[1]->end(), Died);
  EXPECT_EQ(workers[0]->end(), Outcome::finished);
  EXPECT_EQ(spare.end(), Outcome::finished);
  log.expect_replay(0, *workers[0]->training.model);
  EXPECT_EQ(log.of_step(8).front().generation, 1U);
  EXPECT_EQ(log.of_step(9).size(), 2U);
  EXPECT_EQ(log.of_step(9).front().generation, 2U);
  EXPECT_EQ(spare.changes[0].group.members(), (Names{"anna", "dora"}));
  EXPECT_EQ(spare.waits_while,
            "elastic training 'train': this worker waits while anna, bert train; if they have died, it waits "
            "until their leases end");
}

// Cleo fails while it applies step 7, which the others have applied.
TEST_F(ElasticSteps, ARankThatFailsWhileItAppliesAStepGetsTheStepOfTheOthers) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  bool failed = false;
  workers[2]->training.after_step = [&](const Step& step, const Group&) {
    if (step.step == 7 && !std::exchange(failed, true)) throw rpc::Error(ErrorKind::unavailable, "disk full");
  };
  for (auto& each : workers) each->start(three);
  for (auto& each : workers) EXPECT_EQ(each->end(), Outcome::finished);
  log.expect_replay(0, *workers[2]->training.model);
  EXPECT_EQ(log.of_step(7).front().generation, 1U);
  EXPECT_EQ(log.of_step(8).front().generation, 2U);
  EXPECT_EQ(workers[2]->changes.back().synced_from, 0);
}

TEST_F(ElasticSteps, AVetoOfOneRankHoldsForAll) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  std::array<std::vector<bool>, 2> applied;
  std::array<std::int64_t, 2> calls{};
  for (const std::size_t i : {0U, 1U}) {
    Worker& each = *workers[i];
    each.thread.start([&, i] {
      each.outcome =
          run(each.job, each.training.state,
              [&](const Group& group) {
                for (int step = 0; step < 4; ++step)
                  applied[i].push_back(each.training.state.step([&] { ++calls[i]; }, group.rank() != step));
              },
              {.workers = {.min = 2}});
    });
  }
  for (auto& each : workers) EXPECT_EQ(each->end(), Outcome::finished);
  for (const std::size_t i : {0U, 1U}) {
    EXPECT_EQ(applied[i], (std::vector{false, false, true, true}));
    EXPECT_EQ(calls[i], 2);
  }
}

// A part of the state that arrives on the new worker once the others are in the next step.
class InTransit : public StatePart {
 public:
  explicit InTransit(std::latch& next_step) : next_step_(next_step) {}
  std::string kind() const override { return "in transit"; }
  void commit() override {}
  void restore() override {}
  void sync(const Group&, int) override {}
  std::function<void()> sync_later(const Group& group, const SyncPlan& plan) override {
    if (plan.later.at(0).to != group.rank()) return {};
    return [this] { next_step_.wait(); };
  }

 private:
  std::latch& next_step_;
};

class ElasticTransfers : public ElasticSteps {
 protected:
  Worker& worker(const std::string& name) {
    Worker& made = ElasticSteps::worker(name);
    made.training.ddp_options.init_sync = false;
    part = std::make_shared<InTransit>(next_step);
    made.training.state.add("part", part);
    return made;
  }
  // Dora joins after step 5 of the others or later.
  void start(Worker& dora) {
    start_in_step_5(dora, {.sync_later = true});
    for (const int first : {0, 1})
      workers[first]->training.before_step = [this, first, before = workers[first]->training.before_step](
                                                 std::int64_t step, const Group& group) {
        before(step, group);
        if (group.size() == 3 && !std::exchange(counted[first], true)) next_step.count_down();
      };
    for (const int first : {0, 1}) workers[first]->start({.workers = {.min = 2}, .sync_later = true});
  }
  std::latch next_step{2};
  std::array<bool, 2> counted{};
  std::shared_ptr<StatePart> part;
};

TEST_F(ElasticTransfers, AWorkerReceivesTheStateWhileTheOthersTrain) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  start(dora);
  for (auto& each : workers) EXPECT_EQ(each->end(), Outcome::finished);
  log.expect_replay(0, *dora.training.model);
  const std::int64_t joined = first_step_of_three();
  ASSERT_EQ(log.of_step(joined).size(), 3U);
  for (const Step& step : log.of_step(joined)) EXPECT_EQ(step.indices.empty(), step.rank == 2);
  EXPECT_EQ(dora.changes[0].synced_from, 0);
  EXPECT_EQ(dora.training.state.commits(), workers[0]->training.state.commits());
}

TEST_F(ElasticTransfers, ADeathBeforeTheStateArrivesDoesNotInterruptTheOthers) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  Worker& dora = worker("dora");
  dora.training.before_step = [&](std::int64_t, const Group&) { die(dora.agent); };
  start(dora);
  expect_finished({0, 1});
  EXPECT_THROW(dora.end(), Died);
  log.expect_replay(0, *workers[1]->training.model);
  for (std::int64_t step = 0; step < workers[0]->training.step; ++step)
    EXPECT_EQ(log.of_step(step).size(), 2U);
}

// DiLoCo: each worker makes inner steps alone, and the ranks share them in rounds of three.
class ElasticRounds : public ElasticRun {
 protected:
  std::atomic<std::uint64_t> rounds = 6;
  static void inner_step(Net& model, torch::optim::Optimizer& optimizer, const Data& data, std::int64_t row) {
    optimizer.zero_grad();
    at::mse_loss(model.forward(data.x.narrow(0, row, 5)), data.y.narrow(0, row, 5)).backward();
    optimizer.step();
  }
  struct Rounds {
    explicit Rounds(std::size_t number) : model(std::make_shared<Net>(number)), row(std::int64_t(number)) {
      state.add("outer", outer).add("model", model, Scope::rank).add("inner", inner, Scope::rank);
    }
    std::shared_ptr<Net> model;
    torch::optim::SGD inner{model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)};
    data_parallel::LocalSgd outer{model->parameters(),
                                  {.interval = 3, .outer_optimizer = data_parallel::nesterov()}};
    State state;
    std::int64_t row = 0;
    const Data data;
    std::map<std::uint64_t, std::vector<std::int64_t>> log = {};  // the rows of the inner steps, by round
    std::function<void()> before_step;
  };
  void start(std::size_t number, RunOptions options) {
    Worker& each = *workers[number];
    Rounds& training = *trained.at(number);
    each.thread.start([this, &each, &training, options] {
      each.outcome = run(
          each.job, training.state,
          [&](const Group& group) {
            while (training.outer.rounds() < rounds) {
              if (training.before_step) training.before_step();
              training.row = (training.row * 7 + 3) % 45;
              inner_step(*training.model, training.inner, training.data, training.row);
              training.log[training.outer.rounds()].push_back(training.row);
              if (!training.outer.step()) continue;
              training.outer.reduce(group).get();
              training.state.step([&] { training.outer.apply(); });
            }
          },
          options);
    });
  }
  // Computes the outer parameters after all rounds in one thread, from the logs.
  std::vector<at::Tensor> replay() {
    std::vector<std::unique_ptr<Net>> nets;
    std::vector<std::unique_ptr<torch::optim::SGD>> inner;
    for (std::size_t i = 0; i < trained.size(); ++i) {
      nets.push_back(std::make_unique<Net>(0));
      inner.push_back(std::make_unique<torch::optim::SGD>(nets[i]->parameters(),
                                                          torch::optim::SGDOptions(0.05).momentum(0.9)));
    }
    std::vector<at::Tensor> outer, momenta(2);
    for (const at::Tensor& parameter : nets[0]->parameters()) outer.push_back(parameter.detach().clone());
    for (std::uint64_t round = 0; round < rounds; ++round) {
      std::vector<std::size_t> members;
      for (std::size_t i = 0; i < trained.size(); ++i) {
        if (!trained[i]->log.contains(round)) continue;
        if (round > 0 && !trained[i]->log.contains(round - 1)) {  // it has joined
          const torch::NoGradGuard no_grad;
          for (std::size_t p = 0; p < outer.size(); ++p) nets[i]->parameters()[p].copy_(outer[p]);
        }
        if (trained[i]->log.at(round).size() < 3) continue;  // it has died
        members.push_back(i);
        for (const std::int64_t row : trained[i]->log.at(round))
          inner_step(*nets[i], *inner[i], trained[i]->data, row);
      }
      const torch::NoGradGuard no_grad;
      for (std::size_t p = 0; p < outer.size(); ++p) {
        at::Tensor gradient = at::zeros_like(outer[p]);
        for (const std::size_t i : members)
          gradient += (outer[p] - nets[i]->parameters()[p]) / static_cast<double>(members.size());
        momenta[p] = momenta[p].defined() ? 0.9 * momenta[p] + gradient : gradient;
        outer[p] = outer[p] - 0.7 * (gradient + 0.9 * momenta[p]);
        for (const std::size_t i : members) nets[i]->parameters()[p].copy_(outer[p]);
      }
    }
    return outer;
  }
  void expect_replay(const Rounds& training) {
    const auto expected = replay();
    for (std::size_t p = 0; p < expected.size(); ++p)
      EXPECT_TRUE(at::allclose(training.model->parameters()[p], expected[p], 1e-9, 1e-12));
  }
  std::vector<std::unique_ptr<Rounds>> trained;
};

TEST_F(ElasticRounds, SurvivorsOfARoundKeepTheirInnerSteps) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  for (std::size_t i = 0; i < 3; ++i) trained.push_back(std::make_unique<Rounds>(i));
  trained[1]->before_step = [&] {
    if (trained[1]->outer.rounds() == 3 && trained[1]->outer.steps() == 2) die(workers[1]->agent);
  };
  for (std::size_t i = 0; i < 3; ++i) start(i, three);
  EXPECT_THROW(workers[1]->end(), Died);
  expect_finished({0, 2});
  for (const std::size_t survivor : {0U, 2U}) {
    EXPECT_EQ(trained[survivor]->log.at(3).size(), 6U);  // the failed attempt and the successful one
    expect_replay(*trained[survivor]);
  }
}

// The ranks make equally many inner steps in the successful attempt.
TEST_F(ElasticRounds, ARankThatFailsWithinARoundRepeatsIt) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  for (std::size_t i = 0; i < 2; ++i) trained.push_back(std::make_unique<Rounds>(i));
  bool failed = false;
  trained[1]->before_step = [&] {
    if (trained[1]->outer.rounds() == 2 && trained[1]->outer.steps() == 1 && !std::exchange(failed, true))
      throw rpc::Error(ErrorKind::unavailable, "the data's server is gone");
  };
  for (std::size_t i = 0; i < 2; ++i) start(i, {.workers = {.min = 2}});
  for (auto& each : workers) EXPECT_EQ(each->end(), Outcome::finished);
  EXPECT_EQ(trained[1]->log.at(2).size(), 1U + 3U);
  for (const auto& each : trained) expect_replay(*each);
}

TEST_F(ElasticRounds, AWorkerJoinsAfterARoundWithTheOuterParameters) {
  for (const std::string name : {"anna", "bert", "dora"}) worker(name);
  for (std::size_t i = 0; i < 3; ++i) trained.push_back(std::make_unique<Rounds>(i));
  bool started = false;
  trained[0]->before_step = [&] {
    if (trained[0]->outer.rounds() != 2 || std::exchange(started, true)) return;
    start(2, {});
    await_ready(workers[0]->job, "dora");
  };
  // The others train until the worker has joined, which may take several rounds.
  rounds = 1000;
  trained[2]->before_step = [&] {
    if (rounds == 1000) rounds = trained[2]->outer.rounds() + 2;
  };
  for (const std::size_t first : {0U, 1U}) start(first, {.workers = {.min = 2}});
  for (auto& each : workers) EXPECT_EQ(each->end(), Outcome::finished);
  ASSERT_EQ(trained[2]->log.size(), 2U);
  EXPECT_GE(trained[2]->log.begin()->first, 3U);
  for (const auto& each : trained) expect_replay(*each);
}

// --- learning rates that follow the number of workers ---

class ElasticRates : public ElasticRun, public ::testing::WithParamInterface<StepEnd> {};
INSTANTIATE_TEST_SUITE_P(Ends, ElasticRates, ::testing::ValuesIn(step_ends),
                         [](const auto& info) { return info.param.name; });

// Dora joins. In the warm-up Bert fails, after a step that is not committed, and then dies. The replay has
// the same number of ranks in each step, and no failures.
TEST_P(ElasticRates, EqualThoseOfAnUndisturbedRun) {
  const LearningRateScale scale{.workers = 2, .warm_up = 8};
  RunOptions options{.workers = {.min = 2}, .sync_later = GetParam().later};
  for (const std::string name : {"anna", "bert", "dora"}) {
    Trained& training = worker(name).training;
    training.scale = scale;
    training.state.add("scale", *training.scale);
    training.transactions = GetParam().steps;
    training.ddp_options.init_sync = !GetParam().later;
  }
  Worker &anna = *workers[0], &bert = *workers[1], &dora = *workers[2];
  std::map<std::int64_t, double> rates;  // of Anna
  std::int64_t joined = -1;              // the first step of three
  bool failed = false;
  anna.training.before_step = [&](std::int64_t step, const Group& group) {
    if (step != 5 || group.size() != 2) return;
    dora.start(options);
    await_ready(anna.job, "dora");
  };
  anna.training.after_step = [&](const Step& step, const Group&) {
    rates[step.step] = anna.training.optimizer.param_groups()[0].options().get_lr();
  };
  bert.training.before_step = [&](std::int64_t step, const Group& group) {
    if (step == 5 && group.size() == 2) await_ready(bert.job, "dora");
    if (group.size() != 3) return;
    if (joined < 0) joined = step;
    if (step == joined + 3 && !std::exchange(failed, true))
      throw rpc::Error(ErrorKind::unavailable, "the data's server is gone");
    if (step == joined + 5) die(bert.agent);
  };
  for (const int first : {0, 1}) workers[first]->start(options);
  EXPECT_THROW(bert.end(), Died);
  for (Worker* const each : {&anna, &dora}) EXPECT_EQ(each->end(), Outcome::finished);
  log.expect_replay(0, *dora.training.model, scale);
  for (const auto& [step, rate] : rates) {
    const std::int64_t since = step - joined;
    const bool is_warm_up = since >= 0 && log.of_step(step).size() == 3;
    EXPECT_DOUBLE_EQ(rate, learning_rate * (is_warm_up ? 1 + 0.5 * double(since) / 8 : 1)) << "step " << step;
  }
  EXPECT_EQ(log.of_step(joined + 3).front().generation, 3U);
  EXPECT_EQ(log.of_step(joined + 5).size(), 2U);
  EXPECT_EQ(dora.training.scale->steps, anna.training.scale->steps);
}

TEST_F(ElasticRun, AnExceptionOfTheProgramEndsOnlyThatWorker) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  workers[1]->training.before_step = [](std::int64_t step, const Group&) {
    if (step == 5) throw std::logic_error("a fault of the program");
  };
  for (auto& each : workers) each->start(three);
  EXPECT_THROW(workers[1]->end(), std::logic_error);
  expect_finished({0, 2});
  log.expect_replay(0, *workers[0]->training.model);
  EXPECT_EQ(workers[0]->changes.back().gone, Names{"bert"});
}

TEST_F(ElasticRun, APersistentErrorIsThrown) {
  Worker& anna = worker("anna");
  int tries = 0;
  anna.training.before_step = [&](std::int64_t step, const Group&) {
    if (step != 3) return;
    ++tries;
    throw rpc::Error(ErrorKind::unavailable, "the data's server is gone");
  };
  anna.start({});
  test::expect_error([&] { return anna.end(); }, "the data's server is gone");
  EXPECT_EQ(tries, 3);
}

TEST_F(ElasticRun, ChangesAreLimited) {
  Worker& anna = worker("anna");
  anna.training.commit_interval = 1;
  anna.training.after_step = [](const Step&, const Group&) {
    throw rpc::Error(ErrorKind::unavailable, "every step fails once");
  };
  anna.training.before_step = [&](std::int64_t, const Group&) { anna.training.state.commit(); };
  anna.start({.max_changes = 5});
  EXPECT_EQ(test::kind_of([&] { return anna.end(); }), ErrorKind::resource_exhausted);
  EXPECT_EQ(anna.changes.size(), 6U);
}

TEST_F(ElasticRun, WorkersWithDifferentStatesAreRefused) {
  for (const std::string name : {"anna", "bert"}) worker(name);
  std::int64_t more = 0;
  workers[1]->training.state.add("more", more);
  for (auto& each : workers) each->start({.workers = {.min = 2}});
  for (auto& each : workers)
    test::expect_error([&] { return each->end(); }, ErrorKind::failed_precondition, "rank 1 has more (");
}

// The replica outlives the body: its group is replaced in place.
TEST_F(ElasticRun, AReplicaKeepsItsBucketsInANewGroup) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  std::vector<std::unique_ptr<data_parallel::DistributedDataParallel<Net>>> replicas(3);
  std::vector<int> steps(3), made(3);
  for (std::size_t i = 0; i < 3; ++i) {
    Worker& each = *workers[i];
    auto& ddp = replicas[i];
    RunOptions options = three;
    options.on_change = [&each, &ddp, &made, i](const Change& change) {
      if (ddp == nullptr) {
        ddp =
            std::make_unique<data_parallel::DistributedDataParallel<Net>>(change.group, each.training.model);
        ++made[i];
      } else {
        ddp->set_group(change.group);
      }
    };
    each.thread.start([&each, &ddp, &steps, i, options] {
      each.outcome = run(
          each.job, each.training.state,
          [&](const Group& group) {
            Trained& training = each.training;
            for (; training.step < 10; training.state.commit()) {
              if (i == 1 && training.step == 4 && group.size() == 3) die(each.agent);
              training.optimizer.zero_grad();
              at::mse_loss(ddp->forward(training.data.x), training.data.y).backward();
              training.optimizer.step();
              ++training.step, ++steps[i];
            }
          },
          options);
    });
  }
  EXPECT_THROW(workers[1]->end(), Died);
  expect_finished({0, 2});
  EXPECT_EQ(made, (std::vector{1, 1, 1}));
  EXPECT_EQ(steps[0], 10);
  Net alone(0);
  torch::optim::SGD optimizer(alone.parameters(), torch::optim::SGDOptions(learning_rate).momentum(0.9));
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    at::mse_loss(alone.forward(workers[0]->training.data.x), workers[0]->training.data.y).backward();
    optimizer.step();
  }
  for (const int other : {0, 2})
    EXPECT_TRUE(at::allclose(workers[other]->training.model->first, alone.first, 1e-9, 1e-12));
}

TEST_F(ElasticRun, BodiesMayBeTasks) {
  Worker& anna = worker("anna");
  int runs = 0;
  const auto outcome = run(anna.job, anna.training.state, [&runs](const Group& group) -> rpc::Task<void> {
    return [](Group mine, int* count) -> rpc::Task<void> {
      co_await mine.barrier();
      ++*count;
    }(group, &runs);
  });
  EXPECT_EQ(outcome, Outcome::finished);
  EXPECT_EQ(runs, 1);
}

TEST_F(ElasticRun, RefusesAJobOfFixedSize) {
  rpc::MemberOptions options = worker_options(store, "anna", 0);
  options.rendezvous.fixed_world = true;
  options.rendezvous.world_size = 1;
  rpc::Job job(options, training_layers());
  State state;
  test::expect_error([&] { return run(job, state, [](const Group&) {}); }, ErrorKind::failed_precondition,
                     "weft launch --elastic");
}

}  // namespace run_test
}  // namespace weft::elastic
