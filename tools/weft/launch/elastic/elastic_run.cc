#include "tools/weft/launch/elastic/elastic_run.h"

#include <weft/rpc/core/asio_loop.h>

#include <signal.h>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "tools/weft/duration.h"
#include "tools/weft/errors.h"
#include "tools/weft/launch/cores.h"
#include "tools/weft/launch/elastic/discovery.h"
#include "tools/weft/launch/elastic/job_store.h"
#include "tools/weft/launch/elastic/remote.h"
#include "tools/weft/launch/elastic/takeover.h"
#include "tools/weft/launch/process.h"
#include "tools/weft/launch/supervisor.h"

namespace weft::tool::launch::elastic {
namespace {

using std::chrono::nanoseconds;

// If the keeper of a worker has not registered within this time after the takeover, the worker counts as not
// started.
constexpr auto keeper_wait = std::chrono::seconds{5};

// The status of a worker that has left the job after a SIGTERM, which a batch system may have sent.
constexpr int left_status = 128 + SIGTERM;

std::string worker_name(std::size_t rank) { return "worker" + std::to_string(rank); }

// A running job.
class ElasticRun {
 public:
  ElasticRun(asio::io_context& context, const ElasticJob& job);
  int run();

 private:
  struct Running {
    std::string name;
    bool here = false;  // the worker runs on this host
    Membership member = {};
  };

  SupervisorOptions supervisor_options();
  Takeover::Calls takeover_calls();
  ElasticDriver::Time now() const { return std::chrono::steady_clock::now().time_since_epoch() + ahead_; }

  // Takeover.
  void drive(std::optional<SavedJob> job);
  void compare(const SavedJob& job, const Takeover::Workers& kept, bool again);
  void continue_job(const SavedJob& job);
  void drop_missing();
  void begin();
  void save();
  void step_down(const std::string& why);
  bool interrupt(int number, const std::string& how);
  void kept_changed(WorkerId id, const std::optional<KeptWorker>& record);

  void handle(const Event& event);
  void perform_later(std::function<void()> action);
  void perform(const StartWorker& start);
  void perform(const StopWorker& stop);
  void perform(const BlacklistHost& blacklist);
  void perform(const Note& note) { supervisor_.say(note.text); }
  void perform(const EndJob& end);
  AddedWorker added(const StartWorker& start) const;
  void exited(std::size_t number, const Failure& exit);
  void gone(const WorkerExited& event);
  void look();
  void wake_later();
  void stop_all();

