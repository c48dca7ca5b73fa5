// The members of a new group that share memory.
#include <weft/parallel/collectives/internal/rendezvous.h>

#include "tests/parallel/collectives/operations.h"

namespace weft::collectives::testing {
namespace rendezvous_test {

// All operations of a group, each with small tensors and with large ones.
void run_all_operations(const std::vector<Group>& groups) {
  for (const GroupOperation& operation : group_operations) {
    if (std::string_view(operation.name) == "split") continue;
    for (const std::int64_t n : {10, 100'000}) {
      std::vector<Begun> begun;
      for (const Group& group : groups) begun.push_back(operation.begin(group, {.n = n, .number = 2}));
      for (auto& [done, right] : begun) {
        got(std::move(done));
        EXPECT_TRUE(right()) << operation.name << " of " << n;
      }
    }
  }
}

void expect_backend(const std::vector<Group>& groups, GroupBackend backend) {
  for (const Group& group : groups) EXPECT_EQ(group.backend(), backend) << "rank " << group.rank();
}

TEST(MembersWithoutMemory, AreHostsOfOneRankEach) {
  Company company(5);
  const auto groups = company.groups_of(
      [](int rank) { return GroupOptions{.shared_memory = rank != 3, .host = rank < 2 ? "a" : "b"}; });
  expect_backend(groups, GroupBackend::hosts);
  run_all_operations(groups);
  EXPECT_EQ(groups[3].empty({100}).numel(), 100);
}

TEST(MembersWithoutMemory, DoNotPreventOtherMembersFromSharing) {
  Company company(3);
  const auto groups = company.groups_of([](int rank) { return GroupOptions{.shared_memory = rank != 1}; });
  expect_backend(groups, GroupBackend::hosts);
  run_all_operations(groups);
}

TEST(MembersWithoutMemory, UseMessagesIfNoTwoMembersShare) {
  Company company(3);
  expect_backend(
      company.groups_of([](int rank) { return GroupOptions{.shared_memory = rank == 0, .host = "a"}; }),
      GroupBackend::messages);
}

TEST(MembersOfOneHost, ShareMemoryIfTheirSharedBytesAreEqual) {
  Company company(4);
  const auto groups = company.groups_of(
      [](int rank) { return GroupOptions{.shared_bytes = std::size_t{1} << (rank < 2 ? 24 : 25)}; });
  expect_backend(groups, GroupBackend::hosts);
  run_all_operations(groups);
}

// Runs the seats of one rendezvous in one thread. `heard` may change the values that all receive in a round.
class Table {
 public:
  using Said = std::vector<rpc::Buffer>;
  Table(int seats, std::function<void(int, Said&)> heard) : heard_(std::move(heard)) {
    for (Round& round : rounds_) {
      round.said.resize(static_cast<std::size_t>(seats));
      round.open = seats;
    }
  }
  Talk talk(int seat) {
    return [this, seat](int number, rpc::Buffer said) {
      Round& round = rounds_[number];
      round.said[static_cast<std::size_t>(seat)] = std::move(said);
      round.listening.emplace_back();
      auto future = round.listening.back().future();
      if (--round.open == 0) {
        heard_(number, round.said);
        for (auto& each : round.listening) each.complete(Said(round.said));
      }
      return future;
    };
  }

 private:
  struct Round {
    Said said;
    int open = 0;
    std::vector<rpc::Promise<Said>> listening;
  };
  const std::function<void(int, Said&)> heard_;
  Round rounds_[2];
};

std::vector<Rendezvous> meet_at(Table& table, const std::vector<std::string>& hosts) {
  std::vector<rpc::Future<Rendezvous>> futures;
  for (const std::string& host : hosts) {
    const int seat = static_cast<int>(futures.size());
    futures.push_back(meet(table.talk(seat), {.name = "worker" + std::to_string(seat)},
                           {.index = seat, .of = static_cast<int>(hosts.size())}, {.host = host}));
  }
  std::vector<Rendezvous> results;
  for (auto& future : futures) results.push_back(std::move(future).get());
  return results;
}

TEST(MembersThatCannotOpenMemory, AffectOnlyTheirHost) {
  Table table(5, [](int round, Table::Said& said) {
    if (round == 1) said[1] = rpc::pack(false);
  });
  const auto results = meet_at(table, {"a", "a", "b", "b", "b"});
  const std::vector<std::vector<int>> expected{{0}, {1}, {2, 3, 4}};
  for (const Rendezvous& rendezvous : results) {
    ASSERT_TRUE(rendezvous.hosts) << "rank " << rendezvous.rank;
    EXPECT_EQ(rendezvous.hosts->ranks, expected);
    EXPECT_EQ(rendezvous.hosts->columns, 1);
    ASSERT_NE(rendezvous.space, nullptr);
    EXPECT_EQ(rendezvous.space->ranks(), rendezvous.rank < 2 ? 1 : 3);
  }
}

TEST(MembersThatCannotOpenMemory, OfTheOnlyHostCauseMessages) {
  Table table(3, [](int round, Table::Said& said) {
    if (round == 1) said[2] = rpc::pack(false);
  });
  for (const Rendezvous& rendezvous : meet_at(table, {"a", "a", "a"})) {
    EXPECT_FALSE(rendezvous.hosts);
    EXPECT_EQ(rendezvous.space, nullptr);
  }
}

// The rendezvous is cancelled in either round, also if the future of the first round is not set when the
// second one starts.
TEST(ARendezvous, CancelsTheCurrentRound) {
  for (const int last : {0, 1}) {
    int cancelled = -1;
    std::vector<rpc::Promise<Table::Said>> waiting;
    const Talk talk = [&](int round, const rpc::Buffer& said) {
      if (round < last) return rpc::Future<Table::Said>::made(Table::Said{said});
      waiting.emplace_back();
      waiting.back().on_cancel([&cancelled, round] { cancelled = round; });
      return waiting.back().future();
    };
    auto future = meet(talk, {.name = "worker"}, {}, {});
    EXPECT_EQ(cancelled, -1);
    future.cancel();
    EXPECT_EQ(cancelled, last);
    waiting.back().fail(rpc::Error(ErrorKind::cancelled, "cancelled"));
    test::expect_error(std::move(future), ErrorKind::cancelled, "cancelled");
  }
}

}  // namespace rendezvous_test
}  // namespace weft::collectives::testing
