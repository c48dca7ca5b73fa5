// Training in float16 with a loss scale that adapts. The scale keeps small gradients from becoming 0. If it
// is too large, gradients become infinite: the step is skipped, and the scale is halved. Each of the two
// ranks has a part of the gradients. One rank alone may have infinite gradients, but both ranks must skip the
// same steps.
//
//   grad_scaler     starts the two ranks on this machine
#include <torch/torch.h>
#include <weft/dist_optim/grad_scaler.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>
#include <weft/parallel/training/unscale.h>
#include <weft/rpc/job/run_job.h>

#include <cstdio>

using namespace weft;

void train(rpc::Agent& agent) {
  const auto group = collectives::Group::create(agent).get();
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  const sharded::Options options{
      .mixed_precision = {.parameters = at::kHalf}};  // computes and reduces in float16
  sharded::FullyShardedDataParallel fsdp{group, model, options};
  torch::optim::Adam optimizer(fsdp.parameters(), 1e-2);  // float32, of this rank's part
  dist_optim::GradScaler scaler({.init_scale = 1 << 24, .growth_interval = 10});

  torch::manual_seed(100 + static_cast<std::uint64_t>(group.rank()));  // other samples on each rank
  int skipped = 0, skipped_for_other = 0;
  double recent = 0;
  for (int step = 0; step < 200; ++step) {
    const at::Tensor inputs = torch::randn({32, 8}), targets = inputs.mean(1, true);
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(fsdp.forward(inputs).to(at::kFloat), targets);
    scaler.scale(loss).backward();
    bool finite_here = true;
    for (const at::Tensor& part : fsdp.parameters())
      finite_here = finite_here && part.grad().isfinite().all().item().toBool();

    const bool finite = training::unscale_gradients(group, optimizer, scaler.factor());  // on all ranks
    if (finite) optimizer.step();
    scaler.update(finite);
    skipped += finite ? 0 : 1;
    skipped_for_other += finite_here && !finite ? 1 : 0;
    recent += 0.05 * (loss.item().toDouble() - recent);
  }
  std::printf("rank %d: loss %.4f, scale %g, %d steps skipped, %d of them for the other rank's gradients\n",
              group.rank(), recent, scaler.factor(), skipped, skipped_for_other);
}

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return rpc::run_job(argc, argv, {collectives::layer()}, train, {.processes = 2});
}
