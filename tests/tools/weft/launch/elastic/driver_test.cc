// The driver's behaviours by name. Many of them are those of Horovod's and torchelastic's tests
// (tests/parity/elastic.tsv). driver_simulation_test.cc checks the invariants.
#include "tools/weft/launch/elastic/driver.h"

#include <weft/rpc/codec/packed.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace weft::tool::launch::elastic::driver_test {
namespace {

using namespace std::chrono_literals;

// Executes a driver's actions without processes, as the test orders.
class Job {
 public:
  explicit Job(DriverOptions options) : options_(options), driver_(std::in_place, options, now) {}
  // The workers of these hosts are ready.
  Job(DriverOptions options, std::vector<HostSlots> hosts) : Job(options) {
    find(std::move(hosts));
    all_ready();
  }

  void find(std::vector<HostSlots> hosts) { pass(HostsFound{std::move(hosts)}); }
  void fail_discovery(const std::string& why) { pass(DiscoveryFailed{why}); }
  void ready(std::size_t rank) { pass(WorkerReady{at(rank).worker}); }
  void all_ready() {
    for (const auto& [rank, worker] : std::map(running)) ready(rank);
  }
  void fail(std::size_t rank) { exit(rank, 137, "was killed by signal 9 (Killed)"); }
  void succeed(std::size_t rank) { exit(rank, 0, "ended with status 0"); }
  void exclude(std::size_t rank) { pass(WorkerExcluded{at(rank).worker, "no step for 5 s"}); }
  void lose(std::size_t rank) { lose_worker(at(rank).worker); }
  void lose_worker(WorkerId worker) { pass(WorkerLost{worker, "its lease has ended"}); }
  // Lets the workers that were requested to stop exit.
  void stopped_exit() {
    for (const std::size_t rank : std::exchange(stopping, {}))
      exit(rank, 143, "was killed by signal 15 (Terminated)");
  }
  // Advances the time, and wakes the driver when it requested this.
  void wait(std::chrono::nanoseconds time) {
    const auto until = now + time;
    for (auto next = driver_->next_wake(); next && *next <= until; next = driver_->next_wake()) {
      now = std::max(now, *next);
      pass(TimePassed{});
    }
    now = until;
    pass(TimePassed{});
  }

  // Another driver takes over from the stored state of this one.
  void take_over(std::chrono::nanoseconds after = 0s) {
    now += after;
    const DriverState state = rpc::unpack<DriverState>(rpc::pack(driver_->save()));
    driver_.emplace(options_, now);
    stopping.clear();
    take(driver_->restore(now, state));
  }
  void vanish(std::size_t rank) { exit(rank, 137, "has not started", true); }
  void leave(std::size_t rank) { exit(rank, 143, "has left the job", true); }
  void interrupt() { pass(Interrupted{"an interrupt"}); }

  // Returns "0=a/0 1=a/1": the ranks that run and are not asked to stop.
  std::string places() const {
    std::string text;
    for (const auto& [rank, start] : running)
      if (std::find(stopping.begin(), stopping.end(), rank) == stopping.end())
        text += (text.empty() ? "" : " ") + std::to_string(rank) + "=" + start.host + "/" +
                std::to_string(start.slot);
    return text;
  }
  // None: the job continues. "": it has succeeded.
  std::optional<std::string> end() const {
    if (!ended) return std::nullopt;
    return ended->success ? "" : ended->why;
  }

  std::chrono::nanoseconds now = 1000s;
  std::map<std::size_t, StartWorker> running;  // by rank
  std::vector<std::size_t> stopping;           // ranks
  std::vector<std::string> reasons;            // of stops
  std::vector<std::string> notes;
  std::vector<BlacklistHost> blacklisted;
  std::size_t starts = 0, ends = 0;

