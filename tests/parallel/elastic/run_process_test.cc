// Workers in separate processes. One of three is killed, the others continue to train in their processes, and
// another one joins. Then chaos: many workers are killed, are stopped, hang, leave and join at random times.
// The losses equal those of one process with the logged samples.
#include <weft/rpc/job/store/store.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <new>
#include <random>
#include <sstream>
#include <thread>

#include "tests/parallel/elastic/training.h"
#include "tests/support/child.h"
#include "tests/support/two_hosts.h"

namespace weft::elastic {
namespace run_process_test {

using namespace testing;
using test::TwoHosts;

// "step STEP EPOCH GENERATION RANK RANKS LOSS INDEX..."
std::string to_line(const Step& step) {
  std::ostringstream line;
  line.precision(17);
  line << "step " << step.step << ' ' << step.epoch << ' ' << step.generation << ' ' << step.rank << ' '
       << step.ranks << ' ' << step.loss;
  for (const std::size_t index : step.indices) line << ' ' << index;
  return line.str();
}
Step step_of(const std::string& text) {
  std::istringstream line(text);
  std::string word;
  Step step;
  line >> word >> step.step >> step.epoch >> step.generation >> step.rank >> step.ranks >> step.loss;
  for (std::size_t index = 0; line >> index;) step.indices.push_back(index);
  return step;
}

constexpr std::int64_t killed_at = 7, joined_at = 12;

struct Case {
  const char* name;
  std::size_t victim;
  bool steps;  // State::step(), and a state that arrives in the background
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

class ElasticProcesses : public ::testing::TestWithParam<Case> {
 protected:
  void start(const std::string& name, std::size_t number, bool victim) {
    children.emplace_back([&, number, victim](int pipe) {
      try {
        rpc::Job job(worker_options(store, name, number), training_layers());
        Trained training(number);
        const bool steps = GetParam().steps;
        training.transactions = steps;
        training.ddp_options.init_sync = !steps;
        std::uint64_t generation = 0;
        training.log = [pipe](const Step& step) { test::say(pipe, to_line(step)); };
        training.before_step = [&](std::int64_t step, const Group& group) {
          if (victim && step == killed_at) {
            test::say(pipe, "kill me");
            while (true) ::pause();
          }
          if (step == joined_at && group.size() == 2)  // long enough for the third worker to join
            job.store()->get("elastic/train/ready/dora", {.timeout = std::chrono::seconds{60}}).get();
        };
        const auto outcome = run(
            job, training.state, [&](const Group& group) { training.train(group, generation); },
            {.workers = {.min = 2, .start = 3}, .sync_later = steps, .on_change = [&](const Change& change) {
               generation = change.generation;
               std::string members;
               for (const std::string& member : change.group.members()) members += " " + member;
               test::say(pipe, "members" + members);
             }});
        test::say(pipe, outcome == Outcome::finished ? "finished" : "left");
      } catch (const std::exception& error) {
        test::say(pipe, std::string("failed: ") + error.what());
      }
    });
  }
  // Reads the lines of a worker up to this one.
  void read(std::size_t child, const std::string& until) {
    while (true) {
      const std::string line = children[child].line();
      if (line.starts_with("step ")) log.add(step_of(line));
      if (line == until) return;
      if (line.empty() || line.starts_with("failed")) {
        ADD_FAILURE() << "worker " << child << ": " << line;
        return;
      }
    }
  }

