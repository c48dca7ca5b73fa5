#include <weft/dist_autograd/pass.h>

#include <weft/dist_autograd/backward_trace.h>
#include <weft/dist_autograd/engine/internal/node_executor.h>
#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/internal/backward_service.h>
#include <weft/dist_autograd/internal/backward_share.h>
#include <weft/rpc/core/duration_text.h>
#include <weft/rpc/core/when_all.h>

#include <atomic>
#include <set>

namespace weft::dist_autograd {
namespace {

rpc::Future<void> add_remote_root(const PassId& pass, const Backward& backward, const Root& root,
                                  const Trace& trace) {
  using Found = rpc::FoundMethod<&BackwardService::root>;
  const auto& reference = root.reference.reference();
  const rpc::Peer owner = reference->layer()->peer(reference->owner());
  rpc::OutgoingCall call = owner.calls().make(Found::name, 3);
  reference->layer()->target(reference, call);
  if (trace) rpc::Under(*trace).apply(call);
  rpc::encode_call<Found::Type>(call, pass, backward, root.gradient);
  return of_participant(pass, reference->owner(),
                        owner.calls().start_typed<void>(std::move(call), rpc::DecodeReply<void>{}));
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The state of one backward at its initiator. Shared with jobs and continuations, which may outlive the
// initiator's part.
struct Progress {
  std::atomic<bool> ran = false;          // its nodes were started
  std::atomic<bool> lost_a_root = false;  // an owner has not replied: the root may still arrive there
  std::atomic<bool> undone = false;       // it was refused, and the pass is unchanged
};

// The initiator's part of one backward, which docs/dist_autograd.md explains under "Backward".
//
// If a worker refuses a backward before any node has run, the pass is unchanged: undo() ends the shares that
// were begun for it. Every other failure ends the pass.
class Initiator {
 public:
  Initiator(std::shared_ptr<AutogradLayer> layer, std::shared_ptr<PassState> pass,
            std::shared_ptr<Progress> progress, BackwardOptions options, const Trace& trace)
      : layer_(std::move(layer)),
        pass_(std::move(pass)),
        progress_(std::move(progress)),
        backward_{pass_->begin_backward(), options},
        span_(BackwardSpan::of_backward(*layer_->core(), trace)) {}

  void failed(const std::exception_ptr& error) { span_.failed(error); }  // run() threw it

  // Whether run() failed with a refusal, and no node has run.
  bool refused(const std::exception_ptr& error) const {
    return !progress_->ran && !progress_->lost_a_root && is_refusal(error);
  }
  // Ends the shares of a backward that was refused.
  rpc::Task<void> undo() {
    std::vector<rpc::Future<void>> undone;
    undone.push_back(cancel_everywhere(layer_, pass_, backward_));
    for (const rpc::AgentId& owner : owners_)
      if (owner != self())
        undone.push_back(layer_->ask<&BackwardService::cancel>(owner, pass_->id(), backward_));
    co_await rpc::when_all(std::move(undone));
    progress_->undone = true;
  }

  rpc::Task<void> run(std::vector<Root> roots) {
    if (backward_.options.mode == BackwardMode::fast) {
      workers_ = co_await close_everywhere(layer_, pass_, backward_, true);
      if (workers_.empty())
        throw rpc::Error(rpc::ErrorKind::failed_precondition,
                         to_string(pass_->id()) + ": another backward is running");
    } else {
      co_await quiet();
    }
    std::vector<rpc::Future<void>> placed;
    std::vector<Root> here;
    for (Root& root : roots) {
      const bool remote = root.reference.valid();
      owners_.insert(remote ? root.reference.owner() : self());
      if (remote) placed.push_back(place(root));
      if (!remote) here.push_back(std::move(root));
    }
    if (!placed.empty()) co_await rpc::when_all(std::move(placed));

    const Report ran = co_await lead(Stage::run, {owners_.begin(), owners_.end()}, std::move(here));
    if (backward_.options.mode == BackwardMode::fast) {
      co_await weights();
      co_await finalize();
      co_await finish();
    } else {
      workers_ = ran.workers;
      if (ran.waiting) co_await leave_out_what_is_dead();
      co_await weights();
      co_await finalize();
      co_await drop_shares();
    }
  }

 private:
  const rpc::AgentId& self() const { return layer_->core()->id(); }

  static bool is_refusal(const std::exception_ptr& error) {
    // The call is wrong, or made in the wrong state.
    return rpc::error_kind(error) < rpc::ErrorKind::handler_failed;
  }

  rpc::Future<void> place(const Root& root) {
    auto sent = rpc::capture([&] {
      return add_remote_root(pass_->id(), backward_, root, span_.context())
          .then([progress = progress_](rpc::Result<void>&& placed) {
            if (!placed.ok() && !is_refusal(placed.error())) progress->lost_a_root = true;
            return std::move(placed);
          });
    });
    return sent.ok() ? std::move(sent).get() : rpc::Future<void>::made(sent.error());
  }

  rpc::Future<void> quiet() {
    auto promise = std::make_shared<rpc::Promise<void>>();
    auto future = promise->future();
    pass_->when_quiet(false, [promise] { promise->complete(rpc::Result<void>()); });
    return future;
  }

  // roots: of this worker; they start with the stage.
  rpc::Future<Report> lead(Stage stage, std::vector<rpc::AgentId> workers, std::vector<Root> roots = {}) {
    rpc::Promise<Report> promise;
    auto future = promise.future();
    pass_->with_share(
        backward_,
        [promise = std::move(promise)](rpc::Result<Report> report) mutable {
          promise.complete(std::move(report));
        },
        [progress = progress_, stage, workers = std::move(workers), roots = std::move(roots),
         trace = span_.context()](BackwardShare& share, BackwardShare::Done done) mutable {
          const auto placed = rpc::capture([&] {
            for (Root& root : roots) share.add_root(root.tensor, std::move(root.gradient));
          });
          if (!placed.ok()) return done(placed.error());
          progress->ran = true;
          share.lead(stage, workers, trace, std::move(done));
        });
    return future;
  }

  // Called if a node waits for gradients although all sent gradients have arrived: some of the expected
  // gradients will never arrive.
  rpc::Task<void> leave_out_what_is_dead() {
    add_workers(co_await lead(Stage::explore, workers_));
    co_await lead(Stage::resume, workers_);
  }

  rpc::Task<void> weights() {
    if (backward_.options.defer_weights) co_await lead(Stage::weights, workers_);
  }

  rpc::Task<void> finalize() {
    if (!pass_->hooks().wants_finalize()) co_return;
    add_workers(co_await lead(Stage::finalize, std::vector<rpc::AgentId>(1, self())));
  }

  void add_workers(const Report& report) {
    std::set<rpc::AgentId> all(workers_.begin(), workers_.end());
    all.insert(report.workers.begin(), report.workers.end());
    workers_.assign(all.begin(), all.end());
  }

  // If the graph is kept, calls and another backward may follow at once, so the initiator waits for all
  // workers.
  rpc::Task<void> drop_shares() {
    if (backward_.options.keeps_graph()) {
      co_await rpc::when_all(finish_everywhere());
      co_return;
    }
    (void)pass_->finish(backward_.id);
    for (const rpc::AgentId& worker : workers_)
      if (worker != self()) layer_->peer(worker).notify<&BackwardService::finish>(pass_->id(), backward_.id);
  }

  std::vector<rpc::Future<std::vector<std::string>>> finish_everywhere() {
    std::vector<rpc::Future<std::vector<std::string>>> finished;
    for (const rpc::AgentId& worker : workers_)
      finished.push_back(worker == self()
                             ? pass_->finish(backward_.id)
                             : layer_->ask<&BackwardService::finish>(worker, pass_->id(), backward_.id));
    return finished;
  }

  rpc::Task<void> finish() {
    const auto unreached = co_await rpc::when_all(finish_everywhere());
    std::string missed;
    for (std::size_t i = 0; i < workers_.size(); ++i)
      if (!unreached[i].empty())
        missed += (missed.empty() ? "" : "; ") + join(unreached[i]) + " on " + workers_[i].name;
    if (!missed.empty())
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       to_string(pass_->id()) + ": no gradient ever reached " + missed +
                           ": the loss does not depend on the tensors sent there (make that call without the "
                           "pass, detach() "
                           "its result, or use BackwardMode::smart)");
  }

  const std::shared_ptr<AutogradLayer> layer_;
  const std::shared_ptr<PassState> pass_;
  const std::shared_ptr<Progress> progress_;
  const Backward backward_;
  std::vector<rpc::AgentId> workers_;  // that take part
  std::set<rpc::AgentId> owners_;      // of the roots
  BackwardSpan span_;
};

rpc::Task<void> run_backward(std::shared_ptr<Initiator> initiator, std::vector<Root> roots) {
  std::exception_ptr error;
  try {
    co_await initiator->run(std::move(roots));
    co_return;
  } catch (...) {
    error = std::current_exception();
  }
  initiator->failed(error);
  if (initiator->refused(error)) {
    try {
      co_await initiator->undo();
    } catch (...) {
      // A worker cannot end its share: the pass ends.
    }
  }
  std::rethrow_exception(error);
}

// Completes a backward with a timeout for its caller: at its end or at the timeout, whichever is first.
class Limited final : public std::enable_shared_from_this<Limited> {
 public:
  Limited(std::shared_ptr<AutogradLayer> layer, std::shared_ptr<PassState> pass,
          std::chrono::nanoseconds timeout)
      : layer_(std::move(layer)),
        pass_(std::move(pass)),
        timeout_(timeout),
        loop_(layer_->core()->pick_loop()),
        future_(promise_.future()) {}

