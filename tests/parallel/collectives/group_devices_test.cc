// Groups on tensors of an accelerator, over a FakeNccl: agents of one process, a device each.
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/parallel/collectives/nccl/fake_devices.h"
#include "tests/parallel/collectives/oracle.h"

namespace weft::collectives::testing {
namespace group_devices_test {

using nccl::Result;
using Floats = std::vector<float>;

constexpr int size = 3;

class GroupsOnDevices : public ::testing::TestWithParam<Backend>, protected FakeDevices {
 protected:
  GroupsOnDevices() : FakeDevices(size) {}
  void TearDown() override {
    groups.clear();
    company.reset();
  }
  // absent: a rank that cannot load NCCL.
  void make(int absent = -1, const GroupOptions& options = {.timeout = 10s}) {
    company = std::make_unique<Company>(size, GetParam(), std::make_unique<test::InProcessJobStore>(),
                                        [&](int rank) { return devices(rank == absent); });
    groups = company->groups(options);
  }
  Futures prepare(Timeout timeout = {}) {
    Futures futures;
    for (const Group& group : groups) futures.push_back(group.prepare(device(group.rank()), timeout));
    return futures;
  }
  void make_ready() {
    make();
    done(prepare());
  }
  void done(Futures futures) {
    work_until_ready(futures);
    for (auto& future : futures) got(std::move(future));
  }

  at::Tensor tensor(int rank, const Floats& values) { return on_device(rank, torch::tensor(values)); }
  at::Tensor zeros(int rank, std::int64_t n) { return tensor(rank, Floats(std::size_t(n))); }
  static Floats values(const at::Tensor& tensor) {
    const at::Tensor host = tensor.cpu();
    return {host.data_ptr<float>(), host.data_ptr<float>() + host.numel()};
  }
  static bool eventually(const std::function<bool()>& holds) {
    for (const auto until = rpc::Clock::now() + test::too_long; !holds(); std::this_thread::yield())
      if (rpc::Clock::now() > until) return false;
    return true;
  }
  // Calls `f` for each group on a separate thread. The threads have exited when this returns.
  template <class F>
  Futures begin_on_threads(F f, const std::function<void()>& meanwhile = [] {}) {
    Futures futures(groups.size());
    std::vector<std::thread> threads;
    std::atomic<int> begun{0};
    for (const Group& group : groups)
      threads.emplace_back([&, group] {
        futures[group.rank()] = f(group, group.rank());
        ++begun;
      });
    meanwhile();
    work_until([&] { return begun == size; });
    for (auto& thread : threads) thread.join();
    return futures;
  }
  void nccl_hangs_while_it_makes_them() {
    for (int rank = 0; rank < size; ++rank) nccl.faults(rank).init_hangs = true;
    make();
  }
  void wait_until_all_are_being_made() {
    while (nccl.alive() != size) std::this_thread::yield();
  }
  template <class F>
  Futures begin(F f) {
    Futures futures;
    for (const Group& group : groups) futures.push_back(f(group, group.rank()));
    return futures;
  }
  template <class F>
  void all(F f) {
    done(begin(f));
  }
  // All-reduces that the ranks have compared, and that the devices do not run.
  Futures begin_without_devices() {
    devices_work = false;
    Futures futures =
        begin([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); });
    together(groups, [](const Group& group) { return group.barrier(); });
    return futures;
  }
  void expect_failure(Futures futures, ErrorKind kind, const std::vector<std::string>& words) {
    work_until_ready(futures);
    expect_all(std::move(futures), kind, words);
  }

