// L-BFGS over parameters of two processes: finds the minimum of Rosenbrock's function,
// f(x, y) = (1 - x)^2 + 100 (y - x^2)^2, where worker1 owns x and worker2 owns y. Gradients and the
// optimizer's history stay with the owners. Rank 0 evaluates f.
//
//   lbfgs     starts the three processes on this machine
#include <torch/torch.h>
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/dist_lbfgs.h>
#include <weft/dist_optim/layers.h>
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include <cstdio>

using namespace weft;
using dist_optim::DistLBFGS;

struct Coordinate : torch::nn::Module {
  explicit Coordinate(double start)
      : parameter(register_parameter("value", torch::tensor(start, at::kDouble))) {}
  at::Tensor value() { return parameter * 1; }

  at::Tensor parameter;
  using Service =
      rpc::Service<"coordinate", rpc::Constructor<double>, rpc::Method<"value", &Coordinate::value>>;
};

// A step calls this function several times, at different points, because a line search chooses the length of
// the step.
rpc::Task<DistLBFGS::Evaluation> rosenbrock(rpc::Agent& agent, rref::RRef<Coordinate> first,
                                            rref::RRef<Coordinate> second) {
  dist_autograd::Pass pass{agent};
  const at::Tensor x = co_await first.call<&Coordinate::value>(pass);
  const at::Tensor y = co_await second.call<&Coordinate::value>(pass);
  const at::Tensor f = (1 - x).square() + 100 * (y - x.square()).square();
  co_await pass.backward(f);
  co_return DistLBFGS::Evaluation{std::move(pass), f.item().toDouble()};
}

rpc::Task<void> run(rpc::Job& job) {
  rpc::Agent& agent = job.agent();
  agent.allow_create<Coordinate>();
  co_await job.join();
  if (job.rank() != 0) co_return;  // an owner serves rank 0 until rank 0 has finished

  auto x = rref::create<Coordinate>(agent.peer("worker1"), -1.2);
  auto y = rref::create<Coordinate>(agent.peer("worker2"), 2.0);
  auto options = torch::optim::LBFGSOptions(1).max_iter(10).line_search_fn("strong_wolfe");
  options.tolerance_change(1e-15);
  DistLBFGS optimizer{agent, options, x, y};
  const DistLBFGS::Closure evaluate = [&] { return rosenbrock(agent, x, y); };
  for (int step = 0; step < 6; ++step) {
    const auto result = co_await optimizer.step(evaluate);
    std::printf("step %d began at f = %.3e, and evaluated f %lld times\n", step, result.loss,
                static_cast<long long>(result.evaluations));
  }
  const at::Tensor at_x = co_await x.call<&Coordinate::value>(), at_y = co_await y.call<&Coordinate::value>();
  std::printf("the minimum is at x = %.6f, y = %.6f\n", at_x.item().toDouble(), at_y.item().toDouble());
}

int main(int argc, char** argv) {
  return rpc::run_job(argc, argv, dist_optim::layers(), run, {.processes = 3});
}
