// PassState: one worker's part of one pass. It has the messages that this worker sent, the workers with which
// it exchanged calls, its gradients, and its share of a backward.
//
// States: open (the worker makes and serves calls of the pass), closed while it has a share in a backward,
// then ended by a release, by a failure or by the death of the pass's creator. Owned by the agent's
// AutogradLayer; nodes refer to it weakly. Thread-safe: a mutex guards the members of the forward and the
// gradients. The share in a backward runs on the pass's own serial executor, so the nodes of a pass run one
// at a time on each worker, while many passes run concurrently.
#pragma once

#include <weft/dist_autograd/backward.h>
#include <weft/dist_autograd/engine/gradient_sink.h>
#include <weft/dist_autograd/engine/node_ptr.h>
#include <weft/dist_autograd/pass_hooks.h>
#include <weft/dist_autograd/pass_turns.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/serial_executor.h>
#include <weft/rpc/tensor/on_streams.h>

#include <functional>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>

namespace weft::dist_autograd {

class AutogradLayer;
class BackwardShare;
struct WorkerGraph;

class WEFT_EXPORT PassState final : public GradientSink, public std::enable_shared_from_this<PassState> {
 public:
  // Constructed by the AutogradLayer.
  PassState(std::shared_ptr<AutogradLayer> layer, PassId id);
  ~PassState() override;

  // Constant.
  const PassId& id() const { return id_; }
  AutogradLayer& layer() const { return *layer_; }

  // --- Forward; any thread ---
  void check_alive() const;  // throws the error that ended the pass
  void check_open() const;   // like check_alive(); failed_precondition if the pass accepts no more calls
  MessageId next_message();
  void add_send(const MessageId& message, NodePtr node);
  void remove_send(const MessageId& message);  // the receiver never saw the message
  void meet(const rpc::AgentId& peer);         // this worker exchanges calls of the pass with the peer
  std::set<rpc::AgentId> met() const;
  enum class Direction { outgoing, incoming };
  void call_began(Direction direction);
  void call_ended(Direction direction);
  // Calls `job` when this worker has no outstanding call of the pass. incoming_too: the job also waits until
  // this worker serves no call of the pass. It must be false on a worker that may call when_quiet() while it
  // serves such a call. The end of the pass also calls the job.
  void when_quiet(bool incoming_too, rpc::Callback job);

  // --- Gradients; any thread ---
  // Adds to the gradient of the leaf, as LibTorch's AccumulateGrad adds to `.grad`: the sum has the layout of
  // the leaf, and changes in place unless the backward is recorded. Gradients of two leaves never share
  // memory.
  void accumulate(const at::Tensor& leaf, at::Tensor gradient, std::size_t references) override;
  // gradient(), gradients(): ready on the calling thread's current streams. undefined: the leaf got no
  // gradient in the pass.
  at::Tensor gradient(const at::Tensor& leaf) const;
  std::vector<LeafGradient> gradients() const;

  // --- Attachments of higher layers; any thread ---
  PassHooks& hooks() { return hooks_; }
  PassTurns& turns() { return turns_; }
  // Calls `job` once, when the pass ends on this worker for any reason; at once if the pass has ended.
  void on_end(rpc::Callback job);
  // From now on, this worker's part of the backwards runs on this executor, one job at a time, instead of the
  // agent's handler threads: for example on the threads of a pipeline stage. The executor chooses which of
  // its passes runs first; turns() holds nodes back. If the executor drops a job, this worker's part ends.
  // The pass keeps the executor until the pass's last job there has run. Keep another reference to the
  // executor until then: otherwise one of the executor's own threads would destroy it.
  void run_on(std::shared_ptr<rpc::Executor> executor);
  // Call it from a hook on gradients or from a node that runs here; elsewhere it throws failed_precondition.
  // The backward completes only after this work. If the work fails, the backward fails with its error. Only
  // the last stage of the backward waits for the work.
  void complete_after(rpc::Future<void> work);

