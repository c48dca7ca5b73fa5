#include "tools/weft/launch/elastic/elastic_run.h"

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "tools/weft/duration.h"
#include "tools/weft/errors.h"
#include "tools/weft/launch/cores.h"
#include "tools/weft/launch/elastic/discovery.h"
#include "tools/weft/launch/elastic/job_store.h"
#include "tools/weft/launch/elastic/remote.h"
#include "tools/weft/launch/process.h"
#include "tools/weft/launch/supervisor.h"

namespace weft::tool::launch::elastic {
namespace {

ElasticDriver::Time now() { return std::chrono::steady_clock::now().time_since_epoch(); }

// The job while it runs.
class ElasticRun {
 public:
  ElasticRun(asio::io_context& context, const ElasticJob& job);
  int run();

 private:
  struct Running {
    WorkerId id = 0;
    std::string name;
  };

  SupervisorOptions supervisor_options();
  void handle(const Event& event);
  void perform(const StartWorker& start);
  void perform(const StopWorker& stop);
  void perform(const BlacklistHost& blacklist);
  void perform(const Note& note) { supervisor_.say(note.text); }
  void perform(const EndJob& end);
  AddedWorker added(const StartWorker& start) const;
  void exited(std::size_t number, const Failure& exit);
  void joined(const std::string& name, std::uint64_t incarnation);
  void wake_later();
  void stop_all();

