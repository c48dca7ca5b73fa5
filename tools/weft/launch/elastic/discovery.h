// Discovery: runs the command that lists the hosts of a job, again and again, and tells what it printed.
//
// The next run begins an interval after the last one has ended. A run that takes longer than a limit is
// killed, and has failed. Owned by the launcher, whose supervisor reaps the process: it passes each child's
// exit to child_exited(). Thread-safety: none; runs on the io_context.
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
  std::optional<pid_t> child_;  // until it has been reaped
  int status_ = 0;              // of waitpid, afterwards
  bool killed_ = false;         // since it took too long
  bool stopping_ = false;
  std::function<void()> stopped_;  // if it is still to be called
};

}  // namespace weft::tool::launch::elastic