  std::unique_ptr<Company> company;
  std::vector<Group> groups;
};
INSTANTIATE_TEST_SUITE_P(Backends, GroupsOnDevices, ::testing::ValuesIn(backends),
                         ::testing::PrintToStringParamName());

TEST_P(GroupsOnDevices, RelaxedChecksAcceptOtherShapesOverlapsAndSeveralDtypes) {
  make(-1, {.timeout = 10s, .checks = Checks::relaxed});
  done(prepare());
  std::vector<at::Tensor> t(size), other(size);
  const auto shaped = [&](int rank) {
    const std::vector<std::int64_t> shape =
        rank == 1 ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{6};
    return tensor(rank, {0, 1, 2, 3, 4, 5}).view(shape);
  };
  all([&](const Group& group, int rank) { return group.all_reduce(t[rank] = shaped(rank)); });
  for (const at::Tensor& each : t) EXPECT_EQ(values(each), (Floats{0, 3, 6, 9, 12, 15}));
  all([&](const Group& group, int rank) {
    const at::Tensor sent = shaped(rank);
    return group.batch({{PointToPoint::Kind::send, sent, (rank + 1) % size},
                        {PointToPoint::Kind::recv, other[rank] = zeros(rank, 6), (rank + size - 1) % size}});
  });
  for (const at::Tensor& each : other) EXPECT_EQ(values(each), (Floats{0, 1, 2, 3, 4, 5}));
  all([&](const Group& group, int rank) {
    t[rank] = tensor(rank, {0, 1, 2, 3, 4, 5});
    return group.all_gather(t[rank], t[rank].narrow(0, 1, 2));
  });
  for (const at::Tensor& each : t) EXPECT_EQ(values(each), (Floats{1, 2, 1, 2, 1, 2}));
  all([&](const Group& group, int rank) {
    other[rank] = on_device(rank, torch::ones({3}, torch::kInt));
    return group.all_reduce(Tensors{t[rank] = tensor(rank, {1, 2}), other[rank]});
  });
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(values(t[rank]), (Floats{3, 6}));
    EXPECT_EQ(values(other[rank].cpu().to(torch::kFloat)), (Floats{3, 3, 3}));
  }
}

TEST_P(GroupsOnDevices, SeveralTensorsAndMessagesAreOneLaunch) {
  make_ready();
  std::vector<Tensors> t(size);
  for (int rank = 0; rank < size; ++rank) t[rank] = {tensor(rank, {1}), tensor(rank, {2, 3})};
  all([&](const Group& group, int rank) { return group.all_reduce(t[rank]); });
  EXPECT_EQ(values(t[2][1]), (Floats{6, 9}));
  all([&](const Group& group, int rank) { return group.broadcast(t[rank], 1); });
  std::vector<Tensors> gathered(size);
  for (int rank = 0; rank < size; ++rank) gathered[rank] = {zeros(rank, 3), zeros(rank, 6)};
  all([&](const Group& group, int rank) { return group.all_gather(gathered[rank], t[rank]); });
  EXPECT_EQ(values(gathered[0][1]), (Floats{6, 9, 6, 9, 6, 9}));
  all([&](const Group& group, int rank) { return group.reduce_scatter(t[rank], gathered[rank]); });
  EXPECT_EQ(values(t[1][1]), (Floats{18, 27}));

  // Around a ring: each rank sends and receives. As two separate launches, these would deadlock.
  std::vector<at::Tensor> mine, theirs;
  for (int rank = 0; rank < size; ++rank) {
    mine.push_back(tensor(rank, {float(rank)}));
    theirs.push_back(zeros(rank, 1));
  }
  all([&](const Group& group, int rank) {
    return group.batch({{PointToPoint::Kind::send, mine[rank], (rank + 1) % size, 7},
                        {PointToPoint::Kind::recv, theirs[rank], (rank + size - 1) % size, 7}});
  });
  EXPECT_EQ(values(theirs[0]), (Floats{2}));
  EXPECT_EQ(values(theirs[2]), (Floats{1}));
}

TEST_P(GroupsOnDevices, PrepareConnectsTheRanks) {
  devices_work = false;
  make();
  Futures futures = prepare();
  EXPECT_TRUE(eventually([&] {
    return std::all_of(groups.begin(), groups.end(), [&](const Group& group) {
      return nccl.calls(group.rank()) == std::vector<std::string>{"all_reduce 1"};
    });
  }));
  for (const auto& future : futures) EXPECT_FALSE(future.ready());
  devices_work = true;
  done(std::move(futures));
}

