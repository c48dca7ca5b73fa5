// Two hosts, as network namespaces with a cable between them: no call with an RRef is lost when connections
// are reset, when the cable is pulled for a while, or when both agents dial each other at the same time.
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include "tests/support/cluster.h"
#include "tests/support/two_hosts.h"

namespace weft::rref::hosts_process_test {
namespace {

using namespace std::chrono_literals;
using rpc::Buffer;
using test::got;
using test::TwoHosts;

struct Item {
  std::int64_t number = 0;
  std::int64_t get() const { return number; }
  using Service = rpc::Service<"item", rpc::Method<"get", &Item::get, rpc::non_blocking>>;
};

struct Parcel {
  RRef<Item> item;
  Buffer bytes;
};
WEFT_CODEC(Parcel, item, bytes)

struct Keeper {
  explicit Keeper(rpc::Agent& own) : agent(&own) {}
  Parcel wrap(std::int64_t number, Buffer bytes) {
    if (number == next) ++next;
    return {local(*agent, std::make_shared<Item>(Item{number})), std::move(bytes)};
  }
  std::int64_t in_order() { return next; }
  using Service = rpc::Service<"keeper", rpc::Method<"wrap", &Keeper::wrap, rpc::non_blocking>,
                               rpc::Method<"in_order", &Keeper::in_order, rpc::non_blocking>>;
  rpc::Agent* agent;
  std::int64_t next = 0;  // used on the agent's loop
};

rpc::AgentOptions options(const std::string& name, const char* address) {
  rpc::AgentOptions options;
  options.name = name;
  options.listen = {address};
  options.insecure = true;  // the other host belongs to this test
  options.heartbeat = {.interval = 1s, .timeout = 1min};
  options.log = [](const rpc::LogRecord&) {};
  return options;
}

TEST(RRefHosts, CallsBetweenHostsAreNotLost) {
  TwoHosts hosts([] {
    auto* agent = new rpc::Agent(options("keeper", TwoHosts::there_address), layers());
    agent->serve(std::make_shared<Keeper>(*agent));
    serve<Item>(*agent);
    return agent->addresses().front();
  });
  if (!hosts.missing().empty()) GTEST_SKIP() << hosts.missing();
  // It listens, so both agents dial after each loss.
  rpc::Agent client(options("client", TwoHosts::here_address), layers());
  const rpc::Peer keeper = client.connect(hosts.said());
  got(keeper.ready());
  const bool can_reset = TwoHosts::reset_connections();
  std::vector<rpc::Future<Parcel>> calls;
  std::vector<std::size_t> sizes;
  std::int64_t answered = 0;
  const auto take = [&](std::size_t left) {
    while (calls.size() - static_cast<std::size_t>(answered) > left) {
      const auto i = static_cast<std::size_t>(answered++);
      const Parcel parcel = got(std::move(calls[i]));
      EXPECT_EQ(parcel.bytes.size(), sizes[i]);
      EXPECT_EQ(parcel.bytes.data()[sizes[i] - 1], static_cast<std::byte>(i));
      EXPECT_EQ(got(parcel.item.call<&Item::get>()), static_cast<std::int64_t>(i));
    }
  };
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::size_t size = std::size_t{1000} << (i * 7 % 11);
    Buffer bytes = Buffer::allocate(size);
    std::fill(bytes.bytes().begin(), bytes.bytes().end(), static_cast<std::byte>(i));
    sizes.push_back(size);
    calls.push_back(keeper.call<&Keeper::wrap>(static_cast<std::int64_t>(i), std::move(bytes)));
    if (i % 100 == 50 && can_reset) {
      ASSERT_TRUE(TwoHosts::reset_connections());
    }
    if (i % 400 == 200) {
      ASSERT_TRUE(hosts.there("ip link set weft1 down && sleep 1 && ip link set weft1 up"));
    }
    take(50);
  }
  take(0);
  EXPECT_EQ(got(keeper.call<&Keeper::in_order>()), 1000) << "each call ran once, and in its order";
  EXPECT_GE(client.counts().connections_made, can_reset ? 10U : 1U);
  test::eventually("one connection is left", [&] { return client.counts().connections == 1; });
}

}  // namespace
}  // namespace weft::rref::hosts_process_test
