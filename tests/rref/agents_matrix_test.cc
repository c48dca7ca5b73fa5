// Two agents cross each way to connect with each kind of call and each size; every value arrives as it was
// sent.
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include "tests/support/cluster.h"

namespace weft::rref::agents_matrix_test {
namespace {

using namespace std::chrono_literals;
using rpc::Buffer;
using test::Cluster;
using test::got;

struct Item {
  std::int64_t get() const { return 7; }
  using Service = rpc::Service<"item", rpc::Method<"get", &Item::get>>;
};

struct Parcel {
  RRef<Item> item;
  Buffer bytes;
};
WEFT_CODEC(Parcel, item, bytes)

// Every value depends on its place, so that missing, repeated and exchanged parts are detected.
Buffer filled(std::size_t size) {
  Buffer bytes = Buffer::allocate(size);
  for (std::size_t i = 0; i < size; ++i) bytes.data()[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}
bool same(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && std::equal(a.data(), a.data() + a.size(), b.data());
}

struct Desk {
  Buffer plain(Buffer bytes) { return bytes; }
  void note(Buffer bytes) {
    noted += same(bytes, filled(bytes.size())) ? bytes.size() : 0;
    ++notes;
  }
  std::int64_t number(std::int64_t number) {  // the number of earlier calls, if the calls arrive in order
    if (number == next) ++next;
    return next;
  }
  std::int64_t number_again(std::int64_t n) { return number(n); }
  rpc::Stream<Buffer> parts(rpc::Stream<Buffer> given) {
    while (auto part = co_await given.next()) co_yield std::move(*part);
  }
  Parcel wrap(Buffer bytes) { return {local(*agent, std::make_shared<Item>()), std::move(bytes)}; }
  Parcel pass(Parcel parcel) { return parcel; }

  using Service = rpc::Service<"desk", rpc::Method<"plain", &Desk::plain>, rpc::Method<"note", &Desk::note>,
                               rpc::Method<"number", &Desk::number, rpc::non_blocking>,
                               rpc::Method<"number_again", &Desk::number_again, rpc::non_blocking>,
                               rpc::Method<"parts", &Desk::parts>, rpc::Method<"wrap", &Desk::wrap>,
                               rpc::Method<"pass", &Desk::pass>>;

  explicit Desk(rpc::Agent& own) : agent(&own) {}
  rpc::Agent* agent;
  std::atomic<std::uint64_t> noted{0}, notes{0};
  std::int64_t next = 0;
};

enum class Way { shared_memory, tcp, tls };
constexpr const char* names_of_ways[] = {"shared_memory", "tcp", "tls"};
// The sizes: in the frame's first bytes, at the limits of large frames and bulk, and beyond the windows.
constexpr std::uint64_t window = 1 << 20;
constexpr std::size_t sizes[] = {100, 64 << 10, 3 * window};

struct Meeting {
  Way way;
  bool at_once;  // both agents dial each other at once
};
void PrintTo(const Meeting& meeting, std::ostream* out) {
  *out << names_of_ways[static_cast<int>(meeting.way)] << (meeting.at_once ? ", two dials" : ", one dial");
}

class AgentsMatrix : public testing::TestWithParam<std::tuple<Meeting, std::size_t>> {
 protected:
  AgentsMatrix() {
    const auto [meeting, bytes] = GetParam();
    for (const char* name : {"anna", "bert"}) {
      desks_[name] = std::make_shared<Desk>(cluster_.add(name));
      cluster_[name].serve(desks_[name]);
      serve<Item>(cluster_[name]);
    }
    std::vector<rpc::Future<rpc::AgentId>> ready;
    const auto dial = [&](const char* from, const char* to) {
      peers_.emplace(from, cluster_[from].connect(cluster_[to].addresses().front()));
      ready.push_back(peers_.at(from).ready());
    };
    if (!meeting.at_once) {
      dial("anna", "bert");
      got(std::move(ready.front()));
      peers_.emplace("bert", cluster_["bert"].peer("anna"));
      return;
    }
    {  // neither accepts before both have dialled
      const test::HeldLoop anna(cluster_["anna"]), bert(cluster_["bert"]);
      dial("anna", "bert");
      dial("bert", "anna");
    }
    for (auto& one : ready) got(std::move(one));
  }

  // Runs `body` in both directions at the same time, several times.
  template <class Body>
  void both_ways(Body body) {
    std::vector<std::thread> threads;
    for (const auto& [from, peer] : peers_)
      threads.emplace_back([&, to = from == "anna" ? "bert" : "anna", peer = peer.with({.timeout = 20s})] {
        try {
          for (int i = 0; i < 2; ++i) body(peer, *desks_.at(to));
        } catch (const std::exception& error) {
          ADD_FAILURE() << "to " << to << ": " << error.what();
        }
      });
    for (auto& thread : threads) thread.join();
  }
  std::size_t bytes() const { return std::get<1>(GetParam()); }

  Cluster cluster_{{.layers = layers(), .tcp = true, .adjust = [](rpc::AgentOptions& options) {
                      const Way way = std::get<0>(GetParam()).way;
                      options.same_host = way == Way::shared_memory;
                      options.limits.in_flight = window;
                      options.streams.window.bytes = window;
                      rpc::CredentialOptions secret;
                      secret.secrets = {{"job", std::string(32, 's'), {}}};
                      if (way == Way::tls) options.credentials = std::make_shared<rpc::Credentials>(secret);
                    }}};
  std::map<std::string, std::shared_ptr<Desk>> desks_;
  std::map<std::string, rpc::Peer> peers_;
};

TEST_P(AgentsMatrix, PlainCalls) {
  both_ways([&](const rpc::Peer& peer, Desk&) {
    const Buffer sent = filled(bytes());
    EXPECT_TRUE(same(got(peer.call<&Desk::plain>(sent)), sent));
  });
}

TEST_P(AgentsMatrix, Notifications) {
  both_ways([&](const rpc::Peer& peer, Desk&) { peer.notify<&Desk::note>(filled(bytes())); });
  for (const auto& named : desks_)
    test::eventually("all arrive at " + named.first, [&] { return named.second->notes == 2; });
  for (const auto& [name, desk] : desks_) EXPECT_EQ(desk->noted, 2 * bytes()) << name;
}

TEST_P(AgentsMatrix, Streams) {
  both_ways([&](const rpc::Peer& peer, Desk&) {
    const Buffer sent = filled(bytes());
    auto [writer, given] = rpc::make_channel<Buffer>(4);
    auto back = got(peer.call<&Desk::parts>(std::move(given)));
    for (int i = 0; i < 4; ++i) got(writer.write(sent));
    writer.close();
    int items = 0;
    while (const auto item = got(back.next())) {
      EXPECT_TRUE(same(*item, sent));
      ++items;
    }
    EXPECT_EQ(items, 4);
  });
}

TEST_P(AgentsMatrix, CallsWithAnRRef) {
  both_ways([&](const rpc::Peer& peer, Desk&) {
    const Buffer sent = filled(bytes());
    Parcel parcel = got(peer.call<&Desk::wrap>(sent));
    EXPECT_TRUE(same(parcel.bytes, sent));
    EXPECT_EQ(got(parcel.item.call<&Item::get>()), 7);
    parcel = got(peer.call<&Desk::pass>(parcel));
    EXPECT_TRUE(same(parcel.bytes, sent));
    EXPECT_EQ(got(parcel.item.call<&Item::get>()), 7);
  });
}

// Calls arrive in the order in which they were made.
TEST_P(AgentsMatrix, Order) {
  if (bytes() != sizes[0]) return;
  for (const auto& [from, peer] : peers_) {
    std::vector<rpc::Future<std::int64_t>> calls;
    for (std::int64_t i = 0; i < 500; ++i)
      calls.push_back(i % 2 == 0 ? peer.call<&Desk::number>(i) : peer.call<&Desk::number_again>(i));
    for (std::int64_t i = 0; i < 500; ++i)
      EXPECT_EQ(got(std::move(calls[static_cast<std::size_t>(i)])), i + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AgentsMatrix,
                         testing::Combine(testing::Values(Meeting{Way::shared_memory, false},
                                                          Meeting{Way::shared_memory, true},
                                                          Meeting{Way::tcp, false}, Meeting{Way::tcp, true},
                                                          Meeting{Way::tls, false}, Meeting{Way::tls, true}),
                                          testing::ValuesIn(sizes)),
                         [](const auto& info) {
                           const Meeting& meeting = std::get<0>(info.param);
                           return std::string(names_of_ways[static_cast<int>(meeting.way)]) +
                                  (meeting.at_once ? "_two_dials_" : "_one_dial_") +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace weft::rref::agents_matrix_test
