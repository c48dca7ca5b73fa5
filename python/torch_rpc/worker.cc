#include <weft/python/torch_rpc/worker.h>

#include <weft/rpc/job/environment.h>
#include <weft/rpc/transport/address.h>

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace weft::torch_rpc {
namespace {

// The store of the first init_rpc() of Python programs.
c10::intrusive_ptr<c10d::Store> meet(const pytorch::RpcBackendOptions& options, int rank, int world_size) {
  const rpc::Address place = rpc::Address::parse(options.initMethod);
  c10d::TCPStoreOptions store;
  store.port = static_cast<std::uint16_t>(std::stoul(place.port));
  store.isServer = rank == 0;
  store.numWorkers = static_cast<std::size_t>(world_size);
  store.waitWorkers = false;
  store.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(options.rpcTimeoutSeconds * 1000));
  return c10::make_intrusive<c10d::PrefixStore>("rpc_prefix_0",
                                                c10::make_intrusive<c10d::TCPStore>(place.host, store));
}

}  // namespace

pytorch::RpcBackendOptions Worker::environment() {
  const auto host = rpc::detail::variable("MASTER_ADDR"), port = rpc::detail::variable("MASTER_PORT");
  TORCH_CHECK(host && port, "Worker: MASTER_ADDR and MASTER_PORT state where the workers meet: set both");
  return {pytorch::kDefaultRpcTimeoutSeconds, rpc::Address{"tcp", *host, *port, {}}.text()};
}

Worker::Worker(const std::string& name, pytorch::worker_id_t rank, int world_size,
               const pytorch::RpcBackendOptions& options, int worker_threads) {
  torch::distributed::autograd::DistAutogradContainer::init(rank);
  agent_ = std::make_shared<RpcAgent>(std::make_unique<pytorch::RequestCallbackNoPython>(),
                                      meet(options, rank, world_size), name, rank, world_size, options,
                                      worker_threads);
  // Messages state types of TorchScript.
  agent_->setTypeResolver(std::make_shared<pytorch::TypeResolver>([](const c10::QualifiedName& name) {
    return c10::StrongTypePtr(nullptr, torch::jit::ScriptTypeParser().parseType(name.qualifiedName()));
  }));
  pytorch::RpcAgent::setCurrentRpcAgent(agent_);
  try {
    agent_->start();
  } catch (...) {
    end();
    throw;
  }
}

Worker::~Worker() {
  agent_->drain(std::chrono::seconds(5));
  end();
}

void Worker::end() {
  agent_->shutdown();
  pytorch::RpcAgent::setCurrentRpcAgent(nullptr);
}

}  // namespace weft::torch_rpc
