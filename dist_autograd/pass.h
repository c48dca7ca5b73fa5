// Pass: one forward over many workers, and its backward. The argument that makes a call differentiable.
//
//   dist_autograd::Pass pass{agent};
//   auto features = co_await shared.call<&Shared::forward>(pass, images);
//   auto loss = torch::cross_entropy_loss(head(features), targets);
//   co_await pass.backward(loss);                   // on every worker that took part
//   at::Tensor g = pass.gradient(head->weight);     // gradients stay in the pass, each where its leaf lives
//
// A backward runs on the workers that the roots depend on (BackwardMode::smart). BackwardMode::fast is the
// algorithm of torch.distributed.autograd, in which every sent tensor takes part. Destroying the Pass
// releases it on every worker. Move-only; thread-safe except for moves.
#pragma once

#include <weft/dist_autograd/backward.h>
#include <weft/dist_autograd/engine/gradient_sink.h>
#include <weft/dist_autograd/ids.h>
#include <weft/dist_autograd/pass_hooks.h>
#include <weft/rpc/tensor/device_options.h>
#include <weft/rpc/tensor/tensor_codec.h>
#include <weft/rpc/trace/trace_context.h>
#include <weft/rref/rref.h>

namespace weft::dist_autograd {

class AutogradLayer;
class PassState;

// The layers of distributed autograd, for the agent's constructor, with those that it needs: RRefs and
// tensors.
WEFT_EXPORT rpc::Layers layers(tensor::DeviceOptions devices = {});

// A root of a backward: a tensor on this worker, or one on another worker.
struct Root {
  Root(at::Tensor t, at::Tensor g = {}) : tensor(std::move(t)), gradient(std::move(g)) {}
  Root(rref::RRef<at::Tensor> r, at::Tensor g = {}) : reference(std::move(r)), gradient(std::move(g)) {}

  at::Tensor tensor;
  rref::RRef<at::Tensor> reference;  // or a tensor of another worker
  at::Tensor gradient;               // of the root's shape; may be left out for a scalar
};

class WEFT_EXPORT Pass final : public rpc::CallModifier {
 public:
  explicit Pass(rpc::Agent& agent);
  // The pass of a served call; failed_precondition if it has none. Does not release the pass.
  static Pass of(rpc::CallContext& call);
  Pass(Pass&& other) noexcept = default;
  Pass& operator=(Pass&& other) noexcept;
  ~Pass() override;

  const PassId& id() const;  // unique over all agents
  void apply(rpc::OutgoingCall& call) const override;

  // Waits for this worker's outstanding calls of the pass (new ones then fail), runs backward on all workers
  // that take part, and completes when it has completed everywhere. A failure on any worker (a node, a lost
  // worker, a release) ends the pass on every worker with that error. Roots may be on several workers. A
  // backward with an invalid local root, next to another one, or after one that used up the graph is refused:
  // the future fails and the pass is unchanged.
  rpc::Future<void> backward(std::vector<Root> roots, BackwardOptions options = {});
  rpc::Future<void> backward(Root root, BackwardOptions options = {});
  rpc::Future<void> backward(at::Tensor root, at::Tensor gradient, BackwardOptions options = {});
  rpc::Future<void> backward(rref::RRef<at::Tensor> root, at::Tensor gradient, BackwardOptions options = {});
  rpc::Future<void> backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients,
                             BackwardOptions options = {});

  // On this worker, for its part of the pass (pass_hooks.h): before the backward, for example in the handler
  // of a call of the pass. complete_after() is for these hooks, and for nodes of the backward.
  void on_gradient(const at::Tensor& leaf, PassHooks::OnGradient hook);
  void on_finalize(PassHooks::OnFinalize hook);
  void complete_after(rpc::Future<void> work);

  // The trace of its backwards, if they are traced (backward_trace.h); none: each starts a trace. For the
  // pass of a call: that call's trace. Call it before the backward.
  void trace_under(std::optional<rpc::TraceContext> context) { trace_ = std::move(context); }

  // The whole graph of the pass, on every worker that it met, in Graphviz' language; on this worker with the
  // graph behind these roots. Before a backward, or after one that retains the graph.
  rpc::Future<std::string> dot(std::vector<at::Tensor> roots = {});

  // On this worker: the gradient of a leaf, undefined if it has none; all gradients.
  at::Tensor gradient(const at::Tensor& leaf) const;
  std::vector<LeafGradient> gradients() const;

  void release();  // as the destructor; later calls and backwards fail

  const std::shared_ptr<PassState>& state() const { return state_; }  // for layers above

 private:
  Pass(std::shared_ptr<AutogradLayer> layer, std::shared_ptr<PassState> state, bool owner);

  std::shared_ptr<AutogradLayer> layer_;
  std::shared_ptr<PassState> state_;
  bool owner_ = true;
  std::optional<rpc::TraceContext> trace_;
};

}  // namespace weft::dist_autograd
