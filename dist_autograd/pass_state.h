// PassState: one worker's part of one pass: what it sent, whom it spoke to, its gradients, and its share of a
// backward.
//
// Life: open (calls are made and served in it), closed while it has a share in a backward, then ended by
// release, by a failure or by its creator's death. Owned by the agent's autograd AutogradLayer; nodes refer
// to it weakly. Thread-safe: the forward members and the gradients are guarded by a mutex; its share in a
// backward runs on the pass's own serial executor, so that a pass is one line of work on each worker while
// many passes run side by side.
#pragma once

#include <weft/dist_autograd/backward_share.h>
#include <weft/dist_autograd/pass_graph.h>
#include <weft/dist_autograd/pass_hooks.h>
#include <weft/dist_autograd/pass_turns.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/serial_executor.h>
#include <weft/rpc/tensor/on_streams.h>

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

namespace weft::dist_autograd {

class AutogradLayer;

class WEFT_EXPORT PassState final : public GradientSink, public std::enable_shared_from_this<PassState> {
 public:
  struct Leaf {
    at::Tensor leaf, gradient;
  };

  PassState(std::shared_ptr<AutogradLayer> layer, PassId id);
  ~PassState() override;

  const PassId& id() const { return id_; }
  AutogradLayer& layer() const { return *layer_; }

  // --- Forward; any thread ---
  void check_alive() const;  // throws the error that the pass ended with
  void check_open() const;   // the same, or failed_precondition where it takes no more calls
  MessageId next_message();
  void add_send(const MessageId& message, NodePtr node);
  void remove_send(const MessageId& message);  // the receiver never saw the message
  void meet(const rpc::AgentId& peer);         // this worker exchanges calls of the pass with it
  std::set<rpc::AgentId> met() const;
  enum class Direction { outgoing, incoming };
  void call_began(Direction direction);
  void call_ended(Direction direction);
  // Once no call of the pass is under way from here, and, unless this worker serves one itself, none at this
  // worker.
  void when_quiet(bool incoming_too, rpc::Callback job);

  // --- Gradients; any thread ---
  // As LibTorch's AccumulateGrad does into `.grad`: laid out like the leaf, in place unless the backward is
  // recorded. Gradients of two leaves never share memory.
  void accumulate(const at::Tensor& leaf, at::Tensor gradient, std::size_t references) override;
  // Ready on the calling thread's current streams. undefined: the pass reached the leaf with no gradient.
  at::Tensor gradient(const at::Tensor& leaf) const;
  std::vector<Leaf> gradients() const;

  // --- What layers above attach; any thread ---
  PassHooks& hooks() { return hooks_; }
  PassTurns& turns() { return turns_; }
  void on_end(rpc::Callback job);  // once, when the pass ends here, however; at once where it has
  // From now on this worker's part of the backwards runs there, one job at a time, instead of on the agent's
  // handler threads: on the threads of a pipeline stage, say. Which of its passes such an executor serves
  // first is its own choice; turns() holds nodes back. Jobs that the executor drops end this worker's part.
  // The pass keeps the executor until its last job there has run: it must not be destroyed on its own
  // threads.
  void run_on(std::shared_ptr<rpc::Executor> executor);
  // From a hook on gradients or a node that runs here, failed_precondition elsewhere: the backward ends
  // only after this work, and fails with its error. Nothing waits for it before the backward's last stage.
  void complete_after(rpc::Future<void> work);

