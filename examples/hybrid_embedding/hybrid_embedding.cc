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
#include <weft/rpc/membership/run_job.h>
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include <CLI/CLI.hpp>

#include "hybrid_embedding/documents.h"
#include "hybrid_embedding/server.h"

using namespace weft;

namespace {

constexpr std::int64_t width = 32, batch = 64;

struct Settings {
  std::int64_t trainers = 2, steps = 200;
};

rpc::Task<void> train(rpc::Job& job, Settings settings, rref::RRef<Table> table, torch::nn::Linear head) {
  rpc::Agent& agent = job.agent();
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
    fmt::print("trainer{} step={} loss={:.3f}\n", job.rank(), step, loss.item().toDouble());
  }
}

// Of documents that nobody has seen. Without a pass, features come without a graph.
rpc::Task<double> evaluate(rref::RRef<Table> table, torch::nn::Linear head) {
  auto [words, topic] = some_documents(1000);
  auto features = co_await table.call<&Table::lookup>(words);
  co_return torch::cross_entropy_loss(head(features), topic).item().toDouble();
}

rpc::Task<void> learn(rpc::Job& job, Settings settings) {
  auto table = rref::create<Table>(job.agent().peer("worker0"), rref::Named{"table"}, vocabulary, width, 1);
  torch::manual_seed(2);  // the same head on every trainer
  torch::nn::Linear head(width, topics);
  torch::manual_seed(100 + job.rank());  // but each rank has other documents
  co_await train(job, settings, table, head);
  const double loss = co_await evaluate(table, head);
  fmt::print("trainer{} unseen={:.3f} head={:.9g}\n", job.rank(), loss,
             head->weight.norm().item().toDouble());
}

void run(rpc::Job& job, const Settings& settings) {
  job.agent().allow_create<Table>();
  job.agent().allow_create<Meeting>();
  job.join().get();
  if (job.rank() > 0) job.agent().run(learn(job, settings));
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Trains a sparse embedding table on a server with a dense head on every trainer."};
  app.add_option("--trainers", settings.trainers)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--steps", settings.steps)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  const auto processes = static_cast<std::size_t>(settings.trainers) + 1;
  return rpc::run_job(argc, argv, dist_optim::layers(), [&](rpc::Job& job) { run(job, settings); },
                      {.processes = processes});
}
