#include <weft/rpc/testing/simulation/sim_seeds.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>

namespace weft::test {
namespace {

constexpr std::size_t most_failures = 3;
constexpr std::uint64_t long_run = 20'000;  // seeds, from where on progress is shown

std::optional<std::uint64_t> number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

struct Failure {
  std::string what, trace;
};

std::optional<Failure> run(std::uint64_t seed, const SimOptions& options,
                           const std::function<void(SimWorld&)>& body, std::uint64_t& steps) {
  SimWorld world(seed, options);
  std::string what;
  try {
    body(world);
  } catch (const std::exception& error) {
    what = std::string("  thrown: ") + error.what() + "\n";
  }
  for (const std::string& violation : world.violations()) what += "  " + violation + "\n";
  steps += world.steps();
  if (what.empty()) return std::nullopt;
  return Failure{std::move(what), world.trace().tail()};
}

}  // namespace

SimReport for_each_seed(const SimSeeds& seeds, const std::function<void(SimWorld&)>& body) {
  SimOptions options = seeds.options;
  const auto only = number_from_environment("WEFT_SIM_SEED");
  const std::uint64_t first = only.value_or(seeds.first);
  const std::uint64_t count = only ? 1 : number_from_environment("WEFT_SIM_SEEDS").value_or(seeds.count);
  options.live_trace = only && number_from_environment("WEFT_SIM_TRACE").value_or(0) != 0;

  SimReport report;
  for (std::uint64_t seed = first; seed != first + count && report.failed.size() < most_failures; ++seed) {
    ++report.seeds;
    if (count >= long_run && report.seeds % (count / 20) == 0)
      std::fprintf(stderr, "%llu of %llu seeds\n", static_cast<unsigned long long>(report.seeds),
                   static_cast<unsigned long long>(count));
    const auto failure = run(seed, options, body, report.steps);
    if (!failure) continue;
    report.failed.push_back(seed);
    std::string text = "seed " + std::to_string(seed) + " failed:\n" + failure->what;
    if (report.failed.size() == 1 && !options.live_trace) text += failure->trace;
    text += "replay it with: WEFT_SIM_SEED=" + std::to_string(seed) + " " + program_invocation_name;
    if (!seeds.test.empty()) text += " --gtest_filter=" + seeds.test;
    report.text += text + "\n";
    if (seeds.print) std::fprintf(stderr, "%s\n", text.c_str());
  }
  return report;
}

}  // namespace weft::test
