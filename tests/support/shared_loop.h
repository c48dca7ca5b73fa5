// SharedLoop: one thread on which many agents of a test and their handlers run, if threads for each agent
// would overload the machine.
//
//   SharedLoop loop;
//   rpc::Agent agent(loop.runtime(), {.name = "one of many", .same_host = false});
//
// Agents on the loop are destroyed on its thread, by run(). Jobs that are left at its end are dropped.
#pragma once

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/endpoint/options.h>
#include <weft/rpc/testing/wait.h>
#include <weft/rpc/transport/transport.h>

#include <sys/resource.h>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

namespace weft::test {

class SharedLoop {
 public:
  SharedLoop() : thread_([this] { context_.run(); }) {}
  ~SharedLoop() {
    work_.reset();
    context_.stop();
    thread_.join();
  }
  SharedLoop(const SharedLoop&) = delete;
  SharedLoop& operator=(const SharedLoop&) = delete;

  // The runtime for one more agent; over TCP, or over the given transport.
  rpc::Runtime runtime(std::shared_ptr<rpc::Transport> transport = rpc::make_tcp_transport()) {
    return {.loops = {std::make_shared<rpc::AsioLoop>(context_)},
            .handlers = handlers_,
            .incarnation = ++lives_,
            .transports = {std::move(transport)}};
  }
  rpc::Executor& handlers() { return *handlers_; }

  // Runs the function on the thread, and waits for it.
  template <class F>
  void run(F job) {
    auto done = std::make_shared<Event>();
    asio::post(context_, [&job, done] {
      job();
      done->set();
    });
    done->wait();
  }

 private:
  class OnContext final : public rpc::Executor {
   public:
    explicit OnContext(asio::io_context& context) : context_(context) {}
    void post(rpc::Callback job) override { asio::post(context_, std::move(job)); }

   private:
    asio::io_context& context_;
  };

  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(context_);
  const std::shared_ptr<rpc::Executor> handlers_ = std::make_shared<OnContext>(context_);
  std::atomic<std::uint64_t> lives_{0};
  std::thread thread_;
};

// Raises the limit of open descriptors to `wanted` if possible. Returns the limit.
inline std::size_t descriptors_permitted(std::size_t wanted) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur >= wanted) return files.rlim_cur;
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, wanted);
  ::setrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_NOFILE, &files);
  return files.rlim_cur;
}

}  // namespace weft::test
