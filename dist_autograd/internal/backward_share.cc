#include <weft/dist_autograd/internal/backward_share.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/internal/backward_service.h>
#include <weft/dist_autograd/internal/nodes.h>
#include <weft/dist_autograd/pass_state.h>
#include <weft/rpc/tensor/device_layer.h>

namespace weft::dist_autograd {

BackwardShare::BackwardShare(PassState& pass, Backward backward, std::map<MessageId, NodePtr> sends)
    : pass_(pass), backward_(std::move(backward)) {
  ExecutorOptions how;
  how.retain_graph = backward_.options.keeps_graph();
  how.create_graph = backward_.options.create_graph;
  how.defer_weights = backward_.options.defer_weights;
  executor_ = std::make_unique<NodeExecutor>(pass_, how, [&pass](torch::autograd::Node& node) {
    const auto* received = dynamic_cast<RecvBackward*>(&node);
    if (received != nullptr && received->pass_id() != pass.id())
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "the graph of " + to_string(pass.id()) + " reaches a tensor that arrived in " +
                           to_string(received->pass_id()) + ": " + node.name());
  });
  for (auto& [message, node] : sends) sends_.emplace(message, Send{std::move(node)});
  try {
    for (const auto& [message, send] : sends_) executor_->expect(send.node);
  } catch (...) {
    error_ = std::current_exception();  // the first use of the share throws it
  }
}

std::map<MessageId, NodePtr> BackwardShare::take_sends() {
  std::map<MessageId, NodePtr> sends;
  for (auto& [message, send] : sends_) sends.emplace(message, std::move(send.node));
  executor_.reset();
  sends_.clear();
  return sends;
}

void BackwardShare::add_root(const at::Tensor& root, at::Tensor gradient) {
  if (error_ != nullptr) std::rethrow_exception(error_);
  executor_->add_root(root, std::move(gradient));
}

// --- Messages of the backward ---

template <class Work>
void BackwardShare::take_in(const std::optional<rpc::AgentId>& sender, const Trace& trace, Done acknowledge,
                            Work work) {
  if (error_ != nullptr) return acknowledge(error_);
  trace_ = trace;
  const bool engaged = termination_.engage(acknowledge);
  if (engaged) engaged_by_ = sender;
  try {
    work();
  } catch (...) {
    if (!engaged) acknowledge(std::current_exception());
    return fail(std::current_exception());
  }
  if (!engaged) acknowledge(Report{});
  settle();
  after_turn();
}

void BackwardShare::lead(Stage stage, const std::vector<rpc::AgentId>& workers, const Trace& trace,
                         Done done) {
  take_in(std::nullopt, trace, std::move(done), [&] {
    // Sends to the other workers first, so that they work at the same time as this worker.
    bool here = false;
    for (const rpc::AgentId& worker : workers) {
      if (worker == pass_.layer().core()->id()) {
        here = true;
      } else {
        tell<&BackwardService::begin>(worker, nullptr, backward_, stage);
      }
    }
    if (here) enter(stage);
  });
}

void BackwardShare::begin(Stage stage, const RequestSource& source, Done acknowledge) {
  take_in(source.sender, source.trace, std::move(acknowledge), [&] { enter(stage); });
}

void BackwardShare::deliver(const MessageId& message, std::vector<at::Tensor> gradients,
                            const RequestSource& source, Done acknowledge) {
  take_in(source.sender, source.trace, std::move(acknowledge), [&] {
    take(message, std::move(gradients));
    run();
  });
}

void BackwardShare::take(const MessageId& message, std::vector<at::Tensor> gradients) {
  const auto found = sends_.find(message);
  if (found == sends_.end() || found->second.delivered)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        to_string(pass_.id()) + ": gradients arrived for message " + std::to_string(message.number) +
            (found == sends_.end() ? ", which this worker has not sent" : " twice, expected once"));
  Send& send = found->second;
  send.live = send.delivered = true;
  plan();
  if (gradients.size() > send.node->num_inputs())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     to_string(pass_.id()) + ": " + std::to_string(gradients.size()) +
                         " gradients arrived for a message with " + std::to_string(send.node->num_inputs()) +
                         " tensors");
  // Trailing tensors that received nothing may be missing; LibTorch gives undefined gradients for them.
  gradients.resize(send.node->num_inputs());
  tensor::use_on_current_streams(gradients);
  executor_->deliver(send.node, std::move(gradients));
}