 private:
  const StartWorker& at(std::size_t rank) const { return running.at(rank); }
  void exit(std::size_t rank, int status, const std::string& how, bool blameless = false) {
    const WorkerId worker = at(rank).worker;
    running.erase(rank);
    std::erase(stopping, rank);
    pass(WorkerExited{worker, status, how, {}, blameless});
  }
  void pass(const Event& event) { take(driver_->handle(now, event)); }
  void take(const Actions& actions) {
    for (const Action& action : actions) {
      EXPECT_TRUE(!ended || std::holds_alternative<EndJob>(action)) << "an action follows the end";
      std::visit([this](const auto& it) { take(it); }, action);
    }
  }
  void take(const StartWorker& start) {
    EXPECT_TRUE(running.emplace(start.rank, start).second) << "rank " << start.rank << " is taken";
    ++starts;
  }
  void take(const StopWorker& stop) {
    for (const auto& [rank, start] : running)
      if (start.worker == stop.worker) stopping.push_back(rank);
    reasons.push_back(stop.why);
  }
  void take(const BlacklistHost& host) { blacklisted.push_back(host); }
  void take(const Note& note) { notes.push_back(note.text); }
  void take(const EndJob& end) {
    EXPECT_TRUE(running.empty()) << "workers run at the end";
    ended = end;
    ++ends;
  }