  test::FileJobStore store;
  std::deque<test::Child> children;
  Log log;
};
INSTANTIATE_TEST_SUITE_P(Victims, ElasticProcesses,
                         ::testing::Values(Case{"rank0", 0, false}, Case{"rank2", 2, false},
                                           Case{"steps", 0, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(ElasticProcesses, SurviveAKillAndAcceptANewWorker) {
  const std::size_t victim = GetParam().victim;
  const std::vector<std::string> names{"anna", "bert", "cleo"};
  for (std::size_t i = 0; i < 3; ++i) start(names[i], i, i == victim);
  read(victim, "kill me");
  children[victim].kill();
  const std::size_t first = victim == 0 ? 1 : 0, second = victim == 2 ? 1 : 2;
  // A generation may be formed twice, because the proposing worker may not know the new member yet.
  const std::string two = "members " + names[first] + " " + names[second];
  read(first, two);
  read(second, two);
  start("dora", 3, false);
  for (const std::size_t child : {first, second, std::size_t{3}}) {
    read(child, two + " dora");
    read(child, "finished");
  }
  Net model(0);
  log.expect_replay(model);
}

// Tracks which workers may be killed: at least one worker must keep the state.
struct ChaosWorker {
  std::unique_ptr<test::Child> process;
  bool has_state = false;
  bool leaving = false;
};

class ElasticChaos : public ::testing::TestWithParam<StepEnd> {
 protected:
  static constexpr std::size_t max_workers = 5, max_members = 4;  // one may be a spare
  static constexpr std::chrono::nanoseconds detection = test::short_lease;
  // $WEFT_ELASTIC_CHANGES: the number of changes. $WEFT_ELASTIC_SEED: the seed.
  static std::int64_t number_from(const char* variable, std::int64_t otherwise) {
    const char* const text = std::getenv(variable);
    return text == nullptr ? otherwise : std::atoll(text);
  }

  ElasticChaos() {
    if (::pipe(lines_.data()) != 0) throw std::runtime_error("pipe");
    void* const shared =
        ::mmap(nullptr, sizeof(*last_epoch_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::runtime_error("mmap");
    last_epoch_ = new (shared) std::atomic<bool>(false);
  }
  ~ElasticChaos() override {
    workers_.clear();
    ended_.clear();
    for (const int end : lines_) ::close(end);
    ::munmap(last_epoch_, sizeof(*last_epoch_));
  }

  // All workers write their lines to one pipe: "NAME ...". Short writes to a pipe are not mixed.
  std::string join() {
    const std::size_t number = started_++;
    const std::string name = "w" + std::to_string(number);
    workers_[name].process = std::make_unique<test::Child>([&, number](int, int orders) {
      const auto tell = [&](const std::string& text) { test::say(lines_[1], name + " " + text); };
      Trained& training = *new Trained(number);  // until the process is killed, as the thread
      auto& hangs = *new std::atomic<bool>(false);
      std::thread([orders, &training, &hangs] {
        for (std::string order; !(order = test::line_of(orders)).empty();)
          order == "leave" ? training.state.leave() : hangs.store(true);
      }).detach();
      try {
        rpc::MemberOptions options = worker_options(store_, name, number, detection);
        collectives::GroupOptions group;
        if (place) place(number, options, group);
        rpc::Job job(options, training_layers());
        std::uint64_t generation = 0;
        training.transactions = GetParam().steps;
        training.ddp_options.init_sync = !GetParam().later;
        training.log = [&](const Step& step) { tell(to_line(step)); };
        // Counts calls in the loop. A failure reverts it, as it does numbers that a generator draws in
        // forward.
        std::int64_t begun = 0;
        training.state.add("begun", begun);
        training.before_step = [&](std::int64_t step, const Group&) {
          while (hangs) ::pause();
          if (begun++ != step)
            throw std::logic_error("step " + std::to_string(step) + " begins after " +
                                   std::to_string(begun - 1) + " steps");
        };
        bool has_said = false;
        training.after_step = [&](const Step&, const Group&) {
          if (!std::exchange(has_said, true)) tell("has the state");
        };
        training.more = [&](const Group& group) {
          const EpochProgress progress = training.sampler.progress();
          const bool began = progress.processed > 0 && progress.epoch == std::uint64_t(training.epoch);
          return began || !group.broadcast_object(last_epoch_->load(), 0).get();
        };
        const auto outcome =
            run(job, training.state, [&](const Group& group) { training.train(group, generation); },
                {.workers = {.min = min, .start = 3, .max = max_members},
                 .hang = detection,
                 .sync_later = GetParam().later,
                 .group = group,
                 .on_change = [&](const Change& change) { generation = change.generation; }});
        tell(outcome == Outcome::finished ? "finished " + std::to_string(training.step) : "left");
      } catch (const std::exception& error) {
        tell(std::string("failed: ") + error.what());
      }
    });
    return name;
  }
  enum class End : std::uint8_t { killed, stopped, hung, disconnected };
  void end(const std::string& name, End how) {
    std::unique_ptr<test::Child> process = std::move(workers_.at(name).process);
    workers_.erase(name);
    if (how == End::killed) return;  // by its destructor
    if (how == End::stopped) process->stop();
    if (how == End::hung) process->tell("hang");
    ended_.push_back(std::move(process));
  }
  void leave(const std::string& name) {
    workers_.at(name).process->tell("leave");
    workers_.at(name).leaving = true;
  }

  // Reads the next line of any worker.
  void read() {
    pollfd ready{.fd = lines_[0], .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 60'000) != 1) throw std::runtime_error("nothing has happened for a minute");
    const std::string line = test::line_of(lines_[0]), name = line.substr(0, line.find(' ')),
                      said = line.substr(name.size() + 1);
    if (said.starts_with("step ")) log_.add(step_of(said));
    const auto worker = workers_.find(name);
    if (worker == workers_.end()) return;  // it was killed after it had said this
    if (said == "has the state") worker->second.has_state = true;
    if (said.starts_with("failed")) throw std::runtime_error(line);
    if (said.starts_with("finished")) steps_ = std::max(steps_, std::stoll(said.substr(9)));
    if (said.starts_with("finished") || said == "left") workers_.erase(worker);
  }
  void train_on(std::int64_t steps) {
    const std::int64_t from = log_.size();
    while (log_.size() < from + steps) read();
  }

  // Returns the workers that may end. Either another worker with the state remains, or all workers that are
  // not leaving are returned.
  std::vector<std::string> may_go() const {
    std::vector<std::string> names;
    const auto stays = [](const auto& other) { return other.second.has_state && !other.second.leaving; };
    const auto keepers = std::count_if(workers_.begin(), workers_.end(), stays);
    for (const auto& worker : workers_)
      if (!worker.second.leaving && (!stays(worker) || keepers > 1)) names.push_back(worker.first);
    return names;
  }

  void finish() {
    *last_epoch_ = true;
    while (!workers_.empty()) read();
    log_.drop_from(steps_);
  }
  void expect_replay() {
    Net model(0);
    log_.expect_replay(model, log_.last().epoch + 1);
  }

  // ends: how workers end that do not leave. otherwise: the number of changes without $WEFT_ELASTIC_CHANGES.
  void run_chaos(const std::vector<End>& ends = {End::killed}, std::int64_t otherwise = 10) {
    const std::int64_t changes = number_from("WEFT_ELASTIC_CHANGES", otherwise);
    const auto seed = static_cast<std::uint64_t>(number_from("WEFT_ELASTIC_SEED", 6));
    SCOPED_TRACE("WEFT_ELASTIC_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&random](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
    std::array<std::int64_t, 3> made{};
    for (int i = 0; i < 3; ++i) join();
    train_on(3);
    while (made[0] + made[1] + made[2] < changes) {
      train_on(static_cast<std::int64_t>(below(6)));  // none: two at once
      const std::vector<std::string> chosen = may_go();
      const std::size_t change = workers_.size() >= max_workers ? below(2) : below(4);
      if (change > 1) {
        const std::string name = join();
        const bool is_spare = workers_.size() > max_members;
        while (change == 2 && !is_spare && workers_.contains(name) && !workers_.at(name).has_state) read();
      } else if (chosen.empty()) {
        read();
        continue;
      } else {
        const std::string& name = chosen[below(chosen.size())];
        change == 0 ? end(name, ends[below(ends.size())]) : leave(name);
      }
      ++made[std::min<std::size_t>(change, 2)];
    }
    finish();
    std::int64_t resting = 0;
    for (std::int64_t step = 0; step < log_.size(); ++step) {
      const auto ranks = log_.of_step(step);
      const auto has = [&](std::size_t samples) {
        return std::any_of(ranks.begin(), ranks.end(),
                           [&](const Step& rank) { return rank.indices.size() == samples; });
      };
      resting += has(0) && has(batch_size);
    }
    if (changes >= 100) {
      EXPECT_EQ(resting > 0, GetParam().later);
    }
    expect_replay();
    std::printf(
        "%lld ends, %lld departures, %lld joins: %llu generations, %lld steps, %lld with a rank whose "
        "state was in transit\n",
        (long long)made[0], (long long)made[1], (long long)made[2],
        (unsigned long long)log_.last().generation, (long long)log_.size(), (long long)resting);
  }

  // Places a worker on one of two hosts.
  static void place_on(const TwoHosts& hosts, bool is_here, rpc::AgentOptions& options,
                       collectives::GroupOptions& group) {
    options.insecure = true;
    options.same_host = false;  // the system is the same
    group.host = is_here ? "here" : "there";
    options.listen = {is_here ? TwoHosts::here_address : TwoHosts::there_address};
    if (is_here) return;
    const int there = ::open(("/proc/" + hosts.said() + "/ns/net").c_str(), O_RDONLY);
    if (::setns(there, CLONE_NEWNET) != 0) throw std::runtime_error("setns");
  }

  std::map<std::string, ChaosWorker> workers_;
  // Sets the options of a worker, for example to place it on another host.
  std::function<void(std::size_t number, rpc::AgentOptions&, collectives::GroupOptions&)> place;
  std::size_t min = 1;  // workers

 private:
  test::FileJobStore store_;
  std::array<int, 2> lines_{};
  std::atomic<bool>* last_epoch_ = nullptr;
  std::vector<std::unique_ptr<test::Child>> ended_;  // their processes exist until the end
  std::size_t started_ = 0;
  long long steps_ = 0;  // steps of the finished training
  Log log_;
};

INSTANTIATE_TEST_SUITE_P(Ends, ElasticChaos, ::testing::ValuesIn(step_ends),
                         [](const auto& info) { return info.param.name; });

TEST_P(ElasticChaos, SurvivesRandomKillsDeparturesAndJoins) { run_chaos(); }

TEST_P(ElasticChaos, SurvivesRandomStopsAndHangs) { run_chaos({End::killed, End::stopped, End::hung}, 6); }

// Every second worker is on another host, and the network loses packets.
TEST_P(ElasticChaos, SurvivesAcrossHostsWithPacketLoss) {
  TwoHosts hosts([] { return std::to_string(::getpid()); });
  if (!hosts.missing().empty()) GTEST_SKIP() << hosts.missing();
  const auto lossy = [](const std::string& device) {
    return "nft 'add table inet weft; add chain inet weft input { type filter hook input priority 0; }; "
           "add rule inet weft input iifname " +
           device + " numgen inc mod 50 == 7 counter drop'";
  };
  if (!TwoHosts::here(lossy("weft0")) || !hosts.there(lossy("weft1")))
    GTEST_SKIP() << "no `nft` here, or no numgen in the kernel, to lose packets with";
  place = [&](std::size_t number, rpc::AgentOptions& options, collectives::GroupOptions& group) {
    place_on(hosts, number % 2 == 0, options, group);
  };
  run_chaos();
  EXPECT_TRUE(TwoHosts::here("nft list chain inet weft input | grep 'packets [1-9]'")) << "nothing was lost";
}

class ElasticPartition : public ElasticChaos {};
INSTANTIATE_TEST_SUITE_P(Ends, ElasticPartition, ::testing::Values(step_ends[0]),
                         [](const auto& info) { return info.param.name; });

// One of three workers is on another host, which is cut from the network without a reset of connections. It
// can still reach the store, which is a file. The minimum of two decides which workers continue.
TEST_P(ElasticPartition, SurvivesAHostThatVanishes) {
  TwoHosts hosts([] { return std::to_string(::getpid()); });
  if (!hosts.missing().empty()) GTEST_SKIP() << hosts.missing();
  place = [&](std::size_t number, rpc::AgentOptions& options, collectives::GroupOptions& group) {
    place_on(hosts, number != 1, options, group);
  };
  min = 2;
  for (int i = 0; i < 3; ++i) join();
  train_on(3);
  ASSERT_TRUE(TwoHosts::here("ip link set weft0 down"));
  end("w1", End::disconnected);
  train_on(6);
  const std::string another = join();
  while (!workers_.at(another).has_state) read();
  finish();
  expect_replay();
}

}  // namespace run_process_test
}  // namespace weft::elastic
