// DistLBFGS: L-BFGS over the parameters of modules behind RRefs. As torch::optim::LBFGS it evaluates the loss
// several times within a step, so a step takes a closure:
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
// Parameters, gradients and the history stay with their owners; numbers travel (lbfgs/gram.h). The steps are
// those of torch::optim::LBFGS over all the parameters in one process. One DistLBFGS at a time has an object:
// other optimizers are refused while it is attached, and it while they are. It has no state that could be
// saved: what it has learnt ends with it. Thread-safe; steps follow each other. docs/dist_optim.md says what
// a step guarantees and costs.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/service/step_error.h>
#include <weft/rpc/core/task.h>

#include <functional>

namespace torch::optim {
struct LBFGSOptions;
}

namespace weft::dist_optim {

struct LBFGSResult {
  double loss = 0;  // where the step began
  std::int64_t iterations = 0;
  std::int64_t evaluations = 0;  // of the closure
};

class WEFT_EXPORT DistLBFGS {
 public:
  // Passes whose backward is over, with gradients of `loss` that add up. The optimizer ends them.
  struct Evaluation {
    Evaluation(dist_autograd::Pass pass, double loss) : loss(loss) { passes.push_back(std::move(pass)); }
    Evaluation(std::vector<dist_autograd::Pass> passes, double loss)
        : passes(std::move(passes)), loss(loss) {}

    std::vector<dist_autograd::Pass> passes;
    double loss;
  };
  // Runs on the agent's handler threads, which must not block.
  using Closure = std::function<rpc::Task<Evaluation>()>;

  // `invalid_argument` where the options cannot be meant. The parameters of one object are of one dtype and
  // on one device.
  template <class... T>
  DistLBFGS(rpc::Agent& agent, const torch::optim::LBFGSOptions& options, const rref::RRef<T>&... modules)
      : DistLBFGS(agent, options, std::vector{modules.reference()...}) {}
  DistLBFGS(rpc::Agent& agent, const torch::optim::LBFGSOptions& options,
            std::vector<rref::ReferencePtr> modules);
  ~DistLBFGS();  // gives the objects back, once its steps are over
  DistLBFGS(const DistLBFGS&) = delete;
  DistLBFGS& operator=(const DistLBFGS&) = delete;

  // At most max_iter iterations. A step that fails is undone: the parameters are as before, and what was
  // learnt is forgotten. The error is then what the closure threw, or else a StepError with the objects in
  // not_stepped(). An owner that was lost, or did not answer, is in unknown(); stepped() are those that had
  // ended the step when another was lost. Where there is any of these, all further steps are
  // `failed_precondition`: make another optimizer, of the objects that are left. Errors of attaching come
  // with every step.
  rpc::Future<LBFGSResult> step(Closure closure);

  rpc::Future<void> attached();  // every owner has accepted this optimizer; in turn with the steps

 private:
  struct Core;
  class Step;
  std::shared_ptr<Core> core_;
};

}  // namespace weft::dist_optim
