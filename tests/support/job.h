// Jobs of several agents in one process that find each other through a store of any kind.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/job/job.h>
#include <weft/rpc/transport/in_process.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/loopback.h"

namespace weft::test {

// The lease of members whose silence a test expects to be detected. It is longer than a busy machine delays
// its renewal.
inline constexpr std::chrono::seconds short_lease{3};

// The store of a job. Each test has its own.
struct JobStore {
  virtual ~JobStore() = default;
  std::string url;
  bool with_host = false;                   // rank 0 keeps it and listens at its address
  std::shared_ptr<rpc::InProcess> network;  // set if agents connect to each other over it
  std::string path;                         // path of the file
};

struct TcpJobStore : JobStore {
  TcpJobStore() {
    with_host = true;
    rpc::Agent probe(rpc::AgentOptions{.name = "probe", .listen = {"tcp://" + own_loopback() + ":0"}});
    url = probe.addresses().front();  // no other process binds it before the host does
  }
};
struct InProcessJobStore : JobStore {
  InProcessJobStore() {
    with_host = true;
    url = "inproc://host";
    network = std::make_shared<rpc::InProcess>();
  }
};
struct FileJobStore : JobStore {
  FileJobStore() {
    path = (std::filesystem::temp_directory_path() / "weft-job-XXXXXX").string();
    ::close(::mkstemp(path.data()));
    std::filesystem::remove(path);
    url = "file://" + path;
  }
  ~FileJobStore() override { std::filesystem::remove(path); }
};

struct JobKind {
  const char* name;
  std::unique_ptr<JobStore> (*make)();
  const char* (*missing)() = [] { return ""; };  // why this machine does not support it
};
inline void PrintTo(const JobKind& kind, std::ostream* out) { *out << kind.name; }
template <class S>
constexpr JobKind job_kind(const char* name) {
  return {name, []() -> std::unique_ptr<JobStore> { return std::make_unique<S>(); }};
}

// The service of every agent: its name, and a method that never replies.
struct Worker {
  explicit Worker(std::string own) : name(std::move(own)) {}
  std::string name;
  std::mutex mutex;  // guards kept
  std::condition_variable came;
  std::vector<rpc::Promise<int>> kept;

  std::string who() const { return name; }
  rpc::Future<int> hang() {
    rpc::Promise<int> promise;
    auto future = promise.future();
    std::lock_guard lock(mutex);
    kept.push_back(std::move(promise));
    came.notify_all();
    return future;
  }
  void await_calls(std::size_t calls) {
    std::unique_lock lock(mutex);
    came.wait(lock, [&] { return kept.size() >= calls; });
  }
  using Service =
      rpc::Service<"worker", rpc::Method<"who", &Worker::who>, rpc::Method<"hang", &Worker::hang>>;
};

// An agent that is a member of a job, for tests that keep the agent and not an rpc::Job.
inline std::unique_ptr<rpc::Agent> make_member(const rpc::MemberOptions& options, rpc::Layers layers = {}) {
  layers.push_back(rpc::Job::layer(options.rendezvous));
  return std::make_unique<rpc::Agent>(static_cast<const rpc::AgentOptions&>(options), layers);
}

class Job {
 public:
  using Adjust = rpc::Job::Adjust;

  // world_size 0: the size is not fixed.
  explicit Job(const JobKind& kind, std::size_t world_size = 0)
      : store_(kind.make()), world_size_(world_size) {}
  ~Job() { agents_.clear(); }

  rpc::MemberOptions options(std::size_t rank, const std::string& name) const {
    rpc::MemberOptions options{{.name = name, .handler_threads = 2, .in_process = store_->network}};
    options.log = [](const rpc::LogRecord&) {};
    if (rank == 0 && store_->with_host) {
      options.listen = {store_->url};
    } else if (store_->network != nullptr) {
      options.listen = {"inproc://" + name + "#" +
                        std::to_string(++addresses_)};  // each incarnation has its own
    } else {
      options.listen = {"tcp://127.0.0.1:0"};
    }
    // Leases are so long that none expires, unless a test changes them.
    options.rendezvous = {.store = store_->url,
                          .rank = rank,
                          .world_size = world_size_,
                          .fixed_world = world_size_ != 0,
                          .lease = std::chrono::hours{1}};
    return options;
  }
  std::unique_ptr<rpc::Agent> make(std::size_t rank, const std::string& name,
                                   const Adjust& adjust = nullptr) {
    rpc::MemberOptions wanted = options(rank, name);
    if (adjust) adjust(wanted);
    auto agent = make_member(wanted);
    agent->serve(workers_[name] = std::make_shared<Worker>(name));
    return agent;
  }
  rpc::Agent& start(std::size_t rank, std::string name = "", const Adjust& adjust = nullptr) {
    if (name.empty()) name = "worker" + std::to_string(rank);
    agents_[name] = make(rank, name, adjust);
    return *agents_[name];
  }
  // Starts all agents.
  void start_all(const Adjust& adjust = nullptr) {
    for (std::size_t rank = 0; rank < world_size_; ++rank) start(rank, "", adjust);
    std::vector<rpc::Future<void>> waits;
    for (auto& [name, agent] : agents_) waits.push_back(rpc::Job(*agent).wait_for(world_size_));
    for (auto& wait : waits) wait.get();
  }
  rpc::Agent& operator[](std::size_t rank) { return *agents_.at("worker" + std::to_string(rank)); }
  rpc::Agent& operator[](const std::string& name) { return *agents_.at(name); }
  Worker& worker(std::size_t rank) { return worker("worker" + std::to_string(rank)); }
  Worker& worker(const std::string& name) { return *workers_.at(name); }
  // Other threads may use the other agents at the same time.
  void end(std::size_t rank) { end("worker" + std::to_string(rank)); }
  void end(const std::string& name) { agents_.at(name).reset(); }
  const JobStore& store() const { return *store_; }

 private:
  std::unique_ptr<JobStore> store_;
  std::size_t world_size_;
  mutable int addresses_ = 0;
  std::map<std::string, std::shared_ptr<Worker>> workers_;
  std::map<std::string, std::unique_ptr<rpc::Agent>> agents_;
};

template <class T>
void expect_error(rpc::Future<T> future, rpc::ErrorKind kind, const std::string& part,
                  const std::string& whose = "") {
  SCOPED_TRACE(whose);
  expect_error([&] { return future.get(), 0; }, kind, part);
}

}  // namespace weft::test
