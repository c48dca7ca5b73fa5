// Parses the hosts of a job from text: the output of discovery scripts and batch systems, and --hosts.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/weft/launch/elastic/driver.h"

namespace weft::tool::launch::elastic {

// Parses the value of --hosts: "node1:4,node2". Throws UsageError if it is malformed.
std::vector<HostSlots> parse_host_list(std::string_view list, std::size_t default_slots);

// Parses lines "node1:4" or "node1", as a discovery script prints them. Empty lines and lines that begin with
// # are skipped. If a host has two lines, the later one applies. A host with 0 slots gets no worker. Throws
// std::runtime_error, which names the line, if a line is malformed.
std::vector<HostSlots> parse_host_lines(std::string_view text, std::size_t default_slots);

// Parses lines "NAME READY DELETED", the format in which discovery_command() makes kubectl print pods.
// Returns the pods whose READY is True and that have no time of deletion.
std::vector<HostSlots> parse_ready_pods(std::string_view text, std::size_t slots);

// How hosts are discovered: a command for `sh -c`, and the format of its output.
struct DiscoveryCommand {
  enum class Output { hosts, pods } output = Output::hosts;
  std::string command;

  std::vector<HostSlots> parse(std::string_view text, std::size_t default_slots) const {
    return output == Output::pods ? parse_ready_pods(text, default_slots)
                                  : parse_host_lines(text, default_slots);
  }
};

// The command for a value of --discovery. "slurm": lists the nodes of the Slurm job that this process runs
// in. "kubernetes:SELECTOR": lists the pods with these labels that are ready and not being deleted. Any other
// text is the command itself. Throws UsageError if the value is invalid.
DiscoveryCommand discovery_command(const std::string& text);

}  // namespace weft::tool::launch::elastic
