// PyTorch's distributed autograd from C++, as LibTorch exports it: its RPC agent over TCP, its DistEngine,
// and operators, which are the only calls that the agent supports without Python. The functions of a worker
// are operators of this file in the namespace `aten`, because the RPC agent sends no others.
#include "bench/autograd/work.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

namespace weft::bench {
namespace {

namespace torch_rpc = torch::distributed::rpc;
namespace torch_autograd = torch::distributed::autograd;
using torch_autograd::DistAutogradContainer;
using torch_rpc::Message;
using Reply = c10::intrusive_ptr<c10::ivalue::Future>;
using Stack = std::vector<c10::IValue>;

constexpr int worker_threads = 16;  // PyTorch's default
constexpr float timeout_seconds = 60;

// The workers have the first ids, and the client has the last id.
std::string name_of(std::size_t id, const Work& work) {
  return id == work.workers ? "client" : "worker" + std::to_string(id);
}

// Returns when all workers have created their agents. The agent is never destroyed: its graceful shutdown
// needs the other workers, and is not measured.
void start_agent(const std::string& store, std::size_t id, const Work& work) {
  // Otherwise the agent listens at the address to which the host's name resolves.
  setenv("TP_SOCKET_IFNAME", "lo", 1);
  const auto worker = static_cast<torch_rpc::worker_id_t>(id);
  const int world = static_cast<int>(work.workers) + 1;
  DistAutogradContainer::init(worker);
  auto agent = std::make_shared<torch_rpc::TensorPipeAgent>(
      c10::make_intrusive<c10d::FileStore>(store, world), name_of(id, work), worker, world,
      torch_rpc::TensorPipeRpcBackendOptions(worker_threads, std::vector<std::string>{"uv"},
                                             std::vector<std::string>{"mpt_uv", "basic"}, timeout_seconds,
                                             ""),
      std::unordered_map<std::string, torch_rpc::DeviceMap>{}, std::vector<c10::Device>{},
      std::make_unique<torch_rpc::RequestCallbackNoPython>());
  agent->setTypeResolver(std::make_shared<torch_rpc::TypeResolver>(
      [unit = std::make_shared<torch::jit::CompilationUnit>()](const c10::QualifiedName& name) {
        return c10::StrongTypePtr(unit, torch::jit::ScriptTypeParser().parseType(name.qualifiedName()));
      }));
  torch_rpc::RpcAgent::setCurrentRpcAgent(agent);
  agent->start();
}

torch_rpc::RpcAgent& agent() { return *torch_rpc::RpcAgent::getCurrentRpcAgent(); }

// --- The operators that agents call. ---

std::shared_ptr<torch::jit::Operator> operation(const char* name) {
  return torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name)).front();
}

Reply call(const torch_rpc::WorkerInfo& worker, const char* name, Stack arguments) {
  torch_rpc::ScriptCall call(operation(name), std::move(arguments));
  return torch_autograd::sendMessageWithAutograd(agent(), worker, std::move(call).toMessage());
}

at::Tensor tensor_of(Reply reply) {
  reply->waitAndThrow();
  return torch_rpc::deserializeRespToIValue(*reply->constValue().toCustomClass<Message>()).toTensor();
}

at::Tensor weight(std::int64_t size) {  // the weight of this worker
  static const at::Tensor made =
      at::ones({size, size}).div(static_cast<double>(size)).set_requires_grad(true);
  return made;
}

constexpr const char* chain_operator = "aten::weft_bench_chain";
constexpr const char* thing_operator = "aten::weft_bench_thing";

// Multiplies by the weight of this worker, then calls the workers with the ids in `rest`, one after the
// other.
at::Tensor chain(const at::Tensor& x, std::vector<std::int64_t> rest) {
  const at::Tensor here = x.mm(weight(x.size(0)));
  if (rest.empty()) return here;
  const auto& next = agent().getWorkerInfo(static_cast<torch_rpc::worker_id_t>(rest.front()));
  rest.erase(rest.begin());
  return tensor_of(call(next, chain_operator, {here, rest}));
}

std::int64_t thing() { return 0; }

TORCH_LIBRARY_FRAGMENT(aten, library) {
  library.def("weft_bench_chain(Tensor x, int[] rest) -> Tensor", &chain);
  library.def("weft_bench_thing() -> int", &thing);
}

// The result of an operator stays at the worker.
c10::intrusive_ptr<torch_rpc::UserRRef> remote(const torch_rpc::WorkerInfo& worker, const char* name,
                                               Stack arguments) {
  auto& context = torch_rpc::RRefContext::getInstance();
  const auto op = operation(name);
  auto result = context.createUserRRef(worker.id_, op->schema().returns().front().type());
  torch_rpc::ScriptRemoteCall call(op, std::move(arguments), result->rrefId(), result->forkId());
  const Reply made = torch_autograd::sendMessageWithAutograd(agent(), worker, std::move(call).toMessage());
  context.addPendingUser(result->forkId(), result);
  made->addCallback([id = result->forkId()](c10::ivalue::Future& reply) {
    torch_rpc::callback::confirmPendingUser(reply, id);
  });
  return result;
}

