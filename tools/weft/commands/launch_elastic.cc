#include "tools/weft/commands/launch_elastic.h"

#include <filesystem>
#include <optional>
#include <random>

#include "tools/weft/duration.h"
#include "tools/weft/errors.h"
#include "tools/weft/launch/elastic/remote.h"

namespace weft::tool {

void ElasticOptions::add_to(CLI::App& app) {
  const auto add = [&](const char* name, auto& value, const char* what) {
    return app.add_option(name, value, what)->group("Elastic jobs");
  };
  const auto time = [&](const char* name, std::string& value, const char* what) {
    add(name, value, what)->type_name("TIME")->capture_default_str();
  };
  add("--min", min, "The minimum number of workers: the job fails if it has fewer for --elastic-timeout (1)")
      ->check(CLI::Range(1, 100'000));
  add("--max", max,
      "The maximum number of workers (the slots of --hosts or of this host; with --discovery it is required)")
      ->check(CLI::Range(1, 100'000));
  add("--hosts", hosts, "The hosts and the number of workers on each")->type_name("HOST[:SLOTS],...");
  add("--discovery", discovery, "A command that prints lines HOST[:SLOTS]; slurm; or kubernetes:SELECTOR")
      ->type_name("COMMAND");
  add("--slots", slots, "The number of workers on a host without SLOTS (1)")->check(CLI::Range(1, 100'000));
  time("--poll", poll, "Interval between two discoveries");
  time("--elastic-timeout", timeout, "How long fewer workers than --min may be ready");
  time("--start-timeout", start_timeout,
       "How long a worker may take to join the job; 0: it counts as ready at once, for programs without an "
       "agent");
  time("--finish-wait", finish_wait, "Time from the first worker that succeeds to the end of the others");
  add("--host-failures", host_failures, "Failures in a row that blacklist a host")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  time("--healthy-after", healthy_after,
       "The run time after which a worker's failure does not count as one in a row");
  time("--cooldown", cooldown, "How long a host is blacklisted at first; 0: for good");
  time("--max-cooldown", max_cooldown, "The maximum of --cooldown, which doubles each time");
  app.add_flag("--evict", evict, "Stop all workers of a blacklisted host")->group("Elastic jobs");
  add("--reset-limit", reset_limit,
      "How often the workers may change after the start of the job (unlimited)");
  add("--restarts", restarts, "How often the job restarts after all its workers have failed")
      ->capture_default_str();
  add("--orphan-wait", orphan_wait,
      "With --store FILE or etcd: how long workers continue after the death of the driver (1m), until the "
      "same command is started again and takes over; 0: not at all")
      ->type_name("TIME");
  add("--rsh", rsh,
      "How to reach other hosts: ssh, srun, kubectl, or a command with the arguments HOST COMMAND")
      ->type_name("COMMAND")
      ->capture_default_str();
  add("--remote-weft", remote_weft, "The program weft on other hosts (the path of this one)")
      ->type_name("FILE");
  add("--env", variables,
      "An environment variable to copy to workers on other hosts; may be given several times")
      ->type_name("NAME")
      ->allow_extra_args(false);
}

std::string ElasticOptions::orphan_wait_with(const std::string& store) const {
  const bool outlives = store.starts_with("file:") || store.starts_with("etcd:");
  if (orphan_wait.empty()) return outlives ? "1m" : "0";
  if (!outlives && parse_duration(orphan_wait).count() != 0)
    throw UsageError(
        "--orphan-wait needs --store file:///PATH or etcd://HOST:PORT/PREFIX, where another driver "
        "finds the job");
  return orphan_wait;
}

launch::elastic::ElasticJob ElasticOptions::job() const {
  using namespace launch::elastic;
  if (!hosts.empty() && !discovery.empty()) throw UsageError("--hosts and --discovery exclude each other");
  if (!discovery.empty() && max == 0)
    throw UsageError("--discovery needs --max, the maximum number of workers");
  if (slots != 0 && hosts.empty() && discovery.empty())
    throw UsageError("--slots needs --hosts or --discovery");
  ElasticJob job;
  job.slots = slots == 0 ? 1 : slots;
  std::size_t all = 0;
  if (!discovery.empty()) {
    job.discovery = discovery_command(discovery);
  } else {
    const std::size_t here = max != 0 ? max : min;
    job.hosts =
        hosts.empty() ? std::vector<HostSlots>{{"localhost", here}} : parse_host_list(hosts, job.slots);
    for (const HostSlots& host : job.hosts) all += host.slots;
  }
  DriverOptions& driver = job.driver;
  driver.min_workers = min == 0 ? 1 : min;
  driver.max_workers = max == 0 ? all : max;
  if (driver.min_workers > driver.max_workers)
    throw UsageError("--min " + std::to_string(driver.min_workers) + " is more than the " +
                     std::to_string(driver.max_workers) + (max == 0 ? " slots of the hosts" : " of --max"));
  driver.timeout = parse_duration(timeout);
  driver.start_timeout = parse_duration(start_timeout);
  driver.finish_wait = parse_duration(finish_wait);
  driver.blacklist = {host_failures, parse_duration(healthy_after), parse_duration(cooldown),
                      parse_duration(max_cooldown)};
  driver.evict = evict;
  driver.reset_limit = reset_limit;
  driver.restarts = restarts;
  driver.seed = std::random_device{}();
  job.poll = parse_duration(poll);
  job.rsh = rsh;
  (void)rsh_words(rsh, "host", "command");
  job.remote_weft =
      remote_weft.empty() ? std::filesystem::read_symlink("/proc/self/exe").string() : remote_weft;
  job.passed_variables = variables;
  return job;
}

}  // namespace weft::tool