  rpc::Future<void> future() { return std::move(future_); }
  void start() {
    loop_->post([self = shared_from_this()] {
      if (self->over_) return;
      self->timer_ = self->loop_->schedule(rpc::later(self->loop_->now(), self->timeout_), [self] {
        self->timer_ = 0;
        self->expire();
      });
    });
  }
  bool complete(rpc::Result<void> result) {
    if (over_.exchange(true)) return false;
    loop_->post([self = shared_from_this()] {
      if (self->timer_ != 0) self->loop_->cancel(std::exchange(self->timer_, 0));
    });
    promise_.complete(std::move(result));
    return true;
  }

 private:
  void expire() {
    std::vector<std::string> awaited;
    for (const rpc::AgentId& worker : pass_->awaited()) awaited.push_back(worker.name);
    const auto error = std::make_exception_ptr(rpc::Error(
        rpc::ErrorKind::deadline_exceeded, to_string(pass_->id()) + ": backward: not complete after " +
                                               rpc::seconds_text(timeout_) + ": it waits for " +
                                               (awaited.empty() ? "calls, nodes or reductions of this worker"
                                                                : join(awaited) + ", or for workers behind") +
                                               " (BackwardOptions::timeout)"));
    if (complete(error)) layer_->release(pass_->id(), error);
  }

