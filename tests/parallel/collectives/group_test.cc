// Groups of agents of one process: results against plain arithmetic, and every way in which they end.
#include <weft/parallel/collectives/context.h>
#include <weft/parallel/collectives/group.h>

#include <weft/rpc/rpc.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_codec.h>
#include <weft/rpc/transport/in_process.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::collectives::group_test {
namespace {

using namespace std::chrono_literals;
using rpc::ErrorKind;
using test::error_of;
using test::got;
using Tensors = std::vector<at::Tensor>;
using Futures = std::vector<rpc::Future<void>>;

rpc::Layers party_layers() {
  rpc::Layers layers = tensor::layers();
  layers.push_back(layer());
  return layers;
}

// Members of a job, all in this process, and their groups.
class Party {
 public:
  explicit Party(int ranks,
                 std::unique_ptr<test::JobStore> store = std::make_unique<test::InProcessJobStore>())
      : store_(std::move(store)) {
    for (int rank = 0; rank < ranks; ++rank) {
      rpc::AgentOptions options{.name = "worker" + std::to_string(rank), .handler_threads = 1};
      options.in_process = store_->network;
      options.log = [](const rpc::LogRecord&) {};
      options.listen = {rank == 0                    ? store_->url
                        : store_->network != nullptr ? "inproc://" + options.name
                                                     : "tcp://127.0.0.1:0"};
      options.rendezvous = rpc::Rendezvous{.store = store_->url,
                                           .rank = static_cast<std::size_t>(rank),
                                           .world_size = static_cast<std::size_t>(ranks),
                                           .lease = std::chrono::hours{1}};
      agents_.push_back(std::make_unique<rpc::Agent>(std::move(options), party_layers()));
    }
    Futures joined;
    for (auto& agent : agents_) joined.push_back(agent->wait_for(agents_.size()));
    for (auto& all : joined) got(std::move(all));
  }
  rpc::Agent& agent(int rank) { return *agents_[static_cast<std::size_t>(rank)]; }
  void end(int rank) { agents_[static_cast<std::size_t>(rank)].reset(); }

  std::vector<Group> groups(const GroupOptions& options = {}) {
    std::vector<rpc::Future<Group>> made;
    for (auto& agent : agents_) made.push_back(Group::create(*agent, options));
    std::vector<Group> groups;
    for (auto& group : made) groups.push_back(got(std::move(group)));
    return groups;
  }

