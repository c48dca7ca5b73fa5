// ./dev bench rpc: compares the remote calls of weft with those of its peers, and with lower bounds.
#include "bench/rpc/work.h"

#include <filesystem>

namespace weft::bench {
namespace {

constexpr std::size_t MiB = 1 << 20;

std::vector<Work> works() {
  std::vector<Work> all{
      {.name = "tiny/installed",
       .kind = Kind::tiny,
       .wire = Wire::same_host,
       .wait = Wait::spinning,
       .defaults = true},
      {.name = "tiny/unix-installed", .kind = Kind::tiny, .wire = Wire::unix_socket, .defaults = true},
      {"tiny/tcp", Kind::tiny},
      {"tiny/tcp-spin", Kind::tiny, Wire::tcp, Wait::spinning},
      {"tiny/unix", Kind::tiny, Wire::unix_socket},
      {"tiny/shm-spin", Kind::tiny, Wire::shared_memory, Wait::spinning},
      {"tiny/shm-sleep", Kind::tiny, Wire::shared_memory},
      {"tiny/tcp-get", Kind::get},
      {"small-tensor/tcp", Kind::small_tensor},
      {"throughput64/tcp", Kind::throughput},
  };
  for (const std::size_t size : {1, 16, 64}) {
    const std::string name = "bulk/" + std::to_string(size) + "MiB/";
    all.push_back({name + "same-host", Kind::bulk, Wire::same_host, Wait::spinning, size * MiB});
    all.push_back({name + "same-host-sleep", Kind::bulk, Wire::same_host, Wait::blocking, size * MiB});
    all.push_back({name + "tcp", Kind::bulk, Wire::tcp, Wait::blocking, size * MiB});
  }
  all.push_back({"echo/4MiB/tcp", Kind::echo, Wire::tcp, Wait::blocking, 4 * MiB});
  all.push_back({"self", Kind::self});
  for (const std::size_t peers : {1, 4, 16, 64})
    all.push_back({"growth/" + std::to_string(peers), Kind::growth, Wire::tcp, Wait::blocking, 0, peers});
  all.push_back({"idle/10000", Kind::idle, Wire::tcp, Wait::blocking, 0, 10'000});
  all.push_back({"allocs/tiny", Kind::allocations});
  for (const std::size_t size : {1, 16, 64})
    all.push_back(
        {"flow/" + std::to_string(size) + "MiB", Kind::flow, Wire::tcp, Wait::blocking, size * MiB});
  return all;
}

constexpr MakeContender peers[] = {
    weft_peer,  weft_lanes_peer, weft_4_lanes_peer, weft_idle_peer, weft_allocs_peer, weft_reference_peer,
    raw_peer,   raw_memory_peer, raw_copy_peer,     raw_fresh_peer, asio_peer,
#ifdef WEFT_BENCH_GRPC
    grpc_peer,
#endif
#ifdef WEFT_BENCH_CAPNP
    capnp_peer,
#endif
    torch_peer, torch_uv_peer,   torch_python_peer,
};

}  // namespace

std::string program_path(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name);
}

}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft::bench;
  Bench bench{.name = "rpc"};
  add_cases(bench, works(), peers);
  return run_bench(argc, argv, std::move(bench));
}
