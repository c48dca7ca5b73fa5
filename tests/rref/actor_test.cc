// Objects behind RRefs are actors: handlers of one object run one at a time, in their callers' order. A
// handler that suspends lets other handlers run.
#include <weft/rpc/core/when_all.h>
#include <weft/rref/rref.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::actor_test {
namespace {

// The state that handlers change and wait for. Each test creates a new one.
struct Stage {
  std::atomic<int> inside{0}, most{0};
  test::Event first, second;
  std::mutex mutex;  // guards seen
  std::vector<std::int64_t> seen;
};
std::shared_ptr<Stage> stage;

struct Enter {
  Enter() {
    const int now = ++stage->inside;
    int most = stage->most;
    while (most < now && !stage->most.compare_exchange_weak(most, now)) {
    }
  }
  ~Enter() { --stage->inside; }
};

// The methods shared by an actor type and a type that is not an actor.
struct Body {
  void work(std::int64_t i) {
    Enter enter;
    std::this_thread::yield();
    std::lock_guard lock(stage->mutex);
    stage->seen.push_back(i);
  }
  // meet_first() and meet_second() wait for each other, so they complete only if both run at the same time.
  void meet_first() {
    stage->first.set();
    stage->second.wait();
  }
  void meet_second() {
    stage->first.wait();
    stage->second.set();
  }
};

struct Actor : Body, Counted {
  void run(std::int64_t i) { work(i); }
  // Suspends until open() is called, which needs a turn of the object.
  rpc::Task<std::int64_t> pause(std::int64_t i) {
    work(i);
    rpc::Promise<void> promise;
    auto opened = promise.future();
    opening = std::move(promise);
    co_await std::move(opened);
    work(i + 100);
    co_return i;
  }
  void open() {
    work(0);
    std::exchange(opening, rpc::Promise<void>()).complete(rpc::Result<void>{});
  }
  void first() { meet_first(); }
  void second() { meet_second(); }
  std::int64_t take(std::int64_t value, std::int64_t more) { return value + more; }
  using Service = rpc::Service<"actor", rpc::Method<"run", &Actor::run>, rpc::Method<"pause", &Actor::pause>,
                               rpc::Method<"open", &Actor::open>, rpc::Method<"first", &Actor::first>,
                               rpc::Method<"second", &Actor::second>, rpc::Method<"take", &Actor::take>>;
  rpc::Promise<void> opening;
};

struct Crowd : Body, Counted {
  static constexpr bool concurrent = true;
  void first() { meet_first(); }
  void second() { meet_second(); }
  using Service =
      rpc::Service<"crowd", rpc::Method<"first", &Crowd::first>, rpc::Method<"second", &Crowd::second>>;
};

class ActorTest : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    adjust = [](rpc::AgentOptions& options) { options.handler_threads = 4; };
    start({"owner", "anna", "bert"});
    for (const auto* name : {"owner", "anna", "bert"}) {
      agent(name).allow_create<Actor>();
      agent(name).allow_create<Crowd>();
    }
    stage = std::make_shared<Stage>();
  }
};

TEST_F(ActorTest, OneHandlerAtATimeInEachCallersOrder) {
  const auto actor = create<Actor>(peer("anna", "owner"));
  got(peer("anna", "bert").call<&Keeper::keep>(RRef<Box>(actor.reference())));
  const RRef<Actor> berts(keepers["bert"]->give().reference());
  constexpr std::int64_t each = 300;
  const auto call_all = [](const RRef<Actor>& whom, std::int64_t base) {
    std::vector<rpc::Future<void>> done;
    for (std::int64_t i = 0; i < each; ++i) done.push_back(whom.call<&Actor::run>(base + i));
    got(rpc::when_all(std::move(done)));
  };
  std::thread other([&] { call_all(berts, each); });
  call_all(actor, 0);
  other.join();
  EXPECT_EQ(stage->most, 1);
  ASSERT_EQ(stage->seen.size(), 2 * each);
  // The calls of each of the two callers ran in their order.
  std::stable_partition(stage->seen.begin(), stage->seen.end(), [](std::int64_t i) { return i < each; });
  EXPECT_TRUE(std::is_sorted(stage->seen.begin(), stage->seen.end()));
}

TEST_F(ActorTest, CallsBeforeTheCreationRunInOrder) {
  for (int round = 0; round < 50; ++round) {
    stage = std::make_shared<Stage>();
    const auto actor = create<Actor>(peer("anna", "owner"));
    std::vector<rpc::Future<void>> done;
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 0; i < 30; ++i) {
      done.push_back(actor.call<&Actor::run>(i));
      expected.push_back(i);
    }
    got(rpc::when_all(std::move(done)));
    ASSERT_EQ(stage->seen, expected);
  }
}

TEST_F(ActorTest, OtherHandlersRunWhileOneIsSuspended) {
  const auto actor = create<Actor>(peer("anna", "owner"));
  auto paused = actor.call<&Actor::pause>(1);
  got(actor.call<&Actor::run>(2));
  EXPECT_FALSE(paused.ready());
  got(actor.call<&Actor::open>());
  EXPECT_EQ(got(std::move(paused)), 1);
  EXPECT_EQ(stage->seen, (std::vector<std::int64_t>{1, 2, 0, 101}));
  EXPECT_EQ(stage->most, 1);
}

TEST_F(ActorTest, ATypeCanOptOut) {
  const auto crowd = create<Crowd>(peer("anna", "owner"));
  std::vector<rpc::Future<void>> done;
  done.push_back(crowd.call<&Crowd::first>());
  done.push_back(crowd.call<&Crowd::second>());
  got(rpc::when_all(std::move(done)));
}

TEST_F(ActorTest, HandlersOfDifferentObjectsRunConcurrently) {
  const auto a = create<Actor>(peer("anna", "owner")), b = create<Actor>(peer("bert", "owner"));
  std::vector<rpc::Future<void>> done;
  done.push_back(a.call<&Actor::first>());
  done.push_back(b.call<&Actor::second>());
  got(rpc::when_all(std::move(done)));
}

// X calls O.g(r) with r = P.h(); h calls back into X, whose handler calls O.m. Were g in O's queue while it
// waits for r, m would wait for g, h for m, r for h, and g for r.
struct Node {
  rpc::Task<std::int64_t> back(RRef<Actor> o) { co_return co_await o.call<&Actor::take>(1, 1); }
  rpc::Task<std::int64_t> h(RRef<Actor> o) {
    const rpc::Peer x = agent->peer("anna");
    co_return 10 * co_await x.call<&Node::back>(o);
  }
  using Service = rpc::Service<"node", rpc::Method<"back", &Node::back>, rpc::Method<"h", &Node::h>>;
  rpc::Agent* agent;
};

TEST_F(ActorTest, ACallWaitsForItsArgumentsOutsideTheQueue) {
  for (const auto* name : {"anna", "bert"}) agent(name).serve(std::make_shared<Node>(Node{&agent(name)}));
  peer("bert", "anna");
  const auto o = create<Actor>(peer("anna", "owner"));
  const RRef<std::int64_t> r = remote<&Node::h>(peer("anna", "bert"), o);
  EXPECT_EQ(got(o.call<&Actor::take>(r, 5)), 25);
}

TEST_F(ActorTest, TheLastCallMayReleaseItsOwnObject) {
  auto actor = create<Actor>(peer("anna", "owner"));
  auto last = actor.call<&Actor::take>(1, 2);
  actor = {};
  EXPECT_EQ(got(std::move(last)), 3);
  expect_nothing_left();
}

}  // namespace
}  // namespace weft::rref::actor_test
