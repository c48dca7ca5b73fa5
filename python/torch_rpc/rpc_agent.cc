#include <weft/python/torch_rpc/rpc_agent.h>

#include <weft/rpc/agent/stats.h>
#include <weft/rpc/codec/packed.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/within.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/job/environment.h>
#include <weft/rpc/tensor/tensor_codec.h>
#include <weft/rpc/transport/address.h>

#include <torch/csrc/distributed/rpc/agent_utils.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <iterator>
#include <sstream>

namespace weft::torch_rpc {
namespace {

using pytorch::JitFuture;
using pytorch::Message;

// A Message of PyTorch.
struct RpcMessage {
  std::int64_t type = 0, id = 0;
  rpc::Buffer payload;
  std::vector<tensor::Leaf> tensors;
};
WEFT_CODEC(RpcMessage, type, id, payload, tensors)

// tensors: those of the message.
RpcMessage to_weft(c10::intrusive_ptr<Message> message, const std::vector<at::Tensor>& tensors) {
  RpcMessage sent{message->type(), message->id(), {}, {}};
  for (const at::Tensor& tensor : tensors)
    sent.tensors.emplace_back(tensor.defined() ? tensor.detach().requires_grad_(tensor.requires_grad())
                                               : tensor);
  auto* bytes = reinterpret_cast<std::byte*>(message->payload().data());
  const std::size_t size = message->payload().size();
  sent.payload = {std::make_shared<c10::intrusive_ptr<Message>>(std::move(message)), bytes, size};
  return sent;
}

c10::intrusive_ptr<Message> from_weft(RpcMessage received) {
  std::vector<at::Tensor> tensors;
  for (const tensor::Leaf& leaf : received.tensors) tensors.push_back(leaf.tensor());
  const auto* bytes = reinterpret_cast<const char*>(received.payload.data());
  return c10::make_intrusive<Message>(std::vector<char>(bytes, bytes + received.payload.size()),
                                      std::move(tensors), static_cast<pytorch::MessageType>(received.type),
                                      received.id);
}

// Serves the messages of other workers.
struct MessageService {
  const pytorch::RequestCallback& callback;

  rpc::Future<RpcMessage> message(RpcMessage received) {
    const auto request = from_weft(std::move(received));
    auto promise = std::make_shared<rpc::Promise<RpcMessage>>();
    auto reply = promise->future();
    callback(*request, {})->addCallback([promise, id = request->id()](JitFuture& response) {
      promise->complete(rpc::capture([&] {
        auto message = response.hasError()
                           ? pytorch::createExceptionResponse(response.tryRetrieveErrorMessage(), id)
                           : response.value().toCustomClass<Message>();
        const auto tensors = std::move(*message).moveTensors();
        return to_weft(std::move(message), tensors);
      }));
    });
    return reply;
  }

  using Service = rpc::Service<"torch", rpc::Method<"message", &MessageService::message>>;
};

// The failure of a call, as PyTorch states it.
std::exception_ptr failure(const std::string& text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

void settle(JitFuture& future, rpc::Result<RpcMessage>&& reply) {
  if (!reply.ok()) return future.setError(failure(rpc::what_of(reply.error())));
  auto [response, storages] = pytorch::withStorages(from_weft(std::move(reply).get()));
  if (response->type() == pytorch::MessageType::EXCEPTION)
    return future.setError(failure({response->payload().begin(), response->payload().end()}));
  future.markCompleted(std::move(response), std::move(storages));
}

// init_method: of PyTorch.
rpc::AgentOptions agent_options(std::string name, const std::string& init_method, int worker_threads) {
  TORCH_CHECK(worker_threads > 0, "num_worker_threads must be positive, got ", worker_threads);
  std::string towards;
  if (init_method.starts_with("tcp://"))
    towards = rpc::Address::parse(init_method.substr(0, init_method.find_first_of("/?", 6))).host;
  rpc::AgentOptions agent = rpc::agent_from_environment(towards);
  agent.name = std::move(name);
  agent.same_user = !agent.insecure;
  agent.handler_threads = static_cast<std::size_t>(worker_threads);
  agent.limits.attachments = 1U << 16;  // a message may have as many large tensors
  return agent;
}

std::chrono::milliseconds milliseconds(float seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * pytorch::kSecToMsConversion));
}

}  // namespace

RpcAgent::RpcAgent(std::unique_ptr<pytorch::RequestCallback> serves,
                   const c10::intrusive_ptr<c10d::Store>& store, std::string name, pytorch::worker_id_t rank,
                   int world_size, const pytorch::RpcBackendOptions& options, int worker_threads)
    : pytorch::RpcAgent(pytorch::WorkerInfo(name, rank), std::move(serves),
                        milliseconds(options.rpcTimeoutSeconds)),
      store_("weft", store),
      worker_threads_(worker_threads),
      agent_(agent_options(name, options.initMethod, worker_threads)) {
  // The workers exchange their names and addresses.
  const auto key = [](int worker) { return "worker/" + std::to_string(worker); };
  std::string own = name;
  for (const std::string& address : agent_.addresses()) own += ' ' + address;
  store_.c10d::Store::set(key(rank), own);
  for (pytorch::worker_id_t worker = 0; worker < world_size; ++worker) {
    std::istringstream stated(store_.get_to_str(key(worker)));
    const std::vector<std::string> words{std::istream_iterator<std::string>(stated), {}};
    for (const pytorch::WorkerInfo& other : workers_)
      TORCH_CHECK(other.name_ != words.at(0), "RPC worker name ", other.name_, " is not unique");
    workers_.emplace_back(words.at(0), worker);
    peers_.emplace_back(agent_.core(),
                        agent_.core()->routes().to_name(words[0], {words.begin() + 1, words.end()}));
  }
}

