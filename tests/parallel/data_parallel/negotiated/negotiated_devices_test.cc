// Named reductions on devices: an accelerator and NCCL, both fake, two ranks of one process with two devices
// each.
#include <weft/parallel/data_parallel/negotiated/all_reduce_optimizer.h>

#include "tests/parallel/collectives/nccl/fake_devices.h"
#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::negotiated_devices_test {
namespace {

using namespace testing;
using collectives::ReduceOp;
using collectives::testing::expect_all;
using collectives::testing::Futures;
using test::FakeAccelerator;

constexpr int ranks = 2;

// LibTorch's engine starts a thread for each device that it finds at the first backward of the process.
[[maybe_unused]] const FakeAccelerator& accelerator_of_the_engine = FakeAccelerator::install();

class NegotiatedOnDevices : public ::testing::Test, protected collectives::testing::FakeDevices {
 protected:
  NegotiatedOnDevices() : FakeDevices(2 * ranks) {}
  // Reductions end on threads of the agents. Their groups close their communicators before the agents end.
  void TearDown() override {
    const auto groups_of = [&](int rank) {
      return collectives::CollectivesLayer::of(*company->agent(rank).core())->groups();
    };
    for (int rank = 0; rank < ranks && all_alive; ++rank) work_until([&] { return groups_of(rank) == 1; });
    company.reset();
  }

  static std::vector<c10::Device> devices_of(int rank) { return {device(2 * rank), device(2 * rank + 1)}; }

  // Runs f(reduction, rank) for each rank in a thread, while the devices work.
  template <class F>
  void on_all(F f) {
    work_on_ranks(groups, [&](const Group& group) {
      f(NegotiatedReduction::make(company->agent(group.rank()), group, {.devices = devices_of(group.rank())}),
        group.rank());
    });
  }
  at::Tensor full(c10::Device device, at::IntArrayRef sizes, double value,
                  at::ScalarType dtype = at::kFloat) {
    return at::full(sizes, value, dtype).to(device);
  }

