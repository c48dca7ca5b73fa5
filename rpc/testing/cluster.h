// Cluster: a few agents in one process for a test, connected by a network in memory, or over loopback.
//
//   test::Cluster cluster{{.layers = rref::layers()}, {"server", "anna", "bert"}};
//   cluster["server"].serve(std::make_shared<Market>());
//   EXPECT_EQ(test::got(cluster.peer("anna", "server").call<&Market::last>("ACME")), 5);
//   cluster.end("server");  // as if it had crashed: the others lose their connections
//
// With WEFT_TEST_HOSTS=1 in the environment, the agents of a cluster behave as on different hosts: they
// connect over loopback, and peer() lets both agents dial at the same time, so they may have two connections.
//
// Each agent has two handler threads; the cluster records their logs. Thread-safety: add and end agents on
// one thread; log() may be called from any thread.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/testing/wait.h>
#include <weft/rpc/transport/in_process.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace weft::test {

// Whether WEFT_TEST_HOSTS is set.
WEFT_EXPORT bool between_hosts();

class WEFT_EXPORT Cluster {
 public:
  // The options of all agents of the cluster. adjust: changes the options of an agent before it is created;
  // may be empty.
  struct Options {
    rpc::Layers layers;          // the layers of agents, unless add() gets other ones
    bool tcp = between_hosts();  // the agents connect over loopback instead of in memory
    std::function<void(rpc::AgentOptions&)> adjust;
  };

  // names: the names of the first agents, which are created as by add().
  explicit Cluster(Options options, const std::vector<std::string>& names = {});
  ~Cluster();

  // Creates an agent, which listens when add() returns. The name must not be in use. References to agents,
  // including references from operator[], are valid until end().
  rpc::Agent& add(const std::string& name) { return add(name, options_.layers); }
  rpc::Agent& add(const std::string& name, rpc::Layers layers);
  rpc::Agent& operator[](const std::string& name) { return *agents_.at(name); }

  std::vector<std::string> names() const;  // in alphabetical order

  // The peer `to` as `from` sees it: connected, with a known incarnation.
  rpc::Peer peer(const std::string& from, const std::string& to);

  void acquaint();  // connects all agents to each other

  // Destroys an agent, or all agents. Blocks until the handlers have returned. end() also waits until no
  // other agent takes the agent for connected, so a call that follows is not sent to it. Throws
  // std::runtime_error if that takes a minute.
  void end(const std::string& name);
  void end_all() { agents_.clear(); }

  // One log record of an agent.
  struct LogLine {
    rpc::LogLevel level;
    std::string agent, message;
    std::map<std::string, std::string> fields;
  };
  // The records of all agents so far, in order, including agents that have ended.
  std::vector<LogLine> log() const;

  std::vector<LogLine> logged(const std::string& words) const;  // the lines that contain `words`

 private:
  Options options_;
  std::shared_ptr<rpc::InProcess> network_ = std::make_shared<rpc::InProcess>();
  mutable rpc::Mutex mutex_;
  std::vector<LogLine> log_ WEFT_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<rpc::Agent>> agents_;
};

}  // namespace weft::test
