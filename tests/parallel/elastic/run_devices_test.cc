// Training on devices, over a FakeNccl: agents of one process, a device each.
#include <weft/parallel/elastic/run.h>

#include <torch/torch.h>

#include <memory>
#include <thread>

#include "tests/parallel/collectives/nccl/fake_devices.h"
#include "tests/parallel/elastic/training.h"

namespace weft::elastic {
namespace run_devices_test {

using namespace testing;
using collectives::testing::FakeDevices;

// A worker that adds up the values of all ranks on its device.
struct DeviceWorker {
  DeviceWorker(const test::JobStore& store, FakeDevices& devices, const std::string& name, int place)
      : job(worker_options(store, name, static_cast<std::size_t>(place)), layers(devices)),
        fake(devices),
        number(place) {}
  static rpc::Layers layers(FakeDevices& devices) {
    rpc::Layers layers = tensor::layers();
    layers.push_back(collectives::layer(devices.devices()));
    return layers;
  }
  void start(const RunOptions& options) {
    thread = std::thread([this, options] {
      try {
        State state;
        state.add("step", step).add("sums", sums);
        run(job, state, [&](const Group& group) { train(group, state); }, options);
      } catch (...) {
        error = std::current_exception();
      }
      over = true;
    });
  }
  // Returns whether two steps with three workers have followed the death of a worker. A ready worker joins at
  // one of the next commits, not necessarily at the first one.
  bool is_done() const {
    const auto of_three = [this](std::size_t i) { return sums[i] == 3 * static_cast<double>(i + 1); };
    return sums.size() >= 8 && of_three(sums.size() - 1) && of_three(sums.size() - 2);
  }
  void train(const Group& group, State& state) {
    for (; !is_done(); state.commit()) {
      if (before_step) before_step(group);
      const at::Tensor value = fake.on_device(number, at::full({4}, 1.0F + static_cast<float>(step)));
      group.all_reduce(value).get();
      sums.push_back(value.cpu()[3].item<double>());
      ++step;
    }
  }

  rpc::Job job;
  rpc::Agent& agent = job.agent();
  FakeDevices& fake;
  const int number;
  std::int64_t step = 0;
  std::vector<double> sums;
  std::function<void(const Group&)> before_step;
  std::exception_ptr error;
  std::atomic<bool> over = false;
  std::thread thread;
};

// A worker dies while the devices of the others compute with it: their communicators are aborted, and the
// next group makes new ones. Then a worker joins.
TEST(ElasticRunOnDevices, CommunicatorsShrinkAndGrow) {
  FakeDevices devices(4);
  test::InProcessJobStore store;
  std::vector<std::unique_ptr<DeviceWorker>> workers;
  for (const std::string name : {"anna", "bert", "cleo", "dora"})
    workers.push_back(std::make_unique<DeviceWorker>(store, devices, name, static_cast<int>(workers.size())));
  DeviceWorker &anna = *workers[0], &bert = *workers[1], &dora = *workers[3];
  bert.before_step = [&](const Group&) {
    if (bert.step == 3) die(bert.agent);
  };
  anna.before_step = [&](const Group& group) {
    if (anna.step != 5 || group.size() != 2 || dora.thread.joinable()) return;
    dora.start({});
    await_ready(anna.job, "dora");
  };
  for (const int first : {0, 1, 2}) workers[first]->start({.workers = {.min = 2, .start = 3}});
  devices.work_until(
      [&] { return anna.over && bert.over && workers[2]->over && (dora.over || !dora.thread.joinable()); });
  for (auto& each : workers)
    if (each->thread.joinable()) each->thread.join();
  EXPECT_THROW(std::rethrow_exception(bert.error), Died);
  for (const int other : {0, 2, 3}) {
    EXPECT_FALSE(workers[other]->error);
    std::vector<double> sums{3, 6, 9, 8, 10, 12};
    while (sums.size() + 2 < anna.sums.size()) sums.push_back(2 * static_cast<double>(sums.size() + 1));
    while (sums.size() < anna.sums.size()) sums.push_back(3 * static_cast<double>(sums.size() + 1));
    EXPECT_EQ(workers[other]->sums, sums) << other;
  }
  while (workers.size() > 1) workers.pop_back();  // the first one keeps the store
}

}  // namespace run_devices_test
}  // namespace weft::elastic