RpcAgent::~RpcAgent() {
  if (rpcAgentRunning_) shutdown();
}

void RpcAgent::startImpl() {
  agent_.serve(std::make_shared<MessageService>(MessageService{*cb_}));
  sync();  // from here on, others send
}

c10::intrusive_ptr<JitFuture> RpcAgent::send(const pytorch::WorkerInfo& to,
                                             c10::intrusive_ptr<Message> message, float timeout_seconds,
                                             const pytorch::DeviceMap& devices) {
  TORCH_CHECK(rpcAgentRunning_, "Node ", workerInfo_.id_, " tried to send a message of type ",
              message->type(), ", but RPC is no longer running on this node.");
  for (const auto& [here, there] : devices)
    TORCH_CHECK(here.is_cpu() && there.is_cpu(),
                "The RPC backend WEFT sends tensors in host memory only, and the device map has ", here,
                " for ", there, ": move the tensors to the CPU.");
  const auto timeout =
      timeout_seconds == pytorch::kUnsetRpcTimeout ? rpcTimeout_.load() : milliseconds(timeout_seconds);
  {
    const rpc::MutexLock lock(mutex_);
    ++calls_;
  }
  // Counts the call until the callbacks of its future, which may send further messages, have run.
  std::shared_ptr<void> counted(nullptr, [this](void*) {
    const rpc::MutexLock lock(mutex_);
    --calls_;
    completed_.notify_all();
  });
  auto reply = peers_.at(static_cast<std::size_t>(to.id_))
                   .with({.timeout = rpc::no_timeout})
                   .call<&MessageService::message>(to_weft(message, message->tensors()));
  // PyTorch's timeout ends the wait only, because the protocol of RRefs relies on requests that are served.
  if (timeout.count() != 0) {
    std::string text = pytorch::kRpcTimeoutErrorStr;
    text.replace(text.find("{}"), 2, std::to_string(timeout.count()));
    reply = rpc::within(timeout, *agent_.core()->loops().front(), std::move(reply),
                        failure(pytorch::makeRPCError(text, pytorch::RPCErrorType::TIMEOUT)));
  }
  auto future = c10::make_intrusive<JitFuture>(c10::AnyClassType::get());
  // The message is kept until then, because the end of its tensors may take the GIL.
  reply
      .then(callbacks_,
            [this, future, message = std::move(message),
             counted = std::move(counted)](rpc::Result<RpcMessage>&& reply) mutable -> rpc::Result<void> {
              const rpc::HandlerPool::Blocking blocking(callbacks_);
              settle(*future, std::move(reply));
              message.reset();
              counted.reset();
              return {};
            })
      .then([future](rpc::Result<void>&& ran) {  // not ok: callbacks_ has ended, or the reply was malformed
        if (!ran.ok()) future->setErrorIfNeeded(ran.error());
      });
  return future;
}

const pytorch::WorkerInfo& RpcAgent::getWorkerInfo(const std::string& name) const {
  for (const pytorch::WorkerInfo& worker : workers_)
    if (worker.name_ == name) return worker;
  TORCH_CHECK(false, "could not find destination ", name);
}

const pytorch::WorkerInfo& RpcAgent::getWorkerInfo(pytorch::worker_id_t rank) const {
  TORCH_CHECK(rank >= 0 && static_cast<std::size_t>(rank) < workers_.size(), "could not find destination ",
              rank);
  return workers_[static_cast<std::size_t>(rank)];
}

void RpcAgent::join(bool /*shutdown*/, float timeout) {
  if (timeout > 0) store_.setTimeout(milliseconds(timeout));
  for (int calls = 1; calls != 0;) {
    {
      rpc::MutexLock lock(mutex_);
      completed_.wait(lock, [this]() WEFT_REQUIRES(mutex_) { return calls_ == 0; });
    }
    sync();
    // Handlers may have made calls in the meantime. From here to the sum, no worker begins or completes a
    // call.
    const rpc::MutexLock lock(mutex_);
    calls = pytorch::syncCallCount(store_, static_cast<int>(workers_.size()), calls_);
  }
}

void RpcAgent::sync() { pytorch::syncCallCount(store_, static_cast<int>(workers_.size())); }

void RpcAgent::drain(std::chrono::nanoseconds timeout) {
  (void)rpc::capture([&] { agent_.drain(timeout).get(); });
}

void RpcAgent::shutdownImpl() {
  agent_.shut_down();
  callbacks_.join();
}

std::unordered_map<std::string, std::string> RpcAgent::getMetrics() {
  const rpc::AgentCounts counts = agent_.counts();
  std::unordered_map<std::string, std::string> metrics{
      {"agent.thread_pool_size", std::to_string(worker_threads_)},
      {"agent.client_active_calls", std::to_string(counts.waiting)},
      {"agent.server_active_calls", std::to_string(counts.serving)},
      {"agent.connections", std::to_string(counts.connections)},
      {"agent.bytes_sent", std::to_string(counts.bytes_sent)},
      {"agent.bytes_received", std::to_string(counts.bytes_received)},
  };
  const rpc::MutexLock lock(mutex_);
  if (isGILProfilingEnabled())
    metrics["agent.gil_average_wait_time_us"] = std::to_string(
        static_cast<std::uint64_t>(gil_waited_.count()) / std::max<std::uint64_t>(gil_waits_, 1));
  return metrics;
}

void RpcAgent::addGilWaitTime(std::chrono::microseconds waited) {
  const rpc::MutexLock lock(mutex_);
  ++gil_waits_;
  gil_waited_ += waited;
}

}  // namespace weft::torch_rpc
