// Real deaths: an owner, and a user, in separate processes that are killed.
#include <weft/rref/rref.h>
#include <weft/rref/rref_layer.h>

#include <gtest/gtest.h>

#include <thread>

#include "tests/rref/rref_support.h"
#include "tests/support/child.h"

namespace weft::rref::rref_process_test {
namespace {

using test::Child;
using test::say;

// The heartbeat timeout is ten minutes, so silence does not prove a death within this test.
rpc::AgentOptions options(const std::string& name) {
  return {.name = name,
          .listen = {"tcp://127.0.0.1:0"},
          .handler_threads = 2,
          .heartbeat = {.timeout = std::chrono::minutes{10}},
          .log = [](const rpc::LogRecord&) {}};
}

TEST(RRefProcess, AKilledOwnerIsLostAtOnce) {
  Child owner([](int pipe) {
    auto* agent = new rpc::Agent(options("owner"), layers());
    agent->allow_create<Box>();
    agent->serve(std::make_shared<Keeper>(*agent));
    say(pipe, agent->addresses().front());
  });
  const std::string address = owner.line();
  rpc::Agent user(options("user"), layers());
  const rpc::Peer peer = user.connect(address);
  got(peer.ready());
  const auto box = create<Box>(peer, 5);
  EXPECT_EQ(got(box.call<&Box::get>()), 5);
  const auto result = box.remote<&Box::get>();
  EXPECT_EQ(got(result.to_here()), 5);
  owner.kill();
  EXPECT_EQ(kind_of([&] { got(box.call<&Box::get>()); }), ErrorKind::owner_lost);
  EXPECT_EQ(kind_of([&] { got(result.to_here()); }), ErrorKind::owner_lost);
  eventually("its forks know", [&] { return !box.is_confirmed() && !result.is_confirmed(); });
  EXPECT_EQ(kind_of([&] { box.remote<&Box::get>(); }), ErrorKind::owner_lost);
}

TEST(RRefProcess, AKilledUsersForksEnd) {
  // The user comes first: a process forks before it has threads.
  int address_pipe[2];
  ASSERT_EQ(pipe(address_pipe), 0);
  Child user([&](int pipe) {
    std::string address;
    for (char c; read(address_pipe[0], &c, 1) == 1 && c != '\n';) address += c;
    auto* agent = new rpc::Agent(options("user"), layers());
    const rpc::Peer owner = agent->connect(address);
    got(owner.ready());
    auto* box = new RRef<Box>(create<Box>(owner, 5));
    got(box->ready());
    say(pipe, "made");
  });
  rpc::Agent owner(options("owner"), layers());
  owner.allow_create<Box>();
  say(address_pipe[1], owner.addresses().front());
  EXPECT_EQ(user.line(), "made");
  EXPECT_EQ(Counted::alive, 1);
  user.kill();
  eventually("its object is gone", [&] { return Counted::alive == 0; });
  EXPECT_TRUE(RRefLayer::of(*owner.core())->live_objects().empty());
  close(address_pipe[0]);
  close(address_pipe[1]);
}

}  // namespace
}  // namespace weft::rref::rref_process_test
