#include <weft/dist_autograd/pass_state.h>

#include <weft/dist_autograd/backward_service.h>
#include <weft/dist_autograd/context.h>
#include <weft/dist_autograd/nodes.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>

namespace weft::dist_autograd {
namespace {

std::exception_ptr released_error(const PassId& id) {
  return std::make_exception_ptr(
      rpc::Error(rpc::ErrorKind::failed_precondition, to_string(id) + " was released"));
}

}  // namespace

std::string to_string(const PassId& id) {
  char text[48];
  std::snprintf(text, sizeof text, "pass %08llx:%llu", static_cast<unsigned long long>(id.origin >> 32),
                static_cast<unsigned long long>(id.number));
  return text;
}

PassState::PassState(std::shared_ptr<Context> context, PassId id)
    : context_(std::move(context)), id_(id), serial_(context_->core()->handlers()) {}

PassState::~PassState() = default;

// --- Forward ---

void PassState::check_open() const {
  std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (ended_) std::rethrow_exception(released_error(id_));
  if (closed_ || finished_)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     to_string(id_) + " takes no more calls: its backward has begun");
}

MessageId PassState::next_message() {
  std::lock_guard lock(mutex_);
  return {context_->core()->id().incarnation, ++messages_};
}

void PassState::add_send(const MessageId& message, NodePtr node) {
  std::lock_guard lock(mutex_);
  if (!ended_) sends_.emplace(message, std::move(node));
}

void PassState::remove_send(const MessageId& message) {
  NodePtr node;
  std::lock_guard lock(mutex_);
  if (auto found = sends_.extract(message)) node = std::move(found.mapped());
}

void PassState::meet(const rpc::AgentId& peer) {
  std::lock_guard lock(mutex_);
  met_.insert(peer);
}

std::set<rpc::AgentId> PassState::met() const {
  std::lock_guard lock(mutex_);
  return met_;
}

void PassState::call_began(Direction direction) {
  std::lock_guard lock(mutex_);
  ++(direction == Direction::outgoing ? outgoing_ : incoming_);
}

void PassState::call_ended(Direction direction) {
  std::vector<Quiet> quiet;
  {
    std::lock_guard lock(mutex_);
    --(direction == Direction::outgoing ? outgoing_ : incoming_);
    if (outgoing_ != 0) return;
    const auto still = std::partition(quiet_.begin(), quiet_.end(), [this](const Quiet& waiting) {
      return waiting.incoming_too && incoming_ != 0;
    });
    quiet.assign(std::make_move_iterator(still), std::make_move_iterator(quiet_.end()));
    quiet_.erase(still, quiet_.end());
  }
  for (auto& waiting : quiet) waiting.job();
}

void PassState::when_quiet(bool incoming_too, rpc::Job job) {
  {
    std::lock_guard lock(mutex_);
    if (outgoing_ != 0 || (incoming_too && incoming_ != 0)) {
      quiet_.push_back({incoming_too, std::move(job)});
      return;
    }
  }
  job();
}

// --- Gradients ---

void PassState::accumulate(const at::Tensor& leaf, at::Tensor gradient) {
  at::NoGradGuard no_grad;
  std::lock_guard lock(mutex_);
  Leaf& entry = gradients_[leaf.unsafeGetTensorImpl()];
  if (!entry.leaf.defined()) {
    entry = {leaf, std::move(gradient)};
  } else {
    entry.gradient = entry.gradient + gradient;
  }
}

at::Tensor PassState::gradient(const at::Tensor& leaf) const {
  std::lock_guard lock(mutex_);
  const auto found = gradients_.find(leaf.unsafeGetTensorImpl());
  return found == gradients_.end() ? at::Tensor() : found->second.gradient;
}

std::vector<PassState::Leaf> PassState::gradients() const {
  std::vector<Leaf> all;
  std::lock_guard lock(mutex_);
  for (const auto& [impl, entry] : gradients_) all.push_back(entry);
  return all;
}

void PassState::add_context(const void* owner, std::shared_ptr<rpc::ContextSwitch> context) {
  std::lock_guard lock(mutex_);
  contexts_.try_emplace(owner, std::move(context));
}

void PassState::on_end(rpc::Job job) {
  {
    std::lock_guard lock(mutex_);
    if (!ended_) {
      end_jobs_.push_back(std::move(job));
      return;
    }
  }
  job();
}

// --- Backward ---

bool PassState::close(BackwardOptions options) {
  std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (ended_) std::rethrow_exception(released_error(id_));
  if (closed_) return false;
  if (finished_)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     to_string(id_) + ": a second backward needs retain_graph in the first");
  closed_ = true;
  finished_ = !options.retain_graph;
  post([self = shared_from_this(), options,
        sends = finished_ ? std::exchange(sends_, {}) : sends_]() mutable {
    self->options_ = options;
    self->planned_ = false;
    self->expected_ = std::move(sends);
    ExecutorOptions how;
    how.retain_graph = options.retain_graph;
    self->executor_ =
        std::make_unique<NodeExecutor>(*self, how, [self = self.get()](torch::autograd::Node& node) {
          const auto* received = dynamic_cast<RecvBackward*>(&node);
          if (received != nullptr && received->pass_id() != self->id_)
            throw rpc::Error(rpc::ErrorKind::failed_precondition,
                             "the graph of " + to_string(self->id_) + " reaches a tensor that arrived in " +
                                 to_string(received->pass_id()) + ": " + node.name());
        });
    try {
      for (const auto& [message, node] : self->expected_) self->executor_->expect(node);
    } catch (...) {
      self->fail(std::current_exception());
    }
  });
  return true;
}