  asio::io_context& context_;
  const std::shared_ptr<rpc::Loop> loop_;  // a loop on context_
  const ElasticJob& job_;
  std::string id_;  // the id of the job
  Supervisor supervisor_;
  JobStore store_;
  std::optional<Takeover> takeover_;  // set if workers may outlive this driver
  std::optional<ElasticDriver> driver_;
  std::unique_ptr<Discovery> discovery_;
  asio::steady_timer wake_, missing_;
  // Added to the steady clock, so that a driver continues the time of the driver before it.
  nanoseconds ahead_{0};
  std::map<WorkerId, Running> workers_;         // the workers that have been started
  std::map<std::size_t, WorkerId> numbers_;     // child processes, by the supervisor's number
  std::map<std::string, std::uint64_t> ended_;  // the last incarnation of a name that has ended
  std::vector<std::function<void()>> undone_;   // actions that wait for the save of their state
  std::set<WorkerId> kept_;                     // workers whose keepers are registered
  std::set<WorkerId> leaving_;                  // workers whose end is not saved yet
  std::string saved_;                           // the driver's state that was saved last, or is being saved
  bool saving_ = false, driving_ = false, stopped_ = false;
  std::optional<int> interrupted_;  // the status to end with
};

ElasticRun::ElasticRun(asio::io_context& context, const ElasticJob& job)
    : context_(context),
      loop_(std::make_shared<rpc::AsioLoop>(context)),
      job_(job),
      id_(job.id),
      supervisor_(context, supervisor_options()),
      store_(loop_, open_job_store({job.store, job.credentials, job.insecure}), [this] { look(); }),
      wake_(context),
      missing_(context) {
  const nanoseconds orphan_wait = parse_duration(job.orphan_wait);
  if (orphan_wait > nanoseconds{0})  // otherwise this process drives the job at once
    takeover_.emplace(loop_, store_.store(), takeover_lease(orphan_wait), takeover_calls());
  if (!job.discovery) return;
  Discovery::Options options{*job.discovery, job.slots, job.poll};
  discovery_ = std::make_unique<Discovery>(
      context, options, [this](std::vector<HostSlots> hosts) { handle(HostsFound{std::move(hosts)}); },
      [this](const std::string& why) { handle(DiscoveryFailed{why}); });
}

SupervisorOptions ElasticRun::supervisor_options() {
  SupervisorOptions options;
  options.command = job_.command;
  if (parse_duration(job_.orphan_wait) == nanoseconds{0})
    options.logs = job_.logs;  // otherwise the keepers write the logs
  options.prefix = job_.prefix;
  options.grace = parse_duration(job_.grace);
  options.on_failure = [this](const Failure&) { stop_all(); };
  options.on_exit = [this](std::size_t number, const Failure& exit) { exited(number, exit); };
  // Handles the exit later, because the supervisor is still handling the event itself.
  options.on_child_exit = [this](pid_t child, int status) {
    if (discovery_ != nullptr)
      asio::post(context_, [this, child, status] { discovery_->child_exited(child, status); });
  };
  // Until here the store is needed: workers that are stopped make a commit and leave the job.
  options.on_end = [this] {
    stop_all();
    store_.close();
  };
  if (parse_duration(job_.orphan_wait) > nanoseconds{0})
    options.on_signal = [this](int number, const std::string& how) { return interrupt(number, how); };
  return options;
}

int ElasticRun::run() {
  supervisor_.start();
  if (takeover_) {
    takeover_->acquire();
  } else {
    driver_.emplace(job_.driver, now());
    begin();
  }
  context_.run();
  takeover_.reset();
  store_.close();
  return supervisor_.status();
}

void ElasticRun::begin() {
  driving_ = true;
  if (discovery_ != nullptr)
    discovery_->start();
  else
    handle(HostsFound{job_.hosts});
  wake_later();
}

void ElasticRun::handle(const Event& event) {
  if (stopped_) return;
  for (const Action& action : driver_->handle(now(), event))
    perform_later([this, action] { std::visit([this](const auto& it) { perform(it); }, action); });
  save();
  wake_later();
}

// --- Takeover ---

Takeover::Calls ElasticRun::takeover_calls() {
  return {[this] {
            supervisor_.say("another driver runs this job, or has died: waiting for its lease to expire");
          },
          [this](std::optional<SavedJob> job) { drive(std::move(job)); },
          [this](const std::string& why) { step_down(why); },
          [this](WorkerId id, const std::optional<KeptWorker>& record) { kept_changed(id, record); }};
}

void ElasticRun::drive(std::optional<SavedJob> job) {
  const nanoseconds wall = std::chrono::system_clock::now().time_since_epoch();
  ahead_ =
      std::max(wall, job ? job->at : nanoseconds{0}) - std::chrono::steady_clock::now().time_since_epoch();
  if (job)
    return takeover_->list(job->id,
                           [this, job = *job](const Takeover::Workers& kept) { compare(job, kept, false); });
  driver_.emplace(job_.driver, now());
  takeover_->watch(id_);
  begin();
}

// Compares the saved workers with the records of their keepers. If no worker is left, the state in their
// memory is lost, and the job restarts.
void ElasticRun::compare(const SavedJob& job, const Takeover::Workers& kept, bool again) {
  const DriverState& state = job.driver;
  const bool undecided = state.phase == DriverPhase::waiting || state.phase == DriverPhase::running;
  const bool alive = std::any_of(kept.begin(), kept.end(), [](const auto& worker) {
    return !worker.second.ended || worker.second.status == 0;
  });
  if (!undecided || alive) return continue_job(job);
  const auto missing = [&](const auto& worker) { return !kept.contains(worker.first); };
  if (!again && std::any_of(state.workers.begin(), state.workers.end(), missing)) {
    missing_.expires_after(keeper_wait);
    return missing_.async_wait([this, job](asio::error_code error) {
      if (error) return;
      takeover_->list(job.id,
                      [this, job](const Takeover::Workers& now_kept) { compare(job, now_kept, true); });
    });
  }
  supervisor_.say("no worker of the last driver is left: the job restarts");
  takeover_->watch(job.id);
  for (const auto& [id, worker] : state.workers)
    kept.contains(id) ? takeover_->forget(id) : takeover_->stop(id);
  driver_.emplace(job_.driver, now());
  takeover_->watch(id_);
  begin();
}

void ElasticRun::continue_job(const SavedJob& job) {
  id_ = job.id;
  supervisor_.say("takes over " + std::to_string(job.driver.workers.size()) +
                  (job.driver.workers.size() == 1 ? " worker" : " workers"));
  for (const auto& [id, worker] : job.driver.workers)
    workers_[id] = {worker_name(worker.rank), is_this_host(worker.host)};
  driver_.emplace(job_.driver, now());
  takeover_->watch(id_);
  for (const Action& action : driver_->restore(now(), job.driver))
    perform_later([this, action] { std::visit([this](const auto& it) { perform(it); }, action); });
  look();
  missing_.expires_after(keeper_wait);
  missing_.async_wait([this](asio::error_code error) {
    if (!error) drop_missing();
  });
  begin();
  save();
}

// Drops workers that the last driver had not started when it died. If a worker still runs that had joined
// under the last driver, and it has no record, its lease has ended meanwhile.
void ElasticRun::drop_missing() {
  const DriverState state = driver_->save();
  for (const auto& [id, worker] : std::map(workers_)) {
    if (kept_.contains(id)) {
      const auto known = state.workers.find(id);
      if (job_.driver.start_timeout > nanoseconds{0} && known != state.workers.end() && known->second.ready &&
          !worker.member.incarnation)
        workers_.at(id).member.incarnation = 0;
      continue;
    }
    if (std::any_of(numbers_.begin(), numbers_.end(),
                    [number = id](const auto& child) { return child.second == number; }))
      continue;  // a worker of this driver
    takeover_->stop(id);
    gone({id, 137, "was not started before its driver died", {}, true});
  }
  look();
}

// Actions are executed when the state from which they follow is saved. Changes that happen during a save are
// saved together by the next save.
void ElasticRun::save() {
  if (!takeover_ || !driving_) {
    for (auto& action : std::exchange(undone_, {})) action();
    return;
  }
  if (saving_ || stopped_) return;
  SavedJob job{id_, now(), driver_->save()};
  std::string text = to_text(job.driver);
  if (text == saved_) {
    for (auto& action : std::exchange(undone_, {})) action();
    return;
  }
  saved_ = std::move(text);
  saving_ = true;
  takeover_->save(job, [this, actions = std::exchange(undone_, {})] {
    saving_ = false;
    for (const auto& action : actions) action();
    save();
  });
}

void ElasticRun::perform_later(std::function<void()> action) { undone_.push_back(std::move(action)); }

void ElasticRun::step_down(const std::string& why) {
  supervisor_.say("this driver ends, and leaves the workers: " + why);
  supervisor_.abandon(1);
}

// The job ends as after a failure: workers that are not children of this process are ended, too.
bool ElasticRun::interrupt(int number, const std::string& how) {
  if (!driving_ || stopped_) return false;
  interrupted_ = 128 + number;
  handle(Interrupted{"the launcher " + how});
  return true;
}

void ElasticRun::kept_changed(WorkerId id, const std::optional<KeptWorker>& record) {
  const bool known = workers_.contains(id);
  if (record && !record->ended) {
    kept_.insert(id);
    if (!known) takeover_->stop(id);  // the keeper has registered too late
    return;
  }
  kept_.erase(id);
  if (record && !known && !leaving_.contains(id)) return takeover_->forget(id);
  if (!known) return;
  if (!record) return gone({id, 137, "was lost: its keeper no longer answers"});
  WorkerExited event{id, record->status, record->how, {}, record->orphaned};
  if (!record->last_error.empty()) event.details = "; its last errors:" + indented(record->last_error);
  gone(event);
}

// --- Workers ---

void ElasticRun::wake_later() {
  wake_.cancel();
  const auto next = driver_->next_wake();
  if (!next || stopped_) return;
  wake_.expires_at(asio::steady_timer::time_point(
      std::chrono::duration_cast<asio::steady_timer::duration>(*next - ahead_)));
  wake_.async_wait([this](asio::error_code error) {
    if (!error) handle(TimePassed{});
  });
}

AddedWorker ElasticRun::added(const StartWorker& start) const {
  AddedWorker worker{plan_worker(job_, start), job_.command, takeover_.has_value()};
  worker.plan.environment["TORCHELASTIC_RUN_ID"] = id_;
  RemoteWorker remote{
      std::filesystem::current_path().string(), {}, job_.remote_weft, job_.grace, job_.command};
  if (takeover_) {
    remote.options = {"--keep", id_ + "/" + std::to_string(start.worker), "--orphan-wait", job_.orphan_wait};
    if (!job_.logs.empty()) remote.options.insert(remote.options.end(), {"--logs", job_.logs});
  }
  if (is_this_host(start.host)) {
    remote.weft = std::filesystem::read_symlink("/proc/self/exe").string();
    if (takeover_) worker.command = attached_words(remote);
    const char* const threads = std::getenv("OMP_NUM_THREADS");
    if (!job_.threads && (threads == nullptr || *threads == '\0'))
      worker.plan.environment["OMP_NUM_THREADS"] = std::to_string(threads_share(start.slots));
    return worker;
  }
  if (!job_.reachable)
    throw UsageError("workers on '" + start.host +
                     "' cannot reach the job's store on this host: give its address with --rendezvous "
                     "HOST:PORT or --store");
  remote.variables = worker.plan.environment;
  for (const std::string& name : job_.passed_variables)
    if (const char* const value = std::getenv(name.c_str())) remote.variables.emplace(name, value);
  worker.command = rsh_words(job_.rsh, start.host, remote_command(remote));
  worker.input = remote_input(remote);
  worker.plan.environment.clear();
  worker.stopped_by_input = true;
  return worker;
}

void ElasticRun::perform(const StartWorker& start) {
  try {
    AddedWorker worker = added(start);
    const std::string name = worker.plan.name;
    numbers_[supervisor_.add(std::move(worker))] = start.worker;
    const auto before = ended_.find(name);
    workers_[start.worker] = {name, is_this_host(start.host), {before == ended_.end() ? 0 : before->second}};
  } catch (const std::exception& error) {
    asio::post(context_, [this, id = start.worker, how = std::string("was not started: ") + error.what()] {
      handle(WorkerExited{id, 127, how});
    });
  }
}

void ElasticRun::perform(const StopWorker& stop) {
  if (takeover_) takeover_->stop(stop.worker);
  for (const auto& [number, id] : numbers_)
    if (id == stop.worker) supervisor_.stop(number);
}

void ElasticRun::perform(const BlacklistHost& blacklist) {
  supervisor_.say(blacklist.host + " is blacklisted " +
                  (blacklist.until ? "for " + text_of(*blacklist.until - now()) : "for good"));
}

void ElasticRun::perform(const EndJob& end) {
  if (!end.success && !interrupted_) supervisor_.say("the job has failed: " + end.why);
  const auto close = [this, status = end.success ? 0 : interrupted_.value_or(1)] {
    if (!takeover_) return supervisor_.close(status);
    takeover_->release([this, status] { supervisor_.close(status); });
  };
  if (discovery_ == nullptr) return close();
  discovery_->stop([this, close] { asio::post(context_, close); });
}

// A child process has ended. If the worker has a keeper, only the keeper's record determines how the worker
// has ended.
void ElasticRun::exited(std::size_t number, const Failure& exit) {
  if (stopped_) return;
  const WorkerId id = numbers_.at(number);
  numbers_.erase(number);
  WorkerExited event{id, exit.status, exit.how};
  if (!exit.last_error.empty()) event.details = "; its last errors:" + indented(exit.last_error);
  if (!takeover_) return gone(event);
  takeover_->list(id_, [this, event](const Takeover::Workers& kept) {
    const auto record = kept.find(event.worker);
    const auto worker = workers_.find(event.worker);
    if (worker == workers_.end()) return;
    if (record != kept.end() && (record->second.ended || !worker->second.here))
      return record->second.ended ? kept_changed(event.worker, record->second)
                                  : supervisor_.say("the connection to " + worker->second.name +
                                                    " is lost; the worker continues");
    gone(event);
  });
}

// First marks the end in the store, so that a successor can use the worker's name and the other workers are
// notified of the death.
void ElasticRun::gone(const WorkerExited& event) {
  const auto found = workers_.find(event.worker);
  if (found == workers_.end()) return;
  const std::string name = found->second.name;
  workers_.erase(found);
  if (takeover_) leaving_.insert(event.worker);
  const auto marked = [this, name, event](const JobStore::End& end) {
    // If the worker has never joined, the record may be that of the last incarnation that has ended.
    std::uint64_t& last = ended_[name];
    const bool left = event.status == left_status && end.left && end.incarnation != last;
    if (end.incarnation != 0)
      last = end.incarnation;
    else if (const rpc::MemberRecord* const record = store_.record(name))
      last = record->incarnation;  // the store has not answered
    if (takeover_)
      perform_later([this, id = event.worker] {
        takeover_->forget(id);
        leaving_.erase(id);
      });
    handle(left ? WorkerExited{event.worker, event.status, "has left the job", {}, true} : event);
  };
  store_.end(name, marked, takeover_ ? takeover_->owner() : std::string());
}

// Passes on what the store states about the workers: first which have joined, because the job fails if its
// last ready worker fails.
void ElasticRun::look() {
  if (stopped_ || !store_.reported()) return;
  std::vector<Event> news, failures;
  for (auto& [id, worker] : workers_)
    while (const auto event =
               news_of(id, worker.member, store_.record(worker.name), store_.exclusion(worker.name)))
      (std::holds_alternative<WorkerReady>(*event) ? news : failures).push_back(*event);
  news.insert(news.end(), failures.begin(), failures.end());
  for (const Event& event : news) handle(event);
}

// The supervisor has ended, by itself or by a signal. Stops all other work, so that the io_context can
// return.
void ElasticRun::stop_all() {
  if (std::exchange(stopped_, true)) return;
  wake_.cancel();
  missing_.cancel();
  takeover_.reset();
  if (discovery_ != nullptr) discovery_->stop([] {});
}

}  // namespace

std::optional<Event> news_of(WorkerId worker, Membership& known, const rpc::MemberRecord* record,
                             const JobStore::Exclusion* exclusion) {
  if (record != nullptr && record->here() && record->incarnation != known.before &&
      record->incarnation != known.incarnation) {
    known.incarnation = record->incarnation;
    return WorkerReady{worker};
  }
  if (!known.incarnation || known.failed) return std::nullopt;
  const bool own = record != nullptr && (known.incarnation == 0U || known.incarnation == record->incarnation);
  std::optional<Event> event;
  if (record == nullptr)
    event = WorkerLost{worker, "its lease in the job's store has ended"};
  else if (own && record->state == rpc::MemberState::lost)
    event = WorkerLost{worker, "the job's store reports its loss"};
  else if (own && record->state == rpc::MemberState::left)
    known.incarnation.reset();
  else if (exclusion != nullptr && known.incarnation == exclusion->incarnation)
    event = WorkerExcluded{worker, exclusion->why};
  known.failed = event.has_value();
  return event;
}

WorkerPlan plan_worker(const ElasticJob& job, const StartWorker& start) {
  WorkerPlan worker;
  worker.local_rank = start.slot;
  worker.rank = start.rank;
  worker.name = worker_name(start.rank);
  auto& variables = worker.environment;
  // Removes the ranks that this process's environment may contain: a worker of an elastic world joins without
  // a rank.
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
  if (!job.detection.empty()) variables["WEFT_DETECTION"] = job.detection;
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
