#include <weft/python/torch_rpc/rpc_agent.h>

#include <weft/rpc/agent/stats.h>
#include <weft/rpc/codec/packed.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/job/environment.h>
#include <weft/rpc/tensor/tensor_codec.h>
#include <weft/rpc/transport/address.h>

#include <torch/csrc/distributed/rpc/agent_utils.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <atomic>

namespace weft::torch_rpc {
namespace {

using pytorch::JitFuture;
using pytorch::Message;

// A tensor of a message. A view that is not dense is sent with the memory that it spans, and keeps its
// strides.
struct RpcTensor {
  at::Tensor data;  // detached
  bool requires_grad = false;
  std::vector<std::int64_t> sizes, strides;  // of a view that is not dense; otherwise empty
};
WEFT_CODEC(RpcTensor, data, requires_grad, sizes, strides)

// A Message of PyTorch.
struct RpcMessage {
  std::int64_t type = 0, id = 0;
  rpc::Buffer payload;
  std::vector<RpcTensor> tensors;
};
WEFT_CODEC(RpcMessage, type, id, payload, tensors)

RpcTensor to_weft(at::Tensor tensor) {
  RpcTensor sent;
  sent.requires_grad = tensor.requires_grad();
  sent.data = sent.requires_grad ? tensor.detach() : std::move(tensor);
  if (!sent.data.defined() || sent.data.layout() != at::kStrided || sent.data.numel() == 0) return sent;
  // PyTorch copies a small view of large memory.
  if (!sent.data.is_non_overlapping_and_dense()) sent.data = pytorch::cloneSparseTensors({sent.data}).get(0);
  if (sent.data.is_non_overlapping_and_dense()) return sent;
  sent.sizes = sent.data.sizes().vec();
  sent.strides = sent.data.strides().vec();
  std::int64_t span = 1;
  for (std::size_t d = 0; d < sent.sizes.size(); ++d) span += (sent.sizes[d] - 1) * sent.strides[d];
  sent.data = sent.data.as_strided({span}, {1});
  return sent;
}

// tensors: those of the message.
RpcMessage to_weft(c10::intrusive_ptr<Message> message, std::vector<at::Tensor> tensors) {
  RpcMessage sent{message->type(), message->id(), {}, {}};
  for (at::Tensor& tensor : tensors) sent.tensors.push_back(to_weft(std::move(tensor)));
  auto* bytes = reinterpret_cast<std::byte*>(message->payload().data());
  const std::size_t size = message->payload().size();
  sent.payload = {std::make_shared<c10::intrusive_ptr<Message>>(std::move(message)), bytes, size};
  return sent;
}

c10::intrusive_ptr<Message> from_weft(RpcMessage received) {
  std::vector<at::Tensor> tensors;
  for (RpcTensor& tensor : received.tensors) {
    if (!tensor.sizes.empty()) tensor.data.as_strided_(tensor.sizes, tensor.strides);
    if (tensor.requires_grad) tensor.data.requires_grad_(true);
    tensors.push_back(std::move(tensor.data));
  }
  const auto* bytes = reinterpret_cast<const char*>(received.payload.data());
  return c10::make_intrusive<Message>(std::vector<char>(bytes, bytes + received.payload.size()),
                                      std::move(tensors), static_cast<pytorch::MessageType>(received.type),
                                      received.id);
}

// Serves the messages of other workers.
class MessageService {
 public:
  explicit MessageService(const pytorch::RequestCallback& callback) : callback_(callback) {}

  rpc::Future<RpcMessage> message(RpcMessage received) {
    const auto request = from_weft(std::move(received));
    auto promise = std::make_shared<rpc::Promise<RpcMessage>>();
    auto reply = promise->future();
    callback_(*request, {})->addCallback([promise, id = request->id()](JitFuture& response) {
      promise->complete(rpc::capture([&] {
        auto message = response.hasError()
                           ? pytorch::createExceptionResponse(response.tryRetrieveErrorMessage(), id)
                           : response.value().toCustomClass<Message>();
        auto tensors = std::move(*message).moveTensors();
        return to_weft(std::move(message), std::move(tensors));
      }));
    });
    return reply;
  }

  using Service = rpc::Service<"torch", rpc::Method<"message", &MessageService::message>>;

 private:
  const pytorch::RequestCallback& callback_;
};

// A call of this worker. PyTorch's timeout ends the wait only: the request is still sent and served, because
// the protocol of RRefs relies on that. So the call of weft has no deadline.
struct SentCall {
  c10::intrusive_ptr<JitFuture> future;
  std::chrono::milliseconds timeout;
  c10::intrusive_ptr<Message> message;  // kept until then, because the end of its tensors may take the GIL
  std::shared_ptr<void> counted;
  rpc::Loop::TimerId timer = 0;  // used on the loop only
  std::atomic_flag completed;

  void complete(rpc::Result<RpcMessage>&& reply) {
    if (completed.test_and_set()) return;
    if (!reply.ok()) {
      fail(rpc::what_of(reply.error()));
    } else {
      auto [response, storages] = pytorch::withStorages(from_weft(std::move(reply).get()));
      if (response->type() == pytorch::MessageType::EXCEPTION)
        fail({response->payload().begin(), response->payload().end()});
      else
        future->markCompleted(std::move(response), std::move(storages));
    }
    release();
  }
  void time_out() {
    if (completed.test_and_set()) return;
    std::string text = pytorch::kRpcTimeoutErrorStr;
    text.replace(text.find("{}"), 2, std::to_string(timeout.count()));
    fail(pytorch::makeRPCError(text, pytorch::RPCErrorType::TIMEOUT));
    release();
  }

