// Several trainers learn the topics of documents. The embeddings of the words are one large table on a
// server: the trainers look rows up there, the backward sends sparse gradients back, and the server's
// optimizer steps the few rows that have a gradient. The dense head is small: each trainer has a copy of it.
// An all-reduce averages the gradients of the copies, so the copies stay equal.
//
// Without a launcher the program starts the server and the trainers on this machine. Under weft launch,
// torchrun, mpirun or srun the program is one of these processes.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include <CLI/CLI.hpp>

#include "hybrid_embedding/documents.h"

using namespace weft;

namespace {

constexpr std::int64_t width = 32, batch = 64;

struct Settings {
  std::int64_t trainers = 2, steps = 200;
};

// A lookup reads a few rows, and its gradient has only these rows.
struct Table : torch::nn::Module {
  explicit Table(std::int64_t seed) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    const auto options = torch::nn::EmbeddingBagOptions(vocabulary, width).mode(torch::kMean).sparse(true);
    rows = register_module("rows", torch::nn::EmbeddingBag(options));
  }
  // int64 [N, words of a document] -> the mean of each document's rows, [N, width]
  at::Tensor lookup(at::Tensor words) { return rows(words); }

  torch::nn::EmbeddingBag rows{nullptr};
  using Service =
      rpc::Service<"table", rpc::Constructor<std::int64_t>, rpc::Method<"lookup", &Table::lookup>>;
};

rpc::Task<void> train(rpc::Job& job, Settings settings, rref::RRef<Table> table, torch::nn::Linear head) {
  rpc::Agent& agent = job.agent();
  collectives::GroupOptions options{.name = "trainers"};
  for (int trainer = 1; trainer <= settings.trainers; ++trainer)
    options.members.push_back("worker" + std::to_string(trainer));
  const auto trainers = co_await collectives::Group::create(agent, options);
  // hogwild: the trainers step the table without waiting for each other. They seldom step the same row.
  dist_optim::DistributedOptimizer sparse{agent, torch::optim::AdagradOptions(0.3), dist_optim::hogwild,
                                          table};
  torch::optim::Adam dense(head->parameters(), torch::optim::AdamOptions(1e-2));

  for (std::int64_t step = 0; step < settings.steps; ++step) {
    auto [words, topic] = some_documents(batch);
    dist_autograd::Pass pass{agent};
    auto features = co_await table.call<&Table::lookup>(pass, words);
    auto loss = torch::cross_entropy_loss(head(features), topic);
    co_await pass.backward(loss);

    auto stepped = sparse.step(pass);  // on the server, while the trainers average the gradients of the heads
    std::vector<at::Tensor> gradients;
    for (auto& parameter : head->parameters())
      gradients.push_back(parameter.mutable_grad() = pass.gradient(parameter));
    co_await trainers.all_reduce(gradients, collectives::ReduceOp::avg);
    dense.step();
    co_await std::move(stepped);

    if (step % 10 == 0)
      fmt::print("trainer{} step={} loss={:.3f}\n", job.rank(), step, loss.item().toDouble());
  }
}

// The loss of documents that no trainer has seen. Without a pass the call records no graph.
rpc::Task<double> evaluate(rref::RRef<Table> table, torch::nn::Linear head) {
  auto [words, topic] = some_documents(1000);
  auto features = co_await table.call<&Table::lookup>(words);
  co_return torch::cross_entropy_loss(head(features), topic).item().toDouble();
}

rpc::Task<void> run(rpc::Job& job, Settings settings) {
  job.agent().allow_create<Table>();
  co_await job.join();
  if (job.rank() == 0) co_return;  // the server serves the trainers until they have finished

  auto table = rref::create<Table>(job.agent().peer("worker0"), rref::Named{"table"}, 1);  // one for all
  torch::manual_seed(2);  // the seed of the heads, which start with equal values
  torch::nn::Linear head(width, topics);
  torch::manual_seed(100 + job.rank());  // the seed of the documents, which differ between trainers
  co_await train(job, settings, table, head);
  const double loss = co_await evaluate(table, head);
  fmt::print("trainer{} unseen={:.3f} head={:.9g}\n", job.rank(), loss,
             head->weight.norm().item().toDouble());
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Trains a sparse embedding table on a server with a dense head on every trainer."};
  app.add_option("--trainers", settings.trainers)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--steps", settings.steps)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  auto layers = dist_optim::layers();
  layers.push_back(collectives::layer());
  return rpc::run_job(argc, argv, layers, [&](rpc::Job& job) { return run(job, settings); },
                      {.processes = static_cast<std::size_t>(settings.trainers) + 1});
}
