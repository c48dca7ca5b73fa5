// Worker: a C++ program as a worker of torch.distributed.rpc, next to Python programs with the backend WEFT.
//
//   TORCH_LIBRARY_FRAGMENT(aten, library) { library.def("table_lookup(Tensor ids) -> Tensor", &lookup); }
//   torch_rpc::Worker worker("table", 0, 3);
//
//   lookup = weft.rpc.operator("aten::table_lookup(Tensor ids) -> Tensor")  # in Python
//   rows = rpc.rpc_sync("table", lookup, args=(ids,))
//
// It serves the operators of this process and of LibTorch that return one value, and the messages of RRefs
// and of distributed autograd. Calls of Python functions fail. Python workers end by
// rpc.shutdown(graceful=False), because PyTorch's graceful shutdown calls Python functions on all workers. A
// process has one Worker, because what PyTorch's RPC keeps for it lives as long as the process.
// Thread-safety: constructor and destructor on one thread.
#pragma once

#include <weft/python/torch_rpc/rpc_agent.h>

#include <memory>
#include <string>

namespace weft::torch_rpc {

class WEFT_EXPORT Worker {
 public:
  // Blocks until all workers have connected. The workers meet through the store of init_rpc() at
  // options.initMethod (tcp://HOST:PORT), where rank 0 is its server. Throws c10::Error as RpcAgent does, and
  // the store's error if a worker is missing after options.rpcTimeoutSeconds.
  Worker(const std::string& name, pytorch::worker_id_t rank, int world_size,
         const pytorch::RpcBackendOptions& options = environment(),
         int worker_threads = default_worker_threads);
  // Waits until the calls that it serves have ended, at most 5 s.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // 60 s, and the store at MASTER_ADDR and MASTER_PORT, as in Python. Throws c10::Error if these
  // variables are not set.
  static pytorch::RpcBackendOptions environment();

 private:
  void end();

  std::shared_ptr<RpcAgent> agent_;
};

}  // namespace weft::torch_rpc
