// Four ranks as a mesh of 2 x 2. The ranks of a `data` group have different rows of each batch, and those of
// a `tensor` group have different parts of each layer. The losses are equal to those of one process.
//
//   device_mesh          starts four ranks on this machine
//   device_mesh -n 1     starts one rank; -n 2 starts a mesh of 1 x 2 ranks
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/tensor_parallel/linear.h>
#include <weft/rpc/job/run_job.h>

#include <algorithm>
#include <cstdio>
#include <vector>

using namespace weft;

void train(rpc::Agent& agent) {
  const auto world = collectives::Group::create(agent).get();
  const int tensor_ranks = std::min(2, world.size());
  const std::vector<collectives::DeviceMesh::Dimension> dimensions{{"data", world.size() / tensor_ranks},
                                                                   {"tensor", tensor_ranks}};
  const auto mesh = collectives::DeviceMesh::create(world, dimensions).get();
  const collectives::Group &data = mesh.group("data"), &tensor = mesh.group("tensor");

  torch::manual_seed(1);  // all ranks draw the same weights, and each keeps its part of them
  tensor_parallel::ColumnParallelLinear up(tensor, 8, 32);
  torch::nn::Sequential model(up, torch::nn::Tanh(), tensor_parallel::RowParallelLinear(tensor, 32, 1));
  data_parallel::DistributedDataParallel ddp{data, model};  // averages the gradients over the `data` group
  torch::optim::Adam optimizer(model->parameters(), 1e-2);
  std::printf("rank %d: data %d, tensor %d, has %lld of the 32 hidden features\n", world.rank(),
              mesh.coordinate("data"), mesh.coordinate("tensor"), static_cast<long long>(up->weight.size(0)));

  for (int step = 0; step < 50; ++step) {
    const at::Tensor batch = torch::randn({64, 8});  // the same on all ranks
    const at::Tensor rows = batch.chunk(data.size())[static_cast<std::size_t>(data.rank())];
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(ddp.forward(rows), rows.mean(1, true));
    loss.backward();
    optimizer.step();

    const at::Tensor mean = loss.detach();  // over the rows of all ranks
    data.all_reduce(mean, collectives::ReduceOp::avg).get();
    if (step % 10 == 9 && world.rank() == 0)
      std::printf("step %d: loss %.6f\n", step + 1, mean.item().toDouble());
  }
}

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return rpc::run_job(argc, argv, {collectives::layer()}, train, {.processes = 4});
}
