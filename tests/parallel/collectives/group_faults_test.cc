// Failures of groups that are easily overlooked: sizes that differ between pairs, lazy conjugate and negative
// views, a death that no connection reports, options that are not inherited.
#include <weft/parallel/collectives/device_mesh.h>
#include <weft/rpc/job/job.h>

#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace group_faults_test {

class OfFour : public ::testing::TestWithParam<Backend> {
 protected:
  Company company{4, GetParam()};
  std::vector<Group> groups = company.groups();
};

// --- Sizes of pairs ---

class SizesOfPairs : public OfFour {};
INSTANTIATE_TEST_SUITE_P(Backends, SizesOfPairs, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

// Rank 0 sends `given` elements to rank 1, which expects `taken`. All other ranks send and expect none.
struct Pair {
  std::int64_t given, taken;
};
Futures exchange(const std::vector<Group>& groups, Pair pair) {
  Futures futures;
  for (const Group& group : groups) {
    Tensors inputs(4, at::ones({0})), outputs(4, at::zeros({0}));
    if (group.rank() == 0) inputs[1] = at::ones({pair.given});
    if (group.rank() == 1) outputs[0] = at::zeros({pair.taken});
    futures.push_back(group.all_to_all_v(outputs, inputs));
  }
  return futures;
}

TEST_P(SizesOfPairs, ThatDifferFailTheGroupAndAreBothNamed) {
  // Sizes of 0, and sizes at the limits of a message.
  for (const Pair pair : {Pair{0, 100}, Pair{100, 0}, Pair{3, 5}, Pair{65'536, 131'072}}) {
    SCOPED_TRACE(pair.given);
    const auto now = company.groups();
    Futures futures = exchange(now, pair), taker, later;
    taker.push_back(std::move(futures[1]));
    futures.erase(futures.begin() + 1);
    const std::vector<std::string> words{"all_to_all_v(", "rank 0",
                                         " has " + std::to_string(pair.given) + " elements for rank 1",
                                         "expects " + std::to_string(pair.taken)};
    expect_all(std::move(taker), ErrorKind::invalid_argument, words);
    // A rank whose sizes match those of all others may have succeeded.
    for (auto& future : futures) (void)test::kind_of([&] { got(std::move(future)); });
    for (const Group& group : now) later.push_back(group.barrier());
    expect_all(std::move(later), ErrorKind::invalid_argument, words);
  }
}

TEST_P(SizesOfPairs, MayBeZero) {
  for (auto& future : exchange(groups, {0, 0})) got(std::move(future));
  for (auto& future : exchange(groups, {7, 7})) got(std::move(future));
}

// A rank that starts another collective after a failure, and before the group has the error, must not get an
// empty error.
TEST_P(SizesOfPairs, ThatDifferFailConcurrentCollectives) {
  for (int round = 0; round < 20; ++round) {
    const auto now = company.groups();
    std::vector<std::thread> threads;
    for (const Group& group : now)
      threads.emplace_back([&now, &group] {
        Tensors inputs(4, at::ones({2})), outputs(4, at::zeros({2}));
        if (group.rank() == 1) outputs[0] = at::zeros({3});
        Futures futures;
        futures.push_back(group.all_to_all_v(outputs, inputs));
        for (int i = 0; i < 20; ++i) futures.push_back(group.all_reduce(at::ones({2})));
        for (auto& future : futures) {  // collectives before the failure may succeed
          const auto kind = test::kind_of([&] { got(std::move(future)); });
          EXPECT_EQ(kind.value_or(ErrorKind::invalid_argument), ErrorKind::invalid_argument);
        }
      });
    for (auto& thread : threads) thread.join();
    Futures later;
    for (const Group& group : now) later.push_back(group.barrier());
    expect_all(std::move(later), ErrorKind::invalid_argument, {"all_to_all_v("});
  }
}

// --- Views ---

class LazyViews : public OfFour {};
INSTANTIATE_TEST_SUITE_P(Backends, LazyViews, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

at::Tensor complex_of(int rank) { return at::complex(values(rank, {6}), values(rank + 1, {6})); }

TEST_P(LazyViews, OfConjugatesAreSentByValue) {
  Tensors gathered, reduced, given;
  for (int rank = 0; rank < 4; ++rank) {
    gathered.push_back(at::empty({4, 6}, at::kComplexFloat));
    reduced.push_back(complex_of(rank));
    given.push_back(rank == 2 ? complex_of(2) : at::empty({6}, at::kComplexFloat));
  }
  together(groups, [&](const Group& group) {
    return group.all_gather(gathered[group.rank()], complex_of(group.rank()).conj());
  });
  // In place: the operation uses the values that the view represents, and writes the result so that the view
  // represents it.
  together(groups, [&](const Group& group) { return group.all_reduce(reduced[group.rank()].conj()); });
  together(groups, [&](const Group& group) { return group.broadcast(given[group.rank()].conj(), 2); });
  at::Tensor sum = at::zeros({6}, at::kComplexFloat);
  for (int rank = 0; rank < 4; ++rank) sum += complex_of(rank);
  for (int rank = 0; rank < 4; ++rank) {
    for (int other = 0; other < 4; ++other)
      expect_equal(gathered[rank][other], complex_of(other).conj().resolve_conj(), "gathered");
    expect_equal(reduced[rank], sum, "reduced");
    expect_equal(given[rank], complex_of(2), "given");
  }
}

TEST_P(LazyViews, OfNegativesAreSentByValue) {
  at::Tensor received = at::zeros({6});
  const at::Tensor negative = at::_neg_view(values(1, {6}));
  ASSERT_TRUE(negative.is_neg() && negative.is_contiguous());
  auto sent = groups[0].send(negative, 1);
  got(groups[1].recv(received, 0));
  got(std::move(sent));
  expect_equal(received, values(1, {6}).neg());
}

// --- Options ---

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
                       "DeviceMesh::create(data 2, tensor 3, one 1) at group_faults_test.cc:");
  std::vector<rpc::Future<std::vector<int>>> objects;
  for (const Group& group : groups) objects.push_back(group.all_gather_object(group.rank()));
  for (auto& future : objects) EXPECT_EQ(got(std::move(future)).size(), 6U);
}

