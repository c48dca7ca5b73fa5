// Groups that are derived from a group: splits by color and key, meshes, shrunken groups after a loss, and
// grown groups.
#include <weft/parallel/collectives/device_mesh.h>
#include <weft/rpc/job/job.h>

#include <numeric>

#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace group_split_test {

class Splits : public ::testing::TestWithParam<Backend> {
 protected:
  GroupOptions options(int rank) const { return options_of(GetParam(), rank); }
  const int ranks = on_hosts(GetParam()) ? 6 : 5;
  Company company{ranks, GetParam()};
  std::vector<Group> groups = company.groups();
};
INSTANTIATE_TEST_SUITE_P(Backends, Splits, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

TEST_P(Splits, ByColorInTheOrderOfKeysThenRanks) {
  // Ranks 0, 2 and 4 in reverse order, on one host unless hosts are uneven. Rank 1 alone. Ranks 3 and 5 are
  // in no part.
  const auto parts = at_all(groups, [&](const Group& group) {
    const int rank = group.rank();
    const std::optional<int> color = rank == 3 || rank == 5 ? std::nullopt : std::optional(rank % 2);
    return group.split(color, rank == 4 ? -1 : 0, options(rank));
  });
  EXPECT_FALSE(parts[3]);
  ASSERT_TRUE(parts[0] && parts[1] && parts[2] && parts[4]);
  EXPECT_EQ(parts[0]->members(), (std::vector<std::string>{"worker4", "worker0", "worker2"}));
  EXPECT_EQ(parts[2]->rank(), 2);
  EXPECT_EQ(parts[0]->name(), "world/0");
  EXPECT_EQ(parts[1]->members(), std::vector<std::string>{"worker1"});
  EXPECT_EQ(parts[0]->backend(), GetParam() == Backend::messages || GetParam() == Backend::uneven
                                     ? GroupBackend::messages
                                     : GroupBackend::memory);
  Tensors tensors;
  for (const int rank : {0, 2, 4}) tensors.push_back(values(rank, {40'000}));
  together({*parts[0], *parts[2], *parts[4]}, [&](const Group& part) {
    return part.all_reduce(tensors[part.rank() == 0 ? 2 : part.rank() == 1 ? 0 : 1]);
  });
  for (const at::Tensor& tensor : tensors)
    expect_equal(tensor, values(0, {40'000}) + values(2, {40'000}) + values(4, {40'000}));
  together(groups, [](const Group& group) { return group.barrier(); });
}

// Only the group whose members differ fails, and at once. The other groups and the parent continue.
TEST_P(Splits, WithDifferentOptionsInOneColorFailOnlyThatColor) {
  const auto split = [&](const std::function<void(GroupOptions&)>& change, const std::string& words) {
    std::vector<rpc::Future<std::optional<Group>>> futures;
    for (const Group& group : groups) {
      GroupOptions own = options(group.rank());
      if (group.rank() == 3) change(own);
      futures.push_back(group.split(group.rank() % 2, 0, own));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank % 2 == 0)
        EXPECT_EQ(got(std::move(futures[rank]))->size(), 3);
      else
        test::expect_error(std::move(futures[rank]), ErrorKind::invalid_argument, words, "worker3");
    }
  };
  split([](GroupOptions& own) { own.bounds.ring_bytes = 1; }, "different GroupOptions::bounds");
  split([](GroupOptions& own) { own.wire_dtype = at::kHalf; }, "different GroupOptions::wire_dtype");
  split([](GroupOptions& own) { own.checks = Checks::relaxed; }, "different GroupOptions::checks");
  split([](GroupOptions& own) { own.wire_dtype = at::kDouble; }, "is float64, expected float16");
  together(groups, [](const Group& group) { return group.barrier(); });
}

// Ranks may start the next split before the previous one has completed.
TEST_P(Splits, SeveralAtATimeAndNextToOtherCollectives) {
  std::vector<rpc::Future<std::optional<Group>>> first, second;
  Futures others;
  std::vector<rpc::Future<std::vector<int>>> objects;
  for (const Group& group : groups) {
    first.push_back(group.split(0, 0, options(group.rank())));
    others.push_back(group.barrier());
    objects.push_back(group.all_gather_object(group.rank()));
    second.push_back(group.split(group.rank() / 3, 0, options(group.rank())));
  }
  for (auto& future : others) got(std::move(future));
  std::vector<int> numbers(static_cast<std::size_t>(ranks));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (auto& future : objects) EXPECT_EQ(got(std::move(future)), numbers);
  std::vector<Group> all, thirds;
  for (auto& future : first) all.push_back(*got(std::move(future)));
  for (auto& future : second) thirds.push_back(*got(std::move(future)));
  EXPECT_EQ(all[1].size(), ranks);
  EXPECT_EQ(all[1].backend(), expected(GetParam(), ranks));
  EXPECT_EQ(thirds[1].size(), 3);
  EXPECT_EQ(thirds[4].size(), ranks - 3);
  together(all, [](const Group& group) { return group.barrier(); });
  together(thirds, [](const Group& group) { return group.barrier(); });
}

TEST_P(Splits, FailOnAllRanksIfOneDoesNotCall) {
  std::vector<rpc::Future<std::optional<Group>>> futures;
  for (int rank = 0; rank + 1 < ranks; ++rank) futures.push_back(groups[rank].split(0));
  groups.back().abort("no more");
  for (auto& future : futures)
    EXPECT_EQ(test::kind_of([&] { return got(std::move(future)); }), ErrorKind::aborted);
  EXPECT_EQ(CollectivesLayer::of(*company.agent(0).core())->groups(), 1U);
}

TEST(Mesh, HasAGroupAlongEachDimension) {
  Company company(6);
  const auto groups = company.groups();
  const auto meshes = at_all(
      groups, [](const Group& group) { return DeviceMesh::create(group, {{"data", 2}, {"tensor", 3}}); });
  const DeviceMesh& mesh = meshes[4];
  EXPECT_EQ(mesh.coordinate("data"), 1);
  EXPECT_EQ(mesh.coordinate("tensor"), 1);
  EXPECT_EQ(mesh.group("data").members(), (std::vector<std::string>{"worker1", "worker4"}));
  EXPECT_EQ(mesh.group("tensor").members(), (std::vector<std::string>{"worker3", "worker4", "worker5"}));
  Tensors tensors;
  Futures done;
  for (int rank = 0; rank < 6; ++rank) {
    tensors.push_back(at::full({3}, rank));
    done.push_back(meshes[rank].group("tensor").all_reduce(tensors.back()));
  }
  for (auto& future : done) got(std::move(future));
  for (int rank = 0; rank < 6; ++rank) expect_equal(tensors[rank], at::full({3}, rank < 3 ? 3 : 12));
  EXPECT_EQ(test::kind_of([&] { mesh.group("pipeline"); }), ErrorKind::invalid_argument);
  const auto refused = [&](std::vector<DeviceMesh::Dimension> dimensions) {
    return test::kind_of([&] { return got(DeviceMesh::create(groups[0], dimensions)); });
  };
  EXPECT_EQ(refused({{"data", 4}}), ErrorKind::invalid_argument);
  EXPECT_EQ(refused({{"data", 2}, {"data", 3}}), ErrorKind::invalid_argument);
  EXPECT_EQ(refused({{"data", -2}, {"tensor", -3}}), ErrorKind::invalid_argument);
}

TEST(GroupOptionsOf, ASplitOrAMeshAreInherited) {
  Company company(4, Backend::hosts);
  const auto groups = company.groups({.timeout = 7s, .bounds = {.small_bytes = 9}});
  std::vector<rpc::Future<std::optional<Group>>> parts;
  std::vector<rpc::Future<DeviceMesh>> meshes;
  for (const Group& group : groups) {
    parts.push_back(group.split(0));
    meshes.push_back(DeviceMesh::create(group, {{"all", 4}, {"one", 1}}));
  }
  for (auto& part : parts) {
    const Group made = *got(std::move(part));
    EXPECT_EQ(made.name(), "world/0");
    EXPECT_EQ(made.options().timeout, 7s);
    EXPECT_EQ(made.options().bounds.small_bytes, 9U);
    EXPECT_EQ(made.backend(), GroupBackend::hosts);
  }
  for (auto& mesh : meshes) {
    const Group made = got(std::move(mesh)).group("all");
    EXPECT_EQ(made.name(), "all");
    EXPECT_EQ(made.options().timeout, 7s);
    EXPECT_EQ(made.backend(), GroupBackend::hosts);
  }
}

TEST(MeshOf, DifferentDimensionsFailOnAllRanksAndTheGroupContinues) {
  Company company(6);
  const auto groups = company.groups();
  std::vector<rpc::Future<DeviceMesh>> futures;
  for (const Group& group : groups)
    futures.push_back(group.rank() == 4
                          ? DeviceMesh::create(group, {{"data", 3}, {"tensor", 2}})
                          : DeviceMesh::create(group, {{"data", 2}, {"tensor", 3}, {"one", 1}}));
  for (auto& future : futures)
    test::expect_error(std::move(future), ErrorKind::invalid_argument,
                       "rank 4 (worker4): DeviceMesh::create(data 3, tensor 2)",
                       "DeviceMesh::create(data 2, tensor 3, one 1) at group_split_test.cc:");
  const auto gather = [](const Group& group) { return group.all_gather_object(group.rank()); };
  for (const auto& objects : at_all(groups, gather)) EXPECT_EQ(objects.size(), 6U);
}

// --- Elastic worlds ---

class ElasticWorld : public ::testing::TestWithParam<Backend> {
 protected:
  rpc::Agent& join(const std::string& name) {
    rpc::MemberOptions options{{.name = name, .handler_threads = 1}};
    options.in_process = store.network;
    options.log = [](const rpc::LogRecord&) {};
    options.listen = {agents.empty() ? store.url : "inproc://" + name};
    options.rendezvous = {.store = store.url,
                          .rank = agents.empty() ? 0 : rpc::Rendezvous::no_rank,
                          .fixed_world = false,
                          .lease = std::chrono::hours{1}};
    return *agents.emplace_back(test::make_member(options, company_layers()));
  }
  std::vector<Group> group_of(const std::vector<std::string>& names) {
    std::vector<rpc::Future<Group>> made;
    for (std::size_t i = 0; i < names.size(); ++i) {
      GroupOptions options = options_of(GetParam(), static_cast<int>(i));
      options.members = names;
      made.push_back(Group::create(*agents[i], options));
    }
    std::vector<Group> groups;
    for (auto& group : made) groups.push_back(got(std::move(group)));
    return groups;
  }
  void join_all(const std::vector<std::string>& names) {
    Futures joined;
    for (const std::string& name : names) joined.push_back(rpc::Job(join(name)).wait_for(names.size()));
    for (auto& future : joined) got(std::move(future));
  }
  test::InProcessJobStore store;
  std::vector<std::unique_ptr<rpc::Agent>> agents;
};
INSTANTIATE_TEST_SUITE_P(Backends, ElasticWorld, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

TEST_P(ElasticWorld, AGroupShrinksToItsSurvivors) {
  const std::vector<std::string> names{"anna", "bert", "cleo", "dora"};
  join_all(names);
  const auto groups = group_of(names);
  Futures futures;
  for (const int rank : {0, 1, 3}) futures.push_back(groups[rank].all_reduce(at::ones({50'000})));
  agents[2].reset();
  expect_all(std::move(futures), ErrorKind::peer_lost, {"rank 2 (cleo)"});
  std::vector<rpc::Future<Group>> made;
  for (const int rank : {0, 1, 3}) made.push_back(groups[rank].shrink(*agents[rank]));
  std::vector<Group> left;
  for (auto& future : made) left.push_back(got(std::move(future)));
  EXPECT_EQ(left[2].members(), (std::vector<std::string>{"anna", "bert", "dora"}));
  EXPECT_EQ(left[2].rank(), 2);
  EXPECT_EQ(left[2].backend(),  // as at its creation: anna is on another host than the other two
            GetParam() == Backend::memory     ? GroupBackend::memory
            : GetParam() == Backend::messages ? GroupBackend::messages
                                              : GroupBackend::hosts);
  Tensors tensors(3);
  together(left,
           [&](const Group& group) { return group.all_reduce(tensors[group.rank()] = at::ones({50'000})); });
  for (const at::Tensor& tensor : tensors) expect_equal(tensor, at::full({50'000}, 3.0F));
}

// A member that waits for a member that does not call create() may cancel. All waiting members are notified.
TEST_P(ElasticWorld, AGroupIsCancelledIfAMemberDoesNotCallCreate) {
  join_all({"anna", "bert", "cleo"});
  std::vector<rpc::Future<Group>> made;
  for (const int rank : {0, 1}) {
    GroupOptions options = options_of(GetParam(), rank);
    options.members = {"anna", "bert", "cleo"};
    made.push_back(Group::create(*agents[static_cast<std::size_t>(rank)], options));
  }
  made[1].cancel();
  const auto own = error_of([&] { got(std::move(made[1])); }),
             other = error_of([&] { got(std::move(made[0])); });
  ASSERT_TRUE(own && other);
  EXPECT_EQ(own->kind(), ErrorKind::cancelled) << own->what();
  EXPECT_EQ(other->kind(), ErrorKind::aborted) << other->what();
  EXPECT_NE(std::string(other->what()).find("bert"), std::string::npos) << other->what();
}

class ElasticMemory : public ElasticWorld {};
INSTANTIATE_TEST_SUITE_P(Backends, ElasticMemory, ::testing::Values(Backend::memory),
                         ::testing::PrintToStringParamName());

// bert and dora wait for cleo in shared memory, and have a connection to anna only.
TEST_P(ElasticMemory, ADeathThatNoConnectionReportsFailsTheGroup) {
  const std::vector<std::string> names{"anna", "bert", "cleo", "dora"};
  join_all(names);
  const auto all = group_of(names);
  const auto parts = at_all(all, [](const Group& group) {
    return group.split(group.rank() == 0 ? std::nullopt : std::optional(1));
  });
  Futures futures;
  for (const int rank : {1, 3}) futures.push_back(parts[rank]->all_reduce(at::ones({4})));
  agents[2].reset();
  expect_all(std::move(futures), ErrorKind::peer_lost, {"rank 1 (cleo)", "lost"});
}

TEST_P(ElasticWorld, AGroupGrowsByNewMembers) {
  join_all({"anna", "bert", "cleo"});
  const auto three = group_of({"anna", "bert", "cleo"});
  together(three, [](const Group& group) { return group.barrier(); });
  join("dora");
  Futures known;
  for (const auto& agent : agents) known.push_back(rpc::Job(*agent).wait_for(4));
  for (auto& future : known) got(std::move(future));
  const auto four = group_of({"anna", "bert", "cleo", "dora"});
  EXPECT_EQ(four[3].backend(), expected(GetParam(), 4));
  Tensors tensors(4);
  together(four, [&](const Group& group) { return group.all_reduce(tensors[group.rank()] = at::ones({5})); });
  for (const at::Tensor& tensor : tensors) expect_equal(tensor, at::full({5}, 4.0F));
}

}  // namespace group_split_test
}  // namespace weft::collectives::testing
