// ./dev bench serve: calls of a model that answers many requests in one run, against one run for each
// request.
#include "bench/serve/work.h"

int main(int argc, char** argv) {
  using namespace weft::bench;
  // As many calls in flight as answers within 20 ms allow: one run for each request takes 2.1 ms, and a run
  // for 64 requests 8.4 ms.
  const Work single{.max_batch = 1, .in_flight = 8}, batched{};
  Bench bench{.name = "serve"};
  bench.cases.push_back({"batched", {weft_peer("weft", batched), weft_peer("single", single)}});
#ifdef WEFT_BENCH_GRPC
  bench.cases.front().contenders.push_back(grpc_peer(batched));
#endif
  return run_bench(argc, argv, std::move(bench));
}
