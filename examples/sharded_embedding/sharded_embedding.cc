// A table of embeddings that two processes own and two other processes train. Each user and each item has a
// row. The product of two rows predicts how the user rates the item. Each trainer has the ratings of half of
// the users.
//
//   sharded_embedding     starts the owners (ranks 0 and 1) and the trainers (ranks 2 and 3) on this machine
#include <torch/torch.h>
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/embedding/sharded_embedding.h>
#include <weft/dist_optim/layers.h>
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>

#include <cstdio>

using namespace weft;

constexpr std::int64_t users = 200, items = 100;  // the row of item i has the id users + i

// Ratings from -1 to 1, the same on all ranks. Rows of two numbers are enough to predict them.
at::Tensor ratings_of(const at::Tensor& user, const at::Tensor& item) { return (0.7 * (user + item)).cos(); }

rpc::Task<void> train(rpc::Agent& agent, dist_optim::ShardedEmbedding table, std::int64_t trainer) {
  for (int step = 0; step < 300; ++step) {
    const at::Tensor user = torch::randint(users / 2, {256}, at::kLong) * 2 + trainer;
    const at::Tensor item = torch::randint(items, {256}, at::kLong);
    const at::Tensor ids = at::stack({user, users + item});
    dist_autograd::Pass pass{agent};
    const at::Tensor rows = co_await table.lookup(pass, ids);  // [2, 256, dimension], from both owners
    const at::Tensor loss = torch::mse_loss((rows[0] * rows[1]).sum(-1), ratings_of(user, item));
    co_await pass.backward(loss);
    co_await table.step(pass);  // each owner steps its rows, with its optimizer state of each row
  }
}

// The mean squared error over all users and items. read() records no gradient.
rpc::Task<double> error_of(dist_optim::ShardedEmbedding table) {
  const at::Tensor user = at::arange(users), item = at::arange(items);
  const at::Tensor rows = co_await table.read(at::arange(users + items));
  const at::Tensor predicted = rows.slice(0, 0, users).matmul(rows.slice(0, users).t());
  co_return torch::mse_loss(predicted, ratings_of(user.unsqueeze(1), item)).item().toDouble();
}

rpc::Task<void> run(rpc::Job& job) {
  rpc::Agent& agent = job.agent();
  agent.allow_create<dist_optim::EmbeddingShard>();
  co_await job.join();
  if (job.rank() < 2) {
    co_await job.barrier();
    co_return;  // an owner serves the trainers until they have finished
  }

  torch::manual_seed(job.rank());
  const dist_optim::EmbeddingOptions options{.dimension = 8,
                                             .optimizer = dist_optim::RowOptimizer::adagrad(0.1)};
  const std::vector<rpc::Peer> owners{agent.peer("worker0"), agent.peer("worker1")};
  // Both trainers pass the same name, so they train the same rows.
  dist_optim::ShardedEmbedding table{agent, options, owners, "ratings"};
  co_await train(agent, table, job.rank() == 2 ? 0 : 1);
  co_await job.barrier();  // both trainers have finished their training
  if (job.rank() == 3) co_return;
  for (const dist_optim::ShardStats& shard : co_await table.stats())
    std::printf("worker%u has %llu rows\n", shard.index, static_cast<unsigned long long>(shard.rows));
  std::printf("the mean squared error is %.4f\n", co_await error_of(table));
}

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return rpc::run_job(argc, argv, dist_optim::layers(), run, {.processes = 4});
}
