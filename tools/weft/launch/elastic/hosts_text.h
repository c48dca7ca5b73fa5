// The hosts of a job as text: what discovery scripts, batch systems and --hosts say. Pure. Thread-safety:
// none needed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/weft/launch/elastic/driver.h"

namespace weft::tool::launch::elastic {

// "node1:4,node2": as --hosts has them. Throws UsageError.
std::vector<HostSlots> parse_host_list(std::string_view list, std::size_t default_slots);

// Lines "node1:4" or "node1", as a discovery script prints them. Empty lines and lines that begin with # are
// skipped; of two lines for one host the later one holds. Slots may be 0: the host gets no worker. Throws
// std::runtime_error, which names the line.
std::vector<HostSlots> parse_host_lines(std::string_view text, std::size_t default_slots);

// Lines "NAME READY DELETED", as discovery_command() has kubectl print pods: those whose READY is True, and
// that have no time of deletion.
std::vector<HostSlots> parse_ready_pods(std::string_view text, std::size_t slots);

// How hosts are discovered: a command for `sh -c`, and what its output means.
struct DiscoveryCommand {
  enum class Output { hosts, pods } output = Output::hosts;
  std::string command;

  std::vector<HostSlots> parse(std::string_view text, std::size_t default_slots) const {
    return output == Output::pods ? parse_ready_pods(text, default_slots)
                                  : parse_host_lines(text, default_slots);
  }
};

// Of --discovery: "slurm", the nodes of the Slurm job that this process runs in; "kubernetes:SELECTOR", the
// pods with these labels that are ready and not being deleted; otherwise the text itself is the command.
// Throws UsageError.
DiscoveryCommand discovery_command(const std::string& text);

}  // namespace weft::tool::launch::elastic
