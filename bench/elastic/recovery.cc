// The part that the jobs of all launchers share: start, fail or join, wait for the next step.
#include "bench/elastic/reports.h"
#include "bench/elastic/work.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace weft::bench {
namespace {

using Seconds = std::chrono::duration<double>;
using Generation = Reports::Generation;

constexpr std::size_t victim = 1;  // the rank of the worker that fails

std::function<bool(const Generation&)> size(int ranks) {
  return [ranks](const Generation& generation) { return generation.second == ranks; };
}

// Starts a launcher. Its workers end when the launcher ends.
Process start(const std::vector<std::string>& command, const Setting& setting) {
  return Process(setting.pins, 0, [&](Channel& channel) { channel.become(command); });
}

Contender contender(const char* peer, const std::function<Figures(const Setting&)>& measure) {
  return {peer, {}, [measure](const Setting& setting) {
            Outcome outcome;
            try {
              outcome.figures = measure(setting);
            } catch (const std::exception& error) {
              outcome.error = error.what();
            }
            return outcome;
          }};
}

Figures measure_failure(const Setting& setting, Launch launch, JobOptions options, int signal) {
  std::optional<Hosts> hosts;
  if (signal == cut) {
    options.kind = "hosts";
    options.hosts = &hosts.emplace(1 + options.workers);
  }
  Reports reports;
  Process launcher = start(launch(options, reports.path()).first, setting);
  const auto full = size(options.workers);
  reports.wait(launcher, full);
  reports.read_for(launcher, setting.budget.duration);
  const auto next = [before = reports.latest().first](const Generation& generation) {
    return generation.first > before;
  };
  const auto failed = Reports::Clock::now();
  if (signal == cut) {
    hosts->cut(hosts->host_of(reports.process(victim)));
  } else {
    reports.signal(victim, signal);
  }
  const auto after = reports.wait(launcher, next);
  Figures figures{{"seconds", Seconds(after.completed - failed).count()},
                  {"steps_lost", static_cast<double>(after.steps_lost)}};
  if (signal == cut) return figures;
  const auto all = reports.wait(
      launcher, [&](const Generation& generation) { return next(generation) && full(generation); });
  figures["seconds_all"] = Seconds(all.completed - failed).count();
  return figures;
}

// If the others have excluded the worker in spite of the short stop, the next generation repeats steps.
Figures measure_pause(const Setting& setting, Launch launch, const JobOptions& options,
                      std::chrono::milliseconds time) {
  Reports reports;
  Process launcher = start(launch(options, reports.path()).first, setting);
  reports.wait(launcher, size(options.workers));
  reports.read_for(launcher, setting.budget.duration);
  const Generation before = reports.latest();
  reports.signal(victim, SIGSTOP);
  reports.read_for(launcher, time);
  const std::int64_t steps = reports.steps();
  const auto continued = Reports::Clock::now();
  reports.signal(victim, SIGCONT);
  while (reports.steps() == steps) reports.read_for(launcher, std::chrono::milliseconds{5});
  const double seconds = Seconds(Reports::Clock::now() - continued).count();
  reports.read_for(launcher, std::chrono::seconds{2});
  Figures figures{{"seconds", seconds}, {"steps_lost", 0}};
  if (reports.latest().first != before.first) {
    const auto next = [&](const Generation& generation) { return generation.first > before.first; };
    figures["steps_lost"] = static_cast<double>(reports.wait(launcher, next).steps_lost);
  }
  return figures;
}

// The peers and rounds have the same sequence of failures. A worker that has failed already, and that nothing
// has replaced, may fail again.
Figures measure_storm(const Setting& setting, Launch launch, const JobOptions& options) {
  constexpr auto interval = std::chrono::seconds{15};
  constexpr int per_second = 80;  // failures for each second of --seconds: 10 minutes by default
  constexpr int signals[] = {SIGKILL, SIGSTOP, SIGUSR1};
  const int failures = std::max(1, static_cast<int>(Seconds(setting.budget.duration).count() * per_second));
  Reports reports;
  Process launcher = start(launch(options, reports.path()).first, setting);
  reports.wait(launcher, size(options.workers));
  const auto steps = [&] { return static_cast<double>(reports.steps()); };
  const double before = steps();
  reports.read_for(launcher, interval);
  const double undisturbed = steps() - before;
  std::mt19937 random(1);
  for (int i = 0; i < failures; ++i) {
    const int signal = signals[random() % std::size(signals)];
    reports.signal(random(), signal);
    reports.read_for(launcher, interval);
  }
  return {{"share", (steps() - before - undisturbed) / failures / undisturbed},
          {"steps_per_s", undisturbed / Seconds(interval).count()}};
}

Figures measure_join(const Setting& setting, Launch launch, const JobOptions& options) {
  Reports reports;
  const Launches commands = launch(options, reports.path());
  Process launcher = start(commands.first, setting);
  reports.wait(launcher, size(options.workers));
  reports.read_for(launcher, setting.budget.duration);
  const auto started = Reports::Clock::now();
  const Process second = start(commands.second, setting);
  const auto joined = reports.wait(launcher, size(options.workers + 1));
  return {{"seconds", Seconds(joined.completed - started).count()},
          {"seconds_paused", Seconds(joined.completed - joined.last_before).count()}};
}

}  // namespace

Contender failure_contender(const char* peer, Launch launch, const JobOptions& options, int signal) {
  return contender(peer,
                   [=](const Setting& setting) { return measure_failure(setting, launch, options, signal); });
}

Contender pause_contender(const char* peer, Launch launch, const JobOptions& options,
                          std::chrono::milliseconds time) {
  return contender(peer,
                   [=](const Setting& setting) { return measure_pause(setting, launch, options, time); });
}

Contender join_contender(const char* peer, Launch launch, const JobOptions& options) {
  return contender(peer, [=](const Setting& setting) { return measure_join(setting, launch, options); });
}

Contender copy_contender(const char* peer, std::size_t bytes, bool new_memory) {
  return contender(peer, [=](const Setting&) {
    const std::vector<char> from(bytes, 1);
    const auto to = std::make_unique_for_overwrite<char[]>(bytes);
    if (!new_memory) std::memset(to.get(), 0, bytes);
    const auto begun = Reports::Clock::now();
    std::memcpy(to.get(), from.data(), bytes);
    const auto copied = Reports::Clock::now();
    if (to[bytes - 1] != 1) throw std::runtime_error("the copy is incomplete");
    return Figures{{"seconds_paused", Seconds(copied - begun).count()}};
  });
}

Contender storm_contender(const char* peer, Launch launch, const JobOptions& options) {
  return contender(peer, [=](const Setting& setting) { return measure_storm(setting, launch, options); });
}

}  // namespace weft::bench