TEST_P(GroupsOnDevices, ADeathWhileRanksConnectIsNamed) {
  devices_work = false;
  make();
  Futures futures = prepare();
  EXPECT_TRUE(eventually([&] { return nccl.calls(0).size() + nccl.calls(1).size() == 2; }));
  groups.pop_back();
  company->end(2);
  futures.pop_back();
  expect_failure(std::move(futures), ErrorKind::peer_lost, {"worker2"});
}

TEST_P(GroupsOnDevices, AGroupThatIsDroppedIsFinalized) {
  make_ready();
  all([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); });
  groups.clear();
  EXPECT_TRUE(eventually([&] { return nccl.alive() == 0; }));
  EXPECT_TRUE(nccl.aborts().empty());
}

TEST_P(GroupsOnDevices, AGroupIsFinalizedWhenItsMembersLeave) {
  make_ready();
  all([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); });
  got(company->agent(2).leave());  // completes when all ranks have finalized the communicator
  EXPECT_TRUE(eventually([&] { return nccl.alive() == 0; }));
  EXPECT_TRUE(nccl.aborts().empty());
  EXPECT_EQ(test::message_of([&] { got(groups[0].all_reduce(tensor(0, {1}))); }),
            "group 'world': rank 2 (worker2) has left");
}

// A continuation of a collective runs on the loop of its agent's devices, and then releases the group.
TEST_P(GroupsOnDevices, ALastHandleThatTheDevicesReleaseAfterTheAgentHasEndedLeavesNoCommunicator) {
  make_ready();
  Futures futures = begin_without_devices();
  std::atomic<bool> on_loop{false};
  rpc::detail::Latch goes_on;
  futures[0] = std::move(futures[0]).then([&](rpc::Result<void>&& result) {
    on_loop = true;
    goes_on.wait();
    return std::move(result);
  });
  devices_work = true;
  work_until([&] { return on_loop.load(); });
  groups.clear();
  company.reset();
  goes_on.open();
  got(std::move(futures[0]));
}

TEST_P(GroupsOnDevices, CollectivesRunOnTheCurrentStream) {
  make_ready();
  Tensors tensors;
  Futures futures;
  for (const Group& group : groups) {
    tensors.push_back(zeros(group.rank(), 2));
    const c10::StreamGuard guard(c10::Stream(c10::Stream::UNSAFE, device(group.rank()), 3));
    accelerator.fill_later(tensors.back(), group.rank() + 1);  // written when the stream executes it
    futures.push_back(group.all_reduce(tensors.back()));
  }
  done(std::move(futures));
  for (const at::Tensor& one : tensors) EXPECT_EQ(values(one), (Floats{6, 6}));
}

TEST_P(GroupsOnDevices, TheFirstCollectiveCreatesTheCommunicator) {
  make();
  const Tensors tensors = of_ranks(size, [&](int rank) { return tensor(rank, {float(rank)}); });
  Futures futures =
      begin_on_threads([&](const Group& group, int rank) { return group.all_reduce(tensors[rank]); });
  done(std::move(futures));
  EXPECT_EQ(values(tensors[1]), (Floats{3}));
}

TEST_P(GroupsOnDevices, DeviceAndHostCollectivesMayAlternate) {
  make_ready();
  for (int round = 0; round < 10; ++round) {
    Tensors host, there;
    for (int rank = 0; rank < size; ++rank) {
      host.push_back(at::ones({10}));
      there.push_back(tensor(rank, {1}));
    }
    Futures futures;
    for (auto& future : begin([&](const Group& group, int rank) { return group.all_reduce(there[rank]); }))
      futures.push_back(std::move(future));
    for (auto& future : begin([&](const Group& group, int rank) { return group.all_reduce(host[rank]); }))
      futures.push_back(std::move(future));
    work_until_ready(futures);
    for (auto& future : futures) got(std::move(future));
    EXPECT_EQ(values(there[0]), (Floats{3}));
    expect_equal(host[2], at::full({10}, 3.0F));
  }
}

