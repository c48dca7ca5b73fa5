// The program that bench_collectives runs under mpirun, one process for each rank:
//   bench_collectives_openmpi OPERATION ELEMENTS WARM_UP DURATION PINS     (seconds)
// Rank 0 prints {"figures": …, "threads": …}. The steps run in blocks, as in Rounds (bench/harness/ranks.h).
#include "bench/harness/meter.h"
#include "bench/harness/pins.h"
#include "bench/harness/process.h"

#include <nlohmann/json.hpp>

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  using namespace weft::bench;
  if (argc != 6) return 2;
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Pins::parse(argv[5]).apply(static_cast<std::size_t>(rank));
  const std::string operation = argv[1];
  const auto elements = static_cast<std::size_t>(std::atoll(argv[2]));
  const auto time = [](const char* seconds) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(std::atof(seconds)));
  };
  const int n = static_cast<int>(elements), part = n / ranks;
  std::vector<float> whole(elements), other(elements), own(elements / static_cast<std::size_t>(ranks));
  const auto collective = [&] {
    if (operation == "all_reduce")
      MPI_Allreduce(MPI_IN_PLACE, whole.data(), n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (operation == "broadcast")
      MPI_Bcast(whole.data(), n, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (operation == "all_gather")
      MPI_Allgather(own.data(), part, MPI_FLOAT, whole.data(), part, MPI_FLOAT, MPI_COMM_WORLD);
    else if (operation == "reduce_scatter")
      MPI_Reduce_scatter_block(whole.data(), own.data(), part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
      MPI_Alltoall(whole.data(), part, MPI_FLOAT, other.data(), part, MPI_FLOAT, MPI_COMM_WORLD);
  };
  const Budget budget{time(argv[3]), time(argv[4])};
  LatencyMeter meter(budget);
  for (std::uint64_t count = 1; count != 0;) {
    const auto began = std::chrono::steady_clock::now();
    bool more = true;
    for (std::uint64_t i = 0; i < count; ++i) {
      meter.begin();
      collective();
      more = meter.end() && more;
    }
    const auto took = std::chrono::steady_clock::now() - began;
    count = !more ? 0 : took < std::chrono::milliseconds{5} ? 2 * count : count;
    MPI_Bcast(&count, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  }
  if (rank == 0) {
    Figures figures = meter.figures();
    figures["GBps"] = static_cast<double>(elements * sizeof(float)) / figures.at("p50_us") / 1e3;
    std::printf("%s\n", nlohmann::json{{"figures", figures}, {"threads", count_threads()}}.dump().c_str());
  }
  MPI_Finalize();
}