  const std::shared_ptr<AutogradLayer> layer_;
  const std::shared_ptr<PassState> pass_;
  const std::chrono::nanoseconds timeout_;
  const std::shared_ptr<rpc::Loop> loop_;
  rpc::Promise<void> promise_;
  rpc::Future<void> future_;
  std::atomic<bool> over_{false};
  rpc::Loop::TimerId timer_ = 0;  // on the loop
};

rpc::Future<void> begin(const std::shared_ptr<AutogradLayer>& layer, const std::shared_ptr<PassState>& pass,
                        std::vector<Root> roots, BackwardOptions options, const Trace& trace) {
  if (roots.empty())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "backward: expected at least one root");
  if (options.create_graph && options.mode == BackwardMode::fast)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "backward: create_graph needs BackwardMode::smart");
  if (options.create_graph && options.defer_weights)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "backward: defer_weights and create_graph exclude each other");
  const auto progress = std::make_shared<Progress>();
  std::shared_ptr<Initiator> initiator;
  const auto begun = rpc::capture([&] {
    for (const Root& root : roots)
      if (!root.reference.valid()) NodeExecutor::check_root(root.tensor, root.gradient);
    initiator = std::make_shared<Initiator>(layer, pass, progress, options, trace);
  });
  if (!begun.ok()) return rpc::Future<void>::made(begun.error());  // refused: the pass is unchanged
  auto ended = run_backward(std::move(initiator), std::move(roots))
                   .start(layer->core()->handlers())
                   .then([layer, pass, progress](rpc::Result<void>&& result) {
                     pass->end_backward(progress->undone);
                     // All workers get the same error, and no part of the pass is kept.
                     if (!result.ok() && !progress->undone) layer->release(pass->id(), result.error());
                     return std::move(result);
                   });
  if (options.timeout == rpc::no_timeout) return ended;
  const auto limited = std::make_shared<Limited>(layer, pass, options.timeout);
  limited->start();
  std::move(ended).then([limited](rpc::Result<void>&& result) { limited->complete(std::move(result)); });
  return limited->future();
}

