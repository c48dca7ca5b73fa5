#include <weft/rpc/core/asio_loop.h>

#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <map>
#include <optional>
#include <unordered_map>

namespace weft::rpc {

struct AsioLoop::Own {
  asio::io_context context{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work =
      asio::make_work_guard(context);
};

struct AsioLoop::Timers : std::enable_shared_from_this<Timers> {
  using Key = std::pair<Clock::time_point, TimerId>;

  explicit Timers(asio::io_context& context) : timer(context) {}

  void arm() {
    if (entries.empty()) return;
    const Clock::time_point first = entries.begin()->first.first;
    if (armed && *armed <= first) return;
    armed = first;
    timer.expires_at(first);
    timer.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->expire();
    });
  }

  void disarm() {
    armed.reset();
    timer.cancel();
  }

  void expire() {
    armed.reset();
    const Clock::time_point now = Clock::now();
    while (!entries.empty() && entries.begin()->first.first <= now) {
      auto node = entries.extract(entries.begin());
      when.erase(node.key().second);
      node.mapped()();
    }
    arm();
  }

  asio::steady_timer timer;
  std::map<Key, Job> entries;
  std::unordered_map<TimerId, Clock::time_point> when;
  std::optional<Clock::time_point> armed;
  TimerId last = 0;
};

AsioLoop::AsioLoop()
    : own_(std::make_shared<Own>()),
      context_(own_->context),
      timers_(std::make_shared<Timers>(context_)),
      thread_([own = own_] {
        OwnedThread mark;
        own->context.run();
      }) {}

AsioLoop::AsioLoop(asio::io_context& context)
    : context_(context), timers_(std::make_shared<Timers>(context)) {}

AsioLoop::~AsioLoop() { stop(); }

void AsioLoop::stop() {
  if (own_ == nullptr || !thread_.joinable()) return;
  asio::post(context_, [own = std::weak_ptr(own_), timers = timers_] {
    timers->entries.clear();
    timers->when.clear();
    timers->disarm();
    if (const auto alive = own.lock()) alive->work.reset();
  });
  if (running_here()) {
    thread_.detach();  // the last owner let go on the loop itself: the thread ends after this job
    return;
  }
  thread_.join();
  stopped_ = true;
  if (late_jobs_++ == 0) run_late_jobs();  // what came between the thread's end and the line above
}

void AsioLoop::post(Job job) {
  asio::post(context_, std::move(job));
  if (!stopped_) return;
  if (late_jobs_++ == 0) run_late_jobs();
}

// The first that comes runs the jobs of all, until nobody has come since.
void AsioLoop::run_late_jobs() {
  std::size_t seen;
  do {
    seen = late_jobs_;
    context_.restart();
    context_.poll();
  } while (late_jobs_.fetch_sub(seen) != seen);
}

bool AsioLoop::running_here() const { return context_.get_executor().running_in_this_thread(); }

Loop::TimerId AsioLoop::schedule(Clock::time_point when, Job job) {
  const TimerId id = ++timers_->last;
  timers_->entries.emplace(Timers::Key{when, id}, std::move(job));
  timers_->when.emplace(id, when);
  timers_->arm();
  return id;
}

void AsioLoop::cancel(TimerId id) {
  const auto entry = timers_->when.find(id);
  if (entry == timers_->when.end()) return;
  timers_->entries.erase(Timers::Key{entry->second, id});
  timers_->when.erase(entry);
  if (timers_->entries.empty()) timers_->disarm();  // else the program's io_context would wait for nothing
}

}  // namespace weft::rpc
