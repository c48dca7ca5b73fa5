#include "tools/weft/launch/elastic/keeper.h"

#include <weft/rpc/core/asio_loop.h>

#include <signal.h>
#include <sys/prctl.h>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include <utility>

#include "tools/weft/duration.h"
#include "tools/weft/errors.h"
#include "tools/weft/launch/elastic/attached.h"

namespace weft::tool::launch::elastic {
namespace {

constexpr auto report_timeout = std::chrono::seconds{10};

}  // namespace

Keeper::Keeper(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store, std::string worker,
               std::chrono::nanoseconds orphan_wait, Calls calls)
    : loop_(std::move(loop)),
      store_(std::move(store)),
      worker_(std::move(worker)),
      orphan_wait_(orphan_wait),
      calls_(std::move(calls)) {
  const auto lease = store_->grant(takeover_lease(orphan_wait_)).get();
  const auto set =
      store_->compare_set(takeover_keys::worker(worker_), std::nullopt, to_text(record_), lease.id).get();
  if (!set.stored) throw UsageError("--keep " + worker_ + ": this worker has a keeper already");
  lease_.emplace(store_, loop_, lease,
                 [this](const rpc::Error&) { stop("its keeper's lease in the store has ended"); });
  watch_.emplace(loop_, store_, std::string(takeover_keys::orders),
                 [this](const rpc::StoreChanges& changes) { changed(changes); });
}

Keeper::~Keeper() { loop_->cancel(timer_); }

void Keeper::changed(const rpc::StoreChanges& changes) {
  const auto order = changes.entries.find(takeover_keys::order(worker_));
  if (order != changes.entries.end() && order->second) return stop("was stopped by the driver");
  const auto driver = changes.entries.find(std::string(takeover_keys::lease));
  const bool told = driver != changes.entries.end();
  if (told || changes.whole || !started_) {
    loop_->cancel(timer_);
    if (!told || !driver->second) await_driver();
  }
  if (!std::exchange(started_, true)) calls_.start();
}

void Keeper::await_driver() {
  timer_ = loop_->schedule(rpc::later(loop_->now(), orphan_wait_), [this] {
    record_.orphaned = true;
    stop("was ended after " + text_of(orphan_wait_) + " without a driver");
  });
}

void Keeper::stop(const std::string& why) {
  if (record_.ended) return;
  loop_->cancel(timer_);
  if (record_.how.empty()) record_.how = why;
  if (started_) return calls_.stop(why);
  ended({"", "", "", 128 + SIGTERM});
}

void Keeper::ended(const Failure& end) {
  if (std::exchange(record_.ended, true)) return;
  watch_.reset();
  lease_.reset();
  loop_->cancel(timer_);
  record_.status = end.status;
  if (record_.how.empty()) record_.how = end.how;
  record_.last_error = end.last_error;
  timer_ = loop_->schedule(loop_->now() + report_timeout, [this] { reported(); });
  store_->set(takeover_keys::worker(worker_), to_text(record_))
      .then([this, loop = loop_, alive = std::weak_ptr(alive_)](rpc::Result<void>&&) {
        loop->post([this, alive] {
          if (!alive.expired()) reported();
        });
      });
}

void Keeper::reported() {
  if (timer_ == 0) return;
  loop_->cancel(std::exchange(timer_, 0));
  calls_.reported();
}

// --- The process of a keeper ---

void outlive_the_driver() { ::prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0); }

int run_keeper(const KeeperOptions& options) {
  asio::io_context context;
  const OpenedStore opened = open_store(options.store);
  const std::shared_ptr<void> at_end(nullptr, [&](void*) { opened.close(); });
  std::optional<Supervisor> supervisor;
  std::optional<Keeper> keeper;
  std::exception_ptr problem;
  Failure end;
  Keeper::Calls calls;
  calls.start = [&] {
    SupervisorOptions worker = attached_options(options.command, options.grace);
    worker.logs = options.logs;
    worker.append = worker.unread = true;
    worker.on_failure = [&](const Failure& failure) { end = failure; };
    worker.on_end = [&] {
      end.status = supervisor->status();
      if (end.how.empty()) end.how = "ended with status " + std::to_string(end.status);
      keeper->ended(end);
    };
    supervisor.emplace(context, std::move(worker));
    try {
      supervisor->start();
    } catch (...) {
      problem = std::current_exception();
      supervisor.reset();
      const Told told = tell(problem);
      keeper->ended({"", "was not started: " + told.text, "", static_cast<int>(told.exit)});
    }
  };
  calls.stop = [&](const std::string& why) { supervisor->end({"the worker", why, "", 128 + SIGTERM}); };
  calls.reported = [&] { context.stop(); };
  keeper.emplace(std::make_shared<rpc::AsioLoop>(context), opened.store, options.worker, options.orphan_wait,
                 std::move(calls));
  const auto work = asio::make_work_guard(context);
  context.run();
  if (problem) std::rethrow_exception(problem);
  return keeper->status();
}

}  // namespace weft::tool::launch::elastic