// --- The two sides. ---

void serve(const Work& work, ServerEnd& end) {
  const std::string store = scratch_path(".store");
  std::filesystem::remove(store);
  std::vector<std::unique_ptr<Process>> others;  // forked before this process has threads
  for (std::size_t i = 1; i < work.workers; ++i)
    others.push_back(std::make_unique<Process>(Pins{}, 0, [&](Channel& channel) {
      start_agent(store, i, work);
      channel.receive();  // serves until it is killed
    }));
  end.announce(store);
  start_agent(store, 0, work);
  end.wait_for_client();
  std::filesystem::remove(store);
  _exit(0);
}

class Client {
 public:
  explicit Client(const Work& work) : work_(work) {
    for (std::size_t i = 0; i < work.workers; ++i) {
      workers_.push_back(agent().getWorkerInfo(static_cast<torch_rpc::worker_id_t>(i)));
      if (i != 0) rest_.push_back(static_cast<std::int64_t>(i));
    }
    const auto size = static_cast<std::int64_t>(work.size);
    input_ = at::ones({size, size});
  }

  Figures run(const Budget& budget) {
    switch (work_.kind) {
      case Kind::passes:
        return many_passes(budget);
      case Kind::churn:
        return churn(budget);
      case Kind::to_here:
        return one_by_one(budget, [&] {
          const auto result = remote(workers_.front(), chain_operator, {input_, std::vector<std::int64_t>{}});
          expect_answer(result->toHere().toTensor().numel() == input_.numel());
        });
      default:
        return one_by_one(budget, [&] { step(); });
    }
  }

 private:
  template <class Step>
  static Figures one_by_one(const Budget& budget, Step step) {
    LatencyMeter meter(budget);
    do {
      meter.begin();
      step();
    } while (meter.end());
    return meter.figures();
  }

  // One step of a training program: forward, backward, the gradient.
  void step() {
    auto& passes = DistAutogradContainer::getInstance();
    const auto pass = passes.newContext();
    const at::Tensor x = input_.detach().set_requires_grad(true);
    at::Tensor loss;
    if (work_.kind == Kind::fan_out) {
      std::vector<Reply> parts;
      for (const auto& worker : workers_)
        parts.push_back(call(worker, chain_operator, {x, std::vector<std::int64_t>{}}));
      for (const Reply& part : parts) {
        const at::Tensor value = tensor_of(part);
        loss = loss.defined() ? loss + value.sum() : value.sum();
      }
    } else {
      loss = tensor_of(call(workers_.front(), chain_operator, {x, rest_})).sum();
      if (work_.half_unused)  // the extra result must be used, or the backward would wait forever
        loss = loss + 0 * tensor_of(call(workers_.front(), chain_operator, {x, rest_})).sum();
    }
    torch_autograd::DistEngine::getInstance().execute(pass->contextId(), {loss}, false);
    expect_answer(pass->getGradients().contains(x));
    passes.releaseContext(pass->contextId());
  }

  Figures many_passes(const Budget& budget) {
    std::mutex mutex;  // guards the rest
    RateMeter meter(budget);
    bool enough = false;
    std::exception_ptr error;
    const auto steps = [&] {
      try {
        for (;;) {
          step();
          std::lock_guard lock(mutex);
          if (enough) return;
          enough = !meter.count(1);
        }
      } catch (...) {
        std::lock_guard lock(mutex);
        enough = true;
        error = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < passes_at_a_time; ++i) threads.emplace_back(steps);
    for (std::thread& thread : threads) thread.join();
    if (error != nullptr) std::rethrow_exception(error);
    return meter.calls();
  }

  Figures churn(const Budget& budget) {
    RateMeter meter(budget);
    do {
      std::vector<c10::intrusive_ptr<torch_rpc::UserRRef>> things;
      things.reserve(objects_at_a_time);
      for (std::size_t i = 0; i < objects_at_a_time; ++i)
        things.push_back(remote(workers_.front(), thing_operator, {}));
      expect_answer(things.back()->toHere().toInt() == 0);
    } while (meter.count(objects_at_a_time));
    return meter.calls();
  }

  const Work& work_;
  std::vector<torch_rpc::WorkerInfo> workers_;
  std::vector<std::int64_t> rest_;  // the ids of all workers except the first
  at::Tensor input_;
};

void measure(const Work& work, ClientEnd& end) {
  start_agent(end.address(), work.workers, work);
  end.report(Client(work).run(end.budget()));
  _exit(0);  // a graceful shutdown needs the other side
}

}  // namespace

std::optional<Contender> torch_peer(const Work& work) {
  if (work.kind == Kind::live || work.kind == Kind::wide || work.is_table()) return std::nullopt;
  const std::string caller = work.kind == Kind::passes ? "64 threads" : "wait() on main";
  return contender("torch-cpp", {{"wait", "blocking"}, {"caller", caller}, {"transport", "uv"}},
                   {.serve = [work](ServerEnd& end) { serve(work, end); },
                    .measure = [work](ClientEnd& end) { measure(work, end); }});
}

}  // namespace weft::bench
