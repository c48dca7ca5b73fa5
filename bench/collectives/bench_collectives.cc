// ./dev bench collectives: compares the collectives of weft's groups with those of Gloo and OpenMPI, and with
// bare memory.
#include "bench/collectives/work.h"

namespace weft::bench {
namespace {

constexpr std::size_t KiB = 1 << 10, MiB = 1 << 20;

std::string size_text(std::size_t bytes) {
  return bytes % MiB == 0 ? std::to_string(bytes / MiB) + "MiB" : std::to_string(bytes / KiB) + "KiB";
}
const char* name_of(Kind kind) {
  constexpr const char* names[] = {"group", "any", "tcp", "hosts"};
  return names[static_cast<std::size_t>(kind)];
}

std::vector<Work> works() {
  std::vector<Work> works;
  const auto add = [&](Operation operation, std::size_t bytes, int ranks, Kind kind) {
    works.push_back({std::string(name_of(operation)) + "/" + size_text(bytes) + "/" + std::to_string(ranks) +
                         "/" + name_of(kind),
                     operation, bytes, ranks, kind});
  };
  for (const int ranks : {2, 4})
    for (const std::size_t bytes : {4 * KiB, 64 * KiB, MiB, 16 * MiB, 64 * MiB, 256 * MiB})
      for (const Kind kind : {Kind::group, Kind::any, Kind::tcp, Kind::hosts})
        add(Operation::all_reduce, bytes, ranks, kind);
  for (const Operation operation :
       {Operation::broadcast, Operation::all_gather, Operation::reduce_scatter, Operation::all_to_all})
    for (const std::size_t bytes : {4 * KiB, MiB, 16 * MiB})
      for (const Kind kind : {Kind::group, Kind::any}) add(operation, bytes, 2, kind);
  return works;
}

constexpr MakeContender peers[] = {weft_peer, raw_peer, raw_duplex_peer, gloo_peer, openmpi_peer};

}  // namespace

const char* name_of(Operation operation) {
  constexpr const char* names[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"};
  return names[static_cast<std::size_t>(operation)];
}

void report(RankEnd& end, const Work& work, Figures figures) {
  figures["GBps"] = static_cast<double>(work.bytes) / figures.at("p50_us") / 1e3;
  end.report(figures);
}

}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft::bench;
  Bench bench{.name = "collectives", .processes = 8};
  add_cases(bench, works(), peers);
  for (const int ranks : {2, 3, 4, 6, 8})
    for (const std::size_t bytes : {4 * KiB, 16 * KiB, 32 * KiB, 64 * KiB, 128 * KiB, MiB, 16 * MiB}) {
      const Work work{"", Operation::all_reduce, bytes, ranks, Kind::tcp};
      bench.cases.push_back(
          {"algorithm/" + size_text(bytes) + "/" + std::to_string(ranks), weft_algorithms(work)});
    }
  for (const std::size_t bytes : {MiB, 16 * MiB})
    bench.cases.push_back({"message/" + size_text(bytes) + "/2",
                           weft_messages({"", Operation::all_reduce, bytes, 2, Kind::tcp})});
  return run_bench(argc, argv, std::move(bench));
}