 private:
  std::unique_ptr<test::JobStore> store_;
  std::vector<std::unique_ptr<rpc::Agent>> agents_;
};

// The same at every rank, at once; then all have to end well.
template <class F>
void together(const std::vector<Group>& groups, F begin) {
  Futures under_way;
  for (const Group& group : groups) under_way.push_back(begin(group));
  for (auto& future : under_way) got(std::move(future));
}

at::Tensor values(int rank, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return (at::arange(n).remainder(7) + rank + 1).to(type).view(shape);
}
at::Tensor sum_of(int ranks, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  at::Tensor sum = values(0, shape, type);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + values(rank, shape, type);
  return sum;
}
void expect_equal(const at::Tensor& a, const at::Tensor& b, const char* what = "") {
  EXPECT_TRUE(at::equal(a, b)) << what << "\n" << a << "\n" << b;
}

// Small, where rounds count; of several chunks; and none at all.
const std::vector<std::vector<std::int64_t>> shapes{{}, {0}, {3, 5}, {70'001}, {2, 1 << 17}};

class Groups : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  Party party{GetParam()};
  std::vector<Group> groups = party.groups();
};
INSTANTIATE_TEST_SUITE_P(Ranks, Groups, testing::Values(1, 2, 3, 4, 5, 8));

TEST_P(Groups, KnowTheirMembers) {
  for (int rank = 0; rank < ranks(); ++rank) {
    const Group& group = groups[static_cast<std::size_t>(rank)];
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.size(), ranks());
    EXPECT_EQ(group.members()[static_cast<std::size_t>(rank)], "worker" + std::to_string(rank));
    EXPECT_EQ(group.name(), "world");
  }
}

TEST_P(Groups, AllReduce) {
  for (const auto& shape : shapes) {
    Tensors tensors;
    for (int rank = 0; rank < ranks(); ++rank) tensors.push_back(values(rank, shape));
    together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
    for (const at::Tensor& tensor : tensors) expect_equal(tensor, sum_of(ranks(), shape));
  }
}

TEST_P(Groups, ReduceChangesTheRootsTensorAlone) {
  for (const auto& shape : shapes)
    for (const int root : {0, ranks() - 1}) {
      Tensors tensors;
      for (int rank = 0; rank < ranks(); ++rank) tensors.push_back(values(rank, shape));
      together(groups, [&](const Group& group) { return group.reduce(tensors[group.rank()], root); });
      for (int rank = 0; rank < ranks(); ++rank)
        expect_equal(tensors[rank], rank == root ? sum_of(ranks(), shape) : values(rank, shape));
    }
}

TEST_P(Groups, Broadcast) {
  for (const auto& shape : shapes)
    for (const int root : {0, ranks() - 1}) {
      Tensors tensors;
      for (int rank = 0; rank < ranks(); ++rank) tensors.push_back(values(rank, shape));
      together(groups, [&](const Group& group) { return group.broadcast(tensors[group.rank()], root); });
      for (const at::Tensor& tensor : tensors) expect_equal(tensor, values(root, shape));
    }
}

TEST_P(Groups, AllGather) {
  for (const auto& shape : shapes) {
    std::vector<std::int64_t> whole{ranks()};
    whole.insert(whole.end(), shape.begin(), shape.end());
    Tensors outputs(ranks());
    together(groups, [&](const Group& group) {
      return group.all_gather(outputs[group.rank()] = at::zeros(whole), values(group.rank(), shape));
    });
    for (const at::Tensor& output : outputs)
      for (int rank = 0; rank < ranks(); ++rank) expect_equal(output[rank], values(rank, shape));
  }
}

TEST_P(Groups, AllGatherOfDifferentSizes) {
  const auto size = [](int rank) { return std::vector<std::int64_t>{rank % 3, 20'000}; };
  std::vector<Tensors> outputs(ranks());
  together(groups, [&](const Group& group) {
    for (int rank = 0; rank < ranks(); ++rank) outputs[group.rank()].push_back(at::zeros(size(rank)));
    return group.all_gather_v(outputs[group.rank()], values(group.rank(), size(group.rank())));
  });
  for (const Tensors& output : outputs)
    for (int rank = 0; rank < ranks(); ++rank) expect_equal(output[rank], values(rank, size(rank)));
}

TEST_P(Groups, ReduceScatter) {
  for (const auto& shape : shapes) {
    std::vector<std::int64_t> whole{ranks()};
    whole.insert(whole.end(), shape.begin(), shape.end());
    Tensors outputs(ranks());
    together(groups, [&](const Group& group) {
      return group.reduce_scatter(outputs[group.rank()] = at::zeros(shape), values(group.rank(), whole));
    });
    for (int rank = 0; rank < ranks(); ++rank) expect_equal(outputs[rank], sum_of(ranks(), whole)[rank]);
  }
}

TEST_P(Groups, ReduceScatterOfDifferentSizes) {
  const auto size = [](int rank) { return std::vector<std::int64_t>{rank % 2, 30'000}; };
  Tensors outputs(ranks());
  together(groups, [&](const Group& group) {
    Tensors inputs;
    for (int rank = 0; rank < ranks(); ++rank) inputs.push_back(values(group.rank(), size(rank)));
    return group.reduce_scatter_v(outputs[group.rank()] = at::zeros(size(group.rank())), inputs);
  });
  for (int rank = 0; rank < ranks(); ++rank) expect_equal(outputs[rank], sum_of(ranks(), size(rank)));
}

TEST_P(Groups, AllToAll) {
  for (const std::int64_t each : {0, 1, 50'000}) {
    const std::vector<std::int64_t> whole{ranks(), each};
    Tensors outputs(ranks());
    together(groups, [&](const Group& group) {
      return group.all_to_all(outputs[group.rank()] = at::zeros(whole), values(group.rank(), whole));
    });
    for (int to = 0; to < ranks(); ++to)
      for (int from = 0; from < ranks(); ++from) expect_equal(outputs[to][from], values(from, whole)[to]);
  }
}

TEST_P(Groups, AllToAllOfDifferentSizes) {
  const auto size = [](int from, int to) { return std::vector<std::int64_t>{(from + 2 * to) % 4, 10'000}; };
  std::vector<Tensors> outputs(ranks());
  together(groups, [&](const Group& group) {
    Tensors inputs;
    for (int other = 0; other < ranks(); ++other) {
      inputs.push_back(values(group.rank(), size(group.rank(), other)));
      outputs[group.rank()].push_back(at::zeros(size(other, group.rank())));
    }
    return group.all_to_all_v(outputs[group.rank()], inputs);
  });
  for (int to = 0; to < ranks(); ++to)
    for (int from = 0; from < ranks(); ++from) expect_equal(outputs[to][from], values(from, size(from, to)));
}

TEST_P(Groups, GatherAndScatter) {
  for (const auto& shape : shapes)
    for (const int root : {0, ranks() - 1}) {
      Tensors gathered, outputs(ranks());
      for (int rank = 0; rank < ranks(); ++rank) gathered.push_back(at::zeros(shape));
      together(groups, [&](const Group& group) {
        return group.gather(group.rank() == root ? gathered : Tensors{}, values(group.rank(), shape), root);
      });
      together(groups, [&](const Group& group) {
        return group.scatter(outputs[group.rank()] = at::zeros(shape),
                             group.rank() == root ? gathered : Tensors{}, root);
      });
      for (int rank = 0; rank < ranks(); ++rank) {
        expect_equal(gathered[rank], values(rank, shape));
        expect_equal(outputs[rank], values(rank, shape));
      }
    }
}

TEST_P(Groups, ABarrierIsPassedOnceAllAreAtIt) {
  Futures passed;
  for (int rank = 0; rank + 1 < ranks(); ++rank) passed.push_back(groups[rank].barrier());
  for (const auto& future : passed) EXPECT_FALSE(future.ready());
  got(groups.back().barrier());
  for (auto& future : passed) got(std::move(future));
}

// Ranks run ahead of each other, and collectives overlap.
TEST_P(Groups, SeveralAtATime) {
  constexpr int rounds = 20;
  std::vector<Tensors> tensors(ranks());
  Futures all;
  for (int rank = 0; rank < ranks(); ++rank)
    for (int round = 0; round < rounds; ++round) {
      tensors[rank].push_back(values(rank + round, {round % 2 == 0 ? 10 : 40'000}));
      all.push_back(groups[rank].all_reduce(tensors[rank].back()));
    }
  for (auto& future : all) got(std::move(future));
  for (int rank = 0; rank < ranks(); ++rank)
    for (int round = 0; round < rounds; ++round) expect_equal(tensors[rank][round], tensors[0][round]);
  expect_equal(tensors[0][0], sum_of(ranks(), {10}));
}

// --- Tensors ---

// Of each rank's future.
void expect_all(Futures futures, ErrorKind kind, const std::vector<std::string>& words) {
  for (std::size_t rank = 0; rank < futures.size(); ++rank)
    for (const auto error = error_of([&] { got(std::move(futures[rank])); }); const auto& word : words) {
      ASSERT_TRUE(error) << "rank " << rank;
      EXPECT_EQ(error->kind(), kind) << error->what();
      EXPECT_NE(std::string(error->what()).find(word), std::string::npos)
          << "rank " << rank << ": '" << word << "' in: " << error->what();
    }
}

class OfThree : public testing::Test {
 protected:
  Party party{3};
  std::vector<Group> groups = party.groups();
};

TEST_F(OfThree, EveryDtype) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                                    at::kShort, at::kChar, at::kByte, at::kComplexFloat}) {
    for (const std::int64_t n : {9, 30'000}) {
      Tensors tensors;
      for (int rank = 0; rank < 3; ++rank) tensors.push_back(values(rank, {n}, type));
      together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
      for (const at::Tensor& tensor : tensors) expect_equal(tensor, sum_of(3, {n}, type), at::toString(type));
    }
  }
}

TEST_F(OfThree, EveryReduction) {
  const auto expect = [&](ReduceOp op, const at::Tensor& result) {
    Tensors tensors;
    for (int rank = 0; rank < 3; ++rank) tensors.push_back(values(rank, {50}, at::kLong));
    together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()], op); });
    for (const at::Tensor& tensor : tensors) expect_equal(tensor, result, op.name().c_str());
  };
  const at::Tensor a = values(0, {50}, at::kLong), b = values(1, {50}, at::kLong),
                   c = values(2, {50}, at::kLong);
  expect(ReduceOp::sum, a + b + c);
  expect(ReduceOp::avg, (a + b + c).div(3, "trunc"));
  expect(ReduceOp::product, a * b * c);
  expect(ReduceOp::min, a);
  expect(ReduceOp::max, c);
  expect(ReduceOp::bit_and, a & b & c);
  expect(ReduceOp::bit_or, a | b | c);
  expect(ReduceOp::bit_xor, a ^ b ^ c);
  Tensors scaled;
  for (int rank = 0; rank < 3; ++rank) scaled.push_back(values(rank, {50}));
  const Tensors before{scaled[0].clone(), scaled[1].clone(), scaled[2].clone()};
  together(groups, [&](const Group& group) {
    return group.all_reduce(scaled[group.rank()], ReduceOp::premul_sum(group.rank() + 1));
  });
  expect_equal(scaled[1], before[0] + 2 * before[1] + 3 * before[2]);
}

TEST_F(OfThree, TensorsThatAreNotContiguous) {
  for (const std::int64_t n : {6, 300}) {
    Tensors wholes, tensors;
    for (int rank = 0; rank < 3; ++rank) {
      wholes.push_back(values(rank, {n, n}));
      tensors.push_back(wholes.back().t().slice(0, 0, n, 2));
    }
    const at::Tensor result = sum_of(3, {n, n}).t().slice(0, 0, n, 2).clone();
    const at::Tensor beside = wholes[1].t().slice(0, 1, n, 2).clone();
    together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
    for (const at::Tensor& tensor : tensors) expect_equal(tensor, result);
    expect_equal(wholes[1].t().slice(0, 1, n, 2), beside, "what lies between stays as it was");
  }
  Tensors outputs(3);
  together(groups, [&](const Group& group) {
    const at::Tensor expanded = values(group.rank(), {1}).expand({4});
    return group.all_gather(outputs[group.rank()] = at::zeros({4, 3}).t(), expanded);
  });
  expect_equal(outputs[0], at::stack({values(0, {1}).expand({4}), values(1, {1}).expand({4}),
                                      values(2, {1}).expand({4})}));
}

TEST_F(OfThree, ParametersAreReducedWithoutAutograd) {
  Tensors tensors;
  for (int rank = 0; rank < 3; ++rank) tensors.push_back(values(rank, {5}).requires_grad_(true));
  together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
  for (const at::Tensor& tensor : tensors) {
    expect_equal(tensor.detach(), sum_of(3, {5}));
    EXPECT_TRUE(tensor.is_leaf());
  }
}

TEST_F(OfThree, RefuseWhatCannotBe) {
  const Group& group = groups[0];
  const at::Tensor tensor = at::zeros({6});
  const auto expect = [](rpc::Future<void> future, ErrorKind kind, const std::string& words) {
    test::expect_error(std::move(future), kind, words, words);
  };
  expect(group.all_reduce({}), ErrorKind::invalid_argument, "undefined");
  expect(group.all_reduce(tensor.to_sparse()), ErrorKind::unsupported, "dense");
  expect(group.all_reduce(at::zeros({2}, at::kMeta)), ErrorKind::unsupported, "meta");
  expect(group.all_reduce(at::zeros({1}).expand({5})), ErrorKind::invalid_argument, "expanded");
  expect(group.all_reduce(tensor, ReduceOp::bit_and), ErrorKind::unsupported, "bit_and");
  expect(group.broadcast(tensor, 3), ErrorKind::invalid_argument, "root 3 of a group of 3");
  expect(group.broadcast(tensor, -1), ErrorKind::invalid_argument, "root -1");
  expect(group.all_gather(at::zeros({7}), at::zeros({2})), ErrorKind::invalid_argument,
         "7 elements where 3 × 2");
  expect(group.all_gather(at::zeros({6}, at::kLong), at::zeros({2})), ErrorKind::invalid_argument, "dtype");
  expect(group.all_gather_v({tensor, tensor}, tensor), ErrorKind::invalid_argument, "2 tensors");
  expect(group.all_gather_v({tensor, tensor, tensor}, at::zeros({2})), ErrorKind::invalid_argument,
         "as large");
  expect(group.all_to_all(at::zeros({4}), at::zeros({4})), ErrorKind::invalid_argument, "multiple");
  expect(group.scatter(tensor, {}, 0), ErrorKind::invalid_argument, "0 tensors");
  expect(group.gather({tensor, tensor, at::zeros({1})}, tensor, 0), ErrorKind::invalid_argument, "as large");
  together(groups, [](const Group& member) { return member.barrier(); });  // none of them was counted
}

// --- Between two ranks ---

TEST_F(OfThree, MessagesAreReceivedInTheOrderInWhichTheyWereSent) {
  for (const bool receive_first : {false, true}) {
    Futures sent, received;
    Tensors tensors;
    const auto send = [&] {
      for (int i = 0; i < 5; ++i) sent.push_back(groups[0].send(values(i, {3, 2}), 2));
    };
    const auto receive = [&] {
      for (int i = 0; i < 5; ++i)
        received.push_back(groups[2].recv(tensors.emplace_back(at::zeros({3, 2})), 0));
    };
    receive_first ? receive() : send();
    receive_first ? send() : receive();
    for (auto* futures : {&sent, &received})
      for (auto& future : *futures) got(std::move(future));
    for (int i = 0; i < 5; ++i) expect_equal(tensors[i], values(i, {3, 2}));
  }
}

TEST_F(OfThree, MessagesAreToldApartByTagAndSender) {
  const at::Tensor a = at::zeros({2}), b = at::zeros({2}), c = at::zeros({2}), own = at::zeros({2});
  Futures all;
  all.push_back(groups[2].recv(a, 0, 7));
  all.push_back(groups[2].recv(b, 1));
  all.push_back(groups[2].recv(c, 0));
  all.push_back(groups[2].recv(own, 2));
  all.push_back(groups[0].send(values(10, {2}), 2));
  all.push_back(groups[0].send(values(20, {2}), 2, 7));
  all.push_back(groups[1].send(values(30, {2}), 2));
  all.push_back(groups[2].send(values(40, {2}), 2));
  for (auto& future : all) got(std::move(future));
  expect_equal(a, values(20, {2}));
  expect_equal(b, values(30, {2}));
  expect_equal(c, values(10, {2}));
  expect_equal(own, values(40, {2}));
}

TEST_F(OfThree, AMessageOfAnySender) {
  const at::Tensor first = at::zeros({100, 100}), second = at::zeros({100, 100}).t();
  auto one = groups[0].send(values(5, {100, 100}), 1);
  const int sender = got(groups[1].recv_any(first));
  EXPECT_EQ(sender, 0);
  got(std::move(one));
  auto any = groups[1].recv_any(second);
  got(groups[2].send(values(6, {100, 100}), 1));
  EXPECT_EQ(got(std::move(any)), 2);
  expect_equal(first, values(5, {100, 100}));
  expect_equal(second, values(6, {100, 100}));
}

TEST_F(OfThree, ASendEndsWhenItHasBeenReceived) {
  auto sent = groups[0].send(at::zeros({4}), 1);
  together(groups, [](const Group& group) { return group.barrier(); });  // what was sent before has come
  EXPECT_FALSE(sent.ready());
  got(groups[1].recv(at::zeros({4}), 0));
  got(std::move(sent));
}

TEST_F(OfThree, MessagesThatDifferAreAnErrorOfBothAlone) {
  auto sent = groups[0].send(at::zeros({4}), 1);
  auto received = groups[1].recv(at::zeros({4}, at::kLong), 0);
  for (auto* future : {&sent, &received})
    test::expect_error(
        std::move(*future), ErrorKind::invalid_argument,
        "rank 0 sent float32[4] to rank 1 (worker1), whose recv(int64[4], from 0) at group_test.cc:");
  together(groups, [](const Group& group) { return group.barrier(); });
  test::expect_error(groups[0].send(at::zeros({4}), 3), ErrorKind::invalid_argument,
                     "rank 3 of a group of 3");
  test::expect_error(groups[0].recv(at::zeros({1}).expand({4}), 1), ErrorKind::invalid_argument, "expanded");
}

TEST_F(OfThree, MessagesThatNobodyTakesOrSendsEndTheGroup) {
  const auto others = party.groups();
  Futures futures;
  futures.push_back(groups[0].send(at::zeros({4}), 1, 3, 50ms));
  futures.push_back(groups[2].barrier());
  expect_all(std::move(futures), ErrorKind::deadline_exceeded,
             {"rank 0 (worker0): send(float32[4], to 1) at group_test.cc:"});
  futures.clear();
  futures.push_back(others[0].recv(at::zeros({4}), 1, 3, 50ms));
  futures.push_back(others[2].send(at::zeros({4}), 1));
  expect_all(std::move(futures), ErrorKind::deadline_exceeded,
             {"rank 0 (worker0): recv(float32[4], from 1)"});
}

TEST_F(OfThree, MessagesEndWithTheirOtherSide) {
  const auto others = party.groups();
  Futures futures;
  futures.push_back(groups[0].recv(at::zeros({4}), 2));
  futures.push_back(groups[1].send(at::zeros({4}), 2));
  auto to_leaver = others[0].recv(at::zeros({4}), 2);
  got(party.agent(2).leave());
  test::expect_error(std::move(to_leaver), ErrorKind::shut_down, "rank 2 (worker2)");
  expect_all(std::move(futures), ErrorKind::shut_down, {"rank 2 (worker2)"});
}

// --- Groups of a job ---

TEST_F(OfThree, SeveralGroupsOfTheSameMembersAreApart) {
  const std::vector<Group> others = party.groups(), thirds = party.groups({.name = "third"});
  const at::Tensor a = values(0, {4}), b = values(1, {4});
  Futures all;
  for (int rank = 0; rank < 3; ++rank) {  // begun in another order by each
    const std::vector<Group>* order[] = {&groups, &others, &thirds};
    for (int i = 0; i < 3; ++i) all.push_back((*order[(rank + i) % 3])[rank].barrier());
  }
  for (auto& future : all) got(std::move(future));
}

TEST_F(OfThree, AGroupOfSomeHasItsOwnRanks) {
  const GroupOptions pair{.name = "pair", .members = {"worker2", "worker0"}};
  auto first = Group::create(party.agent(0), pair), second = Group::create(party.agent(2), pair);
  const Group a = got(std::move(first)), b = got(std::move(second));
  EXPECT_EQ(a.rank(), 1);
  EXPECT_EQ(b.rank(), 0);
  at::Tensor of_a = values(1, {3}), of_b = values(2, {3});
  auto one = a.broadcast(of_a, 0), two = b.broadcast(of_b, 0);
  got(std::move(one)), got(std::move(two));
  expect_equal(of_a, values(2, {3}));
  EXPECT_EQ(test::kind_of([&] { return got(Group::create(party.agent(1), pair)); }),
            ErrorKind::invalid_argument);
}

TEST_F(OfThree, AreForgottenWithTheirHandles) {
  EXPECT_EQ(Context::of(*party.agent(1).core())->groups(), 1U);
  party.groups();
  EXPECT_EQ(Context::of(*party.agent(1).core())->groups(), 1U);
}

TEST(GroupWithoutLayer, IsAnError) {
  rpc::Agent agent(rpc::AgentOptions{.name = "alone"});
  EXPECT_EQ(test::kind_of([&] { return got(Group::create(agent, {.members = {"alone"}})); }),
            ErrorKind::failed_precondition);
}

struct Half {
  at::Tensor of(at::Tensor x) { return x / 2; }
  using Service = rpc::Service<"group_test.half", rpc::Method<"of", &Half::of>>;
};

class GroupsBesideCalls : public testing::Test {
 protected:
  GroupsBesideCalls() {
    for (int rank = 0; rank < 2; ++rank) party.agent(rank).serve(std::make_shared<Half>());
  }
  void call_each_other() {
    for (int rank = 0; rank < 2; ++rank) {
      const rpc::Peer other = party.agent(rank).peer("worker" + std::to_string(1 - rank));
      expect_equal(got(other.call<&Half::of>(values(rank, {40'000}))), values(rank, {40'000}) / 2);
    }
  }
  void reduce(const std::vector<Group>& groups) {
    Tensors tensors{values(0, {40'000}), values(1, {40'000})};
    together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
    for (const at::Tensor& tensor : tensors) expect_equal(tensor, sum_of(2, {40'000}));
  }
  Party party{2};
};

TEST_F(GroupsBesideCalls, CollectivesThenCalls) {
  const auto groups = party.groups();
  reduce(groups);
  call_each_other();
  reduce(groups);
}

TEST_F(GroupsBesideCalls, CallsThenCollectives) {
  call_each_other();
  const auto groups = party.groups();
  reduce(groups);
  call_each_other();
}

TEST(GroupsOverTcp, MoveMuch) {
  Party party(2, std::make_unique<test::TcpJobStore>());
  const auto groups = party.groups();
  Tensors tensors{values(0, {3'000'000}), values(1, {3'000'000})};
  together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
  for (const at::Tensor& tensor : tensors) expect_equal(tensor, sum_of(2, {3'000'000}));
}

// --- Differences ---

class Differences : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Differences, testing::Values(2, 3, 4, 7));

TEST_P(Differences, AreToldToEveryRankAndTheGroupGoesOn) {
  const int ranks = GetParam();
  Party party(ranks);
  const auto groups = party.groups();
  using Begin = std::function<rpc::Future<void>(const Group&)>;
  struct Case {
    Begin most, other;
    std::vector<std::string> words;
  };
  const at::Tensor small = at::zeros({4}), large = at::zeros({1 << 16});
  const std::vector<Case> cases{
      {[&](const Group& g) { return g.all_reduce(small.clone()); },
       [&](const Group& g) { return g.all_reduce(at::zeros({5})); },
       {"all_reduce(sum, float32[4])", "all_reduce(sum, float32[5])", "group_test.cc:"}},
      {[&](const Group& g) { return g.all_reduce(large.clone()); },
       [&](const Group& g) { return g.all_reduce(large.to(at::kDouble)); },
       {"float32[65536]", "float64[65536]"}},
      {[&](const Group& g) { return g.all_reduce(small.clone()); },
       [&](const Group& g) { return g.all_reduce(small.clone(), ReduceOp::max); },
       {"all_reduce(max"}},
      {[&](const Group& g) { return g.broadcast(small.clone(), 0); },
       [&](const Group& g) { return g.broadcast(small.clone(), 1); },
       {"root 0", "root 1"}},
      {[&](const Group& g) { return g.barrier(); },
       [&](const Group& g) { return g.all_reduce(large.clone()); },
       {"barrier()", "all_reduce("}},
      {[&](const Group& g) { return g.all_gather(at::zeros({ranks, 4}), small); },
       [&](const Group& g) { return g.reduce_scatter(small.clone(), at::zeros({ranks, 4})); },
       {"all_gather(float32[4])", "reduce_scatter("}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (int odd = 0; odd < ranks; ++odd) {
      SCOPED_TRACE(testing::Message() << "case " << i << ", other at rank " << odd);
      Futures futures;
      for (int rank = 0; rank < ranks; ++rank)
        futures.push_back((rank == odd ? cases[i].other : cases[i].most)(groups[rank]));
      auto words = cases[i].words;
      words.push_back("rank " + std::to_string(odd) + " (worker" + std::to_string(odd) + "): ");
      expect_all(std::move(futures), ErrorKind::invalid_argument, words);
    }
  together(groups, [](const Group& group) { return group.barrier(); });
}

TEST_F(OfThree, ADifferenceLeavesInputsAsTheyWere) {
  for (const std::int64_t n : {4, 1 << 16}) {
    Tensors tensors{values(0, {n}), values(1, {n}), values(2, {n + 1})};
    Futures futures;
    for (int rank = 0; rank < 3; ++rank) futures.push_back(groups[rank].all_reduce(tensors[rank]));
    expect_all(std::move(futures), ErrorKind::invalid_argument, {"do not mean the same"});
    for (int rank = 0; rank < 3; ++rank) expect_equal(tensors[rank], values(rank, {rank == 2 ? n + 1 : n}));
  }
}

// --- Ends ---

TEST_F(OfThree, PastADeadlineAllLearnWhoIsMissing) {
  Futures futures;
  futures.push_back(groups[0].barrier(50ms));
  futures.push_back(groups[1].barrier());
  expect_all(std::move(futures), ErrorKind::deadline_exceeded,
             {"barrier()", "rank 2 (worker2) has not begun it", "0.05 s"});
  expect_all(
      [&] {
        Futures later;
        for (const Group& group : groups) later.push_back(group.barrier());
        return later;
      }(),
      ErrorKind::deadline_exceeded, {"rank 2 (worker2)"});
  const auto others = party.groups();  // another group has nothing to do with it
  together(others, [](const Group& group) { return group.barrier(); });
}

TEST_F(OfThree, AMemberThatDiesIsNamedToAll) {
  const auto others = party.groups();
  together(groups, [](const Group& group) { return group.barrier(); });
  Futures futures;
  for (const int rank : {0, 1}) futures.push_back(groups[rank].all_reduce(at::zeros({100'000})));
  party.end(2);
  expect_all(std::move(futures), ErrorKind::peer_lost, {"rank 2 (worker2) was lost"});
  Futures later;
  for (const int rank : {0, 1}) later.push_back(others[rank].barrier());
  expect_all(std::move(later), ErrorKind::peer_lost, {"rank 2 (worker2) was lost"});
}

TEST_F(OfThree, AMemberThatLeavesIsNamedToWhoStillNeedsIt) {
  together(groups, [](const Group& group) { return group.barrier(); });
  Futures futures;
  for (const int rank : {0, 1}) futures.push_back(groups[rank].barrier());
  got(party.agent(2).leave());
  expect_all(std::move(futures), ErrorKind::shut_down, {"rank 2 (worker2)"});
}

// What ended well on one rank has ended well on all that still live, or they know who died.
TEST(GroupKills, AnyRankInAnyCollectiveEndsInANamedErrorOnAllSurvivors) {
  using Begin = std::function<rpc::Future<void>(const Group&, std::int64_t)>;
  const std::vector<Begin> collectives{
      [](const Group& g, std::int64_t n) { return g.all_reduce(at::ones({n})); },
      [](const Group& g, std::int64_t n) { return g.reduce(at::ones({n}), 1); },
      [](const Group& g, std::int64_t n) { return g.broadcast(at::ones({n}), 1); },
      [](const Group& g, std::int64_t n) { return g.all_gather(at::ones({g.size(), n}), at::ones({n})); },
      [](const Group& g, std::int64_t n) { return g.reduce_scatter(at::ones({n}), at::ones({g.size(), n})); },
      [](const Group& g, std::int64_t n) {
        return g.all_to_all(at::ones({g.size(), n}), at::ones({g.size(), n}));
      },
      [](const Group& g, std::int64_t) { return g.barrier(); }};
  std::size_t failed = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto draw = [&](std::uint64_t below) { return static_cast<int>(random() % below); };
    const int ranks = 2 + draw(4), dead = draw(ranks), late = draw(ranks);
    Party party(ranks);
    const auto groups = party.groups();
    const auto& begin = collectives[draw(collectives.size())];
    const std::int64_t n = draw(2) == 0 ? 10 : 200'000;
    std::vector<Futures> futures(ranks);
    for (int round = 0; round < 3; ++round)
      for (int rank = 0; rank < ranks; ++rank)
        if (rank != dead || (late != dead && round < 2)) futures[rank].push_back(begin(groups[rank], n));
    party.end(dead);
    for (int rank = 0; rank < ranks; ++rank)
      if (rank != dead) futures[rank].push_back(groups[rank].barrier());
    const std::string name = "worker" + std::to_string(dead);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == dead) continue;
      for (std::size_t i = 0; i < futures[rank].size(); ++i) {
        const auto error = error_of([&] { got(std::move(futures[rank][i])); });
        const bool last = i + 1 == futures[rank].size();
        EXPECT_TRUE(error || !last) << "rank " << rank << " met one that is dead";
        if (!error) continue;
        ++failed;
        EXPECT_EQ(error->kind(), ErrorKind::peer_lost) << error->what();
        EXPECT_NE(std::string(error->what()).find(name), std::string::npos) << error->what();
      }
    }
  }
  EXPECT_GT(failed, 300U) << "collectives, not only the barriers after them";
}

TEST_F(OfThree, ACancelledFutureAbortsForAll) {
  Futures futures;
  for (const int rank : {0, 1}) futures.push_back(groups[rank].barrier());
  futures[0].cancel();
  expect_all(std::move(futures), ErrorKind::aborted, {"rank 0 (worker0) aborted barrier()"});
  Futures later;
  later.push_back(groups[2].barrier());
  expect_all(std::move(later), ErrorKind::aborted, {"rank 0"});
}

TEST_F(OfThree, AbortEndsTheGroupForAll) {
  Futures futures;
  for (const int rank : {0, 2}) futures.push_back(groups[rank].barrier());
  groups[1].abort("the loss is NaN");
  expect_all(std::move(futures), ErrorKind::aborted, {"rank 1 (worker1)", "the loss is NaN"});
}

}  // namespace
}  // namespace weft::collectives::group_test
