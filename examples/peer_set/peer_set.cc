// Three replicas answer one client, and die one after the other. If a replica dies and may have run a call,
// the call is retried only if its method is idempotent. No LibTorch.
//
//   peer_set     starts the client (rank 0) and the replicas (worker1 to worker3) on this machine
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace weft;

class Replica {
 public:
  explicit Replica(std::string name) : name_(std::move(name)) {}

  // Idempotent: running it twice does no harm. worker2 dies in its twelfth call.
  std::string look() {
    if (++looks_ == 12 && name_ == "worker2") std::_Exit(0);
    return name_;
  }
  // Not idempotent: running it twice buys twice. worker3 dies while it buys.
  std::string buy() {
    if (name_ == "worker3") std::_Exit(0);
    return name_;
  }
  using Service = rpc::Service<"replica", rpc::Method<"look", &Replica::look, rpc::idempotent>,
                               rpc::Method<"buy", &Replica::buy>>;

 private:
  const std::string name_;
  std::atomic<int> looks_ = 0;  // handlers run on several threads
};

rpc::Task<void> look(rpc::PeerSet replicas) {
  std::vector<rpc::Future<std::string>> in_flight;
  for (int i = 0; i < 30; ++i) in_flight.push_back(replicas.call<&Replica::look>());
  std::map<std::string, int> answers;
  for (const std::string& name : co_await rpc::when_all(std::move(in_flight))) ++answers[name];
  std::printf("30 calls:");
  for (const auto& [name, count] : answers) std::printf(" %s answered %d", name.c_str(), count);
  std::printf("\n");
}

rpc::Task<void> ask(rpc::Agent& agent) {
  const rpc::PeerSet replicas{agent, {"worker1", "worker2", "worker3"}};  // called round-robin
  co_await look(replicas);
  co_await look(replicas);  // worker2 dies, and the others answer its calls
  for (int i = 0; i < 2; ++i) {
    try {
      std::printf("bought at %s\n", (co_await replicas.call<&Replica::buy>()).c_str());
    } catch (const rpc::Error& error) {
      const bool may_have_run = error.execution() == rpc::Execution::maybe_executed;
      std::printf("%s, %s\n", std::string(to_string(error.kind())).c_str(),
                  may_have_run ? "it may have been bought" : "nothing was bought");
    }
  }
}

rpc::Task<void> run(rpc::Job& job) {
  rpc::Agent& agent = job.agent();
  agent.serve(std::make_shared<Replica>(agent.name()));
  if (job.rank() != 0) {
    co_await job.join();  // not wait_for(4): a replica may have died before this one looks
    co_return;
  }
  co_await job.wait_for(4);
  co_await ask(agent);
}

int main(int argc, char** argv) {
  // In an elastic world the loss of a member does not end the job.
  const auto elastic = [](rpc::MemberOptions& options) { options.rendezvous.fixed_world = false; };
  return rpc::run_job(argc, argv, {}, run, {.processes = 4, .adjust = elastic});
}
