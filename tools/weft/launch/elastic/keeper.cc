#include "tools/weft/launch/elastic/keeper.h"

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/store/lease_keeper.h>

#include <signal.h>
#include <sys/prctl.h>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <memory>
#include <optional>
#include <utility>

#include "tools/weft/duration.h"
#include "tools/weft/errors.h"
#include "tools/weft/launch/elastic/attached.h"
#include "tools/weft/launch/elastic/store_watch.h"
#include "tools/weft/launch/elastic/takeover.h"

namespace weft::tool::launch::elastic {
namespace {

constexpr auto report_timeout = std::chrono::seconds{10};

class Keeper {
 public:
  explicit Keeper(const KeeperOptions& options)
      : options_(options), opened_(open_store(options.store)), orphaned_(context_), report_(context_) {}
  ~Keeper() { opened_.close(); }

  int run();

 private:
  void register_worker();
  void changed(const rpc::StoreChanges& changes);
  void start();
  void end(const std::string& why);
  void ended();

  const KeeperOptions options_;
  OpenedStore opened_;
  asio::io_context context_;
  asio::steady_timer orphaned_, report_;
  std::optional<rpc::LeaseKeeper> lease_;
  std::optional<StoreWatch> watch_;
  std::optional<Supervisor> supervisor_;
  std::exception_ptr problem_;
  KeptWorker record_;
  int status_ = 128 + SIGTERM;
  bool started_ = false;
};

// Before the worker starts, the driver can see it in the store: a worker that nobody knows is never left
// behind.
void Keeper::register_worker() {
  const auto lease = opened_.store->grant(takeover_lease(options_.orphan_wait)).get();
  const std::string text = to_text(record_);
  const auto set =
      opened_.store->compare_set(takeover_keys::worker(options_.worker), std::nullopt, text, lease.id).get();
  if (!set.stored) throw UsageError("--keep " + options_.worker + ": this worker has a keeper already");
  lease_.emplace(opened_.store, std::make_shared<rpc::AsioLoop>(context_), lease,
                 [this](const rpc::Error&) { end("its keeper's lease in the store has ended"); });
}

int Keeper::run() {
  register_worker();
  watch_.emplace(context_, opened_.store, std::string(takeover_keys::orders),
                 [this](const rpc::StoreChanges& changes) { changed(changes); });
  const auto work = asio::make_work_guard(context_);
  context_.run();
  if (problem_) std::rethrow_exception(problem_);
  return status_;
}

void Keeper::changed(const rpc::StoreChanges& changes) {
  const auto order = changes.entries.find(takeover_keys::order(options_.worker));
  if (order != changes.entries.end() && order->second) return end("was stopped by the driver");
  const auto driver = changes.entries.find(std::string(takeover_keys::lease));
  const bool known = driver != changes.entries.end() || changes.whole || !started_;
  if (known && (driver == changes.entries.end() || !driver->second)) {
    orphaned_.expires_after(std::chrono::duration_cast<asio::steady_timer::duration>(options_.orphan_wait));
    orphaned_.async_wait([this](asio::error_code error) {
      if (error) return;
      record_.orphaned = true;
      end("was ended after " + text_of(options_.orphan_wait) + " without a driver");
    });
  } else if (known) {
    orphaned_.cancel();
  }
  if (!std::exchange(started_, true)) start();
}

void Keeper::start() {
  SupervisorOptions options = attached_options(options_.command, options_.grace);
  options.logs = options_.logs;
  options.append = options.unread = true;
  options.on_failure = [this](const Failure& failure) {
    record_.how = failure.how;
    record_.last_error = failure.last_error;
  };
  options.on_end = [this] { ended(); };
  supervisor_.emplace(context_, std::move(options));
  try {
    supervisor_->start();
  } catch (...) {
    problem_ = std::current_exception();
    const Told told = tell(problem_);
    record_.how = "was not started: " + told.text;
    status_ = static_cast<int>(told.exit);
    supervisor_.reset();
    ended();
  }
}

void Keeper::end(const std::string& why) {
  if (record_.how.empty()) record_.how = why;
  if (supervisor_) return supervisor_->end({"the worker", why, "", 128 + SIGTERM});
  started_ = true;
  ended();
}

void Keeper::ended() {
  if (std::exchange(record_.ended, true)) return;
  watch_.reset();
  lease_.reset();
  orphaned_.cancel();
  if (supervisor_) status_ = supervisor_->status();
  record_.status = status_;
  if (record_.how.empty()) record_.how = "ended with status " + std::to_string(status_);
  report_.expires_after(report_timeout);
  report_.async_wait([this](asio::error_code error) {
    if (!error) context_.stop();
  });
  opened_.store->set(takeover_keys::worker(options_.worker), to_text(record_))
      .then([this](rpc::Result<void>&&) { context_.stop(); });
}

}  // namespace

void outlive_the_driver() { ::prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0); }

int run_keeper(const KeeperOptions& options) {
  Keeper keeper(options);
  return keeper.run();
}

}  // namespace weft::tool::launch::elastic