TEST_P(GroupsOnDevices, NoLoopOfAnAgentCallsADeviceOrNccl) {
  const std::size_t elsewhere = accelerator.queries_without_the_device();
  (void)accelerator.take_querying_threads();
  (void)accelerator.take_counting_threads();
  std::set<std::thread::id> threads_of_nccl;
  const auto get_unique_id = api->get_unique_id;
  auto noting = std::make_shared<nccl::Api>(*api);
  noting->get_unique_id = [&](nccl::UniqueId* id) {
    threads_of_nccl.insert(std::this_thread::get_id());
    return get_unique_id(id);
  };
  api = noting;
  make();
  std::set<std::thread::id> loops;
  Futures preparing(size);
  for (int rank = 0; rank < size; ++rank) {
    rpc::detail::Latch done;
    company->agent(rank).core()->loops().front()->post([&] {
      loops.insert(std::this_thread::get_id());
      preparing[std::size_t(rank)] = groups[std::size_t(rank)].prepare(device(rank));
      done.open();
    });
    done.wait();
  }
  const auto counting = accelerator.take_counting_threads();
  for (const auto& loop : loops) EXPECT_FALSE(counting.contains(loop));
  done(std::move(preparing));
  all([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); });
  const auto querying = accelerator.take_querying_threads();
  EXPECT_FALSE(querying.empty());
  threads_of_nccl.insert(querying.begin(), querying.end());
  for (const auto& thread : threads_of_nccl) EXPECT_FALSE(loops.contains(thread));
  EXPECT_EQ(accelerator.queries_without_the_device(), elsewhere);
}

TEST_P(GroupsOnDevices, ComparisonsDoNotRunOnTheThreadThatLaunches) {
  make_ready();
  const auto here = std::this_thread::get_id();
  std::atomic<int> elsewhere{0};
  Futures futures;
  for (int rank = 0; rank < size; ++rank) {
    Collective meaning;
    meaning.signature = {.operation = Operation::all_reduce, .shapes = {{1}}, .dtype = at::kFloat};
    meaning.finish = [&] { elsewhere += std::this_thread::get_id() != here; };
    const auto core = CollectivesLayer::of(*company->agent(rank).core())->all().front();
    const at::Tensor one = tensor(rank, {1});
    futures.push_back(core->devices().run(
        {.operation = Operation::all_reduce, .outputs = {&one, 1}, .reduction = ReduceOp::sum},
        std::move(meaning)));
  }
  done(std::move(futures));
  EXPECT_EQ(elsewhere, size);
}

TEST_P(GroupsOnDevices, AThreadThatWaitsForItsLaunchDoesNotDelayComparisons) {
  make_ready();
  nccl.faults(0).launch_polls = 1 << 30;
  const auto core = CollectivesLayer::of(*company->agent(0).core())->all().front();
  Futures futures(2);
  std::thread first([&] { futures[0] = groups[0].all_reduce(tensor(0, {1})); });
  EXPECT_TRUE(eventually([&] { return nccl.calls(0).size() == 2; }));  // the first call is that of prepare()
  std::thread second([&] { futures[1] = groups[0].all_reduce(tensor(0, {1})); });
  EXPECT_TRUE(eventually([&] { return core->collectives().has_begun(1); }));
  groups[0].abort("enough");
  first.join();
  second.join();
  expect_failure(std::move(futures), ErrorKind::aborted, {"enough"});
}

TEST_P(GroupsOnDevices, ADifferenceFailsTheGroupAndIsReportedToAll) {
  make_ready();
  Tensors tensors{tensor(0, {1, 2}), tensor(1, {1, 2, 3}), tensor(2, {1, 2})};
  Futures futures = begin([&](const Group& group, int rank) { return group.all_reduce(tensors[rank]); });
  expect_failure(std::move(futures), ErrorKind::invalid_argument,
                 {"float32[2], fake)", "rank 1 (worker1)", "float32[3], fake)", "group_devices_test.cc"});
  for (const Group& group : groups)
    EXPECT_EQ(test::kind_of([&] { got(group.all_reduce(tensors[group.rank()])); }),
              ErrorKind::invalid_argument);
}

