// A model in two stages on two workers. Activations are sent from worker to worker, never through the driver.
//
// Without a launcher the program starts a driver and the two workers on this machine. Under weft launch,
// torchrun, mpirun or srun the program is one of these processes. The driver draws the last step. --alone
// trains the same network in one process, without weft: the losses are the same.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/dist_autograd/backward_trace.h>
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/tensor/operator_trace.h>
#include <weft/rpc/trace/tracer.h>
#include <weft/rref/rref.h>

#include <CLI/CLI.hpp>

#include <fstream>

#include "fashion_mnist/progress.h"
#include "rref_pipeline/stages.h"
#include "rref_pipeline/task.h"
#include "rref_pipeline/timeline.h"

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
      rref::create<Front>(agent.peer("worker1"), width, front_seed);  // returns before the object exists
  auto back = rref::create<Back>(agent.peer("worker2"), width, back_seed);
  dist_optim::DistributedOptimizer optimizer{agent, torch::optim::SGDOptions(learning_rate),
                                             dist_optim::synchronous, front, back};
  const auto share = at::scalar_tensor(1.0 / micro_batches);  // weight of a micro-batch in the gradient

  Fibonacci data;
  Progress progress("driver", steps * micro_batches * micro_batch_size, "numbers");
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<dist_autograd::Pass> passes;
    std::vector<rpc::Future<void>> done;
    for (auto& [tokens, targets] : data.next(micro_batches, micro_batch_size)) {  // in flight together
      const rpc::TraceContext trace = trace_of(passes.size(), step + 1 == steps);
      const rpc::Under traced(trace);
      auto& pass = passes.emplace_back(agent);
      pass.trace_under(trace);
      auto hidden = front.remote<&Front::forward>(pass, traced, tokens);  // RRef<Tensor> on worker1
      // An RRef is passed for an argument of type Tensor. The tensor is sent from worker1 to worker2.
      auto loss = back.remote<&Back::loss>(pass, traced, hidden, targets);
      done.push_back(pass.backward(loss, share));  // from the loss on worker2
    }
    co_await rpc::when_all(std::move(done));
    co_await optimizer.step(passes);
    const double loss = co_await back.call<&Back::mean_loss>();
    report(step, loss);
    progress.advance(micro_batches * micro_batch_size, loss);
  }
  progress.finish();
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

void run(rpc::Job& job, std::int64_t steps, const std::string& svg) {
  rpc::Agent& agent = job.agent();
  agent.allow_create<Front>();
  agent.allow_create<Back>();
  job.join().get();
  if (job.rank() != 0) return;
  agent.run(train(agent, steps));
  std::ofstream(svg) << timeline_svg(
      {rpc::collect_spans(agent.peer("worker1")), rpc::collect_spans(agent.peer("worker2"))},
      "measured: the last step");
  fmt::print("the last step is drawn in {}\n", svg);
}

// Layers with a tracer that records only the traces that trace_of() samples, with their backwards and named
// blocks.
rpc::Layers layers() {
  const auto tracer = std::make_shared<rpc::Tracer>(
      rpc::TracerOptions{.ratio = 0, .own_methods = dist_autograd::backward_methods()});
  rpc::Layers layers = dist_optim::layers();
  layers.push_back(tracer->layer());
  layers.push_back(tensor::trace_operators());
  return layers;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Trains a network of two stages, which are remote objects on two workers."};
  std::int64_t steps = 201;
  bool alone = false;
  std::string svg = "rref_pipeline.svg";
  app.add_option("--steps", steps)->capture_default_str();
  app.add_flag("--alone", alone, "train in this process, without weft");
  app.add_option("--svg", svg, "file for the timeline")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  if (alone) {
    train_alone(steps);
    return 0;
  }
  return rpc::run_job(argc, argv, layers(), [&](rpc::Job& job) { run(job, steps, svg); }, {.processes = 3});
}
