// idle: measures the memory of a connection that is idle after one call. Thousands of agents in several
// client processes connect to one agent. A call returns the memory of that agent, before the others connect
// and afterwards.
#include "bench/rpc/work.h"

#include <weft/rpc/rpc.h>

#include <sys/resource.h>
#include <unistd.h>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include <fstream>
#include <thread>

namespace weft::bench {
namespace {

constexpr std::size_t crowds = 4;              // client processes, in addition to the measuring one
constexpr std::size_t other_descriptors = 64;  // other open descriptors of a process
constexpr std::size_t sample_every = 100;      // one connection in this many is used again at the end
constexpr std::size_t at_a_time = 50;          // concurrent connects of a crowd
constexpr auto timeout = std::chrono::seconds{150};

class Door {
 public:
  std::int64_t enter(std::int64_t x) {
    ++entered_;
    return x;
  }
  std::int64_t entered() { return entered_; }
  double resident_KiB() {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> pages;
    return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1024;
  }
  using Service = rpc::Service<"door", rpc::Method<"enter", &Door::enter, rpc::non_blocking>,
                               rpc::Method<"entered", &Door::entered, rpc::non_blocking>,
                               rpc::Method<"resident_KiB", &Door::resident_KiB, rpc::non_blocking>>;

 private:
  std::atomic<std::int64_t> entered_{0};
};

void need_descriptors(std::size_t connections) {
  const rlim_t wanted = connections + other_descriptors;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  limit.rlim_max = std::max(limit.rlim_max, wanted);  // only a privileged process may raise the hard limit
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
    throw std::runtime_error("needs " + std::to_string(wanted) +
                             " file descriptors, and the limit (RLIMIT_NOFILE) cannot be raised");
}

void serve(const Work& work, ServerEnd& end) {
  need_descriptors(work.peers);
  rpc::Agent agent({.name = "server", .listen = {"tcp://127.0.0.1:0"}, .same_host = false});
  agent.serve(std::make_shared<Door>());
  end.announce(agent.addresses().front());
  end.wait_for_client();
}

// Runs separate agents, which share one loop. Each agent represents a separate program.
void crowd(const std::string& address, std::size_t connections, Channel& channel) {
  need_descriptors(connections);
  asio::io_context context{1};
  auto busy = asio::make_work_guard(context);
  std::thread thread([&] { context.run(); });
  std::vector<std::unique_ptr<rpc::Agent>> agents;
  std::vector<rpc::Peer> peers;
  // Keeps as many calls in flight as `calls` has elements.
  std::vector<std::pair<std::int64_t, rpc::Future<std::int64_t>>> calls;
  const auto call = [&](std::size_t i) {
    const auto number = static_cast<std::int64_t>(i);
    calls.emplace_back(number, peers[i].call<&Door::enter>(number));
  };
  const auto finish = [&] {
    for (auto& [number, answer] : std::exchange(calls, {})) expect_answer(std::move(answer).get() == number);
  };
  try {
    for (std::size_t i = 0; i < connections; ++i) {
      agents.push_back(std::make_unique<rpc::Agent>(
          context, rpc::AgentOptions{.name = "client" + std::to_string(getpid()) + "." + std::to_string(i),
                                     .same_host = false,
                                     .handler_threads = 1}));
      peers.push_back(agents.back()->connect(address));
      call(i);
      if (calls.size() == at_a_time) finish();
    }
    finish();
    channel.send("connected");
    channel.receive();
    for (std::size_t i = 0; i < connections; i += sample_every) call(i);
    finish();
    channel.send("still connected");
    channel.receive();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "connection %zu: %s\n", agents.size(), error.what());
    std::fflush(stderr);
    _exit(1);
  }
  _exit(0);  // shutdown is not measured
}

void measure(const Work& work, ClientEnd& end) {
  // The crowds are forked before this process has threads. They run on the cores of this process.
  std::vector<std::unique_ptr<Process>> processes;
  const std::size_t each = work.peers / crowds;
  for (std::size_t i = 0; i < crowds; ++i)
    processes.push_back(std::make_unique<Process>(Pins{}, 0, [&](Channel& channel) {
      channel.receive();
      crowd(end.address(), each, channel);
    }));
  const auto all = [&](const char* question) {
    for (const auto& process : processes) process->channel().send(question);
    for (const auto& process : processes) process->expect("clients", timeout);
  };
  rpc::Agent agent({.name = "client", .same_host = false});
  const rpc::Peer door = agent.connect(end.address());
  for (std::size_t i = 0; i < 1000; ++i) door.call<&Door::enter>(std::int64_t{0}).get();
  const std::int64_t entered = door.call<&Door::entered>().get();
  const double before = door.call<&Door::resident_KiB>().get();
  all("connect");
  const double after = door.call<&Door::resident_KiB>().get();
  expect_answer(door.call<&Door::entered>().get() - entered == static_cast<std::int64_t>(each * crowds));
  all("again");
  end.report({{"KiB", (after - before) / static_cast<double>(each * crowds)}});
}

}  // namespace

std::optional<Contender> weft_idle_peer(const Work& work) {
  if (work.kind != Kind::idle) return std::nullopt;
  return contender("weft", notes_of(Wait::blocking, "get() on main"),
                   {.serve = [work](ServerEnd& end) { serve(work, end); },
                    .measure = [work](ClientEnd& end) { measure(work, end); },
                    .timeout = timeout});
}

}  // namespace weft::bench
