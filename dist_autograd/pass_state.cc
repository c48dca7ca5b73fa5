#include <weft/dist_autograd/pass_state.h>

#include <weft/dist_autograd/engine/internal/accumulate_gradient.h>
#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/internal/backward_share.h>
#include <weft/dist_autograd/internal/pass_graph.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace weft::dist_autograd {
namespace {

std::exception_ptr released_error(const PassId& id) {
  return std::make_exception_ptr(
      rpc::Error(rpc::ErrorKind::failed_precondition, to_string(id) + " was released"));
}

rpc::Error running_error(const PassId& id) {
  return {rpc::ErrorKind::failed_precondition, to_string(id) + ": another backward is running"};
}

rpc::Error graph_used_error(const PassId& id) {
  return {rpc::ErrorKind::failed_precondition,
          to_string(id) + ": a second backward needs retain_graph in the first"};
}

}  // namespace

std::string to_string(const PassId& id) {
  char text[48];
  std::snprintf(text, sizeof text, "pass %08llx:%llu", static_cast<unsigned long long>(id.origin >> 32),
                static_cast<unsigned long long>(id.number));
  return text;
}

class PassState::Threads final : public rpc::Executor {
 public:
  explicit Threads(rpc::Executor& handlers) : handlers_(handlers) {}

  void use(std::shared_ptr<rpc::Executor> executor) {
    rpc::MutexLock lock(mutex_);
    own_ = std::move(executor);
  }
  void post(rpc::Callback job) override {
    const auto own = this->own();
    own != nullptr ? own->post(std::move(job)) : handlers_.post(std::move(job));
  }
  std::shared_ptr<rpc::ExceptionSink> exceptions() const override { return handlers_.exceptions(); }

 private:
  std::shared_ptr<rpc::Executor> own() const {
    rpc::MutexLock lock(mutex_);
    return own_;
  }

  rpc::Executor& handlers_;
  mutable rpc::Mutex mutex_;
  std::shared_ptr<rpc::Executor> own_ WEFT_GUARDED_BY(mutex_);  // null: the handlers
};

PassState::PassState(std::shared_ptr<AutogradLayer> layer, PassId id)
    : layer_(std::move(layer)),
      id_(id),
      threads_(std::make_unique<Threads>(layer_->core()->handlers())),
      serial_(*threads_),
      turns_([this] {
        post([self = shared_from_this()] {
          if (const auto share = self->share_) share->take_turn();
        });
      }) {}

PassState::~PassState() = default;

// --- Forward ---

void PassState::check_alive() const {
  rpc::MutexLock lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void PassState::check_open() const {
  check_alive();
  rpc::MutexLock lock(mutex_);
  if (closed_ || finished_)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     to_string(id_) + " accepts no more calls: its backward has begun");
}

MessageId PassState::next_message() {
  rpc::MutexLock lock(mutex_);
  return {layer_->core()->id().incarnation, ++messages_};
}

void PassState::add_send(const MessageId& message, NodePtr node) {
  rpc::MutexLock lock(mutex_);
  if (!ended_) sends_.emplace(message, std::move(node));
}

void PassState::remove_send(const MessageId& message) {
  NodePtr node;
  rpc::MutexLock lock(mutex_);
  if (auto found = sends_.extract(message)) node = std::move(found.mapped());
}

void PassState::meet(const rpc::AgentId& peer) {
  rpc::MutexLock lock(mutex_);
  met_.insert(peer);
}

std::set<rpc::AgentId> PassState::met() const {
  rpc::MutexLock lock(mutex_);
  return met_;
}

void PassState::call_began(Direction direction) {
  rpc::MutexLock lock(mutex_);
  ++(direction == Direction::outgoing ? outgoing_ : incoming_);
}

