// The options of `weft launch` that make a job elastic, and the job that they describe. Thread-safety: used
// by one thread.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include "tools/weft/launch/elastic/elastic_run.h"

namespace weft::tool {

struct ElasticOptions {
  std::size_t min = 0, max = 0, slots = 0, host_failures = 3, restarts = 0;
  std::string hosts, discovery, poll = "1s", timeout = "10m", start_timeout = "10m", finish_wait = "1m";
  std::string cooldown = "10s", max_cooldown = "10m", healthy_after = "1m", rsh = "ssh", remote_weft,
              orphan_wait;
  std::optional<std::size_t> reset_limit;
  bool evict = false;
  std::vector<std::string> variables;

  void add_to(CLI::App& app);
  bool given() const { return min != 0 || max != 0 || !hosts.empty() || !discovery.empty(); }
  // How long workers outlive their driver if the job uses this store. Throws UsageError if the option is
  // invalid.
  std::string orphan_wait_with(const std::string& store) const;
  // The job that these options describe; the caller sets its other fields. Throws UsageError if an option is
  // invalid.
  launch::elastic::ElasticJob job() const;
};

}  // namespace weft::tool