TEST_P(GroupsOnDevices, SizesOfAllToAllVAreComparedByPairs) {
  make_ready();
  std::vector<Tensors> outputs(size), inputs(size);
  for (int rank = 0; rank < size; ++rank)
    for (int other = 0; other < size; ++other) {
      inputs[rank].push_back(zeros(rank, rank == 1 && other == 0 ? 4 : 2));
      outputs[rank].push_back(zeros(rank, 2));
    }
  Futures futures =
      begin([&](const Group& group, int rank) { return group.all_to_all_v(outputs[rank], inputs[rank]); });
  futures.pop_back();  // rank 2 may have succeeded before
  expect_failure(std::move(futures), ErrorKind::invalid_argument,
                 {"all_to_all_v(float32[?], fake) at", "group_devices_test.cc",
                  "rank 1 (worker1) sends 4 elements to rank 0 (worker0), which expects 2"});
}

TEST_P(GroupsOnDevices, HostAndDeviceAreADifference) {
  make_ready();
  Futures futures = begin([&](const Group& group, int rank) {
    return group.all_reduce(rank == 1 ? at::ones({2}) : tensor(rank, {1, 2}));
  });
  expect_failure(std::move(futures), ErrorKind::invalid_argument,
                 {"all_reduce(sum, float32[2]) at", "all_reduce(sum, float32[2], fake)"});
}

TEST_P(GroupsOnDevices, AMissingDeviceIsNamedToAll) {
  make();
  Futures futures = begin(
      [&](const Group& group, int rank) { return group.prepare(rank == 1 ? device(9) : device(rank)); });
  expect_all(std::move(futures), ErrorKind::unsupported, {"rank 1 (worker1)", "no fake:9", "4"});
  done(prepare());
  all([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); });
}

TEST_P(GroupsOnDevices, ADeviceWithoutAnIndexIsTheCurrentOne) {
  make();
  Futures futures = begin([&](const Group& group, int rank) {
    const c10::DeviceGuard guard(device(rank));
    return group.prepare(c10::Device(FakeAccelerator::type));
  });
  done(std::move(futures));
  all([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); });
}

// A collective does not retry.
TEST_P(GroupsOnDevices, ARankWithoutNcclIsNamedToAll) {
  make(1);
  expect_all(prepare(), ErrorKind::unsupported, {"rank 1 (worker1)", "no libnccl"});
  EXPECT_EQ(loads, size);
  expect_all(
      begin_on_threads([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); }),
      ErrorKind::unsupported, {"no libnccl"});
  EXPECT_EQ(loads, size);
  expect_all(prepare(), ErrorKind::unsupported, {"rank 1 (worker1)"});  // the group continues
  together(groups, [](const Group& group) { return group.barrier(); });
}

TEST_P(GroupsOnDevices, CollectivesCompleteWithoutADeadline) {
  make();
  done(prepare(rpc::no_timeout));
  all([&](const Group& group, int rank) {
    return group.all_reduce(tensor(rank, {1}), ReduceOp::sum, rpc::no_timeout);
  });
  all([&](const Group& group, int rank) {
    return rank == 0   ? group.send(tensor(rank, {1}), 1, 0, rpc::no_timeout)
           : rank == 1 ? group.recv(tensor(rank, {1}), 0, 0, rpc::no_timeout)
                       : rpc::Future<void>::made(rpc::Result<void>{});
  });
}

TEST_P(GroupsOnDevices, ADeathWhileNcclCreatesTheCommunicatorIsNamed) {
  nccl_hangs_while_it_makes_them();
  Futures futures = prepare();
  wait_until_all_are_being_made();
  company->end(2);
  EXPECT_EQ(test::kind_of([&] { got(std::move(futures.back())); }), ErrorKind::shut_down);
  futures.pop_back();
  expect_all(std::move(futures), ErrorKind::peer_lost, {"worker2"});
}

