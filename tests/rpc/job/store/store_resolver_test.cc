#include <weft/rpc/job/store/store_resolver.h>

#include <weft/rpc/job/store/memory_store.h>

#include "tests/support/cluster.h"

namespace weft::rpc::store_resolver_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

class Replica {
 public:
  explicit Replica(std::string name) : name_(std::move(name)) {}
  std::string who() const { return name_; }
  using Service = rpc::Service<"replica", Method<"who", &Replica::who>>;

 private:
  const std::string name_;
};

TEST(StoreResolver, ReplicasAppearAndDisappearWithTheirKeys) {
  Cluster cluster({}, {"client", "a", "b"});
  for (const char* name : {"a", "b"}) cluster[name].serve(std::make_shared<Replica>(name));
  const auto store = std::make_shared<MemoryStore>(cluster["client"].core()->pick_loop());
  const StoreLease lease = got(store->grant(1h));
  got(store->set("services/replica/a", "inproc://a", lease.id));
  got(store->set("services/other/c", "inproc://c"));

  const PeerSet set(cluster["client"], store_resolver(store, "services/replica/"),
                    {.refresh = 1ms, .soonest = 0ns});
  EXPECT_EQ(got(set.call<&Replica::who>()), "a");
  ASSERT_EQ(set.replicas().size(), 1U) << "a key with another prefix is not a replica";
  got(store->set("services/replica/b", "inproc://b"));
  eventually("b is called", [&] { return got(set.call<&Replica::who>()) == "b"; });
  got(store->revoke(lease.id));
  eventually("a is gone", [&] { return set.replicas().size() == 1; });
  EXPECT_EQ(set.replicas().front().name, "inproc://b");
}

TEST(StoreResolver, TheSetKeepsItsReplicasIfTheStoreFails) {
  Cluster cluster({}, {"client", "a"});
  cluster["a"].serve(std::make_shared<Replica>("a"));
  const auto store = std::make_shared<MemoryStore>(cluster["client"].core()->pick_loop());
  got(store->set("services/a", "inproc://a"));
  auto asked = std::make_shared<std::atomic<int>>(0);
  const auto resolve = store_resolver(store, "services/");
  const PeerSet set(cluster["client"],
                    [resolve, asked] {
                      if (++*asked == 1) return resolve();
                      return Future<PeerSet::Names>::made(
                          std::make_exception_ptr(Error(ErrorKind::unavailable, "no store")));
                    },
                    {.refresh = 1ms, .soonest = 1ms});
  eventually("it has failed", [&] { return *asked >= 3; });
  EXPECT_EQ(got(set.call<&Replica::who>()), "a");
}

}  // namespace
}  // namespace weft::rpc::store_resolver_test
