// The program that bench_collectives runs under mpirun, one process for each rank:
//   bench_collectives_openmpi OPERATION ELEMENTS WARM_UP DURATION PINS     (seconds)
// Rank 0 prints {"figures": …, "threads": …}.
#include "bench/harness/ranks.h"

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
  Rounds rounds(Budget{time(argv[3]), time(argv[4])});
  rounds.run(collective, [](std::uint64_t next) {
    MPI_Bcast(&next, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    return next;
  });
  if (rank == 0) {
    Figures figures = rounds.figures();
    figures["GBps"] = static_cast<double>(elements * sizeof(float)) / figures.at("p50_us") / 1e3;
    std::printf("%s\n", nlohmann::json{{"figures", figures}, {"threads", count_threads()}}.dump().c_str());
  }
  MPI_Finalize();
}