TEST_P(GroupsOnDevices, AFirstCollectiveIsNotifiedOfADeathWhileItWaits) {
  nccl_hangs_while_it_makes_them();
  Futures futures =
      begin_on_threads([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); },
                       [&] {
                         wait_until_all_are_being_made();
                         company->end(2);
                       });
  futures.pop_back();
  expect_all(std::move(futures), ErrorKind::peer_lost, {"worker2"});
}

TEST_P(GroupsOnDevices, AMissingRankIsNamedEvenIfALaunchWaitsForIt) {
  make_ready();
  for (const int rank : {0, 1}) nccl.faults(rank).launch_polls = 1 << 30;
  Futures futures;
  for (const int rank : {0, 1})
    futures.push_back(groups[rank].all_reduce(tensor(rank, {1}), ReduceOp::sum, 300ms));
  expect_failure(std::move(futures), ErrorKind::deadline_exceeded, {"rank 2 (worker2)"});
}

TEST_P(GroupsOnDevices, ACallThatAllRanksRefuseDoesNotFailTheGroup) {
  make_ready();
  for (const Group& group : groups) {
    const at::Tensor whole = tensor(group.rank(), {1, 2, 3, 4}).view({2, 2});
    EXPECT_EQ(test::kind_of([&] { got(group.all_reduce(whole.as_strided({2, 2}, {1, 2}))); }),
              ErrorKind::invalid_argument);
  }
  EXPECT_EQ(test::kind_of([&] { got(groups[0].send(tensor(0, {1}), size)); }), ErrorKind::invalid_argument);
  all([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); });
}

TEST_P(GroupsOnDevices, ADeathWhileADeviceRunsACollectiveIsNamed) {
  make_ready();
  Futures futures = begin_without_devices();
  groups.pop_back();
  company->end(2);
  futures.pop_back();
  expect_failure(std::move(futures), ErrorKind::peer_lost, {"worker2"});
}

TEST_P(GroupsOnDevices, ADeathAbortsTheCommunicatorsOfAllGroupsInOneNcclGroup) {
  company = std::make_unique<Company>(2, GetParam(), std::make_unique<test::InProcessJobStore>(),
                                      [&](int) { return devices(); });
  std::vector<Group> more;
  for (auto* made : {&groups, &more}) {
    *made = company->groups({.timeout = 10s});
    Futures preparing;
    for (const Group& group : *made) preparing.push_back(group.prepare(device(group.rank())));
    done(std::move(preparing));
  }
  devices_work = false;
  Tensors tensors;  // created first, because copies to a device wait for its stream
  for (int i = 0; i < 4; ++i) tensors.push_back(tensor(i % 2, {1}));
  Futures futures;
  for (auto* made : {&groups, &more}) {
    for (const Group& group : *made)
      futures.push_back(group.all_reduce(tensors[std::size_t(group.rank() + (made == &more ? 2 : 0))]));
    together(*made, [](const Group& group) { return group.barrier(); });  // the comparison is done
    made->pop_back();
    futures.pop_back();
  }
  company->end(1);
  expect_failure(std::move(futures), ErrorKind::peer_lost, {"worker1"});
  const auto aborts = nccl.aborts();
  EXPECT_NE(std::find(aborts.begin(), aborts.end(), std::vector<int>{0, 0}), aborts.end())
      << ::testing::PrintToString(aborts);
}

// The files that ranks write are pipes, so that ranks wait until the test reads them.
TEST_P(GroupsOnDevices, AFailureAbortsDevicesBeforeDumpsAreWrittenAndFailsFuturesAfterwards) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("weft-device-flights-" + std::to_string(::getpid()));
  make(-1, {.timeout = 10s, .flight_recorder_dir = folder});
  done(prepare());
  std::vector<std::string> pipes;
  for (const Group& group : groups) {
    pipes.push_back(group.write_flight(folder).string() + "." + std::to_string(::getpid()) + ".part");
    ASSERT_EQ(::mkfifo(pipes.back().c_str(), 0600), 0);
  }
  Futures futures = begin_without_devices();
  const auto core = CollectivesLayer::of(*company->agent(0).core())->all().front();
  groups[0].abort("enough");
  EXPECT_TRUE(eventually([&] { return nccl.aborts().size() == size && !core->devices().busy(); }));
  for (const auto& future : futures) EXPECT_FALSE(future.ready()) << "before its dump is written";
  std::vector<int> readers;
  for (const std::string& pipe : pipes) readers.push_back(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
  expect_failure(std::move(futures), ErrorKind::aborted, {"enough"});
  for (const int reader : readers) ::close(reader);
  std::filesystem::remove_all(folder);
}

