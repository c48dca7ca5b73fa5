// Two stages on two workers; activations travel from worker to worker, never through the driver.
//
// As it is, it starts a driver and the two workers on this machine; where weft launch, torchrun, mpirun or
// srun start it, it is one of them. --alone trains the same network in one process, without weft: the losses
// are the same.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/rpc/membership/run_job.h>
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include <CLI/CLI.hpp>

#include "rref_pipeline/stages.h"
#include "rref_pipeline/task.h"

using namespace weft;

namespace {

constexpr std::int64_t width = 64, front_seed = 1, back_seed = 2;
constexpr std::int64_t micro_batches = 8, micro_batch_size = 16;
constexpr double learning_rate = 0.5;

void report(std::int64_t step, double loss) {
  if (step % 20 == 0) fmt::print("step={} loss={:.6f}\n", step, loss);
}

rpc::Task<void> train(rpc::Agent& agent, std::int64_t steps) {
  auto front =
      rref::create<Front>(agent.peer("worker1"), width, front_seed);  // at once; creation runs meanwhile
  auto back = rref::create<Back>(agent.peer("worker2"), width, back_seed);
  dist_optim::DistributedOptimizer optimizer{agent, torch::optim::SGDOptions(learning_rate),
                                             dist_optim::synchronous, front, back};
  const auto share = at::scalar_tensor(1.0 / micro_batches);  // of each micro-batch in the gradient

  Fibonacci data;
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<dist_autograd::Pass> passes;
    std::vector<rpc::Future<void>> done;
    for (auto& [tokens, targets] : data.next(micro_batches, micro_batch_size)) {  // in flight together
      auto& pass = passes.emplace_back(agent);
      auto hidden = front.remote<&Front::forward>(pass, tokens);  // RRef<Tensor> on worker1
      auto loss =
          back.remote<&Back::loss>(pass, hidden, targets);  // an RRef for a Tensor: worker1 -> worker2
      done.push_back(pass.backward(loss, share));           // the root lives on worker2
    }
    co_await rpc::when_all(std::move(done));
    co_await optimizer.step(passes);
    report(step, co_await back.call<&Back::mean_loss>());
  }
}

void train_alone(std::int64_t steps) {
  Front front{width, front_seed};
  Back back{width, back_seed};
  std::vector<at::Tensor> parameters = front.parameters();
  for (auto& parameter : back.parameters()) parameters.push_back(parameter);
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(learning_rate));

  Fibonacci data;
  for (std::int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (auto& [tokens, targets] : data.next(micro_batches, micro_batch_size))
      (back.loss(front.forward(tokens), targets) / micro_batches).backward();
    optimizer.step();
    report(step, back.mean_loss());
  }
}

void run(rpc::Job& job, std::int64_t steps) {
  job.agent().allow_create<Front>();
  job.agent().allow_create<Back>();
  job.join().get();
  if (job.rank() == 0) job.agent().run(train(job.agent(), steps));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Trains a network whose two stages are held by remote references on two workers."};
  std::int64_t steps = 201;
  bool alone = false;
  app.add_option("--steps", steps)->capture_default_str();
  app.add_flag("--alone", alone, "in this process, without weft");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  if (alone) {
    train_alone(steps);
    return 0;
  }
  return rpc::run_job(argc, argv, dist_optim::layers(), [&](rpc::Job& job) { run(job, steps); },
                      {.processes = 3});
}
