// One server answers many clients, its network running once for many requests. Each client has many requests
// under way, and compares every answer with what it computes itself.
//
// As it is, it starts the server and its clients on this machine; where weft launch, torchrun, mpirun or srun
// start it, it is one of them. The idea is in batcher.h.
#include "batched_server/batcher.h"

#include <fmt/format.h>
#include <weft/rpc/agent/job_place.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <CLI/CLI.hpp>

#include "support/launcher.h"

using namespace weft;

namespace {

constexpr std::int64_t features = 64, classes = 10;

struct Settings {
  std::int64_t clients = 4, requests = 100;  // of each client
  std::int64_t max_rows = 64, window = 2000;
};

torch::nn::Sequential network() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(features, 256), torch::nn::ReLU(),
                               torch::nn::Linear(256, classes));
}

class Classifier {
 public:
  explicit Classifier(const Settings& settings)
      : batcher_([network = network()](at::Tensor rows) mutable { return network->forward(rows); },
                 {settings.max_rows, std::chrono::microseconds{settings.window}}) {}

  // [N, features] -> [N, classes]. A future: no thread waits for the forward.
  rpc::Future<at::Tensor> classify(at::Tensor rows) {
    if (rows.dim() != 2 || rows.size(1) != features || rows.scalar_type() != at::kFloat)
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "rows of 64 floats are classified here");
    return batcher_.run(std::move(rows));
  }
  Batcher::Counts counts() const { return batcher_.counts(); }

  using Service = rpc::Service<"classifier", rpc::Method<"classify", &Classifier::classify>>;

 private:
  Batcher batcher_;
};

int serve(rpc::Agent& agent, const Settings& settings) {
  auto classifier = std::make_shared<Classifier>(settings);
  agent.serve(classifier);
  agent.wait_for(agent.world_size()).get();
  agent.serve_until_shutdown();
  const auto counts = classifier->counts();
  fmt::print("requests={} forwards={} largest={}\n", counts.requests, counts.forwards, counts.largest);
  return 0;
}

rpc::Task<void> ask(rpc::Agent& agent, std::int64_t requests) {
  const rpc::Peer server = agent.peer("worker0");
  torch::manual_seed(100 + agent.rank());
  std::vector<at::Tensor> questions;
  std::vector<rpc::Future<at::Tensor>> under_way;
  for (std::int64_t i = 0; i < requests; ++i) {
    questions.push_back(torch::randn({1 + i % 4, features}));
    under_way.push_back(server.call<&Classifier::classify>(questions.back()));
  }
  const auto answers = co_await rpc::when_all(std::move(under_way));

  torch::NoGradGuard no_grad;
  auto own = network();
  std::size_t right = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto expected = own->forward(questions[i]);
    right += answers[i].sizes() == expected.sizes() && answers[i].allclose(expected, 1e-4, 1e-5) ? 1 : 0;
  }
  fmt::print("client{} answers={} right={}\n", agent.rank(), answers.size(), right);
}

int run_role(const Settings& settings) {
  std::string name = "batched_server";
  try {
    const rpc::AgentOptions options = rpc::from_environment();
    name = options.name;
    rpc::Agent agent{options, tensor::layers()};
    if (agent.rank() == 0) return serve(agent, settings);

    agent.wait_for(agent.world_size()).get();
    agent.run(ask(agent, settings.requests));
    agent.leave().get();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Serves a network to many clients, with one forward for many requests."};
  app.add_option("--clients", settings.clients)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--requests", settings.requests, "of each client, all under way at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-rows", settings.max_rows, "of one forward")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--window", settings.window, "microseconds that a request waits for others, at most")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  if (rpc::started_by()) return run_role(settings);
  examples::Launch job{.names = {"server"}, .arguments = {argv + 1, argv + argc}};
  for (std::int64_t i = 1; i <= settings.clients; ++i) job.names.push_back("client" + std::to_string(i));
  return examples::launch(job);
}
