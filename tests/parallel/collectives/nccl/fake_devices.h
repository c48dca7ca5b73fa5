// FakeDevices: a fake accelerator and a fake NCCL for groups of one process, with one device for each rank.
// The devices execute work only when the test calls work_until().
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "tests/parallel/collectives/company.h"
#include "tests/support/fake_accelerator.h"
#include "tests/support/fake_nccl.h"

namespace weft::collectives::testing {

class FakeDevices {
 public:
  using FakeAccelerator = test::FakeAccelerator;
  using FakeNccl = test::FakeNccl;
  explicit FakeDevices(int ranks) : ranks_(ranks) {
    nccl.enqueue = [this](nccl::Stream stream, FakeNccl::Job job) {
      const c10::Stream on = FakeAccelerator::stream_of(stream);
      const c10::StreamGuard guard(on);
      accelerator.launch(on.device(), std::move(job));
    };
    accelerator.set_pending_work(
        [this](const c10::Stream& stream) { return nccl.mark(FakeAccelerator::handle(stream)); });
  }
  // Call it once the groups and their agents have ended. Threads of their devices may still use NCCL for a
  // moment. They hold `api` until they end.
  ~FakeDevices() {
    for (int rank = 0; rank < ranks_; ++rank)  // remaining jobs would use this NCCL
      for (c10::StreamId id = 0; id <= FakeAccelerator::pooled; ++id)
        accelerator.wait(c10::Stream(c10::Stream::UNSAFE, device(rank), id));
    const auto until = rpc::Clock::now() + test::too_long;
    while (api.use_count() != 1 && rpc::Clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(api.use_count(), 1) << "the threads of an agent's devices have not ended";
    EXPECT_EQ(nccl.alive(), 0U) << "communicators are neither closed nor aborted";
    accelerator.set_pending_work(nullptr);
    EXPECT_EQ(nccl.misuse(), std::vector<std::string>{});
  }
  FakeDevices(const FakeDevices&) = delete;
  FakeDevices& operator=(const FakeDevices&) = delete;

  // absent: NCCL cannot be loaded.
  nccl::DevicesOptions devices(bool absent = false) {
    nccl::DevicesOptions options;
    options.load = [this, absent] {
      ++loads;
      if (absent) throw rpc::Error(ErrorKind::unsupported, "no libnccl");
      return api;
    };
    options.capture = [] { return nccl::StreamCapture{}; };
    return options;
  }
  static c10::Device device(int rank) { return FakeAccelerator::device(rank); }
  // The tensor is kept, because NCCL may still write to it after the last handle of the test is gone.
  at::Tensor on_device(int rank, const at::Tensor& values) {
    const at::Tensor there = values.to(device(rank));
    std::lock_guard lock(mutex);
    return kept.emplace_back(there);
  }
  // Runs the devices until over() is true, unless devices_work is false.
  void work_until(const std::function<bool()>& over) {
    while (!over()) {
      for (int rank = 0; rank < ranks_ && devices_work; ++rank)
        for (c10::StreamId id = 0; id <= FakeAccelerator::pooled && !idle[static_cast<std::size_t>(rank)];
             ++id)
          accelerator.advance(c10::Stream(c10::Stream::UNSAFE, device(rank), id));
      std::this_thread::yield();
    }
  }
  // Runs f(group) for each rank in a thread, while the devices work.
  void work_on_ranks(const std::vector<Group>& groups, RankBody f) {
    std::atomic<bool> over{false};
    std::thread running([&] {
      EXPECT_NO_THROW(on_ranks(groups, f));
      over = true;
    });
    work_until([&] { return over.load(); });
    running.join();
  }
  // Runs body(group, device) for each rank of a new group, in a thread each, and expects no errors. The
  // devices execute work on all streams except the default ones, and also on these until `made` has the value
  // `making`.
  template <class F>
  void run_on_devices(const std::atomic<int>& made, int making, F body, bool has_nccl = true) {
    std::atomic<int> running = ranks_;
    Company company(ranks_, Backend::messages, std::make_unique<test::InProcessJobStore>(),
                    [&](int) { return devices(!has_nccl); });
    const auto groups = company.groups();
    std::vector<std::thread> threads;
    for (const Group& group : groups)
      threads.emplace_back([&] {
        const auto error = error_of([&] { body(group, device(group.rank())); });
        EXPECT_FALSE(error) << error->what();
        --running;
      });
    while (running > 0) {
      for (int rank = 0; rank < ranks_; ++rank)
        for (c10::StreamId id = made < making ? 0 : 1; id <= FakeAccelerator::pooled; ++id)
          accelerator.advance(c10::Stream(c10::Stream::UNSAFE, device(rank), id));
      std::this_thread::yield();
    }
    for (auto& thread : threads) thread.join();
  }
  void work_until_ready(const Futures& futures) {
    work_until([&] {
      return std::all_of(futures.begin(), futures.end(), [](const auto& future) { return future.ready(); });
    });
  }

  FakeAccelerator& accelerator = FakeAccelerator::install();
  bool devices_work = true;
  // By rank: the rank's device executes work only while a thread waits for a stream.
  std::array<std::atomic<bool>, FakeAccelerator::devices> idle{};
  std::atomic<int> loads{0};
  FakeNccl nccl;
  std::shared_ptr<const nccl::Api> api = nccl.api();

 private:
  const int ranks_;
  std::mutex mutex;  // guards what follows
  Tensors kept;
};

}  // namespace weft::collectives::testing