  // --- Backward; any thread ---
  // Returns the id of a backward that starts here. The id is valid until end_backward(). If another backward
  // runs or has used up the graph, throws failed_precondition and has no effect.
  BackwardId begin_backward();
  // refused: true if the backward was refused before any of its nodes ran; had_backward() then ignores it.
  void end_backward(bool refused = false);
  // Begins this worker's share in the backward, and accepts no new calls. Passes false to `done` if the
  // worker already had a share in this backward, and failed_precondition if another backward runs or has used
  // up the graph.
  void close(const Backward& backward, rpc::UniqueFunction<void(rpc::Result<bool>)> done);
  // Calls `use(share, done)` with this worker's share in the backward. If the share has not begun, it begins
  // now; if it cannot begin, calls done(error).
  template <class Use>
  void with_share(const Backward& backward, rpc::UniqueFunction<void(rpc::Result<Report>)> done, Use use);
  // Begins the share if necessary, and adds the root to it (BackwardShare::add_root).
  rpc::Future<void> add_root(const Backward& backward, at::Tensor root, at::Tensor gradient);
  // The backward was refused before any of its nodes ran: the share ends, and the pass is again in the state
  // before the backward. False if this worker has no share in the backward.
  rpc::Future<bool> cancel(const BackwardId& backward);
  // The backward is complete: the share ends. Returns the names of the nodes whose gradients never arrived.
  rpc::Future<std::vector<std::string>> finish(const BackwardId& backward);
  std::uint64_t backwards() const;  // the number of backwards in which this worker took part
  bool had_backward() const;  // a backward started here and was not refused, or this worker took part in one
  bool in_backward() const;   // this worker takes part in a backward now
  WorkerGraph graph(const std::vector<at::Tensor>& roots) const;

  // --- For the share, on the serial executor ---
  void post(rpc::Callback job) { serial_.post(std::move(job)); }
  // Runs `body`, which runs nodes or hooks, within the contexts of hooks(). Meanwhile running_here() is true
  // on this thread.
  void run_in_contexts(const std::function<void()>& body);
  // The share has failed. The first error becomes the error of the pass.
  void failed(const std::exception_ptr& error);
  // sent_to(): a message of the backward was sent to `worker`. answered(): `worker` has acknowledged one of
  // these messages. awaited(): the workers that have not acknowledged all of them.
  void sent_to(const rpc::AgentId& worker);
  void answered(const rpc::AgentId& worker);
  std::vector<rpc::AgentId> awaited() const;
  // Called by a node that runs here: BackwardShare::send_gradients().
  void send_gradients(const rpc::AgentId& to, const MessageId& message, std::vector<at::Tensor> gradients,
                      const tensor::DeviceMap& back);
  bool running_here() const;  // the calling thread runs this pass's nodes

  // Ends the pass on this worker. error: null for a release.
  void end(std::exception_ptr error);

 private:
  class Ending;
  class Threads;
  BackwardShare& share_in(const Backward& backward);  // on the serial executor

  const std::shared_ptr<AutogradLayer> layer_;
  const PassId id_;
  const std::unique_ptr<Threads> threads_;  // run the jobs of serial_
  rpc::SerialExecutor serial_;

  mutable rpc::Mutex mutex_;
  bool closed_ WEFT_GUARDED_BY(mutex_) = false;        // a backward runs here
  bool finished_ WEFT_GUARDED_BY(mutex_) = false;      // a backward that uses up the graph has begun
  bool leading_ WEFT_GUARDED_BY(mutex_) = false;       // a backward that this worker started is running
  std::uint64_t begun_ WEFT_GUARDED_BY(mutex_) = 0;    // the number of backwards that got an id here
  std::uint64_t refused_ WEFT_GUARDED_BY(mutex_) = 0;  // the number of backwards that were refused
  std::uint64_t shares_ WEFT_GUARDED_BY(mutex_) = 0;   // the number of backwards with a share here
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t messages_ WEFT_GUARDED_BY(mutex_) = 0;
  std::map<MessageId, NodePtr> sends_ WEFT_GUARDED_BY(mutex_);
  std::set<rpc::AgentId> met_ WEFT_GUARDED_BY(mutex_);
  std::size_t outgoing_ WEFT_GUARDED_BY(mutex_) = 0, incoming_ WEFT_GUARDED_BY(mutex_) = 0;
  struct Quiet {
    bool incoming_too;
    rpc::Callback job;
  };
  std::vector<Quiet> quiet_ WEFT_GUARDED_BY(mutex_);
  struct Held {
    LeafGradient leaf;
    mutable tensor::StreamMarks written;  // the stream's position after the last write of the gradient
  };
  std::unordered_map<const c10::TensorImpl*, Held> gradients_ WEFT_GUARDED_BY(mutex_);
  std::vector<rpc::Callback> end_jobs_ WEFT_GUARDED_BY(mutex_);
  // The number of messages that each worker has not acknowledged.
  std::map<rpc::AgentId, std::size_t> unanswered_ WEFT_GUARDED_BY(mutex_);

  PassHooks hooks_;                       // thread-safe
  PassTurns turns_;                       // thread-safe
  std::shared_ptr<BackwardShare> share_;  // on the serial executor
  std::atomic<std::thread::id> runner_{};
};

template <class Use>
void PassState::with_share(const Backward& backward, rpc::UniqueFunction<void(rpc::Result<Report>)> done,
                           Use use) {
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
