#include <weft/rpc/agent/call_observer.h>
#include <weft/rpc/rpc.h>

#include "tests/support/cluster.h"
#include "tests/support/errors.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using test::Cluster;
using test::Event;
using test::eventually;
using test::got;
using test::kind_of;

// What happened, in order.
class Record final : public CallObserver {
 public:
  void making(OutgoingCall& call, CallContext* parent) override {
    add("making " + std::string(call.method()) +
        (parent != nullptr ? " in " + std::string(parent->method()) : ""));
  }
  void made(const PendingCall& call, std::chrono::nanoseconds took, std::optional<ErrorKind> error) override {
    EXPECT_GE(took.count(), 0);
    add("made " + call.method() + how(error));
  }
  void accepted(IncomingCall& call) override { add("accepted " + std::string(call.method())); }
  void answered(IncomingCall& call, std::chrono::nanoseconds took, std::optional<ErrorKind> error) override {
    EXPECT_GE(took.count(), 0);
    add("answered " + std::string(call.method()) + how(error));
  }

  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  std::size_t count(const std::string& line) const {
    const auto all = lines();
    return static_cast<std::size_t>(std::count(all.begin(), all.end(), line));
  }

 private:
  static std::string how(std::optional<ErrorKind> error) {
    return error ? ": " + std::string(to_string(*error)) : "";
  }
  void add(std::string line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  mutable std::mutex mutex_;  // guards lines_
  std::vector<std::string> lines_;
};
using Lines = std::vector<std::string>;

struct Worker {
  int twice(int x) { return 2 * x; }
  void fail() { throw Error(ErrorKind::failed_precondition, "no"); }
  int onward(CallContext& call, int x) { return other->with(call).call<&Worker::twice>(x).get(); }
  void block() {
    began.set();
    released.wait();
  }
  using Service = rpc::Service<"worker", Method<"twice", &Worker::twice>, Method<"fail", &Worker::fail>,
                               Method<"onward", &Worker::onward>, Method<"block", &Worker::block>>;
  std::optional<Peer> other;
  Event began, released;
};

void nowhere() {}
using Nowhere = Function<"nowhere", &nowhere>;

Layer observed(std::shared_ptr<Record> record) {
  return [record = std::move(record)](Agent& agent) { agent.core()->add_observer(record); };
}

class CallObserverTest : public testing::Test {
 protected:
  CallObserverTest() {
    cluster.add("a", {observed(a)});
    cluster.add("b", {observed(b)});
    cluster["b"].serve(worker);
    peer = cluster.peer("a", "b");
  }
  // Without what made the connection.
  static Lines without_ping(const Record& record) {
    Lines lines = record.lines();
    std::erase_if(lines, [](const std::string& line) { return line.find("weft.") != std::string::npos; });
    return lines;
  }

  std::shared_ptr<Record> a = std::make_shared<Record>(), b = std::make_shared<Record>();
  std::shared_ptr<Worker> worker = std::make_shared<Worker>();
  Cluster cluster{{}};
  std::optional<Peer> peer;
};

TEST_F(CallObserverTest, SeesBothEndsOfACallOnBothSides) {
  EXPECT_EQ(got(peer->call<&Worker::twice>(4)), 8);
  EXPECT_EQ(without_ping(*a), (Lines{"making worker.twice", "made worker.twice"}));
  EXPECT_EQ(without_ping(*b), (Lines{"accepted worker.twice", "answered worker.twice"}));
}

TEST_F(CallObserverTest, Errors) {
  EXPECT_EQ(kind_of([&] { got(peer->call<&Worker::fail>()); }), ErrorKind::failed_precondition);
  EXPECT_EQ(a->count("made worker.fail: failed_precondition"), 1U);
  EXPECT_EQ(b->count("answered worker.fail: failed_precondition"), 1U);
}

TEST_F(CallObserverTest, ADeadlineThatPasses) {
  EXPECT_EQ(kind_of([&] { got(peer->with({.deadline = 1ms}).call<&Worker::block>()); }),
            ErrorKind::deadline_exceeded);
  EXPECT_EQ(a->count("made worker.block: deadline_exceeded"), 1U);
  EXPECT_EQ(a->count("made worker.block"), 0U);
  worker->released.set();
}

TEST_F(CallObserverTest, TheCallInWhoseNameAnotherIsMade) {
  worker->other = cluster.peer("b", "b");
  EXPECT_EQ(got(peer->call<&Worker::onward>(3)), 6);
  EXPECT_EQ(b->count("making worker.twice in worker.onward"), 1U);
  EXPECT_EQ(b->count("made worker.twice"), 1U);
  EXPECT_EQ(b->count("answered worker.onward"), 1U);
}

TEST_F(CallObserverTest, Notifications) {
  peer->notify<&Worker::fail>();
  eventually("it has left", [&] { return a->count("made worker.fail") == 1; });
  eventually("it has failed", [&] { return b->count("answered worker.fail: failed_precondition") == 1; });
  peer->notify<&Worker::twice>(1);
  eventually("it has run", [&] { return b->count("answered worker.twice") == 1; });
}

TEST_F(CallObserverTest, MethodsThatAreNotServed) {
  EXPECT_EQ(kind_of([&] { got(peer->call<Nowhere>()); }), ErrorKind::not_found);
  EXPECT_EQ(a->count("made nowhere: not_found"), 1U);
  EXPECT_EQ(b->count("accepted "), 1U);
  EXPECT_EQ(b->count("answered : not_found"), 1U);
}

TEST_F(CallObserverTest, IsToldOfCallsThatAreLost) {
  auto call = peer->call<&Worker::block>();
  worker->began.wait();
  std::thread end([&] { cluster.end("b"); });
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::peer_lost);
  EXPECT_EQ(a->count("made worker.block: peer_lost"), 1U);
  worker->released.set();
  end.join();
}

}  // namespace
}  // namespace weft::rpc
