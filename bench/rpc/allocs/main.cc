// bench_rpc_allocs: the client and the server of allocs/tiny. It is a separate program because it replaces
// malloc and the variants of malloc, which operator new also calls, to count its allocations. bench_rpc
// starts it as `bench_rpc_allocs serve` and `bench_rpc_allocs measure ADDRESS`. The program communicates over
// the channel that it inherits.
#include "bench/harness/pair.h"
#include "bench/rpc/echo_calls.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace {

constinit std::atomic<std::uint64_t> allocations{0};

void count() { allocations.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

// glibc's functions under their second names. They share one heap, so memory that one function allocated can
// be freed or resized by another.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

#define WEFT_BENCH_REPLACES __attribute__((visibility("default")))
WEFT_BENCH_REPLACES void* malloc(std::size_t size) {
  count();
  return __libc_malloc(size);
}
WEFT_BENCH_REPLACES void* calloc(std::size_t n, std::size_t size) {
  count();
  return __libc_calloc(n, size);
}
WEFT_BENCH_REPLACES void* realloc(void* old, std::size_t size) {
  count();
  return __libc_realloc(old, size);
}
WEFT_BENCH_REPLACES void* memalign(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}
WEFT_BENCH_REPLACES void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}
WEFT_BENCH_REPLACES int posix_memalign(void** place, std::size_t alignment, std::size_t size) {
  count();
  *place = __libc_memalign(alignment, size);
  return *place == nullptr ? ENOMEM : 0;
}
}

namespace weft::bench {
namespace {

constexpr std::int64_t warm_up_calls = 2'000, counted_calls = 5'000;

std::uint64_t count_so_far() { return allocations; }
using Count = rpc::Function<"bench.allocations", &count_so_far, rpc::non_blocking>;

void serve(ServerEnd& end) {
  rpc::Agent agent({.name = "server", .listen = {"tcp://127.0.0.1:0"}});
  agent.serve<Echo>();
  agent.serve<Count>();
  end.announce(agent.addresses().front());
  end.wait_for_client();
}

rpc::Task<Figures> measure(rpc::Peer peer) {
  co_await call_times(peer, warm_up_calls);
  // The counts include these two calls, which read the counters.
  const std::uint64_t server = co_await peer.call<Count>();
  const std::uint64_t client = allocations;
  co_await call_times(peer, counted_calls);
  const std::uint64_t client_after = allocations;
  const std::uint64_t server_after = co_await peer.call<Count>();
  const auto per_call = [](std::uint64_t n) {
    return static_cast<double>(n) / static_cast<double>(counted_calls);
  };
  co_return Figures{{"client_allocs_per_call", per_call(client_after - client)},
                    {"server_allocs_per_call", per_call(server_after - server)}};
}

int run(int argc, char** argv) {
  Channel channel(inherited_channel);
  if (argc == 2 && std::strcmp(argv[1], "serve") == 0) {
    ServerEnd end(channel);
    serve(end);
    return 0;
  }
  if (argc == 3 && std::strcmp(argv[1], "measure") == 0) {
    const Budget budget;
    ClientEnd end(channel, argv[2], budget);
    rpc::Agent agent({.name = "client"});
    const rpc::Peer peer = agent.connect(end.address());
    peer.ready().get();
    end.report(measure(peer).start(*peer.calls().route()->loop()).get());
    return 0;
  }
  std::fprintf(stderr, "usage: bench_rpc_allocs serve | measure ADDRESS, by bench_rpc\n");
  return 2;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  try {
    return weft::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
