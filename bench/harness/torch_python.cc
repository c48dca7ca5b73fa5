#include "bench/harness/torch_python.h"

#include <cstdlib>
#include <filesystem>

namespace weft::bench {

std::vector<std::string> torch_command(const std::string& script, const std::vector<std::string>& arguments) {
  const char* const chosen = std::getenv("WEFT_TORCH_PYTHON");
  std::vector<std::string> command{
      "env", "PYTHONPATH=" WEFT_BENCH_SOURCE_DIR "/harness",
      chosen != nullptr && *chosen != '\0' ? chosen : WEFT_BENCH_SOURCE_DIR "/../.venv/bin/python",
      WEFT_BENCH_SOURCE_DIR "/" + script};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::string seconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration<double>(time).count());
}

Pair torch_pair(const std::string& script, const std::vector<std::string>& words) {
  const auto command = [=](const char* role, const std::string& store) {
    std::vector<std::string> arguments{role};
    arguments.insert(arguments.end(), words.begin(), words.end());
    arguments.push_back(store);
    return torch_command(script, arguments);
  };
  return {.serve = [=](ServerEnd& end) { end.become(command("serve", scratch_path(".store"))); },
          .measure =
              [=](ClientEnd& end) {
                auto all = command("measure", end.address());
                all.push_back(seconds(end.budget().warm_up));
                all.push_back(seconds(end.budget().duration));
                end.become(all);
              }};
}

Outcome measure_torch_ranks(int ranks, const Setting& setting, const std::string& script,
                            const std::vector<std::string>& arguments,
                            const std::function<void(int rank)>& prepare) {
  const std::string store = scratch_path(".torch");
  const Outcome outcome = measure_ranks(ranks, setting, [&](RankEnd& end) {
    prepare(end.rank());
    std::vector<std::string> all{std::to_string(end.rank()), std::to_string(ranks), store,
                                 seconds(end.budget().warm_up), seconds(end.budget().duration)};
    all.insert(all.end(), arguments.begin(), arguments.end());
    end.become(torch_command(script, all));
  });
  std::filesystem::remove(store);
  return outcome;
}

}  // namespace weft::bench