TEST_P(GroupsOnDevices, AnErrorOfNcclFailsTheGroupOnAllRanks) {
  make_ready();
  Futures futures = begin_without_devices();
  nccl.fail(1, Result::system_error);
  expect_failure(std::move(futures), ErrorKind::unavailable, {"group 'world'", "an error of the fake"});
}

// The abort may complete before the group processes the error.
TEST_P(GroupsOnDevices, AnErrorOfNcclIsTheGroupsErrorEvenIfTheAbortIsFaster) {
  make_ready();
  Futures futures = begin_without_devices();
  const auto core = CollectivesLayer::of(*company->agent(1).core())->all().front();
  rpc::detail::Latch in_turn, goes_on, handled;
  // If another thread ran a turn at that time, it would run the job there, and block the agent's loop.
  std::thread turn([&] {
    for (bool ran_here = false; !ran_here;) {
      rpc::detail::Latch ran;
      core->failure().after_dumps([&, self = std::this_thread::get_id()] {
        ran_here = std::this_thread::get_id() == self;
        ran.open();
        if (!ran_here) return;
        in_turn.open();
        goes_on.wait();
      });
      ran.wait();
    }
  });
  in_turn.wait();
  nccl.fail(1, Result::system_error);
  EXPECT_TRUE(eventually([&] { return !core->devices().busy(); }));
  company->agent(1).core()->loops().front()->post([&] { handled.open(); });
  handled.wait();
  goes_on.open();
  turn.join();
  expect_failure(std::move(futures), ErrorKind::unavailable, {"group 'world'", "an error of the fake"});
}

TEST_P(GroupsOnDevices, ACancelledCollectiveIsAborted) {
  make_ready();
  devices_work = false;
  Futures futures = begin([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); });
  futures[1].cancel();
  expect_failure(std::move(futures), ErrorKind::aborted, {"rank 1", "aborted all_reduce"});
}

TEST_P(GroupsOnDevices, MessagesThatDifferFailTheGroup) {
  make_ready();
  expect_failure(Several{groups[0].send(tensor(0, {1}), 1, 5), groups[1].recv(zeros(1, 1), 0, 6)},
                 ErrorKind::invalid_argument, {"tag 5", "tag 6"});
}

TEST_P(GroupsOnDevices, BlockingCallsAreRefusedOnAnAgentsThread) {
  make();
  std::optional<ErrorKind> kind;
  std::thread([&] {
    const rpc::OwnedThread as_an_agents;
    kind = test::kind_of([&] { got(groups[0].all_reduce(tensor(0, {1}))); });
  }).join();
  EXPECT_EQ(kind, ErrorKind::failed_precondition);
  EXPECT_EQ(test::kind_of([&] { got(groups[0].send(tensor(0, {1}), 1)); }), ErrorKind::failed_precondition);
  EXPECT_EQ(test::kind_of([&] { got(groups[0].recv_any(tensor(0, {1}))); }), ErrorKind::unsupported);
}