void BackwardShare::discover(const std::vector<MessageId>& messages, const RequestSource& source,
                             Done acknowledge) {
  take_in(source.sender, source.trace, std::move(acknowledge), [&] {
    plan();
    for (const MessageId& message : messages) {
      const auto found = sends_.find(message);
      if (found == sends_.end())
        throw rpc::Error(rpc::ErrorKind::invalid_argument,
                         to_string(pass_.id()) + ": discover names message " +
                             std::to_string(message.number) + ", which this worker has not sent");
      found->second.live = true;
      executor_->visit_from(found->second.node, [this](torch::autograd::Node& node) { note(node); });
    }
    announce();
  });
}

namespace {

// Sends gradients by the reverse of their tensors' device map. If the gradients are to be differentiated,
// they are sent as a message of the pass's backward.
struct Gradients final : rpc::CallModifier {
  Gradients(const tensor::DeviceMap& back, std::shared_ptr<PassState> p)
      : devices(back), recorded_in(std::move(p)) {}
  void apply(rpc::OutgoingCall& call) const override {
    devices.apply(call);
    if (recorded_in != nullptr) AutogradLayer::enroll(call, recorded_in, true);
  }
  tensor::ByDeviceMap devices;
  std::shared_ptr<PassState> recorded_in;  // null: it is not recorded
};

// The data of a backward's message in addition to its arguments.
struct MessageData final : rpc::CallModifier {
  MessageData(const rpc::CallModifier* w, Trace t) : way(w), trace(std::move(t)) {}
  void apply(rpc::OutgoingCall& call) const override {
    if (way != nullptr) way->apply(call);
    if (trace) rpc::Under(*trace).apply(call);
  }
  const rpc::CallModifier* way;
  Trace trace;
};

}  // namespace

template <auto Method, class... Given>
void BackwardShare::tell(const rpc::AgentId& worker, const rpc::CallModifier* way, Given&&... given) {
  termination_.sent();
  pass_.sent_to(worker);
  const auto answered = [worker, pass = pass_.shared_from_this(),
                         share = shared_from_this()](rpc::Result<Report>&& report) {
    pass->answered(worker);
    // The share refers to its pass, which may have been released by then.
    pass->post(
        [pass, share, report = std::move(report)]() mutable { share->acknowledged(std::move(report)); });
  };
  try {
    const MessageData data(way, trace_);
    pass_.layer().ask<Method>(worker, pass_.id(), data, std::forward<Given>(given)...).then(answered);
  } catch (...) {
    answered(std::current_exception());
  }
}

void BackwardShare::complete_after(rpc::Future<void> work) {
  pass_.hooks().note_wants_finalize();
  work_.push_back(std::move(work));
}

void BackwardShare::acknowledged(rpc::Result<Report> report) {
  termination_.acknowledged();
  if (!report.ok()) return fail(report.error());
  if (error_ != nullptr) return;
  workers_.insert(report.value().workers.begin(), report.value().workers.end());
  waiting_ = waiting_ || report.value().waiting;
  if (report.value().wants_finalize) pass_.hooks().note_wants_finalize();
  try {
    for (Returned& returned : report.value().returned) take(returned.message, std::move(returned.gradients));
    if (!report.value().returned.empty()) run();
  } catch (...) {
    return fail(std::current_exception());
  }
  settle();
  after_turn();
}

void BackwardShare::settle() {
  if (error_ != nullptr) return;
  try {
    pass_.check_alive();  // a node may have released the pass: then the backward has not succeeded
  } catch (...) {
    return fail(std::current_exception());
  }
  const bool held = run_held_ || weights_held_;
  if (termination_.awaits() || held)  // the acknowledgement is sent later, but these gradients are sent now
    for (Returned& held : std::exchange(held_, {}))
      tell<&BackwardService::gradients>(*engaged_by_, nullptr, backward_, held.message,
                                        std::move(held.gradients));
  Done done;
  if (held || !termination_.idle(done)) return;
  workers_.insert(pass_.layer().core()->id());
  Report report;
  report.returned = std::exchange(held_, {});
  report.workers.assign(workers_.begin(), workers_.end());
  report.wants_finalize = pass_.hooks().wants_finalize();
  report.waiting = std::exchange(waiting_, false) || (executor_ != nullptr && executor_->waiting());
  workers_.clear();
  done(std::move(report));
}

void BackwardShare::fail(const std::exception_ptr& error) {
  pass_.turns().end(error);
  executor_.reset();
  sends_.clear();
  held_.clear();
  work_.clear();
  if (error_ == nullptr) error_ = error;
  pass_.failed(error);
  Done done;
  if (termination_.disengage(done)) done(error);
}

