// AgentLog: the log of one agent. It passes records to the agent's sink, and limits warnings that peers can
// cause.
//
// Owned by the agent. Thread-safety: all functions may be called from any thread.
#pragma once

#include <weft/rpc/core/log.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/mutex.h>

#include <atomic>
#include <initializer_list>
#include <map>
#include <memory>

namespace weft::rpc {

class WEFT_EXPORT AgentLog final : public std::enable_shared_from_this<AgentLog> {
 public:
  AgentLog(std::string agent, LogSink sink) : agent_(std::move(agent)), sink_(std::move(sink)) {}

  // Fields without a value are left out. Control characters of the message are escaped, because its text may
  // come from a peer.
  void write(LogLevel level, const std::string& message, std::initializer_list<LogField> fields = {}) const;
  // For warnings that peers can cause at any rate. In each period of ten seconds, ten warnings of a topic are
  // logged. At the end of the period, a timer of the loop logs how many further warnings were left out.
  // topic: a literal, for example "connections refused".
  void write_some(const char* topic, const std::shared_ptr<Loop>& loop, const std::string& message,
                  std::initializer_list<LogField> fields = {});
  // Logs that a heartbeat was late by `by` because its loop was busy. Late heartbeats of several connections
  // are logged once.
  void write_late_beat(Clock::time_point now, std::chrono::nanoseconds by, std::chrono::nanoseconds interval);

 private:
  struct Window {
    Clock::time_point ends;
    std::size_t logged = 0, left_out = 0;
  };

  const std::string agent_;
  const LogSink sink_;
  Mutex mutex_;
  std::map<std::string_view, Window> windows_ WEFT_GUARDED_BY(mutex_);
  std::atomic<Clock::rep> last_late_beat_{Clock::time_point::min().time_since_epoch().count()};
};

}  // namespace weft::rpc
