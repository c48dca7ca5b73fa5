// Shared by the tests of RRefs: a counted object, agents that keep RRefs for others, and a check that all
// objects are destroyed.
#pragma once

#include <weft/rref/rref.h>
#include <weft/rref/rref_layer.h>

#include "tests/support/cluster.h"
#include "tests/support/errors.h"

namespace weft::rref {

using rpc::ErrorKind;
using test::Cluster;
using test::error_of;
using test::eventually;
using test::expect_error;
using test::got;
using test::HeldLoop;
using test::kind_of;
using test::message_of;

// Counts the live objects and all that were created.
struct Counted {
  Counted() { ++alive, ++made; }
  Counted(const Counted&) : Counted() {}
  ~Counted() { --alive; }
  static inline std::atomic<int> alive{0}, made{0};
};

// An object that lives behind RRefs, and may keep others.
struct Box : Counted {
  explicit Box(std::int64_t v) : value(v) {
    if (v < 0) throw std::runtime_error("a box cannot hold " + std::to_string(v));
  }
  std::int64_t get() const { return value; }
  void set(std::int64_t v) { value = v; }
  std::int64_t add(std::int64_t v) { return value += v; }
  void keep(RRef<Box> other) { kept = std::move(other); }
  RRef<Box> give() const { return kept; }
  void forget() { kept = {}; }
  [[noreturn]] void fail(std::string text) { throw std::runtime_error(text); }
  using Service = rpc::Service<"box", rpc::Constructor<std::int64_t>, rpc::Method<"get", &Box::get>,
                               rpc::Method<"set", &Box::set>, rpc::Method<"add", &Box::add>,
                               rpc::Method<"keep", &Box::keep>, rpc::Method<"give", &Box::give>,
                               rpc::Method<"forget", &Box::forget>, rpc::Method<"fail", &Box::fail>>;

  std::int64_t value;
  RRef<Box> kept;
};

// Served by every agent of a test: it keeps RRefs that others hand over.
struct Keeper {
  void keep(RRef<Box> box) {
    std::lock_guard lock(mutex);
    boxes.push_back(std::move(box));
    ++kept;
  }
  RRef<Box> give() {
    std::lock_guard lock(mutex);
    RRef<Box> last = std::move(boxes.back());
    boxes.pop_back();
    return last;
  }
  void drop() {
    std::lock_guard lock(mutex);
    boxes.clear();
  }
  // Hands the references that it keeps over to another agent, and drops its own.
  rpc::Task<void> hand_on(std::string address) {
    const rpc::Peer peer = agent->connect(address);
    co_await peer.ready();
    co_await peer.call<&Keeper::keep>(give());
  }
  std::int64_t ping() { return kept; }
  std::int64_t look(RRef<Box> box) {
    ++kept;
    return box.valid() ? 1 : 0;
  }
  std::int64_t sum(std::int64_t a, std::int64_t b) { return a + b; }
  using Service = rpc::Service<"keeper", rpc::Method<"keep", &Keeper::keep>,
                               rpc::Method<"give", &Keeper::give>, rpc::Method<"drop", &Keeper::drop>,
                               rpc::Method<"hand_on", &Keeper::hand_on>, rpc::Method<"ping", &Keeper::ping>,
                               rpc::Method<"look", &Keeper::look>, rpc::Method<"sum", &Keeper::sum>>;

  explicit Keeper(rpc::Agent& a) : agent(&a) {}
  rpc::Agent* agent;
  std::mutex mutex;  // guards boxes
  std::vector<RRef<Box>> boxes;
  std::atomic<std::int64_t> kept{0};
};

// Agents that create boxes and keep them for each other. The owner of most objects is "owner".
class RRefTest : public testing::Test {
 protected:
  void start(const std::vector<std::string>& names, bool tcp = test::between_hosts()) {
    cluster.emplace(Cluster::Options{layers(), tcp, adjust});
    for (const auto& name : names) add(name);
  }
  rpc::Agent& add(const std::string& name) {
    rpc::Agent& agent = cluster->add(name);
    keepers[name] = std::make_shared<Keeper>(agent);
    agent.serve(keepers[name]);
    agent.allow_create<Box>();
    return agent;
  }
  rpc::Agent& agent(const std::string& name) { return (*cluster)[name]; }
  rpc::Peer peer(const std::string& from, const std::string& to) { return cluster->peer(from, to); }
  std::shared_ptr<RRefLayer> context(const std::string& name) { return RRefLayer::of(*agent(name).core()); }
  void end(const std::string& name) {
    keepers.erase(name);
    cluster->end(name);
  }

  // Expects that no agent holds a reference to an object of another agent.
  void expect_nothing_left() {
    eventually("no object is alive", [] { return Counted::alive == 0; });
    for (const auto& name : cluster->names()) {
      eventually("no object is left on " + name, [&] { return context(name)->live_objects().empty(); });
      eventually("no fork is left on " + name, [&] { return context(name)->live_forks().empty(); });
    }
  }

  void SetUp() override { Counted::alive = Counted::made = 0; }
  void TearDown() override {
    keepers.clear();
    cluster.reset();
    EXPECT_EQ(Counted::alive, 0) << "objects that outlive all agents";
  }

  std::function<void(rpc::AgentOptions&)> adjust;
  std::optional<Cluster> cluster;
  std::map<std::string, std::shared_ptr<Keeper>> keepers;
};

}  // namespace weft::rref