 private:
  void fail(const std::string& text) { future->setError(std::make_exception_ptr(std::runtime_error(text))); }
  void release() {
    message.reset();
    counted.reset();
  }
};

rpc::AgentOptions agent_options(std::string name, int rank, int world_size,
                                const RpcBackendOptions& options) {
  const std::string& method = options.initMethod;
  const bool has_host = method.starts_with("tcp://");
  const auto variable = [&](const std::string& wanted) {
    return wanted == "MASTER_ADDR" && has_host
               ? std::optional(rpc::Address::parse(method.substr(0, method.find_first_of("/?", 6))).host)
               : rpc::detail::variable(wanted);
  };
  const std::string place =
      "file:///c10d?rank=" + std::to_string(rank) + "&world_size=" + std::to_string(world_size);
  rpc::AgentOptions agent = rpc::options_from(place, variable, rpc::local_address_towards);
  agent.name = std::move(name);
  agent.same_user = !agent.insecure;
  agent.handler_threads = static_cast<std::size_t>(options.worker_threads);
  agent.limits.attachments = 1U << 16;  // a message may have as many large tensors
  return agent;
}

std::chrono::milliseconds milliseconds(float seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * pytorch::kSecToMsConversion));
}

std::string address_key(std::size_t rank) { return "address/" + std::to_string(rank); }

}  // namespace

RpcBackendOptions::RpcBackendOptions(int worker_threads, float timeout_seconds, std::string init_method)
    : pytorch::RpcBackendOptions(timeout_seconds, std::move(init_method)), worker_threads(worker_threads) {
  TORCH_CHECK(worker_threads > 0, "num_worker_threads must be positive, got ", worker_threads);
}

RpcAgent::RpcAgent(std::unique_ptr<pytorch::RequestCallback> serves,
                   const c10::intrusive_ptr<c10d::Store>& store, std::string name, pytorch::worker_id_t rank,
                   int world_size, const RpcBackendOptions& options)
    : pytorch::RpcAgent(pytorch::WorkerInfo(name, rank), std::move(serves),
                        milliseconds(options.rpcTimeoutSeconds)),
      store_("weft", store),
      worker_threads_(options.worker_threads),
      agent_(agent_options(name, rank, world_size, options)) {
  const auto ranks = pytorch::collectNames(store_, rank, name, world_size);
  std::vector<std::string> names(ranks.size());
  for (const auto& [worker, place] : ranks) names.at(static_cast<std::size_t>(place)) = worker;
  for (const std::string& worker : names)
    workers_.emplace_back(worker, static_cast<std::int64_t>(workers_.size()));
}

RpcAgent::~RpcAgent() {
  if (rpcAgentRunning_) shutdown();
}

void RpcAgent::startImpl() {
  agent_.serve(std::make_shared<MessageService>(*cb_));
  const rpc::Buffer own = rpc::pack(agent_.addresses());
  store_.c10d::Store::set(address_key(static_cast<std::size_t>(workerInfo_.id_)),
                          std::string(reinterpret_cast<const char*>(own.data()), own.size()));
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    std::vector<std::uint8_t> stated = store_.get(address_key(rank));
    const rpc::Buffer packed(nullptr, reinterpret_cast<std::byte*>(stated.data()), stated.size());
    const auto& core = agent_.core();
    peers_.emplace_back(
        core, core->routes().to_name(workers_[rank].name_, rpc::unpack<std::vector<std::string>>(packed)));
  }
  sync();
}

c10::intrusive_ptr<JitFuture> RpcAgent::send(const pytorch::WorkerInfo& to,
                                             c10::intrusive_ptr<Message> message, float timeout_seconds,
                                             const pytorch::DeviceMap& devices) {
  TORCH_CHECK(rpcAgentRunning_, "Node ", workerInfo_.id_, " tried to send a message of type ",
              message->type(), ", but RPC is no longer running on this node.");
  TORCH_CHECK(devices.empty(), "The RPC backend WEFT has no device maps: move the tensors to the CPU.");
  std::chrono::milliseconds timeout = rpcTimeout_.load();
  if (timeout_seconds != pytorch::kUnsetRpcTimeout) timeout = milliseconds(timeout_seconds);

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
  auto future = c10::make_intrusive<JitFuture>(c10::AnyClassType::get());
  const std::shared_ptr<SentCall> call(new SentCall{future, timeout, message, std::move(counted)});
  RpcMessage sent = to_weft(message, message->tensors());
  rpc::Loop& loop = *agent_.core()->loops().front();
  if (timeout.count() != 0)
    loop.dispatch([this, &loop, call, when = rpc::later(loop.now(), timeout)] {
      call->timer = loop.schedule(when, [this, weak = std::weak_ptr(call)] {
        callbacks_.post([this, weak] {
          const rpc::HandlerPool::Blocking blocking(callbacks_);
          if (const auto late = weak.lock()) late->time_out();
        });
      });
    });
  peers_.at(static_cast<std::size_t>(to.id_))
      .with({.timeout = rpc::no_timeout})
      .call<&MessageService::message>(std::move(sent))
      .then([&loop, call](rpc::Result<RpcMessage>&& reply) {
        loop.dispatch([&loop, call] {
          if (call->timer != 0) loop.cancel(call->timer);
        });
        return std::move(reply);
      })
      .then(callbacks_,
            [this, call](rpc::Result<RpcMessage>&& reply) -> rpc::Result<void> {
              const rpc::HandlerPool::Blocking blocking(callbacks_);
              call->complete(std::move(reply));
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