void PassState::call_ended(Direction direction) {
  std::vector<Quiet> quiet;
  {
    rpc::MutexLock lock(mutex_);
    --(direction == Direction::outgoing ? outgoing_ : incoming_);
    if (outgoing_ != 0) return;
    const auto still =
        std::partition(quiet_.begin(), quiet_.end(), [this](const Quiet& waiting) WEFT_REQUIRES(mutex_) {
          return waiting.incoming_too && incoming_ != 0;
        });
    quiet.assign(std::make_move_iterator(still), std::make_move_iterator(quiet_.end()));
    quiet_.erase(still, quiet_.end());
  }
  for (auto& waiting : quiet) waiting.job();
}

void PassState::when_quiet(bool incoming_too, rpc::Callback job) {
  {
    rpc::MutexLock lock(mutex_);
    if (outgoing_ != 0 || (incoming_too && incoming_ != 0)) {
      quiet_.push_back({incoming_too, std::move(job)});
      return;
    }
  }
  job();
}

// --- Gradients ---

void PassState::accumulate(const at::Tensor& leaf, at::Tensor gradient, std::size_t references) {
  at::Tensor complete;
  {
    rpc::MutexLock lock(mutex_);
    Held& held = gradients_[leaf.unsafeGetTensorImpl()];
    at::Tensor& sum = held.leaf.gradient;
    held.leaf.leaf = leaf;
    held.written.pass_on(sum);
    // The graph of a recorded gradient does not describe the sum.
    if (sum.defined() && sum.requires_grad() && !at::GradMode::is_enabled()) sum = sum.detach().clone();
    accumulate_gradient(leaf, sum, gradient, references);
    held.written = {};
    held.written.note(sum);
    complete = sum;
  }
  if (!hooks_.has(leaf)) return;
  hooks_.reached(leaf, complete);
  rpc::MutexLock lock(mutex_);
  const auto found = gradients_.find(leaf.unsafeGetTensorImpl());
  if (found == gradients_.end()) return;  // the pass has ended meanwhile
  Held& held = found->second;
  held.leaf.gradient = std::move(complete);
  held.written = {};
  held.written.note(held.leaf.gradient);
}

at::Tensor PassState::gradient(const at::Tensor& leaf) const {
  rpc::MutexLock lock(mutex_);
  const auto found = gradients_.find(leaf.unsafeGetTensorImpl());
  if (found == gradients_.end()) return {};
  found->second.written.pass_on(found->second.leaf.gradient);
  return found->second.leaf.gradient;
}

std::vector<LeafGradient> PassState::gradients() const {
  std::vector<LeafGradient> all;
  rpc::MutexLock lock(mutex_);
  for (const auto& [impl, held] : gradients_) {
    held.written.pass_on(held.leaf.gradient);
    all.push_back(held.leaf);
  }
  return all;
}

void PassState::run_on(std::shared_ptr<rpc::Executor> executor) { threads_->use(std::move(executor)); }

void PassState::on_end(rpc::Callback job) {
  {
    rpc::MutexLock lock(mutex_);
    if (!ended_) {
      end_jobs_.push_back(std::move(job));
      return;
    }
  }
  job();
}

// --- Backward ---

BackwardId PassState::begin_backward() {
  rpc::MutexLock lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (finished_) throw graph_used_error(id_);
  if (leading_ || closed_) throw running_error(id_);
  leading_ = true;
  return {layer_->core()->id().incarnation, ++begun_};
}

void PassState::end_backward(bool refused) {
  rpc::MutexLock lock(mutex_);
  leading_ = false;
  if (refused) ++refused_;
}

bool PassState::had_backward() const {
  rpc::MutexLock lock(mutex_);
  return begun_ > refused_ || shares_ > 0;
}

