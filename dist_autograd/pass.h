// Pass: one forward over many workers, and its backward (torch.distributed.autograd's context). A call with a
// pass as an argument is differentiable.
//
//   dist_autograd::Pass pass{agent};
//   auto features = co_await shared.call<&Shared::forward>(pass, images);
//   auto loss = torch::cross_entropy_loss(head(features), targets);
//   co_await pass.backward(loss);                   // on every worker that took part
//   at::Tensor g = pass.gradient(head->weight);     // gradients stay in the pass, on the worker of the leaf
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

// The layers of distributed autograd, with the layers that they need (RRefs and tensors), for the agent's
// constructor.
WEFT_EXPORT rpc::Layers layers(tensor::DeviceOptions devices = {});

// A root of a backward: a tensor on this worker, or one on another worker.
struct Root {
  Root(at::Tensor t, at::Tensor g = {}) : tensor(std::move(t)), gradient(std::move(g)) {}
  Root(rref::RRef<at::Tensor> r, at::Tensor g = {}) : reference(std::move(r)), gradient(std::move(g)) {}

  at::Tensor tensor;
  rref::RRef<at::Tensor> reference;  // instead of `tensor`: a tensor of another worker
  at::Tensor gradient;               // of the root's shape; may be undefined for a scalar
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

  // Waits for this worker's outstanding calls of the pass (new calls then fail), and runs the backward on all
  // workers that take part. The future completes when the backward has completed everywhere. A failure on any
  // worker (a node, a lost worker, a release) ends the pass on every worker with that error. Roots may be on
  // several workers. A backward is refused if a local root is invalid, if another backward of the pass is
  // running, or if an earlier backward has freed the graph: the future then fails and the pass is unchanged.
  rpc::Future<void> backward(std::vector<Root> roots, BackwardOptions options = {});
  rpc::Future<void> backward(Root root, BackwardOptions options = {});
  rpc::Future<void> backward(at::Tensor root, at::Tensor gradient, BackwardOptions options = {});
  rpc::Future<void> backward(rref::RRef<at::Tensor> root, at::Tensor gradient, BackwardOptions options = {});
  rpc::Future<void> backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients,
                             BackwardOptions options = {});

  // Add hooks to this worker's part of the pass (pass_hooks.h). Call them before the backward, for example in
  // the handler of a call of the pass. The hooks, and nodes of the backward, may call complete_after(): the
  // backward then completes after `work`.
  void on_gradient(const at::Tensor& leaf, PassHooks::OnGradient hook);
  void on_finalize(PassHooks::OnFinalize hook);
  void complete_after(rpc::Future<void> work);

  // Sets the trace to which the backwards of this pass belong, if they are traced (backward_trace.h); none:
  // each backward starts a trace. The default for Pass::of() is the trace of the call. Call it before the
  // backward.
  void trace_under(std::optional<rpc::TraceContext> context) { trace_ = std::move(context); }

  // The graph of the pass on every worker that took part, in Graphviz' language. On this worker it includes
  // the graph behind `roots`. Call it before a backward, or after one that retained the graph.
  rpc::Future<std::string> dot(std::vector<at::Tensor> roots = {});

  // gradient(): the gradient of one leaf of this worker, undefined if the leaf has none. gradients(): the
  // gradients of all leaves of this worker.
  at::Tensor gradient(const at::Tensor& leaf) const;
  std::vector<LeafGradient> gradients() const;

  void release();  // ends the pass, as the destructor does; later calls and backwards fail

  const std::shared_ptr<PassState>& state() const { return state_; }  // for layers above

 private:
  Pass(std::shared_ptr<AutogradLayer> layer, std::shared_ptr<PassState> state, bool owner);

  std::shared_ptr<AutogradLayer> layer_;
  std::shared_ptr<PassState> state_;
  bool owner_ = true;
  std::optional<rpc::TraceContext> trace_;
};

}  // namespace weft::dist_autograd
