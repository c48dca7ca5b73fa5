// Several trainers learn the topics of documents. The words' embeddings are one large table on a server:
// lookups go there, sparse gradients come back to it, and its optimizer steps the few rows that they are of.
// The dense head is small: each trainer has a copy and steps it itself, with the mean of all trainers'
// gradients, so the copies stay equal.
//
// As it is, it starts the server and the trainers on this machine; where weft launch, torchrun, mpirun or
// srun start it, it is one of them.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/rpc/agent/job_place.h>
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include <CLI/CLI.hpp>

#include "hybrid_embedding/documents.h"
#include "hybrid_embedding/server.h"
#include "support/launcher.h"

using namespace weft;

namespace {

constexpr std::int64_t width = 32, batch = 64;

struct Settings {
  std::int64_t trainers = 2, steps = 200;
};

rpc::Task<void> train(rpc::Agent& agent, Settings settings, rref::RRef<Table> table, torch::nn::Linear head) {
  auto meeting = rref::create<Meeting>(agent.peer("worker0"), rref::Named{"meeting"}, settings.trainers);
  // Free: trainers step the table as they come. Its backward reads no row, and two seldom meet at one.
  dist_optim::DistributedOptimizer sparse{agent, torch::optim::AdagradOptions(0.3), dist_optim::hogwild,
                                          table};
  torch::optim::Adam dense(head->parameters(), torch::optim::AdamOptions(1e-2));

  for (std::int64_t step = 0; step < settings.steps; ++step) {
    auto [words, topic] = some_documents(batch);
    dist_autograd::Pass pass{agent};
    auto features = co_await table.call<&Table::lookup>(pass, words);
    auto loss = torch::cross_entropy_loss(head(features), topic);
    co_await pass.backward(loss);

    auto stepped = sparse.step(pass);  // while the heads' gradients are averaged
    std::vector<at::Tensor> gradients;
    for (auto& parameter : head->parameters()) gradients.push_back(pass.gradient(parameter));
    gradients = co_await meeting.call<&Meeting::mean>(gradients);
    for (std::size_t i = 0; i < gradients.size(); ++i) head->parameters()[i].mutable_grad() = gradients[i];
    dense.step();
    co_await std::move(stepped);

    if (step % 10 != 0) continue;
    fmt::print("trainer{} step={} loss={:.3f}\n", agent.rank(), step, loss.item().toDouble());
    std::fflush(stdout);
  }
}

// Of documents that nobody has seen. Without a pass, features come without a graph.
rpc::Task<double> evaluate(rref::RRef<Table> table, torch::nn::Linear head) {
  auto [words, topic] = some_documents(1000);
  auto features = co_await table.call<&Table::lookup>(words);
  co_return torch::cross_entropy_loss(head(features), topic).item().toDouble();
}

rpc::Task<void> learn(rpc::Agent& agent, Settings settings) {
  auto table = rref::create<Table>(agent.peer("worker0"), rref::Named{"table"}, vocabulary, width, 1);
  torch::manual_seed(2);  // the same head on every trainer
  torch::nn::Linear head(width, topics);
  torch::manual_seed(100 + agent.rank());  // but documents of its own
  co_await train(agent, settings, table, head);
  const double loss = co_await evaluate(table, head);
  fmt::print("trainer{} unseen={:.3f} head={:.9g}\n", agent.rank(), loss,
             head->weight.norm().item().toDouble());
}

int run_role(const Settings& settings) {
  std::string name = "hybrid_embedding";
  try {
    const rpc::AgentOptions options = rpc::from_environment();
    name = options.name;
    rpc::Agent agent{options, dist_optim::layers()};
    agent.allow_create<Table>();
    agent.allow_create<Meeting>();
    agent.wait_for(agent.world_size()).get();
    if (agent.rank() == 0) return agent.serve_until_shutdown();

    agent.run(learn(agent, settings));
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
  CLI::App app{"Trains a sparse embedding table on a server with a dense head on every trainer."};
  app.add_option("--trainers", settings.trainers)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--steps", settings.steps)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  if (rpc::started_by()) return run_role(settings);
  examples::Launch job{.names = {"server"}, .arguments = {argv + 1, argv + argc}};
  for (std::int64_t i = 1; i <= settings.trainers; ++i) job.names.push_back("trainer" + std::to_string(i));
  return examples::launch(job);
}
