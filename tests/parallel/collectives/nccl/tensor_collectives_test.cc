#include <weft/parallel/collectives/nccl/internal/tensor_collectives.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "tests/parallel/collectives/nccl/ranks.h"
#include "tests/parallel/collectives/nccl/tensor_calls.h"
#include "tests/support/fake_accelerator.h"

namespace weft::collectives::nccl::testing {
namespace tensor_collectives_test {

using test::FakeAccelerator;
using Tensors = TensorCollectives::Tensors;

constexpr int size = 3;

// Ranks with a device each, whose streams execute nothing until the test waits for them.
class NcclTensors : public Ranks {
 protected:
  void SetUp() override {
    nccl.enqueue = [this](Stream stream, FakeNccl::Job job) {
      const c10::Stream on = FakeAccelerator::stream_of(stream);
      const c10::StreamGuard guard(on);
      accelerator.launch(on.device(), std::move(job));
    };
    for (int rank = 0; rank < size; ++rank)
      device(rank) = device_of(FakeAccelerator::device(rank), api(), loop, background);
    make(size);
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back(comms[std::size_t(rank)], FakeAccelerator::device(rank), capture);
  }
  void TearDown() override {
    wait();
    ranks.clear();
    Ranks::TearDown();
  }
  void wait() {  // for all work on all streams
    for (int rank = 0; rank < size; ++rank)
      for (c10::StreamId id = 0; id <= FakeAccelerator::pooled; ++id)
        accelerator.wait(c10::Stream(c10::Stream::UNSAFE, FakeAccelerator::device(rank), id));
  }

  static at::Tensor tensor(int rank, std::vector<float> values) {
    return torch::tensor(values).to(FakeAccelerator::device(rank));
  }
  static at::Tensor empty(int rank, std::int64_t n) {
    return tensor(rank, std::vector<float>(std::size_t(n)));
  }
  static std::vector<float> values(const at::Tensor& tensor) {
    const at::Tensor host = tensor.cpu();
    return {host.data_ptr<float>(), host.data_ptr<float>() + host.numel()};
  }
  void all(const std::function<rpc::Future<void>(int, TensorCalls&)>& f) {
    std::vector<rpc::Future<void>> done;
    for (int rank = 0; rank < size; ++rank) done.push_back(f(rank, ranks[std::size_t(rank)]));
    wait();
    for (auto& one : done) got(one);
  }

