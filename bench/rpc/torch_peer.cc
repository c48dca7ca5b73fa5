// PyTorch's RPC agent over TensorPipe, as LibTorch exports it, without Python and without pickled calls. A
// request is a bare message, and its callback answers with a bare message. The figures are therefore the
// costs of the agent itself, the minimum for any user.
#include "bench/rpc/work.h"

#include <torch/csrc/distributed/rpc/request_callback.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <mutex>

namespace weft::bench {
namespace {

namespace torch_rpc = torch::distributed::rpc;
using torch_rpc::JitFuture;
using torch_rpc::Message;
using torch_rpc::TensorPipeAgent;

constexpr int worker_threads = 16;  // PyTorch's default
constexpr float timeout_seconds = 60;
constexpr torch_rpc::worker_id_t server_id = 0, client_id = 1;

// The fields of a message next to its tensors.
struct Text {
  std::int64_t call = 0;      // the reply repeats it
  std::int64_t elements = 0;  // in a reply: the number of elements of all received tensors
  bool tensors_back = false;
};

c10::intrusive_ptr<Message> message(torch_rpc::MessageType type, const Text& text,
                                    std::vector<at::Tensor> tensors) {
  std::vector<char> payload(sizeof text);
  std::memcpy(payload.data(), &text, sizeof text);
  return c10::make_intrusive<Message>(std::move(payload), std::move(tensors), type);
}

Text text_of(const Message& message) {
  Text text;
  if (message.payload().size() != sizeof text) throw std::runtime_error("a message of another size");
  std::memcpy(&text, message.payload().data(), sizeof text);
  return text;
}

class Answer final : public torch_rpc::RequestCallback {
  c10::intrusive_ptr<JitFuture> processMessage(Message& request, std::vector<c10::Stream>) const override {
    Text text = text_of(request);
    for (const at::Tensor& tensor : request.tensors()) text.elements += tensor.numel();
    auto tensors = text.tensors_back ? request.tensors() : std::vector<at::Tensor>{};
    auto reply = message(torch_rpc::MessageType::SCRIPT_RET, text, std::move(tensors));
    reply->setId(request.id());
    auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    future->markCompleted(c10::IValue(std::move(reply)));
    return future;
  }
};

struct Transports {
  bool tcp_only;
  // "mpt_uv" is the channel with which PyTorch sends tensors between hosts: TCP with several lanes.
  std::optional<std::vector<std::string>> transports() const {
    return tcp_only ? std::optional(std::vector<std::string>{"uv"}) : std::nullopt;
  }
  std::optional<std::vector<std::string>> channels() const {
    return tcp_only ? std::optional(std::vector<std::string>{"mpt_uv", "basic"}) : std::nullopt;
  }
};

// Returns when both sides have created their agents. The agent is never destroyed: its graceful shutdown
// needs the other side, and is not measured.
TensorPipeAgent& start_agent(const std::string& store, torch_rpc::worker_id_t id, Transports how) {
  // Otherwise the agent listens at the address to which the host's name resolves.
  setenv("TP_SOCKET_IFNAME", "lo", 1);
  auto* agent = new std::shared_ptr<TensorPipeAgent>(std::make_shared<TensorPipeAgent>(
      c10::make_intrusive<c10d::FileStore>(store, 2), id == server_id ? "server" : "client", id, 2,
      torch_rpc::TensorPipeRpcBackendOptions(worker_threads, how.transports(), how.channels(),
                                             timeout_seconds, ""),
      std::unordered_map<std::string, torch_rpc::DeviceMap>{}, std::vector<c10::Device>{},
      std::make_unique<Answer>()));
  (*agent)->start();
  return **agent;
}

void serve(Transports how, ServerEnd& end) {
  const std::string store = scratch_path(".store");
  std::filesystem::remove(store);
  end.announce(store);
  start_agent(store, server_id, how);
  end.wait_for_client();
  std::filesystem::remove(store);
  _exit(0);
}

class Client {
 public:
  Client(TensorPipeAgent& agent, const Work& work, const Budget& budget)
      : agent_(agent), to_(agent.getWorkerInfo(server_id)), work_(work), latency_(budget), rate_(budget) {
    const std::size_t elements =
        work.kind == Kind::small_tensor ? small_elements : work.bytes / sizeof(float);
    if (elements != 0) tensors_.push_back(at::ones({static_cast<std::int64_t>(elements)}));
  }

