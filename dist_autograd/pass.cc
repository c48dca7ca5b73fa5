#include <weft/dist_autograd/pass.h>

#include <weft/dist_autograd/backward_service.h>
#include <weft/rpc/core/when_all.h>

namespace weft::dist_autograd {
namespace {

struct Roots {
  std::vector<at::Tensor> tensors, gradients;  // on this worker
  rref::RRef<at::Tensor> remote;               // or one elsewhere
  at::Tensor remote_gradient;
};

rpc::Future<void> start_here(const std::shared_ptr<PassState>& pass) {
  auto promise = std::make_shared<rpc::Promise<void>>();
  auto future = promise->future();
  pass->start([promise](std::exception_ptr error) {
    promise->complete(error != nullptr ? rpc::Result<void>(error) : rpc::Result<void>());
  });
  return future;
}

rpc::Future<void> add_remote_root(const PassId& pass, const Roots& roots) {
  using Found = rpc::Peer::FoundMethod<&BackwardService::root>;
  const auto& reference = roots.remote.reference();
  const rpc::Peer owner = reference->context()->peer(reference->owner());
  rpc::OutgoingCall call = owner.make_call(Found::name, 2);
  reference->context()->target(reference, call);
  rpc::Peer::encode<Found::Type>(call, pass, roots.remote_gradient);
  return of_participant(pass, reference->owner(),
                        owner.start_typed<void>(std::move(call), rpc::Peer::Decode<void>{}));
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The initiator's part; docs/dist_autograd.md, "Backward", walks through it.
rpc::Task<void> run_backward(std::shared_ptr<Context> context, std::shared_ptr<PassState> pass, Roots roots,
                             BackwardOptions options) {
  const rpc::AgentId self = context->core()->id();
  const auto workers = co_await close_everywhere(context, pass, options, true);
  if (workers.empty())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     to_string(pass->id()) + ": another backward is under way");

  for (std::size_t i = 0; i < roots.tensors.size(); ++i)
    co_await pass->add_root(roots.tensors[i], roots.gradients[i]);
  std::vector<rpc::Future<void>> started;
  if (roots.remote.valid()) {
    co_await add_remote_root(pass->id(), roots);
    started.push_back(context->ask<&BackwardService::start>(roots.remote.owner(), pass->id()));
  } else {
    started.push_back(start_here(pass));
  }
  co_await rpc::when_all(std::move(started));

  std::vector<rpc::Future<std::vector<std::string>>> finished;
  for (const rpc::AgentId& worker : workers)
    finished.push_back(worker == self ? pass->finish()
                                      : context->ask<&BackwardService::finish>(worker, pass->id()));
  const auto unreached = co_await rpc::when_all(std::move(finished));
  std::string missed;
  for (std::size_t i = 0; i < workers.size(); ++i)
    if (!unreached[i].empty())
      missed += (missed.empty() ? "" : "; ") + join(unreached[i]) + " on " + workers[i].name;
  if (!missed.empty())
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        to_string(pass->id()) + ": no gradient ever reached " + missed +
            ": what was sent there takes no part in the loss (make that call without the pass, or detach() "
            "its result)");
}

rpc::Future<void> begin(const std::shared_ptr<Context>& context, const std::shared_ptr<PassState>& pass,
                        Roots roots, BackwardOptions options) {
  return run_backward(context, pass, std::move(roots), options)
      .start(context->core()->handlers())
      .then([context, pass](rpc::Result<void>&& result) {
        // The same error everywhere, and nothing of the pass is kept.
        if (!result.ok()) context->release(pass->id(), result.error());
        return std::move(result);
      });
}

}  // namespace

Pass::Pass(rpc::Agent& agent) : context_(Context::of(*agent.core())), state_(context_->create()) {}

Pass Pass::of(rpc::CallContext& call) {
  const auto* in = call.slots().find<InPass>();
  if (in == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition, "this call was made without a pass");
  return Pass(Context::of(*call.core()), in->pass, false);
}

Pass& Pass::operator=(Pass&& other) noexcept {
  release();
  context_ = std::move(other.context_);
  state_ = std::move(other.state_);
  owner_ = other.owner_;
  return *this;
}

Pass::~Pass() { release(); }

void Pass::release() {
  if (const auto state = std::exchange(state_, nullptr); state != nullptr && owner_)
    context_->release(state->id(), nullptr);
}

void Pass::apply(rpc::OutgoingCall& call) const { Context::enroll(call, state_); }

rpc::Future<void> Pass::backward(at::Tensor root, at::Tensor gradient, BackwardOptions options) {
  return backward(std::vector{std::move(root)}, std::vector{std::move(gradient)}, options);
}

rpc::Future<void> Pass::backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients,
                                 BackwardOptions options) {
  if (roots.empty()) throw rpc::Error(rpc::ErrorKind::invalid_argument, "a backward needs a root");
  gradients.resize(std::max(gradients.size(), roots.size()));
  if (gradients.size() != roots.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "more gradients than roots");
  Roots all;
  all.tensors = std::move(roots);
  all.gradients = std::move(gradients);
  return begin(context_, state_, std::move(all), options);
}

rpc::Future<void> Pass::backward(const rref::RRef<at::Tensor>& root, at::Tensor gradient,
                                 BackwardOptions options) {
  Roots all;
  all.remote = root;
  all.remote_gradient = std::move(gradient);
  return begin(context_, state_, std::move(all), options);
}

}  // namespace weft::dist_autograd