  FakeAccelerator& accelerator = FakeAccelerator::install();
  StreamCapture capture;
  std::vector<TensorCalls> ranks;
};

using Floats = std::vector<float>;

TEST_F(NcclTensors, TensorsAreKeptUntilTheEnd) {
  at::Tensor one = empty(0, 2);
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage(one.storage().getWeakStorageImpl());
  auto done = ranks[0].all_reduce(one);
  one = at::Tensor();
  settle();
  EXPECT_FALSE(storage.expired());
  all([&](int rank, TensorCalls& it) {
    return rank == 0 ? rpc::Future<void>::made({}) : it.all_reduce(empty(rank, 2));
  });
  got(done);
}

// A tensor is kept until its event occurs. Only a graph needs the allocator, because the launch of a graph
// keeps no tensor.
TEST_F(NcclTensors, TheAllocatorIsNotifiedOfTheStreamOnlyDuringAGraphCapture) {
  const std::size_t before = accelerator.recorded_uses();
  all([&](int rank, TensorCalls& it) { return it.all_reduce(empty(rank, 2)); });
  EXPECT_EQ(accelerator.recorded_uses(), before);
  capture.captures = [](Stream) { return true; };
  Tensors in_the_graph;
  all([&](int rank, TensorCalls&) {
    TensorCalls capturing(comms[std::size_t(rank)], FakeAccelerator::device(rank), capture);
    return capturing.all_reduce(in_the_graph.emplace_back(empty(rank, 2)));
  });
  EXPECT_EQ(accelerator.recorded_uses(), before + size);
}

TEST_F(NcclTensors, EventsAndCapturesAreQueriedWithTheDeviceSet) {
  const std::size_t before = accelerator.queries_without_the_device();
  std::vector<c10::Device> current;
  capture.captures = [&](Stream) {
    current.push_back(c10::impl::VirtualGuardImpl(FakeAccelerator::type).getDevice());
    return false;
  };
  Tensors tensors;
  all([&](int rank, TensorCalls&) {
    TensorCalls it(comms[std::size_t(rank)], FakeAccelerator::device(rank), capture);
    return it.all_reduce(tensors.emplace_back(empty(rank, 2)));
  });
  EXPECT_EQ(accelerator.queries_without_the_device(), before);
  for (int rank = 0; rank < size; ++rank)
    EXPECT_EQ(current[std::size_t(rank)], FakeAccelerator::device(rank));
}

TEST_F(NcclTensors, ConnectDoesNotBlockAndTakesNoTurn) {
  for (int rank = 0; rank < size; ++rank) nccl.faults(rank).launch_polls = 5;
  std::vector<rpc::Future<void>> connecting;
  for (const TensorCalls& one : ranks) connecting.push_back(one.connect());
  EXPECT_TRUE(device(0).order->reserve().is_mine());
  wait();
  for (auto& one : connecting) EXPECT_FALSE(one.ready());
  for (auto& one : connecting) got(one);
  for (int rank = 0; rank < size; ++rank)
    EXPECT_EQ(nccl.calls(rank), std::vector<std::string>{"all_reduce 1"});
}

// Conformance has the collectives. These reductions are computed by NCCL.
TEST_F(NcclTensors, ReductionsOfNccl) {
  std::vector<at::Tensor> t(size), parts;
  const auto fill = [&] {
    for (int rank = 0; rank < size; ++rank)
      t[std::size_t(rank)] = tensor(rank, {1.0F + float(rank), 2.0F + float(rank), 3.0F + float(rank)});
  };
  const auto in = [&](int rank) { return t[std::size_t(rank)]; };
  fill();
  all([&](int rank, auto& it) { return it.all_reduce(in(rank), ReduceOp::premul_sum(2)); });
  EXPECT_EQ(values(t[1]), (Floats{12, 18, 24}));
  fill();
  all([&](int rank, auto& it) { return it.reduce(in(rank), 2, ReduceOp::min); });
  EXPECT_EQ(values(t[2]), (Floats{1, 2, 3}));
  EXPECT_EQ(values(t[1]), (Floats{2, 3, 4}));
  fill();
  for (int rank = 0; rank < size; ++rank) parts.push_back(empty(rank, 1));
  all([&](int rank, auto& it) {
    const auto part = [&](int of) { return in(rank).narrow(0, of, 1); };
    return it.reduce_scatter_v(parts[std::size_t(rank)], {part(0), part(1), part(2)}, ReduceOp::max);
  });
  EXPECT_EQ(values(parts[2]), (Floats{5}));
  fill();
  all([&](int rank, auto& it) {
    return it.reduce_scatter(parts[std::size_t(rank)], in(rank), ReduceOp::avg);
  });
  EXPECT_EQ(values(parts[2]), (Floats{4}));
}

TEST_F(NcclTensors, InvalidArgumentsAreRefusedBeforeTheLaunch) {
  const auto here = empty(0, 6);
  const auto refused = [&](const std::function<rpc::Future<void>(TensorCalls&)>& f) {
    return kind_of([&] { return f(ranks[0]).valid(); });
  };
  const auto invalid = ErrorKind::invalid_argument;
  EXPECT_EQ(refused([&](auto& it) { return it.all_reduce(empty(1, 6)); }), invalid);
  EXPECT_EQ(refused([&](auto& it) { return it.all_reduce(torch::ones(6)); }), invalid);
  EXPECT_EQ(refused([&](auto& it) { return it.all_reduce(here.view({2, 3}).as_strided({3, 2}, {1, 3})); }),
            invalid);
  EXPECT_EQ(refused([&](auto& it) { return it.all_reduce(here, ReduceOp::bit_or); }), ErrorKind::unsupported);
  const auto complex = torch::ones({2}, at::kComplexFloat).to(FakeAccelerator::device(0));
  EXPECT_EQ(refused([&](auto& it) { return it.all_reduce(complex.conj()); }), ErrorKind::unsupported);
  EXPECT_EQ(refused([&](auto& it) { return it.broadcast(at::_neg_view(here), 0); }), ErrorKind::unsupported);
  EXPECT_TRUE(nccl.calls(0).empty());
  EXPECT_EQ(test::message_of([&] { return ranks[0].broadcast(empty(1, 6), 0).valid(); }),
            "NCCL: broadcast float32[6]: the tensor is on " + FakeAccelerator::device(1).str() +
                ", expected the communicator's device, " + FakeAccelerator::device(0).str());
}

TEST_F(NcclTensors, AMissingIndexIsThatOfTheCurrentDevice) {
  const c10::DeviceGuard guard(FakeAccelerator::device(2));
  EXPECT_EQ(existing(c10::Device(FakeAccelerator::type)), FakeAccelerator::device(2));
  EXPECT_EQ(existing(FakeAccelerator::device(3)), FakeAccelerator::device(3));
  EXPECT_EQ(test::message_of([] { return existing(FakeAccelerator::device(4)); }),
            "there is no fake:4: this process has 4 devices of this type");
  EXPECT_EQ(kind_of([] { return existing(c10::Device(c10::kXLA, 0)); }), ErrorKind::unsupported);
}

TEST_F(NcclTensors, ACapturedStreamIsNotWatched) {
  capture.captures = [](Stream stream) { return FakeAccelerator::stream_of(stream).id() == 5; };
  TensorCalls capturing(comms[0], FakeAccelerator::device(0), capture);
  const auto one = empty(0, 2);
  {
    const c10::StreamGuard guard(c10::Stream(c10::Stream::UNSAFE, FakeAccelerator::device(0), 5));
    EXPECT_TRUE(capturing.all_reduce(one).ready());
  }
  all([&](int rank, auto& it) {
    return rank == 0 ? capturing.all_reduce(one) : it.all_reduce(empty(rank, 2));
  });
  all([&](int rank, auto& it) {
    return rank == 0 ? rpc::Future<void>::made({}) : it.all_reduce(empty(rank, 2));
  });
}

TEST_F(NcclTensors, EventsAreQueriedInAModeThatAllowsGraphCapture) {
  std::vector<int> modes;
  int mode = 0;
  capture.exchange = [&](int& given) {
    std::swap(mode, given);
    modes.push_back(mode);
  };
  TensorCalls it(comms[0], FakeAccelerator::device(0), capture);
  auto done = it.all_reduce(empty(0, 2));
  loop->turn();
  EXPECT_EQ(modes, (std::vector<int>{2, 0}));
  all([&](int rank, auto& other) {
    return rank == 0 ? rpc::Future<void>::made({}) : other.all_reduce(empty(rank, 2));
  });
  got(done);
}

}  // namespace tensor_collectives_test
}  // namespace weft::collectives::nccl::testing
