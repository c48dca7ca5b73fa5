#include <weft/rpc/observe/quit_dump.h>

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "tests/support/cluster.h"

namespace weft::observe::quit_dump_test {
namespace {

using namespace weft::test;
using rpc::Method;

struct Worker {
  void block() {
    began.set();
    released.wait();
  }
  using Service = rpc::Service<"worker", Method<"block", &Worker::block>>;
  Event began, released;
};

TEST(QuitDump, PrintsCallsInFlightAndDoesNotEndTheProcess) {
  Cluster cluster{{}, {"a", "b"}};
  auto worker = std::make_shared<Worker>();
  cluster["b"].serve(worker);
  Handover<std::string> from_a, from_b;
  const QuitDump a{cluster["a"], [&](const std::string& lines) { from_a.give(lines); }};
  const QuitDump b{cluster["b"], [&](const std::string& lines) { from_b.give(lines); }};
  auto call = cluster.peer("a", "b").call<&Worker::block>();
  worker->began.wait();
  for (int i = 0; i < 2; ++i) {
    ::kill(::getpid(), SIGQUIT);
    const std::string of_a = from_a.take(), of_b = from_b.take();
    EXPECT_TRUE(of_a.starts_with("a: 1 calls waited for, 0 served\n  waits ")) << of_a;
    EXPECT_NE(of_a.find(" for worker.block on b (#"), std::string::npos) << of_a;
    EXPECT_TRUE(of_b.starts_with("b: 0 calls waited for, 1 served\n  serves worker.block of a#")) << of_b;
    EXPECT_NE(of_b.find(", running on the handlers\n"), std::string::npos) << of_b;
  }
  worker->released.set();
  got(std::move(call));
}

// Captures this process's standard error during its lifetime.
class Stderr {
 public:
  Stderr() {
    if (::pipe(pipe_) != 0 || (before_ = ::dup(STDERR_FILENO)) < 0) throw std::runtime_error("pipe");
    std::fflush(stderr);
    ::dup2(pipe_[1], STDERR_FILENO);
  }
  ~Stderr() {
    ::dup2(before_, STDERR_FILENO);
    for (const int fd : {pipe_[0], pipe_[1], before_}) ::close(fd);
  }
  // Returns the output up to and including `end`.
  std::string until(std::string_view end) {
    std::string text;
    while (!text.ends_with(end)) {
      pollfd one{pipe_[0], POLLIN, 0};
      char c = 0;
      if (::poll(&one, 1, 60'000) != 1 || ::read(pipe_[0], &c, 1) != 1)
        throw std::runtime_error("a minute without it, after: " + text);
      text += c;
    }
    return text;
  }

 private:
  int pipe_[2] = {-1, -1};
  int before_ = -1;
};

TEST(QuitDump, PrintsToStderrByDefault) {
  Cluster cluster{{}, {"a", "b"}};
  auto worker = std::make_shared<Worker>();
  cluster["b"].serve(worker);
  const QuitDump b{cluster["b"]};
  auto call = cluster.peer("a", "b").call<&Worker::block>();
  worker->began.wait();
  {
    Stderr errors;
    ::kill(::getpid(), SIGQUIT);
    const std::string text = errors.until("running on the handlers\n");
    EXPECT_TRUE(text.starts_with("b: 0 calls waited for, 1 served\n  serves worker.block of a#")) << text;
  }
  worker->released.set();
  got(std::move(call));
}

TEST(QuitDump, OutlivesItsAgent) {
  Cluster cluster{{}, {"a", "b"}};
  Handover<std::string> from_b;
  const QuitDump a{cluster["a"], [&](const std::string&) { ADD_FAILURE() << "of an agent that is gone"; }};
  const QuitDump b{cluster["b"], [&](const std::string& lines) { from_b.give(lines); }};
  cluster.end("a");
  ::kill(::getpid(), SIGQUIT);
  EXPECT_EQ(from_b.take(), "b: 0 calls waited for, 0 served\n");
}

}  // namespace
}  // namespace weft::observe::quit_dump_test