  // --- Backward; any thread ---
  // A name for a backward that begins here, which lasts until end_backward(). failed_precondition, and
  // nothing has changed, where another backward runs or has used up the graph.
  BackwardId begin_backward();
  void end_backward(bool refused = false);
  // Begins this worker's share, and takes no new calls: false where it had one in this backward already.
  // failed_precondition where another backward is under way, or has used up the graph.
  void close(const Backward& backward, rpc::UniqueFunction<void(rpc::Result<bool>)> done);
  // Runs `use(share, done)` on the share in that backward, which begins now unless it has; or done(error).
  template <class Use>
  void with_share(const Backward& backward, BackwardShare::Done done, Use use);
  rpc::Future<void> add_root(const Backward& backward, at::Tensor root, at::Tensor gradient);
  // The backward was refused before any of its nodes ran: its share ends, and the pass is as before it. False
  // where this worker has no share in it.
  rpc::Future<bool> cancel(const BackwardId& backward);
  // The backward is over: its share ends. Names of what was never reached.
  rpc::Future<std::vector<std::string>> finish(const BackwardId& backward);
  std::uint64_t backwards() const;  // that this worker took part in
  bool had_backward() const;        // one has begun here, not refused, or this worker took part in one
  bool in_backward() const;         // it takes part in one now
  WorkerGraph graph(const std::vector<at::Tensor>& roots) const;

  // --- For its share, on the serial executor ---
  void post(rpc::Callback job) { serial_.post(std::move(job)); }
  // Runs `body`, which runs nodes or hooks: in the pass's contexts, on the thread that running_here() tells.
  void run_in_contexts(const std::function<void()>& body);
  void failed(const std::exception_ptr& error);
  // Messages of a backward that are not acknowledged, by their receivers.
  void told(const rpc::AgentId& worker);
  void answered(const rpc::AgentId& worker);
  std::vector<rpc::AgentId> awaited() const;
  // From a node that runs here.
  void send_gradients(const rpc::AgentId& to, const MessageId& message, std::vector<at::Tensor> gradients,
                      const tensor::DeviceMap& back);
  bool running_here() const;  // the calling thread runs this pass's nodes

  // The pass is over on this worker. error: null for a release.
  void end(std::exception_ptr error);

 private:
  class Ending;
  class Threads;
  BackwardShare& share_in(const Backward& backward);  // on the serial executor

  const std::shared_ptr<AutogradLayer> layer_;
  const PassId id_;
  const std::unique_ptr<Threads> threads_;  // of serial_
  rpc::SerialExecutor serial_;

  mutable std::mutex mutex_;   // guards what follows, up to share_
  bool closed_ = false;        // a backward runs here
  bool finished_ = false;      // one that used up the graph has begun
  bool leading_ = false;       // a backward that was begun here runs
  std::uint64_t begun_ = 0;    // backwards that were named here
  std::uint64_t refused_ = 0;  // of these
  std::uint64_t shares_ = 0;   // backwards that this worker took part in
  bool ended_ = false;
  std::exception_ptr error_;
  std::uint64_t messages_ = 0;
  std::map<MessageId, NodePtr> sends_;
  std::set<rpc::AgentId> met_;
  std::size_t outgoing_ = 0, incoming_ = 0;
  struct Quiet {
    bool incoming_too;
    rpc::Callback job;
  };
  std::vector<Quiet> quiet_;
  struct Held {
    Leaf leaf;
    mutable tensor::StreamMarks written;  // how far the stream had come that wrote the gradient last
  };
  std::unordered_map<const c10::TensorImpl*, Held> gradients_;
  std::vector<rpc::Callback> end_jobs_;
  std::map<rpc::AgentId, std::size_t> told_;  // not acknowledged
  PassHooks hooks_;                           // guards itself
  PassTurns turns_;                           // likewise

  std::shared_ptr<BackwardShare> share_;  // on the serial executor
  std::atomic<std::thread::id> runner_{};
};

template <class Use>
void PassState::with_share(const Backward& backward, BackwardShare::Done done, Use use) {
  post([self = shared_from_this(), backward, done = std::move(done), use = std::move(use)]() mutable {
    BackwardShare* share = nullptr;
    try {
      share = &self->share_in(backward);
    } catch (...) {
      return done(std::current_exception());
    }
    use(*share, std::move(done));
  });
}

}  // namespace weft::dist_autograd
