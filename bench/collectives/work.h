// Work: the task of each case of this bench, and the peers, one file each. bench/README.md
// describes the cases. Thread-safety: values.
#pragma once

#include "bench/harness/hosts.h"
#include "bench/harness/ranks.h"

#include <weft/parallel/collectives/plan/bounds.h>

#include <memory>
#include <optional>

namespace weft::bench {

enum class Operation { all_reduce, broadcast, all_gather, reduce_scatter, all_to_all };

// The memory that holds a rank's tensor, and the transport of its bytes.
enum class Kind {
  group,  // in group memory, if the peer has group memory; otherwise as `any`
  any,    // in ordinary memory
  tcp,    // in ordinary memory, over TCP only
  hosts,  // ordinary memory, on two hosts, half of the ranks on each
};
inline constexpr int host_count = 2;

// All tensors are float32, and reductions are sums. bytes: the size of the tensor that is reduced or sent. If
// ranks have parts, the size of all parts together: for all_gather the output, for reduce_scatter and
// all_to_all the input.
struct Work {
  std::string name;
  Operation operation = Operation::all_reduce;
  std::size_t bytes = 0;
  int ranks = 2;
  Kind kind = Kind::any;
  std::optional<collectives::Bounds> bounds = {};  // for weft only; none: weft's defaults

  std::size_t elements() const { return bytes / sizeof(float); }
  std::size_t part() const { return elements() / static_cast<std::size_t>(ranks); }
  int host_of(int rank) const { return rank * host_count / ranks; }
  // Returns the hosts if the work runs on several. They must live as long as the measurement.
  std::unique_ptr<Hosts> make_hosts() const {
    return kind == Kind::hosts ? std::make_unique<Hosts>(host_count) : nullptr;
  }
};

const char* name_of(Operation operation);

void report(RankEnd& end, const Work& work, Figures figures);  // rank 0: with GB/s

// Runs one rank's collective in rounds (bench/harness/ranks.h).
template <class Collective, class Tell>
void measure_rounds(RankEnd& end, const Work& work, Collective collective, Tell tell) {
  Rounds rounds(end);
  rounds.run(collective, tell);
  if (end.rank() == 0) report(end, work, rounds.figures());
}

// Each function returns nullopt if the work does not apply to the peer.
using MakeContender = std::optional<Contender> (*)(const Work&);
std::optional<Contender> weft_peer(const Work& work);
std::optional<Contender> raw_peer(const Work& work);  // processes that reduce in one shared memory
// The same number of bytes over one TCP connection.
std::optional<Contender> raw_duplex_peer(const Work& work);
std::optional<Contender> gloo_peer(const Work& work);  // through PyTorch in Python
std::optional<Contender> openmpi_peer(const Work& work);

// The algorithm that weft chooses, and its alternatives.
std::vector<Contender> weft_algorithms(Work work);
std::vector<Contender> weft_messages(Work work);  // one contender per message length

}  // namespace weft::bench
