// PassState: one worker's part of one pass: what it sent, whom it spoke to, its gradients, and its share of a
// backward.
//
// Life: open (calls are made and served in it), then for each backward closed, planned and run, then ended by
// release, by a failure or by its creator's death. Owned by the agent's autograd Context; nodes refer to it
// weakly. Thread-safety: the forward members and the gradients are guarded by a mutex; the backward members
// run on the pass's own serial executor, so that a pass is one line of work on each worker while many passes
// run side by side.
#pragma once

#include <weft/dist_autograd/engine/node_executor.h>
#include <weft/dist_autograd/ids.h>
#include <weft/dist_autograd/termination.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/serial_executor.h>

#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

namespace weft::dist_autograd {

class Context;

struct BackwardOptions {
  bool retain_graph = false;  // keep what the forward saved: another backward may follow over the same graph
};
WEFT_CODEC(BackwardOptions, retain_graph)

class WEFT_EXPORT PassState final : public GradientSink, public std::enable_shared_from_this<PassState> {
 public:
  using Done = rpc::UniqueFunction<void(std::exception_ptr)>;
  struct Leaf {
    at::Tensor leaf, gradient;
  };

  PassState(std::shared_ptr<Context> context, PassId id);
  ~PassState() override;

  const PassId& id() const { return id_; }

  // --- Forward; any thread ---
  void check_open()
      const;  // throws failed_precondition where the pass takes no more calls, or the error it ended with
  MessageId next_message();
  void add_send(const MessageId& message, NodePtr node);
  void remove_send(const MessageId& message);  // its message never arrived, or failed
  void meet(const rpc::AgentId& peer);         // this worker exchanges calls of the pass with it
  std::set<rpc::AgentId> met() const;
  enum class Direction { outgoing, incoming };
  void call_began(Direction direction);
  void call_ended(Direction direction);
  // Once no call of the pass is under way from here, and, unless this worker serves one itself, none at this
  // worker.
  void when_quiet(bool incoming_too, rpc::Job job);

  // --- Gradients; any thread ---
  void accumulate(const at::Tensor& leaf, at::Tensor gradient) override;
  at::Tensor gradient(const at::Tensor& leaf) const;  // undefined: the pass reached it with none
  std::vector<Leaf> gradients() const;

  // --- What layers above attach; any thread ---
  // Entered around every run of this pass's nodes on this worker (the version of an object's parameters that
  // the pass reads). One for each owner; all passes enter in the order of the owners' addresses, so that none
  // waits in a circle.
  void add_context(const void* owner, std::shared_ptr<rpc::ContextSwitch> context);
  void on_end(rpc::Job job);  // once, when the pass ends here, however; at once where it has

  // --- Backward ---
  // No new calls: an executor waits for the gradients of all that was sent. False where it was closed
  // already.
  bool close(BackwardOptions options);
  rpc::Future<void> add_root(at::Tensor root, at::Tensor gradient);
  // Runs from the roots here, as an engaging message: done when all that it set off is over everywhere.
  void start(Done done);
  void deliver(const MessageId& message, std::vector<at::Tensor> gradients, Done acknowledge);
  rpc::Future<std::vector<std::string>> finish();  // names of what was never reached
  void send_gradients(const rpc::AgentId& to, const MessageId& message, std::vector<at::Tensor> gradients);
  bool running_here() const;  // the calling thread runs this pass's nodes

  // The pass is over on this worker. error: null for a release.
  void end(std::exception_ptr error);

 private:
  void post(rpc::Job job) { serial_.post(std::move(job)); }
  void run();
  void settle();
  void fail(std::exception_ptr error);
  void require_executor() const;

  const std::shared_ptr<Context> context_;
  const PassId id_;
  rpc::SerialExecutor serial_;

  mutable std::mutex mutex_;  // guards what follows, up to the serial executor's
  bool closed_ = false;
  bool finished_ = false;  // a backward without retain_graph has run
  bool ended_ = false;
  std::exception_ptr error_;
  std::uint64_t messages_ = 0;
  std::map<MessageId, NodePtr> sends_;
  std::set<rpc::AgentId> met_;
  std::size_t outgoing_ = 0, incoming_ = 0;
  struct Quiet {
    bool incoming_too;
    rpc::Job job;
  };
  std::vector<Quiet> quiet_;
  std::unordered_map<const c10::TensorImpl*, Leaf> gradients_;
  std::map<const void*, std::shared_ptr<rpc::ContextSwitch>> contexts_;
  std::vector<rpc::Job> end_jobs_;

  // On the serial executor.
  std::unique_ptr<NodeExecutor> executor_;
  std::map<MessageId, NodePtr> expected_;
  BackwardOptions options_;
  bool planned_ = false;
  Termination<Done> termination_;
  std::atomic<std::thread::id> runner_{};
};

}  // namespace weft::dist_autograd
