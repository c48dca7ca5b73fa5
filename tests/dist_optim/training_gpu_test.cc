// Training of parameters on a GPU by calls: RRefs, passes, remote modules and optimizers. The tests are
// skipped if LibTorch's CUDA libraries or a GPU are missing.
#include <weft/dist_autograd/module/remote_module.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include "tests/dist_optim/step_support.h"

namespace weft::dist_optim::training_gpu_test {
namespace {

using namespace step_support;

const char* const gpu = "cuda:0";

// Products that take longer on the device than the host needs to continue.
at::Tensor slow(at::Tensor x) {
  for (int i = 0; i < 100; ++i) x = x + x.mm(x).clamp(0, 0);
  return x;
}
at::Tensor slow_sum(at::Tensor a, at::Tensor b) { return slow(a) + slow(b); }
using SlowSum = rpc::Function<"gpu.slow_sum", &slow_sum>;

// A matrix on the GPU. Its calls take and return tensors of the GPU.
struct Weight : torch::nn::Module {
  explicit Weight(at::Tensor initial) { w = register_parameter("w", initial.to(gpu)); }
  at::Tensor w;
  at::Tensor forward(at::Tensor x) { return slow(x).mm(w).tanh(); }
  at::Tensor value() { return w.detach().clone(); }
  using Service =
      rpc::Service<"gpu.weight", rpc::Constructor<at::Tensor>, rpc::Method<"forward", &Weight::forward>,
                   rpc::Method<"value", &Weight::value>>;
};

class TrainingOnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) GTEST_SKIP() << dlerror();
    if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA) ||
        c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() == 0)
      GTEST_SKIP() << "no GPU";
    tensor::DeviceOptions devices;
    for (const char* name : {"worker0", "worker1", "worker2"}) devices.map(name, {{gpu, gpu}});
    for (int i = 0; i < 3; ++i) {
      rpc::AgentOptions options{.name = "worker" + std::to_string(i), .handler_threads = 3};
      options.listen = {"inproc://" + options.name};
      options.in_process = network;
      options.log = [](const rpc::LogRecord&) {};
      auto& agent = agents.emplace_back(std::make_unique<rpc::Agent>(std::move(options), layers(devices)));
      agent->allow_create<Weight>();
      agent->allow_create<Layer>();
      agent->serve<SlowSum>();
    }
    for (const auto& a : agents)
      for (const auto& b : agents) {
        a->core()->routes().to_name(b->name(), {"inproc://" + b->name()});
        got(a->peer(b->name()).ready());
      }
  }
  rpc::Peer peer(int from, int to) { return agents[std::size_t(from)]->peer("worker" + std::to_string(to)); }
  rpc::Agent& agent(int i) { return *agents[std::size_t(i)]; }
  static at::Tensor matrix(double phase) { return numbers({64, 64}, phase).to(gpu); }

  std::shared_ptr<rpc::InProcess> network = std::make_shared<rpc::InProcess>();
  std::vector<std::unique_ptr<rpc::Agent>> agents;
};

TEST_F(TrainingOnAGpu, RemoteResultsAreFetchedAfterTheirKernels) {
  const at::Tensor a = at::rand({1000, 1000}).to(gpu), b = at::rand({1000, 1000}).to(gpu);
  for (int i = 0; i < 5; ++i) {
    const auto kept = rref::remote<SlowSum>(peer(0, 1), a, b);
    const auto further = rref::remote<SlowSum>(peer(0, 2), kept, a);  // worker2 fetches it
    const at::Tensor sum = got(further.to_here());
    EXPECT_EQ(sum.device().str(), gpu);
    EXPECT_TRUE(at::equal(sum, a + b + a));
  }
}

