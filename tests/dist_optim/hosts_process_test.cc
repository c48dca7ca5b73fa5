// Training between two hosts continues while their network fails: connections are reset, and the cable is
// disconnected for a while. The final parameters equal those of one process.
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/rref/rref.h>

#include <thread>

#include "tests/dist_optim/step_support.h"
#include "tests/support/two_hosts.h"

namespace weft::dist_optim::hosts_process_test {
namespace {

using namespace std::chrono_literals;
using step_support::Layer;
using step_support::numbers;
using test::got;
using test::TwoHosts;

constexpr int steps = 120;
constexpr double learning_rate = 0.1;

rpc::AgentOptions options(const std::string& name, const char* address) {
  rpc::AgentOptions options;
  options.name = name;
  options.listen = {address};
  options.insecure = true;  // this process also controls the other host
  options.heartbeat = {.interval = 1s, .timeout = 30s};
  options.log = [](const rpc::LogRecord&) {};
  return options;
}

std::string serve_layers() {
  auto* agent = new rpc::Agent(options("server", TwoHosts::there_address), layers());
  agent->allow_create<Layer>();
  return agent->addresses().front();
}

at::Tensor loss_of(const at::Tensor& output, int step) {
  return (output - numbers({4, 4}, step)).square().mean();
}

std::vector<at::Tensor> trained_here() {
  Layer layer(1);
  torch::optim::SGD optimizer(layer.parameters(), torch::optim::SGDOptions(learning_rate));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(layer.forward(numbers({4, 4}, step + 0.5)), step).backward();
    optimizer.step();
  }
  return layer.values();
}

// `trouble` runs between two steps.
std::vector<at::Tensor> trained_there(rpc::Agent& agent, const std::string& address,
                                      const std::function<void(int)>& trouble) {
  const rpc::Peer server = agent.connect(address);
  got(server.ready());
  auto layer = rref::create<Layer>(server, std::int64_t{1});
  DistributedOptimizer optimizer{agent, torch::optim::SGDOptions(learning_rate), synchronous, layer};
  for (int step = 0; step < steps; ++step) {
    dist_autograd::Pass pass(agent);
    const at::Tensor output = got(layer.call<&Layer::forward>(pass, numbers({4, 4}, step + 0.5)));
    trouble(step);
    got(pass.backward(loss_of(output, step)));
    EXPECT_TRUE(got(optimizer.step(pass)).applied) << step;
  }
  return got(layer.call<&Layer::values>());
}

TEST(TrainingOnTwoHosts, ContinuesThroughResetsAndAPulledCable) {
  TwoHosts hosts(serve_layers);
  if (!hosts.missing().empty()) GTEST_SKIP() << hosts.missing();
  rpc::Agent agent(options("trainer", TwoHosts::here_address), layers());
  int resets = 0;
  std::thread repair;
  const auto trained = trained_there(agent, hosts.said(), [&](int step) {
    if (step % 10 == 5) resets += TwoHosts::reset_connections() ? 1 : 0;
    if (step != 60) return;
    ASSERT_TRUE(hosts.there("ip link set weft1 down"));
    // The test measures the time during which the cable is disconnected.
    repair = std::thread([&] {
      std::this_thread::sleep_for(5s);
      EXPECT_TRUE(hosts.there("ip link set weft1 up"));
    });
  });
  if (repair.joinable()) repair.join();
  if (resets == 0) GTEST_SKIP() << "`ss -K` is missing, or the kernel cannot end connections";
  EXPECT_EQ(resets, 12);
  const auto expected = trained_here();
  ASSERT_EQ(trained.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::allclose(trained[i], expected[i], 1e-12, 1e-14)) << i;
  EXPECT_GE(agent.counts().connections_made, 12U);
}

}  // namespace
}  // namespace weft::dist_optim::hosts_process_test
