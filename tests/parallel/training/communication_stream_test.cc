// Reductions on devices: an accelerator and NCCL, both fake, two ranks of one process.
#include <weft/parallel/training/communication_stream.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/pass.h>
#include <weft/parallel/data_parallel/hooks/communication_hook.h>
#include <weft/rpc/trace/tracer.h>
#include <weft/rref/rref.h>

#include "tests/parallel/collectives/nccl/fake_devices.h"
#include "tests/parallel/data_parallel/ranks.h"

namespace weft::training::communication_stream_test {
namespace {

using namespace data_parallel;
using namespace data_parallel::testing;
using test::FakeAccelerator;

// LibTorch's engine starts a thread for each device that it finds at the first backward of the process.
[[maybe_unused]] const FakeAccelerator& accelerator_of_the_engine = FakeAccelerator::install();

constexpr int ranks = 2;

// Module::to() cannot move a module to a device of PrivateUse1.
struct Layers : torch::nn::Module {
  explicit Layers(c10::Device device) {
    auto generator = at::detail::createCPUGenerator(1);
    const auto make = [&](const char* name, std::int64_t in, std::int64_t out) {
      return register_parameter(name, at::randn({in, out}, generator, at::kDouble).to(device));
    };
    first = make("first", 5, 7), middle = make("middle", 7, 7), last = make("last", 7, 3);
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::tanh(torch::tanh(x.mm(first)).mm(middle)).mm(last);
  }
  at::Tensor first, middle, last;
};

at::Tensor sum_of_squares(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor difference = output - target;
  return (difference * difference).mean();
}

class OnDevices : public ::testing::Test, protected collectives::testing::FakeDevices {
 protected:
  OnDevices() : FakeDevices(ranks) {}
  void TearDown() override { company.reset(); }

  // Runs f(group, agent) for each rank in a thread, while the devices work.
  template <class F>
  void on_all(F f) {
    work_on_ranks(groups, [&](const Group& group) { f(group, company->agent(group.rank())); });
  }
  static std::vector<at::Tensor> on_cpu(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> values;
    for (const at::Tensor& tensor : tensors) values.push_back(tensor.detach().cpu());
    return values;
  }
  static std::vector<at::Tensor> doubled_gradients_alone() {
    Layers net(at::kCPU);
    const Batch all = Batch::of_step(0, ranks);
    sum_of_squares(net.forward(all.data), all.target).backward();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : net.parameters()) gradients.push_back(parameter.grad() * 2);
    return gradients;
  }

  const std::shared_ptr<rpc::Tracer> tracer = std::make_shared<rpc::Tracer>();  // of rank 1
  std::unique_ptr<Company> company = std::make_unique<Company>(
      ranks, Backend::memory, std::make_unique<test::InProcessJobStore>(), [this](int) { return devices(); },
      nullptr,
      [this](int rank) {
        rpc::Layers layers = dist_autograd::layers();
        if (rank == 1) layers.push_back(tracer->layer());
        return layers;
      });
  std::vector<Group> groups = company->groups({.timeout = std::chrono::seconds(10)});
};

// Tensors that a stream writes later, and a job on another stream that reads them.
class Streams : public ::testing::Test {
 protected:
  c10::Stream pooled() const { return guard.getStreamFromGlobalPool(device); }
  at::Tensor written_later(const c10::Stream& stream, double value) {
    const c10::StreamGuard on(stream);
    const at::Tensor tensor = at::empty({1}, at::device(device));
    accelerator.fill_later(tensor, value);
    communication.note_writer();
    return tensor;
  }
  // Reads the values on the communication stream.
  std::vector<float> read(const std::vector<at::Tensor>& tensors) {
    std::vector<float> values;
    const c10::Stream stream = communication.run([&] {
      accelerator.launch(device, [&] {
        for (const at::Tensor& tensor : tensors) values.push_back(*tensor.const_data_ptr<float>());
      });
      return accelerator.current(device);
    });
    accelerator.wait(stream);
    return values;
  }