TEST_F(TrainingOnAGpu, APassHasLibTorchsGradients) {
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const auto first = rref::create<Weight>(peer(0, 1), numbers({64, 64}, 1));
  const auto second = rref::create<Weight>(peer(0, 2), numbers({64, 64}, 2));
  const at::Tensor x = matrix(3).set_requires_grad(true), y = matrix(3).set_requires_grad(true);
  const at::Tensor w1 = matrix(1).set_requires_grad(true), w2 = matrix(2).set_requires_grad(true);
  (slow(slow(y).mm(w1).tanh()).mm(w2).tanh() * slow(y)).sum().backward();
  for (int i = 0; i < 5; ++i) {
    const c10::StreamGuard on(cuda.getStreamFromGlobalPool(c10::Device(gpu)));
    dist_autograd::Pass pass{agent(0)};
    const at::Tensor middle = got(first.call<&Weight::forward>(pass, x));
    const at::Tensor last = got(second.call<&Weight::forward>(pass, middle));
    got(pass.backward((last * slow(x)).sum()));
    EXPECT_TRUE(at::allclose(pass.gradient(x), y.grad(), 1e-10, 1e-10));
    const auto theirs = got(dist_autograd::RemoteModule{first}.gradients(pass));
    ASSERT_EQ(theirs.size(), 1U);
    EXPECT_TRUE(at::allclose(theirs[0].tensor.to(gpu), w1.grad(), 1e-10, 1e-10));
  }
}

template <class Options, class Oracle>
void equals_libtorch(rpc::Agent& trainer, const rpc::Peer& owner, const Options& options) {
  const auto weight = rref::create<Weight>(owner, numbers({64, 64}, 1));
  DistributedOptimizer optimizer{trainer, options, synchronous, weight};
  const at::Tensor w = numbers({64, 64}, 1).to(gpu).set_requires_grad(true);
  Oracle oracle({w}, options);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor x = numbers({64, 64}, i).to(gpu);
    dist_autograd::Pass pass{trainer};
    got(pass.backward(got(weight.call<&Weight::forward>(pass, x)).square().sum()));
    got(optimizer.step(pass));
    oracle.zero_grad();
    slow(x).mm(w).tanh().square().sum().backward();
    oracle.step();
  }
  EXPECT_TRUE(at::allclose(got(weight.call<&Weight::value>()), w.detach(), 1e-8, 1e-8));
}

TEST_F(TrainingOnAGpu, OptimizersEqualLibTorchs) {
  equals_libtorch<torch::optim::SGDOptions, torch::optim::SGD>(
      agent(0), peer(0, 1), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.01));
  equals_libtorch<torch::optim::AdamOptions, torch::optim::Adam>(agent(0), peer(0, 1),
                                                                 torch::optim::AdamOptions(0.01));
  equals_libtorch<torch::optim::AdamWOptions, torch::optim::AdamW>(agent(0), peer(0, 1),
                                                                   torch::optim::AdamWOptions(0.01));
}

TEST_F(TrainingOnAGpu, AModuleMovesToTheGpu) {
  const auto layer = rref::create<Layer>(peer(0, 1), 5);
  const dist_autograd::RemoteModule module{layer};
  got(module.to(gpu));
  DistributedOptimizer optimizer{agent(0), torch::optim::SGDOptions(0.1), synchronous, layer};
  Layer oracle(5);
  torch::optim::SGD sgd(oracle.parameters(), 0.1);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = numbers({3, 4}, i);
    dist_autograd::Pass pass{agent(0)};
    const at::Tensor output = got(layer.call<&Layer::forward>(pass, x.to(gpu)));
    EXPECT_EQ(output.device().str(), gpu);
    got(pass.backward(output.square().sum()));
    got(optimizer.step(pass));
    sgd.zero_grad();
    oracle.forward(x).square().sum().backward();
    sgd.step();
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& value : got(layer.call<&Layer::values>())) values.push_back(value.cpu());
  const auto expected = oracle.values();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_TRUE(at::allclose(values[i], expected[i], 1e-10, 1e-10));
}

TEST_F(TrainingOnAGpu, InfiniteGradientsAreNotApplied) {
  const auto weight = rref::create<Weight>(peer(0, 1), numbers({64, 64}, 1));
  DistributedOptimizer optimizer{agent(0), torch::optim::SGDOptions(0.1), synchronous, weight};
  for (const double factor : {1., std::numeric_limits<double>::infinity()}) {
    dist_autograd::Pass pass{agent(0)};
    got(pass.backward(got(weight.call<&Weight::forward>(pass, matrix(2))).sum() * factor));
    StepOptions options;
    options.loss_scale = 1;
    EXPECT_EQ(got(optimizer.step(pass, options)).applied, factor == 1);
  }
}

}  // namespace
}  // namespace weft::dist_optim::training_gpu_test