// --- A death that no connection reports ---

// bert and dora wait for cleo in shared memory, and have a connection to anna only.
TEST(ADeath, ThatNoConnectionReportsFailsTheGroup) {
  test::InProcessJobStore store;
  std::vector<std::unique_ptr<rpc::Agent>> agents;
  const std::vector<std::string> names{"anna", "bert", "cleo", "dora"};
  for (const std::string& name : names) {
    rpc::MemberOptions options{{.name = name, .handler_threads = 1}};
    options.in_process = store.network;
    options.log = [](const rpc::LogRecord&) {};
    options.listen = {agents.empty() ? store.url : "inproc://" + name};
    options.rendezvous = {.store = store.url,
                          .rank = agents.empty() ? 0 : rpc::Rendezvous::no_rank,
                          .fixed_world = false,
                          .lease = std::chrono::hours{1}};
    agents.push_back(test::make_member(options, company_layers()));
  }
  Futures joined;
  for (auto& agent : agents) joined.push_back(rpc::Job(*agent).wait_for(4));
  for (auto& future : joined) got(std::move(future));
  std::vector<rpc::Future<Group>> made;
  for (auto& agent : agents) made.push_back(Group::create(*agent, {.members = names}));
  std::vector<rpc::Future<std::optional<Group>>> split;
  std::vector<Group> all;
  for (auto& future : made) all.push_back(got(std::move(future)));
  for (const Group& group : all)
    split.push_back(group.split(group.rank() == 0 ? std::nullopt : std::optional(1)));
  std::vector<std::optional<Group>> parts;
  for (auto& future : split) parts.push_back(got(std::move(future)));
  Futures futures;
  for (const int rank : {1, 3}) futures.push_back(parts[rank]->all_reduce(at::ones({4})));
  agents[2].reset();
  expect_all(std::move(futures), ErrorKind::peer_lost, {"rank 1 (cleo)", "lost"});
}

}  // namespace group_faults_test
}  // namespace weft::collectives::testing
