// Interceptors: objects of the program that take part in the calls of its agent.
#include <weft/rpc/call/interceptor.h>

#include "tests/support/cluster.h"

namespace weft::rpc::interceptor_test {
namespace {

using namespace test;

int twice(int n) {
  if (n < 0) throw std::runtime_error("negative");
  return 2 * n;
}
using Twice = Function<"twice", &twice>;
// Records each hook invocation. Refuses or delays calls if its flags say that it should.
class Recorder final : public Interceptor {
 public:
  explicit Recorder(std::string name) : name_(std::move(name)) {}

  Task<void> accept(CallContext& call) override {
    std::optional<Future<void>> gate = take_gate();  // before the note: its reader may make a call
    note("accept " + std::string(call.method()));
    if (refuse) throw Error(ErrorKind::permission_denied, "not today");
    if (gate) co_await std::move(*gate);
    note("accepted");
  }
  void answered(CallContext& call, const std::exception_ptr& error) noexcept override {
    note("answered " + std::string(call.method()) + (error != nullptr ? " with an error" : ""));
  }
  std::unique_ptr<CallWatch> calling(OutgoingCall& call, const std::string& peer,
                                     CallContext* serving) override {
    note("calling " + std::string(call.method()) + " of " + peer + (serving != nullptr ? " serving" : ""));
    if (refuse_calls) throw Error(ErrorKind::resource_exhausted, "quota");
    struct Watch final : CallWatch {
      explicit Watch(Recorder& r) : recorder(r) {}
      void ended(const std::exception_ptr& error) noexcept override {
        recorder.note(error != nullptr ? "failed" : "ended");
      }
      Recorder& recorder;
    };
    return std::make_unique<Watch>(*this);
  }

  void note(const std::string& line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(name_ + ": " + line);
  }
  std::vector<std::string> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }
  void wait_for(Future<void> gate) {  // delays the next call
    std::lock_guard lock(mutex_);
    gate_ = std::move(gate);
  }
  std::atomic<bool> refuse{false}, refuse_calls{false};

 private:
  std::optional<Future<void>> take_gate() {
    std::lock_guard lock(mutex_);
    return std::exchange(gate_, std::nullopt);
  }

  const std::string name_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::string> lines_;
  std::optional<Future<void>> gate_;
};

using Lines = std::vector<std::string>;

class InterceptorTest : public testing::Test {
 protected:
  InterceptorTest() {
    cluster.add("server").serve<Twice>();
    cluster.add("client");
    peer.emplace(cluster.peer("client", "server"));
    at_server->take();
    at_client->take();
  }
  std::shared_ptr<Recorder> at_server = std::make_shared<Recorder>("s"),
                            at_client = std::make_shared<Recorder>("c");
  std::shared_ptr<Recorder> second = std::make_shared<Recorder>("second");
  Cluster cluster{{.adjust = [this](AgentOptions& options) {
    if (options.name == "server") options.interceptors = {at_server, second};
    if (options.name == "client") options.interceptors = {at_client};
  }}};
  std::optional<Peer> peer;
};

TEST_F(InterceptorTest, SeesEveryEventOfACallOnBothSides) {
  EXPECT_EQ(got(peer->call<Twice>(4)), 8);
  EXPECT_EQ(at_client->take(), (Lines{"c: calling twice of server", "c: ended"}));
  EXPECT_EQ(at_server->take(), (Lines{"s: accept twice", "s: accepted", "s: answered twice"}));
  EXPECT_EQ(kind_of([&] { got(peer->call<Twice>(-1)); }), ErrorKind::handler_failed);
  EXPECT_EQ(at_client->take(), (Lines{"c: calling twice of server", "c: failed"}));
  EXPECT_EQ(at_server->take(), (Lines{"s: accept twice", "s: accepted", "s: answered twice with an error"}));
}

TEST_F(InterceptorTest, TheFirstRefusalFailsTheCall) {
  second->take();
  at_server->refuse = true;
  expect_error([&] { got(peer->call<Twice>(4)); }, ErrorKind::permission_denied, Execution::not_sent);
  EXPECT_EQ(at_server->take(), (Lines{"s: accept twice", "s: answered twice with an error"}));
  EXPECT_EQ(second->take(), (Lines{"second: answered twice with an error"}));
}

TEST_F(InterceptorTest, TheCallWaitsForASuspendedInterceptor) {
  Promise<void> gate;
  at_server->wait_for(gate.future());
  auto call = peer->call<Twice>(4);
  test::eventually("it was asked", [&] { return at_server->take() == Lines{"s: accept twice"}; });
  EXPECT_EQ(got(peer->call<Twice>(5)), 10) << "others go on";
  EXPECT_FALSE(call.ready());
  gate.complete(Result<void>{});
  EXPECT_EQ(got(std::move(call)), 8);
}

TEST_F(InterceptorTest, TheCallerMayRefuseItsOwnCalls) {
  at_client->refuse_calls = true;
  EXPECT_EQ(kind_of([&] { got(peer->call<Twice>(4)); }), ErrorKind::resource_exhausted);
  EXPECT_EQ(at_server->take(), Lines{});
}

TEST_F(InterceptorTest, ARetriedCallIsOneCall) {
  cluster.end("server");
  EXPECT_EQ(
      kind_of([&] {
        got(peer->with({.retry = RetryPolicy{.attempts = 3, .first_wait = std::chrono::milliseconds{1}}})
                .call<Twice>(4));
      }),
      ErrorKind::unavailable);
  EXPECT_EQ(at_client->take(), (Lines{"c: calling twice of server", "c: failed"}));
}

}  // namespace
}  // namespace weft::rpc::interceptor_test