  bool all_alive = true;
  std::unique_ptr<Company> company = std::make_unique<Company>(
      ranks, Backend::memory, std::make_unique<test::InProcessJobStore>(), [this](int) { return devices(); });
  std::vector<Group> groups = company->groups({.timeout = std::chrono::seconds(10)});
};

// Each rank reduces tensors of its devices and of the host, in another order than other ranks: fused, single,
// not contiguous, with factors, and several under one name.
TEST_F(NegotiatedOnDevices, TensorsOfAllDevicesAreReduced) {
  on_all([&](const std::shared_ptr<NegotiatedReduction>& reduction, int rank) {
    std::vector<c10::Device> places = devices_of(rank);
    places.emplace_back(at::kCPU);
    std::vector<std::size_t> order{0, 1, 2};
    if (rank == 1) std::reverse(order.begin(), order.end());
    for (int step = 0; step < 3; ++step) {
      std::vector<std::vector<at::Tensor>> tensors(3);
      Futures futures;
      for (const std::size_t place : order) {
        const c10::Device at = places[place];
        const std::string name = "place " + std::to_string(place) + " ";
        const double value = rank + 1 + 10 * static_cast<double>(place);
        tensors[place] = {full(at, {3}, value),   full(at, {4, 2}, value),        full(at, {3, 2}, value).t(),
                          full(at, {5}, value),   full(at, {5}, value, at::kInt), full(at, {2}, value),
                          full(at, {3, 3}, value)};
        const std::vector<at::Tensor>& all = tensors[place];
        for (std::size_t i = 0; i < 3; ++i)
          futures.push_back(reduction->all_reduce(name + std::to_string(i), all[i], {.op = ReduceOp::sum}));
        for (std::size_t i = 3; i < 5; ++i)
          futures.push_back(reduction->all_reduce(name + std::to_string(i), all[i],
                                                  {.op = ReduceOp::sum, .prescale = 0.5, .postscale = 3}));
        futures.push_back(reduction->all_reduce(name, {all[5], all[6]}));
      }
      for (auto& future : futures) std::move(future).get();
      for (std::size_t place = 0; place < 3; ++place) {
        const double sum = 3 + 20 * static_cast<double>(place);
        const std::vector<double> expected{
            sum, sum, sum, 1.5 * sum, 3.0 * (5 * static_cast<int>(place) * 2 + 1), sum / 2, sum / 2};
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(at::equal(tensors[place][i].cpu(), at::full_like(tensors[place][i].cpu(), expected[i])))
              << place << ' ' << i << '\n'
              << tensors[place][i].cpu() << expected[i];
      }
    }
  });
}

// The caller's stream executes work only if another stream waits for it. The results are read without a wait.
TEST_F(NegotiatedOnDevices, ReductionsFollowTheCallersStream) {
  on_all([&](const std::shared_ptr<NegotiatedReduction>& reduction, int rank) {
    const c10::Device device = devices_of(rank)[0];
    const c10::StreamGuard on(c10::Stream(c10::Stream::UNSAFE, device, FakeAccelerator::pooled + 1));
    for (int step = 0; step < 10; ++step) {
      const std::vector<at::Tensor> tensors{at::empty({3}, at::device(device)),
                                            at::empty({2}, at::device(device))};
      for (std::size_t i = 0; i < 2; ++i) accelerator.fill_later(tensors[i], rank + 1 + static_cast<int>(i));
      const auto name = std::to_string(step % 2);
      if (step % 2 == 0)
        reduction->all_reduce(name, tensors, {.op = ReduceOp::sum}).get();
      else
        for (const at::Tensor& tensor : tensors)
          reduction->all_reduce(name, tensor, {.op = ReduceOp::sum}).get();
      EXPECT_EQ(*tensors[0].const_data_ptr<float>(), 3);
      EXPECT_EQ(*tensors[1].const_data_ptr<float>(), 5);
    }
  });
}

TEST_F(NegotiatedOnDevices, HostAndDeviceUnderOneNameAreAnErrorOfAllRanks) {
  on_all([&](const std::shared_ptr<NegotiatedReduction>& reduction, int rank) {
    const auto [own, other] = std::pair(devices_of(rank)[0], devices_of(rank)[1]);
    const auto fails = [&](const std::vector<at::Tensor>& tensors, const std::vector<std::string>& words) {
      expect_error([&] { reduction->all_reduce("w", tensors).get(); }, ErrorKind::invalid_argument, words);
    };
    const at::Tensor of_host = at::ones({4});
    const c10::DeviceGuard guard(own);
    const at::Tensor sparse =
        at::_sparse_coo_tensor_unsafe(at::zeros({1, 1}, at::kLong).to(own), full(own, {1}, 1), {4});
    fails({rank == 0 ? of_host : full(own, {4}, 1)},
          {"rank 0 has Float[4] on cpu", "rank 1 has Float[4] on fake"});
    fails({full(rank == 0 ? own : other, {4}, 1)},
          {"rank 0 has Float[4] on fake (device 0)", "rank 1 has Float[4] on fake (device 1)"});
    fails({of_host, full(own, {4}, 1)}, {"tensors on cpu and " + own.str(), "expected one device"});
    EXPECT_EQ(test::kind_of([&] { reduction->all_reduce("w", full(device(3 - 2 * rank), {4}, 1)).get(); }),
              ErrorKind::unsupported);
    EXPECT_EQ(test::kind_of([&] { reduction->all_reduce("w", sparse).get(); }), ErrorKind::unsupported);
    reduction->all_reduce("w", full(own, {4}, 1)).get();
  });
}

TEST_F(NegotiatedOnDevices, ARankThatHasJoinedContributesZeros) {
  on_all([&](const std::shared_ptr<NegotiatedReduction>& reduction, int rank) {
    for (const c10::Device device : devices_of(rank)) {
      const at::Tensor both = full(device, {3}, rank + 1), alone = full(device, {2}, 5);
      reduction->all_reduce("both", both, {.op = ReduceOp::sum}).get();
      if (rank == 0) reduction->all_reduce("alone", alone).get();
      reduction->join().get();
      EXPECT_TRUE(at::equal(both.cpu(), at::full({3}, 3.0F)));
      if (rank == 0) expect_close({alone.cpu()}, {at::full({2}, 2.5F)});
    }
  });
}

TEST_F(NegotiatedOnDevices, ADeadRankFailsAllRequests) {
  Futures futures;
  std::vector<std::shared_ptr<NegotiatedReduction>> reductions(ranks);
  on_all([&](const std::shared_ptr<NegotiatedReduction>& reduction, int rank) {
    reductions[static_cast<std::size_t>(rank)] = reduction;
  });
  futures.push_back(reductions[0]->all_reduce("a", full(device(0), {2}, 1)));
  futures.push_back(reductions[0]->all_reduce("b", full(device(1), {2}, 1)));
  all_alive = false;
  company->end(1);
  work_until_ready(futures);
  for (auto& future : futures) EXPECT_TRUE(error_of([&] { std::move(future).get(); }));
}

// The two layers of a module are on one device each.
TEST_F(NegotiatedOnDevices, AnOptimizerHasParametersOnSeveralDevices) {
  struct Layers : torch::nn::Module {
    explicit Layers(const std::vector<c10::Device>& devices) {
      auto generator = at::detail::createCPUGenerator(1);
      first = register_parameter("first", at::randn({5, 7}, generator, at::kDouble).to(devices[0]));
      last = register_parameter("last", at::randn({7, 3}, generator, at::kDouble).to(devices[1]));
    }
    at::Tensor loss(const Batch& batch) {
      const at::Tensor hidden = torch::tanh(batch.data.to(first.device()).mm(first));
      const at::Tensor difference = hidden.to(last.device()).mm(last) - batch.target.to(last.device());
      return (difference * difference).mean();
    }
    at::Tensor first, last;
  };
  Layers alone({at::kCPU, at::kCPU});
  torch::optim::SGD own(alone.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    own.zero_grad();
    alone.loss(Batch::of_step(step, ranks)).backward();
    own.step();
  }
  on_all([&](const std::shared_ptr<NegotiatedReduction>& reduction, int rank) {
    Layers layers(devices_of(rank));
    torch::optim::SGD sgd(layers.parameters(), 0.1);
    AllReduceOptimizer optimizer(reduction, sgd, layers, {.groups = {{"first", "last"}}});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      layers.loss(Batch::of_step(step, ranks).part(rank, ranks)).backward();
      optimizer.step();
    }
    expect_close({layers.first.detach().cpu(), layers.last.detach().cpu()},
                 {alone.first.detach(), alone.last.detach()});
  });
}

}  // namespace
}  // namespace weft::data_parallel::negotiated_devices_test
