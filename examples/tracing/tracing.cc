// Records nested calls of several agents as one trace: rank 0 orders at a shop, and the shop calls its
// warehouse for each item. Open the file in ui.perfetto.dev or chrome://tracing. No LibTorch.
//
//   tracing [FILE]     starts the three processes on this machine; FILE is trace.json by default
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/trace/chrome_trace.h>
#include <weft/rpc/trace/tracer.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

using namespace weft;

struct Warehouse {
  std::int64_t price(std::string item) { return static_cast<std::int64_t>(item.size()); }
  using Service = rpc::Service<"warehouse", rpc::Method<"price", &Warehouse::price>>;
};

class Shop {
 public:
  explicit Shop(rpc::Peer warehouse) : warehouse_(std::move(warehouse)) {}

  rpc::Task<std::int64_t> order(rpc::CallContext& call, std::vector<std::string> items) {
    // Calls through this handle belong to the trace of `call`.
    const rpc::Peer warehouse = warehouse_.with(call);
    std::vector<rpc::Future<std::int64_t>> prices;
    for (const std::string& item : items) prices.push_back(warehouse.call<&Warehouse::price>(item));
    std::int64_t total = 0;
    for (const std::int64_t price : co_await rpc::when_all(std::move(prices))) total += price;
    co_return total;
  }
  using Service = rpc::Service<"shop", rpc::Method<"order", &Shop::order>>;

 private:
  const rpc::Peer warehouse_;
};

void run(rpc::Job& job, const std::string& file) {
  rpc::Agent& agent = job.agent();
  if (job.rank() == 1) agent.serve(std::make_shared<Shop>(agent.peer("worker2")));
  if (job.rank() == 2) agent.serve(std::make_shared<Warehouse>());
  job.join().get();
  if (job.rank() != 0) return;  // serves the other agents until they have finished

  const std::vector<std::string> items{"tea", "bread", "milk"};
  const auto total = agent.peer("worker1").call<&Shop::order>(items).get();
  std::vector<rpc::AgentSpans> traced;
  std::size_t spans = 0;
  for (const char* name : {"worker0", "worker1", "worker2"}) {
    traced.push_back(rpc::collect_spans(agent.peer(name)));
    spans += traced.back().spans.size();
  }
  std::ofstream(file) << rpc::chrome_trace(traced);
  std::printf("the order costs %lld, and took %zu spans: %s\n", static_cast<long long>(total), spans,
              file.c_str());
}

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "trace.json";
  const auto tracer = std::make_shared<rpc::Tracer>();  // the tracer of this process's agent
  return rpc::run_job(argc, argv, {tracer->layer()}, [&](rpc::Job& job) { run(job, file); },
                      {.processes = 3});
}