rpc::Task<std::string> draw(std::shared_ptr<AutogradLayer> layer, PassId pass, WorkerGraph here) {
  std::vector<WorkerGraph> graphs{std::move(here)};
  std::set<rpc::AgentId> asked{graphs.front().worker};
  for (std::size_t from = 0; from < graphs.size();) {
    std::vector<rpc::Future<WorkerGraph>> answers;
    for (; from < graphs.size(); ++from)
      for (const rpc::AgentId& worker : graphs[from].met)
        if (asked.insert(worker).second) answers.push_back(layer->ask<&BackwardService::graph>(worker, pass));
    for (WorkerGraph& graph : co_await rpc::when_all(std::move(answers))) graphs.push_back(std::move(graph));
  }
  co_return to_dot(pass, graphs);
}

}  // namespace

Pass::Pass(rpc::Agent& agent) : layer_(AutogradLayer::of(*agent.core())), state_(layer_->create()) {}

Pass::Pass(std::shared_ptr<AutogradLayer> layer, std::shared_ptr<PassState> state, bool owner)
    : layer_(std::move(layer)), state_(std::move(state)), owner_(owner) {}

Pass Pass::of(rpc::CallContext& call) {
  const auto* in = call.slots().find<InPass>();
  if (in == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "Pass::of: the call belongs to no pass: the caller must give it one");
  Pass pass(AutogradLayer::of(*call.host()), in->pass, false);
  pass.trace_under(rpc::trace_of(call));
  return pass;
}

Pass& Pass::operator=(Pass&& other) noexcept {
  release();
  layer_ = std::move(other.layer_);
  state_ = std::move(other.state_);
  owner_ = other.owner_;
  trace_ = std::move(other.trace_);
  return *this;
}

Pass::~Pass() { release(); }

void Pass::release() {
  if (state_ != nullptr && owner_) layer_->release(state_->id(), nullptr);
}

const PassId& Pass::id() const { return state_->id(); }

void Pass::on_gradient(const at::Tensor& leaf, PassHooks::OnGradient hook) {
  state_->hooks().on_gradient(leaf, std::move(hook));
}

void Pass::on_finalize(PassHooks::OnFinalize hook) { state_->hooks().on_finalize(std::move(hook)); }

void Pass::complete_after(rpc::Future<void> work) { state_->complete_after(std::move(work)); }

at::Tensor Pass::gradient(const at::Tensor& leaf) const { return state_->gradient(leaf); }

std::vector<LeafGradient> Pass::gradients() const { return state_->gradients(); }

void Pass::apply(rpc::OutgoingCall& call) const { AutogradLayer::enroll(call, state_); }

rpc::Future<void> Pass::backward(std::vector<Root> roots, BackwardOptions options) {
  return begin(layer_, state_, std::move(roots), options, trace_);
}

rpc::Future<void> Pass::backward(Root root, BackwardOptions options) {
  return begin(layer_, state_, {std::move(root)}, options, trace_);
}

rpc::Future<void> Pass::backward(at::Tensor root, at::Tensor gradient, BackwardOptions options) {
  return begin(layer_, state_, {Root(std::move(root), std::move(gradient))}, options, trace_);
}

rpc::Future<void> Pass::backward(rref::RRef<at::Tensor> root, at::Tensor gradient, BackwardOptions options) {
  return begin(layer_, state_, {Root(std::move(root), std::move(gradient))}, options, trace_);
}

rpc::Future<void> Pass::backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients,
                                 BackwardOptions options) {
  if (gradients.size() > roots.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "backward: " + std::to_string(gradients.size()) +
                                                           " gradients for " + std::to_string(roots.size()) +
                                                           " roots");
  gradients.resize(roots.size());
  std::vector<Root> all;
  for (std::size_t i = 0; i < roots.size(); ++i)
    all.emplace_back(std::move(roots[i]), std::move(gradients[i]));
  return begin(layer_, state_, std::move(all), options, trace_);
}

rpc::Future<std::string> Pass::dot(std::vector<at::Tensor> roots) {
  return draw(layer_, state_->id(), state_->graph(roots)).start(layer_->core()->handlers());
}

}  // namespace weft::dist_autograd