  FakeAccelerator& accelerator = FakeAccelerator::install();
  const c10::Device device = FakeAccelerator::device(0);
  const c10::impl::VirtualGuardImpl guard{FakeAccelerator::type};
  CommunicationStream communication{device};
};

TEST_F(Streams, CollectivesWaitForAllWriters) {
  const c10::Stream a = pooled(), b = pooled();
  const std::vector<at::Tensor> tensors{written_later(a, 1), written_later(b, 2), written_later(a, 3)};
  communication.follow_writers();
  EXPECT_EQ(read(tensors), (std::vector<float>{1, 2, 3}));
}

TEST_F(Streams, OtherStreamsContinueDuringACollective) {
  const c10::Stream a = pooled();
  (void)written_later(a, 1);
  communication.follow_writers();
  const at::Tensor later = written_later(a, 2);
  read({});
  EXPECT_EQ(accelerator.pending(a), 1U);  // this work was added after follow_writers()
  accelerator.wait(a);
  EXPECT_EQ(later.cpu().item<float>(), 2);
}

TEST_F(Streams, OfTheCpuHaveNoEffect) {
  CommunicationStream none{at::kCPU};
  none.note_writer();
  none.follow_writers();
  EXPECT_EQ(none.run([] { return 3; }), 3);
}

TEST_F(Streams, ReadersWaitForCollectives) {
  const c10::Stream reader = pooled();
  const at::Tensor tensor = at::empty({1}, at::device(device));
  communication.run([&] { accelerator.fill_later(tensor, 4); });
  const c10::StreamGuard on(reader);
  communication.begin_reads();
  communication.synchronize_current();
  EXPECT_EQ(*tensor.const_data_ptr<float>(), 4);
}

// Doubles the averages in a second step, when a thread waits for it, and notes the streams of all steps.
struct Doubles : CommunicationHook {
  Doubles(c10::Device on, std::atomic<bool>& idle) : device(on), device_is_idle(idle) {}
  std::optional<rpc::Future<void>> run(const Group& group, GradientBucket& bucket, int step) override {
    streams.push_back(FakeAccelerator::install().current(device));
    if (step == 0) return all_reduce_average(group, bucket.buffer);
    device_is_idle = true;
    FakeAccelerator::install().launch(device, [buffer = bucket.buffer] {
      auto* values = static_cast<double*>(buffer.data_ptr());
      std::transform(values, values + buffer.numel(), values, [](double value) { return 2 * value; });
    });
    return std::nullopt;
  }
  const c10::Device device;
  std::atomic<bool>& device_is_idle;
  std::vector<c10::Stream> streams;
};

TEST_F(OnDevices, BackwardAveragesTheGradients) {
  on_all([&](const Group& group, rpc::Agent&) {
    const c10::Device device = this->device(group.rank());
    const auto net = std::make_shared<Layers>(device);
    DistributedDataParallel ddp{group, net};
    const auto hook = std::make_shared<Doubles>(device, idle[static_cast<std::size_t>(group.rank())]);
    ddp.set_hook(hook);
    for (int step = 0; step < 3; ++step) {
      for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
      const Batch batch = Batch::of_step(0, ranks).part(group.rank(), ranks);
      sum_of_squares(ddp.forward(batch.data.to(device)), batch.target.to(device)).backward();
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
      expect_close(on_cpu(gradients), doubled_gradients_alone());
      hook->device_is_idle = false;
    }
    EXPECT_EQ(hook->streams.size(), 6U);
    for (const c10::Stream& stream : hook->streams) EXPECT_EQ(stream, hook->streams.front());
    EXPECT_NE(hook->streams.front(), accelerator.current(device));
  });
}

TEST_F(OnDevices, APassAveragesItsGradients) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    const c10::Device device = this->device(group.rank());
    const auto net = std::make_shared<Layers>(device);
    DistributedDataParallel ddp{group, net};
    const auto hook = std::make_shared<Doubles>(device, idle[static_cast<std::size_t>(group.rank())]);
    ddp.set_hook(hook);
    const Batch batch = Batch::of_step(0, ranks).part(group.rank(), ranks);
    dist_autograd::Pass pass{agent};
    const at::Tensor loss = sum_of_squares(ddp.forward(pass, batch.data.to(device)), batch.target.to(device));
    pass.backward(loss).get();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : net->parameters()) gradients.push_back(pass.gradient(parameter));
    expect_close(on_cpu(gradients), doubled_gradients_alone());
    hook->device_is_idle = false;
    for (const c10::Stream& stream : hook->streams) EXPECT_NE(stream, accelerator.current(device));
  });
}

// Each step uses another stream, which executes work only while a thread waits for it.
TEST_F(OnDevices, ForwardAndBackwardMayRunOnOtherStreams) {
  on_all([&](const Group& group, rpc::Agent&) {
    const c10::Device device = this->device(group.rank());
    const auto net = std::make_shared<Layers>(device);
    DistributedDataParallel ddp{group, net};
    const auto hook = std::make_shared<Doubles>(device, idle[static_cast<std::size_t>(group.rank())]);
    ddp.set_hook(hook);
    for (int step = 0; step < 3; ++step) {
      const c10::StreamGuard on(c10::Stream(c10::Stream::UNSAFE, device, FakeAccelerator::pooled + 1 + step));
      for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
      const Batch batch = Batch::of_step(0, ranks).part(group.rank(), ranks);
      sum_of_squares(ddp.forward(batch.data.to(device)), batch.target.to(device)).backward();
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
      expect_close(on_cpu(gradients), doubled_gradients_alone());
      hook->device_is_idle = false;
    }
  });
}

