// Data parallel training. Without a launcher the program starts two ranks on this machine. Under a launcher
// it is one of the ranks.
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/rpc/job/run_job.h>

#include <cstdio>

using namespace weft;

void train(rpc::Agent& agent) {
  auto group = collectives::Group::create(agent).get();  // all ranks of the job
  torch::nn::Linear model(3, 1);
  data_parallel::DistributedDataParallel ddp{group, model};  // starts with the parameters of rank 0
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::manual_seed(static_cast<std::uint64_t>(group.rank()));  // other samples on each rank
  for (int step = 0; step < 200; ++step) {
    const at::Tensor inputs = torch::randn({64, 3}), targets = inputs.sum(1, true);
    optimizer.zero_grad();
    torch::mse_loss(ddp.forward(inputs), targets).backward();  // averages the gradients of all ranks
    optimizer.step();
  }
  std::printf("rank %d: the sum of the weights is %.4f\n", group.rank(),
              model->weight.sum().item().toDouble());
}

int main(int argc, char** argv) {
  return rpc::run_job(argc, argv, {collectives::layer()}, train, {.processes = 2});
}