  Figures run() {
    if (work_.kind == Kind::get) {
      for (std::int64_t number = 1;; ++number) {
        latency_.begin();
        auto reply = send(number);
        reply->waitAndThrow();
        check(*reply, number);
        if (!latency_.end()) return latency_.figures();
      }
    }
    const std::int64_t calls = work_.kind == Kind::throughput ? in_flight : 1;
    for (std::int64_t i = 0; i < calls; ++i) call(i);
    done_.get_future().get();
    if (work_.kind == Kind::throughput) return rate_.calls();
    return work_.kind == Kind::bulk ? rate_.bandwidth(work_.bytes) : latency_.figures();
  }

 private:
  bool back() const { return work_.kind == Kind::small_tensor || work_.kind == Kind::echo; }
  bool counted() const { return work_.kind == Kind::throughput || work_.kind == Kind::bulk; }

  c10::intrusive_ptr<JitFuture> send(std::int64_t number) {
    return agent_.send(to_, message(torch_rpc::MessageType::SCRIPT_CALL,
                                    {.call = number, .tensors_back = back()}, tensors_));
  }
  void check(JitFuture& reply, std::int64_t number) const {
    const auto answer = reply.value().toCustomClass<Message>();
    const Text text = text_of(*answer);
    const std::int64_t elements = tensors_.empty() ? 0 : tensors_.front().numel();
    bool right =
        text.call == number && text.elements == elements && answer->tensors().size() == (back() ? 1U : 0U);
    if (right && back()) {
      const at::Tensor& tensor = answer->tensors().front();
      right = tensor.numel() == elements && tensor.const_data_ptr<float>()[elements - 1] == 1;
    }
    expect_answer(right);
  }
  // Each reply's callback makes the next call, so that no thread waits.
  void call(std::int64_t number) {
    if (!counted()) latency_.begin();
    send(number)->addCallback([this, number](JitFuture& reply) { ended(reply, number); });
  }
  void ended(JitFuture& reply, std::int64_t number) {
    {
      std::lock_guard lock(mutex_);
      if (over_) return;
      try {
        if (reply.hasError()) std::rethrow_exception(reply.exception_ptr());
        check(reply, number);
      } catch (...) {
        over_ = true;
        return done_.set_exception(std::current_exception());
      }
      if (!(counted() ? rate_.count(1) : latency_.end())) {
        over_ = true;
        return done_.set_value();
      }
    }
    call(number + 1);
  }

  TensorPipeAgent& agent_;
  const torch_rpc::WorkerInfo& to_;
  const Work& work_;
  std::vector<at::Tensor> tensors_;
  std::mutex mutex_;  // guards the members below while calls are in flight
  LatencyMeter latency_;
  RateMeter rate_;
  bool over_ = false;
  std::promise<void> done_;
};

void measure(const Work& work, Transports how, ClientEnd& end) {
  TensorPipeAgent& agent = start_agent(end.address(), client_id, how);
  Client client(agent, work, end.budget());
  end.report(client.run());
  _exit(0);  // before callbacks of calls in flight use the destroyed client
}

std::optional<Contender> make(const char* peer, const Work& work, Transports how) {
  if (!is_plain(work.kind) || work.wire == Wire::unix_socket) return std::nullopt;
  if (how.tcp_only && work.wire != Wire::tcp) return std::nullopt;
  // The default agent always polls its shared memory. The TCP cases nevertheless include this agent, because
  // PyTorch uses it by default.
  const Wait wait = how.tcp_only ? Wait::blocking : Wait::spinning;
  if (work.wait != (work.wire == Wire::tcp ? Wait::blocking : wait)) return std::nullopt;
  Notes notes = notes_of(wait, work.kind == Kind::get ? "wait() on main" : "callback of the reply's future");
  notes["transport"] = how.tcp_only ? "uv" : "default";
  return contender(peer, notes,
                   {.serve = [=](ServerEnd& end) { serve(how, end); },
                    .measure = [=](ClientEnd& end) { measure(work, how, end); }});
}

}  // namespace

std::optional<Contender> torch_peer(const Work& work) { return make("torch-cpp", work, {.tcp_only = false}); }
std::optional<Contender> torch_uv_peer(const Work& work) {
  return make("torch-cpp-uv", work, {.tcp_only = true});
}

}  // namespace weft::bench
