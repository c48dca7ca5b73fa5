// Discovery: repeatedly runs the command that lists the hosts of a job, and reports its output.
//
// The next run begins one interval after the end of the last one. A run that takes longer than `limit` is
// killed, and counts as failed. Owned by the launcher. The launcher's supervisor reaps the process, and
// passes each child's exit to child_exited(). Thread-safety: none; runs on the io_context.
#pragma once

#include <sys/types.h>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/weft/launch/elastic/hosts_text.h"

namespace weft::tool::launch::elastic {

class Discovery {
 public:
  struct Options {
    DiscoveryCommand command;
    std::size_t default_slots = 1;
    std::chrono::nanoseconds interval = std::chrono::seconds{1};
    std::chrono::nanoseconds limit = std::chrono::seconds{30};
  };
  using Found = std::function<void(std::vector<HostSlots> hosts)>;
  using Failed = std::function<void(const std::string& why)>;

  Discovery(asio::io_context& context, Options options, Found found, Failed failed);
  ~Discovery();

  void start();
  void child_exited(pid_t child, int wait_status);
  // Ends discovery; a run in progress is killed. `stopped` is called when no process is left, at once or
  // later.
  void stop(std::function<void()> stopped);

 private:
  void run();
  void read();
  void finish_if_complete();
  void wait_for_next();

  const Options options_;
  const Found found_;
  const Failed failed_;
  asio::steady_timer timer_;
  asio::posix::stream_descriptor output_;
  std::array<char, 1 << 14> bytes_;
  std::string text_;
  std::optional<pid_t> child_;  // nullopt: no run, or its process was reaped
  int status_ = 0;              // the process's status from waitpid, once it was reaped
  bool killed_ = false;         // the run was killed because it took too long
  bool stopping_ = false;
  std::function<void()> stopped_;  // null: not requested, or already called
};

}  // namespace weft::tool::launch::elastic
