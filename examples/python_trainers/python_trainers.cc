// A parameter server whose trainers are Python programs: rank 0 of a job, and of the default process group of
// the trainers (trainer.py). The server keeps the parameters of a linear model, sends them to all trainers,
// and applies the mean of their gradients.
//
//   export WEFT_STORE=tcp://127.0.0.1:29600 WORLD_SIZE=3
//   RANK=0 python_trainers & RANK=1 python trainer.py & RANK=2 python trainer.py
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>

#include <cstdio>

using namespace weft;

namespace {

constexpr int steps = 50;  // as in trainer.py
constexpr double learning_rate = 0.1;

rpc::Task<void> serve(rpc::Job& job) {
  co_await job.join();
  const collectives::GroupOptions options{.checks = collectives::Checks::relaxed};  // as PyTorch's groups
  const auto group = co_await collectives::Group::create(job.agent(), options);
  const std::vector<at::Tensor> parameters = {at::zeros({1, 10}), at::zeros({1})};
  for (int step = 0; step < steps; ++step) {
    for (const at::Tensor& parameter : parameters) co_await group.broadcast(parameter, 0);
    for (const at::Tensor& parameter : parameters) {
      const at::Tensor sum = at::zeros_like(parameter);
      co_await group.reduce(sum, 0);
      parameter.sub_(sum, learning_rate / (group.size() - 1));
    }
  }
  std::printf("the model differs from the true one by at most %.3f\n",
              (parameters[0] - 1).abs().max().item<double>());
}

}  // namespace

int main(int argc, char** argv) { return rpc::run_job(argc, argv, {collectives::layer()}, serve); }
