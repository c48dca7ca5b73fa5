#include "tools/weft/launch/elastic/hosts_text.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"
#include "tools/weft/shell.h"

namespace weft::tool::launch::elastic {
namespace {

constexpr std::size_t max_slots = 100'000;  // the maximum number of slots of a host

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// "node1:4", "[fe80::1]:4" or "node1". An IPv6 address without brackets is parsed as a host without slots.
HostSlots parse_host(std::string_view text, std::size_t default_slots) {
  const auto wrong = [&](const char* why) {
    return std::runtime_error("'" + printable(text) + "': " + why + "; expected HOST or HOST:SLOTS");
  };
  std::size_t colon = text.rfind(':');
  const std::size_t bracket = text.rfind(']');
  if (bracket != std::string_view::npos && colon != std::string_view::npos && colon < bracket)
    colon = std::string_view::npos;
  if (bracket == std::string_view::npos && text.find(':') != colon) colon = std::string_view::npos;
  HostSlots host{std::string(text.substr(0, colon)), default_slots};
  if (host.host.starts_with('[') && host.host.ends_with(']'))
    host.host = host.host.substr(1, host.host.size() - 2);
  if (host.host.empty()) throw wrong("the host is empty");
  // A name that begins with - would be an option of ssh.
  if (host.host.starts_with('-') || host.host.find_first_of(" \t") != std::string::npos)
    throw wrong("malformed host name");
  if (colon == std::string_view::npos) return host;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + colon + 1, last, host.slots);
  if (error != std::errc{} || end != last || host.slots > max_slots)
    throw wrong("the number of slots is malformed");
  return host;
}

void add(std::vector<HostSlots>& hosts, HostSlots host) {
  const auto same = std::find_if(hosts.begin(), hosts.end(),
                                 [&](const HostSlots& other) { return other.host == host.host; });
  if (same == hosts.end())
    hosts.push_back(std::move(host));
  else
    same->slots = host.slots;
}

template <class Take>
void each_part(std::string_view text, char separator, const Take& take) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    take(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
}

}  // namespace

std::vector<HostSlots> parse_host_list(std::string_view list, std::size_t default_slots) {
  std::vector<HostSlots> hosts;
  try {
    each_part(list, ',', [&](std::string_view part) { add(hosts, parse_host(part, default_slots)); });
  } catch (const std::runtime_error& error) {
    throw UsageError(std::string("--hosts: ") + error.what());
  }
  return hosts;
}

std::vector<HostSlots> parse_host_lines(std::string_view text, std::size_t default_slots) {
  std::vector<HostSlots> hosts;
  each_part(text, '\n', [&](std::string_view line) {
    if (!line.empty() && !line.starts_with('#')) add(hosts, parse_host(line, default_slots));
  });
  return hosts;
}

std::vector<HostSlots> parse_ready_pods(std::string_view text, std::size_t slots) {
  std::vector<HostSlots> hosts;
  each_part(text, '\n', [&](std::string_view line) {
    const std::size_t space = line.find(' ');
    if (space != std::string_view::npos && trimmed(line.substr(space)) == "True")
      add(hosts, parse_host(line.substr(0, space), slots));
  });
  return hosts;
}

DiscoveryCommand discovery_command(const std::string& text) {
  using Output = DiscoveryCommand::Output;
  if (text == "slurm")  // squeue lists the current nodes also if the job has been resized
    return {
        Output::hosts,
        R"(nodes=$(squeue --noheader --jobs="${SLURM_JOB_ID:?is not set: this is no Slurm job}" --format=%N) &&)"
        R"( scontrol show hostnames "$nodes")"};
  const std::string prefix = "kubernetes:";
  if (text.starts_with(prefix)) {
    const std::string selector = text.substr(prefix.size());
    if (selector.empty())
      throw UsageError(
          "--discovery kubernetes:SELECTOR: the selector is empty, expected the labels of the pods");
    return {
        Output::pods,
        "kubectl get pods --selector=" + shell_word(selector) +
            R"( --output=jsonpath='{range .items[*]}{.metadata.name}{" "})"
            R"({.status.conditions[?(@.type=="Ready")].status}{" "}{.metadata.deletionTimestamp}{"\n"}{end}')"};
  }
  if (trimmed(text).empty()) throw UsageError("--discovery: the command is empty");
  return {Output::hosts, text};
}

}  // namespace weft::tool::launch::elastic
