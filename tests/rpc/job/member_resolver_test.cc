#include <weft/rpc/job/member_resolver.h>

#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/store/memory_store.h>
#include <weft/rpc/job/store/remote_store.h>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::rpc::member_resolver_test {
namespace {

using namespace test;

MemberRecord record(const std::string& name, MemberState state, std::vector<std::string> addresses,
                    std::map<std::string, std::string> metadata = {}) {
  MemberRecord made;
  made.name = name;
  made.incarnation = 7;
  made.state = state;
  made.addresses = std::move(addresses);
  made.metadata = std::move(metadata);
  return made;
}

class MemberResolverTest : public testing::Test {
 protected:
  void put(const MemberRecord& member) {
    got(store->set(std::string(membership_keys::members) + member.name, to_text(member)));
  }
  Cluster cluster{{}, {"client"}};
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>(cluster["client"].core()->pick_loop());
};

TEST_F(MemberResolverTest, ReturnsPresentMembersByTheirFirstAddress) {
  put(record("anna", MemberState::joined, {"inproc://anna", "tcp://10.0.0.7:1"}));
  put(record("bert", MemberState::serving, {"inproc://bert"}));
  put(record("late", MemberState::claimed, {"inproc://late"}));
  put(record("left", MemberState::left, {"inproc://left"}));
  put(record("lost", MemberState::lost, {"inproc://lost"}));
  put(record("mute", MemberState::joined, {}));
  got(store->set("host", "anna"));
  EXPECT_EQ(got(member_resolver(store)()), (PeerSet::Names{"inproc://anna", "inproc://bert"}));
}

TEST_F(MemberResolverTest, ReturnsTheSelectedMembers) {
  put(record("anna", MemberState::joined, {"inproc://anna"}, {{"serves", "market"}}));
  put(record("bert", MemberState::joined, {"inproc://bert"}, {{"serves", "rates"}}));
  const auto resolve = member_resolver(store, [](const Member& member) {
    const auto serves = member.metadata.find("serves");
    return serves != member.metadata.end() && serves->second == "market";
  });
  EXPECT_EQ(got(resolve()), PeerSet::Names{"inproc://anna"});
}

TEST_F(MemberResolverTest, AMalformedRecordIsAnError) {
  got(store->set(std::string(membership_keys::members) + "anna", "nonsense"));
  EXPECT_EQ(kind_of([&] { got(member_resolver(store)()); }), ErrorKind::protocol_error);
}

// The agent of the set is not a member of the job.
TEST_F(MemberResolverTest, ASetOutsideTheJobCallsItsMembers) {
  test::Job job(test::job_kind<test::TcpJobStore>("tcp"));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}})
    got(rpc::Job(job.start(rank)).wait_for(rank + 1));
  Agent outside({.name = "outside"});
  const PeerSet set(outside,
                    member_resolver(std::make_shared<RemoteStore>(outside.connect(job.store().url))));
  std::set<std::string> called;
  for (int i = 0; i < 2; ++i) called.insert(got(set.call<&test::Worker::who>()));
  EXPECT_EQ(called, (std::set<std::string>{"worker0", "worker1"}));
}

}  // namespace
}  // namespace weft::rpc::member_resolver_test
