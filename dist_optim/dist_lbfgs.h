// DistLBFGS: L-BFGS over the parameters of modules behind RRefs. Like torch::optim::LBFGS, it evaluates the
// loss several times within a step, so a step takes a closure:
//
//   rpc::Task<dist_optim::DistLBFGS::Evaluation> evaluate(rpc::Agent& agent, rref::RRef<Model> model,
//   at::Tensor x) {
//     dist_autograd::Pass pass{agent};
//     at::Tensor loss = (co_await model.call<&Model::forward>(pass, x)).square().mean();
//     co_await pass.backward(loss);
//     co_return dist_optim::DistLBFGS::Evaluation{std::move(pass), loss.item<double>()};
//   }
//   dist_optim::DistLBFGS optimizer{agent, torch::optim::LBFGSOptions(1).line_search_fn("strong_wolfe"),
//   model}; co_await optimizer.step([&] { return evaluate(agent, model, x); });
//
// Parameters, gradients and the history stay on their owners; only numbers are sent (lbfgs/gram.h). The steps
// equal those of torch::optim::LBFGS over all parameters in one process. One DistLBFGS at a time uses an
// object: other optimizers are refused while it is attached, and it is refused while others are. It has no
// state that could be saved: its history ends with it. Thread-safe; steps run one after the other.
// docs/dist_optim.md states the guarantees and the cost of a step.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/service/step_error.h>
#include <weft/rpc/core/task.h>

#include <functional>

namespace torch::optim {
struct LBFGSOptions;
}

namespace weft::dist_optim {

// What one step did.
struct LBFGSResult {
  double loss = 0;  // at the beginning of the step
  std::int64_t iterations = 0;
  std::int64_t evaluations = 0;  // of the closure
};

class WEFT_EXPORT DistLBFGS {
 public:
  // Passes whose backward has completed, with gradients of `loss` that add up. The optimizer ends them.
  struct Evaluation {
    Evaluation(dist_autograd::Pass pass, double loss) : loss(loss) { passes.push_back(std::move(pass)); }
    Evaluation(std::vector<dist_autograd::Pass> passes, double loss)
        : passes(std::move(passes)), loss(loss) {}

    // loss: at the parameters that the passes have read.
    std::vector<dist_autograd::Pass> passes;
    double loss;
  };
  // Runs on the agent's handler threads, which must not be blocked.
  using Closure = std::function<rpc::Task<Evaluation>()>;

  // `invalid_argument` if the options are invalid. The parameters of one object have one dtype and one
  // device.
  template <class... T>
  DistLBFGS(rpc::Agent& agent, const torch::optim::LBFGSOptions& options, const rref::RRef<T>&... modules)
      : DistLBFGS(agent, options, std::vector{modules.reference()...}) {}
  DistLBFGS(rpc::Agent& agent, const torch::optim::LBFGSOptions& options,
            std::vector<rref::ReferencePtr> modules);
  ~DistLBFGS();  // releases the objects, once its steps have completed
  DistLBFGS(const DistLBFGS&) = delete;
  DistLBFGS& operator=(const DistLBFGS&) = delete;

  // At most max_iter iterations. A step that fails is undone: the parameters are as before, and the history
  // is dropped. The error is then that of the closure, or else a StepError with the objects in not_stepped().
  // An owner that was lost, or did not answer, is in unknown(). stepped() has the objects that had ended the
  // step when another owner was lost. If one of these is not empty, all further steps fail with
  // `failed_precondition`: create another optimizer of the remaining objects. Every step reports errors of
  // attaching.
  rpc::Future<LBFGSResult> step(Closure closure);

  rpc::Future<void> attached();  // every owner has accepted this optimizer; ordered with the steps

 private:
  struct Core;
  class Step;
  std::shared_ptr<Core> core_;
};

}  // namespace weft::dist_optim