BackwardShare& PassState::share_in(const Backward& backward) {
  std::map<MessageId, NodePtr> sends;
  {
    rpc::MutexLock lock(mutex_);
    if (error_ != nullptr) std::rethrow_exception(error_);
    if (ended_) std::rethrow_exception(released_error(id_));
    if (share_ != nullptr) {
      if (share_->backward().id == backward.id) return *share_;
      // If the graph was kept, the previous backward has finished on all workers. Otherwise no other backward
      // may follow it.
      if (share_->backward().options.keeps_graph()) throw running_error(id_);
    }
    if (finished_) throw graph_used_error(id_);
    closed_ = true;
    finished_ = !backward.options.keeps_graph();
    ++shares_;
    sends = finished_ ? std::exchange(sends_, {}) : sends_;
  }
  hooks_.begin_backward();
  share_ = std::make_shared<BackwardShare>(*this, backward, std::move(sends));
  return *share_;
}

void PassState::close(const Backward& backward, rpc::UniqueFunction<void(rpc::Result<bool>)> done) {
  {
    rpc::MutexLock lock(mutex_);
    closed_ = true;
  }
  post([self = shared_from_this(), backward, done = std::move(done)]() mutable {
    const bool had = self->share_ != nullptr && self->share_->backward().id == backward.id;
    auto fresh = rpc::capture([&] {
      if (const auto error = self->share_in(backward).error()) std::rethrow_exception(error);
      return !had;
    });
    if (!fresh.ok()) {
      rpc::MutexLock lock(self->mutex_);
      self->closed_ = self->share_ != nullptr;
    }
    done(std::move(fresh));
  });
}

rpc::Future<void> PassState::add_root(const Backward& backward, at::Tensor root, at::Tensor gradient) {
  rpc::Promise<void> promise;
  auto future = promise.future();
  post([self = shared_from_this(), backward, root = std::move(root), gradient = std::move(gradient),
        promise = std::move(promise)]() mutable {
    promise.complete(rpc::capture([&] { self->share_in(backward).add_root(root, std::move(gradient)); }));
  });
  return future;
}

rpc::Future<bool> PassState::cancel(const BackwardId& backward) {
  rpc::Promise<bool> promise;
  auto future = promise.future();
  post([self = shared_from_this(), backward, promise = std::move(promise)]() mutable {
    const bool had = self->share_ != nullptr && self->share_->backward().id == backward;
    if (had) {
      std::map<MessageId, NodePtr> sends = self->share_->take_sends();
      self->share_ = nullptr;
      rpc::MutexLock lock(self->mutex_);
      if (!self->ended_) self->sends_.merge(sends);
      self->closed_ = self->finished_ = false;  // as share_in() found them
      --self->shares_;
    }
    promise.complete(had);
  });
  return future;
}

rpc::Future<std::vector<std::string>> PassState::finish(const BackwardId& backward) {
  rpc::Promise<std::vector<std::string>> promise;
  auto future = promise.future();
  post([self = shared_from_this(), backward, promise = std::move(promise)]() mutable {
    std::vector<std::string> unreached;
    std::exception_ptr error;
    if (self->share_ != nullptr && self->share_->backward().id == backward) {
      unreached = self->share_->unreached();
      error = self->share_->error();
      self->share_ = nullptr;
      {
        rpc::MutexLock lock(self->mutex_);
        self->closed_ = false;
      }
      self->turns_.inputs_ran();
      self->turns_.weights_ran();
    }
    if (error != nullptr) return promise.fail(error);
    promise.complete(std::move(unreached));
  });
  return future;
}

std::uint64_t PassState::backwards() const {
  rpc::MutexLock lock(mutex_);
  return shares_;
}

bool PassState::in_backward() const {
  rpc::MutexLock lock(mutex_);
  return closed_ && !ended_;
}

