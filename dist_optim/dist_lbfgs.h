// DistLBFGS: L-BFGS over the parameters of modules behind RRefs. Like torch::optim::LBFGS, it evaluates the
// loss several times within a step, so a step takes a closure:
//
//   rpc::Task<dist_optim::DistLBFGS::Evaluation> evaluate(rpc::Agent& agent, rref::RRef<Model> model,
//                                                         at::Tensor x) {
//     dist_autograd::Pass pass{agent};
//     at::Tensor loss = (co_await model.call<&Model::forward>(pass, x)).square().mean();
//     co_await pass.backward(loss);
//     co_return dist_optim::DistLBFGS::Evaluation{std::move(pass), loss.item<double>()};
//   }
//   dist_optim::DistLBFGS optimizer{
//       agent, torch::optim::LBFGSOptions(1).line_search_fn("strong_wolfe"), model};
//   co_await optimizer.step([&] { return evaluate(agent, model, x); });
//
// Parameters, gradients and the history stay on their owners; only numbers are sent. The steps
// equal those of torch::optim::LBFGS over all parameters in one process. While a DistLBFGS is attached to an
// object, the owner refuses other optimizers of that object; while another optimizer is attached, the owner
// refuses the DistLBFGS. The history cannot be saved. Thread-safe; steps run one after the other.
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

// The result of one step.
struct LBFGSResult {
  double loss = 0;  // at the beginning of the step
  std::int64_t iterations = 0;
  std::int64_t evaluations = 0;  // calls of the closure
};

class WEFT_EXPORT DistLBFGS {
 public:
  // The result of the closure: passes whose backward has completed. The sum of their gradients is the
  // gradient of `loss`. The optimizer ends the passes.
  struct Evaluation {
    Evaluation(dist_autograd::Pass pass, double loss) : loss(loss) { passes.push_back(std::move(pass)); }
    Evaluation(std::vector<dist_autograd::Pass> passes, double loss)
        : passes(std::move(passes)), loss(loss) {}

    // loss: the value of the loss at the parameters that the passes have read.
    std::vector<dist_autograd::Pass> passes;
    double loss;
  };
  // Runs on the agent's handler threads, which must not be blocked.
  using Closure = std::function<rpc::Task<Evaluation>()>;

  // All parameters of one object must have the same dtype and device. `invalid_argument`: the options are
  // invalid.
  template <class... T>
  DistLBFGS(rpc::Agent& agent, const torch::optim::LBFGSOptions& options, const rref::RRef<T>&... modules)
      : DistLBFGS(agent, options, std::vector{modules.reference()...}) {}
  DistLBFGS(rpc::Agent& agent, const torch::optim::LBFGSOptions& options,
            std::vector<rref::ReferencePtr> modules);
  ~DistLBFGS();  // releases the objects, once its steps have completed
  DistLBFGS(const DistLBFGS&) = delete;
  DistLBFGS& operator=(const DistLBFGS&) = delete;

  // Runs at most max_iter iterations. If a step fails, the owners restore the parameters and drop the
  // history. If the closure failed and all owners have restored the parameters, the future has the closure's
  // error. Otherwise it has a StepError: not_stepped() has the objects that were restored, unknown() has the
  // objects whose owner was lost or did not answer, and stepped() has the objects that had completed the step
  // when another owner was lost. If unknown() or stepped() is not empty, all further steps fail with
  // `failed_precondition`: create another optimizer of the remaining objects. If attaching failed, every step
  // fails with the error of attaching.
  rpc::Future<LBFGSResult> step(Closure closure);

  // Completes, in order with the steps, when every owner has accepted this optimizer.
  rpc::Future<void> attached();

 private:
  struct Core;
  class Step;
  std::shared_ptr<Core> core_;
};

}  // namespace weft::dist_optim