// backward() returns when the device has reduced all buckets, so the host's clock can measure it.
TEST_F(OnDevices, AnIterationHasItsDurationsAndSpans) {
  on_all([&](const Group& group, rpc::Agent&) {
    const c10::Device device = this->device(group.rank());
    const auto net = std::make_shared<Layers>(device);
    DistributedDataParallel ddp{group, net};
    const Batch batch = Batch::of_step(0, ranks).part(group.rank(), ranks);
    sum_of_squares(ddp.forward(batch.data.to(device)), batch.target.to(device)).backward();
    const IterationStats last = ddp.last();
    ASSERT_EQ(last.buckets.size(), 1U);
    EXPECT_GT(last.forward.count(), 0);
    EXPECT_GT(last.backward.count(), 0);
    EXPECT_GT(last.buckets[0].launched.count(), 0);
    EXPECT_GT(last.buckets[0].reduced, last.buckets[0].launched);
    EXPECT_LE(last.buckets[0].reduced, last.backward + last.waited);
    EXPECT_EQ(last.buckets[0].dtype, "Double");
  });
  std::size_t buckets = 0;
  for (const rpc::Span& span : tracer->take().spans) {
    if (span.name != "bucket 0") continue;
    ++buckets;
    EXPECT_EQ(span.notes.at("dtype"), "Double");
    EXPECT_GE(std::stoul(span.notes.at("bytes")), (5 * 7 + 7 * 7 + 7 * 3) * sizeof(double));
  }
  EXPECT_EQ(buckets, 1U);
}

// A layer on the host of rank 0's agent, which the passes of all ranks call.
struct OnHost {
  explicit OnHost(at::Tensor initial) : w(initial.clone().set_requires_grad(true)) {}
  at::Tensor forward(at::Tensor x) { return torch::tanh(x.mm(w)); }
  at::Tensor gradient(rpc::CallContext& call, dist_autograd::PassId pass) {
    return dist_autograd::AutogradLayer::of(*call.host())->find(pass)->gradient(w);
  }
  using Service =
      rpc::Service<"test.on_host", rpc::Constructor<at::Tensor>, rpc::Method<"forward", &OnHost::forward>,
                   rpc::Method<"gradient", &OnHost::gradient>>;
  at::Tensor w;
};

// Remote layers on the host alternate with replicas on devices: host, device, host, device.
TEST_F(OnDevices, RemoteLayersOfTheHostAndReplicasAlternate) {
  company->agent(0).allow_create<OnHost>();
  struct One : torch::nn::Module {
    explicit One(const at::Tensor& initial) { w = register_parameter("w", initial); }
    at::Tensor forward(const at::Tensor& x) { return torch::tanh(x.mm(w)); }
    at::Tensor w;
  };
  const auto weight = [](std::int64_t in, std::int64_t out) {
    return at::linspace(-1, 1, in * out, at::kDouble).view({in, out});
  };
  const at::Tensor sizes[] = {weight(5, 4), weight(4, 7), weight(7, 6), weight(6, 3)};
  on_all([&](const Group& group, rpc::Agent& agent) {
    const c10::Device device = this->device(group.rank());
    const auto first = rref::create<OnHost>(agent.peer("worker0"), sizes[0]),
               third = rref::create<OnHost>(agent.peer("worker0"), sizes[2]);
    const auto second = std::make_shared<One>(sizes[1].to(device)),
               last = std::make_shared<One>(sizes[3].to(device));
    DistributedDataParallel second_ddp{group, second}, last_ddp{group, last};
    const Batch batch = Batch::of_step(0, ranks).part(group.rank(), ranks);
    dist_autograd::Pass pass{agent};
    at::Tensor x = first.call<&OnHost::forward>(pass, batch.data).get();
    x = second_ddp.forward(pass, x.to(device)).cpu();
    x = third.call<&OnHost::forward>(pass, x).get();
    x = last_ddp.forward(pass, x.to(device));
    pass.backward(sum_of_squares(x, batch.target.to(device))).get();
    // In one process: the replicas have the average over the ranks, the remote layers the gradients of a
    // pass.
    std::vector<at::Tensor> averages(2);
    for (int rank = 0; rank < ranks; ++rank) {
      const Batch part = Batch::of_step(0, ranks).part(rank, ranks);
      std::vector<at::Tensor> weights;
      at::Tensor y = part.data;
      for (const at::Tensor& size : sizes) {
        weights.push_back(size.clone().set_requires_grad(true));
        y = torch::tanh(y.mm(weights.back()));
      }
      sum_of_squares(y, part.target).backward();
      for (const std::size_t i : {0, 1}) {
        const at::Tensor share = weights[2 * i + 1].grad() / ranks;
        averages[i] = rank == 0 ? share : averages[i] + share;
      }
      if (rank != group.rank()) continue;
      expect_close(
          {first.call<&OnHost::gradient>(pass.id()).get(), third.call<&OnHost::gradient>(pass.id()).get()},
          {weights[0].grad(), weights[2].grad()});
    }
    expect_close({pass.gradient(second->w).cpu(), pass.gradient(last->w).cpu()}, averages);
  });
}

}  // namespace
}  // namespace weft::training::communication_stream_test