TEST_P(GroupsOnDevices, AnUnpreparedCallIsRefusedOnAnAgentsThreadDuringConnect) {
  make();
  rpc::Future<void> first;
  std::thread waits([&] { first = groups[0].all_reduce(tensor(0, {1})); });
  while (loads == 0) std::this_thread::yield();
  std::optional<ErrorKind> kind;
  rpc::detail::Latch done;
  company->agent(0).core()->loops().front()->post([&] {  // as a coroutine on this loop
    kind = test::kind_of([&] { got(groups[0].send(tensor(0, {1}), 1)); });
    done.open();
  });
  done.wait();
  EXPECT_EQ(kind, ErrorKind::failed_precondition);
  std::vector<std::thread> others;
  Futures futures(size);
  for (const int rank : {1, 2})
    others.emplace_back([&, rank] { futures[rank] = groups[rank].all_reduce(tensor(rank, {1})); });
  std::atomic<bool> all_begun{false};
  std::thread joins([&] {
    for (auto& thread : others) thread.join();
    waits.join();
    all_begun = true;
  });
  work_until([&] { return all_begun.load(); });
  joins.join();
  futures[0] = std::move(first);
  work_until_ready(futures);
  for (auto& future : futures) got(std::move(future));
}

// Only this thread runs the agent's loop.
TEST_P(GroupsOnDevices, BlockingCallsAreRefusedOnTheProgramsOwnLoop) {
  asio::io_context context;
  const auto work = asio::make_work_guard(context);
  const auto run_until = [&](const std::function<bool()>& over) {
    while (!over()) {
      for (c10::StreamId id = 0; id <= FakeAccelerator::pooled; ++id)
        accelerator.wait(c10::Stream(c10::Stream::UNSAFE, device(0), id));
      if (context.poll() == 0) std::this_thread::yield();
    }
  };
  test::InProcessJobStore store;
  rpc::AgentOptions options{.name = "worker0", .listen = {store.url}};
  options.in_process = store.network;
  options.log = [](const rpc::LogRecord&) {};
  rpc::Layers layers = company_layers(devices());
  layers.push_back(rpc::Job::layer({.store = store.url, .rank = 0, .world_size = 1}));
  rpc::Agent agent(context, std::move(options), layers);
  const auto run = [&](auto future) {
    run_until([&] { return future.ready(); });
    return future.get();
  };
  run(rpc::Job(agent).join());
  const Group group = run(Group::create(agent));
  std::optional<ErrorKind> first, waiting;
  rpc::Future<void> preparing;
  asio::post(context, [&] {
    first = test::kind_of([&] { got(group.all_reduce(tensor(0, {1}))); });
    preparing = group.prepare(device(0));
    waiting = test::kind_of([&] { preparing.get(); });
  });
  run_until([&] { return waiting.has_value(); });
  run(std::move(preparing));
  EXPECT_EQ(first, ErrorKind::failed_precondition);
  EXPECT_EQ(waiting, ErrorKind::failed_precondition);
  auto done = group.all_reduce(tensor(0, {1}));
  accelerator.wait(accelerator.current(device(0)));
  run(std::move(done));
}

// Every ordered pair of operations, on two groups whose steps alternate, compared with the oracle. A quarter
// of the operations use tensors of the host.
TEST_P(GroupsOnDevices, EveryOrderedPairOfOperationsSucceeds) {
  make_ready();
  auto others = company->groups({.name = "other", .timeout = 10s});
  Futures preparing;
  for (const Group& group : others) preparing.push_back(group.prepare(device(group.rank())));
  done(std::move(preparing));
  std::mt19937_64 random(1);
  auto steps = oracle::steps_of_every_pair(random, size, oracle::oracles, 1 << 10);
  for (oracle::Step& step : steps) {
    if (random() % 4 == 0) continue;  // on the host
    step.place = [this](int rank, const at::Tensor& values) { return on_device(rank, values); };
  }
  std::atomic<bool> over{false};
  std::thread runs([&] {
    oracle::run_steps({groups, others}, steps);
    over = true;
  });
  work_until([&] { return over.load(); });
  runs.join();
}

TEST_P(GroupsOnDevices, AGroupUsesOneDevicePerMember) {
  make_ready();
  for (const Group& group : groups)
    EXPECT_EQ(test::kind_of([&] { got(group.all_reduce(tensor((group.rank() + 1) % size, {1}))); }),
              ErrorKind::invalid_argument);
  all([&](const Group& group, int rank) { return group.all_reduce(tensor(rank, {1})); });
}

}  // namespace group_devices_test
}  // namespace weft::collectives::testing
