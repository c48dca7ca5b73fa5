// OpenMPI: bench_collectives_openmpi under mpirun. mpirun starts the ranks, so each rank pins itself to the
// same cores as the ranks of the other peers.
#include "bench/collectives/work.h"

#include <array>
#include <cstdio>
#include <stdexcept>

namespace weft::bench {

std::optional<Contender> openmpi_peer(const Work& work) {
#ifdef WEFT_BENCH_OPENMPI
  if (work.kind == Kind::hosts) return std::nullopt;  // mpirun needs a remote shell to each host
  Notes notes{{"caller", "main"}};
  std::string transport;
  if (work.kind == Kind::tcp) transport = " --mca btl tcp,self --mca btl_tcp_if_include lo --mca pml ob1";
  return Contender{
      "openmpi", std::move(notes), [work, transport](const Setting& setting) {
        return measure_ranks(1, setting, [&](RankEnd& end) {
          const auto seconds = [](std::chrono::nanoseconds time) {
            return std::to_string(std::chrono::duration<double>(time).count());
          };
          const std::string command =
              "taskset -c 0-1023 mpirun --allow-run-as-root --oversubscribe --bind-to none" + transport +
              " -n " + std::to_string(work.ranks) + " " WEFT_BENCH_OPENMPI " " + name_of(work.operation) +
              " " + std::to_string(work.elements()) + " " + seconds(end.budget().warm_up) + " " +
              seconds(end.budget().duration) + " " + end.pins().text();
          FILE* const output = ::popen(command.c_str(), "r");
          if (output == nullptr) throw std::runtime_error("mpirun does not start");
          std::string last;
          for (std::array<char, 4096> line; std::fgets(line.data(), line.size(), output) != nullptr;)
            last = line.data();
          if (::pclose(output) != 0 || last.empty()) throw std::runtime_error("mpirun failed: " + last);
          end.report_text(last);
        });
      }};
#else
  (void)work;
  return std::nullopt;
#endif
}

}  // namespace weft::bench
