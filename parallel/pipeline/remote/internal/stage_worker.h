// StageWorker: one rank of a pipeline on its agent. It has the rank's stages, and the thread that computes
// them.
//
// A step begins here when run() was called for each of the rank's stages. The values that other ranks send
// wait in the step's exchange; they may arrive before the step begins. A value that this rank sends is a call
// to the PipelineService of its receiver, answered when the receiver uses the value. So a rank has a limited
// number of values in flight along each edge: one more than the schedule needs (schedule::liveness).
//
// The stages compute in the contexts of the step's pass: they read the version of the parameters that the
// pass reads. When the rank has computed the gradients of all parameters, the pass gets them, unless the
// stages step their parameters themselves. The step ends with the pass. Values are sent through host memory.
//
// Owned by its StageModules and by the step that runs. Thread-safe.
#pragma once

#include <weft/dist_autograd/pass_state.h>
#include <weft/parallel/pipeline/internal/in_flight.h>
#include <weft/parallel/pipeline/internal/stage_parameters.h>
#include <weft/parallel/pipeline/internal/stage_thread.h>
#include <weft/parallel/pipeline/layer_graph.h>
#include <weft/parallel/pipeline/loss.h>
#include <weft/parallel/pipeline/remote/internal/worker_messages.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/mutex.h>

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <set>

namespace weft::pipeline {

class WEFT_EXPORT StageWorker final : public std::enable_shared_from_this<StageWorker> {
 public:
  // graph: includes the modules of the rank's stages, which are moved to the plan's device.
  StageWorker(const rpc::AgentCore& core, const WorkerPlan& plan, StageGraph graph,
              schedule::Schedule schedule, Loss loss);
  ~StageWorker();

  const StageGraph& graph() const { return graph_; }  // of all stages; those of other ranks have no module
  const std::set<int>& stages() const { return stages_; }  // the rank's stages

  // Call it once for each of the rank's stages in a step. Fails with the first failure of the step on this
  // rank.
  rpc::Future<StageReport> run(int stage, std::shared_ptr<dist_autograd::PassState> pass, StagePart part);
  // A value from another rank. Completes when the value is used. aborted: the step has ended here.
  // permission_denied, invalid_argument: the sender's stage does not give this value.
  rpc::Future<void> put(const rpc::AgentId& from, ValueMessage message);
  // The optimizer of a stage; call it between two steps. failed_precondition: the schedule has no optimizer
  // steps.
  dist_optim::StepTarget& optimizer(int stage);
  bool has_optimizer(int stage) const { return parameters_.at(stage).optimizer() != nullptr; }
  std::vector<at::Generator> generators() const;  // the stages may draw from them

  // after_step(): runs the job on the rank's thread, after the running step. after_passes(): runs the job
  // later, when the passes of all steps have also ended on this agent.
  void after_step(rpc::Callback job) { thread_.post(std::move(job)); }
  void after_passes(rpc::Callback job);
  // workers: by rank. They are used from the next step on.
  void set_workers(const rpc::AgentCore& core, std::vector<rpc::AgentId> workers);
  void end(const rpc::Error& error);  // the agent ends: all steps end with the error
  void join();                        // call it after end(): waits until the thread has ended

 private:
  struct Step;
  std::shared_ptr<Step> step_of(std::uint64_t number) WEFT_REQUIRES(mutex_);  // null: the step has ended
  StageReport compute(const std::shared_ptr<Step>& step);
  void execute(const std::shared_ptr<Step>& step);
  void give_up(const std::shared_ptr<Step>& step, const std::exception_ptr& error);
  std::optional<rpc::Error> refusal(const rpc::AgentId& from, const ValueMessage& message);
  void pass_ended();
  void send(const std::shared_ptr<Step>& step, const ValueExchange::Key& key, Values values);

  const PipelineId id_;
  const int rank_;
  const std::chrono::nanoseconds timeout_;
  const bool mean_loss_;
  const StageGraph graph_;
  const schedule::Schedule schedule_;
  const Loss loss_;
  const std::vector<c10::Device> devices_;  // by rank; may be empty
  const std::set<int> stages_;
  const Credits credits_;
  const std::vector<ValueExchange::Key> ties_;
  std::map<int, StageParameters> parameters_;  // by stage of the rank; used on the thread

  rpc::Mutex mutex_;
  std::vector<rpc::AgentId> workers_ WEFT_GUARDED_BY(mutex_);  // by rank
  std::vector<rpc::Peer> peers_ WEFT_GUARDED_BY(mutex_);       // by rank
  std::size_t open_passes_ WEFT_GUARDED_BY(mutex_) = 0;        // run() calls whose pass has not ended
  std::vector<rpc::Callback> after_passes_ WEFT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<Step>> steps_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t over_ WEFT_GUARDED_BY(mutex_) = 0;  // steps up to this number have ended
  std::optional<rpc::Error> ended_ WEFT_GUARDED_BY(mutex_);

  StageThread thread_;  // destroyed first
};

}  // namespace weft::pipeline
