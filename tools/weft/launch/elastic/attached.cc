#include "tools/weft/launch/elastic/attached.h"

#include <signal.h>
#include <unistd.h>
#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include <array>
#include <cstdlib>
#include <functional>
#include <utility>

#include "tools/weft/duration.h"
#include "tools/weft/launch/cores.h"

namespace weft::tool::launch::elastic {

SupervisorOptions attached_options(const std::vector<std::string>& command, const std::string& grace) {
  SupervisorOptions options;
  WorkerPlan worker;
  const char* const name = std::getenv("WEFT_NAME");
  worker.name = name == nullptr ? "worker" : name;
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const char* const workers = std::getenv("LOCAL_WORLD_SIZE");
    const auto share = threads_share(workers == nullptr ? 1 : std::strtoul(workers, nullptr, 10));
    worker.environment["OMP_NUM_THREADS"] = std::to_string(share);
  }
  options.workers.push_back(std::move(worker));
  options.command = command;
  options.prefix = false;
  options.quiet = true;
  options.grace = parse_duration(grace);
  options.failure_wait = std::chrono::nanoseconds{0};
  return options;
}

int run_attached(const std::vector<std::string>& command, const std::string& grace) {
  asio::io_context context;
  asio::posix::stream_descriptor input(context, ::dup(STDIN_FILENO));
  SupervisorOptions options = attached_options(command, grace);
  options.on_end = [&] { input.close(); };
  Supervisor supervisor(context, std::move(options));
  supervisor.start();

  std::array<char, 256> bytes;
  const std::function<void()> wait = [&] {
    input.async_read_some(asio::buffer(bytes), [&](asio::error_code error, std::size_t) {
      if (!error) return wait();
      if (input.is_open()) supervisor.end({"the driver", "has stopped the worker", "", 128 + SIGTERM});
    });
  };
  wait();
  context.run();
  return supervisor.status();
}

}  // namespace weft::tool::launch::elastic
