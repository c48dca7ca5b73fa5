// PyTorch's RPC agent over TensorPipe, as LibTorch exports it, without Python and without a pickled call: the
// request is a bare message, which its callback answers with one. So these are the agent's own costs, the
// least that a user pays.
#include "bench/rpc/work.h"

#include <torch/csrc/distributed/rpc/request_callback.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <unistd.h>

#include <cstdlib>
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

c10::intrusive_ptr<Message> message(torch_rpc::MessageType type, std::vector<at::Tensor> tensors = {}) {
  return c10::make_intrusive<Message>(std::vector<char>(sizeof(std::int64_t)), std::move(tensors), type);
}

class Answer final : public torch_rpc::RequestCallback {
  c10::intrusive_ptr<JitFuture> processMessage(Message& request, std::vector<c10::Stream>) const override {
    auto reply = message(torch_rpc::MessageType::SCRIPT_RET);
    reply->setId(request.id());
    auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    future->markCompleted(c10::IValue(std::move(reply)));
    return future;
  }
};

struct Transports {
  bool tcp_only;
  // "mpt_uv" is what PyTorch moves tensors by between hosts: TCP, several lanes.
  std::optional<std::vector<std::string>> transports() const {
    return tcp_only ? std::optional(std::vector<std::string>{"uv"}) : std::nullopt;
  }
  std::optional<std::vector<std::string>> channels() const {
    return tcp_only ? std::optional(std::vector<std::string>{"mpt_uv", "basic"}) : std::nullopt;
  }
};

// Comes back when both sides have made theirs. Never destroyed: its orderly end needs the other side too, and
// is not what is measured.
TensorPipeAgent& start_agent(const std::string& store, torch_rpc::worker_id_t id, Transports how) {
  setenv("TP_SOCKET_IFNAME", "lo", 1);  // else it listens at what the host's name resolves to
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
    if (work.bytes != 0)
      tensors_.push_back(at::ones({static_cast<std::int64_t>(work.bytes / sizeof(float))}));
  }

  Figures run() {
    if (work_.kind == Kind::get) {
      do {
        latency_.begin();
        send()->waitAndThrow();
      } while (latency_.end());
      return latency_.figures();
    }
    const std::size_t calls = work_.kind == Kind::throughput ? in_flight : 1;
    for (std::size_t i = 0; i < calls; ++i) call();
    done_.get_future().get();
    if (work_.kind == Kind::throughput) return rate_.calls();
    return work_.kind == Kind::bulk ? rate_.bandwidth(work_.bytes) : latency_.figures();
  }

 private:
  c10::intrusive_ptr<JitFuture> send() {
    return agent_.send(to_, message(torch_rpc::MessageType::SCRIPT_CALL, tensors_));
  }
  // Each reply's callback makes the next call, so that no thread waits.
  void call() {
    if (work_.kind == Kind::tiny) latency_.begin();
    send()->addCallback([this](JitFuture& reply) { ended(reply); });
  }
  void ended(JitFuture& reply) {
    {
      std::lock_guard lock(mutex_);
      if (over_) return;
      if (reply.hasError()) {
        over_ = true;
        return done_.set_exception(reply.exception_ptr());
      }
      if (!(work_.kind == Kind::tiny ? latency_.end() : rate_.count(1))) {
        over_ = true;
        return done_.set_value();
      }
    }
    call();
  }

  TensorPipeAgent& agent_;
  const torch_rpc::WorkerInfo& to_;
  const Work& work_;
  std::vector<at::Tensor> tensors_;
  std::mutex mutex_;  // guards what follows while calls are under way
  LatencyMeter latency_;
  RateMeter rate_;
  bool over_ = false;
  std::promise<void> done_;
};

void measure(const Work& work, Transports how, ClientEnd& end) {
  TensorPipeAgent& agent = start_agent(end.address(), client_id, how);
  Client client(agent, work, end.budget());
  end.report(client.run());
  _exit(0);  // before the callbacks of calls that are still under way find their client gone
}

std::optional<Contender> make(const char* peer, const Work& work, Transports how) {
  if (work.wire != Wire::tcp) return std::nullopt;
  const Notes notes{{"wait", how.tcp_only ? "blocking" : "spin"},  // its shared-memory transport polls
                    {"transport", how.tcp_only ? "uv" : "default"},
                    {"caller", work.kind == Kind::get ? "wait() on main" : "callback of the reply's future"}};
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
