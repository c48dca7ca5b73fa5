#include <weft/rpc/tensor/creation_turn.h>

#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/core/serial_executor.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <mutex>

namespace weft::tensor {
namespace {

bool is_creation(const rpc::IncomingCall& call) {
  return call.keeps_result() && !call.entry().needs_object && call.method().ends_with(".new");
}

class CreationTurn final : public rpc::CallHook, public std::enable_shared_from_this<CreationTurn> {
 public:
  explicit CreationTurn(rpc::Executor& handlers) : turn_(handlers) {}

  bool knows(std::string_view) const override { return false; }
  void incoming(std::shared_ptr<rpc::IncomingCall> call, rpc::Callback next) override {
    if (is_creation(*call)) call->set_executor({shared_from_this(), &turn_});
    next();
  }

 private:
  rpc::SerialExecutor turn_;
};

// The generators that it guards belong to LibTorch, one for the whole process. Not an rpc::Mutex, because one
// function locks it and another unlocks it.
std::mutex& generators() {
  static std::mutex mutex;
  return mutex;
}

class AloneInProcess final : public rpc::ContextSwitch {
 public:
  void enter() override { generators().lock(); }
  void leave() override { generators().unlock(); }
};

}  // namespace

void add_creation_turn(rpc::Agent& agent) {
  agent.core()->hooks().add(std::make_shared<CreationTurn>(agent.core()->handlers()));
  agent.core()->hooks().add_context([](rpc::IncomingCall& call) -> std::unique_ptr<rpc::ContextSwitch> {
    if (!is_creation(call)) return nullptr;
    return std::make_unique<AloneInProcess>();
  });
}

}  // namespace weft::tensor
