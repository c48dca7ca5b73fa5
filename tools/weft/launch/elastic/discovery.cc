#include "tools/weft/launch/elastic/discovery.h"

#include <signal.h>
#include <unistd.h>
#include <asio/buffer.hpp>

#include <utility>

#include "tools/weft/duration.h"
#include "tools/weft/launch/process.h"
#include "tools/weft/launch/supervisor.h"

namespace weft::tool::launch::elastic {
namespace {

constexpr std::size_t max_output = 1 << 22;

asio::steady_timer::duration ticks(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<asio::steady_timer::duration>(time);
}

}  // namespace

Discovery::Discovery(asio::io_context& context, Options options, Found found, Failed failed)
    : options_(std::move(options)),
      found_(std::move(found)),
      failed_(std::move(failed)),
      timer_(context),
      output_(context) {}

Discovery::~Discovery() {
  if (child_) ::kill(-*child_, SIGKILL);
}

void Discovery::start() { run(); }

void Discovery::run() {
  text_.clear();
  killed_ = false;
  Pipe ends = make_pipe(), liveness = make_pipe();
  liveness.read.reset();  // no code waits for this pipe
  output_.assign(ends.read.release());
  ProcessStart start;
  start.program = "/bin/sh";
  start.words = {"sh", "-c", options_.command.command};
  start.variables = environment_with({});
  start.out = ends.write.get();
  start.error = STDERR_FILENO;
  start.liveness = liveness.write.get();
  std::string problem;
  try {
    child_ = spawn(start);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  ends.write.reset();
  if (!child_) {
    output_.close();
    wait_for_next();
    return failed_(problem);
  }
  timer_.expires_after(ticks(options_.limit));
  timer_.async_wait([this](asio::error_code error) {
    if (error || !child_) return;
    killed_ = true;
    ::kill(-*child_, SIGKILL);
  });
  read();
}

void Discovery::read() {
  output_.async_read_some(asio::buffer(bytes_), [this](asio::error_code error, std::size_t bytes) {
    if (stopping_) return;
    text_.append(bytes_.data(), bytes);
    if (!error && text_.size() <= max_output) return read();
    asio::error_code ignored;
    output_.close(ignored);
    finish_if_complete();
  });
}

void Discovery::child_exited(pid_t child, int wait_status) {
  if (child_ != child) return;
  child_.reset();
  status_ = wait_status;
  ::kill(-child, SIGKILL);  // processes that the command has left behind may keep the output pipe open
  if (stopped_) return std::exchange(stopped_, nullptr)();
  if (!stopping_) finish_if_complete();
}

// Reports the result if the process has ended and its whole output has been read.
void Discovery::finish_if_complete() {
  if (child_ || output_.is_open()) return;
  wait_for_next();
  if (killed_)
    return failed_("'" + options_.command.command + "' took longer than " + text_of(options_.limit));
  if (text_.size() > max_output) return failed_("'" + options_.command.command + "' prints too much");
  if (status_ != 0) return failed_("'" + options_.command.command + "' " + failure_of(status_).how);
  std::vector<HostSlots> hosts;
  try {
    hosts = options_.command.parse(text_, options_.default_slots);
  } catch (const std::exception& error) {
    return failed_("'" + options_.command.command + "' printed " + error.what());
  }
  found_(std::move(hosts));
}

void Discovery::wait_for_next() {
  timer_.expires_after(ticks(options_.interval));
  timer_.async_wait([this](asio::error_code error) {
    if (!error && !stopping_) run();
  });
}

void Discovery::stop(std::function<void()> stopped) {
  stopping_ = true;
  timer_.cancel();
  asio::error_code ignored;
  output_.close(ignored);
  if (!child_) return stopped();
  stopped_ = std::move(stopped);
  ::kill(-*child_, SIGKILL);
}

}  // namespace weft::tool::launch::elastic
