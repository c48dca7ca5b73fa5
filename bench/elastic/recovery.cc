// The part that the jobs of all launchers share: start, kill or join, wait for the next step.
#include "bench/elastic/reports.h"
#include "bench/elastic/work.h"

#include <csignal>
#include <cstdlib>

namespace weft::bench {
namespace {

using Seconds = std::chrono::duration<double>;
using Generation = Reports::Generation;

constexpr int victim = 1;  // the rank of the worker that is killed

// Starts a launcher. Its workers end when the launcher ends.
Process start(const std::vector<std::string>& command, const Setting& setting) {
  return Process(setting.pins, 0, [&](Channel& channel) { channel.become(command); });
}

Outcome outcome_of(const std::function<Figures()>& measure) {
  Outcome outcome;
  try {
    outcome.figures = measure();
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

Figures measure_kill(const Setting& setting, int workers, Launch launch) {
  Reports reports;
  Process launcher = start(launch(workers, false, reports.path()).first, setting);
  const auto full = [&](const Generation& generation) { return generation.second == workers; };
  const auto before = reports.wait(launcher, full);
  reports.read_for(setting.budget.duration);
  const auto next = [&](const Generation& generation) { return generation.first > before.generation.first; };
  const auto killed = Reports::Clock::now();
  kill(before.processes.at(victim), SIGKILL);
  const auto after = reports.wait(launcher, next);
  const auto all = reports.wait(
      launcher, [&](const Generation& generation) { return next(generation) && full(generation); });
  return {{"seconds", Seconds(after.completed - killed).count()},
          {"seconds_all", Seconds(all.completed - killed).count()}};
}

Figures measure_join(const Setting& setting, int workers, Launch launch) {
  Reports reports;
  const Launches commands = launch(workers, true, reports.path());
  Process launcher = start(commands.first, setting);
  const auto size = [](int ranks) {
    return [ranks](const Generation& generation) { return generation.second == ranks; };
  };
  reports.wait(launcher, size(workers));
  reports.read_for(setting.budget.duration);
  const auto started = Reports::Clock::now();
  const Process second = start(commands.second, setting);
  const auto joined = reports.wait(launcher, size(workers + 1));
  return {{"seconds", Seconds(joined.completed - started).count()},
          {"seconds_paused", Seconds(joined.completed - joined.last_before).count()}};
}

}  // namespace

Contender kill_contender(const char* peer, int workers, Launch launch) {
  return {peer, {}, [workers, launch](const Setting& setting) {
            return outcome_of([&] { return measure_kill(setting, workers, launch); });
          }};
}

Contender join_contender(const char* peer, int workers, Launch launch) {
  return {peer, {}, [workers, launch](const Setting& setting) {
            return outcome_of([&] { return measure_join(setting, workers, launch); });
          }};
}

}  // namespace weft::bench
