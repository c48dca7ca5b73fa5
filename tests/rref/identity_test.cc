// An authenticated peer that states the incarnation of another agent does not change the other agent's state.
#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/testing/test_authority.h>
#include <weft/rpc/transport/transport.h>

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

}  // namespace
}  // namespace weft::rref::identity_test
