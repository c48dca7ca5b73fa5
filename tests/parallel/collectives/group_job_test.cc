// Groups in a job: groups of some members, groups next to calls, groups over TCP.
#include "tests/parallel/collectives/operations.h"
#include "tests/support/lost_connections.h"

namespace weft::collectives::testing {
namespace group_job_test {

class GroupsOfAJob : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupsOfAJob, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

TEST_P(GroupsOfAJob, AGroupOfSomeMembersHasItsOwnRanks) {
  const GroupOptions pair{.name = "pair", .members = {"worker2", "worker0"}};
  auto first = Group::create(company.agent(0), pair), second = Group::create(company.agent(2), pair);
  const Group a = got(std::move(first)), b = got(std::move(second));
  EXPECT_EQ(a.rank(), 1);
  EXPECT_EQ(b.rank(), 0);
  at::Tensor of_a = values(1, {3}), of_b = values(2, {3});
  auto one = a.broadcast(of_a, 0), two = b.broadcast(of_b, 0);
  got(std::move(one)), got(std::move(two));
  expect_equal(of_a, values(2, {3}));
  EXPECT_EQ(test::kind_of([&] { return got(Group::create(company.agent(1), pair)); }),
            ErrorKind::invalid_argument);
}

TEST_P(GroupsOfAJob, AreReleasedWithTheirHandles) {
  EXPECT_EQ(CollectivesLayer::of(*company.agent(1).core())->groups(), 1U);
  company.groups();
  EXPECT_EQ(CollectivesLayer::of(*company.agent(1).core())->groups(), 1U);
}

TEST(GroupWithoutLayer, IsRefused) {
  rpc::Agent agent(rpc::AgentOptions{.name = "alone"});
  EXPECT_EQ(test::kind_of([&] { return got(Group::create(agent, {.members = {"alone"}})); }),
            ErrorKind::failed_precondition);
}

struct Half {
  at::Tensor of(at::Tensor x) { return x / 2; }
  using Service = rpc::Service<"group_test.half", rpc::Method<"of", &Half::of>>;
};

class GroupsBesideCalls : public ::testing::TestWithParam<Backend> {
 protected:
  GroupsBesideCalls() {
    for (int rank = 0; rank < 2; ++rank) company.agent(rank).serve(std::make_shared<Half>());
  }
  void call_each_other() {
    for (int rank = 0; rank < 2; ++rank) {
      const rpc::Peer other = company.agent(rank).peer("worker" + std::to_string(1 - rank));
      expect_equal(got(other.call<&Half::of>(values(rank, {40'000}))), values(rank, {40'000}) / 2);
    }
  }
  void reduce(const std::vector<Group>& groups) {
    Tensors tensors{values(0, {40'000}), values(1, {40'000})};
    together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
    for (const at::Tensor& tensor : tensors) expect_equal(tensor, sum_of(2, {40'000}));
  }
  Company company{2, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Backends, GroupsBesideCalls, ::testing::ValuesIn(backends),
                         ::testing::PrintToStringParamName());

TEST_P(GroupsBesideCalls, CollectivesThenCalls) {
  const auto groups = company.groups();
  reduce(groups);
  call_each_other();
  reduce(groups);
}

TEST_P(GroupsBesideCalls, CallsThenCollectives) {
  call_each_other();
  const auto groups = company.groups();
  reduce(groups);
  call_each_other();
}

// Each round loses the connections while all its operations are in flight.
TEST(GroupsWithoutConnections, CompleteAlthoughConnectionsAreLost) {
  constexpr int ranks = 3, rounds = 30;
  Company company(ranks, Backend::messages, std::make_unique<test::TcpJobStore>(), nullptr,
                  [](rpc::AgentOptions& options) { options.same_host = false; });
  const auto groups = company.groups();
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    const std::vector<std::int64_t> small{100 + round}, large{300'000 + round};
    Tensors sums, large_sums, received;
    std::vector<rpc::Future<std::vector<std::string>>> objects;
    Futures all;
    for (const Group& group : groups) {
      const int rank = group.rank();
      all.push_back(group.all_reduce(sums.emplace_back(values(rank, small))));
      all.push_back(group.all_reduce(large_sums.emplace_back(values(rank, large))));
      all.push_back(group.send(values(rank, small), (rank + 1) % ranks));
      all.push_back(group.recv(received.emplace_back(at::zeros(small)), (rank + ranks - 1) % ranks));
      objects.push_back(group.all_gather_object("object " + std::to_string(rank)));
      all.push_back(group.barrier());
      test::lose_connections(company.agent(rank));
    }
    for (auto& future : all) got(std::move(future));
    for (auto& gathered : objects)
      EXPECT_EQ(got(std::move(gathered)), (std::vector<std::string>{"object 0", "object 1", "object 2"}));
    for (int rank = 0; rank < ranks; ++rank) {
      expect_equal(sums[rank], sum_of(ranks, small));
      expect_equal(large_sums[rank], sum_of(ranks, large));
      expect_equal(received[rank], values((rank + ranks - 1) % ranks, small));
    }
  }
  EXPECT_GE(company.agent(0).counts().connections_made, 2 * std::uint64_t{ranks}) << "some were lost";
}

// --- The wire ---

TEST(GroupsOverAWire, OfANarrowTypeAreRoundedEquallyOnAllRanks) {
  for (const auto& [ranks, backend] : std::vector<std::pair<int, Backend>>{{2, Backend::messages},
                                                                           {3, Backend::messages},
                                                                           {9, Backend::messages},
                                                                           {4, Backend::hosts},
                                                                           {6, Backend::hosts},
                                                                           {6, Backend::uneven}}) {
    Company company(ranks, backend);
    for (const at::ScalarType wire : {at::kHalf, at::kBFloat16}) {
      const auto groups = company.groups({.wire_dtype = wire});
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << ranks << " " << wire << " " << type);
        Tensors tensors(ranks);
        at::Tensor sum = at::zeros({50'000}, at::kDouble);
        for (int rank = 0; rank < ranks; ++rank) {
          at::manual_seed(static_cast<std::uint64_t>(rank));
          tensors[rank] = at::rand({50'000}).to(type);
          sum += tensors[rank].to(at::kDouble);
        }
        together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
        for (int rank = 1; rank < ranks; ++rank) expect_equal(tensors[rank], tensors[0]);
        // Each rank rounds once, by at most half a unit of the sum so far.
        const double unit = wire == at::kHalf && type == at::kFloat ? 0x1p-11 : 0x1p-8;
        EXPECT_LE((tensors[0].to(at::kDouble) - sum).abs().max().item<double>(), ranks * ranks * unit);
        if (type == at::kFloat) {
          expect_equal(tensors[0].to(wire).to(at::kFloat), tensors[0], "of the wire's precision");
        }
      }
      // Small tensors, and sums of other types than float32, are exact.
      Tensors small(ranks), doubles(ranks);
      together(groups, [&](const Group& group) {
        return group.all_reduce(small[group.rank()] = at::full({3}, 1 + 0x1p-20));
      });
      together(groups, [&](const Group& group) {
        return group.all_reduce(doubles[group.rank()] = at::full({50'000}, 1 + 0x1p-40, at::kDouble));
      });
      expect_equal(small[1], at::full({3}, 1 + 0x1p-20) * ranks);
      expect_equal(doubles[1], at::full({50'000}, 1 + 0x1p-40, at::kDouble) * ranks);
    }
  }
}

TEST(GroupsOverAWire, MustHaveTheSameWireTypeOnAllMembers) {
  Company company(2);
  auto one = Group::create(company.agent(0), {.wire_dtype = at::kHalf}),
       two = Group::create(company.agent(1));
  for (auto* group : {&one, &two})
    test::expect_error(std::move(*group), ErrorKind::invalid_argument, "worker0 'float16'");
  auto wrong = Group::create(company.agent(0), {.wire_dtype = at::kFloat}),
       right = Group::create(company.agent(1), {.wire_dtype = at::kHalf});
  for (auto* group : {&wrong, &right})
    test::expect_error(std::move(*group), ErrorKind::invalid_argument,
                       "wire_dtype of worker0 is float32, expected float16, bfloat16 or none");
}

// Uses default arguments, because g++ 12 would destroy options in a default argument twice.
rpc::Task<std::string> made_in_a_coroutine(rpc::Agent& agent) {
  const Group group = co_await Group::create(agent);
  co_await group.barrier();
  co_return group.name();
}

TEST(GroupsInCoroutines, AreMadeWithoutOptions) {
  Company company(2);
  std::vector<rpc::Future<std::string>> names;
  for (int rank = 0; rank < 2; ++rank)
    names.push_back(made_in_a_coroutine(company.agent(rank)).start(company.agent(rank).core()->handlers()));
  for (auto& name : names) EXPECT_EQ(got(std::move(name)), "world");
}

TEST(GroupsWithBounds, ReduceTheSameByEveryAlgorithm) {
  constexpr std::size_t any = std::size_t{1} << 40;
  for (const auto& [ranks, backend] : std::vector<std::pair<int, Backend>>{{2, Backend::messages},
                                                                           {3, Backend::messages},
                                                                           {4, Backend::messages},
                                                                           {9, Backend::messages},
                                                                           {6, Backend::hosts},
                                                                           {6, Backend::uneven}}) {
    Company company(ranks, backend);
    for (const Bounds bounds :
         {Bounds{.small_bytes = any},
          Bounds{.small_bytes = 0, .message_bytes = 4000, .ahead_bytes = 0, .ring_bytes = 0},
          Bounds{.small_bytes = 0, .ring_bytes = any}}) {
      const auto groups = company.groups({.bounds = bounds});
      Tensors tensors(ranks);
      for (int rank = 0; rank < ranks; ++rank) tensors[rank] = at::arange(20'000) * (rank + 1);
      together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
      for (const at::Tensor& tensor : tensors)
        expect_equal(tensor, at::arange(20'000) * (ranks * (ranks + 1) / 2));
    }
  }
}

TEST(GroupsWithBounds, MustHaveTheSameBoundsOnAllMembers) {
  Company company(2);
  auto one = Group::create(company.agent(0), {.bounds = {.small_bytes = 1}}),
       two = Group::create(company.agent(1));
  for (auto* group : {&one, &two})
    EXPECT_EQ(test::kind_of([&] { return got(std::move(*group)); }), ErrorKind::invalid_argument);
}

// Large messages use other connections than small ones. Collectives that start in order still succeed.
TEST(GroupsOverLanes, RunEveryOperation) {
  constexpr int ranks = 3;
  constexpr std::uint64_t lanes = 2;
  Company company(ranks, Backend::messages, std::make_unique<test::TcpJobStore>(), nullptr,
                  [](rpc::AgentOptions& options) {
                    options.loops = 2;
                    options.lanes = lanes;
                    options.same_host = false;
                  });
  const auto groups = company.groups({.bounds = {.message_bytes = std::size_t{2} << 20}});
  const Round small{.number = 1}, large{.n = 600'000, .number = 2};
  for (int times = 0; times < 2; ++times) {
    std::vector<std::pair<const char*, Begun>> in_progress;
    for (const GroupOperation& operation : group_operations)
      for (const Round& round : {large, small})
        for (const Group& group : groups)
          in_progress.emplace_back(operation.name, operation.begin(group, round));
    for (auto& [name, begun] : in_progress) {
      got(std::move(begun.done));
      EXPECT_TRUE(begun.right()) << name;
    }
    for (int rank = 0; rank < ranks; ++rank)
      test::eventually("all have lanes for the second time",
                       [&] { return company.agent(rank).counts().lanes_made >= lanes * (ranks - 1); });
  }
}

}  // namespace group_job_test
}  // namespace weft::collectives::testing
