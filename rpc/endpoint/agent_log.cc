#include <weft/rpc/endpoint/agent_log.h>

#include <weft/rpc/core/duration_text.h>

#include <utility>
#include <vector>

namespace weft::rpc {
namespace {

constexpr std::size_t max_lines_of_a_topic = 10;
constexpr auto log_window = std::chrono::seconds{10};

}  // namespace

void AgentLog::write(LogLevel level, const std::string& message,
                     std::initializer_list<LogField> fields) const {
  std::vector<LogField> known;
  for (const LogField& field : fields)
    if (!field.value.empty()) known.push_back(field);
  sink_({level, agent_, escaped(message), known});
}

// From the eleventh warning on, the level is debug, which the default sink ignores.
void AgentLog::write_some(const char* topic, const std::shared_ptr<Loop>& loop, const std::string& message,
                          std::initializer_list<LogField> fields) {
  const auto now = loop->now();
  LogLevel level = LogLevel::warning;
  {
    MutexLock lock(mutex_);
    Window& window = windows_[topic];
    if (now >= window.ends && window.left_out == 0) window = {later(now, log_window)};
    if (window.logged < max_lines_of_a_topic) {
      ++window.logged;
    } else {
      level = LogLevel::debug;
      if (++window.left_out == 1) {
        auto summarise = [weak = weak_from_this(), topic] {
          const auto log = weak.lock();
          if (log == nullptr) return;
          MutexLock again(log->mutex_);
          const std::size_t left_out = std::exchange(log->windows_[topic], {}).left_out;
          again.unlock();
          log->write(LogLevel::warning, std::string(topic) + ": " + std::to_string(left_out) +
                                            " more within 10 s (Agent::counts() counts all)");
        };
        loop->schedule_after(window.ends - now, summarise);
      }
    }
  }
  write(level, message, fields);
}

void AgentLog::write_late_beat(Clock::time_point now, std::chrono::nanoseconds by,
                               std::chrono::nanoseconds interval) {
  const auto time = now.time_since_epoch().count();
  const auto again = std::chrono::duration_cast<Clock::duration>(interval).count();
  auto last = last_late_beat_.load();
  if (last > time - again || !last_late_beat_.compare_exchange_strong(last, time)) return;
  write(LogLevel::warning,
        "a loop sent its heartbeats " + seconds_text(by) +
            " late: a non_blocking handler or the program's io_context blocked it, or "
            "the process was stopped. Peers report this agent as lost if they receive nothing for their "
            "timeout");
}

}  // namespace weft::rpc
