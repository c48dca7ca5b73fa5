// Objects of a program's own types among the ranks of a group.
#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace group_objects_test {

struct Progress {
  std::string name;
  std::vector<double> losses;
};
WEFT_CODEC(Progress, name, losses)

class Objects : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, Objects, ::testing::Values(Backend::messages));

TEST_P(Objects, AreGatheredByRank) {
  const auto all = at_all(groups, [](const Group& group) {
    return group.all_gather_object(Progress{"of " + std::to_string(group.rank()), {0.5 * group.rank()}});
  });
  for (const auto& each : all)
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(each[rank].name, "of " + std::to_string(rank));
      EXPECT_EQ(each[rank].losses, std::vector<double>{0.5 * rank});
    }
  const auto at_root =
      at_all(groups, [](const Group& group) { return group.gather_object(10 + group.rank(), 2); });
  EXPECT_TRUE(at_root[0].empty() && at_root[1].empty());
  EXPECT_EQ(at_root[2], (std::vector{10, 11, 12}));
}

TEST_P(Objects, StayWithinASubgroup) {
  std::vector<Group> some;
  for (const auto& part : at_all(groups, [](const Group& group) {
         return group.split(group.rank() == 1 ? std::nullopt : std::optional(0));
       }))
    if (part) some.push_back(*part);
  ASSERT_EQ(some.size(), 2U);
  const auto from_last = at_all(some, [](const Group& group) {
    return group.broadcast_object("from " + group.members()[std::size_t(group.rank())], 1);
  });
  EXPECT_EQ(from_last, (std::vector<std::string>(2, "from worker2")));
  const auto all =
      at_all(some, [](const Group& group) { return group.all_gather_object(10 + group.rank()); });
  EXPECT_EQ(all, (std::vector(2, std::vector{10, 11})));
}

TEST_P(Objects, AreExchangedAndReducedInTheOrderOfRanks) {
  const auto exchanged = at_all(groups, [](const Group& group) {
    const std::string self = std::to_string(group.rank());
    return group.all_to_all_object(std::vector{self + " to 0", self + " to 1", self + " to 2"});
  });
  EXPECT_EQ(exchanged[1], (std::vector<std::string>{"0 to 1", "1 to 1", "2 to 1"}));
  const auto reduced = at_all(groups, [](const Group& group) {
    return group.all_reduce_object(
        std::to_string(group.rank()),
        [](const std::string& a, const std::string& b) { return "(" + a + b + ")"; });
  });
  EXPECT_EQ(reduced, (std::vector<std::string>(3, "((01)2)")));
  for (auto& future : [&] {
         std::vector<rpc::Future<std::vector<int>>> futures;
         for (const Group& group : groups)
           futures.push_back(group.all_to_all_object(std::vector<int>(group.rank() == 1 ? 2 : 3)));
         return futures;
       }())
    test::expect_error(std::move(future), ErrorKind::invalid_argument, "2 objects, expected 3");
}

TEST_P(Objects, MayHaveAnySize) {
  Futures sent;
  sent.push_back(groups[0].send_object(Progress{"first", {1}}, 2));
  sent.push_back(groups[0].send_object(Progress{"second", std::vector<double>(1000, 0.5)}, 2));
  sent.push_back(groups[0].send_object(7, 2, 9));
  EXPECT_EQ(got(groups[2].recv_object<int>(0, 9)), 7);
  EXPECT_EQ(got(groups[2].recv_object<Progress>(0)).name, "first");
  EXPECT_EQ(got(groups[2].recv_object<Progress>(0)).losses.size(), 1000U);
  for (auto& future : sent) got(std::move(future));
  auto tensor = groups[1].send(at::ones({2}), 0);
  EXPECT_EQ(test::kind_of([&] { got(groups[0].recv_object<int>(1)); }), ErrorKind::invalid_argument);
  EXPECT_EQ(test::kind_of([&] { got(std::move(tensor)); }), ErrorKind::invalid_argument);
  EXPECT_EQ(test::kind_of([&] { got(groups[0].send_object(7, 3)); }), ErrorKind::invalid_argument);
}

TEST_P(Objects, WithDifferentTypesOrRootsFailOnAllRanks) {
  std::vector<rpc::Future<std::string>> strings;
  for (const int rank : {0, 1}) strings.push_back(groups[rank].broadcast_object(std::string("a"), 0));
  auto number = groups[2].broadcast_object(1.5, 0);
  for (auto& future : strings)
    test::expect_error(std::move(future), ErrorKind::invalid_argument, "rank 2 (worker2): broadcast_object(",
                       "root 0) at group_objects_test.cc:");
  EXPECT_EQ(test::kind_of([&] { return got(std::move(number)); }), ErrorKind::invalid_argument);
  std::vector<rpc::Future<int>> roots;
  for (const Group& group : groups) roots.push_back(group.broadcast_object(1, group.rank() == 1 ? 1 : 0));
  for (auto& future : roots) test::expect_error(std::move(future), ErrorKind::invalid_argument, "root 1");
  // A refusal of one rank reaches all ranks.
  std::vector<rpc::Future<int>> wrong;
  for (const Group& group : groups) wrong.push_back(group.broadcast_object(1, group.rank() == 1 ? 3 : 0));
  test::expect_error(std::move(wrong[1]), ErrorKind::invalid_argument, "rank 3 of a group of 3");
  for (const int rank : {0, 2})
    test::expect_error(std::move(wrong[rank]), ErrorKind::invalid_argument, "root 3), refused");
  std::vector<rpc::Future<int>> few;
  for (const Group& group : groups) few.push_back(group.scatter_object(std::vector{1, 2}, 0));
  for (auto& future : few) test::expect_error(std::move(future), ErrorKind::invalid_argument, "2 objects");
  together(groups, [](const Group& group) { return group.barrier(); });
}

TEST_P(Objects, FailWithTheGroup) {
  auto late = groups[1].all_gather_object(1, 50ms);
  auto waiting = groups[0].barrier();
  test::expect_error(std::move(late), ErrorKind::deadline_exceeded, "all_gather_object(",
                     "rank 0 (worker0) has not begun it");
  test::expect_error(std::move(waiting), ErrorKind::deadline_exceeded, "rank 2 (worker2) has not begun it");
  const auto others = company.groups();
  std::vector<rpc::Future<std::vector<int>>> futures;
  for (const int rank : {0, 1}) futures.push_back(others[rank].all_gather_object(1));
  company.end(2);
  for (auto& future : futures) test::expect_error(std::move(future), ErrorKind::peer_lost, "worker2");
}

TEST_P(Objects, FailWithTheRankThatGathersThem) {
  std::vector<rpc::Future<std::vector<int>>> futures;
  for (const int rank : {1, 2}) futures.push_back(groups[rank].all_gather_object(1));
  company.end(0);
  for (auto& future : futures) test::expect_error(std::move(future), ErrorKind::peer_lost, "worker0");
}

}  // namespace group_objects_test
}  // namespace weft::collectives::testing