// --- Work ---

void BackwardShare::enter(Stage stage) {
  plan();
  switch (stage) {
    case Stage::run:
      return run();
    case Stage::explore:
      executor_->visit_waiting([this](torch::autograd::Node& node) { note(node); });
      return announce();
    case Stage::resume:
      for (auto& [message, send] : sends_) {
        if (send.live || executor_->complete()) continue;
        executor_->abandon(send.node);
      }
      return run();
    case Stage::finalize:
      return finalize();
    case Stage::weights:
      pass_.turns().inputs_ran();
      return run_weights();
  }
  throw rpc::Error(rpc::ErrorKind::invalid_argument,
                   "backward: unknown stage " + std::to_string(static_cast<int>(stage)));
}

// All workers of the pass enter this stage, notified by workers with which they exchanged calls. This
// includes workers that the backward did not reach, because a reduction may wait for them.
void BackwardShare::finalize() {
  if (std::exchange(finalized_, true)) return;
  for (const rpc::AgentId& worker : pass_.met())
    if (worker != pass_.layer().core()->id())
      tell<&BackwardService::begin>(worker, nullptr, backward_, Stage::finalize);
  pass_.run_in_contexts([&] { pass_.hooks().finalize(); });
  for (rpc::Future<void>& work : std::exchange(work_, {})) {
    termination_.sent();
    work.then([pass = pass_.shared_from_this(), share = shared_from_this()](rpc::Result<void>&& done) {
      pass->post([pass, share, done = std::move(done)] {
        share->acknowledged(done.ok() ? rpc::Result<Report>(Report{}) : rpc::Result<Report>(done.error()));
      });
    });
  }
}

void BackwardShare::plan() {
  if (!std::exchange(planned_, true)) executor_->plan();
}

void BackwardShare::run() {
  run_held_ = pass_.turns().holds_inputs();
  if (!run_held_) run_nodes([&](rpc::ContextSwitch* within) { executor_->run(within); });
}

void BackwardShare::run_weights() {
  weights_held_ = pass_.turns().holds_weights();
  if (weights_held_) return;
  run_nodes([&](rpc::ContextSwitch* within) { executor_->run_weights(within); });
  pass_.turns().weights_ran();
}

void BackwardShare::take_turn() {
  if (error_ != nullptr) return;
  try {
    if (run_held_) run();
    if (weights_held_) run_weights();
  } catch (...) {
    return fail(std::current_exception());
  }
  settle();
  after_turn();
}

void BackwardShare::after_turn() {
  if (error_ != nullptr || !executor_->inputs_complete()) return;
  pass_.turns().inputs_ran();
  if (!pass_.turns().wants_weights()) return;
  try {
    run_weights();
  } catch (...) {
    fail(std::current_exception());
  }
}

void BackwardShare::run_nodes(const std::function<void(rpc::ContextSwitch*)>& run) {
  rpc::AgentCore& core = *pass_.layer().core();
  BackwardSpan span = BackwardSpan::of_nodes(core, trace_);
  trace_ = span.context();  // of the gradients that the nodes send
  const auto operators = span.operators(core);
  try {
    pass_.run_in_contexts([&] { run(operators.get()); });
  } catch (...) {
    span.failed(std::current_exception());
    throw;
  }
}

void BackwardShare::send_gradients(const rpc::AgentId& to, const MessageId& message,
                                   std::vector<at::Tensor> gradients, const tensor::DeviceMap& back) {
  const bool plain = !backward_.options.create_graph && back.empty() &&
                     std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) {
                       return !gradient.defined() || gradient.is_cpu();
                     });
  if (plain && engaged_by_ == to) {
    held_.push_back({message, std::move(gradients)});
    return;
  }
  const Gradients way(back, backward_.options.create_graph ? pass_.shared_from_this() : nullptr);
  tell<&BackwardService::gradients>(to, &way, backward_, message, std::move(gradients));
}

void BackwardShare::note(torch::autograd::Node& node) {
  if (const auto* received = dynamic_cast<RecvBackward*>(&node))
    found_[received->sender()].push_back(received->message());
}

void BackwardShare::announce() {
  for (auto& [sender, messages] : std::exchange(found_, {}))
    tell<&BackwardService::discover>(sender, nullptr, backward_, std::move(messages));
}

}  // namespace weft::dist_autograd