WorkerGraph PassState::graph(const std::vector<at::Tensor>& roots) const {
  std::vector<NodePtr> nodes;
  for (const at::Tensor& root : roots) {
    if (!root.defined() || !root.requires_grad())
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "dot: a root does not require grad, expected roots that require grad");
    nodes.push_back(torch::autograd::impl::gradient_edge(root).function);
  }
  std::map<MessageId, NodePtr> sends;
  WorkerGraph graph{layer_->core()->id(), {}, {}};
  {
    rpc::MutexLock lock(mutex_);
    sends = sends_;
    graph.met.assign(met_.begin(), met_.end());
  }
  graph.nodes = describe_graph(sends, nodes);
  return graph;
}

void PassState::run_in_contexts(const std::function<void()>& body) {
  const auto contexts = hooks_.contexts();
  std::exception_ptr error;
  std::size_t entered = 0;
  runner_ = std::this_thread::get_id();
  try {
    for (; entered < contexts.size(); ++entered) contexts[entered]->enter();
    body();
  } catch (...) {
    error = std::current_exception();
  }
  runner_ = std::thread::id{};
  while (entered != 0) contexts[--entered]->leave();
  if (error != nullptr) std::rethrow_exception(error);
}

void PassState::complete_after(rpc::Future<void> work) {
  if (!running_here() || share_ == nullptr)
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        to_string(id_) + ": complete_after() may be called only by a hook or a node of a running backward");
  share_->complete_after(std::move(work));
}

void PassState::sent_to(const rpc::AgentId& worker) {
  rpc::MutexLock lock(mutex_);
  ++unanswered_[worker];
}

void PassState::answered(const rpc::AgentId& worker) {
  rpc::MutexLock lock(mutex_);
  if (const auto found = unanswered_.find(worker); found != unanswered_.end() && --found->second == 0)
    unanswered_.erase(found);
}

std::vector<rpc::AgentId> PassState::awaited() const {
  std::vector<rpc::AgentId> workers;
  rpc::MutexLock lock(mutex_);
  for (const auto& [worker, messages] : unanswered_) workers.push_back(worker);
  return workers;
}

bool PassState::running_here() const { return runner_.load() == std::this_thread::get_id(); }

void PassState::send_gradients(const rpc::AgentId& to, const MessageId& message,
                               std::vector<at::Tensor> gradients, const tensor::DeviceMap& back) {
  share_->send_gradients(to, message, std::move(gradients), back);
}

void PassState::failed(const std::exception_ptr& error) {
  rpc::MutexLock lock(mutex_);
  if (error_ == nullptr) error_ = error;
}

// The job that ends the share. If it is dropped because its executor has ended, it still releases the share:
// a wait for a share's end keeps the pass alive, and the pass its share.
class PassState::Ending {
 public:
  Ending(std::shared_ptr<PassState> pass, std::exception_ptr error)
      : pass_(std::move(pass)), error_(std::move(error)) {}
  Ending(Ending&&) noexcept = default;
  Ending& operator=(Ending&&) = delete;
  ~Ending() {
    if (pass_ != nullptr) std::exchange(pass_->share_, nullptr).reset();
  }
  void operator()() {
    const auto pass = std::exchange(pass_, nullptr);
    if (pass->share_ != nullptr) pass->share_->fail(error_);
    pass->hooks_.clear();
  }

 private:
  std::shared_ptr<PassState> pass_;
  std::exception_ptr error_;
};

void PassState::end(std::exception_ptr error) {
  std::vector<rpc::Callback> jobs;
  std::map<MessageId, NodePtr> sends;
  decltype(gradients_) gradients;
  {
    rpc::MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return;
    if (error_ == nullptr) error_ = error != nullptr ? error : released_error(id_);
    jobs = std::exchange(end_jobs_, {});
    for (Quiet& waiting : std::exchange(quiet_, {})) jobs.push_back(std::move(waiting.job));
    sends.swap(sends_);
    gradients.swap(gradients_);
  }
  for (auto& job : jobs) job();
  turns_.end(error != nullptr ? error : released_error(id_));
  post(Ending(shared_from_this(), error != nullptr ? error : released_error(id_)));
}

}  // namespace weft::dist_autograd