void PassState::require_executor() const {
  if (executor_ != nullptr) return;
  std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  throw rpc::Error(rpc::ErrorKind::failed_precondition, to_string(id_) + " has no backward under way here");
}

rpc::Future<void> PassState::add_root(at::Tensor root, at::Tensor gradient) {
  rpc::Promise<void> promise;
  auto future = promise.future();
  post([self = shared_from_this(), root = std::move(root), gradient = std::move(gradient),
        promise = std::move(promise)]() mutable {
    promise.complete(rpc::capture([&] {
      self->require_executor();
      self->executor_->add_root(root, gradient);
    }));
  });
  return future;
}

void PassState::start(Done done) {
  post([self = shared_from_this(), done = std::move(done)]() mutable {
    try {
      self->require_executor();
    } catch (...) {
      return done(std::current_exception());
    }
    const bool engaged = self->termination_.engage(done);
    self->run();
    if (!engaged) done(nullptr);
    self->settle();
  });
}

void PassState::deliver(const MessageId& message, std::vector<at::Tensor> gradients, Done acknowledge) {
  post([self = shared_from_this(), message, gradients = std::move(gradients),
        acknowledge = std::move(acknowledge)]() mutable {
    try {
      self->require_executor();
      auto found = self->expected_.extract(message);
      if (!found)
        throw rpc::Error(rpc::ErrorKind::invalid_argument,
                         to_string(self->id_) + ": gradients of a message that was not sent");
      if (!std::exchange(self->planned_, true)) self->executor_->plan();
      // Trailing tensors that received nothing may be missing; undefined gradients are what LibTorch gives
      // for them.
      gradients.resize(found.mapped()->num_inputs());
      self->executor_->deliver(found.mapped(), std::move(gradients));
    } catch (...) {
      acknowledge(std::current_exception());
      return self->fail(std::current_exception());
    }
    const bool engaged = self->termination_.engage(acknowledge);
    self->run();
    if (!engaged) acknowledge(nullptr);
    self->settle();
  });
}

void PassState::run() {
  if (executor_ == nullptr) return;
  std::vector<std::shared_ptr<rpc::ContextSwitch>> contexts;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [owner, context] : contexts_) contexts.push_back(context);
  }
  std::exception_ptr error;
  std::size_t entered = 0;
  runner_ = std::this_thread::get_id();
  try {
    for (; entered < contexts.size(); ++entered) contexts[entered]->enter();
    if (!std::exchange(planned_, true)) executor_->plan();
    executor_->run();
  } catch (...) {
    error = std::current_exception();
  }
  runner_ = std::thread::id{};
  while (entered != 0) contexts[--entered]->leave();
  if (error != nullptr) fail(error);
}

bool PassState::running_here() const { return runner_.load() == std::this_thread::get_id(); }

void PassState::send_gradients(const rpc::AgentId& to, const MessageId& message,
                               std::vector<at::Tensor> gradients) {
  termination_.sent();
  const auto acknowledged = [self = shared_from_this()](std::exception_ptr error) {
    self->post([self, error] {
      self->termination_.acknowledged();
      if (error != nullptr) return self->fail(error);
      self->settle();
    });
  };
  try {
    context_->ask<&BackwardService::gradients>(to, id_, message, std::move(gradients))
        .then([acknowledged](rpc::Result<void>&& result) {
          acknowledged(result.ok() ? nullptr : result.error());
        });
  } catch (...) {
    acknowledged(std::current_exception());
  }
}

void PassState::settle() {
  Done done;
  if (termination_.idle(done)) done(nullptr);
}

void PassState::fail(std::exception_ptr error) {
  executor_.reset();
  expected_.clear();
  {
    std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = error;
  }
  Done done;
  if (termination_.disengage(done)) done(error);
}

rpc::Future<std::vector<std::string>> PassState::finish() {
  rpc::Promise<std::vector<std::string>> promise;
  auto future = promise.future();
  post([self = shared_from_this(), promise = std::move(promise)]() mutable {
    auto blocked = rpc::capture([&] {
      self->require_executor();
      return self->planned_ || !self->expected_.empty() ? self->executor_->blocked()
                                                        : std::vector<std::string>{};
    });
    self->executor_.reset();
    self->expected_.clear();
    {
      std::lock_guard lock(self->mutex_);
      self->closed_ = false;
    }
    promise.complete(std::move(blocked));
  });
  return future;
}

void PassState::end(std::exception_ptr error) {
  std::vector<rpc::Job> jobs;
  std::map<MessageId, NodePtr> sends;
  std::unordered_map<const c10::TensorImpl*, Leaf> gradients;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    if (error_ == nullptr) error_ = error != nullptr ? error : released_error(id_);
    jobs = std::exchange(end_jobs_, {});
    sends.swap(sends_);
    gradients.swap(gradients_);
  }
  for (auto& job : jobs) job();
  post([self = shared_from_this(), error = error != nullptr ? error : released_error(id_)] {
    self->fail(error);
    std::lock_guard lock(self->mutex_);
    self->contexts_.clear();
  });
}

}  // namespace weft::dist_autograd
