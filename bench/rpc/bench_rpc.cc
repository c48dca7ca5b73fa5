// ./dev bench rpc: remote calls, weft beside its peers and the floors under them.
#include "bench/rpc/work.h"

#include <unistd.h>

#include <filesystem>

namespace weft::bench {

std::string scratch_path(const std::string& suffix) {
  return std::filesystem::temp_directory_path() / ("weft_bench_" + std::to_string(getpid()) + suffix);
}

}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft::bench;
  constexpr std::size_t MiB = 1 << 20;
  const std::vector<Work> works{
      {"tiny/tcp", Kind::tiny},
      {"tiny/tcp-get", Kind::get},
      {"tiny/unix", Kind::tiny, Wire::unix_socket},
      {"throughput64/tcp", Kind::throughput},
      {"bulk/1MiB/tcp", Kind::bulk, Wire::tcp, 1 * MiB},
      {"bulk/16MiB/tcp", Kind::bulk, Wire::tcp, 16 * MiB},
      {"bulk/64MiB/tcp", Kind::bulk, Wire::tcp, 64 * MiB},
  };
  const MakeContender peers[] = {weft_peer, raw_peer, raw_fresh_peer, asio_peer, torch_peer, torch_uv_peer};
  Bench bench{.name = "rpc"};
  for (const Work& work : works) {
    Case& one = bench.cases.emplace_back(Case{work.name, {}});
    for (const MakeContender peer : peers)
      if (auto contender = peer(work)) one.contenders.push_back(std::move(*contender));
  }
  return run_bench(argc, argv, std::move(bench));
}
