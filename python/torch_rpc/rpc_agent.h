// RpcAgent: the backend `WEFT` of torch.distributed.rpc, an rpc::Agent as a
// torch::distributed::rpc::RpcAgent.
//
// Every message of PyTorch is one call of the method torch.message, whose handler passes it to PyTorch's
// RequestCallback. Handlers run on the agent's handler threads, and the callbacks of PyTorch's futures on
// threads of their own; in a Python program, only these threads take the GIL. The workers exchange their
// names and addresses through the c10d store, and use it again only in sync() and join(). The loss of a
// worker fails the calls to it; other calls continue. Errors: RuntimeError, for a timeout with PyTorch's
// text. Tensors on accelerators are refused. Thread-safety: as PyTorch's RpcAgent. Call its constructor,
// shutdown() and its destructor without the GIL.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/core/mutex.h>

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <string>
#include <unordered_map>
#include <vector>

namespace weft::torch_rpc {

namespace pytorch = torch::distributed::rpc;

inline constexpr int default_worker_threads = 16;  // as in Python

class WEFT_EXPORT RpcAgent final : public pytorch::RpcAgent {
 public:
  // serves: serves the requests of other workers. worker_threads: the number of requests that the agent
  // serves at the same time. Blocks until all workers have called it. The agent's
  // addresses and credentials are those of a job's member (rpc/job/environment.h), where the host of
  // options.initMethod precedes MASTER_ADDR. Throws c10::Error if a name is not
  // unique or worker_threads is not positive, and the store's error
  // if a worker is missing.
  RpcAgent(std::unique_ptr<pytorch::RequestCallback> serves, const c10::intrusive_ptr<c10d::Store>& store,
           std::string name, pytorch::worker_id_t rank, int world_size,
           const pytorch::RpcBackendOptions& options, int worker_threads = default_worker_threads);
  ~RpcAgent() override;

  c10::intrusive_ptr<pytorch::JitFuture> send(const pytorch::WorkerInfo& to,
                                              c10::intrusive_ptr<pytorch::Message> message,
                                              float timeout_seconds,
                                              const pytorch::DeviceMap& devices) override;
  const pytorch::WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const pytorch::WorkerInfo& getWorkerInfo(pytorch::worker_id_t rank) const override;
  std::vector<pytorch::WorkerInfo> getWorkerInfos() const override { return workers_; }

  // join() blocks until no worker has a call in flight. All workers call it.
  void join(bool shutdown, float timeout) override;
  void sync() override;
  void drain(std::chrono::nanoseconds timeout);  // blocks until no call is in flight, at most for `timeout`
  void startImpl() override;
  void shutdownImpl() override;
  std::unordered_map<std::string, std::string> getMetrics() override;

 private:
  void addGilWaitTime(std::chrono::microseconds waited) override;

  c10d::PrefixStore store_;
  std::vector<pytorch::WorkerInfo> workers_;  // by rank
  const int worker_threads_;
  rpc::HandlerPool callbacks_{1};  // runs the callbacks of futures, each of which may block

  rpc::Mutex mutex_;
  rpc::Condition completed_;
  int calls_ WEFT_GUARDED_BY(mutex_) = 0;  // whose future has not completed
  std::uint64_t gil_waits_ WEFT_GUARDED_BY(mutex_) = 0;
  std::chrono::microseconds gil_waited_ WEFT_GUARDED_BY(mutex_){0};

  rpc::Agent agent_;
  std::vector<rpc::Peer> peers_;  // by rank
};

}  // namespace weft::torch_rpc