  std::optional<EndJob> ended;
  const DriverOptions options_;
  std::optional<ElasticDriver> driver_;
};

const std::vector<HostSlots> two_hosts{{"a", 2}, {"b", 2}};

DriverOptions from_to(std::size_t min, std::size_t max) {
  DriverOptions options;
  options.min_workers = min;
  options.max_workers = max;
  return options;
}

// Options as in Horovod: each failure blacklists its host permanently, and stops the host's workers.
DriverOptions strict(std::size_t min, std::size_t max) {
  DriverOptions options = from_to(min, max);
  options.blacklist.failures = 1;
  options.blacklist.cooldown = 0s;
  options.evict = true;
  return options;
}

// --- The start ---

TEST(ElasticDriver, RanksAreAssignedHostByHost) {
  Job job(from_to(2, 4));
  job.find(two_hosts);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
  EXPECT_EQ(job.running.at(3).slots, 2U);
}

TEST(ElasticDriver, HostsMayHaveDifferentNumbersOfSlots) {
  Job job(from_to(6, 20));
  job.find({{"a", 1}, {"b", 2}, {"c", 3}});
  EXPECT_EQ(job.places(), "0=a/0 1=b/0 2=b/1 3=c/0 4=c/1 5=c/2");
}

TEST(ElasticDriver, NoMoreThanTheMaximumStart) {
  Job job(from_to(2, 3));
  job.find({{"a", 2}, {"b", 8}});
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0");
}

TEST(ElasticDriver, NoWorkerStartsBeforeTheMinimumOfSlotsExists) {
  Job job(from_to(8, 20));
  job.find({});
  job.find({{"a", 4}});
  EXPECT_EQ(job.starts, 0U);
  job.find({{"a", 4}, {"b", 8}});
  EXPECT_EQ(job.starts, 12U);
  job.find({{"a", 4}, {"b", 8}, {"c", 12}});
  EXPECT_EQ(job.starts, 20U) << "the maximum";
}

TEST(ElasticDriver, AFirstDiscoveryThatFailsEndsTheJob) {
  Job job(from_to(1, 4));
  job.fail_discovery("no such file");
  EXPECT_EQ(job.end(), "the first discovery of hosts failed: no such file");
}

TEST(ElasticDriver, ALaterDiscoveryThatFailsChangesNothing) {
  Job job(from_to(1, 4));
  job.find(two_hosts);
  for (int i = 0; i < 3; ++i) job.fail_discovery("a timeout");
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
  EXPECT_EQ(job.notes.size(), 1U) << "told once";
}

// --- Hosts join and leave ---

TEST(ElasticDriver, WorkersStartOnAHostThatIsAdded) {
  Job job(from_to(2, 4), {{"a", 2}});
  job.find(two_hosts);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
  EXPECT_EQ(job.starts, 4U);
}

TEST(ElasticDriver, WorkersOfAHostThatIsRemovedAreStoppedAndTheOthersKeepTheirRanks) {
  Job job(from_to(2, 4), {{"a", 2}});
  job.find(two_hosts);
  job.all_ready();
  job.find({{"b", 2}});
  EXPECT_EQ(job.places(), "2=b/0 3=b/1");
  EXPECT_EQ(job.reasons, (std::vector<std::string>{"its host is gone", "its host is gone"}));
  job.stopped_exit();
  EXPECT_EQ(job.places(), "2=b/0 3=b/1");
  EXPECT_TRUE(job.blacklisted.empty()) << "a stop is no failure";
  job.find({{"b", 2}, {"c", 2}});
  EXPECT_EQ(job.places(), "0=c/0 1=c/1 2=b/0 3=b/1") << "the lowest free ranks";
  job.all_ready();
  job.succeed(2);
  for (const std::size_t rank : {0, 1, 3}) job.succeed(rank);
  EXPECT_EQ(job.end(), "");
}

// The survivors detect by the departures that they are too few, and wait (elastic::run).
TEST(ElasticDriver, WorkersAreStoppedAlsoIfTooFewSlotsForTheMinimumAreLeft) {
  Job job(from_to(8, 12), {{"a", 8}, {"b", 4}});
  job.find({{"b", 4}});
  EXPECT_EQ(job.reasons, std::vector<std::string>(8, "its host is gone"));
  job.stopped_exit();
  EXPECT_EQ(job.places(), "8=b/0 9=b/1 10=b/2 11=b/3");
  job.find({{"b", 4}, {"c", 12}});
  EXPECT_EQ(job.places(), "0=c/0 1=c/1 2=c/2 3=c/3 4=c/4 5=c/5 6=c/6 7=c/7 8=b/0 9=b/1 10=b/2 11=b/3");
  EXPECT_FALSE(job.end());
}

TEST(ElasticDriver, FewerSlotsStopTheLastWorkersOfAHost) {
  Job job(from_to(1, 4), {{"a", 4}});
  job.find({{"a", 2}});
  EXPECT_EQ(job.places(), "0=a/0 1=a/1");
  EXPECT_EQ(job.reasons.front(), "its slot is gone");
  job.stopped_exit();
  job.find({{"a", 3}});
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=a/2");
}

TEST(ElasticDriver, OneWorkerKeepsTheStateUntilAWorkerOnAnotherHostIsReady) {
  Job job(from_to(2, 4), {{"a", 2}});
  job.find({{"b", 2}});
  EXPECT_EQ(job.places(), "0=a/0 2=b/0 3=b/1") << "rank 0 has the state";
  job.ready(2);
  EXPECT_EQ(job.places(), "2=b/0 3=b/1");
  job.stopped_exit();
  EXPECT_FALSE(job.end());
}

TEST(ElasticDriver, IfNoHostIsLeftTheWorkersContinue) {
  Job job(from_to(2, 4), two_hosts);
  job.find({});
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
  job.find({{"b", 2}});
  EXPECT_EQ(job.places(), "2=b/0 3=b/1");
}

TEST(ElasticDriver, ASingleWorkerMovesToAnotherHost) {
  Job job(from_to(1, 1), {{"a", 1}});
  job.find({{"b", 1}});
  EXPECT_EQ(job.places(), "") << "there is no room for both";
  job.stopped_exit();
  EXPECT_EQ(job.places(), "0=b/0");
}

TEST(ElasticDriver, HostsAreOrderedByTheirAge) {
  Job job(from_to(1, 3), {{"a", 1}, {"b", 1}, {"c", 1}});
  job.find({{"d", 1}, {"c", 1}, {"b", 1}});
  EXPECT_EQ(job.places(), "1=b/0 2=c/0") << "d has no room until a's worker has ended";
  job.stopped_exit();
  EXPECT_EQ(job.places(), "0=d/0 1=b/0 2=c/0");
  job.find({{"a", 1}, {"d", 1}, {"c", 2}, {"b", 1}});
  job.fail(0);
  EXPECT_EQ(job.places(), "0=c/1 1=b/0 2=c/0") << "c is older than d, and than a, which was away";
}

TEST(ElasticDriver, IrrelevantChangesOfDiscoveryStartAndStopNothing) {
  Job job(from_to(1, 2), {{"a", 2}});
  job.find({{"a", 2}, {"b", 2}});
  job.find({{"a", 4}, {"b", 1}});
  job.find({{"b", 3}, {"a", 2}});
  EXPECT_EQ(job.places(), "0=a/0 1=a/1");
  EXPECT_EQ(job.starts, 2U);
  EXPECT_TRUE(job.stopping.empty());
}

// --- Failures ---

TEST(ElasticDriver, AWorkerThatDiesOnAHealthyHostIsReplacedThere) {
  Job job(from_to(2, 4), two_hosts);
  const WorkerId before = job.running.at(1).worker;
  job.fail(1);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
  EXPECT_NE(job.running.at(1).worker, before);
  EXPECT_EQ(job.notes.back(), "rank 1 on a was killed by signal 9 (Killed)");
}

TEST(ElasticDriver, OneFailureBlacklistsItsHostIfTheLimitIsOne) {
  Job job(strict(2, 4), two_hosts);
  job.fail(0);
  job.stopped_exit();
  EXPECT_EQ(job.places(), "2=b/0 3=b/1");
  job.wait(1h);
  EXPECT_EQ(job.places(), "2=b/0 3=b/1");
  EXPECT_FALSE(job.end());
}

TEST(ElasticDriver, ABlacklistedHostsWorkersContinueUnlessTheyAreEvicted) {
  DriverOptions options = strict(2, 4);
  for (const bool evict : {false, true}) {
    options.evict = evict;
    Job job(options, two_hosts);
    job.fail(0);
    EXPECT_EQ(job.places(), evict ? "2=b/0 3=b/1" : "1=a/1 2=b/0 3=b/1");
    EXPECT_EQ(job.reasons, std::vector<std::string>(evict ? 1 : 0, "its host is blacklisted"));
  }
}

TEST(ElasticDriver, AWorkerThatLeftIsReplacedWithoutAFailureOfItsHost) {
  Job job(strict(1, 2), {{"a", 2}});
  for (int i = 0; i < 5; ++i) {
    job.leave(1);
    EXPECT_EQ(job.places(), "0=a/0 1=a/1");
    job.ready(1);
  }
  EXPECT_EQ(job.notes, std::vector<std::string>(5, "rank 1 on a has left the job"));
  EXPECT_TRUE(job.blacklisted.empty());
  job.leave(0);
  job.leave(1);
  EXPECT_TRUE(job.blacklisted.empty());
  job.stopped_exit();
  EXPECT_EQ(job.end(), "no worker is left; the last one: rank 1 on a has left the job");
}

TEST(ElasticDriver, AHostWhoseWorkersFailBeforeTheyAreReadyIsBlacklisted) {
  Job job(from_to(2, 4));
  job.find(two_hosts);
  job.ready(0);
  job.ready(1);
  for (int i = 0; i < 3; ++i) job.fail(2);
  EXPECT_EQ(job.blacklisted.size(), 1U);
  EXPECT_EQ(job.blacklisted.front().host, "b");
  job.fail(3);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1");
  EXPECT_FALSE(job.end());
}

TEST(ElasticDriver, IfAllWorkersFailTheJobFails) {
  Job job(from_to(2, 4), two_hosts);
  for (const std::size_t rank : {0, 1, 2, 3}) job.fail(rank);
  EXPECT_EQ(job.places(), "");
  job.stopped_exit();  // their successors
  EXPECT_EQ(job.end(), "no worker is left; the last one: rank 3 on b was killed by signal 9 (Killed)");
}

TEST(ElasticDriver, WithARestartTheJobSurvivesTheFailureOfAllWorkers) {
  DriverOptions options = from_to(2, 2);
  options.restarts = 1;
  options.blacklist.failures = 100;
  Job job(options, {{"a", 2}});
  job.fail(0);
  job.fail(1);
  EXPECT_FALSE(job.end());
  EXPECT_EQ(job.notes.back(), "no worker is left: restart 1 of 1");
  EXPECT_EQ(job.places(), "0=a/0 1=a/1");
  job.all_ready();
  job.fail(0);
  job.fail(1);
  job.stopped_exit();
  EXPECT_NE(job.end().value_or("").find("no worker is left"), std::string::npos);
}

TEST(ElasticDriver, AFailureBeforeTheJobHasFormedDoesNotEndTheJob) {
  Job job(from_to(4, 4));
  job.find(two_hosts);
  job.ready(0);
  job.fail(0);  // the only ready worker, but nothing is lost yet
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
}

TEST(ElasticDriver, IfAllHostsAreBlacklistedTheJobFails) {
  Job job(strict(2, 4));
  job.find(two_hosts);
  job.fail(0);
  job.fail(2);
  job.stopped_exit();
  EXPECT_EQ(job.places(), "3=b/1") << "no host is left to continue on, so the last worker goes on";
  job.fail(3);
  EXPECT_EQ(
      job.end(),
      "all hosts are blacklisted: a (2 slots, blacklisted for good), b (2 slots, blacklisted for good)");
}

TEST(ElasticDriver, AFailureOfWorkersOnTwoHostsAtOnceIsSurvived) {
  Job job(from_to(2, 4), two_hosts);
  job.fail(0);
  job.fail(2);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
  job.all_ready();
  job.succeed(0);
  for (const std::size_t rank : {1, 2, 3}) job.succeed(rank);
  EXPECT_EQ(job.end(), "");
}

TEST(ElasticDriver, APermanentlyLostHostLeavesASmallerJob) {
  Job job(from_to(1, 4), two_hosts);
  job.fail(2);
  job.fail(3);
  job.find({{"a", 2}});
  EXPECT_EQ(job.places(), "0=a/0 1=a/1");
  job.stopped_exit();
  job.succeed(0);
  job.succeed(1);
  EXPECT_EQ(job.end(), "");
}

TEST(ElasticDriver, TheWorkersThatRemainAreStoppedAtOnceWhenTheJobFails) {
  Job job(strict(4, 4), two_hosts);
  job.fail(0);
  job.wait(10min);
  EXPECT_EQ(job.places(), "");
  EXPECT_EQ(job.reasons.back(), "the job has failed");
  EXPECT_FALSE(job.end()) << "while they run";
  job.stopped_exit();
  EXPECT_TRUE(job.end());
}

// --- Workers that fail while their process runs ---

TEST(ElasticDriver, AWorkerThatTheOthersExcludeIsStoppedAndThenReplaced) {
  Job job(from_to(2, 4), two_hosts);
  job.exclude(1);
  EXPECT_EQ(job.places(), "0=a/0 2=b/0 3=b/1");
  EXPECT_EQ(job.notes.back(), "rank 1 on a was excluded by the other workers: no step for 5 s");
  EXPECT_EQ(job.reasons.back(), "was excluded by the other workers: no step for 5 s");
  EXPECT_EQ(job.starts, 4U) << "its slot and its rank are not free yet";
  job.stopped_exit();
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
  EXPECT_EQ(job.notes.size(), 1U);
}

TEST(ElasticDriver, AWorkerWhoseLeaseHasEndedIsStoppedAndThenReplaced) {
  Job job(from_to(2, 4), two_hosts);
  job.lose(1);
  EXPECT_EQ(job.places(), "0=a/0 2=b/0 3=b/1");
  EXPECT_EQ(job.notes.back(), "rank 1 on a was lost: its lease has ended");
  job.wait(5min);
  EXPECT_EQ(job.starts, 4U) << "its slot and its rank are not free until its end is certain";
  EXPECT_FALSE(job.end()) << "the others are enough";
  job.stopped_exit();
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
}

TEST(ElasticDriver, AWorkerThatIsLostOrExcludedIsOneFailureOfItsHost) {
  DriverOptions options = from_to(2, 4);
  options.blacklist.failures = 2;
  Job job(options, two_hosts);
  job.lose(2);
  job.exclude(2);
  job.lose(2);
  job.stopped_exit();
  EXPECT_TRUE(job.blacklisted.empty()) << "one failure";
  EXPECT_EQ(job.notes.size(), 1U);
  job.ready(2);
  job.exclude(2);
  ASSERT_EQ(job.blacklisted.size(), 1U);
  EXPECT_EQ(job.blacklisted.front().host, "b");
  job.stopped_exit();
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 3=b/1");
}

TEST(ElasticDriver, TheLossOfAWorkerThatHasExitedIsIgnored) {
  Job job(from_to(2, 4), two_hosts);
  const WorkerId worker = job.running.at(1).worker;
  job.fail(1);
  job.lose_worker(worker);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
  EXPECT_EQ(job.notes.size(), 1U);
}

TEST(ElasticDriver, ALostWorkerThatExitsWithStatusZeroIsNoSuccess) {
  Job job(from_to(2, 4), two_hosts);
  job.lose(1);
  job.succeed(1);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1") << "it continues without knowing what the others did";
  EXPECT_FALSE(job.end());
}

TEST(ElasticDriver, TheLossOfTheLastReadyWorkerIsARestart) {
  for (const bool excluded : {false, true}) {
    DriverOptions options = from_to(1, 2);
    options.restarts = 1;
    Job job(options, {{"a", 1}});
    const auto end_worker = [&] { excluded ? job.exclude(0) : job.lose(0); };
    end_worker();
    EXPECT_EQ(job.notes.back(), "no worker is left: restart 1 of 1");
    job.stopped_exit();
    EXPECT_EQ(job.places(), "0=a/0");
    job.ready(0);
    end_worker();
    job.stopped_exit();
    EXPECT_EQ(job.end(), std::string("no worker is left; the last one: rank 0 on a was ") +
                             (excluded ? "excluded by the other workers: no step for 5 s"
                                       : "lost: its lease has ended"));
  }
}

TEST(ElasticDriver, ALostWorkerAndItsReplacementAreOneReset) {
  DriverOptions options = from_to(1, 4);
  options.reset_limit = 1;
  options.blacklist.failures = 100;
  Job job(options, two_hosts);
  job.wait(10s);
  job.exclude(0);
  job.wait(30s);
  job.stopped_exit();
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
  job.ready(0);
  job.wait(10s);
  job.lose(1);
  job.stopped_exit();
  EXPECT_EQ(job.end(), "the workers changed more often than the reset limit of 1 permits");
}

TEST(ElasticDriver, AWorkerThatDoesNotEndHidesNoReset) {
  DriverOptions options = from_to(1, 4);
  options.reset_limit = 1;
  Job job(options, two_hosts);
  job.wait(10s);
  job.lose(3);
  job.wait(10s);
  job.fail(0);
  job.stopped_exit();
  EXPECT_EQ(job.end(), "the workers changed more often than the reset limit of 1 permits");
}

TEST(ElasticDriver, AWorkerThatIsLostAfterASuccessIsStoppedAtOnce) {
  Job job(from_to(2, 4), two_hosts);
  job.succeed(0);
  for (const std::size_t rank : {1, 2}) job.succeed(rank);
  job.lose(3);
  EXPECT_EQ(job.places(), "");
  job.stopped_exit();
  EXPECT_EQ(job.end(), "");
  EXPECT_TRUE(job.blacklisted.empty());
}

TEST(ElasticDriver, ADriverThatTakesOverStopsALostWorkerAgain) {
  Job job(from_to(2, 4), two_hosts);
  job.lose(1);
  job.take_over();
  EXPECT_EQ(job.places(), "0=a/0 2=b/0 3=b/1");
  job.lose(1);
  EXPECT_EQ(job.notes.size(), 1U);
  job.stopped_exit();
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
}

// --- Limits of time and of numbers ---

TEST(ElasticDriver, TheJobEndsIfTheMinimumIsNotReachedInTime) {
  Job job(strict(4, 4), two_hosts);
  job.fail(0);
  job.stopped_exit();
  job.wait(10min - 1s);
  EXPECT_FALSE(job.end());
  job.wait(1s);
  job.stopped_exit();
  EXPECT_EQ(job.end(),
            "fewer than 4 workers for 10 min 0 s: 2 ready, b (2 slots), a (2 slots, blacklisted for good)");
}

TEST(ElasticDriver, MissingSlotsEndTheJobAfterTheTimeout) {
  Job job(from_to(8, 8));
  job.find({{"a", 4}});
  job.wait(10min);
  EXPECT_EQ(job.end(), "fewer than 8 workers for 10 min 0 s: 0 ready, a (4 slots)");
  Job none(from_to(8, 8));
  none.find({});
  none.wait(10min);
  EXPECT_EQ(none.end(), "fewer than 8 workers for 10 min 0 s: 0 ready, no hosts");
}

TEST(ElasticDriver, TheTimeBelowTheMinimumStartsAgainAfterAnInterruption) {
  Job job(strict(3, 4));
  job.find(two_hosts);
  job.wait(9min);
  job.all_ready();
  job.wait(9min);
  job.fail(0);
  job.wait(9min);
  EXPECT_FALSE(job.end());
  job.wait(1min);
  job.stopped_exit();
  EXPECT_TRUE(job.end());
}

TEST(ElasticDriver, AWorkerThatIsNotReadyInTimeHasFailed) {
  DriverOptions options = from_to(1, 2);
  options.start_timeout = 30s;
  Job job(options);
  job.find({{"a", 2}});
  job.ready(0);
  job.wait(29s);
  EXPECT_TRUE(job.stopping.empty());
  job.wait(1s);
  EXPECT_EQ(job.places(), "0=a/0");
  EXPECT_EQ(job.notes.back(), "rank 1 on a was not ready 30.0 s after its start");
  job.stopped_exit();
  EXPECT_EQ(job.places(), "0=a/0 1=a/1") << "it is tried again";
  for (int i = 0; i < 2; ++i) {
    job.wait(30s);
    job.stopped_exit();
  }
  EXPECT_EQ(job.blacklisted.size(), 1U);
  EXPECT_EQ(job.places(), "0=a/0");
}

TEST(ElasticDriver, WithoutAStartTimeoutAWorkerIsReadyAtOnce) {
  DriverOptions options = from_to(2, 2);
  options.start_timeout = 0s;
  Job job(options);
  job.find({{"a", 2}});
  job.wait(1h);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1");
}

TEST(ElasticDriver, TheResetLimitEndsTheJob) {
  for (const std::size_t limit : {1, 2}) {
    DriverOptions options = from_to(2, 4);
    options.reset_limit = limit;
    Job job(options, {{"a", 2}});
    job.wait(10s);
    job.find(two_hosts);  // the first reset
    job.all_ready();
    job.wait(10s);
    job.find({{"b", 2}});  // the second one
    job.stopped_exit();
    if (limit == 1) {
      EXPECT_EQ(job.end(), "the workers changed more often than the reset limit of 1 permits");
    } else {
      EXPECT_EQ(job.places(), "2=b/0 3=b/1");
    }
  }
}

TEST(ElasticDriver, TheDeathOfAHostIsOneReset) {
  DriverOptions options = from_to(1, 8);
  options.reset_limit = 1;
  options.blacklist.failures = 100;
  Job job(options, {{"a", 4}, {"b", 4}});
  job.wait(10s);
  for (const std::size_t rank : {4, 5, 6, 7}) {
    job.fail(rank);
    job.wait(200ms);
  }
  EXPECT_FALSE(job.end());
  job.all_ready();
  job.wait(10s);
  job.fail(0);
  job.stopped_exit();
  EXPECT_TRUE(job.end());
}

TEST(ElasticDriver, ABlacklistedHostReturnsAfterAGrowingCooldown) {
  DriverOptions options = from_to(2, 4);
  options.blacklist.failures = 1;
  options.blacklist.cooldown = 1s;
  options.blacklist.max_cooldown = 1min;
  Job job(options, two_hosts);
  std::chrono::nanoseconds before = 0s;
  for (int i = 0; i < 4; ++i) {
    job.fail(3);
    EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0");
    const auto cooldown = *job.blacklisted.back().until - job.now;
    EXPECT_GT(cooldown, before);
    EXPECT_GE(cooldown, 1s * (1 << i));
    before = cooldown;
    job.wait(cooldown - 1ns);
    EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0");
    job.wait(1ns);
    EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
    job.ready(3);
  }
}

TEST(ElasticDriver, AHostIsBlacklistedWhileDiscoveryDoesNotReportIt) {
  DriverOptions options = from_to(1, 4);
  options.blacklist.failures = 1;
  Job job(options, two_hosts);
  job.fail(3);
  job.find({{"a", 2}});
  job.stopped_exit();
  job.find(two_hosts);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1");
  job.wait(20s);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
}

// --- Success ---

TEST(ElasticDriver, TheFirstSuccessEndsTheJob) {
  Job job(from_to(2, 4), two_hosts);
  job.succeed(0);
  EXPECT_EQ(job.places(), "1=a/1 2=b/0 3=b/1") << "the others have time to finish";
  job.succeed(1);
  job.fail(2);
  EXPECT_EQ(job.starts, 4U) << "nothing starts any more";
  EXPECT_FALSE(job.end());
  job.wait(1min);
  EXPECT_EQ(job.reasons, std::vector<std::string>{"the job has succeeded"});
  job.stopped_exit();
  EXPECT_EQ(job.end(), "");
}

TEST(ElasticDriver, AWorkerThatStartsWhenTheJobSucceedsIsStopped) {
  Job job(from_to(2, 4), {{"a", 2}});
  job.find(two_hosts);
  job.ready(2);
  job.succeed(0);
  EXPECT_EQ(job.places(), "1=a/1 2=b/0");
}

TEST(ElasticDriver, NewHostsAreIgnoredAfterASuccess) {
  Job job(from_to(1, 4), {{"a", 2}});
  job.succeed(0);
  job.find({{"b", 2}});
  EXPECT_EQ(job.places(), "1=a/1");
  job.succeed(1);
  EXPECT_EQ(job.end(), "");
}

// --- Another driver takes over ---

TEST(ElasticDriver, ADriverThatTakesOverKeepsWorkersRanksAndTheOrderOfHosts) {
  Job job(from_to(2, 5), {{"b", 2}, {"a", 2}});
  job.take_over(20s);
  job.find({{"a", 2}, {"b", 2}, {"c", 2}});
  EXPECT_EQ(job.places(), "0=b/0 1=b/1 2=a/0 3=a/1 4=c/0");
  EXPECT_EQ(job.starts, 5U);
  job.succeed(0);
  EXPECT_EQ(job.end(), std::nullopt);
}

TEST(ElasticDriver, ADriverThatTakesOverRemembersFailuresAndBlacklistedHosts) {
  DriverOptions options = from_to(1, 4);
  options.blacklist.failures = 2;
  Job job(options, two_hosts);
  job.fail(0);
  job.take_over();
  job.fail(1);
  ASSERT_EQ(job.blacklisted.size(), 1U);
  job.take_over(1s);
  job.find(two_hosts);
  EXPECT_EQ(job.places(), "0=a/0 2=b/0 3=b/1") << "the successor of the first one continues";
  job.wait(*job.blacklisted.front().until - job.now);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1 2=b/0 3=b/1");
}

TEST(ElasticDriver, ADriverThatTakesOverRepeatsStopsAndTheEnd) {
  Job job(from_to(1, 4), two_hosts);
  job.find({{"a", 2}});
  job.take_over();
  EXPECT_EQ(job.places(), "0=a/0 1=a/1") << "the workers of b are stopped again";
  job.stopped_exit();
  job.succeed(0);
  job.take_over();
  job.succeed(1);
  EXPECT_EQ(job.end(), "");
  job.take_over();
  EXPECT_EQ(job.ends, 2U);
  EXPECT_EQ(job.end(), "");
}

TEST(ElasticDriver, TimeoutsStartAgainForADriverThatTakesOver) {
  DriverOptions options = from_to(2, 2);
  options.timeout = 60s;
  options.start_timeout = 50s;
  Job job(options);
  job.find({{"a", 2}});
  job.ready(0);
  job.take_over(100s);
  job.wait(49s);
  EXPECT_EQ(job.places(), "0=a/0 1=a/1") << "it may have become ready meanwhile";
  job.ready(1);
  job.wait(1h);
  EXPECT_EQ(job.end(), std::nullopt);
}

TEST(ElasticDriver, WorkersThatWereNeverStartedAreNotFailuresOfTheirHost) {
  DriverOptions options = from_to(2, 2);
  options.blacklist.failures = 1;
  Job job(options);
  job.find({{"a", 2}});
  job.take_over();
  job.vanish(0);
  job.vanish(1);
  EXPECT_TRUE(job.blacklisted.empty());
  EXPECT_EQ(job.places(), "0=a/0 1=a/1");
  EXPECT_EQ(job.starts, 4U);
}

TEST(ElasticDriver, AnInterruptStopsAllWorkers) {
  Job job(from_to(1, 4));
  job.interrupt();
  EXPECT_EQ(job.end(), "an interrupt");
  Job running(from_to(1, 4), two_hosts);
  running.interrupt();
  EXPECT_EQ(running.places(), "");
  running.stopped_exit();
  EXPECT_EQ(running.end(), "an interrupt");
}

}  // namespace
}  // namespace weft::tool::launch::elastic::driver_test