  asio::io_context& context_;
  const ElasticJob& job_;
  Supervisor supervisor_;
  JobStore store_;
  ElasticDriver driver_;
  std::unique_ptr<Discovery> discovery_;
  asio::steady_timer wake_;
  std::map<std::size_t, Running> running_;      // by the supervisor's number
  std::map<WorkerId, std::size_t> numbers_;     // of running_
  std::map<std::string, WorkerId> ids_;         // by name, of running_
  std::map<std::string, std::uint64_t> ended_;  // the last incarnation of a name that has ended
  bool stopped_ = false;
};

ElasticRun::ElasticRun(asio::io_context& context, const ElasticJob& job)
    : context_(context),
      job_(job),
      supervisor_(context, supervisor_options()),
      store_(context, {job.store, job.credentials, job.insecure},
             [this](const std::string& name, std::uint64_t incarnation) { joined(name, incarnation); }),
      driver_(job.driver, now()),
      wake_(context) {
  if (!job.discovery) return;
  Discovery::Options options{*job.discovery, job.slots, job.poll};
  discovery_ = std::make_unique<Discovery>(
      context, options, [this](std::vector<HostSlots> hosts) { handle(HostsFound{std::move(hosts)}); },
      [this](const std::string& why) { handle(DiscoveryFailed{why}); });
}

SupervisorOptions ElasticRun::supervisor_options() {
  SupervisorOptions options;
  options.command = job_.command;
  options.logs = job_.logs;
  options.prefix = job_.prefix;
  options.grace = parse_duration(job_.grace);
  options.on_failure = [this](const Failure&) { stop_all(); };
  options.on_exit = [this](std::size_t number, const Failure& exit) { exited(number, exit); };
  // Later: the supervisor is in the middle of something.
  options.on_child_exit = [this](pid_t child, int status) {
    if (discovery_ != nullptr)
      asio::post(context_, [this, child, status] { discovery_->child_exited(child, status); });
  };
  options.on_end = [this] { stop_all(); };
  return options;
}

int ElasticRun::run() {
  supervisor_.start();
  if (discovery_ != nullptr)
    discovery_->start();
  else
    handle(HostsFound{job_.hosts});
  wake_later();
  context_.run();
  store_.close();
  return supervisor_.status();
}

void ElasticRun::handle(const Event& event) {
  if (stopped_) return;
  for (const Action& action : driver_.handle(now(), event))
    std::visit([this](const auto& it) { perform(it); }, action);
  wake_later();
}

void ElasticRun::wake_later() {
  wake_.cancel();
  const auto next = driver_.next_wake();
  if (!next || stopped_) return;
  wake_.expires_at(
      asio::steady_timer::time_point(std::chrono::duration_cast<asio::steady_timer::duration>(*next)));
  wake_.async_wait([this](asio::error_code error) {
    if (!error) handle(TimePassed{});
  });
}

AddedWorker ElasticRun::added(const StartWorker& start) const {
  AddedWorker worker{plan_worker(job_, start), job_.command, false};
  if (is_this_host(start.host)) {
    const char* const threads = std::getenv("OMP_NUM_THREADS");
    if (!job_.threads && (threads == nullptr || *threads == '\0'))
      worker.plan.environment["OMP_NUM_THREADS"] = std::to_string(threads_share(start.slots));
    return worker;
  }
  if (!job_.reachable)
    throw UsageError(
        "workers on '" + start.host +
        "' cannot reach the job's store on this host: --rendezvous HOST:PORT or --store says where it is");
  RemoteWorker remote{std::filesystem::current_path().string(), worker.plan.environment, job_.remote_weft,
                      job_.grace, job_.command};
  for (const std::string& name : job_.passed_variables)
    if (const char* const value = std::getenv(name.c_str())) remote.variables.emplace(name, value);
  worker.command = rsh_words(job_.rsh, start.host, remote_command(remote));
  worker.plan.environment.clear();
  worker.stopped_by_input = true;
  return worker;
}

void ElasticRun::perform(const StartWorker& start) {
  try {
    AddedWorker worker = added(start);
    const std::string name = worker.plan.name;
    const std::size_t number = supervisor_.add(std::move(worker));
    running_[number] = {start.worker, name};
    numbers_[start.worker] = number;
    ids_[name] = start.worker;
  } catch (const std::exception& error) {
    asio::post(context_, [this, id = start.worker, how = std::string("was not started: ") + error.what()] {
      handle(WorkerExited{id, 127, how});
    });
  }
}

void ElasticRun::perform(const StopWorker& stop) {
  if (const auto number = numbers_.find(stop.worker); number != numbers_.end())
    supervisor_.stop(number->second);
}

void ElasticRun::perform(const BlacklistHost& blacklist) {
  supervisor_.say(blacklist.host + " is blacklisted " +
                  (blacklist.until ? "for " + text_of(*blacklist.until - now()) : "for good"));
}

void ElasticRun::perform(const EndJob& end) {
  if (!end.success) supervisor_.say("the job has failed: " + end.why);
  const auto close = [this, status = end.success ? 0 : 1] { supervisor_.close(status); };
  if (discovery_ == nullptr) return close();
  discovery_->stop([this, close] { asio::post(context_, close); });
}

// First the store, so that a successor finds its name free, and the other workers learn of the death.
void ElasticRun::exited(std::size_t number, const Failure& exit) {
  if (stopped_) return;
  const Running worker = running_.at(number);
  running_.erase(number);
  numbers_.erase(worker.id);
  ids_.erase(worker.name);
  WorkerExited event{worker.id, exit.status, exit.how};
  if (!exit.last_error.empty()) event.details = "; its last errors:" + indented(exit.last_error);
  store_.end(worker.name, [this, name = worker.name, event](std::uint64_t incarnation) {
    if (incarnation != 0) ended_[name] = incarnation;
    handle(event);
  });
}

void ElasticRun::joined(const std::string& name, std::uint64_t incarnation) {
  const auto worker = ids_.find(name);
  const auto ended = ended_.find(name);
  if (worker == ids_.end() || (ended != ended_.end() && ended->second == incarnation)) return;
  handle(WorkerReady{worker->second});
}

// The supervisor ends, by itself or by a signal: nothing else may keep the io_context busy.
void ElasticRun::stop_all() {
  if (std::exchange(stopped_, true)) return;
  wake_.cancel();
  store_.close();
  if (discovery_ != nullptr) discovery_->stop([] {});
}

}  // namespace

WorkerPlan plan_worker(const ElasticJob& job, const StartWorker& start) {
  WorkerPlan worker;
  worker.local_rank = start.slot;
  worker.rank = start.rank;
  worker.name = "worker" + std::to_string(start.rank);
  auto& variables = worker.environment;
  // None of the ranks that this process may have itself: a worker of an elastic world joins without one.
  for (const char* name : {"RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
                           "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "WEFT_ROLE", "WEFT_ROLE_SIZE"})
    variables[name] = "";
  variables["WEFT_ELASTIC_WORLD"] = "1";
  variables["WEFT_STORE"] = job.store;
  variables["WEFT_NAME"] = worker.name;
  variables["WEFT_ROLE_RANK"] = std::to_string(start.rank);
  variables["WEFT_MIN_WORKERS"] = std::to_string(job.driver.min_workers);
  variables["WEFT_MAX_WORKERS"] = std::to_string(job.driver.max_workers);
  variables["LOCAL_RANK"] = std::to_string(start.slot);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(start.slots);
  variables["TORCHELASTIC_RUN_ID"] = job.id;
  if (job.threads) variables["OMP_NUM_THREADS"] = std::to_string(*job.threads);
  if (job.insecure) variables["WEFT_INSECURE"] = "1";
  if (!job.credentials.secret_file.empty()) variables["WEFT_SECRET"] = job.credentials.secret_file;
  return worker;
}

int run_elastic(const ElasticJob& job) {
  asio::io_context context;
  ElasticRun run(context, job);
  return run.run();
}

}  // namespace weft::tool::launch::elastic
