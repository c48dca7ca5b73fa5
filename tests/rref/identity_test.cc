// An authenticated peer that states the incarnation of another agent does not change the other agent's state.
#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/testing/test_authority.h>
#include <weft/rpc/transport/tcp_transport.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::identity_test {
namespace {

class Identity : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<rpc::Credentials> of(const std::string& name) {
    return std::make_shared<rpc::Credentials>(authority_.credentials(name));
  }
  // Connects as "mallory" with the incarnation of another agent, and leaves. Returns the error.
  std::optional<rpc::Error> visit(const rpc::AgentId& victim, const std::string& address) {
    rpc::Runtime runtime;
    runtime.loops = {std::make_shared<rpc::AsioLoop>()};
    runtime.handlers = std::make_shared<rpc::HandlerPool>(1);
    runtime.incarnation = victim.incarnation;
    runtime.id_seed = 1;
    runtime.transports = {rpc::make_tcp_transport()};
    rpc::Agent mallory(
        std::move(runtime),
        {.name = "mallory", .credentials = of("mallory"), .log = [](const rpc::LogRecord&) {}});
    return error_of([&] { return got(mallory.peer(address).ready()); });
  }

  test::TestAuthority authority_;
};
INSTANTIATE_TEST_SUITE_P(, Identity, testing::Values("allow cert:mallory weft.ping\n", ""),
                         [](const auto& info) { return *info.param != 0 ? "MayPing" : "MayCallNothing"; });

TEST_P(Identity, AnotherAgentsIncarnationIsRefused) {
  std::vector<std::string> log;
  std::mutex mutex;
  rpc::Agent server({.name = "server",
                     .listen = {"tcp://127.0.0.1:0"},
                     .credentials = of("server"),
                     .permissions = rpc::Permissions::parse(
                         std::string("allow cert:worker1 *\nallow cert:server *\n") + GetParam()),
                     .log =
                         [&](const rpc::LogRecord& record) {
                           std::lock_guard lock(mutex);
                           log.emplace_back(record.message);
                         }},
                    layers());
  server.allow_create<Box>();
  rpc::Agent worker({.name = "worker1", .credentials = of("worker1")}, layers());
  const std::string address = server.addresses().at(0);
  const rpc::Peer to = worker.peer(address);
  got(to.ready());
  const auto box = create<Box>(to, 7);
  EXPECT_EQ(got(box.call<&Box::get>()), 7);

  const auto error = visit(worker.id(), address);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::permission_denied) << error->what();
  EXPECT_NE(std::string(error->what()).find("'mallory' states the incarnation of 'worker1'"),
            std::string::npos)
      << error->what();
  eventually("the server counts the refusal", [&] { return server.counts().connections_refused == 1; });
  EXPECT_EQ(got(box.call<&Box::get>()), 7);
  EXPECT_EQ(got(create<Box>(to, 8).call<&Box::get>()), 8);
  ASSERT_TRUE(visit(server.id(), address)) << "nor may it be the server's own";

  // The incarnation stays known after the end of its agent.
  got(worker.drain(test::too_long));
  worker.shut_down();
  eventually("the worker is gone", [&] { return server.core()->sessions().is_gone(worker.id()); });
  EXPECT_TRUE(visit(worker.id(), address));
}

// Also if a layer is told about the end of another agent with the same incarnation.
TEST_F(RRefTest, TheEndOfAnotherAgentWithTheSameIncarnationChangesNothing) {
  start({"owner", "anna"});
  const auto box = create<Box>(peer("anna", "owner"), 1);
  const auto own = local(agent("owner"), std::make_shared<Box>(7));
  got(peer("owner", "anna").call<&Keeper::keep>(own));
  EXPECT_EQ(got(box.call<&Box::get>()), 1);
  const rpc::Error reason(ErrorKind::peer_lost, "the test says so");
  context("owner")->peer_gone({"mallory", agent("anna").id().incarnation}, reason);
  context("anna")->peer_gone({"mallory", agent("owner").id().incarnation}, reason);
  EXPECT_EQ(got(box.call<&Box::get>()), 1);
  EXPECT_EQ(got(keepers["anna"]->boxes[0].call<&Box::get>()), 7);
  EXPECT_EQ(got(create<Box>(peer("anna", "owner"), 2).call<&Box::get>()), 2);
  keepers["anna"]->drop();
}

// --- Two agents that connect to each other at the same time over TCP ---

struct Made {
  RRef<Box> box;
  std::string data;
};
WEFT_CODEC(Made, box, data)

struct Maker {
  explicit Maker(rpc::Agent& a) : agent(&a) {}
  Made make(std::int64_t bytes) {
    return {local(*agent, std::make_shared<Box>(bytes)), std::string(static_cast<std::size_t>(bytes), 'x')};
  }
  using Service = rpc::Service<"test.maker", rpc::Method<"make", &Maker::make>>;
  rpc::Agent* agent;
};

// Records the order in which calls arrive.
struct Order {
  void plain(std::int64_t number) { numbers.push_back(number); }
  void again(std::int64_t number) { numbers.push_back(number); }
  std::vector<std::int64_t> seen() { return numbers; }
  using Service = rpc::Service<"test.order", rpc::Method<"plain", &Order::plain, rpc::non_blocking>,
                               rpc::Method<"again", &Order::again, rpc::non_blocking>,
                               rpc::Method<"seen", &Order::seen, rpc::non_blocking>>;
  std::vector<std::int64_t> numbers;  // used on the agent's loop
};

class BothDial : public testing::Test {
 protected:
  struct Side {
    explicit Side(const std::string& name)
        : agent({.name = name,
                 .listen = {"tcp://127.0.0.1:0"},
                 .same_host = false,
                 .log = [](const rpc::LogRecord&) {}},
                layers()) {
      agent.serve(std::make_shared<Maker>(agent));
      agent.serve(std::make_shared<Order>());
      serve<Box>(agent);
    }
    rpc::Agent agent;
  };
  BothDial() {
    rpc::Future<rpc::AgentId> b_ready, a_ready;
    {
      HeldLoop loop_a(a.agent), loop_b(b.agent);
      b_ready = to_b.ready();
      a_ready = to_a.ready();
    }
    got(std::move(b_ready));
    got(std::move(a_ready));
    for (const Side* side : {&a, &b}) {
      EXPECT_EQ(side->agent.counts().connections_made, 2U);
      eventually("one connection is left", [&] { return side->agent.counts().connections == 1; });
    }
  }

  Side a{"a"}, b{"b"};
  const rpc::Peer to_b = a.agent.peer(b.agent.addresses().at(0)),
                  to_a = b.agent.peer(a.agent.addresses().at(0));
};

TEST_F(BothDial, ALargeReplyWithAnRRefReachesItsCaller) {
  for (const rpc::Peer* peer : {&to_b, &to_a}) {
    const Made made = got(peer->call<&Maker::make>(100'000));
    EXPECT_EQ(made.data.size(), 100'000U);
    EXPECT_EQ(got(made.box.call<&Box::get>()), 100'000);
  }
}

TEST_F(BothDial, CallsOfOneCallerArriveInOrder) {
  std::vector<std::int64_t> sent;
  std::vector<rpc::Future<void>> calls;
  for (std::int64_t i = 0; i < 2000; ++i) {
    sent.push_back(i);
    calls.push_back(i % 2 == 0 ? to_b.call<&Order::plain>(i) : to_b.call<&Order::again>(i));
  }
  for (auto& call : calls) got(std::move(call));
  EXPECT_EQ(got(to_b.call<&Order::seen>()), sent);
}

}  // namespace
}  // namespace weft::rref::identity_test
