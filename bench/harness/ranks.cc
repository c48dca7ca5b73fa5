#include "bench/harness/ranks.h"

#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdint>

namespace weft::bench {

void RankEnd::report(const Figures& figures) {
  report_text(nlohmann::json{{"figures", figures}, {"threads", count_threads()}}.dump());
}

void RankEnd::report_text(const std::string& message) { channel_.send(message); }

std::vector<std::unique_ptr<Process>> compute_on_each_core() {
  std::vector<std::unique_ptr<Process>> processes;
  const std::vector<int> cores = allowed_cores();
  const Pins pins = Pins::one_each(cores, cores.size());
  for (std::size_t i = 0; i < cores.size(); ++i)
    processes.push_back(std::make_unique<Process>(pins, i, [](Channel&) {
      std::atomic<std::uint64_t> count = 0;
      while (true) count.fetch_add(1, std::memory_order_relaxed);
    }));
  return processes;
}

Outcome measure_ranks(int ranks, const Setting& setting, const std::function<void(RankEnd&)>& body) {
  constexpr auto tear_down = std::chrono::seconds{5};
  Outcome outcome;
  try {
    std::vector<std::unique_ptr<Process>> processes;
    for (int rank = 0; rank < ranks; ++rank)
      processes.push_back(std::make_unique<Process>(setting.pins, static_cast<std::size_t>(rank),
                                                    [&, rank](Channel& channel) {
                                                      RankEnd end(channel, rank, setting);
                                                      body(end);
                                                    }));
    const auto longest = std::chrono::duration_cast<std::chrono::milliseconds>(setting.budget.warm_up +
                                                                               setting.budget.duration);
    const auto result =
        nlohmann::json::parse(processes.front()->expect("rank 0", std::chrono::seconds{60} + 5 * longest));
    outcome.figures = result["figures"].get<Figures>();
    outcome.threads = std::to_string(result["threads"].get<std::size_t>());
    for (const auto& process : processes) process->end(tear_down);
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

}  // namespace weft::bench
