#include "tools/weft/launch/keep_running.h"

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>

#include <chrono>
#include <exception>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "tools/weft/duration.h"

namespace weft::tool::launch {
namespace {

class KeptWorkers {
 public:
  KeptWorkers(SupervisorOptions supervised, const KeepRunningOptions& options)
      : max_restarts_(options.max_restarts),
        waits_(options.waits, std::random_device{}()),
        timer_(context_),
        supervisor_(context_, open(supervised)) {}

  int run() {
    supervisor_.start();
    for (const auto& [name, worker] : kept_) start(name);
    context_.run();
    return supervisor_.status();
  }

 private:
  using Time = elastic::Blacklist::Time;
  struct Kept {
    AddedWorker worker;
    Time started{0};
  };

  // Takes the workers out of the options, because an open supervisor is given each worker by add().
  SupervisorOptions open(SupervisorOptions& supervised) {
    for (WorkerPlan& plan : std::exchange(supervised.workers, {})) {
      const std::string name = plan.name;
      kept_[name].worker = {.plan = std::move(plan), .command = supervised.command};
    }
    left_ = kept_.size();
    supervised.on_exit = [this](std::size_t number, const Failure& exit) {
      const std::string name = running_.extract(number).mapped();
      if (exit.status == 0)
        --left_;
      else
        failed(name, exit);
      if (left_ == 0 || (given_up_ && running_.empty())) supervisor_.close(supervisor_.status());
    };
    supervised.on_end = [this] { timer_.cancel(); };
    return std::move(supervised);
  }

  static Time now() { return std::chrono::steady_clock::now().time_since_epoch(); }

  void start(const std::string& name) {
    Kept& kept = kept_.at(name);
    kept.started = now();
    running_[supervisor_.add(kept.worker)] = name;
  }

  void failed(const std::string& name, Failure failure) {
    if (given_up_) return;
    const Time when = now();
    waits_.fail(name, when, when - kept_.at(name).started);
    const std::size_t restarts = waits_.state().hosts.at(name).times;  // in a row, with the next one
    if (max_restarts_ && restarts > *max_restarts_) {
      given_up_ = true;
      failure.how += " after " + std::to_string(*max_restarts_) +
                     (*max_restarts_ == 1 ? " restart" : " restarts") +
                     " in a row, and --max-restarts permits no further one";
      return supervisor_.end(failure);
    }
    const std::string errors =
        failure.last_error.empty() ? "" : "; its last errors:" + indented(failure.last_error);
    supervisor_.say(failure.who + " " + failure.how + ", and starts again in " +
                    text_of(*waits_.until(name) - when) + errors);
    await_next();
  }

  void await_next() {
    const auto next = waits_.next_release();
    if (!next) return;
    timer_.expires_at(std::chrono::steady_clock::time_point(
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(*next)));
    timer_.async_wait([this](asio::error_code error) {
      if (error || given_up_ || supervisor_.ending()) return;
      for (const std::string& name : waits_.release(now())) {
        try {
          start(name);
        } catch (const std::exception& problem) {  // the file of the program is being replaced, for example
          failed(name, {kept_.at(name).worker.plan.title(), "did not start", problem.what(), 1});
        }
      }
      await_next();
    });
  }

  const std::optional<std::size_t> max_restarts_;
  std::map<std::string, Kept> kept_;            // all workers, by name
  std::map<std::size_t, std::string> running_;  // by the supervisor's number
  std::size_t left_ = 0;                        // workers that have not exited with status 0
  bool given_up_ = false;                       // a worker has failed too often, and the others end
  elastic::Blacklist waits_;                    // "blacklisted": waits for its restart
  asio::io_context context_;
  asio::steady_timer timer_;
  Supervisor supervisor_;
};

}  // namespace

int keep_running(SupervisorOptions supervised, const KeepRunningOptions& options) {
  return KeptWorkers(std::move(supervised), options).run();
}

}  // namespace weft::tool::launch
